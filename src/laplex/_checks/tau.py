"""The length scale tau: its type, its shape and its values."""

from __future__ import annotations

import math
import numbers

import numpy
import torch
from torch import Tensor

from laplex._checks.arguments import as_float, check_tensor, real_instead, same_device
from laplex._checks.counts import is_number
from laplex._checks.messages import not_finite
from laplex._eager import plain, plainly_eager, readable, watching
from laplex._errors import PrecisionWarning, warn
from laplex._shapes import flat_tau, number_per_row

SMALLEST_TAU = torch.finfo(torch.float64).tiny  # 1 / tau overflows a little below it; csrc/common.h has the same limit
VISIBLE = 0.01  # of tau: an anchor that is off by this much changes entries by a percent
SMALLEST_TAU_OF_SQUARES = 2 * SMALLEST_TAU  # Gram matrices are made of sums at tau / 2


class _Precision:
    """Whether this process has warned of anchors with too few digits."""

    shown = False


_precision = _Precision()


def length_scale(where: str, tau: object, a: Tensor, smallest: float = SMALLEST_TAU) -> None:
    """Check that tau is a positive number, or a real tensor, whose values the backend checks when it reads them."""
    if isinstance(tau, Tensor):
        check_tensor(where, "tau", tau)
        if not tau.dtype.is_floating_point or tau.dtype.itemsize < 4:
            raise TypeError(f"{where}: `tau` must be float32 or float64, got {tau.dtype}; {real_instead('tau', tau)}")
        same_device(where, "tau", tau, "a", a)
    elif isinstance(tau, bool) or not isinstance(tau, numbers.Real):
        raise TypeError(f"{where}: `tau` must be a positive number or a tensor, got {type(tau).__name__}")
    elif not smallest <= as_float(tau) < math.inf:
        raise ValueError(bad_tau(where, as_float(tau)))
    if a.device.type == "cpu":
        resolution(where, tau if isinstance(tau, Tensor) else as_float(tau), a, shifted=True)


def row_lengths(
    where: str,
    name: str,
    value: object,
    batch: tuple[int, ...],
    like: Tensor,
    *,
    like_name: str = "x",
    batch_is: str = "the shape of `x` without `dim`",
    instead: str | None = None,
) -> Tensor:
    """The length scale of every row, (*batch) in float64, for functions of rows. Values are checked here, on the CPU.

    It may be a number or, on the device of ``like``, a real tensor of any dtype that broadcasts to the batch. Messages
    say what the batch is, and what else the function takes ``instead``.
    """
    if is_number(value):
        number = as_float(value)
        if not SMALLEST_TAU <= number < math.inf:
            raise ValueError(_not_positive(where, name, number))
        return number_per_row(number, batch, like.device)
    if not isinstance(value, Tensor):
        allowed = f"number, a tensor or {instead}" if instead else "number or a tensor"
        raise TypeError(
            f"{where}: `{name}` must be a positive {allowed}, got {type(value).__name__}; use float({name}) or "
            f"torch.as_tensor({name})"
        )
    if value.is_complex() or value.dtype == torch.bool:
        to_do = real_instead(name, value) if value.is_complex() else "use the lengths themselves"
        raise TypeError(f"{where}: `{name}` must be a number or a tensor of real numbers, got {value.dtype}; {to_do}")
    same_device(where, name, value, like_name, like)
    lengths = expanded(where, name, value.double(), batch, batch_is)
    if readable(lengths) and not bool(is_length(lengths).all()):  # elsewhere nobody would read the answer
        wrong = lengths.detach()
        raise ValueError(_not_positive(where, name, float(wrong[~is_length(wrong)][0])))
    return lengths


def expanded(where: str, name: str, value: Tensor, batch: tuple[int, ...], batch_is: str) -> Tensor:
    """One value for each row, (*batch)."""
    try:
        return value.expand(batch)
    except RuntimeError:
        raise ValueError(
            f"{where}: `{name}` must be a number, or broadcast to {tuple(batch)}, {batch_is}, got shape "
            f"{tuple(value.shape)}"
        ) from None


