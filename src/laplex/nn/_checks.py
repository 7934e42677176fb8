"""Checks of the arguments of layers, and their errors."""

from __future__ import annotations

import math
import numbers

import torch
from torch import Tensor, nn


def size(where: str, name: str, value: object) -> int:
    """A whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 1:
        raise ValueError(f"{where}: `{name}` must be a whole number of at least 1, got {value!r}")
    return int(value)


def positive(where: str, name: str, value: object) -> float:
    """A positive, finite number."""
    if isinstance(value, bool) or not isinstance(value, (int, float, numbers.Real)):
        raise TypeError(f"{where}: `{name}` must be a positive number, got {type(value).__name__}")
    number = float(value)
    if not (number > 0 and math.isfinite(number)):
        raise ValueError(f"{where}: `{name}` must be positive and finite, got {value!r}")
    return number


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
    """How much each column matters: not negative, not all 0."""
    if importance is None:
        return
    if not isinstance(importance, Tensor) or tuple(importance.shape) != (columns,):
        got = tuple(importance.shape) if isinstance(importance, Tensor) else type(importance).__name__
        raise ValueError(f"{where}: `importance` must be a tensor ({columns},), one number a column, got {got}")
    if not bool((importance >= 0).all() & importance.isfinite().all() & (importance > 0).any()):
        raise ValueError(f"{where}: `importance` must be finite, not negative, and not 0 everywhere")


def unphased(where: str, layer: object) -> None:
    """A layer of kernels without phases."""
    from laplex.nn._linear import LaplexLinear

    if not isinstance(layer, LaplexLinear):
        raise TypeError(f"{where}: `layer` must be a LaplexLinear, got {type(layer).__name__}")
    if layer.phi is not None:
        raise ValueError(f"{where}: `layer` must have no phases: a place is searched for without them")
