"""The schedule of a product: the launches over tiles of the merged order that follow from its sizes alone."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import torch

from laplex._scan.order import padded
from laplex._scan.results import LAUNCH_AXIS
from laplex._triton import tuning
from laplex._triton.launch import power, step

# With fewer tiles, powers and sums of float32 data are float64, as on the CPU; it costs little there.
PRECISE_TILES = 64


class Form(NamedTuple):
    """What a schedule depends on."""

    x: tuple[int, ...]  # (h, m, k)
    x_strides: tuple[int, ...]
    out: tuple[int, ...]  # (h, m, n)
    out_strides: tuple[int, ...]
    other_strides: tuple[int, ...]  # of the odd sums, or of their weights
    dtype: torch.dtype
    first: bool  # targets come before sources where they tie
    in_order: bool
    checked: bool  # the order is checked against the anchors
    odd: bool
    pull: bool
    placed: bool  # the order holds the places of targets and sources
    adjacent: int  # rows of x that lie adjacent in memory


class Schedule(NamedTuple):
    """The launches of a product."""

    tiles: int
    tile: int  # points
    warps: int
    row_blocks: int
    exact: bool
    far: bool  # offsets need 64 bits
    staged: str  # how x is copied into the merged order: "" not, "places" row by row, "rows" with adjacent rows
    unstaged: bool  # y is written over x in the merged order, and gathered out of it
    grid: tuple[int, int, int]
    scratch: int  # float64 numbers: ends, totals and carries of every tile, and the rates
    carried: bool  # by a launch of its own
    spans: tuple[tuple[str, int, int], ...]  # launches of scan_program: which tiles, tiles a program, rows an access
    reduce: tuple[tuple[int, ...], tuple[Any, ...]]  # sizes and flags of reduce_program
    scan: tuple[tuple[int, ...], tuple[Any, ...]]  # sizes and flags of scan_program, without the spans


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


def _spans(tiles: int, programs: int, adjacent: int) -> tuple[tuple[str, int, int], ...]:
    """Launches of scan_program. Those for wide tiles look at several each; should all be wide, there are enough."""
    if programs <= tuning.SPANS_TOGETHER and adjacent == 1:
        return (("all", 1, 1),)
    together = step(min(-(-programs // tuning.SPANS_TOGETHER), tiles), tuning.WIDE_TOGETHER, 4, 16, 64)
    return ("narrow", 1, adjacent), ("wide", together, 1)


def carried_lanes(tiles: int) -> int:
    """The lanes in which a program adds up other tiles' sums: so few steps cost nothing, as a warp has 32 anyway."""
    return 32 if tiles <= 32 else 64 if tiles < PRECISE_TILES else max(power(tiles), 128)


@functools.lru_cache(maxsize=1024)
def schedule(form: Form) -> Schedule:
    (h, m, k), n = form.x, form.out[-1]
    merged, length = n + k, padded(n + k)
    sparse = k >= tuning.SHORT_AXIS_RATIO * n  # most tiles hold no target
    tile, rows, warps = tiling(merged, m, h, sparse, form.adjacent)
    tiles, row_blocks = -(-merged // tile), -(-m // rows)
    exact = form.dtype == torch.float64 or tiles < PRECISE_TILES
    channels = 3 if form.odd else 2
    rate_at = 2 * h * tiles + (2 * channels + 2) * h * m * tiles
    carry = 1 if tiles > tuning.CARRIED_BY_TILES else carried_lanes(tiles)
    staged = _staging(form, sparse, length + tile < 2**31)
    skips = sparse and tiles * row_blocks * h >= tuning.PROGRAMS_WANTED  # fewer run all at once: none would wait
    unstaged = form.placed and staged == "places" and not form.odd
    in_places, in_rows = (m * length, length, 1), (length * m, 1, m)
    out_strides = in_places if unstaged else form.out_strides
    x_strides = {"rows": in_rows, "places": in_places, "": form.x_strides}[staged]
    reach = k * form.x_strides[2], length * x_strides[2], n * form.out_strides[2], n * form.other_strides[2]
    far = max(length + tile, *reach) >= 2**31
    how, alone = (form.first, form.in_order), h == 1
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
        spans=_spans(tiles, tiles * row_blocks * h, form.adjacent),
        reduce=(
            (m, merged, length, tiles, rate_at, *form.x_strides, rows),
            (exact, form.odd, *how, staged == "places", form.checked, alone, far, tile, rows == 1, form.adjacent),
        ),
        scan=(
            (m, n, merged, length, tiles, rate_at, *x_strides, *out_strides, *form.other_strides, rows),
            (exact, form.odd, form.pull, *how, staged, unstaged, skips, far, carry, alone, tile, rows == 1),
        ),
    )


def _staging(form: Form, sparse: bool, near: bool) -> str:
    """How x is copied into the merged order; ``near``: places fit 32 bits."""
    h, m, k = form.x
    if h * m * k * form.dtype.itemsize <= tuning.GATHERED_TWICE:
        return ""
    if sparse and m >= tuning.ROWS_STAGED and near:
        return "rows"
    return "places" if not form.in_order and form.adjacent == 1 else ""


def worth_adjacent_rows(form: tuple[int, int, int, int], in_order: bool) -> bool:
    """Whether two transposing copies are repaid, for (h, m, n, k): rows fill the GPU and are not in order anyway."""
    h, m, n, k = form
    row_blocks = -(-m // (2 * tuning.ROWS_ADJACENT))
    fits = m >= tuning.ROWS_ADJACENT and row_blocks <= LAUNCH_AXIS
    fills = -(-(n + k) // tuning.TILE_ADJACENT) * row_blocks * h >= tuning.ADJACENT_FROM
    return fits and fills and not in_order and k < tuning.SHORT_AXIS_RATIO * n
