"""Launches for sums weighted by distance, which give the gradient of tau."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from laplex._scan.order import Matrix, padded
from laplex._scan.results import LAUNCH_AXIS
from laplex._triton import tuning
from laplex._triton.distance import programs
from laplex._triton.launch import launch, power, step
from laplex._triton.order.launch import joined, refreshed


def distance_sums(x: Tensor, matrix: Matrix, even: Tensor, odd: Tensor | None) -> None:
    """Fill even and odd (h, m, n) with the sums of degree 1 of x (h, m, k)."""
    _scan(x, matrix, even, even if odd is None else odd, odd=odd is not None, pull=None)


def tau_parts(x: Tensor, weights: Tensor, matrix: Matrix) -> Tensor:
    """1/tau times the sum of weights (h, m, n) * A_1 x, as parts to be added up, (h, programs)."""
    h, m, k = x.shape
    programs_of_one = -(-(weights.shape[-1] + k) // tuning.DISTANCE_TILE) * -(-m // _rows(m))
    parts = x.new_empty((h, programs_of_one), dtype=torch.float64)
    _scan(x, matrix, weights, weights, odd=False, pull=parts)
    return parts


def _rows(m: int) -> int:
    """Rows of x of a program: more than usual where so many blocks of rows would not fit an axis of a launch."""
    return max(tuning.DISTANCE_ROWS, power(-(-m // LAUNCH_AXIS)))


def _scan(x: Tensor, matrix: Matrix, even: Tensor, other: Tensor, *, odd: bool, pull: Tensor | None) -> None:
    """Reduce, carry and scan. ``other`` is the odd sums, or with ``pull`` the weights."""
    (h, m, k), n, tau = x.shape, other.shape[-1], matrix.tau
    tile, rows, warps = tuning.DISTANCE_TILE, _rows(m), tuning.DISTANCE_WARPS
    merged, length = n + k, padded(n + k)
    order = joined(matrix.order)
    far = length + tile >= 2**31
    position, checked = order.position, order.position.shape[-1] == 0
    if checked:
        position = refreshed(order, matrix, far, tile, warps)
    tiles, row_blocks, exact = -(-merged // tile), -(-m // rows), x.dtype == torch.float64
    numbers = 2 * h * tiles + 2 * programs.STATES.value * h * m * tiles
    scratch = x.new_empty((numbers,), dtype=torch.float64)
    grid, sizes = (tiles, row_blocks, h), (m, merged, length, tiles)
    sides = order.first, order.in_order
    tensors: tuple[Tensor, ...] = x, tau, order.entry, position, scratch
    flags: tuple[Any, ...] = exact, *sides, checked, far, tile, rows
    launch(programs.distance_reduce_program, grid, tensors, (*sizes, *x.stride()), flags, warps)
    group = step(tiles, tuning.DISTANCE_CARRIED, 4, 16)
    carry_warps = max(group // 32, 1)  # one tile per thread: the scan over tiles is one long chain
    launch(programs.distance_carry_program, (2 * m, h, 1), (scratch, tau), (m, tiles), (exact, group), carry_warps)
    tensors = *tensors, even, other, scratch if pull is None else pull
    flags = exact, odd, pull is not None, *sides, far, tile, rows
    strides = *x.stride(), *even.stride(), *other.stride()
    launch(programs.distance_scan_program, grid, tensors, (*sizes, *strides), flags, warps)
