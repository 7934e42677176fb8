"""Sums weighted by distance on the GPU, of u exp(-u) x with u = |t - s| / tau: for tau's gradient.

As in ``triton_merged``: reduce every tile of the merged order, carry, scan every tile. What is carried is a state
(v, p), the sums of exp(-u) x and of u exp(-u) x, in float64. Over a gap of u it becomes exp(-u) (v, p + u v), so
nothing is subtracted. Two states at positions s_1 and s_2 combine associatively, with u = |s_1 - s_2| / tau:

    (s_1, v_1, p_1) + (s_2, v_2, p_2)  =  (s_2, exp(-u) v_1 + v_2, exp(-u) (p_1 + u v_1) + p_2)

A tied source adds nothing, so ties need no care. Within the batches u is in powers of two, as the rate is.

Where a tile spans few tau all sums may be had from its first position, at which point i lies at c_i and decays by
exp(-c_i): left of it the sum of u exp(-u) x is exp(-c_i) (c_i sum of exp(c_j) x_j - sum of c_j exp(c_j) x_j). That
subtracts, so it is for float32 data alone, in float64; it needs four cumulative sums and no exponentials.
"""

from __future__ import annotations

import triton
import triton.language as tl

from laplex._triton.points import LN_2, NARROW, WORD, decay_over, entry_of, fault_at_ends, rate_of
from laplex._triton.scan.programs import broken

BEYOND = tl.constexpr(2000.0)  # powers of two from which on a decay is 0, and what it is multiplied with must be finite
STATES = tl.constexpr(4)  # of a row at a tile: v and p at its last position, v and p at its first


@triton.jit
def exponent_over(gap, rate):
    """|gap| / tau in powers of two, cut where the decay is 0."""
    return tl.minimum(tl.abs(gap) * rate, BEYOND)


@triton.jit
def carried_over(v, p, gap, rate, EXACT: tl.constexpr):
    """A state over a gap."""
    decay = decay_over(tl.abs(gap), rate, EXACT)
    return v * decay, (p + exponent_over(gap, rate) * v) * decay


@triton.jit
def _add_states(rate_1, at_1, v_1, p_1, rate_2, at_2, v_2, p_2):
    v, p = carried_over(v_1, p_1, at_2 - at_1, rate_2, False)
    return rate_2, at_2, v + v_2, p + p_2


@triton.jit
def _add_states_exactly(rate_1, at_1, v_1, p_1, rate_2, at_2, v_2, p_2):
    v, p = carried_over(v_1, p_1, at_2 - at_1, rate_2, True)
    return rate_2, at_2, v + v_2, p + p_2


@triton.jit
def running_states(at, v, p, rate, EXACT: tl.constexpr, REVERSE: tl.constexpr):
    """States (v, p) at positions ``at``, one axis in order: up to each point on the way, where it is."""
    rates = tl.zeros_like(at) + rate
    if EXACT:
        _rates, _at, v, p = tl.associative_scan((rates, at, v, p), 0, _add_states_exactly, reverse=REVERSE)
    else:
        _rates, _at, v, p = tl.associative_scan((rates, at, v, p), 0, _add_states, reverse=REVERSE)
    return v, p


@triton.jit
def _add_four(a_1, b_1, c_1, d_1, a_2, b_2, c_2, d_2):
    return a_1 + a_2, b_1 + b_2, c_1 + c_2, d_1 + d_2


@triton.jit
def narrow_distance_sums(v, u, down, up):
    """The sums weighted by distance left and right of every point, from ``u`` to the first of them, 2^-u and 2^u."""
    behind, ahead = v * up, v * down
    left, left_u, right, right_u = tl.associative_scan((behind, behind * u, ahead, ahead * u), 0, _add_four)
    right, right_u = tl.sum(ahead, 0) - right, tl.sum(ahead * u, 0) - right_u
    return down * (u * left - left_u), up * (right_u - u * right)


@triton.jit
def points_of(tile, entry, position, merged, padded, FIRST: tl.constexpr, IN_ORDER: tl.constexpr, FAR: tl.constexpr,
              TILE: tl.constexpr):  # fmt: skip
    """A tile's places and positions; which are targets, which sources, and where the caller has them."""
    place = (tile.to(tl.int64) if FAR else tile) * TILE + tl.arange(0, TILE)
    within = tl.minimum(place, merged - 1)
    at = tl.load(position + within)
    is_row, index = entry_of(entry, within, padded, IN_ORDER)
    inside = place < merged
    is_target = is_row if FIRST else ~is_row
    return place, at, inside & is_target, inside & ~is_target, index


