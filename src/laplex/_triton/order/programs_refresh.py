"""Triton programs that use an order found before: for anchors that may have moved, and to invert it."""

import triton
import triton.language as tl

from laplex._triton.points import INFINITY, WORD, entries_at, entry_of, follow, places
from laplex._triton.program import program


@program(numbers="merged", callers=("target", "source"))
def refresh_program(
    target, source, entry, position, merged, padded, n, k,
    FIRST: tl.constexpr, IN_ORDER: tl.constexpr, FAR: tl.constexpr, TILE: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """Gather the positions of anchors that may have moved, in the plan's order, which ``order_fault`` checks later."""
    if EARLY:
        follow()
    tile, batch = tl.program_id(0), tl.program_id(1).to(tl.int64)
    entry += batch * (padded // WORD * 2 if IN_ORDER else padded)
    place = places(tile, FAR, TILE)
    is_target, t_index, is_source, s_index = entries_at(entry, place, merged, padded, FIRST, IN_ORDER)
    p = tl.load(target + batch * n + t_index, mask=is_target, other=0.0)
    p += tl.load(source + batch * k + s_index, mask=is_source, other=0.0)
    last_is_row, index = entry_of(entry, tl.zeros([1, 1], place.dtype) + merged - 1, padded, IN_ORDER)
    last_is_target = last_is_row if FIRST else ~last_is_row
    last = tl.load(target + batch * n + index, mask=last_is_target, other=0.0)
    last += tl.load(source + batch * k + index, mask=~last_is_target, other=0.0)
    p = tl.where(place < merged, p, last)  # the padding repeats the last position
    tl.store(position + batch * padded + place, p, mask=place < padded)


@triton.jit
def order_fault(position, entry, place, p, is_target, merged, padded, FIRST: tl.constexpr, IN_ORDER: tl.constexpr):
    """NaN if the positions at these places are not finite, or the next one is smaller, or a row follows a tied column.

    Otherwise 0.
    """
    next_place = place + 1
    has_next = next_place < merged
    next_is_row, _ = entry_of(entry, tl.minimum(next_place, merged - 1), padded, IN_ORDER)
    next_p = tl.load(position + next_place, mask=has_next, other=INFINITY)
    row_after_column = ~is_target & next_is_row if FIRST else is_target & next_is_row
    holds = (tl.abs(p) < INFINITY) & ((p < next_p) | ((p == next_p) & ~row_after_column) | ~has_next)
    return tl.where(tl.min(tl.min((holds | (place >= merged)).to(tl.int32), 1), 0) != 0, 0.0, float("nan"))


@program(numbers="merged")
def place_program(
    entry, place_of, merged, padded, n, length, IN_ORDER: tl.constexpr, FAR: tl.constexpr, TILE: tl.constexpr
):
    """Invert the merged order: place_of[i] is the place of row i, place_of[n + j] that of column j."""
    tile, batch = tl.program_id(0), tl.program_id(1).to(tl.int64)
    entry += batch * (padded // WORD * 2 if IN_ORDER else padded)
    place = places(tile, FAR, TILE)
    is_row, row, is_col, col = entries_at(entry, place, merged, padded, True, IN_ORDER)
    tl.store(place_of + batch * length + row, place, mask=is_row)
    tl.store(place_of + batch * length + n + col, place, mask=is_col)
