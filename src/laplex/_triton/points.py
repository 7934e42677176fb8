"""What the batches of the merged order share: entries, powers of two, and the look for a fault."""

from __future__ import annotations

import triton
import triton.language as tl

from laplex import _checks

WORD = tl.constexpr(32)
LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)
INFINITY = tl.constexpr(float("inf"))
SMALLEST_TAU = tl.constexpr(_checks.SMALLEST_TAU)
# Tiles in which weights differ by so few powers of two that one sum may be had from another by subtracting.
NARROW = tl.constexpr(4.0)
TINY = tl.constexpr(0.5)  # spans in which float32 differences of float32 anchors make exponents exact enough


@triton.jit
def follow():
    """Let the next launch begin before this one ends, as this did before the last ended, and wait for that: between
    launches that each take a few microseconds the GPU would be idle for another."""
    tl.inline_asm_elementwise("griddepcontrol.launch_dependents; // $0", "=r", [], tl.int32, is_pure=False, pack=1)
    tl.inline_asm_elementwise("griddepcontrol.wait; // $0", "=r", [], tl.int32, is_pure=False, pack=1)


@triton.jit
def places(tile, FAR: tl.constexpr, TILE: tl.constexpr, SERIAL: tl.constexpr = 4, MIRRORED: tl.constexpr = False):
    """A tile's places in the merged order, (SERIAL, TILE / SERIAL): a thread takes SERIAL neighbours.

    MIRRORED: from the last to the first, so that what is carried from point to point goes that way: a scan that runs
    back takes twice the work.
    """
    start = (tile.to(tl.int64) if FAR else tile) * TILE
    place = tl.arange(0, TILE // SERIAL)[None, :] * SERIAL + tl.arange(0, SERIAL)[:, None]
    return start + (TILE - 1 - place if MIRRORED else place)


@triton.jit
def flat(v):
    """All points as one axis, on which neighbours are not a thread's own points: the compiler, which gives addresses
    that may be anywhere to neighbouring threads in turn, then leaves the points to their threads."""
    return tl.reshape(v, [v.numel])


@triton.jit
def load_points(x, offset, known, IN_TURN: tl.constexpr):
    """A tile's points from offsets that, IN_TURN, are neighbours for a thread; or anywhere."""
    if IN_TURN:
        return tl.load(x + offset, mask=known, other=0)
    else:
        return tl.reshape(tl.load(x + flat(offset), mask=flat(known), other=0), offset.shape)


@triton.jit
def entries_at(
    entry, place, merged, padded, FIRST: tl.constexpr, IN_ORDER: tl.constexpr, MIRRORED: tl.constexpr = False
):
    """Of a tile's places: whether a target's, and where the caller has it, as a target and as a source.

    An entry is the row's index, or -1 - the column's. Where both sides came in order there are none, but a bit a point,
    1 for a row, in words of 32 with the number of rows before each word.
    """
    if IN_ORDER:  # a thread's points lie in one word
        own = tl.min(place, 0)[None, :]
        word = tl.load(entry + own // WORD, mask=own < padded, other=0)
        rows_before = tl.load(entry + padded // WORD + own // WORD, mask=own < padded, other=0)
        bit = (word >> (place % WORD).to(tl.int32)) & 1
        below = word & ((tl.full([1, 1], 1, tl.int32) << (own % WORD).to(tl.int32)) - 1)
        counted = tl.cumsum(bit, 0)
        within = tl.sum(bit, 0)[None, :] - counted if MIRRORED else counted - bit
        row = (rows_before + _popcount(below)).to(place.dtype) + within
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
    """Of a few places within the order: whether a row's, and where the caller has it, as what it is."""
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
    v = v - ((v >> 1) & 0x55555555)
    v = (v & 0x33333333) + ((v >> 2) & 0x33333333)
    v = (v + (v >> 4)) & 0x0F0F0F0F
    v = v + (v >> 8)
    return (v + (v >> 16)) & 0x3F


@triton.jit
def rate_of(tau):
    """log2(e) / tau; NaN unless tau is a length scale."""
    return tl.where((tau >= SMALLEST_TAU) & (tau < INFINITY), 1.0 / tau * LOG2_E, float("nan"))


@triton.jit
def narrow_powers(p, at, rate, span, EXACT: tl.constexpr):
    """2^-e, 2^e of e = |p - at| * rate, and 2^-span, 2^span, where rate is in powers of two and e <= span <= NARROW."""
    if EXACT:
        down, up = powers_of_two(p, at, rate, EXACT)
        low, high = tl.exp2(-span), tl.exp2(span)
    elif (span <= TINY) & (rate > 1e-30) & (rate < 1e30):  # neither rate nor gap leaves the range of float32
        exponent = (tl.abs(p - at.to(p.dtype)) * rate.to(p.dtype)).to(tl.float32)
        down, up = tl.exp2(-exponent), tl.exp2(exponent)
        low, high = tl.exp2(-span.to(tl.float32)), tl.exp2(span.to(tl.float32))
    else:
        down, up = powers_of_two(p, at, rate, EXACT)
        low, high = tl.exp2(-span).to(tl.float32), tl.exp2(span).to(tl.float32)
    return down, up, low, high


@triton.jit
def powers_of_two(p, at, rate, EXACT: tl.constexpr):
    """2^-e and 2^e of e = |p - at| * rate < 126. A float32 exponent would round; its fraction does not."""
    exponent = tl.abs(p.to(tl.float64) - at) * rate
    if EXACT:
        down, up = tl.exp2(-exponent), tl.exp2(exponent)
    else:
        whole = tl.floor(exponent)
        fraction = (exponent - whole).to(tl.float32)
        shift = whole.to(tl.int32) << 23
        down = (tl.exp2(-fraction).to(tl.int32, bitcast=True) - shift).to(tl.float32, bitcast=True)
        up = (tl.exp2(fraction).to(tl.int32, bitcast=True) + shift).to(tl.float32, bitcast=True)
    return down, up


@triton.jit
def decay_over(gap, rate, EXACT: tl.constexpr):
    """The decay over a gap >= 0, in float64: for what is carried, which is few numbers.

    For float32 data a polynomial, to 2e-10: Taylor's of 2^f, |f| <= 1/2. The carries are one long chain of decays.
    """
    exponent = gap * rate
    if EXACT:
        power = tl.exp2(-exponent)
    else:
        whole = tl.floor(tl.minimum(exponent, 1000.0) + 0.5)
        f = (whole - tl.minimum(exponent, 1000.0)) * LN_2
        power = 1.0 + f * (1.0 / 7.0) * (1.0 + f * 0.125)
        power = 1.0 + f * (1.0 / 5.0) * (1.0 + f * (1.0 / 6.0) * power)
        power = 1.0 + f * (1.0 + f * 0.5 * (1.0 + f * (1.0 / 3.0) * (1.0 + f * 0.25 * power)))
        power = (power.to(tl.int64, bitcast=True) - (whole.to(tl.int64) << 52)).to(tl.float64, bitcast=True)
        power = tl.where(exponent < 1000.0, power, 0.0)
    return power


@triton.jit
def fault_at_ends(position, merged, rate):
    """0, or NaN if the anchors at the ends (where a sort puts what is not finite) or tau are at fault."""
    low, high = tl.load(position).to(tl.float64), tl.load(position + merged - 1).to(tl.float64)
    return tl.where((tl.abs(low) < INFINITY) & (tl.abs(high) < INFINITY) & (rate > 0), 0.0, float("nan"))
