# mypy: allow-untyped-defs, allow-incomplete-defs, no-check-untyped-defs
"""The sums of a Gram matrix over the columns, in Triton: weights and phases as given, their channels in registers.

``gram`` has the formulas. Three launches over the merged order, none of which makes anything as long as the columns:

    gram_reduce_program    every tile's sums at its two ends, at the rate 2 / tau, and its mass in two exact parts
    gram_carry_program     what lies left and right of every tile, and the mass before it
    gram_target_program    every target finds its place, and adds the part of the tile there that is its own

The targets are few beside M, n x n: so each reads a tile for itself, and there is no scan within tiles. Every decay is
that of one gap, and targets that tie have the same bits.

W is a sum of integers: a weight in units of 2^-s, rounded down, and the rest in units of 2^-(s + t), rounded down; s
and t leave so much room that every sum is exact in float64, in any order and by any batch. A channel's weight is a
product, and only multiplied before it is rounded: whether a compiler fuses products into sums makes no difference.
"""

from __future__ import annotations

import triton
import triton.language as tl

from laplex._triton.points import (
    WORD,
    decay_over,
    entries_at,
    entry_of,
    fault_at_ends,
    places,
    rate_of,
)
from laplex._triton.scan.carry import carried_along
from laplex._triton.scan.programs import broken, total

SUMS = tl.constexpr(
    4
)  # of a tile and channel: at its first position, at its last, the high and the low part of its mass


@triton.jit
def scales(largest, bits):
    """2^s, 2^t, and 0, or NaN if the largest weight is not finite: 2^bits weights have room in 2^51 units of either."""
    room = tl.zeros([], tl.int64) + bits
    exponent = ((largest.to(tl.int64, bitcast=True) >> 52) & 0x7FF) - 1023
    s = 50 - room - tl.maximum(exponent, -960)
    coarse = ((1023 + s) << 52).to(tl.float64, bitcast=True)
    fine = ((1023 + 51 - room) << 52).to(tl.float64, bitcast=True)
    return coarse, fine, largest * 0.0


@triton.jit
def _parts(w, coarse, fine):
    """Integers: the weight in units of 1 / coarse, and what is left in units of 1 / (coarse * fine)."""
    high = tl.floor(w * coarse)
    return high, tl.floor((w * coarse - high) * fine)


@triton.jit
def turn(psi, mask):
    """cos 2 psi, sin 2 psi."""
    angle = tl.load(psi, mask=mask, other=0.0).to(tl.float64) * 2.0
    return tl.cos(angle), tl.sin(angle)


