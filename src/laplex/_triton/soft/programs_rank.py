"""Soft ranks, and their gradient. ``laplex._sorted`` has the formulas, ``tiles`` the sums."""

import triton
import triton.language as tl

from laplex._triton.points import decay_over, rate_of
from laplex._triton.program import program
from laplex._triton.soft.tiles import (
    ROOM,
    at_ends,
    carried_sums,
    fault_of,
    has_turn,
    neighbour_ends,
    places_of,
    sorted_row,
    store_ends,
    store_totals,
    sums_in_tile,
)


@program(numbers="n", callers=("tau", "g"))
def reduce_ranks_program(
    position, order, tau, g, ordered_g, scratch, n, tiles, PULL: tl.constexpr, EXACT: tl.constexpr, TILE: tl.constexpr
):
    """Write a tile's totals: of ones and, to PULL, of g, which is gathered into the order."""
    tile, batch = tl.program_id(0) % tiles, (tl.program_id(0) // tiles).to(tl.int64)
    row, base = scratch + batch * ROOM * tiles, batch * n
    rate = rate_of(tl.load(tau + batch))
    place, inside, start, end = places_of(tile, n, TILE)
    p = tl.load(position + base + tl.minimum(place, n - 1)).to(tl.float64)
    first, last = tl.load(position + base + start).to(tl.float64), tl.load(position + base + end).to(tl.float64)
    store_ends(row, tile, tiles, first, last)
    to_last, to_first = decay_over(last - p, rate, EXACT), decay_over(p - first, rate, EXACT)
    store_totals(row, tile, tiles, 0, inside.to(tl.float64), to_last, to_first)
    if PULL:
        v = tl.load(g + base + tl.load(order + base + place, mask=inside, other=0), mask=inside, other=0.0)
        tl.store(ordered_g + base + place, v, mask=inside)
        store_totals(row, tile, tiles, 2, v.to(tl.float64), to_last, to_first)


@program(numbers="n", callers=("x", "tau"))
def ranks_program(
    x, position, order, tau, scratch, ranks, n, tiles,
    DESCENDING: tl.constexpr, EXACT: tl.constexpr, ALONE: tl.constexpr, SORT: tl.constexpr, SPANS: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    """The ranks of a tile's numbers. SORT: the row is sorted here, and position and order are written."""
    tile, batch = tl.program_id(0) % tiles, (tl.program_id(0) // tiles).to(tl.int64)
    row, base = scratch + batch * ROOM * tiles, batch * n
    rate = rate_of(tl.load(tau + batch))
    place, inside, start, end = places_of(tile, n, TILE)
    if SORT:
        number, index = sorted_row(x + base, n, TILE)
        tl.store(position + base + place, number, mask=inside)
        tl.store(order + base + place, index, mask=inside)
        first, last = at_ends(number.to(tl.float64), n)
        fault = fault_of(first, last, rate)
        _ranks(
            number, index, row, ranks + base, tile, tiles, first, last, fault, rate, n, DESCENDING, EXACT, ALONE, SPANS
        )
    else:
        first, last = tl.load(position + base + start).to(tl.float64), tl.load(position + base + end).to(tl.float64)
        if has_turn(first, last, rate, SPANS, EXACT):
            number = tl.load(position + base + tl.minimum(place, n - 1))
            index = tl.load(order + base + place, mask=inside, other=0)
            fault = fault_of(tl.load(position + base), tl.load(position + base + n - 1), rate)
            _ranks(
                number,
                index,
                row,
                ranks + base,
                tile,
                tiles,
                first,
                last,
                fault,
                rate,
                n,
                DESCENDING,
                EXACT,
                ALONE,
                SPANS,
            )


@triton.jit
def _ranks(
    number, index, row, ranks, tile, tiles, first, last, fault, rate, n,
    DESCENDING: tl.constexpr, EXACT: tl.constexpr, ALONE: tl.constexpr, SPANS: tl.constexpr,
):  # fmt: skip
    p = number.to(tl.float64)
    place, inside, _start, _end = places_of(tile, n, number.shape[0])
    left, _p, right, _q = sums_in_tile(p, first, last, inside.to(tl.float64), rate, SPANS, EXACT, False)
    if not ALONE:
        p_left, p_right = neighbour_ends(row, tile, tiles, first, last)
        from_left, from_right = carried_sums(row, tile, tiles, 0)
        left += from_left * decay_over(p - p_left, rate, EXACT)
        right += from_right * decay_over(p_right - p, rate, EXACT)
    rank = fault + (place + 1).to(tl.float64) + (right - left) * 0.5
    if DESCENDING:
        rank = n.to(tl.float64) + 1.0 - rank
    tl.store(ranks + index, rank, mask=inside)


@program(numbers="n", callers=("tau", "g"))
def pull_ranks_program(
    position, order, tau, g, scratch, x_bar, n, tiles,
    DESCENDING: tl.constexpr, EXACT: tl.constexpr, ALONE: tl.constexpr, SPANS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """The gradients of a tile's numbers. g is in order, unless ALONE."""
    tile, batch = tl.program_id(0) % tiles, (tl.program_id(0) // tiles).to(tl.int64)
    row, base = scratch + batch * ROOM * tiles, batch * n
    rate = rate_of(tl.load(tau + batch))
    place, inside, start, end = places_of(tile, n, TILE)
    first, last = tl.load(position + base + start).to(tl.float64), tl.load(position + base + end).to(tl.float64)
    if has_turn(first, last, rate, SPANS, EXACT):
        p = tl.load(position + base + tl.minimum(place, n - 1)).to(tl.float64)
        index = tl.load(order + base + place, mask=inside, other=0)
        fault = fault_of(tl.load(position + base), tl.load(position + base + n - 1), rate)
        v = tl.load(g + base + (index if ALONE else place), mask=inside, other=0.0).to(tl.float64)
        left, _p, right, _q = sums_in_tile(p, first, last, inside.to(tl.float64), rate, SPANS, EXACT, False)
        g_left, _p, g_right, _q = sums_in_tile(p, first, last, v, rate, SPANS, EXACT, False)
        if not ALONE:
            p_left, p_right = neighbour_ends(row, tile, tiles, first, last)
            to_left, to_right = decay_over(p - p_left, rate, EXACT), decay_over(p_right - p, rate, EXACT)
            from_left, from_right = carried_sums(row, tile, tiles, 0)
            left, right = left + from_left * to_left, right + from_right * to_right
            from_left, from_right = carried_sums(row, tile, tiles, 2)
            g_left, g_right = g_left + from_left * to_left, g_right + from_right * to_right
        scale = (-0.5 if DESCENDING else 0.5) / tl.load(tau + batch)
        tl.store(x_bar + base + index, fault + scale * (v * (left + right) - (g_left + g_right)), mask=inside)
