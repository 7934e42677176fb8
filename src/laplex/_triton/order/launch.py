"""The order of the anchors on a GPU. This file owns the launches that find it and that check it.

Few points are ranked by counting, more are sorted, and what is too much for one sort is sorted in parts, which are
merged.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from laplex import _checks
from laplex._scan.order import WORD, Matrix, Order, Tensors, empty_order, padded
from laplex._scan.results import LAUNCH_AXIS
from laplex._shapes import flat
from laplex._triton import tuning
from laplex._triton.launch import launch, step
from laplex._triton.order import programs
from laplex._triton.order.programs_refresh import place_program, refresh_program
from laplex._triton.recording import call, give_up
from laplex._triton.replay import replayed

WIDEST_TILE = 512  # points; places of a tile beyond the end must fit 32 bits, too


class SortedRun(NamedTuple):
    """A sorted run: positions and entries (h, padded) of ``size`` points."""

    position: Tensor
    entry: Tensor
    size: int


class Joined(NamedTuple):
    """An order as programs read it, whichever side holds it."""

    first: bool  # the targets hold it, and come before sources where they tie
    in_order: bool
    entry: Tensor  # entries, or bits
    position: Tensor  # (h, 1, padded), or (h, 1, 0) if it is to be gathered again and checked
    place_of: Tensor  # places of rows and columns, or (h, 1, 0)

    @property
    def is_checked(self) -> bool:
        return self.position.shape[-1] == 0

    @property
    def has_places(self) -> bool:
        return self.place_of.shape[-1] > 0


def joined(order: Order) -> Joined:
    """The order of targets and sources."""
    first = order.target.kind in ("entries", "bits")
    side, other = (order.target, order.source) if first else (order.source, order.target)
    return Joined(first, side.kind == "bits", side.indices.contiguous(), side.values.contiguous(), other.indices)


def look(a: Tensor, b: Tensor) -> str:
    """The layout for anchors to be planned. Waits for the device, and raises unless all are finite."""
    answers = [torch.isfinite(a).all(), torch.isfinite(b).all()]
    answers += [(side[..., 1:] >= side[..., :-1]).all() for side in (a.detach(), b.detach())]
    a_finite, b_finite, a_sorted, b_sorted = torch.stack(answers).tolist()
    for name, finite in (("a", a_finite), ("b", b_finite)):
        if not finite:
            raise ValueError(_checks.not_finite("laplex.Plan", name))
    return "in_order" if a_sorted and b_sorted and a.shape[-1] and b.shape[-1] else "joined"


def order(a: Tensor, b: Tensor, layout: str) -> Order:
    """The order of a (*H, n) and b (*H, k)."""
    return Order.from_tensors(_order(a, b, layout), layout)


@replayed(lambda a, b, layout: ((a, b), layout))
def _order(a: Tensor, b: Tensor, layout: str) -> Tensors:
    a, b = flat(a, 2), flat(b, 2)
    h, merged = a.shape[0], a.shape[1] + b.shape[1]
    if a.numel() == 0 or b.numel() == 0:
        return empty_order(a, b, layout).tensors  # nothing will read it
    if h > LAUNCH_AXIS:
        parts = [slice(start, start + LAUNCH_AXIS) for start in range(0, h, LAUNCH_AXIS)]
        orders = [_order(a[part], b[part], layout) for part in parts]
        entry, position, place_of, empty = (torch.cat(tensors) for tensors in zip(*orders, strict=True))
        return entry, position, place_of, empty
    if layout == "in_order":
        one, two = (SortedRun(side.contiguous(), side, side.shape[1]) for side in (a, b))  # they have no entries
        run = _merged(one, two, words=True)
    elif h * merged**2 <= tuning.COUNTED_PAIRS:
        run = SortedRun(*_counted(a, b), merged)
    elif h * merged <= tuning.COUNTED_IN_RUNS:
        run = SortedRun(*_counted_in_runs(a, b), merged)
    elif merged <= tuning.SORTED_AT_ONCE:
        run = _sorted(_side_by_side(a, b), a.shape[1], 0, 0)
    else:
        give_up("a replay would keep the memory of all parts")
        rows = _all_merged([_sorted(part, part.shape[1], start, 0) for start, part in _parts(a)])
        cols = _all_merged([_sorted(part, 0, 0, start) for start, part in _parts(b)])
        run = _merged(rows, cols, words=False)
    entry, position = run.entry[:, None], run.position[:, None]
    nothing = h, 1, 0
    return entry, position, entry.new_empty(nothing), position.new_empty(nothing)


def _counted(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Positions and entries of both sides in order, (h, padded): every point is compared with all others."""
    length = padded(a.shape[1] + b.shape[1])
    return ranked(a, b, length, length, tuning.RANK_TILE)


