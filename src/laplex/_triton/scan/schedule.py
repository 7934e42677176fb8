"""The schedule of a product: the launches over tiles of the merged order that follow from its sizes alone."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch

from laplex._scan.order import padded
from laplex._scan.results import LAUNCH_AXIS
from laplex._triton import tuning
from laplex._triton.launch import Setup, power, step
from laplex._triton.program import by_name, strides_by_name
from laplex._triton.scan.carry import carry_program, group_program
from laplex._triton.scan.programs import reduce_program, scan_program
from laplex._triton.short.programs import reduce_rows_program

# With fewer tiles, powers and sums of float32 data are float64, as on the CPU; it costs little there.
PRECISE_TILES = 64


class ScanProblem(NamedTuple):
    """What a schedule depends on."""

    x: tuple[int, ...]  # (h, m, k)
    x_strides: tuple[int, ...]
    out: tuple[int, ...]  # (h, m, n)
    out_strides: tuple[int, ...]
    other_strides: tuple[int, ...]  # of the odd sums, or of their weights
    dtype: torch.dtype
    first: bool = True  # targets come before sources where they tie
    in_order: bool = False
    checked: bool = False  # the order is checked against the anchors
    odd: bool = False
    pull: bool = False
    placed: bool = False  # the order holds the places of targets and sources
    adjacent: int = 1  # rows of x that lie adjacent in memory


class Tiling(NamedTuple):
    """How the merged order and the rows of x are cut. It decides the numbers and flags that all launches share."""

    tile: int  # points of a program
    rows: int  # of x, of a program
    warps: int
    tiles: int
    row_blocks: int
    exact: bool
    carry: int  # lanes in which a program adds up the sums of all tiles; 1: a launch of its own does
    staged: str  # how x is copied into the merged order: "" not, "places" row by row, "rows" with adjacent rows
    unstaged: bool  # y is written over x in the merged order, and gathered out of it
    far: bool  # offsets need 64 bits


class Carry(NamedTuple):
    """The launches between the two that visit all tiles."""

    groups: Setup | None  # of group_program, which reduces groups of very many tiles
    scratch: int  # float64 numbers that it fills
    carry: Setup


class ScanSchedule(NamedTuple):
    """The launches of a product."""

    tiling: Tiling
    scratch: int  # float64 numbers: ends, totals and carries of every tile, and the rates
    reduce: Setup  # of reduce_program; if x is staged in rows it finds only the ends of tiles,
    reduce_rows: Setup  # and reduce_rows_program their sums
    carry: Carry | None
    scans: tuple[Setup, ...]  # of scan_program: of all tiles, or of the narrow and of the wide ones


def tiling(merged: int, m: int, h: int, sparse: bool, adjacent: int) -> tuple[int, int, int]:
    """Points, rows of x and warps of a program. The sizes decide; nothing is tuned at run time."""
    if adjacent > 1:
        return tuning.TILE_ADJACENT, min(2 * adjacent, -(-m // adjacent) * adjacent), 1
    small = merged * m * h <= tuning.SMALL_SCAN
    one_row = m == 1 and tuning.ROW_TILES <= merged < tuning.LARGE_TILE_FROM
    large = merged >= tuning.LARGE_TILE_FROM or (small and merged >= tuning.SMALL_LARGE_TILE) or one_row
    tile = tuning.LARGE_TILE if large else tuning.TILE
    rows = min(tuning.ROWS_OF_SPARSE if sparse else tuning.ROWS, power(m))
    while rows > 1 and -(-merged // tile) * -(-m // rows) * h < tuning.PROGRAMS_WANTED:
        rows //= 2
    rows = max(rows, -(-m // LAUNCH_AXIS))
    return tile, rows, 2 if small or one_row else 1


@functools.lru_cache(maxsize=1024)
def schedule(problem: ScanProblem) -> ScanSchedule:
    (h, m, k), n = problem.x, problem.out[-1]
    length, cut = padded(n + k), _tiling(problem)
    ends, totals = 2 * h * cut.tiles, h * m * cut.tiles
    rate_at = ends + (8 if problem.odd else 6) * totals
    sizes = {"m": m, "merged": n + k, "padded": length, "tiles": cut.tiles}
    flags: dict[str, Any] = {"EXACT": cut.exact, "ODD": problem.odd, "FIRST": problem.first}
    carry = None
    if cut.carry == 1:
        carry = carry_launches(h, m, cut.tiles, flags)
    flags |= {"IN_ORDER": problem.in_order, "FAR": cut.far, "TILE": cut.tile}
    in_rows = min(power(m), 32)
    staged = by_name(reduce_rows_program, **sizes, rows=m, **flags, POINTS=tuning.REDUCE_POINTS, ROWS=in_rows)
    sizes |= {"rate_at": rate_at, "rows_each": cut.rows}
    flags |= {"ONE_BATCH": h == 1, "ONE_ROW": cut.rows == 1}
    return ScanSchedule(
        tiling=cut,
        scratch=rate_at + h,
        reduce=_reduce(problem, cut, sizes, flags),
        reduce_rows=Setup((cut.tiles * -(-m // in_rows), h, 1), *staged),
        carry=carry,
        scans=tuple(_scans(problem, cut, sizes, flags)),
    )


def _tiling(problem: ScanProblem) -> Tiling:
    (h, m, k), n = problem.x, problem.out[-1]
    length = padded(n + k)
    tile, rows, warps = tiling(n + k, m, h, _is_sparse(problem), problem.adjacent)
    tiles = -(-(n + k) // tile)
    staged = _staging(problem, length + tile < 2**31)
    x_step = {"rows": m, "places": 1, "": problem.x_strides[2]}[staged]
    reach = k * problem.x_strides[2], length * x_step, n * problem.out_strides[2], n * problem.other_strides[2]
    return Tiling(
        tile=tile,
        rows=rows,
        warps=warps,
        tiles=tiles,
        row_blocks=-(-m // rows),
        exact=problem.dtype == torch.float64 or tiles < PRECISE_TILES,
        carry=1 if tiles > tuning.CARRIED_BY_TILES else carried_lanes(tiles),
        staged=staged,
        unstaged=problem.placed and staged == "places" and not problem.odd,
        far=max(length + tile, *reach) >= 2**31,
    )


def _is_sparse(problem: ScanProblem) -> bool:
    """Whether most tiles hold no target."""
    return problem.x[-1] >= tuning.SHORT_AXIS_RATIO * problem.out[-1]


def carried_lanes(tiles: int) -> int:
    """The lanes in which a program adds up other tiles' sums: so few steps cost nothing, as a warp has 32 anyway."""
    return 32 if tiles <= 32 else 64 if tiles < PRECISE_TILES else max(power(tiles), 128)


