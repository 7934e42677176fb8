r"""The scales of a layer: its tau, its size, and factors for its gradients, so that nn.Linear's learning rates suit it.

How far does one step of an optimizer with learning rate eta change W (n, k)? Compare a dense weight, of size
1 / sqrt(3 k), with a sum of r kernels on lines of length L, in units of tau, that is g times as large (``GAIN``).

**Adam** moves every parameter by eta. An entry of a dense weight changes by eta sqrt(3 k) of its size. An entry of
mix K changes by eta / tau of its size if its row or its column moves by eta. So

    tau = 1 / (2 sqrt(k))

**Gradient descent** moves a parameter by eta times its gradient. Let an entry of dL/dW have size gamma. The gradient
for a row's place sums the entries of the row, of which k / L are within reach; for a column's place, n / L; for mix,
all. If entries are independent, the sizes of these sums are

    d/da_i = 1 / tau  sum over j of  mix K_ij (+-1) dL/dW_ij        gamma g / (tau sqrt(3 r))
    d/db_j                                                          sqrt(n / k) times that
    d/dmix = sum over i, j of  K_ij dL/dW_ij                        gamma sqrt(n k / L)

So with the learning rate of a dense layer, places would jump over many tau. The layer multiplies these gradients by
constants that make them as large as those of a dense weight; likewise for phases and log tau. In fact entries are not
independent: dL/dW is nearly low-rank, entries of a row agree, and a kernel's are all positive. ``AGREEMENT`` and
``AGREEMENT_OF_ALL`` say how much larger the sums are. They were chosen by trial, on digits;
benchmarks/studies/learning_rates.py shows the result.

Such factors do not affect Adam, since it divides by the size of a gradient. Without them the two would need different
tau: sqrt(k) for Adam and k^(1/4) for gradient descent. (The learned step sizes of quantised networks are scaled for the
same reason: Esser et al., "Learned Step Size Quantization", 2020.) For methods that need true derivatives, such as
L-BFGS, make a layer with ``scale_gradients=False``.

**Weight decay** draws places together and mix to 0. Once the places of two kernels of opposite sign have met, the
kernels cancel, so W decays too.
"""

from __future__ import annotations

import math

from laplex._layer.inputs import Factors

GAIN = 2.0  # the size of a fresh W, in units of nn.Linear's, by trial: mix grows slowly, so a larger W learns faster
SPEED = 2.0  # 1 / tau is this times sqrt(in_features), about the square root of 3: see above
AGREEMENT = 10.0  # factor by which sums over a row or column of dL/dW exceed those of independent entries
AGREEMENT_OF_ALL = 50.0  # the same for sums over all entries
SPREAD = 2.5  # standard deviation of the anchors of a head, in units of tau; between 1 and 4 results hardly differ
SHORTEST = SPREAD * math.sqrt(12.0)  # the length of an even grid with that standard deviation
LENGTH_OF_A_KERNEL = 1.5  # length of the line per kernel, in units of tau; see ``_start``


def default_tau(in_features: int) -> float:
    """The length scale with which Adam moves places as fast as the entries of a dense weight."""
    return 1 / (SPEED * math.sqrt(in_features))


def gain(kernels: int, phase: bool) -> float:
    """The size of a fresh W. A single kernel with positive entries gives large results anyway."""
    return GAIN if kernels > 1 or phase else 1.0


def line_length(k: int, kernels: int, phase: bool) -> float:
    """The length of the line on which the anchors of a fresh layer of k inputs lie, in units of tau."""
    if phase:
        return SHORTEST  # cosines of random phases have both signs
    if kernels == 1:
        return max(SHORTEST, 4 * math.sqrt(k))
    return max(SHORTEST, LENGTH_OF_A_KERNEL * kernels)


def gradient_factors(n: int, k: int, kernels: int, phase: bool, tau: float, size: float = 1.0) -> Factors:
    """Factors for a layer with n outputs and k inputs; ``size`` is W's initial size in units of a fresh layer's."""
    size, length = size * gain(kernels, phase), line_length(k, kernels, phase)
    row = math.sqrt(3 * kernels) / (size * AGREEMENT)
    column = row * math.sqrt(k / n)
    every = math.sqrt(length / (n * k)) / AGREEMENT_OF_ALL
    mix = size * math.sqrt(length / (3 * k * kernels))  # tau d/dtau is about mix d/dmix
    phases = math.sqrt(row * column)  # one for both sides
    return Factors(row * tau, column * tau, every / (mix * tau), every, phases)
