"""Building blocks of the programs over the merged order: its entries, powers of two, and the check for faults.

The *merged order* is the sorted order of all anchors of one batch entry: rows and columns of the matrix together. A
point of it has a *place* (its index in the merged order), a *position* (the anchor's value) and an *entry* (which row
or column it is). A *tile* is TILE consecutive places. The number of points is ``merged``; memory is ``padded`` to a
multiple of 32 points, and the padding repeats the last position.

A product reads x at the *sources* and writes sums at the *targets*. Either side can be the targets: the rows in K x,
the columns in the transposed product.

The *rate* is log2(e) / tau. The decay over a gap is 2^-(gap * rate), so exponents are counted in powers of two.

Compile-time flags that many programs share:

    FIRST       the targets are the rows. Rows come before columns where positions are equal.
    IN_ORDER    the caller's rows and columns were sorted already, so ``entry`` holds bits (see ``entries_at``)
    FAR         indices need 64 bits
    EXACT       powers and sums are float64: for float64 x, and for float32 x if the launch asks for it
    CHECKED     the positions may be out of order: the anchors moved after the order was found
    EARLY       the launch may start before the previous one ends (see ``follow``)

A *fault* is 0, or NaN if the anchors are not finite, if they are out of order, or if tau is not positive and finite.
It is added to sums: one fault turns the whole output of its batch entry into NaN.
"""

import triton
import triton.language as tl

from laplex import _checks

WORD = tl.constexpr(32)  # points of one word of bits, where the order is kept as bits
LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)
INFINITY = tl.constexpr(float("inf"))
SMALLEST_TAU = tl.constexpr(_checks.SMALLEST_TAU)

# NARROW and TINY are bounds on accuracy, in powers of two. They are not tuned for speed.
#
# A tile is narrow if it spans at most NARROW powers of two. Then all its sums are referred to one position: a source is
# multiplied by a weight in [2^-4, 1], and a sum by the inverse of such a weight. Some sums are the tile's total minus a
# prefix sum. A source may be contained in that total with up to 2^(2 * NARROW) times its share of the result, so the
# subtraction costs up to 8 bits of the accumulator. Over threads that is float64, with 29 bits more than float32. Only
# the few points of one thread are summed in float32, and they are close together in all but contrived tiles.
NARROW = tl.constexpr(4.0)
# In a tile that spans at most TINY powers of two, an exponent may be computed in float32. The difference, the rate and
# their product are each rounded once, by at most 2^-24 of an exponent <= 1/2. Then the relative error of the power is
# at most ln(2) * 3/2 * 2^-24: about one rounding of a float32 number.
TINY = tl.constexpr(0.5)
# Exponents are cut here. From 2^-1075 on a decay is 0 in float64, and what it is multiplied with must not be infinite.
BEYOND = tl.constexpr(2000.0)


@triton.jit
def follow():
    """Overlap this launch with its neighbours (programmatic dependent launch, on GPUs from Hopper on).

    The first instruction lets the next launch start now. The second waits until the previous launch has finished and
    its writes are visible. No program may access global memory before this call. The overlap hides the start of a
    launch, which takes about as long as a short program.
    """
    tl.inline_asm_elementwise("griddepcontrol.launch_dependents; // $0", "=r", [], tl.int32, is_pure=False, pack=1)
    tl.inline_asm_elementwise("griddepcontrol.wait; // $0", "=r", [], tl.int32, is_pure=False, pack=1)


