"""Triton programs for the sums U, V and W over the columns, of which a Gram matrix is made; see ``laplex._gram``.

The targets are the row anchors, the sources the column anchors. Three launches over tiles of the merged order make the
sums. No intermediate tensor is as long as the columns: with phases the weights of the three channels, w, w cos 2 psi
and w sin 2 psi, are computed in registers.

    gram_reduce_program    reduction of every tile: its U and V sums at its two ends, and its mass (sum of w)
    gram_carry_program     scan over the tiles: what lies left and right of every tile, and the mass before it
    gram_target_program    every target finds its place by search and adds its own part of the tiles there

M has n x n entries, so n is small: every target reads two whole tiles by itself, and no scan within tiles is needed.
Every decay is the exponential of one gap, so targets at the same position have the same bits.

W is exact. In W_i - W_j the mass common to both cancels, and its rounding errors would remain; with integers there are
none. The high part of a weight is its number of units of 2^-s, rounded down. The low part is the number of units of
2^-(s + t) in what remains, rounded down. s and t are so small that any sum of k such integers stays below 2^51, where
float64 adds integers exactly, in any order and in any tiling. Before it is rounded down a weight is only multiplied, so
a compiler that fuses multiplications with additions changes nothing.

A fault is a NaN among the tiles' end positions. It is carried to all tiles: all sums of the batch become NaN.
"""

import triton
import triton.language as tl

from laplex._triton.order.programs_refresh import order_fault
from laplex._triton.points import (
    WORD,
    decay_over,
    entries_at,
    entry_of,
    fault_at_ends,
    places,
    rate_of,
)
from laplex._triton.program import program
from laplex._triton.running import carried_along
from laplex._triton.scan.programs import total

# Sums of a tile, weight vector and channel: decayed to its first position, decayed to its last position, and the high
# and the low part of the mass. ``scratch`` holds, in float64 and with tiles as the innermost dimension,
#     ends (batches, 2), totals (batches, m, channels, SUMS), carries (batches, m, channels, SUMS)
SUMS = tl.constexpr(4)


@triton.jit
def scales(largest, bits):
    """The scales 2^s and 2^t of the two parts of a weight; and 0, or NaN if the largest |weight| is not finite.

    |w| < 2^(e + 1) for e the exponent of the largest, and there are fewer than 2^bits weights. With s = 50 - bits - e
    and t = 51 - bits a part is less than 2^(51 - bits), and a sum of parts less than 2^51.
    """
    bits_int64 = tl.zeros([], tl.int64) + bits
    exponent = ((largest.to(tl.int64, bitcast=True) >> 52) & 0x7FF) - 1023
    s = 50 - bits_int64 - tl.maximum(exponent, -960)  # 2^s must be finite
    coarse = ((1023 + s) << 52).to(tl.float64, bitcast=True)
    fine = ((1023 + 51 - bits_int64) << 52).to(tl.float64, bitcast=True)
    return coarse, fine, largest * 0.0


@triton.jit
def integer_parts(w, coarse, fine):
    """Two integers: w in units of 1 / coarse, rounded down, and the rest in units of 1 / (coarse * fine)."""
    high = tl.floor(w * coarse)
    return high, tl.floor((w * coarse - high) * fine)


@triton.jit
def double_angle(psi, mask):
    """cos 2 psi and sin 2 psi of the phases at the addresses psi."""
    angle = tl.load(psi, mask=mask, other=0.0).to(tl.float64) * 2.0
    return tl.cos(angle), tl.sin(angle)


