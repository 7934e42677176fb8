"""The range of float64: variances, noise and observations that leave it raise errors, not NaN or wrong digits."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NoReturn

import numpy
import torch
from torch import Tensor

from laplex._eager import plain
from laplex._states.order import extremes
from laplex.gp._kernel import Kernel

WHERE = "laplex.gp.GaussianProcess"
SMALLEST, LARGEST = 1e-150, 1e150  # variances whose products are finite and not 0; LARGEST is also that of deviations
LARGEST_NOISE = 1e300  # a variance whose inverse is a normal number


def check_variance(variance: Any, kernel: Kernel, diag: Callable[[], Tensor]) -> None:
    """Raise if squares of variances leave float64; ``variance`` is k(0), a number or one for each series.

    Where there is noise, k(0) may be small. Where both are 0, the matrix is not positive definite, which shows later.
    """
    each = variance.detach().cpu().numpy() if isinstance(variance, Tensor) else variance
    smallest, largest = (each, each) if isinstance(each, float) else (numpy.min(each), numpy.max(each))
    if math.isnan(largest) and has_valid_parameters(kernel):
        refuse_numbers(kernel)
    if smallest < SMALLEST and plain(noise := diag()):
        each = numpy.maximum(each, noise.detach().amax(-1).reshape(-1).cpu().numpy())
        smallest = numpy.min(each[each > 0], initial=math.inf)
    if smallest < SMALLEST or largest > LARGEST:
        raise ValueError(
            f"{WHERE}: the variance of the process, with its noise, must be from {SMALLEST:g} to {LARGEST:g}, got "
            f"{smallest if smallest < SMALLEST else largest:g}; use other units for y"
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


def has_valid_parameters(kernel: Kernel) -> bool:
    """Whether all numbers of a kernel are finite and have the right sign; on a GPU each takes a synchronisation."""
    parts = [part for part in kernel.modules() if isinstance(part, Kernel)]
    named = [(part, name) for part in parts for name in part.parameter_names]
    tensors = [*kernel.parameters(), *kernel.buffers()]
    finite = all(bool(tensor.isfinite().all()) for tensor in tensors)
    return finite and all(_is_possible(part, name) for part, name in named)


def _is_possible(kernel: Kernel, name: str) -> bool:
    value = torch.as_tensor(getattr(kernel, name), dtype=torch.float64)
    right_sign = torch.ones_like(value, dtype=torch.bool) if name in kernel.signed_parameters else value > 0
    return bool((value.isfinite() & right_sign).all())
