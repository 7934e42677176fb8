"""Copies with the rows of x or y side by side, and back."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from laplex._triton.launch import empty, launch, power

WIDTH = 256
ROWS_AT_ONCE = 4  # side by side: 16 bytes of float32


def _programs() -> Any:
    from laplex._triton.scan import rows as triton_rows  # imports triton: not before it is needed

    return triton_rows


def turned_empty(like: Tensor) -> Tensor:
    """(h, m, size) as ``like``, yet to be filled, with the rows side by side in memory."""
    h, m, size = like.shape
    return empty(like, (h, size, -(-m // ROWS_AT_ONCE) * ROWS_AT_ONCE)).mT[:, :m]


def turned(x: Tensor) -> Tensor:
    """A copy of x (h, m, size) with its rows side by side in memory."""
    made = turned_empty(x)
    copy(x, made)
    return made


def copy(x: Tensor, y: Tensor) -> None:
    """Fill y (h, m, size), whose layout is another. ``y.copy_(x)``, but a launch: it is recorded as all others are."""
    h, m, size = y.shape
    rows = min(power(m), 32)
    grid = -(-size // WIDTH), -(-m // rows), h
    launch(_programs().copy_program, grid, (x, y), (m, size, *x.stride(), *y.stride()), (WIDTH, rows), 4)