def _counted_in_runs(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """The same for more points: every point is compared with those of its run, then searched for in the other runs."""
    (h, n), k = a.shape, b.shape[1]
    merged, length = n + k, padded(n + k)
    runs = ranked(a, b, tuning.RUN, merged, tuning.RUN_TILE)
    position, entry = a.new_empty((h, length)), a.new_empty((h, length), dtype=torch.int32)
    width, at_once = tuning.JOIN_TILE
    number = -(-merged // tuning.RUN)
    flags, warps = (width, step(number, at_once, 4)), 4 if number <= at_once else 2
    grid, sizes = (-(-merged // width), h, 1), (merged, length, tuning.RUN, tuning.RUN.bit_length())
    launch(programs.join_program, grid, (*runs, position, entry), sizes, flags, warps)
    return position, entry


def ranked(a: Tensor, b: Tensor, run: int, length: int, tile: tuple[int, int, int]) -> tuple[Tensor, Tensor]:
    """Rows, then columns, as sorted runs of ``run`` points each, a multiple of the points of a program."""
    (h, n), k = a.shape, b.shape[1]
    position, entry = a.new_empty((h, length)), a.new_empty((h, length), dtype=torch.int32)
    tensors, grid = (a.contiguous(), b.contiguous(), position, entry), (-(-(n + k) // tile[0]), h, 1)
    launch(programs.rank_program, grid, tensors, (n, k, run, length), tile, 4)
    return position, entry


def refreshed(order: Joined, matrix: Matrix, far: bool, tile: int, warps: int) -> Tensor:
    """The positions that the order gives to anchors which may have moved."""
    target, source = matrix.target.contiguous(), matrix.source.contiguous()
    n, k = target.shape[-1], source.shape[-1]
    h, length = order.entry.shape[0], padded(n + k)
    position = target.new_empty((h, 1, length))
    flags, grid = (order.first, order.in_order, far, tile), (-(-(n + k) // tile), h, 1)
    tensors = target, source, order.entry, position
    launch(refresh_program, grid, tensors, (n + k, length, n, k), flags, warps)
    return position


def complete(order: Order, n: int, k: int) -> Order:
    """Complete an order to keep: a large one gets places, which take as long to find as they save in one call."""
    entry, position, _, nothing = order.tensors
    h = entry.shape[0]
    large = (n + k) * h >= tuning.PLACES_FROM and n + k + WIDEST_TILE < 2**31 and h <= LAUNCH_AXIS
    if not large or n == 0 or k == 0 or joined(order).in_order:  # with an empty side nothing is ordered
        return order
    return Order.from_tensors((entry, position, places(entry, n, k), nothing), order.layout)


def places(entry: Tensor, n: int, k: int) -> Tensor:
    """Where in the merged order rows and columns lie, (h, 1, n + k)."""
    merged, (h, _, length) = n + k, entry.shape
    place_of = entry.new_empty((h, 1, merged))
    in_order = length < padded(merged)
    flags = in_order, padded(merged) >= 2**31 - tuning.PLACE_TILE, tuning.PLACE_TILE
    grid, sizes = (-(-merged // tuning.PLACE_TILE), h, 1), (merged, padded(merged), n, merged)
    launch(place_program, grid, (entry, place_of), sizes, flags, 4)
    return place_of


def _parts(side: Tensor) -> list[tuple[int, Tensor]]:
    """The parts that are sorted at once, each after the index where it starts."""
    starts = range(0, side.shape[1], tuning.SORTED_AT_ONCE)
    return [(start, side[:, start : start + tuning.SORTED_AT_ONCE]) for start in starts]


def _side_by_side(a: Tensor, b: Tensor) -> Tensor:
    """Rows, then columns, (h, n + k)."""
    (h, n), k = a.shape, b.shape[1]
    both = a.new_empty((h, n + k))
    tensors, grid = (a.contiguous(), b.contiguous(), both), (-(-(n + k) // tuning.MERGE_TILE), h, 1)
    launch(programs.side_by_side_program, grid, tensors, (n, k), (tuning.MERGE_TILE,), 4)
    return both


def _sorted(anchors: Tensor, rows: int, first_row: int, first_col: int) -> SortedRun:
    """Sorted anchors, of which the first ``rows`` are rows."""
    h, size = anchors.shape
    if h * size > tuning.REPLAYED_SORTS:
        give_up("Python's share of a large sort is small")
    values, order = anchors.new_empty((h, size)), anchors.new_empty((h, size), dtype=torch.int64)
    call(torch.sort, anchors, out=(values, order), dim=-1, stable=True)
    length = padded(size)
    position, entry = anchors.new_empty((h, length)), anchors.new_empty((h, length), dtype=torch.int32)
    grid, sizes = (-(-length // tuning.MERGE_TILE), h, 1), (rows, size, length, first_row, first_col)
    launch(programs.encode_program, grid, (values, order, position, entry), sizes, (tuning.MERGE_TILE,), 4)
    return SortedRun(position, entry, size)


def _all_merged(runs: list[SortedRun]) -> SortedRun:
    """Merge all runs. Those that were merged are freed at once: for 2^31 points they are most of a GPU's memory."""
    while len(runs) > 1:
        merged = []
        while runs:
            merged.append(_merged(runs.pop(0), runs.pop(0), words=False) if len(runs) > 1 else runs.pop())
        runs = merged
    return runs[0]


def _merged(one: SortedRun, two: SortedRun, *, words: bool) -> SortedRun:
    """Merge two runs, the first before the second where they tie; ``words``: with bits in place of entries."""
    tile = tuning.MERGE_TILE
    h, size = one.position.shape[0], one.size + two.size
    length, pieces = padded(size), -(-size // tile)
    splits = one.position.new_empty((h, pieces + 1), dtype=torch.int64)
    position = one.position.new_empty((h, length))
    entry = one.position.new_empty((h, length // WORD * 2 if words else length), dtype=torch.int32)
    lengths = one.position.shape[1], two.position.shape[1]
    steps = max(one.size, two.size).bit_length() + 1
    runs = one.position, two.position
    sizes: tuple[int, ...] = one.size, two.size, *lengths, pieces, steps
    launch(programs.split_program, (-(-(pieces + 1) // 128), h, 1), (*runs, splits), sizes, (tile, 128), 4)
    sizes = one.size, two.size, *lengths, length, pieces, tile.bit_length()
    tensors = *runs, one.entry, two.entry, splits, position, entry
    launch(programs.merge_program, (-(-length // tile), h, 1), tensors, sizes, (words, tile), 4)
    return SortedRun(position, entry, size)
