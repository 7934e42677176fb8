"""The range of float64: variances, noise and observations that lead out of it are errors, not NaN or wrong digits."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NoReturn

from torch import Tensor

from laplex._eager import plain, plainly_eager
from laplex._states.order import extremes
from laplex.gp._kernel import Kernel

WHERE = "laplex.gp.GaussianProcess"
SMALLEST, LARGEST = 1e-150, 1e150  # variances: products of two are finite, and not 0; and the largest deviation
LARGEST_NOISE = 1e300  # a variance whose inverse is a normal number


def check_variance(variance: Any, kernel: Kernel, diag: Callable[[], Tensor]) -> None:
    """Raise if squares of variances leave float64; given is k(0), a number or one for each series, and the noise."""
    if isinstance(variance, Tensor):
        if not (plainly_eager() and plain(variance)):
            return
        variance = variance.detach().cpu().numpy()
    smallest, largest = (variance, variance) if isinstance(variance, float) else (variance.min(), variance.max())
    if math.isnan(largest) and kernel.is_finite():
        refuse_numbers(kernel)
    if smallest < SMALLEST and plainly_eager() and plain(noise := diag()):
        smallest = max(smallest, extremes(noise)[1])  # where there is noise, the rest may be small
    if smallest < SMALLEST or largest > LARGEST:
        raise ValueError(
            f"{WHERE}: the variance of the process, with its noise, must be from {SMALLEST:g} to {LARGEST:g}, got "
            f"{largest if largest > 1 else smallest:g}; use other units for y"
        )


def check_noise(name: str, largest: float) -> None:
    """Raise if a variance, or the square of a deviation, has no inverse."""
    most = LARGEST if name == "yerr" else LARGEST_NOISE
    if largest > most:
        raise ValueError(f"{WHERE}: `{name}` must be at most {most:g}, got {largest:g}; leave such observations out")


def check_observations(where: str, y: Tensor) -> None:
    """Raise if squares of observations leave float64."""
    size = max(map(abs, extremes(y)))
    if size > LARGEST:
        raise ValueError(
            f"{where}: `y`, less the mean, must be at most {LARGEST:g} in size, got {size:g}; use other units"
        )


def refuse_numbers(kernel: Kernel) -> NoReturn:
    """Raise because what follows from the kernel's parameters is not finite."""
    raise ValueError(
        f"{WHERE}: the numbers of `kernel` must have squares and inverses in float64, got {kernel}; use other units"
    )
