"""The scan for many rows of x, block by block: its sizes and its launches. ``programs_block`` has the algorithm."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch
from torch import Tensor

from laplex._scan.order import Matrix, padded
from laplex._scan.results import LAUNCH_AXIS
from laplex._triton import tuning
from laplex._triton.launch import Setup, power
from laplex._triton.order.launch import joined, refreshed
from laplex._triton.precision import multiplies_doubles
from laplex._triton.program import by_name, strides_by_name
from laplex._triton.scan.programs_block import reduce_blocks_program, scan_blocks_program
from laplex._triton.scan.schedule import Carry, ScanProblem, carry_launches
from laplex._triton.scan.steps import Operands, carry, launch_setup

REFRESHED = 256  # points of a program that gathers positions


class BlockSchedule(NamedTuple):
    """The launches of a product."""

    far: bool  # offsets need 64 bits
    scratch: int  # float64 numbers, as in ``programs``
    sums: int  # float32 numbers: the sums over the other blocks of a tile
    row_blocks: int  # of what is pulled
    reduce: Setup
    carry: Carry
    scan: Setup


def worth_blocks(sizes: tuple[int, int, int, int], dtype: torch.dtype) -> bool:
    """Whether pairs within blocks are faster than running sums, for (h, m, n, k)."""
    h, m, n, k = sizes
    fits = tuning.ROWS_OF_BLOCKS <= m <= LAUNCH_AXIS * tuning.BLOCK_ROWS[0] and dtype != torch.float64
    fits &= n + k <= tuning.MOST_BLOCKED and k < tuning.SHORT_AXIS_RATIO * n
    return fits and h * m * (n + k) >= tuning.BLOCKS_FROM


def worth_lines(x: Tensor, in_order: bool) -> bool:
    """Whether copies with adjacent rows are repaid: not where the cache holds x, nor where it is read in order."""
    return x.numel() * x.dtype.itemsize >= tuning.LINES_FROM and not in_order


def scan_blocks(matrix: Matrix, operands: Operands) -> Tensor:
    """The launches over blocks: fill even and odd sums; with ``pull`` return what is pulled, (h, blocks of rows, n)."""
    x, out, other, odd, pull, rows_adjacent = operands
    order = joined(matrix.order)
    problem = ScanProblem(
        x.shape, x.stride(), out.shape, out.stride(), other.stride(), x.dtype, first=order.first,
        in_order=order.in_order, checked=order.is_checked, odd=odd, pull=pull, adjacent=rows_adjacent,
    )  # fmt: skip
    # For half precision float32 is exact enough; Triton 3.7 does not compile results of float64 units in bfloat16.
    plan = block_schedule(problem, x.dtype == torch.float32 and multiplies_doubles(x.device))
    position = order.position
    if order.is_checked:
        position = refreshed(order, matrix, plan.far, REFRESHED, 1)
    h, n = x.shape[0], out.shape[-1]
    scratch = x.new_empty((plan.scratch,), dtype=torch.float64)
    sums = x.new_empty((plan.sums,), dtype=torch.float32) if plan.sums else scratch
    launch_setup(reduce_blocks_program, (x, matrix.tau, order.entry, position, scratch, sums), plan.reduce)
    carry(scratch, matrix.tau, plan.carry)
    pulled = matrix.target.new_empty((h, plan.row_blocks, n)) if pull else scratch
    tensors = x, other, order.entry, position, scratch, sums, out, pulled
    launch_setup(scan_blocks_program, tensors, plan.scan)
    return pulled if pull else out


def block_tiling(merged: int, m: int, h: int) -> tuple[int, int, int, int]:
    """Points of a tile, points of a block, and rows of x of a program that reduces and of one that multiplies."""
    few, many = (min(max(power(m), 16), most) for most in tuning.BLOCK_ROWS)
    tile = tuning.BLOCK_TILE
    while tile > tuning.BLOCK and -(-merged // tile) * h * -(-m // few) < tuning.BLOCK_PROGRAMS:
        tile //= 2
    while many > few and -(-merged // tuning.BLOCK) * h * -(-m // many) < tuning.BLOCK_PROGRAMS:
        many //= 2
    return tile, tuning.BLOCK, few, many


@functools.lru_cache(maxsize=1024)
def block_schedule(problem: ScanProblem, doubles: bool) -> BlockSchedule:
    (h, m, k), n = problem.x, problem.out[-1]
    tile, block, few, many = block_tiling(n + k, m, h)
    tiles, blocks = -(-(n + k) // tile), -(-(n + k) // block)
    lines, row_blocks = -(-m // tuning.ROWS_ADJACENT) * tuning.ROWS_ADJACENT, -(-m // many)
    ends, totals = 2 * h * tiles, h * m * tiles
    rate_at = ends + (8 if problem.odd else 6) * totals
    far = padded(n + k) + tile >= 2**31
    adjacent = problem.adjacent > 1
    sizes = {"m": m, "merged": n + k, "padded": padded(n + k), "tiles": tiles, "rate_at": rate_at, "lines": lines}
    sums: dict[str, Any] = {"ODD": problem.odd, "FIRST": problem.first}
    flags = sums | {"IN_ORDER": problem.in_order, "FAR": far, "X_LINES": adjacent, "SPLIT": blocks > tiles}
    flags |= {"TILE": tile, "BLOCK": block}
    reads = strides_by_name(x=problem.x_strides)
    reduce = by_name(reduce_blocks_program, **sizes, **reads, **flags, CHECKED=problem.checked, ROWS=few)
    writes = strides_by_name(even=problem.out_strides, odd=problem.other_strides)
    more = {"PULL": problem.pull, "EVEN_LINES": adjacent, "ODD_LINES": adjacent, "DOUBLES": doubles, "ROWS": many}
    scan = by_name(scan_blocks_program, **sizes, n=n, **reads, **writes, **flags, **more)
    return BlockSchedule(
        far=far,
        scratch=rate_at + h,
        sums=(3 if problem.odd else 2) * h * blocks * lines if blocks > tiles else 0,
        row_blocks=row_blocks,
        reduce=Setup((tiles, -(-m // few), h), *reduce, tuning.BLOCK_WARPS[0]),
        carry=carry_launches(h, m, tiles, {"EXACT": False, **sums}),
        scan=Setup((blocks, row_blocks, h), *scan, tuning.BLOCK_WARPS[1]),
    )
