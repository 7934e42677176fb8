"""Checks of the arguments of layers, and their errors."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def at_least_single(where: str, dtype: torch.dtype | None) -> torch.dtype:
    """The dtype of parameters: anchors are never kept in half precision."""
    wanted = torch.get_default_dtype() if dtype is None else dtype
    if not wanted.is_floating_point:
        raise TypeError(f"{where}: `dtype` must be a floating-point type, got {dtype}")
    return wanted if wanted.itemsize >= 4 else torch.float32


def features(where: str, x: object, expected: int) -> None:
    """The last dimension of an input."""
    if not isinstance(x, Tensor):
        raise TypeError(f"{where}: `x` must be a tensor, got {type(x).__name__}")
    if x.dim() == 0 or x.shape[-1] != expected:
        raise ValueError(f"{where}: `x` must have {expected} features in its last dimension, got {tuple(x.shape)}")


def is_linear(where: str, layer: object) -> None:
    """A dense layer."""
    if not isinstance(layer, nn.Linear):
        raise TypeError(f"{where}: `layer` must be a torch.nn.Linear, got {type(layer).__name__}")


def weight_like(where: str, name: str, weight: object, shape: tuple[int, int]) -> None:
    """A finite dense weight of this shape."""
    if not isinstance(weight, Tensor):
        raise TypeError(f"{where}: `{name}` must be a tensor, got {type(weight).__name__}")
    if tuple(weight.shape) != shape:
        raise ValueError(f"{where}: `{name}` must be {shape}, got {tuple(weight.shape)}")
    if not bool(weight.isfinite().all()):
        raise ValueError(f"{where}: `{name}` must be finite; it has {int((~weight.isfinite()).sum())} NaN or infinity")


def importance_of(where: str, importance: Tensor | None, columns: int) -> None:
    """How much each column matters, or the second moments of all: finite, not negative on the diagonal, not all 0."""
    if importance is None:
        return
    if not isinstance(importance, Tensor) or tuple(importance.shape) not in ((columns,), (columns, columns)):
        got = tuple(importance.shape) if isinstance(importance, Tensor) else type(importance).__name__
        raise ValueError(f"{where}: `importance` must be a tensor ({columns},) or ({columns}, {columns}), got {got}")
    of_columns = importance if importance.dim() == 1 else importance.diagonal()
    if not bool((of_columns >= 0).all() & importance.isfinite().all() & (of_columns > 0).any()):
        raise ValueError(f"{where}: `importance` must be finite, not negative, and not 0 everywhere")
    if importance.dim() == 2 and not torch.allclose(importance, importance.T):
        raise ValueError(f"{where}: `importance` must be symmetric; the mean of x x^T is")


def unphased(where: str, layer: object) -> None:
    """A layer of kernels without phases."""
    from laplex.nn._linear import LaplexLinear

    if not isinstance(layer, LaplexLinear):
        raise TypeError(f"{where}: `layer` must be a LaplexLinear, got {type(layer).__name__}")
    if layer.phi is not None:
        raise ValueError(f"{where}: `layer` must have no phases: a place is searched for without them")
