"""The ordered scan on a GPU. This file owns shapes, scratch memory and launches.

No launch waits for the device, none is tuned at run time, and none uses atomics: the same input gives the same bits,
and graphs can be captured.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from laplex._scan.order import Matrix, padded
from laplex._scan.parts import batch_parts, scan_in_parts
from laplex._scan.results import LAUNCH_AXIS, even_like, sums_like
from laplex._shapes import flat_rows
from laplex._triton import tuning
from laplex._triton.distance.launch import distance_sums, tau_parts
from laplex._triton.launch import launch
from laplex._triton.order.launch import Joined, joined, places, refreshed
from laplex._triton.recording import call, from_anchors
from laplex._triton.replay import replayed
from laplex._triton.scan import programs
from laplex._triton.scan.adjacent import adjacent, adjacent_empty, copy_back
from laplex._triton.scan.block import scan_blocks, worth_blocks, worth_lines
from laplex._triton.scan.schedule import ScanProblem, schedule, worth_adjacent_rows
from laplex._triton.scan.steps import Operands, block_sum, carry, launch_setup
from laplex._triton.short.launch import reads_table, spread, stage, unstage
from laplex._triton.short.programs import reduce_rows_program


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
        spread(rows, matrix, out, odd=other if odd else None)
    else:
        _scan_rows(matrix, Operands(rows, out, other, odd))
    return even, odd_part


def _scan_rows(matrix: Matrix, operands: Operands) -> Tensor:
    """The launches over tiles or over blocks; where that pays, on copies with adjacent rows."""
    x, out, other, odd, pull, _ = operands
    run, is_turned = _way(x, out, joined(matrix.order).in_order)
    if not is_turned:
        return run(matrix, operands)
    in_place = pull and run is scan_tiles  # its sums take the place of the weights, which every thread has read before
    others = adjacent(other) if pull else adjacent_empty(other)
    sums = others if in_place or not odd else adjacent_empty(out)
    pulled = run(matrix, Operands(adjacent(x), sums, others, odd, pull, tuning.ROWS_ADJACENT))
    copy_back(sums, out)
    if odd and not pull:
        copy_back(others, other)
    return pulled


def _way(x: Tensor, out: Tensor, in_order: bool) -> tuple[Callable[[Matrix, Operands], Tensor], bool]:
    """The function that launches, and whether it takes copies with adjacent rows."""
    sizes = *x.shape[:2], out.shape[-1], x.shape[-1]
    if worth_blocks(sizes, x.dtype):
        return scan_blocks, worth_lines(x, in_order)
    return scan_tiles, worth_adjacent_rows(sizes, in_order)


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
    if reads_table(x.shape[-1], out.shape[-1], out.numel()):
        pulled, parts = spread(x, matrix, out, weights=weights, pull=True, to_tau=to_tau)
        return pulled, parts if to_tau else None
    return _scan_rows(matrix, Operands(x, out, weights, odd=True, pull=True)), None


def _tau_parts(g: Tensor, x: Tensor, matrix: Matrix) -> Tensor:
    """What adds up to tau_bar, (h, parts): from the table of the short side's sums if x has it, else from tiles."""
    if reads_table(x.shape[-1], g.shape[-1], g.numel()):
        return spread(x, matrix, None, weights=g, to_tau=True)[1]
    return tau_parts(g, x, matrix.mT)


def scan_tiles(matrix: Matrix, operands: Operands) -> Tensor:
    """The launches over tiles: fill even and odd sums; with ``pull`` return what is pulled, (h, n)."""
    x, out, other, odd, pull, rows_adjacent = operands
    order = joined(matrix.order)
    plan = schedule(
        ScanProblem(
            x.shape, x.stride(), out.shape, out.stride(), other.stride(), x.dtype,
            first=order.first, in_order=order.in_order, checked=order.is_checked, placed=order.has_places,
            odd=odd, pull=pull, adjacent=rows_adjacent,
        )
    )  # fmt: skip
    cut, position = plan.tiling, order.position
    if order.is_checked:
        position = refreshed(order, matrix, cut.far, cut.tile, cut.warps)
    (h, m, k), n = x.shape, out.shape[-1]
    scratch = x.new_empty((plan.scratch,), dtype=torch.float64)
    merged_x = x.new_empty((h, m, padded(n + k))) if cut.staged else x
    tensors: tuple[Tensor, ...] = x, merged_x, matrix.tau, order.entry, position, scratch
    launch_setup(programs.reduce_program, tensors, plan.reduce)
    if cut.staged == "rows":
        stage(x, _places(order, n, k), merged_x, n if order.first else 0)
        launch_setup(reduce_rows_program, tensors[1:], plan.reduce_rows)
    if plan.carry is not None:
        carry(scratch, matrix.tau, plan.carry)
    pulled = matrix.target.new_empty((h, cut.row_blocks, n)) if pull else scratch
    tensors = merged_x, other, order.entry, position, scratch, merged_x if cut.unstaged else out, pulled
    for setup in plan.scans:
        launch_setup(programs.scan_program, tensors, setup)
    if cut.unstaged:
        unstage(merged_x, order.place_of.view(h, -1)[:, 0 if order.first else k :], out)
    if not pull:
        return out
    return pulled[:, 0] if cut.row_blocks == 1 else block_sum(pulled)


def _places(order: Joined, n: int, k: int) -> Tensor:
    """The places of rows and columns, for n targets and k sources."""
    if order.has_places:
        return order.place_of
    sides = (n, k) if order.first else (k, n)
    return from_anchors("places", lambda: (places(order.entry, *sides),))[0]


def _row_dot(g: Tensor, odd_x: Tensor, tau: Tensor, t_bar: Tensor) -> None:
    """t_bar = 1/tau sum over rows of g * odd_x."""
    h, m, n = g.shape
    width, rows = tuning.DOT_TILE
    sizes = m, n, *g.stride(), *odd_x.stride()
    grid, flags = (-(-n // width), h, 1), (width, 1 if m == 1 else rows)
    launch(programs.row_dot_program, grid, (g, odd_x, tau, t_bar), sizes, flags, 4)


def _pullback_in_parts(
    g: Tensor, x: Tensor, odd_x: Tensor, matrix: Matrix, *, to_tau: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    tau = matrix.tau
    odd_rows = odd_x.reshape(tau.numel(), -1, odd_x.shape[-1]) if odd_x.numel() else g.new_empty((tau.numel(), 1, 0))
    rows = flat_rows(g, tau), flat_rows(x, tau), odd_rows
    pulled = [
        pullback(*(tensor[part] for tensor in rows), of_part, to_tau=to_tau) for part, of_part in batch_parts(matrix)
    ]
    x_bar, t_bar, s_bar, tau_bar = (torch.cat(parts) for parts in zip(*pulled, strict=True))
    t_bar = t_bar.reshape(*matrix.target.shape[:-1], t_bar.shape[-1])
    tau_bar = tau_bar.reshape(tau.shape if to_tau else (0,))
    return x_bar.reshape(x.shape), t_bar, s_bar.reshape(matrix.source.shape), tau_bar