@triton.jit(do_not_specialize_on_alignment=["x", "tau"])
def distance_reduce_program(
    x, tau, entry, position, scratch, m, merged, padded, tiles, x_batch, x_row, x_col,
    EXACT: tl.constexpr, FIRST: tl.constexpr, IN_ORDER: tl.constexpr, CHECKED: tl.constexpr, FAR: tl.constexpr,
    TILE: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """A tile's end positions, and its states at them."""
    tile, batch = tl.program_id(0), tl.program_id(2).to(tl.int64)
    batches = tl.num_programs(2).to(tl.int64)
    entry += batch * (padded // WORD * 2 if IN_ORDER else padded)
    position += batch * padded
    place, at, is_target, is_source, index = points_of(
        tile, entry, position, merged, padded, FIRST, IN_ORDER, FAR, TILE
    )
    rate = rate_of(tl.load(tau + batch))
    fault = fault_at_ends(position, merged, rate)
    if CHECKED:
        fault += broken(
            position, entry, place[None, :], at[None, :], is_target[None, :], merged, padded, FIRST, IN_ORDER
        )
    start = (tile.to(tl.int64) if FAR else tile) * TILE
    first = tl.load(position + start).to(tl.float64)
    last = tl.load(position + tl.minimum(start + TILE, merged) - 1).to(tl.float64)
    ends = scratch + batch * 2 * tiles + tile
    tl.store(ends, first + fault)
    tl.store(ends + tiles, last + fault)
    at = at.to(tl.float64)
    to_last, to_first = decay_over(last - at, rate, EXACT), decay_over(at - first, rate, EXACT)
    u_last, u_first = exponent_over(last - at, rate), exponent_over(at - first, rate)
    row_block = tl.program_id(1)
    for number in range(row_block * ROWS, tl.minimum(row_block * ROWS + ROWS, m)):
        row = tl.zeros([], tl.int64) + number
        given = x + batch * x_batch + row * x_row + index.to(tl.int64) * x_col
        v = tl.load(given, mask=is_source, other=0.0).to(tl.float64)
        states = scratch + batches * 2 * tiles + (batch * m + row) * STATES * tiles + tile
        tl.store(states, tl.sum(v * to_last, 0))
        tl.store(states + tiles, tl.sum(v * (u_last * to_last), 0))
        tl.store(states + 2 * tiles, tl.sum(v * to_first, 0))
        tl.store(states + 3 * tiles, tl.sum(v * (u_first * to_first), 0))


@triton.jit(do_not_specialize_on_alignment=["tau"])
def distance_carry_program(scratch, tau, m, tiles, EXACT: tl.constexpr, GROUP: tl.constexpr):
    """The states left (even programs) or right (odd ones) of every tile, at the nearer end of its neighbour.

    One program goes through all tiles of a row, GROUP at a time. A fault at any of them is in every state.
    """
    side, row = tl.program_id(0) % 2, (tl.program_id(0) // 2).to(tl.int64)
    batch, batches = tl.program_id(1).to(tl.int64), tl.num_programs(1).to(tl.int64)
    rate = rate_of(tl.load(tau + batch))
    ends = scratch + batch * 2 * tiles + (1 - side) * tiles
    totals = scratch + batches * 2 * tiles + (batch * m + row) * STATES * tiles + side * 2 * tiles
    carries = totals + batches * m * STATES * tiles
    lane = tl.arange(0, GROUP)
    fault = tl.zeros([GROUP], tl.float64)
    for begin in range(0, tiles, GROUP):
        fault += tl.load(ends + begin + lane, mask=begin + lane < tiles, other=0.0) * 0.0
    fault = tl.sum(fault, 0)
    first = tl.where(side == 0, 0, tiles - 1)
    tl.store(carries + first, fault)
    tl.store(carries + tiles + first, fault)
    carried_at = tl.load(ends + first)
    carried_v, carried_p = fault, fault
    for begin in range(0, tiles, GROUP):
        way = begin + lane
        have = way < tiles
        tile = tl.where(side == 0, way, tiles - 1 - way)
        last = tl.load(ends + tl.where(side == 0, tiles - 1, 0))
        at = tl.load(ends + tile, mask=have, other=0.0)
        at = tl.where(have, at, last)
        v = tl.load(totals + tile, mask=have, other=0.0)
        p = tl.load(totals + tiles + tile, mask=have, other=0.0)
        v, p = running_states(at, v, p, rate, EXACT, False)
        more_v, more_p = carried_over(carried_v, carried_p, at - carried_at, rate, EXACT)
        v, p = v + more_v, p + more_p
        onward = tl.where(side == 0, tile + 1, tile - 1)
        inward = have & (onward >= 0) & (onward < tiles)
        tl.store(carries + onward, v, mask=inward)
        tl.store(carries + tiles + onward, p, mask=inward)
        carried_at = tl.sum(tl.where(lane == GROUP - 1, at, 0.0), 0)
        carried_v = tl.sum(tl.where(lane == GROUP - 1, v, 0.0), 0)
        carried_p = tl.sum(tl.where(lane == GROUP - 1, p, 0.0), 0)


@triton.jit(do_not_specialize_on_alignment=["x", "odd", "even", "tau"])
def distance_scan_program(
    x, tau, entry, position, scratch, even, odd, stretch, m, merged, padded, tiles,
    x_batch, x_row, x_col, even_batch, even_row, even_col, odd_batch, odd_row, odd_col,
    EXACT: tl.constexpr, ODD: tl.constexpr, PULL: tl.constexpr, FIRST: tl.constexpr, IN_ORDER: tl.constexpr,
    FAR: tl.constexpr, TILE: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """The sums at a tile's targets: of both sides, and of the right one less the left.

    With PULL ``odd`` is what the first are multiplied with instead, and ``stretch`` takes 1/tau times the sum of these
    products over the program's points and rows.
    """
    tile, batch = tl.program_id(0), tl.program_id(2).to(tl.int64)
    batches = tl.num_programs(2).to(tl.int64)
    entry += batch * (padded // WORD * 2 if IN_ORDER else padded)
    position += batch * padded
    _place, at, is_target, is_source, index = points_of(
        tile, entry, position, merged, padded, FIRST, IN_ORDER, FAR, TILE
    )
    rate = rate_of(tl.load(tau + batch))
    at, index = at.to(tl.float64), index.to(tl.int64)
    ends = scratch + batch * 2 * tiles + tile
    first, last = tl.load(ends), tl.load(ends + tiles)
    before = tl.load(ends + tiles - 1, mask=tile > 0, other=0.0)
    behind = tl.load(ends + 1, mask=tile + 1 < tiles, other=0.0)
    from_before = tl.where(tile > 0, at - before, 0.0)
    from_behind = tl.where(tile + 1 < tiles, behind - at, 0.0)
    u = exponent_over(at - first, rate)
    LIMIT: tl.constexpr = -1.0 if EXACT else NARROW
    is_narrow = (last - first) * rate <= LIMIT
    down, up = tl.exp2(-u), tl.exp2(tl.minimum(u, NARROW))  # of wide tiles not used
    row_block = tl.program_id(1)
    stretched = tl.zeros([TILE], tl.float64) + (first + last) * 0.0
    for number in range(row_block * ROWS, tl.minimum(row_block * ROWS + ROWS, m)):
        row = tl.zeros([], tl.int64) + number
        v = tl.load(x + batch * x_batch + row * x_row + index * x_col, mask=is_source, other=0.0).to(tl.float64)
        if is_narrow:
            left, right = narrow_distance_sums(v, u, down, up)
        else:
            _v, left = running_states(at, v, tl.zeros_like(v), rate, EXACT, False)
            _v, right = running_states(at, v, tl.zeros_like(v), rate, EXACT, True)
        carries = scratch + batches * 2 * tiles + (batches * m + batch * m + row) * STATES * tiles + tile
        _v, more = carried_over(tl.load(carries), tl.load(carries + tiles), from_before, rate, EXACT)
        left += more
        _v, more = carried_over(tl.load(carries + 2 * tiles), tl.load(carries + 3 * tiles), from_behind, rate, EXACT)
        right += more
        odd_at = odd + batch * odd_batch + row * odd_row + index * odd_col
        if PULL:
            weight = tl.load(odd_at, mask=is_target, other=0.0).to(tl.float64)
            stretched += weight * (left + right)
        else:
            even_at = even + batch * even_batch + row * even_row + index * even_col
            tl.store(even_at, (left + right) * LN_2, mask=is_target)
            if ODD:
                tl.store(odd_at, (right - left) * LN_2, mask=is_target)
    if PULL:
        program = (batch * tl.num_programs(1) + row_block) * tiles + tile
        tl.store(stretch + program, tl.sum(stretched, 0) * LN_2 / tl.load(tau + batch))
