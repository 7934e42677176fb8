"""The order of the anchors on the GPU: this file owns the launches that find it.

Few points are counted into their places, more are sorted, and what is too much for one sort is sorted in runs that are
merged.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from laplex._scan import ops as _ops
from laplex._triton.launch import call, empty, launch, not_to_be_repeated
from laplex._triton.order.count import counted, counted_in_runs
from laplex._triton.short.launch import places

MERGE_TILE = 1024
SORTED_AT_ONCE = 1 << 28  # a sort holds nine times its keys: more are sorted in runs, and the runs merged
COUNTED_PAIRS = 1 << 26  # of points that are put in order by comparing each with all
COUNTED_IN_RUNS = 1 << 16  # points that are put in order by comparing each with its run, and finding it in the others
REPEATED_UP_TO = 1 << 22  # points that are sorted; of more the Python around them takes no time
PLACES_FROM = 1 << 23  # points from which on a plan that is kept holds the places of rows and columns
WIDEST_TILE = 512


def _programs() -> Any:
    from laplex._triton.order import programs as triton_order

    return triton_order


class Run(NamedTuple):
    """A sorted run: positions and entries (h, padded) of ``size`` points."""

    position: Tensor
    entry: Tensor
    size: int


def plan(a: Tensor, b: Tensor, layout: str) -> _ops.Planned:
    """The order of a (h, n) and b (h, k), as ``_ops`` describes it."""
    if a.numel() == 0 or b.numel() == 0:
        return _ops.empty_plan(a, b, layout)  # nothing will look at it
    h, merged = a.shape[0], a.shape[1] + b.shape[1]
    if layout == "in_order":
        joined = _merged(*(Run(side.contiguous(), side, side.shape[1]) for side in (a, b)), words=True)  # no entries
    elif h * merged**2 <= COUNTED_PAIRS:
        joined = Run(*counted(a, b), merged)
    elif h * merged <= COUNTED_IN_RUNS:
        joined = Run(*counted_in_runs(a, b), merged)
    elif merged <= SORTED_AT_ONCE:
        joined = _sorted(_beside(a, b), a.shape[1], 0, 0)
    else:
        not_to_be_repeated()  # it would have to let go of nothing
        rows = _all_merged([_sorted(part, part.shape[1], at, 0) for at, part in _parts(a)])
        cols = _all_merged([_sorted(part, 0, 0, at) for at, part in _parts(b)])
        joined = _merged(rows, cols, words=False)
    entry, position = joined.entry[:, None], joined.position[:, None]
    nothing = h, 1, 0
    return entry, position, entry.new_empty(nothing), position.new_empty(nothing)


class Held(NamedTuple):
    """A plan, whichever side holds it."""

    first: bool  # the targets do, and come first at ties
    in_order: bool
    entry: Tensor
    position: Tensor
    place_of: Tensor


def held(order: _ops.Planned, merged: int) -> Held:
    """The order of targets and sources, of ``merged`` points."""
    first = _ops.holds_entries(order[0])
    entry, position = (part.contiguous() for part in (order[:2] if first else order[2:]))
    return Held(first, entry.shape[-1] < _ops.padded(merged), entry, position, order[2] if first else order[0])


def refreshed(plan: Held, target: Tensor, source: Tensor, far: bool, tile: int, warps: int) -> Tensor:
    """The positions that the plan's order gives to anchors which may have moved."""
    from laplex._triton.scan import programs as triton_merged

    n, k = target.shape[-1], source.shape[-1]
    h, padded = plan.entry.shape[0], _ops.padded(n + k)
    position = empty(target, (h, 1, padded))
    anchors = target.contiguous(), source.contiguous(), plan.entry, position
    flags, grid = (plan.first, plan.in_order, far, tile), (-(-(n + k) // tile), h, 1)
    launch(triton_merged.refresh_program, grid, anchors, (n + k, padded, n, k), flags, warps)
    return position


def placed(order: _ops.Planned, n: int, k: int) -> _ops.Planned:
    """A plan that will be kept, with the places if it is large: to find them costs as much as they save in a call."""
    entry, position, _, nothing = order
    h = entry.shape[0]
    large = (n + k) * h >= PLACES_FROM and n + k + WIDEST_TILE < 2**31 and h <= _ops.LAUNCH_AXIS
    return (entry, position, places(entry, (n, k)), nothing) if large else order


def _parts(side: Tensor) -> list[tuple[int, Tensor]]:
    """What is sorted at once, and where it starts."""
    starts = range(0, side.shape[1], SORTED_AT_ONCE)
    return [(at, side[:, at : at + SORTED_AT_ONCE]) for at in starts]


def _beside(a: Tensor, b: Tensor) -> Tensor:
    """Rows and columns beside each other, (h, n + k)."""
    (h, n), k = a.shape, b.shape[1]
    joined = empty(a, (h, n + k))
    tensors, grid = (a.contiguous(), b.contiguous(), joined), (-(-(n + k) // MERGE_TILE), h, 1)
    launch(_programs().beside_program, grid, tensors, (n, k), (MERGE_TILE,), 4)
    return joined


def _sorted(anchors: Tensor, rows: int, first_row: int, first_col: int) -> Run:
    """Anchors in order, of which the first ``rows`` are rows."""
    h, size = anchors.shape
    if h * size > REPEATED_UP_TO:
        not_to_be_repeated()
    values, order = empty(anchors, (h, size)), empty(anchors, (h, size), torch.int64)
    call(torch.sort, anchors, out=(values, order), dim=-1, stable=True)
    padded = _ops.padded(size)
    position, entry = empty(anchors, (h, padded)), empty(anchors, (h, padded), torch.int32)
    grid, sizes = (-(-padded // MERGE_TILE), h, 1), (rows, size, padded, first_row, first_col)
    launch(_programs().encode_program, grid, (values, order, position, entry), sizes, (MERGE_TILE,), 4)
    return Run(position, entry, size)


def _all_merged(runs: list[Run]) -> Run:
    """All runs as one. What is merged is let go at once: at 2^31 points it is most of a GPU's memory."""
    while len(runs) > 1:
        merged = []
        while runs:
            merged.append(_merged(runs.pop(0), runs.pop(0), words=False) if len(runs) > 1 else runs.pop())
        runs = merged
    return runs[0]


def _merged(one: Run, two: Run, *, words: bool) -> Run:
    """Two runs as one, the first before the second where they tie; as words: laplex._triton.points."""
    h, size = one.position.shape[0], one.size + two.size
    padded, pieces = _ops.padded(size), -(-size // MERGE_TILE)
    splits = one.position.new_empty((h, pieces + 1), dtype=torch.int64)
    position = one.position.new_empty((h, padded))
    entry = one.position.new_empty((h, padded // _ops.WORD * 2 if words else padded), dtype=torch.int32)
    lengths = one.position.shape[1], two.position.shape[1]
    steps = max(one.size, two.size).bit_length() + 1
    runs = one.position, two.position
    sizes: tuple[int, ...] = one.size, two.size, *lengths, pieces, steps
    launch(_programs().split_program, (-(-(pieces + 1) // 128), h, 1), (*runs, splits), sizes, (MERGE_TILE, 128), 4)
    sizes = one.size, two.size, *lengths, padded, pieces, MERGE_TILE.bit_length()
    tensors = *runs, one.entry, two.entry, splits, position, entry
    launch(_programs().merge_program, (-(-padded // MERGE_TILE), h, 1), tensors, sizes, (words, MERGE_TILE), 4)
    return Run(position, entry, size)
