"""Sums over sorted numbers in tiles: what the programs of ranks, sorts and masks share.

A row of n sorted numbers is cut into tiles of TILE places. As in ``scan.programs``, every tile is reduced, the sums of
tiles are carried, and every tile is scanned; a row that is one tile (ALONE) needs the last step only. Rows and columns
of the kernel are the same numbers, so a place reads the sums of its own place, *from the left* of all numbers up to it,
and *from the right* of all from it on. Both include the number itself.

A tile's state has up to four sums: of exp(-u) a, of u exp(-u) a (DEGREE), of exp(-u) b (SECOND), and of t over the
numbers tied with the position the state is referred to (TIES). u counts in powers of two, as the rate does.

The scratch memory, float64, (h, ROOM, tiles):

    0, 1    the first and the last position of every tile
    2       totals: four sums of the tile at its last position, then four at its first
    10      carries: four sums of all tiles on the left, at the last position of the left neighbour; then four of all
            tiles on the right, at the first position of the right neighbour
"""

import triton
import triton.language as tl

from laplex._triton.points import INFINITY, decay_over, exponent_over, rate_of
from laplex._triton.program import program
from laplex._triton.running import NEAR, add_if_tied, running_states

SUMS = tl.constexpr(4)
TOTALS = tl.constexpr(2)
CARRIES = tl.constexpr(10)
ROOM = tl.constexpr(18)


# --- A tile's numbers ------------------------------------------------------------------------------------------------


@triton.jit
def places_of(tile, n, TILE: tl.constexpr):
    """A tile's places, whether they are inside, and its first and last place."""
    start = tile.to(tl.int64) * TILE
    place = start + tl.arange(0, TILE)
    return place, place < n, start, tl.minimum(start + TILE, n) - 1


@triton.jit
def sorted_row(x, n, TILE: tl.constexpr):
    """A row of at most TILE float32 numbers in order, and the index of each; what is beyond repeats the last number.

    The keys compare like the numbers, as integers, and the index is in the lower half: so equal numbers keep their
    order.
    """
    lane = tl.arange(0, TILE)
    key = _key(tl.load(x + lane, mask=lane < n, other=0.0), lane < n)
    both = tl.sort((key.to(tl.int64) << 32) | lane.to(tl.int64))
    return _number((both >> 32).to(tl.int32), lane, n), (both & 0x7FFFFFFF).to(tl.int32)


@triton.jit
def sorted_numbers(x, n, TILE: tl.constexpr):
    """The first n of TILE float32 numbers in order, without their indices; what is beyond repeats the last number."""
    lane = tl.arange(0, TILE)
    return _number(tl.sort(_key(x, lane < n)), lane, n)


@triton.jit
def _key(x, inside):
    bits = (x + 0.0).to(tl.int32, bitcast=True)
    return tl.where(inside, bits ^ ((bits >> 31) & 0x7FFFFFFF), 0x7FFFFFFF)


