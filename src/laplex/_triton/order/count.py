"""Launches that put points in order by counting those before each: without a sort, in one launch or in two."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from laplex._scan import ops as _ops
from laplex._triton.launch import empty, launch, power

COUNTED_TILE = 32, 512, 128  # points of a program, how many it compares them with at once, and in how many lanes
RUN_TILE = 32, 256, 32  # the same, within runs
COUNTED_RUN = 2048
JOINED_TILE = 32, 8  # points of a program, and how many runs they are looked for in at once


def _programs() -> Any:
    from laplex._triton.order import programs as triton_order  # imports triton: not before it is needed

    return triton_order


def counted(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Positions and entries of both sides in order, (h, padded): few points, each compared with all."""
    padded = _ops.padded(a.shape[1] + b.shape[1])
    return _ranked(a, b, padded, padded, COUNTED_TILE)


def counted_in_runs(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """The same for more points, each compared with a run of them; then it looks for its place in the other runs."""
    (h, n), k = a.shape, b.shape[1]
    merged, padded = n + k, _ops.padded(n + k)
    runs = _ranked(a, b, COUNTED_RUN, merged, RUN_TILE)
    position, entry = empty(a, (h, padded)), empty(a, (h, padded), torch.int32)
    width, at_once = JOINED_TILE
    number = power(-(-merged // COUNTED_RUN))
    how, warps = (width, min(number, at_once)), 4 if number <= at_once else 2
    grid, sizes = (-(-merged // width), h, 1), (merged, padded, COUNTED_RUN, COUNTED_RUN.bit_length())
    launch(_programs().join_program, grid, (*runs, position, entry), sizes, how, warps)
    return position, entry


def _ranked(a: Tensor, b: Tensor, run: int, padded: int, tile: tuple[int, int, int]) -> tuple[Tensor, Tensor]:
    """Runs of rows and columns, one side behind the other, each run in order."""
    (h, n), k = a.shape, b.shape[1]
    position, entry = empty(a, (h, padded)), empty(a, (h, padded), torch.int32)
    tensors, grid = (a.contiguous(), b.contiguous(), position, entry), (-(-(n + k) // tile[0]), h, 1)
    launch(_programs().rank_program, grid, tensors, (n, k, run, padded), tile, 4)
    return position, entry
