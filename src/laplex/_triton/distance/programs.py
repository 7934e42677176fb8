"""Distance-weighted sums on the GPU: sums of u exp(-u) x with u = |t - s| / tau, for tau's gradient.

The phases are those of ``scan.programs``: reduce every tile of the merged order, carry, scan every tile. The state of
the scan is the pair (v, p) of ``running``: the sums of exp(-u) x and of u exp(-u) x. The code counts u in powers of
two, as the rate does, until p is stored.

Narrow tiles of float32 data take a shorter way. Let c_i >= 0 be the distance of point i from the tile's first position,
in units of tau. Then the sum from the left at point i is

    sum over j <= i of (c_i - c_j) exp(c_j - c_i) x_j  =  exp(-c_i) (c_i sum of exp(c_j) x_j - sum of c_j exp(c_j) x_j)

and the sum from the right mirrors it: four prefix sums per row, and no exponentials. It subtracts, in float64, which
is accurate enough for float32 data but not for float64 data.

The scratch memory, float64, for h batch entries of m rows, all arrays contiguous:

    ends       (h, 2, tiles)            the first and the last position of every tile; NaN is a fault
    totals     (h, m, STATES, tiles)    v and p of the tile at its last position, v and p at its first
    carries    (h, m, STATES, tiles)    v and p of all tiles on the left, at the last position of the left neighbour;
                                        v and p of all tiles on the right, at the first position of the right neighbour
"""

import triton
import triton.language as tl

from laplex._triton.order.programs_refresh import order_fault
from laplex._triton.points import LN_2, NARROW, WORD, decay_over, entry_of, exponent_over, fault_at_ends, rate_of
from laplex._triton.program import program
from laplex._triton.running import carried_over, running_states

STATES = tl.constexpr(4)  # numbers per row and tile: v and p, in two directions


@triton.jit
def _add_four(a_1, b_1, c_1, d_1, a_2, b_2, c_2, d_2):
    return a_1 + a_2, b_1 + b_2, c_1 + c_2, d_1 + d_2


@triton.jit
def narrow_distance_sums(v, c, down, up):
    """The distance-weighted sums from the left and from the right at every point of a narrow tile.

    c is the distance from the tile's first position in powers of two, ``down`` 2^-c and ``up`` 2^c.
    """
    grown, decayed = v * up, v * down
    left, left_c, right, right_c = tl.associative_scan((grown, grown * c, decayed, decayed * c), 0, _add_four)
    right, right_c = tl.sum(decayed, 0) - right, tl.sum(decayed * c, 0) - right_c
    return down * (c * left - left_c), up * (right_c - c * right)


@triton.jit
def points_of(tile, entry, position, merged, padded, FIRST: tl.constexpr, IN_ORDER: tl.constexpr, FAR: tl.constexpr,
              TILE: tl.constexpr):  # fmt: skip
    """A tile's places and positions, which of them are targets and which sources, and the caller's indices."""
    place = (tile.to(tl.int64) if FAR else tile) * TILE + tl.arange(0, TILE)
    within = tl.minimum(place, merged - 1)
    positions = tl.load(position + within)
    is_row, index = entry_of(entry, within, padded, IN_ORDER)
    inside = place < merged
    is_target = is_row if FIRST else ~is_row
    return place, positions, inside & is_target, inside & ~is_target, index


