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
    elif not has_adjacent_rows(rows, matrix):
        _way(rows, matrix)(matrix, Operands(rows, out, other, odd))
    else:
        sums, odd_sums = adjacent_sums(rows, matrix, odd=odd)
        copy_back(sums, out)
        if odd:
            copy_back(odd_sums, other)
    return even, odd_part


def has_adjacent_rows(x: Tensor, matrix: Matrix) -> bool:
    """Whether products of x (h, m, k) with this matrix are computed in memory with adjacent rows."""
    (h, m, k), n, in_order = x.shape, matrix.target.shape[-1], joined(matrix.order).in_order
    if reads_table(k, n, h * m * n):
        return False
    if _way(x, matrix) is scan_blocks:
        return worth_lines(x, in_order)
    return worth_adjacent_rows((h, m, n, k), in_order)


def _way(x: Tensor, matrix: Matrix) -> Callable[[Matrix, Operands], Tensor]:
    """The launches for x (h, m, k): over tiles, or for many rows over blocks."""
    h, m, k = x.shape
    return scan_blocks if worth_blocks((h, m, matrix.target.shape[-1], k), x.dtype) else scan_tiles


def adjacent_sums(x: Tensor, matrix: Matrix, *, odd: bool) -> tuple[Tensor, Tensor]:
    """E x and S x of x (h, m, k), with adjacent rows: (h, m, n) each."""
    sums = adjacent_empty(x, matrix.target.shape[-1])
    odd_sums = adjacent_empty(x, matrix.target.shape[-1]) if odd else sums
    _way(x, matrix)(matrix, Operands(adjacent(x), sums, odd_sums, odd, adjacent=tuning.ROWS_ADJACENT))
    return sums, odd_sums


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
    pulled, parts = pulled_parts(rows, weights, out, matrix.mT, to_tau)
    s_bar = pulled[:, 0] if pulled.shape[1] == 1 else block_sum(pulled)
    if odd_x.shape[-1] > 0:
        _row_dot(rows, flat_rows(odd_x, tau), tau, t_bar)
    if to_tau:
        if parts is None:
            parts = stretch_parts(rows, weights, matrix)
        tau_bar = tau.new_empty(tau.shape)
        call(torch.sum, parts, out=(tau_bar.view(-1),), dim=1)
    return x_bar, t_bar, s_bar.view(matrix.source.shape), tau_bar


pullback = replayed(lambda g, x, odd_x, matrix: ((g, x, odd_x, *matrix.tensors), matrix.order.layout))(pull_once)


def pulled_parts(x: Tensor, weights: Tensor, out: Tensor, matrix: Matrix, to_tau: bool) -> tuple[Tensor, Tensor | None]:
    """Fill out with E x; return what adds up to 1/tau sum over rows of weights * S x, (h, parts, n).

    Where it costs nothing, also what adds up to the gradient of tau, (h, parts).
    """
    if reads_table(x.shape[-1], out.shape[-1], out.numel()):
        pulled, parts = spread(x, matrix, out, weights=weights, pull=True, to_tau=to_tau)
        return pulled[:, None], parts if to_tau else None
    if not has_adjacent_rows(x, matrix):
        return _way(x, matrix)(matrix, Operands(x, out, weights, odd=True, pull=True)), None
    sums, pulled = adjacent_pull(adjacent(x), weights, matrix)
    copy_back(sums, out)
    return pulled, None


def adjacent_pull(x: Tensor, weights: Tensor, matrix: Matrix) -> tuple[Tensor, Tensor]:
    """E x with adjacent rows, as x has, and what is pulled, (h, parts, n)."""
    run, others = _way(x, matrix), adjacent(weights)
    # Sums of tiles take the place of the weights, which every thread has read before.
    sums = others if run is scan_tiles else adjacent_empty(others, others.shape[-1])
    return sums, run(matrix, Operands(x, sums, others, odd=True, pull=True, adjacent=tuning.ROWS_ADJACENT))


def stretch_parts(g: Tensor, x: Tensor, matrix: Matrix) -> Tensor:
    """What adds up to tau_bar, (h, parts): from the table of the short side's sums if x has it, else from tiles."""
    if reads_table(x.shape[-1], g.shape[-1], g.numel()):
        return spread(x, matrix, None, weights=g, to_tau=True)[1]
    return tau_parts(g, x, matrix.mT)


def scan_tiles(matrix: Matrix, operands: Operands) -> Tensor:
    """The launches over tiles: fill even and odd sums; with ``pull`` return what is pulled, (h, blocks of rows, n)."""
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
    return pulled if pull else out


def _places(order: Joined, n: int, k: int) -> Tensor:
    """The places of rows and columns, for n targets and k sources."""
    if order.has_places:
        return order.place_of
    sides = (n, k) if order.first else (k, n)
    return from_anchors("places", order.entry, lambda: (places(order.entry, *sides),))[0]


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
