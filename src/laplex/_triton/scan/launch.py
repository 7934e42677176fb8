"""The ordered scan on a GPU. This file owns shapes, scratch memory and launches.

No launch waits for the device, none is tuned at run time, and none uses atomics: the same input gives the same bits,
and graphs can be captured.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from laplex._scan.order import Matrix, padded
from laplex._scan.parts import batch_parts, scan_in_parts
from laplex._scan.results import LAUNCH_AXIS, even_like, sums_like
from laplex._shapes import flat_rows
from laplex._triton import tuning
from laplex._triton.distance.launch import distance_sums, tau_parts
from laplex._triton.launch import launch, power, step
from laplex._triton.order.launch import Joined, joined, places, refreshed
from laplex._triton.recording import call, from_anchors
from laplex._triton.replay import replayed
from laplex._triton.scan import carry as carry_programs
from laplex._triton.scan import programs
from laplex._triton.scan.adjacent import adjacent, adjacent_empty, copy
from laplex._triton.scan.schedule import Form, Schedule, schedule, worth_adjacent_rows
from laplex._triton.short.launch import Weighted, reads_table, spread, stage, unstage
from laplex._triton.short.programs import reduce_rows_program


class Operands(NamedTuple):
    """What the launches over tiles read and write."""

    x: Tensor  # (h, m, k)
    out: Tensor  # (h, m, n), even sums
    other: Tensor  # (h, m, n), odd sums, or their weights; anything if neither is wanted
    odd: bool  # odd sums are wanted, or pulled
    pull: bool  # ``other`` holds weights: their products with the odd sums are summed over rows
    adjacent: int = 1  # rows of x that lie adjacent in memory


def scan_once(x: Tensor, matrix: Matrix, *, odd: bool, degree: int = 0) -> tuple[Tensor, Tensor]:
    """(E x, S x): x (*X, k) -> (*X, n), and the second (*X, 0) unless ``odd``."""
    if matrix.tau.numel() > LAUNCH_AXIS:
        return scan_in_parts(scan, x, matrix, odd=odd, degree=degree)
    even, odd_part = sums_like(x, matrix, odd)
    matrix = matrix._replace(tau=matrix.tau.contiguous())
    rows, out = flat_rows(x, matrix.tau), flat_rows(even, matrix.tau)
    other = flat_rows(odd_part, matrix.tau) if odd else out
    if degree:
        distance_sums(rows, matrix, out, other if odd else None)
    elif reads_table(rows.shape[-1], out.shape[-1], out.numel()):
        spread(rows, matrix, out, Weighted(other, is_odd=True) if odd else None)
    elif not worth_adjacent_rows((*rows.shape[:2], out.shape[-1], rows.shape[-1]), joined(matrix.order).in_order):
        scan_tiles(matrix, Operands(rows, out, other, odd, False))
    else:
        beside = adjacent_empty(out)
        beside_odd = adjacent_empty(other) if odd else beside
        scan_tiles(matrix, Operands(adjacent(rows), beside, beside_odd, odd, False, tuning.ROWS_ADJACENT))
        copy(beside, out)
        if odd:
            copy(beside_odd, other)
    return even, odd_part


scan = replayed(lambda x, matrix: ((x, *matrix.tensors), matrix.order.layout))(scan_once)


def pull_once(
    g: Tensor, x: Tensor, odd_x: Tensor, matrix: Matrix, *, to_tau: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x_bar, t_bar, s_bar, tau_bar for the cotangent g of E x: one transposed scan, and a second for tau if need be.

    t_bar is (*H, 0) without ``odd_x``, tau_bar (0,) without ``to_tau``.
    """
    if matrix.tau.numel() > LAUNCH_AXIS:
        return _pullback_in_parts(g, x, odd_x, matrix, to_tau=to_tau)
    matrix = matrix._replace(tau=matrix.tau.contiguous())
    tau = matrix.tau
    x_bar, tau_bar = even_like(x, x.shape[-1], matrix), tau.new_empty(0)
    t_bar = matrix.target.new_empty((*matrix.target.shape[:-1], odd_x.shape[-1]))
    rows, weights, out = flat_rows(g, tau), flat_rows(x, tau), flat_rows(x_bar, tau)
    s_bar, parts = _pulled(rows, weights, out, matrix.mT, to_tau)
    if odd_x.shape[-1] > 0:
        _row_dot(rows, flat_rows(odd_x, tau), tau, t_bar)
    if to_tau:
        if parts is None:
            parts = _tau_parts(rows, weights, matrix)
        tau_bar = tau.new_empty(tau.shape)
        call(torch.sum, parts, out=(tau_bar.view(-1),), dim=1)
    return x_bar, t_bar, s_bar.view(matrix.source.shape), tau_bar


