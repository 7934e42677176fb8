"""The ordered scan on the GPU in Triton: this file owns shapes, scratch memory and launches.

No launch waits for the device, none is tuned at run time, none uses atomics: bits repeat, and graphs can be captured.
"""

from __future__ import annotations

import functools
import os
from typing import Any, NamedTuple

import torch
from torch import Tensor

from laplex._scan import ops as _ops
from laplex._shapes import flat_rows
from laplex._triton.distance.launch import added, distance_sums, tau_bar_of
from laplex._triton.launch import empty, fresh, launch, power
from laplex._triton.order.launch import held, refreshed
from laplex._triton.order.launch import plan as plan
from laplex._triton.scan.turn import ROWS_AT_ONCE, copy, turned, turned_empty
from laplex._triton.short.launch import reduce_by_rows, spread, unstage

MISSING = "" if _ops.HAS_TRITON else "Triton is not installed; it comes with torch's CUDA builds"
SHORT_AXIS_RATIO = 16  # of targets to sources, or back, from which on the short side is treated as such
TABLE_SOURCES = 4096  # sums at so few sources are a table that all targets read
SPREAD_FROM = 1 << 23  # sums from which on the table pays for the sort and the several launches it takes
ROWS_STAGED = 8  # rows of x that are worth a transposing copy
CARRIED_BY_TILES = 128  # tiles that each find for themselves what lies beside them; more are a launch of its own
CARRIED_AT_ONCE = 1024  # tiles; more are carried in groups
GROUPS_BY_TILES = 8  # groups whose every tile the others read; of more they read the sums
GATHERED_TWICE = 1 << 20  # bytes of x; more are put into the merged order on the way
SPANS_TOGETHER = 1 << 13  # programs; more are faster with the registers of narrow tiles, and wide ones by themselves
TILE_SIDE_BY_SIDE = 256  # points of a program that takes several rows an access
TURNED_FROM = 1 << 10  # programs of such tiles, from which on rows are put side by side
PRECISE_TILES = 64  # with fewer tiles powers and sums are float64 for float32 data, too, as on the CPU


def interpreted() -> bool:
    """Whether Triton's interpreter runs the kernels, on any device: for tests without a GPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def _programs() -> Any:
    from laplex._triton.scan import programs as triton_merged  # imports triton: not before it is needed

    return triton_merged


def direct(
    x: Tensor, target: Tensor, source: Tensor, tau: Tensor, *, odd: bool, degree: int = 0
) -> tuple[Tensor, Tensor]:
    """(E x, S x) as :func:`scan` gives them, pair by pair: for small matrices, one launch and no order."""
    from laplex._triton.scan import direct as triton_direct

    n = target.shape[-1]
    even, odd_part = fresh(_ops.empty_even(x, n, tau, "triton")), fresh(_ops.empty_odd(x, n if odd else 0))
    rows, out, tau = flat_rows(x, tau), flat_rows(even, tau), tau.contiguous()
    h, m, k = rows.shape
    targets, rows_each = 16, min(4, power(m))
    tensors = rows, target.contiguous(), source.contiguous(), tau, out, odd_part
    sizes = m, n, k, *rows.stride(), *out.stride()
    grid = -(-n // targets) * -(-m // rows_each), h, 1
    flags = x.dtype == torch.float64, odd, degree, targets, 64, rows_each
    launch(triton_direct.direct_program, grid, tensors, sizes, flags, 4)
    return even, odd_part


def scan(
    x: Tensor,
    target: Tensor,
    source: Tensor,
    tau: Tensor,
    target_index: Tensor,
    target_values: Tensor,
    source_index: Tensor,
    source_values: Tensor,
    *,
    odd: bool,
    degree: int = 0,
) -> tuple[Tensor, Tensor]:
    """(E x, S x) for K(target, source): x (*X, k) -> (*X, n), and the second (*X, 0) unless ``odd``."""
    order = target_index, target_values, source_index, source_values
    n = target.shape[-1]
    even, odd_part = fresh(_ops.empty_even(x, n, tau, "triton")), fresh(_ops.empty_odd(x, n if odd else 0))
    if degree:
        rows, out, odd_out = flat_rows(x, tau), flat_rows(even, tau), flat_rows(odd_part, tau) if odd else None
        distance_sums(rows, target, source, tau.contiguous(), order, out, odd_out)
    else:
        _run(x, target, source, tau, order, even, odd_part if odd else None, None)
    return even, odd_part


def pullback(
    g: Tensor,
    x: Tensor,
    odd_x: Tensor,
    target: Tensor,
    source: Tensor,
    tau: Tensor,
    target_index: Tensor,
    target_values: Tensor,
    source_index: Tensor,
    source_values: Tensor,
    *,
    to_tau: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x_bar, t_bar, s_bar, tau_bar for the cotangent g of E x, in one swapped scan, and for tau a second if it must be.

    t_bar is (*H, 0) without ``odd_x``, tau_bar (0,) without ``to_tau``.
    """
    order = source_index, source_values, target_index, target_values
    x_bar = fresh(_ops.empty_even(x, x.shape[-1], tau, "triton"))
    s_bar, parts = _run(g, source, target, tau, order, x_bar, None, x, to_tau=to_tau)
    t_bar = empty(target, (*target.shape[:-1], odd_x.shape[-1]))
    if odd_x.shape[-1] > 0:
        _row_dot(g, odd_x, tau, t_bar)
    tau_bar = empty(tau, (0,))
    if to_tau:
        if parts is None:
            parts = _tau_parts(flat_rows(g, tau), flat_rows(x, tau), target, source, tau.contiguous(), order)
        tau_bar = added(parts, tau)
    return x_bar, t_bar, s_bar.view(source.shape), tau_bar


