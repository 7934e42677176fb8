"""The length scale tau: its type, its shape and its values."""

from __future__ import annotations

import math
import numbers

import torch
from torch import Tensor

from laplex._checks.arguments import as_float, is_tensor, real_instead, same_device
from laplex._checks.messages import not_finite
from laplex._eager import plainly_eager
from laplex._shapes import flat_tau

SMALLEST_TAU = torch.finfo(torch.float64).tiny  # 1 / tau overflows a little below it; csrc/common.h has the same limit
SMALLEST_TAU_OF_SQUARES = 2 * SMALLEST_TAU  # Gram matrices are made of sums at tau / 2


def length_scale(where: str, tau: object, a: Tensor, smallest: float = SMALLEST_TAU) -> None:
    """tau is a positive number, or a real tensor, whose values the backend checks when it reads them."""
    if isinstance(tau, Tensor):
        is_tensor(where, "tau", tau)
        if not tau.dtype.is_floating_point or tau.dtype.itemsize < 4:
            raise TypeError(f"{where}: `tau` must be float32 or float64, got {tau.dtype}; {real_instead('tau', tau)}")
        same_device(where, "tau", tau, "a", a)
    elif isinstance(tau, bool) or not isinstance(tau, numbers.Real):
        raise TypeError(f"{where}: `tau` must be a positive number or a tensor, got {type(tau).__name__}")
    elif not smallest <= as_float(tau) < math.inf:
        raise ValueError(bad_tau(where, as_float(tau)))


def is_length(tau: Tensor, smallest: float = SMALLEST_TAU) -> Tensor:
    """Whether each tau is valid: positive, finite, with a finite reciprocal. (In float32 the limit would be 0.)"""
    return (tau.double() >= smallest) & (tau < math.inf)


def positive_on_cpu(where: str, tau: float | Tensor, batch: tuple[int, ...], smallest: float = SMALLEST_TAU) -> None:
    """Check a tensor's values, for results that no backend computes: single entries and the dense matrix.

    On other devices this would wait, and in a graph there are no values: there nothing is checked.
    """
    if not isinstance(tau, Tensor) or tau.device.type != "cpu" or not plainly_eager():
        return
    values = flat_tau(tau.detach(), batch, tau.device)
    if not bool(is_length(values, smallest).all()):
        raise ValueError(bad_tau(where, values, smallest))


def values(where: str, a: Tensor, b: Tensor, tau: Tensor) -> None:
    """Raise unless all anchors are finite and every tau is a length scale. Waits for the device."""
    for name, anchors in (("a", a), ("b", b)):
        if not bool(torch.isfinite(anchors).all()):
            raise ValueError(not_finite(where, name))
    if not bool(is_length(tau).all()):
        raise ValueError(bad_tau(where, tau))


def valid_tau(where: str, tau: Tensor) -> Tensor:
    """tau (h,), checked: bad values raise, or on CUDA become NaN."""
    if tau.is_cuda:
        return torch.where(is_length(tau), tau, torch.nan)
    if not bool(is_length(tau).all()):
        raise ValueError(bad_tau(where, tau))
    return tau


def bad_tau(where: str, tau: float | Tensor, smallest: float = SMALLEST_TAU) -> str:
    """The text for a tau that is not a length scale."""
    got = _first(tau, ~is_length(tau, smallest)) if isinstance(tau, Tensor) else tau
    return (
        f"{where}: `tau` must be positive and finite, got {got}; it is the length scale in exp(-|a - b| / tau), "
        f"at least {SMALLEST_TAU:.1e} (twice that for Gram matrices), and if it is learned, learn its logarithm"
    )


def _first(values: Tensor, wrong: Tensor) -> str:
    """The first wrong value; in a batch of matrices, also the matrix it belongs to."""
    at, count = int(wrong.flatten().int().argmax()), values.numel()
    return str(float(values.detach().flatten()[at])) + (f" for matrix {at} of {count}" if count > 1 else "")