pullback = replayed(lambda g, x, odd_x, matrix: ((g, x, odd_x, *matrix.tensors), matrix.order.layout))(pull_once)


def _pulled(x: Tensor, weights: Tensor, out: Tensor, matrix: Matrix, to_tau: bool) -> tuple[Tensor, Tensor | None]:
    """Fill out with E x; return 1/tau sum over rows of weights * S x, (h, n).

    Where it costs nothing, also what adds up to the gradient of tau, (h, parts).
    """
    (h, m, k), n = x.shape, out.shape[-1]
    if reads_table(k, n, out.numel()):
        pulled, parts = spread(x, matrix, out, Weighted(weights, is_odd=False, pull=True, to_tau=to_tau))
        return pulled, parts if to_tau else None
    if not worth_adjacent_rows((h, m, n, k), joined(matrix.order).in_order):
        return scan_tiles(matrix, Operands(x, out, weights, True, True)), None
    beside = adjacent(weights)  # the sums take the place of the weights, which are read before
    pulled = scan_tiles(matrix, Operands(adjacent(x), beside, beside, True, True, tuning.ROWS_ADJACENT))
    copy(beside, out)
    return pulled, None


def _tau_parts(g: Tensor, x: Tensor, matrix: Matrix) -> Tensor:
    """What adds up to tau_bar, (h, parts): from the table of the short side's sums if x has it, else from tiles."""
    if reads_table(x.shape[-1], g.shape[-1], g.numel()):
        return spread(x, matrix, None, Weighted(g, is_odd=False, to_tau=True))[1]
    return tau_parts(g, x, matrix.mT)


