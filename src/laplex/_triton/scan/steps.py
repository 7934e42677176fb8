"""What scans in tiles and in blocks share: operands, the launches of carries, and sums over blocks of rows."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from laplex._triton import tuning
from laplex._triton.launch import Setup, launch, step
from laplex._triton.scan import carry as programs
from laplex._triton.scan.programs import block_sum_program
from laplex._triton.scan.schedule import Carry


class Operands(NamedTuple):
    """What the launches over tiles read and write."""

    x: Tensor  # (h, m, k)
    out: Tensor  # (h, m, n), even sums
    other: Tensor  # (h, m, n), odd sums, or their weights; anything if neither is wanted
    odd: bool  # odd sums are wanted, or pulled
    pull: bool = False  # ``other`` holds weights: their products with the odd sums are summed over rows
    adjacent: int = 1  # rows of x that lie adjacent in memory


def launch_setup(program: Any, tensors: tuple[Tensor, ...], setup: Setup) -> None:
    launch(program, setup.grid, tensors, setup.numbers, setup.flags, setup.warps)


def carry(scratch: Tensor, tau: Tensor, plan: Carry) -> None:
    """Add to the scratch memory the sums left and right of every tile."""
    others = scratch
    if plan.groups is not None:
        others = scratch.new_empty((plan.scratch,))
        launch_setup(programs.group_program, (scratch, tau, others), plan.groups)
    launch_setup(programs.carry_program, (scratch, tau, others), plan.carry)


def block_sum(pull: Tensor) -> Tensor:
    """Sum (h, blocks, n) to (h, n), in one launch and float64; torch's ``sum`` with a dtype would take three."""
    h, blocks, n = pull.shape
    numbers, most_rows = tuning.BLOCK_SUM_TILE
    summed, rows = pull.new_empty((h, n)), step(blocks, most_rows, 4, 16)
    grid, flags = (-(-n * rows // numbers), h, 1), (numbers // rows, rows)
    launch(block_sum_program, grid, (pull, summed), (blocks, n), flags, 4)
    return summed