@triton.jit(do_not_specialize_on_alignment=["weight", "psi", "tau", "largest"])
def gram_reduce_program(
    weight, psi, tau, largest, entry, position, scratch,
    m, k, merged, padded, tiles, bits, w_batch, w_row, w_col,
    EXACT: tl.constexpr, PHASED: tl.constexpr, FIRST: tl.constexpr, IN_ORDER: tl.constexpr, CHECKED: tl.constexpr,
    FAR: tl.constexpr, TILE: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """A tile's end positions, NaN at a fault, and its sums: of ROWS weights, all channels."""
    CHANNELS: tl.constexpr = 3 if PHASED else 1
    tile, row_block = tl.program_id(0) % tiles, tl.program_id(0) // tiles
    batch = tl.program_id(1).to(tl.int64)
    batches = tl.num_programs(1).to(tl.int64)
    entry += batch * (padded // WORD * 2 if IN_ORDER else padded)
    position += batch * padded
    place = places(tile, FAR, TILE)
    start = tile.to(place.dtype) * TILE
    p = tl.load(position + place, mask=place < padded, other=0.0)
    is_target, _row, is_source, at = entries_at(entry, place, merged, padded, FIRST, IN_ORDER)
    first = tl.load(position + start).to(tl.float64)
    last = tl.load(position + tl.minimum(start + TILE, merged) - 1).to(tl.float64)
    rate = rate_of(tl.load(tau + batch) * 0.5)
    fault = fault_at_ends(position, merged, rate)
    if CHECKED:
        fault += broken(position, entry, place, p, is_target, merged, padded, FIRST, IN_ORDER)
    ends = scratch + batch * 2 * tiles
    tl.store(ends + tile, first + fault)
    tl.store(ends + tiles + tile, last + fault)
    u = tl.where(place < merged, p.to(tl.float64), last)
    at_first, at_last = decay_over(u - first, rate, EXACT), decay_over(last - u, rate, EXACT)
    if PHASED:
        cos, sin = turn(psi + batch * k + at, is_source)
    for number in range(row_block * ROWS, tl.minimum(row_block * ROWS + ROWS, m)):
        row = tl.zeros([], tl.int64) + number
        index = batch * m + row
        w = tl.load(weight + batch * w_batch + row * w_row + at * w_col, mask=is_source, other=0.0).to(tl.float64)
        coarse, fine, _finite = scales(tl.load(largest + index).to(tl.float64), bits)
        totals = scratch + batches * 2 * tiles + index * CHANNELS * SUMS * tiles + tile
        _store_totals(totals, tiles, w, at_first, at_last, coarse, fine)
        if PHASED:
            _store_totals(totals + SUMS * tiles, tiles, w * cos, at_first, at_last, coarse, fine)
            _store_totals(totals + 2 * SUMS * tiles, tiles, w * sin, at_first, at_last, coarse, fine)


@triton.jit
def _store_totals(totals, tiles, w, at_first, at_last, coarse, fine):
    high, low = _parts(w, coarse, fine)
    tl.store(totals, total(w * at_first))
    tl.store(totals + tiles, total(w * at_last))
    tl.store(totals + 2 * tiles, total(high))
    tl.store(totals + 3 * tiles, total(low))


@triton.jit(do_not_specialize_on_alignment=["tau"])
def gram_carry_program(scratch, tau, rows, tiles, EXACT: tl.constexpr, GROUP: tl.constexpr):
    """One of the four sums of one channel, carried over all tiles, GROUP at once.

    From the right at the first position of the next tile, from the left at the last one of the tile before; a fault on
    the way is carried along. Of the mass, what lies before a tile.
    """
    what, row = tl.program_id(0) % SUMS, tl.program_id(0) // SUMS
    batch = tl.program_id(1).to(tl.int64)
    batches = tl.num_programs(1).to(tl.int64)
    ends = scratch + batch * 2 * tiles
    totals = scratch + batches * 2 * tiles + ((batch * rows + row) * SUMS + what) * tiles
    carries = totals + batches * rows * SUMS * tiles
    rate = rate_of(tl.load(tau + batch) * 0.5)
    lane = tl.arange(0, GROUP)
    carried, carried_at, fault = tl.zeros([], tl.float64), tl.zeros([], tl.float64), tl.zeros([], tl.float64)
    if what < 2:
        onward = tl.where(what == 0, -1, 1)
        start = tl.where(what == 0, tiles - 1, 0)
        for begin in range(0, tiles, GROUP):
            have = begin + lane < tiles
            tile = start + onward * (begin + lane)
            at = tl.load(ends + what * tiles + tile, mask=have, other=0.0)
            v = tl.load(totals + tile, mask=have, other=0.0)
            fault += tl.sum(at * 0.0, 0)
            sums = carried_along(at, v, have, rate, EXACT) + fault
            sums += carried * decay_over(tl.where(have, tl.abs(at - carried_at), 0.0), rate, EXACT)
            inward = have & (tile + onward >= 0) & (tile + onward < tiles)
            tl.store(carries + tile + onward, sums, mask=inward)
            carried = tl.sum(tl.where(lane == GROUP - 1, sums, 0.0), 0)
            carried_at = tl.sum(tl.where(lane == GROUP - 1, at, 0.0), 0)
        tl.store(carries + start, 0.0)
    else:
        for begin in range(0, tiles, GROUP):
            have = begin + lane < tiles
            v = tl.load(totals + begin + lane, mask=have, other=0.0)
            tl.store(carries + begin + lane, carried + (tl.cumsum(v, 0) - v), mask=have)  # integers: exact
            carried += tl.sum(v, 0)


@triton.jit
def count(position, t, merged, steps, TIED: tl.constexpr, FAN: tl.constexpr):
    """How many positions are less than t, or TIED with it; a step looks at the ends of FAN parts of what is left."""
    lane = tl.arange(0, FAN).to(tl.int64)
    low, size = tl.zeros([], tl.int64), tl.zeros([], tl.int64) + merged
    for _ in range(steps):
        part = (size + FAN - 1) // FAN
        end = (lane + 1) * part - 1
        there = (end < size) & (size > 0)
        p = tl.load(position + low + end, mask=there, other=0.0)
        whole = tl.sum((there & ((p <= t) if TIED else (p < t))).to(tl.int64), 0) * part
        low, size = low + whole, tl.maximum(tl.minimum(part - 1, size - whole), 0)
    return low


@triton.jit
def _at_tile(
    psi, entry, position, tile, t, rate, merged, padded,
    EXACT: tl.constexpr, PHASED: tl.constexpr, FIRST: tl.constexpr, IN_ORDER: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Of a tile's points: the places, which are sources, where the caller has them, the decay to t, the turns."""
    place = tile * TILE + tl.arange(0, TILE)
    is_row, at = entry_of(entry, tl.minimum(place, merged - 1), padded, IN_ORDER)
    is_source = (place < merged) & (~is_row if FIRST else is_row)
    p = tl.load(position + tl.minimum(place, merged - 1)).to(tl.float64)
    decay = decay_over(tl.abs(t - p), rate, EXACT)
    at = at.to(tl.int64)
    if PHASED:
        cos, sin = turn(psi + at, is_source)
    else:
        cos, sin = decay, decay
    return place, is_source, at, decay, cos, sin


@triton.jit
def _store_sums(out, n, carries, tiles, left, right, lefts, rights, from_left, from_right, below, upto, units):
    """U, V and W of one target and channel, of the weights of the tiles where what ties with it begins and ends."""
    left_w, left_place, left_decay = lefts
    right_w, right_place, right_decay = rights
    coarse, fine, fault = units
    left_high, left_low = _parts(tl.where(left_place < below, left_w, 0.0), coarse, fine)
    right_high, right_low = _parts(tl.where(right_place < upto, right_w, 0.0), coarse, fine)
    below_high = tl.load(carries + 2 * tiles + left) + tl.sum(left_high, 0)
    below_low = tl.load(carries + 3 * tiles + left) + tl.sum(left_low, 0)
    upto_high = tl.load(carries + 2 * tiles + right) + tl.sum(right_high, 0)
    upto_low = tl.load(carries + 3 * tiles + right) + tl.sum(right_low, 0)
    half_ties = ((upto_high - below_high) + (upto_low - below_low) / fine) * 0.5 / coarse
    beyond_left, beyond_right = tl.load(carries + tiles + left), tl.load(carries + right)
    fault += (beyond_left + beyond_right) * 0.0
    u = tl.sum(tl.where(left_place < below, left_w * left_decay, 0.0), 0) + beyond_left * from_left
    v = tl.sum(tl.where(right_place >= upto, right_w * right_decay, 0.0), 0) + beyond_right * from_right
    tl.store(out, u + half_ties + fault)
    tl.store(out + n, v + half_ties + fault)
    tl.store(out + 2 * n, (below_high + upto_high) * 0.5 / coarse + fault)
    tl.store(out + 3 * n, (below_low + upto_low) * 0.5 / fine / coarse + fault)


@triton.jit(do_not_specialize_on_alignment=["weight", "phi", "psi", "target", "tau", "largest"])
def gram_target_program(
    weight, phi, psi, target, tau, largest, entry, position, scratch, sums, direction,
    m, n, k, merged, padded, tiles, steps, bits, w_batch, w_row, w_col,
    EXACT: tl.constexpr, PHASED: tl.constexpr, FIRST: tl.constexpr, IN_ORDER: tl.constexpr,
    TILE: tl.constexpr, FAN: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """The sums of ROWS weights at one target, and cos and sin of its phase."""
    CHANNELS: tl.constexpr = 3 if PHASED else 1
    i, row_block = (tl.program_id(0) % n).to(tl.int64), tl.program_id(0) // n
    batch = tl.program_id(1).to(tl.int64)
    batches = tl.num_programs(1).to(tl.int64)
    entry += batch * (padded // WORD * 2 if IN_ORDER else padded)
    position += batch * padded
    psi += batch * k
    given = tl.load(target + batch * n + i)
    below = count(position, given, merged, steps, False, FAN)
    upto = count(position, given, merged, steps, True, FAN)
    left, right = tl.minimum(below, merged - 1) // TILE, tl.minimum(upto, merged - 1) // TILE
    t, rate = given.to(tl.float64), rate_of(tl.load(tau + batch) * 0.5)
    left_place, left_is, left_at, left_decay, left_cos, left_sin = _at_tile(
        psi, entry, position, left, t, rate, merged, padded, EXACT, PHASED, FIRST, IN_ORDER, TILE
    )
    right_place, right_is, right_at, right_decay, right_cos, right_sin = _at_tile(
        psi, entry, position, right, t, rate, merged, padded, EXACT, PHASED, FIRST, IN_ORDER, TILE
    )
    ends = scratch + batch * 2 * tiles
    fault = (tl.load(ends + left) + tl.load(ends + right)) * 0.0
    beside_left = tl.load(ends + tiles + left - 1, mask=left > 0, other=0.0)
    beside_right = tl.load(ends + right + 1, mask=right + 1 < tiles, other=0.0)
    from_left = decay_over(tl.where(left > 0, tl.abs(t - beside_left), 0.0), rate, EXACT)
    from_right = decay_over(tl.where(right + 1 < tiles, tl.abs(beside_right - t), 0.0), rate, EXACT)
    carries = scratch + batches * tiles * (2 + m * CHANNELS * SUMS)
    for number in range(row_block * ROWS, tl.minimum(row_block * ROWS + ROWS, m)):
        row = tl.zeros([], tl.int64) + number
        index = batch * m + row
        weights = weight + batch * w_batch + row * w_row
        left_w = tl.load(weights + left_at * w_col, mask=left_is, other=0.0).to(tl.float64)
        right_w = tl.load(weights + right_at * w_col, mask=right_is, other=0.0).to(tl.float64)
        coarse, fine, not_finite = scales(tl.load(largest + index).to(tl.float64), bits)
        units = coarse, fine, fault + not_finite
        out, carried = sums + index * CHANNELS * 4 * n + i, carries + index * CHANNELS * SUMS * tiles
        for channel in tl.static_range(CHANNELS):
            lefts, rights = left_w, right_w
            if channel == 1:
                lefts, rights = left_w * left_cos, right_w * right_cos
            if channel == 2:
                lefts, rights = left_w * left_sin, right_w * right_sin
            _store_sums(
                out + channel * 4 * n, n, carried + channel * SUMS * tiles, tiles, left, right,
                (lefts, left_place, left_decay), (rights, right_place, right_decay), from_left, from_right,
                below, upto, units,
            )  # fmt: skip
    if PHASED:
        angle = tl.load(phi + batch * n + i).to(tl.float64)
        tl.store(direction + batch * 2 * n + i, tl.cos(angle), mask=row_block == 0)
        tl.store(direction + batch * 2 * n + n + i, tl.sin(angle), mask=row_block == 0)