def scan_tiles(matrix: Matrix, operands: Operands) -> Tensor:
    """The launches over tiles: fill even and odd sums; with ``pull`` return what is pulled, (h, n)."""
    x, out, other, odd, pull, beside = operands
    order = joined(matrix.order)
    first, in_order, entry, position, place_of = order
    checked, placed = position.shape[-1] == 0, place_of.shape[-1] > 0
    how = first, in_order, checked, odd, pull, placed, beside
    plan = schedule(Form(x.shape, x.stride(), out.shape, out.stride(), other.stride(), x.dtype, *how))
    if checked:
        position = refreshed(order, matrix, plan.far, plan.tile, plan.warps)
    (h, m, k), n = x.shape, out.shape[-1]
    scratch = x.new_empty((plan.scratch,), dtype=torch.float64)
    merged_x = x.new_empty((h, m, padded(n + k))) if plan.staged else x
    tensors: tuple[Tensor, ...] = x, merged_x, matrix.tau, entry, position, scratch
    if plan.staged == "rows":
        _reduce_by_rows(tensors, order, plan)
    else:
        launch(programs.reduce_program, plan.grid, tensors, *plan.reduce, plan.warps)
    if plan.carried:
        _carry(scratch, matrix.tau, (h, m), plan.tiles, (plan.exact, odd, first))
    pulled = matrix.target.new_empty((h, plan.row_blocks, n)) if pull else scratch
    tensors = merged_x, other, entry, position, scratch, merged_x if plan.unstaged else out, pulled
    sizes, flags = plan.scan
    for spans, together, at_once in plan.spans:
        grid = -(-plan.tiles // together), *plan.grid[1:]
        launch(programs.scan_program, grid, tensors, sizes, (*flags, spans, together, at_once), plan.warps)
    if plan.unstaged:
        unstage(merged_x, place_of.view(h, -1)[:, 0 if first else k :], out)
    if not pull:
        return out
    return pulled[:, 0] if plan.row_blocks == 1 else block_sum(pulled)


def _reduce_by_rows(tensors: tuple[Tensor, ...], order: Joined, plan: Schedule) -> None:
    """What ``reduce_program`` gives, for many sources and rows, and x in the merged order with adjacent rows."""
    x, merged_x, tau, entry, position, scratch = tensors
    h, m, k = x.shape
    sizes, flags = plan.reduce
    (_, merged, length, tiles, *_), (exact, odd, first, in_order, *_) = sizes, flags
    grid = tiles, 1, h
    launch(programs.reduce_program, grid, tensors, (0, *sizes[1:]), flags, plan.warps)  # no rows: the ends alone
    place_of = order.place_of
    if place_of.shape[-1] == 0:
        n_rows, n_cols = (merged - k, k) if first else (k, merged - k)
        (place_of,) = from_anchors("places", lambda: (places(entry, n_rows, n_cols),))
    stage(x, place_of, merged_x, merged - k if first else 0)
    rows = min(power(m), 32)
    how = exact, odd, first, in_order, plan.far, plan.tile, tuning.REDUCE_POINTS, rows
    grid = tiles * -(-m // rows), h, 1
    given = merged_x, tau, entry, position, scratch
    launch(reduce_rows_program, grid, given, (m, merged, length, tiles, m), how, 4)


def _carry(scratch: Tensor, tau: Tensor, rows: tuple[int, int], tiles: int, flags: tuple[bool, bool, bool]) -> None:
    """Add to the scratch memory the sums left and right of every tile, for (h, m) rows."""
    h, m = rows
    at_once = tuning.CARRIED_AT_ONCE
    group, groups = step(tiles, at_once, 2, 4), -(-tiles // at_once)
    warps = max(group // 32, 1)  # one tile a thread: the scan over tiles is one long chain
    by_tiles, most = groups <= tuning.GROUPS_BY_TILES, at_once * tuning.GROUPS_BY_TILES
    others, count = scratch, tiles
    if not by_tiles:
        others, count = scratch.new_empty((2 * h * groups + 3 * h * m * groups,)), groups
        grid, sizes = (groups * m, h, 1), (m, tiles, groups)
        launch(carry_programs.group_program, grid, (scratch, tau, others), sizes, (*flags, group), warps)
    lanes = 1 if groups == 1 else step(count, most, 2, 4) if by_tiles else step(count, max(power(count), most), 8, 128)
    grid, how = (groups * m * 2, h, 1), (*flags, group, lanes, by_tiles)
    launch(carry_programs.carry_program, grid, (scratch, tau, others), (m, tiles, groups, count), how, warps)


def _row_dot(g: Tensor, odd_x: Tensor, tau: Tensor, t_bar: Tensor) -> None:
    """t_bar = 1/tau sum over rows of g * odd_x."""
    h, m, n = g.shape
    width, rows = tuning.DOT_TILE
    sizes = m, n, *g.stride(), *odd_x.stride()
    grid, flags = (-(-n // width), h, 1), (width, 1 if m == 1 else rows)
    launch(programs.row_dot_program, grid, (g, odd_x, tau, t_bar), sizes, flags, 4)


def block_sum(pull: Tensor) -> Tensor:
    """(h, blocks, n) to (h, n), in one launch and float64; torch's ``sum`` with a dtype would be three."""
    h, blocks, n = pull.shape
    numbers, most_rows = tuning.BLOCK_SUM_TILE
    summed, rows = pull.new_empty((h, n)), step(blocks, most_rows, 4, 16)
    grid, flags = (-(-n * rows // numbers), h, 1), (numbers // rows, rows)
    launch(programs.block_sum_program, grid, (pull, summed), (blocks, n), flags, 4)
    return summed


def _pullback_in_parts(
    g: Tensor, x: Tensor, odd_x: Tensor, matrix: Matrix, *, to_tau: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    tau = matrix.tau
    odd_rows = odd_x.reshape(tau.numel(), -1, odd_x.shape[-1]) if odd_x.numel() else g.new_empty((tau.numel(), 1, 0))
    rows = flat_rows(g, tau), flat_rows(x, tau), odd_rows
    made = [
        pullback(*(tensor[part] for tensor in rows), of_part, to_tau=to_tau) for part, of_part in batch_parts(matrix)
    ]
    x_bar, t_bar, s_bar, tau_bar = (torch.cat(parts) for parts in zip(*made, strict=True))
    t_bar = t_bar.reshape(*matrix.target.shape[:-1], t_bar.shape[-1])
    tau_bar = tau_bar.reshape(tau.shape if to_tau else (0,))
    return x_bar.reshape(x.shape), t_bar, s_bar.reshape(matrix.source.shape), tau_bar
