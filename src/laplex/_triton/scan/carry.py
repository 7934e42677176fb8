"""The second phase of the scan: from the sums of every tile to the sums of all that lies left and right of it.

A *carry* is such a sum, in float64. The scratch memory, which ``programs`` describes, has the positions of the tiles'
ends and each tile's own sums, its *totals*. The carries are one more scan, over tiles instead of points. ``schedule``
chooses by the number of tiles, with CARRIED_BY_TILES, CARRIED_AT_ONCE and GROUPS_BY_TILES of ``tuning``; the
sizes n + k below are those of tiles of 256 points:

    few tiles      up to 2^15   every program of the third phase sums over all tiles for itself (``carried_to``), if
                                there are few programs, too
    one group      up to 2^18   ``carry_program`` scans all tiles, in one program per row and side
    some groups    up to 2^21   ``carry_program`` scans each group of GROUP tiles, and adds the sum over all others
    many groups    beyond       the same, but ``group_program`` has reduced every group, and the sum is over groups

tests/interpreted/test_triton_tiles.py has a test for each, with tiny tiles.
"""

import triton
import triton.language as tl

from laplex._triton.points import decay_over, follow, rate_of
from laplex._triton.program import program
from laplex._triton.running import add_if_tied, carried_along


@program(numbers="m", callers=("tau",))
def group_program(
    scratch, tau, grouped, m, tiles, groups,
    EXACT: tl.constexpr, ODD: tl.constexpr, FIRST: tl.constexpr, GROUP: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """Reduce a group of GROUP tiles: its end positions and its totals, in ``grouped``, laid out as in ``scratch``."""
    if EARLY:
        follow()
    group, row = tl.program_id(0) % groups, tl.program_id(0) // groups
    batch = tl.program_id(1).to(tl.int64)
    rate = rate_of(tl.load(tau + batch))
    tile = group * GROUP + tl.arange(0, GROUP)
    inside = tile < tiles
    batches = tl.num_programs(1).to(tl.int64)
    ends, totals = scratch + batch * 2 * tiles, scratch + batches * 2 * tiles + (batch * m + row) * tiles
    first, last = tl.load(ends + tile, mask=inside, other=0.0), tl.load(ends + tiles + tile, mask=inside, other=0.0)
    group_first = tl.load(ends + group * GROUP)
    group_last = tl.load(ends + tiles + tl.minimum(group * GROUP + GROUP, tiles) - 1)
    fault = tl.sum(first * 0.0, 0)
    tl.store(grouped + batch * 2 * groups + group, group_first + fault)
    tl.store(grouped + batch * 2 * groups + groups + group, group_last + fault)
    channel = batches * m * tiles
    right = tl.load(totals + tile, mask=inside, other=0.0) * decay_over(
        tl.where(inside, first - group_first, 0.0), rate, EXACT
    )
    left = tl.load(totals + channel + tile, mask=inside, other=0.0)
    left *= decay_over(tl.where(inside, group_last - last, 0.0), rate, EXACT)
    group_totals = grouped + batches * 2 * groups + (batch * m + row) * groups + group
    group_channel = batches * m * groups
    tl.store(group_totals, tl.sum(right, 0))
    tl.store(group_totals + group_channel, tl.sum(left, 0))
    if ODD:
        is_tied = inside & ((first == group_first) if FIRST else (last == group_last))
        v = tl.load(totals + 2 * channel + tile, mask=is_tied, other=0.0)
        tl.store(group_totals + 2 * group_channel, tl.sum(v, 0))


@program(numbers="m", callers=("tau",))
def carry_program(
    scratch, tau, others, m, tiles, groups, count,
    EXACT: tl.constexpr, ODD: tl.constexpr, FIRST: tl.constexpr, GROUP: tl.constexpr,
    OTHERS: tl.constexpr, BY_TILES: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """Write the carries of every tile of a group: from the right in even programs, from the left in odd ones.

    ``step`` counts the group's tiles in the direction of the scan, and each hands its sum on to the ``next_tile``. The
    sums of other groups come from ``others``, which holds the ends and totals of ``count`` groups, this one included
    (BY_TILES: of all tiles, which saves the launch of ``group_program``). OTHERS is the power of two from ``count`` on,
    1 if there is one group only.
    """
    if EARLY:
        follow()
    group, row = tl.program_id(0) // 2 % groups, tl.program_id(0) // 2 // groups
    side = tl.program_id(0) % 2  # 0: from the right, 1: from the left
    batch = tl.program_id(1).to(tl.int64)
    batches = tl.num_programs(1).to(tl.int64)
    rate = rate_of(tl.load(tau + batch))
    low, high = group * GROUP, tl.minimum(group * GROUP + GROUP, tiles)  # the group's tiles
    step = tl.arange(0, GROUP)
    inside = step < high - low
    tile = tl.where(side == 0, high - 1 - step, low + step)
    ends = scratch + batch * 2 * tiles + side * tiles
    totals = scratch + batches * 2 * tiles + (batch * m + row) * tiles
    channel = batches * m * tiles
    carries = totals + (3 if ODD else 2) * channel
    positions = tl.load(ends + tile, mask=inside, other=0.0)
    v = tl.load(totals + side * channel + tile, mask=inside, other=0.0)
    has_ties = inside & ODD & ((side == 0) if FIRST else (side == 1))
    t = tl.load(totals + 2 * channel + tile, mask=has_ties, other=0.0)
    sums = carried_along(positions, v, inside, rate, EXACT)
    if ODD:
        _positions, tied = tl.associative_scan((positions, t), 0, add_if_tied)
    fault = tl.sum(positions * 0.0, 0)
    first_tile = tl.where(side == 0, tiles - 1, 0)
    is_first_group = tl.where(side == 0, high == tiles, low == 0)  # in the direction of the scan
    if OTHERS > 1:
        other = tl.arange(0, OTHERS)
        own_begin, own_end = (low, high) if BY_TILES else (group, group + 1)  # this group among the others
        known = other < count
        is_before = known & tl.where(side == 0, other >= own_end, other < own_begin)
        other_ends = others + batch * 2 * count + side * count
        other_totals = others + batches * 2 * count + (batch * m + row) * count
        other_at = tl.load(other_ends + other, mask=known, other=0.0)
        # All other groups' sums are referred to the nearer end of the neighbour in the direction they come from.
        neighbour = tl.where(side == 0, own_end, own_begin - 1)
        neighbour_end = tl.load(other_ends + neighbour, mask=~is_first_group, other=0.0)
        other_v = tl.load(other_totals + side * batches * m * count + other, mask=is_before, other=0.0)
        fault = tl.sum(other_at * 0.0, 0)
        gap = tl.where(is_before, tl.abs(neighbour_end - other_at), 0.0)
        at_end = tl.sum(other_v * decay_over(gap, rate, EXACT), 0)
        sums += tl.where(is_first_group, 0.0, at_end * decay_over(tl.abs(positions - neighbour_end), rate, EXACT))
        if ODD:
            reaches = is_before & (other_at == neighbour_end)
            tied_at_end = tl.sum(tl.load(other_totals + 2 * batches * m * count + other, mask=reaches, other=0.0), 0)
            tied += tl.where(has_ties & ~is_first_group & (positions == neighbour_end), tied_at_end, 0.0)
    sums += fault
    next_tile = tl.where(side == 0, tile - 1, tile + 1)
    has_next = inside & (next_tile >= 0) & (next_tile < tiles)
    gap = tl.abs(tl.load(ends + next_tile, mask=has_next, other=0.0) - positions)
    tl.store(carries + side * channel + next_tile, sums * decay_over(gap, rate, EXACT), mask=has_next)
    tl.store(carries + (2 + side) * channel + next_tile, sums, mask=has_next)
    tl.store(carries + side * channel + first_tile, fault, mask=is_first_group)
    tl.store(carries + (2 + side) * channel + first_tile, fault, mask=is_first_group)
    if ODD:
        tl.store(carries + 4 * channel + next_tile, tied, mask=has_next & has_ties)
        tl.store(carries + 4 * channel + first_tile, 0.0, mask=is_first_group & ((side == 0) if FIRST else (side == 1)))


@triton.jit
def weights_of_tiles(
    ends, tile, tiles, first, last, p_left, p_right, rate, EXACT: tl.constexpr, CARRY: tl.constexpr
):  # fmt: skip
    """What ``carried_to`` needs for all rows if CARRY > 1, a power of two from the number of tiles on.

    The decays from every tile on the left to p_left, and from every tile on the right to p_right: the nearer ends of
    the neighbours. The decays from there to this tile's last and first position. Which tiles on the left are tied with
    p_left, and on the right with p_right. And the fault.
    """
    other = tl.arange(0, CARRY)
    firsts = tl.load(ends - tile + other, mask=other < tiles, other=0.0)
    lasts = tl.load(ends - tile + tiles + other, mask=other < tiles, other=0.0)
    is_left, is_right = other < tile, (other > tile) & (other < tiles)
    left_decay = decay_over(tl.where(is_left, p_left - lasts, 0.0), rate, EXACT)
    right_decay = decay_over(tl.where(is_right, firsts - p_right, 0.0), rate, EXACT)
    to_last = decay_over(tl.where(tile > 0, last - p_left, 0.0), rate, EXACT)
    to_first = decay_over(tl.where(tile + 1 < tiles, p_right - first, 0.0), rate, EXACT)
    fault = tl.sum(firsts * 0.0, 0)
    tied_left, tied_right = is_left & (lasts == p_left), is_right & (firsts == p_right)
    return left_decay, right_decay, to_last, to_first, tied_left, tied_right, fault


@triton.jit
def carried_to(totals, channel, tile, tiles, weights, ODD: tl.constexpr, FIRST: tl.constexpr, CARRY: tl.constexpr):
    """The carries of a tile and a row, as at_last, at_first, left, right, tied.

    ``left`` is the sum over all tiles on the left, referred to the last position of the left neighbour, and ``at_last``
    is the same sum referred to this tile's own last position. ``right`` and ``at_first`` mirror them. ``tied`` is the
    sum over the sources whose position equals that end of the neighbour: the right one if FIRST, else the left one.

    With CARRY = 1 ``carry_program`` has computed them. Otherwise they are sums over all tiles, with the ``weights`` of
    ``weights_of_tiles``: for few tiles that is faster than another launch.
    """
    if CARRY == 1:
        carries = totals + (3 if ODD else 2) * channel + tile
        at_first, at_last = tl.load(carries), tl.load(carries + channel)
        right, left = tl.load(carries + 2 * channel), tl.load(carries + 3 * channel)
        tied = tl.load(carries + 4 * channel) if ODD else 0.0
        return at_last, at_first, left, right, tied
    else:
        left_decay, right_decay, to_last, to_first, tied_left, tied_right, fault = weights
        other = tl.arange(0, CARRY)
        is_right = (other > tile) & (other < tiles)
        right = fault + tl.sum(right_decay * tl.load(totals + other, mask=is_right, other=0.0), 0)
        left = fault + tl.sum(left_decay * tl.load(totals + channel + other, mask=other < tile, other=0.0), 0)
        if ODD:
            tied = tl.load(totals + 2 * channel + other, mask=tied_right if FIRST else tied_left, other=0.0)
            return left * to_last, right * to_first, left, right, tl.sum(tied, 0)
        else:
            return left * to_last, right * to_first, left, right, 0.0
