"""Launches that put phases on operands, and take them off the sums of both channels."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from laplex._triton import tuning
from laplex._triton.launch import launch, power
from laplex._triton.phase import programs
from laplex._triton.scan.steps import block_sum


class Stacks(NamedTuple):
    """Sums of both channels, (h, 2 m, size) each; None where there is none."""

    even: Tensor | None = None
    odd: Tensor | None = None
    weighted: Tensor | None = None  # by distance


class PhasedSide(NamedTuple):
    """Targets, or sources, as programs read them: contiguous."""

    anchor: Tensor  # (*H, size)
    angle: Tensor  # (*H, size), the phases


class Pulled(NamedTuple):
    """Gradients of one side; None where the sums for it were not given."""

    turn: Tensor | None = None  # (h, size), of the phases
    pull: Tensor | None = None  # (h, size), of the anchors
    stretch: Tensor | None = None  # (h, programs), parts that add up to tau's


def stack(x: Tensor, angle: Tensor, dtype: torch.dtype) -> Tensor:
    """The stack (h, 2 m, size) of x (h, m, size) and its phases."""
    h, m, size = x.shape
    width, most_rows = tuning.STACK_TILE
    rows = min(most_rows, power(m))
    stacked = x.new_empty((h, 2 * m, size), dtype=dtype)
    grid = -(-size // width) * -(-m // rows), h, 1
    launch(programs.stack_program, grid, (x, angle, stacked), (m, size, *x.stride()), (width, rows), 4)
    return stacked


def unstack(even: Tensor, angle: Tensor, out: Tensor) -> None:
    """Fill out (h, m, size) with the product, from the even sums."""
    _unstack(Stacks(even), PhasedSide(even, angle), out, None, even)


def pulled(sums: Stacks, side: PhasedSide, factor: Tensor, tau: Tensor, out: Tensor | None = None) -> Pulled:
    """The gradients that the sums give with the factors (h, m, size); ``out`` is filled as by :func:`unstack`."""
    return _unstack(sums, side, out, factor, tau)


def _unstack(sums: Stacks, side: PhasedSide, out: Tensor | None, factor: Tensor | None, tau: Tensor) -> Pulled:
    """Launch the program. A tensor that is not given is not touched; ``angle`` stands in for it."""
    angle = side.angle
    even, odd, weighted = (angle if stacked is None else stacked for stacked in sums)
    filled, given = (angle if tensor is None else tensor for tensor in (out, factor))
    strides = [(0, 0, 0) if tensor is None else tensor.stride() for tensor in (factor, out)]
    h, m, size = (given if out is None else filled).shape
    width, most_rows = tuning.STACK_TILE
    rows, blocks = min(most_rows, power(m)), -(-size // width)
    steps = -(-m // rows)
    steps = -(-steps // min(steps, max(1, tuning.PROGRAMS_WANTED // (blocks * h))))  # of a program
    row_blocks = -(-m // (rows * steps))
    grid = blocks * row_blocks, h, 1
    turns, pulls, stretches = (factor is not None and stacked is not None for stacked in sums)
    turn = angle.new_empty((h, row_blocks, size)) if turns else angle
    pull = side.anchor.new_empty((h, row_blocks, size)) if pulls else angle
    stretch = angle.new_empty((h, grid[0]), dtype=torch.float64) if stretches else angle
    tensors = even, odd, weighted, angle, given, tau, filled, turn, pull, stretch
    sizes = m, size, row_blocks, steps, *strides[0], *strides[1]
    flags = out is not None, turns, pulls, stretches, width, rows
    launch(programs.unstack_program, grid, tensors, sizes, flags, 4)
    return Pulled(
        _over_blocks(turn) if turns else None, _over_blocks(pull) if pulls else None, stretch if stretches else None
    )


def _over_blocks(parts: Tensor) -> Tensor:
    """Sum (h, blocks, size) to (h, size)."""
    return parts[:, 0] if parts.shape[1] == 1 else block_sum(parts)