def _not_positive(where: str, name: str, got: float) -> str:
    return (
        f"{where}: `{name}` must be positive and finite, got {got:g}; if it is learned, learn its logarithm (the "
        f"smallest is {SMALLEST_TAU:.1e})"
    )


def resolution(where: str, tau: float | Tensor, a: Tensor, *, shifted: bool = False) -> None:
    """Warn, once per process, if float32 anchors, such as dates, are so large that their rounding shows against tau.

    The last bit distinguishes anchors that were rounded from exact ones, such as whole numbers. With ``shifted``, only
    anchors that are all far from 0 count: a layer's anchors are exact as they are, however small tau is. Waits for the
    device.
    """
    if _precision.shown or a.dtype != torch.float32 or not plainly_eager() or not plain(a) or a.numel() == 0:
        return
    if watching.modes:  # a recording ends where a value is read
        return
    anchors = a.detach()
    if shifted and not _far_from_zero(anchors, tau):
        return
    size, length = _widest(anchors.abs().amax(-1), tau)
    if not (length > 0 and VISIBLE * length < torch.finfo(a.dtype).eps * size < math.inf):
        return
    if shifted and float(anchors.max() - anchors.min()) > size / 4:
        return
    if bool((anchors.view(torch.int32) & 1).any()):
        warn(_too_coarse(where, size, length), PrecisionWarning)
        _precision.shown = True


def _far_from_zero(anchors: Tensor, tau: float | Tensor) -> bool:
    """Whether anchors may all be far from 0, judged by the first alone, so that each product reads only that one."""
    shortest = tau if not isinstance(tau, Tensor) else float(tau.detach().min()) if tau.numel() else 0.0
    first = abs(float(anchors[(0,) * anchors.dim()]))
    return VISIBLE * shortest < 2 * torch.finfo(anchors.dtype).eps * first  # it is at least 3/4 of the largest


def _widest(largest: Tensor, tau: float | Tensor) -> tuple[float, float]:
    """The largest anchor and the tau of the matrix in which they are furthest apart; largest is (*H)."""
    if not isinstance(tau, Tensor):
        return float(largest.max()), float(tau)
    lengths = tau.detach()
    if lengths.shape != largest.shape:  # one tau for all, or a shape that is checked later
        return float(largest.max()), float(lengths.min()) if lengths.numel() else 0.0
    place = (largest / lengths).argmax()
    return float(largest.flatten()[place]), float(lengths.flatten()[place])


def _too_coarse(where: str, size: float, tau: float) -> str:
    step = float(numpy.spacing(numpy.float32(size)))
    return (
        f"{where}: float32 anchors near {size:.8g} are {step:.3g} apart, which is {step / tau:.2g} of tau = {tau:.3g}: "
        "anchors that were closer are equal now, and the kernel is visibly off; subtract an offset before they are "
        "rounded, as in (times - times.mean()).float() of float64 times, or keep float64 (shown once; filter "
        "laplex.PrecisionWarning to silence it)"
    )


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
    """The text for a tau that is not a valid length scale."""
    got = _first(tau, ~is_length(tau, smallest)) if isinstance(tau, Tensor) else tau
    return (
        f"{where}: `tau` must be positive and finite, got {got}; it is the length scale in exp(-|a - b| / tau), "
        f"at least {SMALLEST_TAU:.1e} (twice that for Gram matrices), and if it is learned, learn its logarithm"
    )


def _first(values: Tensor, wrong: Tensor) -> str:
    """The first wrong value; in a batch of matrices, also the matrix it belongs to."""
    first, count = int(wrong.flatten().int().argmax()), values.numel()
    return str(float(values.detach().flatten()[first])) + (f" for matrix {first} of {count}" if count > 1 else "")
