"""Launches that put points in order by counting the points before each: no sort, in one launch or in two."""

from __future__ import annotations

import torch
from torch import Tensor

from laplex._scan.order import padded
from laplex._triton import tuning
from laplex._triton.launch import launch, step
from laplex._triton.order import programs


def counted(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Positions and entries of both sides in order, (h, padded): every point is compared with all others."""
    length = padded(a.shape[1] + b.shape[1])
    return _ranked(a, b, length, length, tuning.RANK_TILE)


def counted_in_runs(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """The same for more points: every point is compared with those of its run, then searched for in the other runs."""
    (h, n), k = a.shape, b.shape[1]
    merged, length = n + k, padded(n + k)
    runs = _ranked(a, b, tuning.RUN, merged, tuning.RUN_TILE)
    position, entry = a.new_empty((h, length)), a.new_empty((h, length), dtype=torch.int32)
    width, at_once = tuning.JOIN_TILE
    number = -(-merged // tuning.RUN)
    flags, warps = (width, step(number, at_once, 4)), 4 if number <= at_once else 2
    grid, sizes = (-(-merged // width), h, 1), (merged, length, tuning.RUN, tuning.RUN.bit_length())
    launch(programs.join_program, grid, (*runs, position, entry), sizes, flags, warps)
    return position, entry


def _ranked(a: Tensor, b: Tensor, run: int, length: int, tile: tuple[int, int, int]) -> tuple[Tensor, Tensor]:
    """Rows, then columns, as sorted runs."""
    (h, n), k = a.shape, b.shape[1]
    position, entry = a.new_empty((h, length)), a.new_empty((h, length), dtype=torch.int32)
    tensors, grid = (a.contiguous(), b.contiguous(), position, entry), (-(-(n + k) // tile[0]), h, 1)
    launch(programs.rank_program, grid, tensors, (n, k, run, length), tile, 4)
    return position, entry
