"""Softly sorted values, and their gradient. ``laplex._sorted`` has the formulas, ``tiles`` the sums."""

import triton
import triton.language as tl

from laplex._triton.points import LN_2, decay_over, exponent_over, rate_of
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
    ties_in_tile,
)


@triton.jit
def _cotangents(g, place, inside, n, wanted, DESCENDING: tl.constexpr):
    """g at ascending places; 0 for values that were not wanted."""
    index = (n - 1 - place) if DESCENDING else place
    return tl.load(g + index, mask=inside & (index < wanted), other=0.0).to(tl.float64)


@program(numbers="n", callers=("tau", "g"))
def reduce_sort_program(
    position, tau, g, factors, scratch, n, tiles, wanted,
    PULL: tl.constexpr, DESCENDING: tl.constexpr, EXACT: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Write a tile's totals: of ones; to PULL, of w = g / E and z = w D / E. Only the first ``wanted`` have a g."""
    tile, batch = tl.program_id(0) % tiles, (tl.program_id(0) // tiles).to(tl.int64)
    row, base = scratch + batch * ROOM * tiles, batch * n
    rate = rate_of(tl.load(tau + batch))
    place, inside, start, end = places_of(tile, n, TILE)
    p = tl.load(position + base + tl.minimum(place, n - 1)).to(tl.float64)
    first, last = tl.load(position + base + start).to(tl.float64), tl.load(position + base + end).to(tl.float64)
    store_ends(row, tile, tiles, first, last)
    to_last, to_first = decay_over(last - p, rate, EXACT), decay_over(p - first, rate, EXACT)
    if PULL:
        v = _cotangents(g + batch * wanted, place, inside, n, wanted, DESCENDING)
        v *= tl.load(factors + 3 * base + place, mask=inside, other=0.0).to(tl.float64)
        z = v * tl.load(factors + 3 * base + n + place, mask=inside, other=0.0).to(tl.float64)
        store_totals(row, tile, tiles, 2, z, to_last, to_first)
    else:
        v = inside.to(tl.float64)
        z = v
    store_totals(row, tile, tiles, 0, v, to_last, to_first)
    u_last, u_first = exponent_over(last - p, rate), exponent_over(p - first, rate)
    store_totals(row, tile, tiles, 1, v, u_last * to_last, u_first * to_first)
    store_totals(row, tile, tiles, 3, z, (p == last).to(tl.float64), (p == first).to(tl.float64))


@program(numbers="n", callers=("x", "tau"))
def values_program(
    x, position, order, tau, scratch, values, factors, n, tiles, wanted,
    DESCENDING: tl.constexpr, EXACT: tl.constexpr, ALONE: tl.constexpr, SORT: tl.constexpr, SPANS: tl.constexpr,
    TILE: tl.constexpr,
):  # fmt: skip
    """The softly sorted values of a tile, of which the first ``wanted`` are stored, and 1 / E, D / E and C for the
    gradient.

    SORT: the row is sorted here, and position and order are written.
    """
    tile, batch = tl.program_id(0) % tiles, (tl.program_id(0) // tiles).to(tl.int64)
    row, base, length = scratch + batch * ROOM * tiles, batch * n, tl.load(tau + batch)
    rate = rate_of(length)
    place, inside, start, end = places_of(tile, n, TILE)
    if SORT:
        number, index = sorted_row(x + base, n, TILE)
        tl.store(position + base + place, number, mask=inside)
        tl.store(order + base + place, index, mask=inside)
        first, last = at_ends(number.to(tl.float64), n)
        fault = fault_of(first, last, rate)
        _values(
            number, row, values + batch * wanted, factors + 3 * base, tile, tiles, first, last, fault, length, rate, n,
            wanted, DESCENDING, EXACT, ALONE, SPANS,
        )  # fmt: skip
    else:
        first, last = tl.load(position + base + start).to(tl.float64), tl.load(position + base + end).to(tl.float64)
        if has_turn(first, last, rate, SPANS, EXACT):
            number = tl.load(position + base + tl.minimum(place, n - 1))
            fault = fault_of(tl.load(position + base), tl.load(position + base + n - 1), rate)
            _values(
                number, row, values + batch * wanted, factors + 3 * base, tile, tiles, first, last, fault, length, rate,
                n, wanted, DESCENDING, EXACT, ALONE, SPANS,
            )  # fmt: skip


@triton.jit
def _values(
    number, row, values, factors, tile, tiles, first, last, fault, tau, rate, n, wanted,
    DESCENDING: tl.constexpr, EXACT: tl.constexpr, ALONE: tl.constexpr, SPANS: tl.constexpr,
):  # fmt: skip
    p = number.to(tl.float64)
    place, inside, _start, _end = places_of(tile, n, number.shape[0])
    ones = inside.to(tl.float64)
    left, left_p, right, right_p = sums_in_tile(p, first, last, ones, rate, SPANS, EXACT, True)
    tied_left, tied_right = ties_in_tile(p, ones)
    if not ALONE:
        p_left, p_right = neighbour_ends(row, tile, tiles, first, last)
        to_left, to_right = decay_over(p - p_left, rate, EXACT), decay_over(p_right - p, rate, EXACT)
        from_left, from_right = carried_sums(row, tile, tiles, 0)
        more_left, more_right = carried_sums(row, tile, tiles, 1)
        left, right = left + from_left * to_left, right + from_right * to_right
        left_p += (more_left + exponent_over(p - p_left, rate) * from_left) * to_left
        right_p += (more_right + exponent_over(p_right - p, rate) * from_right) * to_right
        before, after = carried_sums(row, tile, tiles, 3)
        tied_left += tl.where((tile > 0) & (p == p_left), before, 0.0)
        tied_right += tl.where((tile + 1 < tiles) & (p == p_right), after, 0.0)
    weight = 1.0 / (left + right - 1.0)
    shift = (right_p - left_p) * (LN_2 * weight)
    odd = (right - tied_right) - (left - tied_left)
    index = (n - 1 - place) if DESCENDING else place
    tl.store(values + index, fault + p + tau * shift, mask=inside & (index < wanted))
    tl.store(factors + place, weight, mask=inside)
    tl.store(factors + n + place, shift, mask=inside)
    c = ((left_p + right_p) * LN_2 - shift * odd) * weight
    tl.store(factors + 2 * n.to(tl.int64) + place, c, mask=inside)


@program(numbers="n", callers=("tau", "g"))
def pull_sort_program(
    position, order, tau, g, factors, scratch, x_bar, n, tiles, wanted,
    DESCENDING: tl.constexpr, EXACT: tl.constexpr, ALONE: tl.constexpr, SPANS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """The gradients of a tile's numbers."""
    tile, batch = tl.program_id(0) % tiles, (tl.program_id(0) // tiles).to(tl.int64)
    row, base = scratch + batch * ROOM * tiles, batch * n
    rate = rate_of(tl.load(tau + batch))
    place, inside, start, end = places_of(tile, n, TILE)
    first, last = tl.load(position + base + start).to(tl.float64), tl.load(position + base + end).to(tl.float64)
    if has_turn(first, last, rate, SPANS, EXACT):
        p = tl.load(position + base + tl.minimum(place, n - 1)).to(tl.float64)
        own = _cotangents(g + batch * wanted, place, inside, n, wanted, DESCENDING)
        w = own * tl.load(factors + 3 * base + place, mask=inside, other=0.0).to(tl.float64)
        z = w * tl.load(factors + 3 * base + n + place, mask=inside, other=0.0).to(tl.float64)
        c = tl.load(factors + 3 * base + 2 * n.to(tl.int64) + place, mask=inside, other=0.0).to(tl.float64)
        result = own * c - w
        left, left_p, right, right_p = sums_in_tile(p, first, last, w, rate, SPANS, EXACT, True)
        result += left + right - (left_p + right_p) * LN_2
        left, _p, right, _q = sums_in_tile(p, first, last, z, rate, SPANS, EXACT, False)
        tied_left, tied_right = ties_in_tile(p, z)
        result += (left - tied_left) - (right - tied_right)
        if not ALONE:
            p_left, p_right = neighbour_ends(row, tile, tiles, first, last)
            before, after = carried_sums(row, tile, tiles, 3)
            result -= tl.where((tile > 0) & (p == p_left), before, 0.0)
            result += tl.where((tile + 1 < tiles) & (p == p_right), after, 0.0)
            result += _carried(row, tile, tiles, p - p_left, p_right - p, rate, EXACT)
        fault = fault_of(tl.load(position + base), tl.load(position + base + n - 1), rate)
        index = tl.load(order + base + place, mask=inside, other=0)
        tl.store(x_bar + base + index, fault + result, mask=inside)


@triton.jit
def _carried(row, tile, tiles, left_gap, right_gap, rate, EXACT: tl.constexpr):
    """What other tiles add to the gradients, ties apart."""
    w_left, w_right = carried_sums(row, tile, tiles, 0)
    u_left, u_right = carried_sums(row, tile, tiles, 1)
    z_left, z_right = carried_sums(row, tile, tiles, 2)
    left = w_left + z_left - (u_left + exponent_over(left_gap, rate) * w_left) * LN_2
    right = w_right - z_right - (u_right + exponent_over(right_gap, rate) * w_right) * LN_2
    return left * decay_over(left_gap, rate, EXACT) + right * decay_over(right_gap, rate, EXACT)
