"""Checks that only solves, log determinants and Cholesky factors need."""

from __future__ import annotations

import math
import numbers

import torch
from torch import Tensor
from torch.autograd import forward_ad

from laplex._checks.arguments import as_float, column_hint, real
from laplex._checks.messages import not_captured, not_finite
from laplex._errors import PrecisionWarning, warn

LOST = 1e-6  # error of a log determinant by rounding above which a warning is given


def warn_of_lost_digits(where: str, ratios: float, others: str = "") -> None:
    """Warn if a matrix A is nearly singular; ``ratios`` is the sum of A_ii / d_i over its pivots d, and ``others`` says
    what else suffers.

    A factorisation finds d_i with an error of about eps A_ii, so that log det A has one of about eps times the sum.
    """
    lost = ratios * torch.finfo(torch.float64).eps
    if lost > LOST:
        warn(
            f"{where}: the matrix is nearly singular: errors of up to about {lost:.1g} are in its log determinant, by "
            f"rounding{others}; raise `diag`",
            PrecisionWarning,
        )


def diagonal(where: str, diag: object, a: Tensor, batch: tuple[int, ...], *, optional: bool) -> Tensor:
    """The addition to the diagonal, as (h, n) float64: a positive number, or values that broadcast to (*H, n).

    Values that are not positive raise; on CUDA the diagonal of that matrix becomes NaN.
    """
    n = a.shape[-1]
    if isinstance(diag, Tensor):
        real(where, "diag", diag, a)
        values = diag.to(dtype=torch.float64, device=a.device)
    elif isinstance(diag, bool) or not isinstance(diag, numbers.Real):
        raise TypeError(f"{where}: `diag` must be a positive number or a tensor, got {type(diag).__name__}")
    else:  # filled in on the device: a copy from the host would wait for it
        values = torch.full((), as_float(diag), dtype=torch.float64, device=a.device)
    try:
        flat = values.expand(*batch, n).reshape(math.prod(batch), n)
    except RuntimeError:
        raise ValueError(
            f"{where}: `diag` must be a number or broadcast to {(*batch, n)}, got shape {tuple(values.shape)}"
            f"{column_hint(batch, n, values.shape)}"
        ) from None
    if flat.is_cuda:
        positive = (flat > 0) & (flat < math.inf)
        return torch.where(positive.all(-1, keepdim=True), flat, torch.nan)
    positive = (values > 0) & (values < math.inf)  # before the values are expanded: a number is checked once
    if not bool(positive.all()):
        value = float(values.detach()[~positive][0])
        raise ValueError(
            f"{where}: `diag` must be positive and finite throughout, got {value}{_diagonal_instead(value, optional)}"
        )
    return flat


def _diagonal_instead(value: float, optional: bool) -> str:
    """What to do about a diagonal that holds this value."""
    if not math.isfinite(value):
        return "; find it with torch.isfinite(diag).logical_not().nonzero()"
    left_out = "leave `diag` out for the matrix without one, or " if optional and value == 0 else ""
    return f"; {left_out}clamp it from below"


def not_negative(where: str, weight: Tensor) -> Tensor:
    """Weights (h, k), checked: bad values raise, or on CUDA the weights of that matrix become NaN."""
    allowed = (weight >= 0) & (weight < math.inf)
    if weight.is_cuda:
        return torch.where(allowed.all(-1, keepdim=True), weight, torch.nan)
    if not bool(allowed.all()):
        value = float(weight.detach()[~allowed][0])
        raise ValueError(
            f"{where}: `weight` must be finite and not negative, or the matrix need not be definite, got {value}; "
            "products with signed weights are fine, solves are not"
        )
    return weight


def finite_phase(where: str, name: str, phase: Tensor) -> Tensor:
    """Phases (h, n), checked: bad values raise, or on CUDA the phases of that matrix become NaN."""
    finite = torch.isfinite(phase)
    if phase.is_cuda:
        return torch.where(finite.all(-1, keepdim=True), phase, torch.nan)
    if not bool(finite.all()):
        raise ValueError(not_finite(where, name))
    return phase


def right_hand_side(where: str, y: Tensor, like: Tensor, batch: tuple[int, ...], n: int) -> None:
    if isinstance(y, Tensor) and y.is_complex():
        raise TypeError(
            f"{where}: `y` must be real, got {y.dtype}; the matrix is real: give y.real and y.imag as two columns, or "
            "one after the other"
        )
    real(where, "y", y, like, half=True)
    if y.dim() == 0 or y.shape[-2 if y.dim() > 1 else -1] != n:
        vectors = batch and y.dim() > 1 and y.shape[-1] == n
        column = column_hint(batch, n, y.shape)
        meant = "if they are meant, " if column else ""
        hint = column + (f"; {meant}use y.unsqueeze(-1) for one vector per matrix" if vectors else "")
        raise ValueError(f"{where}: `y` must be (n,) or (..., n, m) with n = {n}, got shape {tuple(y.shape)}{hint}")
    try:
        torch.broadcast_shapes(y.shape[:-2], batch)
    except RuntimeError:
        raise ValueError(
            f"{where}: the anchors lead with H = {batch}, so `y` must be (n,), (n, m) or broadcast to (*H, n, m), "
            f"got shape {tuple(y.shape)}"
        ) from None


def sample_count(where: str, count: object) -> None:
    if count is None:
        return
    if isinstance(count, bool) or not isinstance(count, numbers.Integral):
        raise TypeError(f"{where}: `count` must be a whole number or None, got {type(count).__name__}")
    if count < 0:
        raise ValueError(f"{where}: `count` must not be negative, got {count}")


def reverse_mode_only(where: str, *values: object) -> None:
    """Raise while a graph is captured, under transforms of torch.func, and for dual numbers.

    Derivatives would be lost there. (Unless fullgraph=True is set, torch.compile answers the first error with a
    graph break, and the call then runs eagerly.)
    """
    if torch.compiler.is_compiling():
        raise RuntimeError(not_captured(where))
    transformed = torch._C._are_functorch_transforms_active()
    if not transformed and forward_ad._current_level >= 0:
        tensors = (value for value in values if isinstance(value, Tensor))
        transformed = any(forward_ad.unpack_dual(tensor).tangent is not None for tensor in tensors)
    if transformed:
        raise RuntimeError(
            f"{where}: solves, log determinants and factors are differentiated in reverse mode only, not in forward "
            "mode, nor under torch.func transforms or vmap; use .backward() or torch.autograd.grad, anchors with a "
            "leading dimension in place of vmap, or .to_dense() if the matrix fits"
        )
