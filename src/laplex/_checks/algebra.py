"""Checks of what lazy matrices are scaled by and added to.

The operator is given by its shape (*H, n, k) and its device.
"""

from __future__ import annotations

import math
import numbers
from typing import Any

import torch
from torch import Tensor

from laplex._checks.arguments import ANCHOR_DTYPES, as_float, check_tensor, column_hint, real_instead


def scale(where: str, value: Any, shape: torch.Size, device: torch.device) -> float | Tensor:
    """The checked factor of a matrix: a number, or a tensor, which becomes () or broadcasts to H."""
    if hasattr(value, "to_dense") and not isinstance(value, Tensor):
        raise TypeError(
            f"{where}: `s` must be a number or a tensor, got {type(value).__name__}; apply one matrix after the other, "
            "as in K @ (M @ x); the product entry by entry needs .to_dense()"
        )
    number = _number_or_tensor(where, "s", value, device)
    if not isinstance(number, Tensor):
        return number
    if number.numel() == 1:
        return number.reshape(()) if number.dim() else number
    batch = tuple(shape[:-2])
    if not _broadcasts(number.shape, batch):
        raise ValueError(
            f"{where}: `s` must have one element, or broadcast to H = {batch}, one number per matrix, got shape "
            f"{tuple(number.shape)}; to scale rows or columns multiply the result or the operand, for single entries "
            "use .to_dense()"
        )
    return number


def divisor(where: str, value: Any, shape: torch.Size, device: torch.device) -> float | Tensor:
    """The checked number by which a matrix is divided."""
    number = scale(where, value, shape, device)
    if not isinstance(number, Tensor) and number == 0:
        raise ValueError(f"{where}: `s` must not be 0, got {value!r}")
    return number


def added_diagonal(where: str, value: Any, shape: torch.Size, device: torch.device) -> float | Tensor:
    """The checked addition to a square matrix's diagonal, of any sign: a number, or what broadcasts to (*H, n)."""
    *batch, n, k = shape
    if n != k:
        raise ValueError(f"{where}: needs a square matrix, got shape {tuple(shape)}")
    number = _number_or_tensor(where, "diag", value, device)
    if isinstance(number, Tensor) and not _broadcasts(number.shape, (*batch, n)):
        raise ValueError(
            f"{where}: `diag` must be a number or broadcast to {(*batch, n)}, got shape {tuple(number.shape)}"
            f"{column_hint(tuple(batch), n, number.shape)}"
        )
    return number


def summands(where: str, left: Any, right: Any) -> None:
    """Check that two operators to be added have the same shape, dtype and device."""
    if left.shape != right.shape:
        shapes = f"{tuple(left.shape)} and {tuple(right.shape)}"
        raise ValueError(f"{where}: the matrices must have one shape, got {shapes}; expand the anchors of the smaller")
    for name in ("dtype", "device"):
        one, other = getattr(left, name), getattr(right, name)
        if one != other:
            raise TypeError(f"{where}: the matrices must have one {name}, got {one} and {other}; use .to({one!r})")


def positive_scale(where: str, values: Tensor) -> Tensor:
    """The scales (h,) of matrices to be solved: any that are not positive raise, or on CUDA become NaN."""
    positive = (values > 0) & (values < math.inf)
    if values.is_cuda:
        return torch.where(positive, values, torch.nan)
    if not bool(positive.all()):
        value = float(values.detach()[~positive][0])
        raise ValueError(
            f"{where}: the scale of the matrix must be positive and finite, or it is not positive definite, got {value}"
        )
    return values


def not_added(where: str, other: object) -> str:
    """The text for K + x where x is not an operator."""
    got = f"a tensor of shape {tuple(other.shape)}" if isinstance(other, Tensor) else type(other).__name__
    return (
        f"{where}: `x` must be an operator, got {got}; for a diagonal use K.add_diagonal(d); for all entries "
        "use K.to_dense() if the matrix fits"
    )


def not_solved_as_a_sum(where: str, count: int) -> str:
    return (
        f"{where}: a sum of {count} matrices is multiplied, but not solved, in O(n); laplex.gp.GaussianProcess solves "
        "sums of exponential kernels; or use .to_dense() if the matrix fits"
    )


def not_the_same_rows(name: str) -> str:
    return (
        f"{name}: a part must have the same rows and columns, M[rows, rows], or it is not a {name}; use .to_dense() "
        "if the matrix fits"
    )


def not_a_part_with_a_diagonal(name: str) -> str:
    return (
        f"{name}: a matrix with an added diagonal is indexed with the same rows and columns, A[rows, rows], without "
        "repetitions; index first and then add the diagonal, or use .to_dense() if the matrix fits"
    )


def _number_or_tensor(where: str, name: str, value: Any, device: torch.device) -> float | Tensor:
    if not isinstance(value, Tensor):
        if isinstance(value, bool) or not isinstance(value, numbers.Real):
            raise TypeError(f"{where}: `{name}` must be a real number or a torch.Tensor, got {type(value).__name__}")
        return as_float(value)
    check_tensor(where, name, value)
    if value.dtype not in ANCHOR_DTYPES:
        to_do = real_instead(name, value)
        raise TypeError(f"{where}: `{name}` must be float32 or float64, got {value.dtype}; {to_do}")
    if value.device != device:
        raise ValueError(f"{where}: `{name}` must be on the device of the operator ({device}), got {value.device}")
    return value


def _broadcasts(shape: torch.Size, full: tuple[int, ...]) -> bool:
    try:
        return tuple(torch.broadcast_shapes(shape, full)) == full
    except RuntimeError:
        return False
