"""Scales and diagonals of lazy sums of matrices: numbers, or tensors of numbers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

Number = float | Tensor


def is_one(number: Number) -> bool:
    """Whether it is the number 1; tensors are not read."""
    return not isinstance(number, Tensor) and number == 1.0


def at_least(dtype: torch.dtype, number: Number) -> Any:
    """A tensor in the precision of the operator, if it has less: what is computed from it should not be rounded."""
    return number.to(torch.promote_types(dtype, number.dtype)) if isinstance(number, Tensor) else number


def plus(dtype: torch.dtype, one: Number | None, other: Number | None) -> Number | None:
    """The sum, in at least the precision of the operator; None stands for 0."""
    if one is None or other is None:
        return one if other is None else other
    return at_least(dtype, one) + at_least(dtype, other)  # type: ignore[no-any-return]


def multiplied(number: Number, values: Tensor, dims: int) -> Tensor:
    """number * values, in their dtype; values has ``dims`` more dimensions than a tensor of numbers."""
    if not isinstance(number, Tensor):
        return values if is_one(number) else number * values
    real = values.real.dtype if values.is_complex() else values.dtype
    return number.to(real)[(..., *[None] * dims)] * values


def written(scale: Number) -> str:
    """A scale as it stands in front of an operator's name."""
    return "s * " if isinstance(scale, Tensor) else "" if is_one(scale) else f"{scale:g} * "