@program(numbers="m", callers=("x", "tau"))
def distance_reduce_program(
    x, tau, entry, position, scratch, m, merged, padded, tiles, x_batch, x_row, x_col,
    EXACT: tl.constexpr, FIRST: tl.constexpr, IN_ORDER: tl.constexpr, CHECKED: tl.constexpr, FAR: tl.constexpr,
    TILE: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """The first phase: write a tile's ends and totals."""
    tile, batch = tl.program_id(0), tl.program_id(2).to(tl.int64)
    batches = tl.num_programs(2).to(tl.int64)
    entry += batch * (padded // WORD * 2 if IN_ORDER else padded)
    position += batch * padded
    place, positions, is_target, is_source, index = points_of(
        tile, entry, position, merged, padded, FIRST, IN_ORDER, FAR, TILE
    )
    rate = rate_of(tl.load(tau + batch))
    fault = fault_at_ends(position, merged, rate)
    if CHECKED:
        fault += order_fault(
            position, entry, place[None, :], positions[None, :], is_target[None, :], merged, padded, FIRST, IN_ORDER
        )
    start = (tile.to(tl.int64) if FAR else tile) * TILE
    first = tl.load(position + start).to(tl.float64)
    last = tl.load(position + tl.minimum(start + TILE, merged) - 1).to(tl.float64)
    ends = scratch + batch * 2 * tiles + tile
    tl.store(ends, first + fault)
    tl.store(ends + tiles, last + fault)
    positions = positions.to(tl.float64)
    to_last, to_first = decay_over(last - positions, rate, EXACT), decay_over(positions - first, rate, EXACT)
    u_last, u_first = exponent_over(last - positions, rate), exponent_over(positions - first, rate)
    row_block = tl.program_id(1)
    for number in range(row_block * ROWS, tl.minimum(row_block * ROWS + ROWS, m)):
        row = tl.zeros([], tl.int64) + number
        x_at = x + batch * x_batch + row * x_row + index.to(tl.int64) * x_col
        v = tl.load(x_at, mask=is_source, other=0.0).to(tl.float64)
        totals = scratch + batches * 2 * tiles + (batch * m + row) * STATES * tiles + tile
        tl.store(totals, tl.sum(v * to_last, 0))
        tl.store(totals + tiles, tl.sum(v * (u_last * to_last), 0))
        tl.store(totals + 2 * tiles, tl.sum(v * to_first, 0))
        tl.store(totals + 3 * tiles, tl.sum(v * (u_first * to_first), 0))


@program(numbers="m", callers=("tau",))
def distance_carry_program(scratch, tau, m, tiles, EXACT: tl.constexpr, GROUP: tl.constexpr):
    """The second phase: write the carries of all tiles for one row, from the left (even programs) or the right (odd).

    One program visits all tiles in the direction of the scan, GROUP at a time. A fault of any tile is added to every
    carry.
    """
    side, row = tl.program_id(0) % 2, (tl.program_id(0) // 2).to(tl.int64)  # side 0: from the left
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
    first_tile = tl.where(side == 0, 0, tiles - 1)
    tl.store(carries + first_tile, fault)
    tl.store(carries + tiles + first_tile, fault)
    carried_at = tl.load(ends + first_tile)
    carried_v, carried_p = fault, fault
    for begin in range(0, tiles, GROUP):
        step = begin + lane
        inside = step < tiles
        tile = tl.where(side == 0, step, tiles - 1 - step)
        last = tl.load(ends + tl.where(side == 0, tiles - 1, 0))
        positions = tl.load(ends + tile, mask=inside, other=0.0)
        positions = tl.where(inside, positions, last)
        v = tl.load(totals + tile, mask=inside, other=0.0)
        p = tl.load(totals + tiles + tile, mask=inside, other=0.0)
        v, p = running_states(positions, v, p, rate, EXACT, False)
        more_v, more_p = carried_over(carried_v, carried_p, positions - carried_at, rate, EXACT)
        v, p = v + more_v, p + more_p
        next_tile = tl.where(side == 0, tile + 1, tile - 1)
        has_next = inside & (next_tile >= 0) & (next_tile < tiles)
        tl.store(carries + next_tile, v, mask=has_next)
        tl.store(carries + tiles + next_tile, p, mask=has_next)
        carried_at = tl.sum(tl.where(lane == GROUP - 1, positions, 0.0), 0)
        carried_v = tl.sum(tl.where(lane == GROUP - 1, v, 0.0), 0)
        carried_p = tl.sum(tl.where(lane == GROUP - 1, p, 0.0), 0)


@program(numbers="m", callers=("x", "odd_or_weights", "even", "tau"))
def distance_scan_program(
    x, tau, entry, position, scratch, even, odd_or_weights, stretch, m, merged, padded, tiles,
    x_batch, x_row, x_col, even_batch, even_row, even_col, odd_batch, odd_row, odd_col,
    EXACT: tl.constexpr, ODD: tl.constexpr, PULL: tl.constexpr, FIRST: tl.constexpr, IN_ORDER: tl.constexpr,
    FAR: tl.constexpr, TILE: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """The third phase: write the even sums (left + right) at a tile's targets, and if ODD the odd ones (right - left).

    PULL: ``odd_or_weights``, whose strides are odd_batch, odd_row and odd_col, holds weights, which are read. No sums
    are stored: 1/tau times the sum of weights * even over this program's targets and rows goes to ``stretch``, (h, row
    blocks, tiles). The sum over all of them is tau's gradient.
    """
    tile, batch = tl.program_id(0), tl.program_id(2).to(tl.int64)
    batches = tl.num_programs(2).to(tl.int64)
    entry += batch * (padded // WORD * 2 if IN_ORDER else padded)
    position += batch * padded
    _place, positions, is_target, is_source, index = points_of(
        tile, entry, position, merged, padded, FIRST, IN_ORDER, FAR, TILE
    )
    rate = rate_of(tl.load(tau + batch))
    positions, index = positions.to(tl.float64), index.to(tl.int64)
    ends = scratch + batch * 2 * tiles + tile
    first, last = tl.load(ends), tl.load(ends + tiles)
    p_left = tl.load(ends + tiles - 1, mask=tile > 0, other=0.0)
    p_right = tl.load(ends + 1, mask=tile + 1 < tiles, other=0.0)
    left_gap = tl.where(tile > 0, positions - p_left, 0.0)
    right_gap = tl.where(tile + 1 < tiles, p_right - positions, 0.0)
    c = exponent_over(positions - first, rate)
    LIMIT: tl.constexpr = -1.0 if EXACT else NARROW
    is_narrow = (last - first) * rate <= LIMIT
    down, up = tl.exp2(-c), tl.exp2(tl.minimum(c, NARROW))  # used in narrow tiles only
    row_block = tl.program_id(1)
    stretched = tl.zeros([TILE], tl.float64) + (first + last) * 0.0  # NaN at a fault
    for number in range(row_block * ROWS, tl.minimum(row_block * ROWS + ROWS, m)):
        row = tl.zeros([], tl.int64) + number
        v = tl.load(x + batch * x_batch + row * x_row + index * x_col, mask=is_source, other=0.0).to(tl.float64)
        if is_narrow:
            left, right = narrow_distance_sums(v, c, down, up)
        else:
            _v, left = running_states(positions, v, tl.zeros_like(v), rate, EXACT, False)
            _v, right = running_states(positions, v, tl.zeros_like(v), rate, EXACT, True)
        carries = scratch + batches * 2 * tiles + (batches * m + batch * m + row) * STATES * tiles + tile
        _v, more = carried_over(tl.load(carries), tl.load(carries + tiles), left_gap, rate, EXACT)
        left += more
        _v, more = carried_over(tl.load(carries + 2 * tiles), tl.load(carries + 3 * tiles), right_gap, rate, EXACT)
        right += more
        other_at = odd_or_weights + batch * odd_batch + row * odd_row + index * odd_col
        if PULL:
            weight = tl.load(other_at, mask=is_target, other=0.0).to(tl.float64)
            stretched += weight * (left + right)
        else:
            even_at = even + batch * even_batch + row * even_row + index * even_col
            tl.store(even_at, (left + right) * LN_2, mask=is_target)
            if ODD:
                tl.store(other_at, (right - left) * LN_2, mask=is_target)
    if PULL:
        program = (batch * tl.num_programs(1) + row_block) * tiles + tile
        tl.store(stretch + program, tl.sum(stretched, 0) * LN_2 / tl.load(tau + batch))
