"""Copies of operands and results with adjacent rows: memory in which the rows of x, not its columns, are neighbours.

A gather of 16 bytes takes as long as one of 4, so four rows of float32 next to each other are gathered in one access.
"""

from __future__ import annotations

from torch import Tensor

from laplex._triton import tuning
from laplex._triton.launch import launch, step
from laplex._triton.scan import rows as programs


def adjacent_empty(like: Tensor, size: int) -> Tensor:
    """(h, m, size), not filled, with adjacent rows; h, m and the dtype are those of ``like``."""
    h, m, _ = like.shape
    rows = -(-m // tuning.ROWS_ADJACENT) * tuning.ROWS_ADJACENT
    return like.new_empty((h, size, rows)).mT[:, :m]


def adjacent(x: Tensor) -> Tensor:
    """A copy of x (h, m, size) with adjacent rows."""
    copied = adjacent_empty(x, x.shape[-1])
    copy(x, copied)
    return copied


def copy(x: Tensor, y: Tensor) -> None:
    """``y.copy_(x)`` for (h, m, size) in different layouts, as a launch, which can be replayed."""
    h, m, size = y.shape
    rows = step(m, 32, 4)
    grid = -(-size // tuning.COPY_TILE), -(-m // rows), h
    launch(programs.copy_program, grid, (x, y), (m, size, *x.stride(), *y.stride()), (tuning.COPY_TILE, rows), 4)
