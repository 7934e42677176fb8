"""What an index of a lazy matrix selects: matrices of a batch, or rows and columns of every matrix."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy
import torch
from torch import Tensor

from laplex import _checks

ALL = slice(None)


class Selection(NamedTuple):
    """Either matrices, with all their rows and columns, or rows and columns of all matrices."""

    matrices: int | slice | Tensor | None  # along the first dimension of a batch; None for all of them
    rows: slice | Tensor
    cols: slice | Tensor
    same: bool  # rows and columns are the same object, or equal slices: a symmetric matrix stays symmetric

    def among_matrices(self, values: Tensor, shape: tuple[int, ...]) -> Tensor:
        """The part of values, which broadcast to shape (*H, ...), that belongs to the matrices."""
        return values if self.matrices is None else values.expand(shape)[self.matrices]


def selection(name: str, key: Any, shape: torch.Size, device: torch.device) -> Selection:
    """Read the index of an operator of this shape, which is a ``name``."""
    parts = key if isinstance(key, tuple) else (key,)
    allowed = len(parts) == 2 or not isinstance(key, tuple)
    if not allowed or any(part is Ellipsis or part is None for part in parts):
        raise TypeError(_checks.not_an_index(name, key))
    if len(parts) == 1 and len(shape) > 2:
        return Selection(_matrices(name, key, device), ALL, ALL, True)
    rows, cols = parts if len(parts) == 2 else (key, ALL)
    same = rows is cols or (isinstance(rows, slice) and rows == cols)
    return Selection(None, _indices(name, rows, device), _indices(name, cols, device), same)


def _matrices(name: str, key: Any, device: torch.device) -> int | slice | Tensor:
    """An int removes the dimension, as in torch."""
    single = isinstance(key, Tensor) and key.dim() == 0 and not key.is_floating_point()
    if single or (isinstance(key, int | numpy.integer) and not isinstance(key, bool)):
        return int(key)
    indices = _indices(name, key, device)
    if isinstance(indices, Tensor) and indices.dim() > 1:
        raise TypeError(_checks.not_an_index(name, key))
    return indices


def _indices(name: str, part: Any, device: torch.device) -> slice | Tensor:
    """A slice, or a tensor of indices that keeps the dimension: an int becomes a list of one."""
    if isinstance(part, slice):
        return part
    if isinstance(part, numpy.ndarray):
        part = numpy.require(part, requirements=["C", "W"])  # torch warns about read-only memory
    try:
        indices = torch.as_tensor(part, device=device)
    except (TypeError, ValueError):
        raise TypeError(_checks.not_an_index(name, part)) from None
    if indices.numel() == 0 and not isinstance(part, Tensor):  # torch makes an empty list floating point
        indices = indices.long()
    return indices.reshape(1) if indices.dim() == 0 else indices