def _tau_parts(g: Tensor, x: Tensor, target: Tensor, source: Tensor, tau: Tensor, swapped: _ops.Planned) -> Tensor:
    """What adds up to tau_bar, (h, parts): by the table of the short side's sums if x has it, else by tiles."""
    if _spreads(x.shape[-1], g.shape[-1], g.numel()):
        return spread(x, target, source, tau, None, g, pull=False, to_tau=True)[1]
    return tau_bar_of(g, source, target, tau, swapped, x)


def _spreads(sources: int, targets: int, sums: int) -> bool:
    """Whether a table of the sums at few sources pays."""
    return targets >= SHORT_AXIS_RATIO * sources and sources <= TABLE_SOURCES and sums >= SPREAD_FROM


def _row_dot(g: Tensor, odd_x: Tensor, tau: Tensor, t_bar: Tensor) -> None:
    """t_bar = 1/tau sum over rows of g * odd_x."""
    g, odd_x, tau = flat_rows(g, tau), flat_rows(odd_x, tau), tau.contiguous()
    h, m, n = g.shape
    sizes = m, n, *g.stride(), *odd_x.stride()
    grid, flags = (-(-n // 512), h, 1), (512, min(8, power(m)))
    launch(_programs().row_dot_program, grid, (g, odd_x, tau, t_bar), sizes, flags, 4)


def tiling(merged: int, m: int, h: int, sparse: bool, side: int) -> tuple[int, int, int]:
    """Points of the merged order, rows of x, and warps of a program: fixed by the sizes, never tuned at run time."""
    if side > 1:
        return TILE_SIDE_BY_SIDE, min(2 * side, -(-m // side) * side), 1
    small = merged * m * h <= 1 << 18
    one_row = m == 1 and 1 << 20 <= merged < 1 << 25  # of more, two warps gain nothing, and lose where all is in order
    tile = 512 if merged >= 1 << 25 or (small and merged >= 1 << 15) or one_row else 256
    rows = min(8 if sparse else 4, power(m))  # of x with its rows side by side, a sector
    while rows > 1 and -(-merged // tile) * -(-m // rows) * h < 2048:
        rows //= 2
    rows = max(rows, -(-m // _ops.LAUNCH_AXIS))
    return tile, rows, 2 if small or one_row else 1


def _spans(tiles: int, programs: int, side: int) -> tuple[tuple[str, int, int], ...]:
    """Launches of scan_program; looking for wide tiles leaves programs enough to scan them all, should all be wide."""
    if programs <= SPANS_TOGETHER and side == 1:
        return (("all", 1, 1),)
    return ("narrow", 1, side), ("wide", min(power(-(-programs // SPANS_TOGETHER)), 64, power(tiles)), 1)


class Schedule(NamedTuple):
    """What the sizes alone say of a product's launches."""

    tiles: int
    tile: int
    warps: int
    row_blocks: int
    exact: bool
    far: bool
    staged: str  # how x is copied into the merged order: not, with its "places" side by side, or its "rows"
    unstaged: bool  # y is left in the merged order, in place of x, and gathered out of it
    grid: tuple[int, int, int]
    scratch: int  # float64 numbers: ends, totals, and carries of every tile, and the rates
    carried: bool  # by a launch of its own
    # Launches of scan_program: of which tiles, how many a program looks at, and how many rows an access.
    spans: tuple[tuple[str, int, int], ...]
    reduce: tuple[tuple[int, ...], tuple[Any, ...]]  # sizes and flags of reduce_program
    scan: tuple[tuple[int, ...], tuple[Any, ...]]  # of scan_program, but for spans


@functools.lru_cache(maxsize=1024)
def schedule(
    x: tuple[int, ...],
    x_strides: tuple[int, ...],
    out: tuple[int, ...],
    out_strides: tuple[int, ...],
    other_strides: tuple[int, ...],
    dtype: torch.dtype,
    first: bool,
    in_order: bool,
    checked: bool,
    odd: bool,
    pull: bool,
    placed: bool,
    side: int,
) -> Schedule:
    (h, m, k), n = x, out[-1]
    merged, padded = n + k, _ops.padded(n + k)
    sparse = k >= SHORT_AXIS_RATIO * n  # most tiles have no target
    tile, rows, warps = tiling(merged, m, h, sparse, side)
    tiles, row_blocks = -(-merged // tile), -(-m // rows)
    exact = dtype == torch.float64 or tiles < PRECISE_TILES
    channels = 3 if odd else 2
    rate_at = 2 * h * tiles + (2 * channels + 2) * h * m * tiles
    carry = max(power(tiles), 2) if tiles <= CARRIED_BY_TILES else 1
    large = not in_order and side == 1 and h * m * k * dtype.itemsize > GATHERED_TWICE
    by_rows = sparse and m >= ROWS_STAGED and padded + tile < 2**31  # places are 32 bits there
    staged = "rows" if by_rows else "places" if large else ""
    unstaged = placed and staged == "places" and not odd
    even_strides = (m * padded, padded, 1) if unstaged else out_strides
    staged_strides = {"rows": (padded * m, 1, m), "places": (m * padded, padded, 1), "": x_strides}[staged]
    reach = k * x_strides[2], padded * staged_strides[2], n * out_strides[2], n * other_strides[2]
    far = max(padded + tile, *reach) >= 2**31
    return Schedule(
        tiles=tiles,
        tile=tile,
        warps=warps,
        row_blocks=row_blocks,
        exact=exact,
        far=far,
        staged=staged,
        unstaged=unstaged,
        grid=(tiles, row_blocks, h),
        scratch=rate_at + h,
        carried=carry == 1,
        spans=_spans(tiles, tiles * row_blocks * h, side),
        reduce=(
            (m, merged, padded, tiles, rate_at, *x_strides),
            (exact, odd, first, in_order, staged, checked, h == 1, far, tile, rows, side),
        ),
        scan=(
            (m, n, merged, padded, tiles, rate_at, *staged_strides, *even_strides, *other_strides),
            (exact, odd, pull, first, in_order, staged, unstaged, sparse, far, carry, h == 1, tile, rows),
        ),
    )


def _run(
    x: Tensor,
    target: Tensor,
    source: Tensor,
    tau: Tensor,
    order: _ops.Planned,
    even: Tensor,
    odd: Tensor | None,
    weights: Tensor | None,
    to_tau: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Fill even and odd; with weights return 1/tau sum over rows of weights * odd instead, (h, n) as the anchors.

    What adds up to tau_bar for these weights is returned, too, if it comes with the rest: (h, parts).
    """
    rows, out, tau = flat_rows(x, tau), flat_rows(even, tau), tau.contiguous()
    (h, m, k), n = rows.shape, out.shape[-1]
    beside, pull = odd if weights is None else weights, weights is not None
    if _spreads(k, n, out.numel()):
        return spread(rows, target, source, tau, out, beside, pull=pull, to_tau=to_tau)
    other = out if beside is None else flat_rows(beside, tau)
    if not side_by_side(h, m, n, k, held(order, n + k).in_order):
        return _scan_tiles(rows, target, source, tau, order, out, other, beside is not None, pull, 1), None
    # Sums take the place of the weights, which are read before.
    out_turned = turned(other) if pull else turned_empty(out)
    other_turned = turned_empty(other) if odd is not None else out_turned
    result = _scan_tiles(
        turned(rows), target, source, tau, order, out_turned, other_turned, beside is not None, pull, ROWS_AT_ONCE
    )
    copy(out_turned, out)
    if odd is not None:
        copy(other_turned, other)
    return result, None


def side_by_side(h: int, m: int, n: int, k: int, in_order: bool) -> bool:
    """Whether rows are worth two transposing copies: where they fill the GPU, and are not in order to begin with; no
    more of them than an axis of a launch has programs."""
    row_blocks = -(-m // (2 * ROWS_AT_ONCE))
    fits = m >= ROWS_AT_ONCE and row_blocks <= _ops.LAUNCH_AXIS
    fills = -(-(n + k) // TILE_SIDE_BY_SIDE) * row_blocks * h >= TURNED_FROM
    return fits and fills and not in_order and k < SHORT_AXIS_RATIO * n


def _scan_tiles(
    rows: Tensor,
    target: Tensor,
    source: Tensor,
    tau: Tensor,
    order: _ops.Planned,
    out: Tensor,
    other: Tensor,
    odd: bool,
    pull: bool,
    side: int,
) -> Tensor:
    """The launches over tiles: x (h, m, k), out (h, m, n) and, if odd, ``other``, the odd sums or their weights."""
    programs = _programs()
    (h, m, k), n = rows.shape, out.shape[-1]
    padded = _ops.padded(n + k)
    plan_held = held(order, n + k)
    first, in_order, entry, position, place_of = plan_held
    checked, placed = position.shape[-1] == 0, place_of.shape[-1] > 0
    plan = schedule(
        rows.shape, rows.stride(), out.shape, out.stride(), other.stride(), rows.dtype,
        first, in_order, checked, odd, pull, placed, side,
    )  # fmt: skip
    if checked:
        position = refreshed(plan_held, target, source, plan.far, plan.tile, plan.warps)
    scratch = empty(rows, (plan.scratch,), torch.float64)
    merged_x = empty(rows, (h, m, padded)) if plan.staged else rows
    tensors: tuple[Tensor, ...] = rows, merged_x, tau, entry, position, scratch
    if plan.staged == "rows":
        reduce_by_rows(rows, merged_x, tau, entry, position, scratch, place_of if placed else None, plan)
    else:
        launch(programs.reduce_program, plan.grid, tensors, *plan.reduce, plan.warps)
    if plan.carried:
        _carry(scratch, tau, h, m, plan.tiles, (plan.exact, odd, first))
    pulled = empty(target, (h, plan.row_blocks, n)) if pull else scratch
    tensors = merged_x, other, entry, position, scratch, merged_x if plan.unstaged else out, pulled
    sizes, flags = plan.scan
    for spans, together, at_once in plan.spans:
        grid = -(-plan.tiles // together), *plan.grid[1:]
        launch(programs.scan_program, grid, tensors, sizes, (*flags, spans, together, at_once), plan.warps)
    if plan.unstaged:
        unstage(merged_x, place_of.view(h, -1)[:, 0 if first else k :], out)
    if not pull:
        return out
    return pulled[:, 0] if plan.row_blocks == 1 else _block_sum(pulled)


def _block_sum(pull: Tensor) -> Tensor:
    """(h, blocks, n) to (h, n), in one launch and float64: ``sum`` with a dtype, and back, would be three."""
    h, blocks, n = pull.shape
    summed, rows = empty(pull, (h, n)), min(64, power(blocks))
    grid, flags = (-(-n * rows // 2048), h, 1), (2048 // rows, rows)
    launch(_programs().block_sum_program, grid, (pull, summed), (blocks, n), flags, 4)
    return summed


def _carry(scratch: Tensor, tau: Tensor, h: int, m: int, tiles: int, flags: tuple[bool, bool, bool]) -> None:
    """Add to the scratch memory what lies left and right of every tile."""
    from laplex._triton.scan import carry as programs

    group, groups = min(max(power(tiles), 32), CARRIED_AT_ONCE), -(-tiles // CARRIED_AT_ONCE)
    warps = max(group // 32, 1)  # a tile a thread: the scan over them is one long chain
    by_tiles = groups <= GROUPS_BY_TILES
    others, count = scratch, tiles
    if not by_tiles:
        others, count = empty(scratch, (2 * h * groups + 3 * h * m * groups,)), groups
        grid, sizes = (groups * m, h, 1), (m, tiles, groups)
        launch(programs.group_program, grid, (scratch, tau, others), sizes, (*flags, group), warps)
    grid, how = (groups * m * 2, h, 1), (*flags, group, power(count) if groups > 1 else 1, by_tiles)
    launch(programs.carry_program, grid, (scratch, tau, others), (m, tiles, groups, count), how, warps)
