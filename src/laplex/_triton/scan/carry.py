"""Carries between tiles: what lies left and right of each, in float64."""

from __future__ import annotations

import triton
import triton.language as tl

from laplex._triton.points import decay_over, follow, rate_of


@triton.jit(do_not_specialize_on_alignment=["tau"])
def group_program(
    scratch, tau, grouped, m, tiles, groups,
    EXACT: tl.constexpr, ODD: tl.constexpr, FIRST: tl.constexpr, GROUP: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """GROUP tiles as if they were one: where there are too many to be carried at once."""
    if EARLY:
        follow()
    group, row = tl.program_id(0) % groups, tl.program_id(0) // groups
    batch = tl.program_id(1).to(tl.int64)
    rate = rate_of(tl.load(tau + batch))
    tile = group * GROUP + tl.arange(0, GROUP)
    have = tile < tiles
    batches = tl.num_programs(1).to(tl.int64)
    ends, totals = scratch + batch * 2 * tiles, scratch + batches * 2 * tiles + (batch * m + row) * tiles
    first, last = tl.load(ends + tile, mask=have, other=0.0), tl.load(ends + tiles + tile, mask=have, other=0.0)
    at_first = tl.load(ends + group * GROUP)
    at_last = tl.load(ends + tiles + tl.minimum(group * GROUP + GROUP, tiles) - 1)
    fault = tl.sum(first * 0.0, 0)
    tl.store(grouped + batch * 2 * groups + group, at_first + fault)
    tl.store(grouped + batch * 2 * groups + groups + group, at_last + fault)
    channel = batches * m * tiles
    right = tl.load(totals + tile, mask=have, other=0.0) * decay_over(
        tl.where(have, first - at_first, 0.0), rate, EXACT
    )
    left = tl.load(totals + channel + tile, mask=have, other=0.0)
    left *= decay_over(tl.where(have, at_last - last, 0.0), rate, EXACT)
    group_totals = grouped + batches * 2 * groups + (batch * m + row) * groups + group
    group_channel = batches * m * groups
    tl.store(group_totals, tl.sum(right, 0))
    tl.store(group_totals + group_channel, tl.sum(left, 0))
    if ODD:
        tied = have & ((first == at_first) if FIRST else (last == at_last))
        v = tl.load(totals + 2 * channel + tile, mask=tied, other=0.0)
        tl.store(group_totals + 2 * group_channel, tl.sum(v, 0))


# Sums that span no more powers of two are carried at one position: float64 exponents must not round, nor overflow.
NEAR = tl.constexpr(800.0)
NEAR_EXACT = tl.constexpr(16.0)


@triton.jit
def carried_along(at, v, have, rate, EXACT: tl.constexpr):
    """Sums v at positions ``at``, up to each on the way, where it is."""
    start = tl.sum(tl.where(tl.arange(0, at.shape[0]) == 0, at, 0.0), 0)
    exponent = tl.where(have, tl.abs(at - start) * rate, 0.0)
    if tl.max(exponent, 0) <= (NEAR_EXACT if EXACT else NEAR):
        low = decay_over(exponent, 1.0, EXACT)
        sums = tl.cumsum(v / low, 0) * low
    else:
        rates = tl.zeros_like(at) + rate
        if EXACT:
            _rates, _at, sums = tl.associative_scan((rates, at, v), 0, _add_decayed_exactly)
        else:
            _rates, _at, sums = tl.associative_scan((rates, at, v), 0, _add_decayed)
    return sums


@triton.jit
def _add_decayed(rate_1, p_1, v_1, rate_2, p_2, v_2):
    """(position, sum) of two neighbours, at the second's position."""
    return rate_2, p_2, v_1 * decay_over(tl.abs(p_1 - p_2), rate_2, False) + v_2


@triton.jit
def _add_decayed_exactly(rate_1, p_1, v_1, rate_2, p_2, v_2):
    return rate_2, p_2, v_1 * decay_over(tl.abs(p_1 - p_2), rate_2, True) + v_2


@triton.jit
def add_if_tied(p_1, t_1, p_2, t_2):
    return p_2, tl.where(p_1 == p_2, t_1, 0.0) + t_2


@triton.jit(do_not_specialize_on_alignment=["tau"])
def carry_program(
    scratch, tau, others, m, tiles, groups, count,
    EXACT: tl.constexpr, ODD: tl.constexpr, FIRST: tl.constexpr, GROUP: tl.constexpr,
    OTHERS: tl.constexpr, BY_TILES: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """What lies right (even programs) or left (odd ones) of every tile of a group: at the tile's own first or last
    position, at the nearer end of its neighbour, and the ties there.

    A group's tiles are counted in the direction of the sum: each carries to the next on the way. What other groups
    bring along is the sum over ``others``, ``count`` of them: the groups, or BY_TILES, if there are so few that it is
    sooner done than another launch.
    """
    if EARLY:
        follow()
    group, row = tl.program_id(0) // 2 % groups, tl.program_id(0) // 2 // groups
    side = tl.program_id(0) % 2  # 0: from the right, 1: from the left
    batch = tl.program_id(1).to(tl.int64)
    batches = tl.num_programs(1).to(tl.int64)
    rate = rate_of(tl.load(tau + batch))
    low, high = group * GROUP, tl.minimum(group * GROUP + GROUP, tiles)
    way = tl.arange(0, GROUP)
    have = way < high - low
    tile = tl.where(side == 0, high - 1 - way, low + way)
    ends = scratch + batch * 2 * tiles + side * tiles
    totals = scratch + batches * 2 * tiles + (batch * m + row) * tiles
    channel = batches * m * tiles
    carries = totals + (3 if ODD else 2) * channel
    at = tl.load(ends + tile, mask=have, other=0.0)
    v = tl.load(totals + side * channel + tile, mask=have, other=0.0)
    has_ties = have & ODD & ((side == 0) if FIRST else (side == 1))
    t = tl.load(totals + 2 * channel + tile, mask=has_ties, other=0.0)
    sums = carried_along(at, v, have, rate, EXACT)
    if ODD:
        _at, tied = tl.associative_scan((at, t), 0, add_if_tied)
    fault = tl.sum(at * 0.0, 0)
    start = tl.where(side == 0, tiles - 1, 0)
    opens = tl.where(side == 0, high == tiles, low == 0)  # no group lies before it on the way
    if OTHERS > 1:
        other = tl.arange(0, OTHERS)
        first, behind = (low, high) if BY_TILES else (group, group + 1)  # this group among the others
        there = other < count
        before = there & tl.where(side == 0, other >= behind, other < first)
        other_ends = others + batch * 2 * count + side * count
        other_totals = others + batches * 2 * count + (batch * m + row) * count
        other_at = tl.load(other_ends + other, mask=there, other=0.0)
        edge = tl.load(other_ends + tl.where(side == 0, behind, first - 1), mask=~opens, other=0.0)
        other_v = tl.load(other_totals + side * batches * m * count + other, mask=before, other=0.0)
        fault = tl.sum(other_at * 0.0, 0)
        gap = tl.where(before, tl.abs(edge - other_at), 0.0)
        brought = tl.sum(other_v * decay_over(gap, rate, EXACT), 0)
        sums += tl.where(opens, 0.0, brought * decay_over(tl.abs(at - edge), rate, EXACT))
        if ODD:
            reach = before & (other_at == edge)
            more = tl.sum(tl.load(other_totals + 2 * batches * m * count + other, mask=reach, other=0.0), 0)
            tied += tl.where(has_ties & ~opens & (at == edge), more, 0.0)
    sums += fault
    onward = tl.where(side == 0, tile - 1, tile + 1)
    inward = have & (onward >= 0) & (onward < tiles)
    gap = tl.abs(tl.load(ends + onward, mask=inward, other=0.0) - at)
    tl.store(carries + side * channel + onward, sums * decay_over(gap, rate, EXACT), mask=inward)
    tl.store(carries + (2 + side) * channel + onward, sums, mask=inward)
    tl.store(carries + side * channel + start, fault, mask=opens)
    tl.store(carries + (2 + side) * channel + start, fault, mask=opens)
    if ODD:
        tl.store(carries + 4 * channel + onward, tied, mask=inward & has_ties)
        tl.store(carries + 4 * channel + start, 0.0, mask=opens & ((side == 0) if FIRST else (side == 1)))


@triton.jit
def weights_of_tiles(
    ends, tile, tiles, first, last, p_left, p_right, rate, EXACT: tl.constexpr, CARRY: tl.constexpr
):  # fmt: skip
    """How much of the sums left and right of the other tiles arrives beside this one, and of that at its own ends;
    which are tied there; and a fault.

    For few tiles (CARRY of them, a power of two) that is sooner done by every tile for itself than by another launch.
    """
    other = tl.arange(0, CARRY)
    firsts = tl.load(ends - tile + other, mask=other < tiles, other=0.0)
    lasts = tl.load(ends - tile + tiles + other, mask=other < tiles, other=0.0)
    from_left, from_right = other < tile, (other > tile) & (other < tiles)
    of_left = decay_over(tl.where(from_left, p_left - lasts, 0.0), rate, EXACT)
    of_right = decay_over(tl.where(from_right, firsts - p_right, 0.0), rate, EXACT)
    to_last = decay_over(tl.where(tile > 0, last - p_left, 0.0), rate, EXACT)
    to_first = decay_over(tl.where(tile + 1 < tiles, p_right - first, 0.0), rate, EXACT)
    fault = tl.sum(firsts * 0.0, 0)
    tied_left, tied_right = from_left & (lasts == p_left), from_right & (firsts == p_right)
    return of_left, of_right, to_last, to_first, tied_left, tied_right, fault


@triton.jit
def carried_to(totals, channel, tile, tiles, outside, ODD: tl.constexpr, FIRST: tl.constexpr, CARRY: tl.constexpr):
    """What lies left and right of a tile: at its last and its first position, at the nearer ends of its neighbours; and
    the sum over ties there."""
    if CARRY == 1:  # done by carry_program
        carries = totals + (3 if ODD else 2) * channel + tile
        at_first, at_last = tl.load(carries), tl.load(carries + channel)
        right, left = tl.load(carries + 2 * channel), tl.load(carries + 3 * channel)
        tied = tl.load(carries + 4 * channel) if ODD else 0.0
        return at_last, at_first, left, right, tied
    else:
        of_left, of_right, to_last, to_first, tied_left, tied_right, fault = outside
        other = tl.arange(0, CARRY)
        from_right = (other > tile) & (other < tiles)
        right = fault + tl.sum(of_right * tl.load(totals + other, mask=from_right, other=0.0), 0)
        left = fault + tl.sum(of_left * tl.load(totals + channel + other, mask=other < tile, other=0.0), 0)
        if ODD:
            tied = tl.load(totals + 2 * channel + other, mask=tied_right if FIRST else tied_left, other=0.0)
            return left * to_last, right * to_first, left, right, tl.sum(tied, 0)
        else:
            return left * to_last, right * to_first, left, right, 0.0
