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
    _copy(x, copied, lines=(False, True))
    return copied


def copy_back(sums: Tensor, out: Tensor) -> None:
    """Copy sums (h, m, size) with adjacent rows to the caller's memory."""
    _copy(sums, out, lines=(True, False))


def _copy(x: Tensor, y: Tensor, lines: tuple[bool, bool]) -> None:
    """``y.copy_(x)`` as a launch, which can be replayed. ``lines``: which of the two has adjacent rows."""
    h, m, size = y.shape
    numbers, most = tuning.COPY_TILE
    rows = step(m, most, 4)
    width = numbers // rows
    grid = -(-size // width), -(-m // rows), h
    launch(programs.copy_program, grid, (x, y), (m, size, *x.stride(), *y.stride()), (*lines, width, rows), 4)