@triton.jit
def places(tile, FAR: tl.constexpr, TILE: tl.constexpr, SERIAL: tl.constexpr = 4, MIRRORED: tl.constexpr = False):
    """The places of a tile, (SERIAL, TILE / SERIAL). Each thread has one column: SERIAL consecutive places.

    MIRRORED: in descending order, so that a scan from the last place to the first runs forwards. Triton's reverse scans
    take twice the work.
    """
    start = (tile.to(tl.int64) if FAR else tile) * TILE
    place = tl.arange(0, TILE // SERIAL)[None, :] * SERIAL + tl.arange(0, SERIAL)[:, None]
    return start + (TILE - 1 - place if MIRRORED else place)


@triton.jit
def flat(v):
    """(SERIAL, threads) as one axis, for gathers and scatters.

    Where addresses are not known to be consecutive, the compiler assigns neighbouring elements to neighbouring threads.
    On this axis that is how the points are distributed already, so no data moves between threads.
    """
    return tl.reshape(v, [v.numel])


@triton.jit
def load_points(x, offset, mask, CONTIGUOUS: tl.constexpr):
    """x at the offsets of a tile's points, 0 where not ``mask``.

    CONTIGUOUS: the offsets of a thread are consecutive, so it can load them as one vector. Otherwise this is a gather.
    """
    if CONTIGUOUS:
        return tl.load(x + offset, mask=mask, other=0)
    else:
        return tl.reshape(tl.load(x + flat(offset), mask=flat(mask), other=0), offset.shape)


@triton.jit
def entries_at(
    entry, place, merged, padded, FIRST: tl.constexpr, IN_ORDER: tl.constexpr, MIRRORED: tl.constexpr = False
):
    """For the places of a tile: is_target, target index, is_source, source index, as the caller numbers the anchors.

    ``entry`` has one int32 per point: a row's index i as i, a column's index j as -1 - j. If IN_ORDER, the indices
    follow from counting, and ``entry`` has one bit per point instead, 1 for a row: padded / 32 words of 32 bits, then
    for each word the number of rows before it.
    """
    if IN_ORDER:  # the places of a thread lie in one word
        lowest = tl.min(place, 0)[None, :]
        word = tl.load(entry + lowest // WORD, mask=lowest < padded, other=0)
        rows_before = tl.load(entry + padded // WORD + lowest // WORD, mask=lowest < padded, other=0)
        bit = (word >> (place % WORD).to(tl.int32)) & 1
        bits_below = word & ((tl.full([1, 1], 1, tl.int32) << (lowest % WORD).to(tl.int32)) - 1)
        bits_so_far = tl.cumsum(bit, 0)
        bits_within = tl.sum(bit, 0)[None, :] - bits_so_far if MIRRORED else bits_so_far - bit
        row = (rows_before + _popcount(bits_below)).to(place.dtype) + bits_within
        is_row, col = bit != 0, place - row
    else:
        row = load_points(entry, place, place < padded, not MIRRORED)
        is_row, col = row >= 0, -1 - row
        row, col = row.to(place.dtype), col.to(place.dtype)
    inside = place < merged
    if FIRST:
        return inside & is_row, row, inside & ~is_row, col
    else:
        return inside & ~is_row, col, inside & is_row, row


@triton.jit
def entry_of(entry, place, padded, IN_ORDER: tl.constexpr):
    """For places inside the order, in any layout: whether each is a row, and its index among the rows or columns."""
    if IN_ORDER:
        shift = (place % WORD).to(tl.int32)
        word = tl.load(entry + place // WORD)
        rows_before = tl.load(entry + padded // WORD + place // WORD)
        row = rows_before + _popcount(word & (((tl.zeros_like(shift) + 1) << shift) - 1))
        is_row = ((word >> shift) & 1) != 0
        return is_row, tl.where(is_row, row, place - row)
    else:
        row = tl.load(entry + place)
        return row >= 0, tl.where(row >= 0, row, -1 - row)


@triton.jit
def _popcount(v):
    """The number of bits set in an int32."""
    v = v - ((v >> 1) & 0x55555555)
    v = (v & 0x33333333) + ((v >> 2) & 0x33333333)
    v = (v + (v >> 4)) & 0x0F0F0F0F
    v = v + (v >> 8)
    return (v + (v >> 16)) & 0x3F


@triton.jit
def rate_of(tau):
    """log2(e) / tau in float64; NaN if tau is not positive and finite, or so small that its reciprocal overflows."""
    tau = tau.to(tl.float64)
    return tl.where((tau >= SMALLEST_TAU) & (tau < INFINITY), 1.0 / tau * LOG2_E, float("nan"))


@triton.jit
def narrow_powers(p, origin, rate, span, EXACT: tl.constexpr):
    """2^-e and 2^e of e = |p - origin| * rate, then 2^-span and 2^span, where e <= span <= NARROW."""
    if EXACT:
        down, up = powers_of_two(p, origin, rate, EXACT)
        low, high = tl.exp2(-span), tl.exp2(span)
    elif (span <= TINY) & (rate > 1e-30) & (rate < 1e30):  # in float32 neither the rate nor a gap over- or underflows
        exponent = (tl.abs(p - origin.to(p.dtype)) * rate.to(p.dtype)).to(tl.float32)
        down, up = tl.exp2(-exponent), tl.exp2(exponent)
        low, high = tl.exp2(-span.to(tl.float32)), tl.exp2(span.to(tl.float32))
    else:
        down, up = powers_of_two(p, origin, rate, EXACT)
        low, high = tl.exp2(-span).to(tl.float32), tl.exp2(span).to(tl.float32)
    return down, up, low, high


@triton.jit
def powers_of_two(p, origin, rate, EXACT: tl.constexpr):
    """2^-e and 2^e of e = |p - origin| * rate < 126: float64 if EXACT, else float32.

    The exponent is float64. For float32 powers it is split: the whole part is added to the exponent bits of the result,
    and only the fraction, which is less than 1, is rounded to float32. Rounded as a whole, an exponent of 100 would be
    wrong by up to 4e-6.
    """
    exponent = tl.abs(p.to(tl.float64) - origin) * rate
    if EXACT:
        down, up = tl.exp2(-exponent), tl.exp2(exponent)
    else:
        rounded = tl.floor(exponent)
        fraction = (exponent - rounded).to(tl.float32)
        shift = rounded.to(tl.int32) << 23
        down = (tl.exp2(-fraction).to(tl.int32, bitcast=True) - shift).to(tl.float32, bitcast=True)
        up = (tl.exp2(fraction).to(tl.int32, bitcast=True) + shift).to(tl.float32, bitcast=True)
    return down, up


@triton.jit
def decay_over(gap, rate, EXACT: tl.constexpr):
    """The decay 2^-(gap * rate) over a gap >= 0, as float64: used for carries, which are few numbers.

    Unless EXACT it is a polynomial, because carries are one long chain of dependent decays and exp2 in float64 is slow.
    With the nearest whole number removed from the exponent, e^f is needed for |f| <= ln(2) / 2: Taylor's polynomial of
    degree 8 has a relative error below 3e-10. From 2^-1000 on the result is 0, also where the exponent is NaN.
    """
    exponent = gap * rate
    if EXACT:
        power = tl.exp2(-exponent)
    else:
        rounded = tl.floor(tl.minimum(exponent, 1000.0) + 0.5)
        f = (rounded - tl.minimum(exponent, 1000.0)) * LN_2
        power = 1.0 + f * (1.0 / 7.0) * (1.0 + f * 0.125)
        power = 1.0 + f * (1.0 / 5.0) * (1.0 + f * (1.0 / 6.0) * power)
        power = 1.0 + f * (1.0 + f * 0.5 * (1.0 + f * (1.0 / 3.0) * (1.0 + f * 0.25 * power)))
        power = (power.to(tl.int64, bitcast=True) - (rounded.to(tl.int64) << 52)).to(tl.float64, bitcast=True)
        power = tl.where(exponent < 1000.0, power, 0.0)
    return power


@triton.jit
def exponent_over(gap, rate):
    """u = |gap| / tau in powers of two, cut at BEYOND."""
    return tl.minimum(tl.abs(gap) * rate, BEYOND)


@triton.jit
def fault_at_ends(position, merged, rate):
    """NaN if the first or last position is not finite, or the rate is NaN; else 0.

    A sort moves infinities, and NaN, to the ends of the order, so the two ends stand for all anchors.
    """
    low, high = tl.load(position).to(tl.float64), tl.load(position + merged - 1).to(tl.float64)
    return tl.where((tl.abs(low) < INFINITY) & (tl.abs(high) < INFINITY) & (rate > 0), 0.0, float("nan"))
