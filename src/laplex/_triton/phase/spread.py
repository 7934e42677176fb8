"""Launches for a short side that is spread over a long one, with phases."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from laplex._scan.order import Matrix
from laplex._triton import tuning
from laplex._triton.launch import launch, power
from laplex._triton.phase import programs_spread as programs
from laplex._triton.phase.stacks import PhasedSide, Pulled, stack
from laplex._triton.short.launch import places_of_ends, sources_of_anchors
from laplex._triton.short.programs import table_program


class SourceTable(NamedTuple):
    """The sums of both channels at the sources, and what the targets need to read them."""

    sums: Tensor  # (h, 2, k, 2 m): from the left, from the right
    position: Tensor  # (h, k), the sources in ascending order
    tau: Tensor


def table(x: Tensor, angle: Tensor, matrix: Matrix) -> SourceTable:
    """The table of x (h, m, k), with the phases of the sources."""
    h, m, k = x.shape
    exact = x.dtype == torch.float64
    target, position, order, ends = sources_of_anchors(matrix, h)
    stacked = stack(x, angle, torch.float64)
    sums = x.new_empty((h, 2, k, 2 * m), dtype=torch.float64 if exact else torch.float32)
    short = max(power(k), 16)
    tensors = stacked, matrix.tau, position, order, ends, sums
    sizes = 2 * m, k, 2 * m, 0, *places_of_ends(ends, target.shape[1] + k), *stacked.stride()
    launch(table_program, (4 * m, h, 1), tensors, sizes, (exact, False, short), max(short // 128, 1))
    return SourceTable(sums, position, matrix.tau)


def spread(table: SourceTable, targets: PhasedSide, out: Tensor | None, factor: Tensor | None = None) -> Pulled:
    """Fill out (h, m, n) with the product. For factors (h, m, n) return the gradients of the targets."""
    target, angle = targets
    (h, k), n, m = table.position.shape, target.shape[-1], table.sums.shape[-1] // 2
    wide, most_rows = tuning.PHASED_SPREAD_TILE
    filled, given = (angle if tensor is None else tensor for tensor in (out, factor))  # not touched if None
    strides = [(0, 0, 0) if tensor is None else tensor.stride() for tensor in (factor, out)]
    turn = angle if factor is None else angle.new_empty((h, n))
    pull = angle if factor is None else target.new_empty((h, n))
    tensors = target, table.position, table.tau, angle, table.sums, given, filled, pull, turn
    sizes = m, n, k, k.bit_length() + 1, *strides[0], *strides[1]
    flags = table.sums.dtype == torch.float64, out is not None, factor is not None, wide, min(most_rows, power(m))
    launch(programs.phased_spread_program, (-(-n // wide), h, 1), tensors, sizes, flags, 4)
    return Pulled() if factor is None else Pulled(turn, pull)