@triton.jit
def _number(key, lane, n):
    number = (key ^ ((key >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
    last = tl.sum(tl.where(lane == n - 1, number, 0.0), 0)
    return tl.where(lane < n, number, last)


@triton.jit
def at_ends(p, n):
    """The first and the last of n numbers that one program holds."""
    lane = tl.arange(0, p.shape[0])
    return tl.sum(tl.where(lane == 0, p, 0.0), 0), tl.sum(tl.where(lane == n - 1, p, 0.0), 0)


@triton.jit
def fault_of(low, high, rate):
    """NaN if the first or the last number is not finite, or the rate is NaN; else 0."""
    low, high = low.to(tl.float64), high.to(tl.float64)
    return tl.where((tl.abs(low) < INFINITY) & (tl.abs(high) < INFINITY) & (rate > 0), 0.0, float("nan"))


# --- Sums within a tile ----------------------------------------------------------------------------------------------


@triton.jit
def _add_two(a_1, b_1, a_2, b_2):
    return a_1 + a_2, b_1 + b_2


@triton.jit
def has_turn(first, last, rate, SPANS: tl.constexpr, EXACT: tl.constexpr):
    """Whether a launch is for this tile. Near tiles need far fewer registers than wide ones, so that long rows have a
    launch for each (SPANS = "near", "wide"); "all" is for both.

    A near tile has all sums referred to its first position, by plain prefix sums (see NEAR in ``running``). Sums
    weighted by distance then subtract, in float64, which is accurate enough for float32 numbers but not for float64
    ones: no tile of these is near.
    """
    near = is_near(first, last, rate, EXACT)
    return (near | (SPANS != "near")) & (~near | (SPANS != "wide"))


@triton.jit
def is_near(first, last, rate, EXACT: tl.constexpr):
    LIMIT: tl.constexpr = -1.0 if EXACT else NEAR
    return (last - first) * rate <= LIMIT


@triton.jit
def sums_in_tile(p, first, last, v, rate, SPANS: tl.constexpr, EXACT: tl.constexpr, DEGREE: tl.constexpr):
    """The sums of v and, if DEGREE, of u v, from the left and from the right, at every place of a tile."""
    if SPANS == "near":
        left, left_p, right, right_p = _near_sums(p, first, v, rate, EXACT, DEGREE)
    elif SPANS == "wide":
        left, left_p, right, right_p = _wide_sums(p, v, rate, EXACT)
    else:
        if is_near(first, last, rate, EXACT):
            left, left_p, right, right_p = _near_sums(p, first, v, rate, EXACT, DEGREE)
        else:
            left, left_p, right, right_p = _wide_sums(p, v, rate, EXACT)
    return left, left_p, right, right_p


@triton.jit
def _near_sums(p, first, v, rate, EXACT: tl.constexpr, DEGREE: tl.constexpr):
    c = (p - first) * rate
    down = decay_over(c, 1.0, EXACT)
    up = 1.0 / down
    grown, decayed = v * up, v * down
    if DEGREE:
        left, left_c = tl.associative_scan((grown, grown * c), 0, _add_two)
        right, right_c = tl.associative_scan((decayed, decayed * c), 0, _add_two, reverse=True)
        return left * down, down * (c * left - left_c), right * up, up * (right_c - c * right)
    else:
        left, right = tl.cumsum(grown, 0), tl.cumsum(decayed, 0, reverse=True)
        return left * down, tl.zeros_like(v), right * up, tl.zeros_like(v)


@triton.jit
def _wide_sums(p, v, rate, EXACT: tl.constexpr):
    left, left_p = running_states(p, v, tl.zeros_like(v), rate, EXACT, False)
    right, right_p = running_states(p, v, tl.zeros_like(v), rate, EXACT, True)
    return left, left_p, right, right_p


@triton.jit
def ties_in_tile(p, t):
    """The sums of t over tied numbers, from the left and from the right, with the number itself."""
    _p, left = tl.associative_scan((p, t), 0, add_if_tied)
    _p, right = tl.associative_scan((p, t), 0, add_if_tied, reverse=True)
    return left, right


# --- Between tiles ---------------------------------------------------------------------------------------------------


@triton.jit
def store_ends(row, tile, tiles, first, last):
    tl.store(row + tile, first)
    tl.store(row + tiles + tile, last)


@triton.jit
def store_totals(row, tile, tiles, channel, v, to_last, to_first):
    """One of the four sums: of v at the tile's last position, and at its first."""
    total = row + (TOTALS + channel) * tiles + tile
    tl.store(total, tl.sum(v * to_last, 0))
    tl.store(total + SUMS * tiles, tl.sum(v * to_first, 0))


@triton.jit
def carried_sums(row, tile, tiles, channel):
    """One of the four sums, of all tiles on the left and of all on the right."""
    carry = row + (CARRIES + channel) * tiles + tile
    return tl.load(carry), tl.load(carry + SUMS * tiles)


@triton.jit
def neighbour_ends(row, tile, tiles, first, last):
    """The last position of the left neighbour and the first of the right one; this tile's own where there is none."""
    left = tl.load(row + tiles + tile - 1, mask=tile > 0, other=0.0)
    right = tl.load(row + tile + 1, mask=tile + 1 < tiles, other=0.0)
    return tl.where(tile > 0, left, first), tl.where(tile + 1 < tiles, right, last)


@triton.jit
def _add_tiles(rate_1, at_1, v_1, p_1, b_1, t_1, rate_2, at_2, v_2, p_2, b_2, t_2):
    """Combine the states of two neighbouring tiles. The rate goes along as a constant."""
    gap = tl.abs(at_2 - at_1)
    decay = decay_over(gap, rate_2, True)
    p = (p_1 + exponent_over(gap, rate_2) * v_1) * decay + p_2
    return rate_2, at_2, v_1 * decay + v_2, p, b_1 * decay + b_2, tl.where(at_1 == at_2, t_1, 0.0) + t_2


@program(numbers="tiles", callers=("tau",))
def carry_soft_program(
    scratch, tau, tiles, DEGREE: tl.constexpr, SECOND: tl.constexpr, TIES: tl.constexpr, GROUP: tl.constexpr
):
    """Write the carries of all tiles of a row, from the left (even programs) or from the right (odd ones).

    One program visits all tiles in the direction of the scan, GROUP at a time.
    """
    side, batch = tl.program_id(0) % 2, (tl.program_id(0) // 2).to(tl.int64)
    row, rate, lane = scratch + batch * ROOM * tiles, rate_of(tl.load(tau + batch)), tl.arange(0, GROUP)
    ends = row + (1 - side) * tiles
    totals, carries = row + (TOTALS + side * SUMS) * tiles, row + (CARRIES + side * SUMS) * tiles
    start, end = tl.where(side == 0, 0, tiles - 1), tl.where(side == 0, tiles - 1, 0)
    reached, v, p, b, t = tl.load(ends + start), 0.0 * rate, 0.0 * rate, 0.0 * rate, 0.0 * rate
    for channel in tl.static_range(4):
        tl.store(carries + channel * tiles + start, 0.0)
    for begin in range(0, tiles, GROUP):
        inside = begin + lane < tiles
        tile = tl.where(side == 0, begin + lane, tiles - 1 - begin - lane)
        positions = tl.where(inside, tl.load(ends + tile, mask=inside, other=0.0), tl.load(ends + end))
        tile_v = tl.load(totals + tile, mask=inside, other=0.0)
        tile_p, tile_b, tile_t = tl.zeros_like(tile_v), tl.zeros_like(tile_v), tl.zeros_like(tile_v)
        if DEGREE:
            tile_p = tl.load(totals + tiles + tile, mask=inside, other=0.0)
        if SECOND:
            tile_b = tl.load(totals + 2 * tiles + tile, mask=inside, other=0.0)
        if TIES:
            tile_t = tl.load(totals + 3 * tiles + tile, mask=inside, other=0.0)
        rates = tl.zeros_like(positions) + rate
        states = (rates, positions, tile_v, tile_p, tile_b, tile_t)
        _rates, _positions, tile_v, tile_p, tile_b, tile_t = tl.associative_scan(states, 0, _add_tiles)
        _rate, _position, tile_v, tile_p, tile_b, tile_t = _add_tiles(
            rates, rates * 0.0 + reached, v, p, b, t, rates, positions, tile_v, tile_p, tile_b, tile_t
        )
        following = tl.where(side == 0, tile + 1, tile - 1)
        has_next = inside & (following >= 0) & (following < tiles)
        tl.store(carries + following, tile_v, mask=has_next)
        if DEGREE:
            tl.store(carries + tiles + following, tile_p, mask=has_next)
        if SECOND:
            tl.store(carries + 2 * tiles + following, tile_b, mask=has_next)
        if TIES:
            tl.store(carries + 3 * tiles + following, tile_t, mask=has_next)
        is_last = lane == GROUP - 1
        reached = tl.sum(tl.where(is_last, positions, 0.0), 0)
        v, p = tl.sum(tl.where(is_last, tile_v, 0.0), 0), tl.sum(tl.where(is_last, tile_p, 0.0), 0)
        b, t = tl.sum(tl.where(is_last, tile_b, 0.0), 0), tl.sum(tl.where(is_last, tile_t, 0.0), 0)