@program(numbers="m", callers=("weight", "psi", "tau", "largest"))
def gram_reduce_program(
    weight, psi, tau, largest, entry, position, scratch,
    m, k, merged, padded, tiles, bits, w_batch, w_row, w_col,
    EXACT: tl.constexpr, PHASED: tl.constexpr, FIRST: tl.constexpr, IN_ORDER: tl.constexpr, CHECKED: tl.constexpr,
    FAR: tl.constexpr, TILE: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """One tile's end positions, NaN at a fault, and its sums for ROWS weight vectors and all channels.

    CHECKED: the positions may not be in the plan's order, which is a fault.
    """
    CHANNELS: tl.constexpr = 3 if PHASED else 1
    tile, weight_block = tl.program_id(0) % tiles, tl.program_id(0) // tiles
    batch = tl.program_id(1).to(tl.int64)
    batches = tl.num_programs(1).to(tl.int64)
    entry += batch * (padded // WORD * 2 if IN_ORDER else padded)
    position += batch * padded
    place = places(tile, FAR, TILE)
    start = tile.to(place.dtype) * TILE
    p = tl.load(position + place, mask=place < padded, other=0.0)
    # Unused results have names of their own: the compiler gives a name that a loop assigns one type.
    is_target, _target, is_source, source = entries_at(entry, place, merged, padded, FIRST, IN_ORDER)
    first = tl.load(position + start).to(tl.float64)
    last = tl.load(position + tl.minimum(start + TILE, merged) - 1).to(tl.float64)
    rate = rate_of(tl.load(tau + batch) * 0.5)
    fault = fault_at_ends(position, merged, rate)
    if CHECKED:
        fault += order_fault(position, entry, place, p, is_target, merged, padded, FIRST, IN_ORDER)
    ends = scratch + batch * 2 * tiles
    tl.store(ends + tile, first + fault)
    tl.store(ends + tiles + tile, last + fault)
    positions = tl.where(place < merged, p.to(tl.float64), last)
    to_first, to_last = decay_over(positions - first, rate, EXACT), decay_over(last - positions, rate, EXACT)
    if PHASED:
        cos, sin = double_angle(psi + batch * k + source, is_source)
    for number in range(weight_block * ROWS, tl.minimum(weight_block * ROWS + ROWS, m)):
        row = tl.zeros([], tl.int64) + number
        index = batch * m + row
        weights = weight + batch * w_batch + row * w_row
        w = tl.load(weights + source * w_col, mask=is_source, other=0.0).to(tl.float64)
        coarse, fine, _fault = scales(tl.load(largest + index).to(tl.float64), bits)
        totals = scratch + batches * 2 * tiles + index * CHANNELS * SUMS * tiles + tile
        _store_totals(totals, tiles, w, to_first, to_last, coarse, fine)
        if PHASED:
            _store_totals(totals + SUMS * tiles, tiles, w * cos, to_first, to_last, coarse, fine)
            _store_totals(totals + 2 * SUMS * tiles, tiles, w * sin, to_first, to_last, coarse, fine)


@triton.jit
def _store_totals(totals, tiles, w, to_first, to_last, coarse, fine):
    """The four sums of a tile for one channel's weights w."""
    high, low = integer_parts(w, coarse, fine)
    tl.store(totals, total(w * to_first))
    tl.store(totals + tiles, total(w * to_last))
    tl.store(totals + 2 * tiles, total(high))
    tl.store(totals + 3 * tiles, total(low))


@program(numbers="rows", callers=("tau",))
def gram_carry_program(scratch, tau, rows, tiles, EXACT: tl.constexpr, GROUP: tl.constexpr):
    """An exclusive scan over all tiles, GROUP at a time, of one of the four sums of one weight vector and channel.

    Sum 0 runs from the right: the carry of a tile is what lies right of it, at the first position of the next tile.
    Sum 1 runs from the left: what lies left of the tile, at the last position of the tile before. Both add the faults
    met on the way. Sums 2 and 3 are the mass before the tile, a prefix sum of integers.
    """
    kind, row = tl.program_id(0) % SUMS, tl.program_id(0) // SUMS
    batch = tl.program_id(1).to(tl.int64)
    batches = tl.num_programs(1).to(tl.int64)
    ends = scratch + batch * 2 * tiles
    totals = scratch + batches * 2 * tiles + ((batch * rows + row) * SUMS + kind) * tiles
    carries = totals + batches * rows * SUMS * tiles
    rate = rate_of(tl.load(tau + batch) * 0.5)
    lane = tl.arange(0, GROUP)
    carried, carried_at, fault = tl.zeros([], tl.float64), tl.zeros([], tl.float64), tl.zeros([], tl.float64)
    if kind < 2:
        step = tl.where(kind == 0, -1, 1)
        start = tl.where(kind == 0, tiles - 1, 0)
        for begin in range(0, tiles, GROUP):
            inside = begin + lane < tiles
            tile = start + step * (begin + lane)
            positions = tl.load(ends + kind * tiles + tile, mask=inside, other=0.0)
            v = tl.load(totals + tile, mask=inside, other=0.0)
            fault += tl.sum(positions * 0.0, 0)
            sums = carried_along(positions, v, inside, rate, EXACT) + fault
            sums += carried * decay_over(tl.where(inside, tl.abs(positions - carried_at), 0.0), rate, EXACT)
            has_next = inside & (tile + step >= 0) & (tile + step < tiles)
            tl.store(carries + tile + step, sums, mask=has_next)
            carried = tl.sum(tl.where(lane == GROUP - 1, sums, 0.0), 0)
            carried_at = tl.sum(tl.where(lane == GROUP - 1, positions, 0.0), 0)
        tl.store(carries + start, 0.0)
    else:
        for begin in range(0, tiles, GROUP):
            inside = begin + lane < tiles
            v = tl.load(totals + begin + lane, mask=inside, other=0.0)
            tl.store(carries + begin + lane, carried + (tl.cumsum(v, 0) - v), mask=inside)  # exact: integers
            carried += tl.sum(v, 0)


@triton.jit
def count_before(position, t, merged, steps, OR_TIED: tl.constexpr, FAN: tl.constexpr):
    """How many of the sorted positions are less than t, or OR_TIED at most t.

    A bisection with FAN parts instead of two: a step compares t with the last position of each part of the remaining
    range, skips the parts that lie before t, and continues in the next part.
    """
    lane = tl.arange(0, FAN).to(tl.int64)
    low, size = tl.zeros([], tl.int64), tl.zeros([], tl.int64) + merged
    for _ in range(steps):
        part = (size + FAN - 1) // FAN
        end = (lane + 1) * part - 1
        inside = (end < size) & (size > 0)
        p = tl.load(position + low + end, mask=inside, other=0.0)
        skipped = tl.sum((inside & ((p <= t) if OR_TIED else (p < t))).to(tl.int64), 0) * part
        low, size = low + skipped, tl.maximum(tl.minimum(part - 1, size - skipped), 0)
    return low


@triton.jit
def _load_tile(
    psi, entry, position, tile, t, rate, merged, padded,
    EXACT: tl.constexpr, PHASED: tl.constexpr, FIRST: tl.constexpr, IN_ORDER: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """The points of a tile: places, which are sources, their index there, decays to t, cos 2 psi and sin 2 psi."""
    place = tile * TILE + tl.arange(0, TILE)
    is_row, index = entry_of(entry, tl.minimum(place, merged - 1), padded, IN_ORDER)
    is_source = (place < merged) & (~is_row if FIRST else is_row)
    p = tl.load(position + tl.minimum(place, merged - 1)).to(tl.float64)
    decay = decay_over(tl.abs(t - p), rate, EXACT)
    index = index.to(tl.int64)
    if PHASED:
        cos, sin = double_angle(psi + index, is_source)
    else:
        cos, sin = decay, decay  # not used
    return place, is_source, index, decay, cos, sin


@triton.jit
def _store_sums(out, n, carries, tiles, left, right, lefts, rights, from_left, from_right, below, upto, units):
    """Store U, V and the two parts of W for one target and channel.

    Sources at places before ``below`` lie left of the target, those from ``upto`` on lie right of it, and those between
    tie with it. ``left`` and ``right`` are the tiles with the places ``below`` and ``upto``; ``lefts`` and ``rights``
    are their weights, places and decays to the target. ``from_left`` and ``from_right`` are the decays of what the
    carries bring from beyond these tiles.
    """
    left_w, left_place, left_decay = lefts
    right_w, right_place, right_decay = rights
    coarse, fine, fault = units
    left_high, left_low = integer_parts(tl.where(left_place < below, left_w, 0.0), coarse, fine)
    right_high, right_low = integer_parts(tl.where(right_place < upto, right_w, 0.0), coarse, fine)
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
    # W counts ties half: it is the mean of the masses before and after them. Scales are powers of two: no rounding.
    tl.store(out + 2 * n, (below_high + upto_high) * 0.5 / coarse + fault)
    tl.store(out + 3 * n, (below_low + upto_low) * 0.5 / fine / coarse + fault)


@program(numbers="m", callers=("weight", "phi", "psi", "target", "tau", "largest"))
def gram_target_program(
    weight, phi, psi, target, tau, largest, entry, position, scratch, sums, direction,
    m, n, k, merged, padded, tiles, steps, bits, w_batch, w_row, w_col,
    EXACT: tl.constexpr, PHASED: tl.constexpr, FIRST: tl.constexpr, IN_ORDER: tl.constexpr,
    TILE: tl.constexpr, FAN: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """The sums of ROWS weight vectors at one target, and the cosine and sine of its phase."""
    CHANNELS: tl.constexpr = 3 if PHASED else 1
    i, weight_block = (tl.program_id(0) % n).to(tl.int64), tl.program_id(0) // n
    batch = tl.program_id(1).to(tl.int64)
    batches = tl.num_programs(1).to(tl.int64)
    entry += batch * (padded // WORD * 2 if IN_ORDER else padded)
    position += batch * padded
    psi += batch * k
    given = tl.load(target + batch * n + i)
    below = count_before(position, given, merged, steps, False, FAN)
    upto = count_before(position, given, merged, steps, True, FAN)
    left, right = tl.minimum(below, merged - 1) // TILE, tl.minimum(upto, merged - 1) // TILE
    t, rate = given.to(tl.float64), rate_of(tl.load(tau + batch) * 0.5)
    left_place, left_is, left_source, left_decay, left_cos, left_sin = _load_tile(
        psi, entry, position, left, t, rate, merged, padded, EXACT, PHASED, FIRST, IN_ORDER, TILE
    )
    right_place, right_is, right_source, right_decay, right_cos, right_sin = _load_tile(
        psi, entry, position, right, t, rate, merged, padded, EXACT, PHASED, FIRST, IN_ORDER, TILE
    )
    ends = scratch + batch * 2 * tiles
    fault = (tl.load(ends + left) + tl.load(ends + right)) * 0.0
    before = tl.load(ends + tiles + left - 1, mask=left > 0, other=0.0)  # last position of the tile before
    after = tl.load(ends + right + 1, mask=right + 1 < tiles, other=0.0)  # first position of the tile after
    from_left = decay_over(tl.where(left > 0, tl.abs(t - before), 0.0), rate, EXACT)
    from_right = decay_over(tl.where(right + 1 < tiles, tl.abs(after - t), 0.0), rate, EXACT)
    carries = scratch + batches * tiles * (2 + m * CHANNELS * SUMS)
    for number in range(weight_block * ROWS, tl.minimum(weight_block * ROWS + ROWS, m)):
        row = tl.zeros([], tl.int64) + number
        index = batch * m + row
        weights = weight + batch * w_batch + row * w_row
        left_w = tl.load(weights + left_source * w_col, mask=left_is, other=0.0).to(tl.float64)
        right_w = tl.load(weights + right_source * w_col, mask=right_is, other=0.0).to(tl.float64)
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
        tl.store(direction + batch * 2 * n + i, tl.cos(angle), mask=weight_block == 0)
        tl.store(direction + batch * 2 * n + n + i, tl.sin(angle), mask=weight_block == 0)
