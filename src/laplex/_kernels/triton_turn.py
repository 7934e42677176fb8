"""Copies with the rows of x or y side by side, and back."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from laplex._kernels.triton_launch import empty, launch, power

WIDTH = 256
MULTIPLE = 4  # of rows: as many as are one access


def _kernels() -> Any:
    from laplex._kernels import triton_rows  # imports triton: not before it is needed

    return triton_rows


def turned_empty(like: Tensor) -> Tensor:
    """(h, m, size) as ``like``, yet to be filled, with the rows side by side in memory."""
    h, m, size = like.shape
    return empty(like, (h, size, -(-m // MULTIPLE) * MULTIPLE)).mT[:, :m]


def turn(x: Tensor) -> Tensor:
    """A copy of x (h, m, size) with its rows side by side in memory."""
    turned = turned_empty(x)
    turn_back(x, turned)
    return turned


def turn_back(turned: Tensor, y: Tensor) -> None:
    """Fill y, the layout of which is another."""
    h, m, size = y.shape
    rows = min(power(m), 32)
    grid = -(-size // WIDTH), -(-m // rows), h
    launch(_kernels().turn_kernel, grid, (turned, y), (m, size, *turned.stride(), *y.stride()), (WIDTH, rows), 4)