def _staging(problem: ScanProblem, near: bool) -> str:
    """How x is copied into the merged order; ``near``: places fit 32 bits."""
    h, m, k = problem.x
    if h * m * k * problem.dtype.itemsize <= tuning.GATHERED_TWICE:
        return ""
    if _is_sparse(problem) and m >= tuning.ROWS_STAGED and near:
        return "rows"
    return "places" if not problem.in_order and problem.adjacent == 1 else ""


def _reduce(problem: ScanProblem, cut: Tiling, sizes: dict[str, int], flags: dict[str, Any]) -> Setup:
    h = problem.x[0]
    numbers = sizes | strides_by_name(x=problem.x_strides)
    in_rows = cut.staged == "rows"
    if in_rows:
        numbers["m"] = 0  # no rows: the ends alone
    more = {"STAGED": cut.staged == "places", "CHECKED": problem.checked, "ROWS_AT_ONCE": problem.adjacent}
    grid = cut.tiles, 1 if in_rows else cut.row_blocks, h
    return Setup(grid, *by_name(reduce_program, **numbers, **flags, **more), cut.warps)


def _scans(problem: ScanProblem, cut: Tiling, sizes: dict[str, int], flags: dict[str, Any]) -> list[Setup]:
    """Launches of scan_program. Those for wide tiles look at several each; should all be wide, there are enough."""
    (h, m, _), length = problem.x, sizes["padded"]
    in_places, in_rows = (m * length, length, 1), (length * m, 1, m)
    strides = strides_by_name(
        x={"rows": in_rows, "places": in_places, "": problem.x_strides}[cut.staged],
        even=in_places if cut.unstaged else problem.out_strides,
        odd=problem.other_strides,
    )
    programs = cut.tiles * cut.row_blocks * h
    skips = _is_sparse(problem) and programs >= tuning.PROGRAMS_WANTED  # fewer run all at once: none would wait
    flags = flags | {"PULL": problem.pull, "STAGED": cut.staged, "UNSTAGED": cut.unstaged}
    flags |= {"SPARSE": skips, "CARRY": cut.carry}
    spans = [("all", 1, 1)]
    if programs > tuning.SPANS_TOGETHER or problem.adjacent > 1:
        most = min(-(-programs // tuning.SPANS_TOGETHER), cut.tiles)
        spans = [("narrow", 1, problem.adjacent), ("wide", step(most, tuning.WIDE_TOGETHER, 4, 16, 64), 1)]
    setups = []
    for span, together, at_once in spans:
        more = {"SPANS": span, "TILES": together, "ROWS_AT_ONCE": at_once}
        arguments = by_name(scan_program, **sizes, n=problem.out[-1], **strides, **flags, **more)
        setups.append(Setup((-(-cut.tiles // together), cut.row_blocks, h), *arguments, cut.warps))
    return setups


def carry_launches(h: int, m: int, tiles: int, flags: dict[str, bool]) -> Carry:
    """Launches that add to the scratch memory the sums left and right of every tile, for m rows of h matrices."""
    at_once = tuning.CARRIED_AT_ONCE
    group, groups = step(tiles, at_once, 2, 4), -(-tiles // at_once)
    warps = max(group // 32, 1)  # one tile per thread: the scan over tiles is one long chain
    by_tiles, most = groups <= tuning.GROUPS_BY_TILES, at_once * tuning.GROUPS_BY_TILES
    count = tiles if by_tiles else groups
    sizes = {"m": m, "tiles": tiles, "groups": groups}
    grouping = None
    if not by_tiles:
        grouping = Setup((groups * m, h, 1), *by_name(group_program, **sizes, **flags, GROUP=group), warps)
    lanes = 1 if groups == 1 else step(count, most, 2, 4) if by_tiles else step(count, max(power(count), most), 8, 128)
    more = {"GROUP": group, "OTHERS": lanes, "BY_TILES": by_tiles}
    carry = Setup((groups * m * 2, h, 1), *by_name(carry_program, **sizes, count=count, **flags, **more), warps)
    return Carry(grouping, 2 * h * groups + 3 * h * m * groups, carry)


def worth_adjacent_rows(problem: tuple[int, int, int, int], in_order: bool) -> bool:
    """Whether two transposing copies are repaid, for (h, m, n, k): rows fill the GPU and are not in order anyway."""
    h, m, n, k = problem
    row_blocks = -(-m // (2 * tuning.ROWS_ADJACENT))
    fits = m >= tuning.ROWS_ADJACENT and row_blocks <= LAUNCH_AXIS
    fills = -(-(n + k) // tuning.TILE_ADJACENT) * row_blocks * h >= tuning.ADJACENT_FROM
    return fits and fills and not in_order and k < tuning.SHORT_AXIS_RATIO * n
