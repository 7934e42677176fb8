"""Checks of the arguments of layers, and their errors."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from laplex._eager import plain


def at_least_single(where: str, dtype: torch.dtype | None) -> torch.dtype:
    """The dtype of parameters: anchors are never kept in half precision."""
    dtype = torch.get_default_dtype() if dtype is None else dtype
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"{where}: `dtype` must be a torch.dtype, got {dtype!r}; use torch.float32")
    if not dtype.is_floating_point:
        raise TypeError(f"{where}: `dtype` must be a floating-point type, got {dtype}; use torch.float32")
    return dtype if dtype.itemsize >= 4 else torch.float32


def length_in(where: str, tau: float, dtype: torch.dtype) -> float:
    """The length scale, if anchors of this dtype keep all their digits with it, even those much closer than tau."""
    info = torch.finfo(dtype)
    low, high = info.tiny / info.eps, info.max * info.eps
    if not low <= tau <= high:
        raise ValueError(
            f"{where}: `tau` must be from {low:.1e} to {high:.1e} in {dtype}, got {tau}; scale it, or use torch.float64"
        )
    return tau


def features(where: str, x: object, expected: int) -> None:
    """Check the last dimension of an input."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{where}: `x` must be a tensor, got {type(x).__name__}; use torch.as_tensor")
    if x.dim() == 0 or x.shape[-1] != expected:
        got = tuple(x.shape)
        raise ValueError(f"{where}: `x` must have {expected} features in its last dimension, got {got}; use .reshape")


def check_linear(where: str, layer: object) -> None:
    """Check that this is a dense layer."""
    if not isinstance(layer, nn.Linear):
        raise TypeError(f"{where}: `layer` must be a torch.nn.Linear, got {type(layer).__name__}; pass one")


def weight_like(where: str, name: str, weight: object, shape: tuple[int, int]) -> None:
    """Check that this is a finite dense weight of this shape."""
    if not isinstance(weight, Tensor):
        raise TypeError(f"{where}: `{name}` must be a tensor, got {type(weight).__name__}; use torch.as_tensor")
    if tuple(weight.shape) != shape:
        raise ValueError(
            f"{where}: `{name}` must be {shape}, got {tuple(weight.shape)}; it is (out_features, in_features)"
        )
    real_values(where, name, weight)
    if not bool(weight.isfinite().all()):
        count = int((~weight.isfinite()).sum())
        raise ValueError(f"{where}: `{name}` must be finite; it has {count} NaN or infinity; use .nan_to_num()")


def real_values(where: str, name: str, value: Tensor) -> None:
    """Check that the values are real numbers that can be read."""
    if value.is_complex():
        raise TypeError(f"{where}: `{name}` must be real, got {value.dtype}; use {name}.real")
    if value.is_meta:
        raise ValueError(f"{where}: `{name}` must hold numbers, got a tensor on the meta device; load it first")


def importances(where: str, importance: Tensor | None, columns: int) -> None:
    """Check each column's importance, or the second moments: finite, no negative on the diagonal, not all 0."""
    if importance is None:
        return
    if not isinstance(importance, Tensor) or tuple(importance.shape) not in ((columns,), (columns, columns)):
        got = tuple(importance.shape) if isinstance(importance, Tensor) else type(importance).__name__
        raise ValueError(
            f"{where}: `importance` must be a tensor ({columns},) or ({columns}, {columns}), got {got}; use the mean "
            "of x^2, or of x x^T, over the inputs"
        )
    real_values(where, "importance", importance)
    diagonal = importance if importance.dim() == 1 else importance.diagonal()
    if not bool((diagonal >= 0).all() & importance.isfinite().all() & (diagonal > 0).any()):
        raise ValueError(f"{where}: `importance` must be finite, not negative, and not 0 everywhere; clamp it")
    if importance.dim() == 2:
        _second_moments(where, importance)


def _second_moments(where: str, importance: Tensor) -> None:
    """Check for a symmetric matrix without negative eigenvalues, beyond what rounding and few examples leave."""
    scaled = importance.double() / importance.diagonal().double().max()
    if not torch.allclose(scaled, scaled.T):
        raise ValueError(f"{where}: `importance` must be symmetric, got one that is not; the mean of x x^T is")
    trace = scaled.diagonal().sum()
    slack = 1e-5 * trace * torch.eye(len(scaled), dtype=scaled.dtype, device=scaled.device)
    if int(torch.linalg.cholesky_ex(scaled + slack).info) != 0:
        raise ValueError(f"{where}: `importance` must have no negative eigenvalue, got one; x x^T has none")


def weight_is_formed(where: str, value: object) -> str:
    """The message for assigning to a weight, including to tie it to another module's."""
    return (
        f"{where}: `weight` is formed from a, b and mix and cannot be assigned, got {type(value).__name__}; use "
        "init_from(weight) to start from a dense weight, or from_linear to fit one; to share weights, share the layer"
    )


def weight_is_parametrized(where: str, value: object) -> str:
    """The message for assigning to a weight that is formed by a parametrization."""
    return (
        f"{where}: the weight is formed from anchors and cannot be assigned, got {type(value).__name__}; call "
        "torch.nn.utils.parametrize.remove_parametrizations first"
    )


def can_be_formed(where: str, name: str, weight: Tensor) -> None:
    """Check for an ordinary floating-point tensor with rows and columns."""
    if not plain(weight):
        raise ValueError(
            f"{where}: `{name}` must be an ordinary tensor with numbers, got {type(weight).__name__} on "
            f"{weight.device}; load it first, and shard or quantize afterwards"
        )
    if not weight.is_floating_point():
        raise TypeError(f"{where}: `{name}` must be of a floating-point type, got {weight.dtype}; call .float()")
    if weight.dim() < 2 or weight.numel() == 0:
        got = f"shape {tuple(weight.shape)}"
        raise ValueError(f"{where}: `{name}` must have rows and columns, got {got}; leave it as it is")
