"""Triton programs for products in which one side is much shorter than the other.

Few sources, many targets. No order of the targets is needed. ``table_program`` scans the sorted sources once from each
side and stores the sums in a table. ``spread_program`` finds each target's place among the sources by bisection and
reads the table at its two neighbours. For a target t between the sources s_l <= t < s_r, with E and O for the even and
the odd sum, L for the sums from the left, R for the sums from the right,

    E = exp(-(t - s_l) / tau) L_l + exp(-(s_r - t) / tau) R_r
    O = exp(-(s_r - t) / tau) R_r - exp(-(t - s_q) / tau) L_q        s_q the last source < t: O has no ties

For tau's gradient the sums are weighted by distance: they are the states (v, p) of ``running``.

Many sources, few targets. The sums over tiles of the merged order are those of the scan's ``reduce_program``.
``stage_program`` copies x into the merged order, with the rows of x as the innermost dimension, so that
``reduce_rows_program`` reads all rows of a point in one access.
``unstage_program`` copies a result from the merged order to the caller's.
"""

import triton
import triton.language as tl

from laplex._triton.points import (
    LN_2,
    NARROW,
    WORD,
    decay_over,
    entry_of,
    exponent_over,
    narrow_powers,
    rate_of,
)
from laplex._triton.program import program
from laplex._triton.running import carried_along, running_states


@program(numbers="m", callers=("x", "tau"))
def table_program(
    x, tau, position, order, ends, table, m, k, rows, weighted_at, length, last, x_batch, x_row, x_col,
    EXACT: tl.constexpr, TO_TAU: tl.constexpr, SOURCES: tl.constexpr,
):  # fmt: skip
    """Scan all sources, which one program holds, in one direction, for one row of x.

    table (batches, 2, k, rows) has at each source the decayed sum up to and including it, from the left at [:, 0] and
    from the right at [:, 1]. Sources are sorted, as ``position`` is; ``order`` has their indices in the caller's order.
    A fault makes the table NaN; one of a target shows in the first or the ``last`` number of ``ends``, which has
    ``length`` for each matrix. TO_TAU: the sums weighted by distance are a second table, ``weighted_at`` numbers
    after the first; their exponents u are in powers of two.
    """
    row, side, batch = (tl.program_id(0) // 2).to(tl.int64), tl.program_id(0) % 2, tl.program_id(1).to(tl.int64)
    rate = rate_of(tl.load(tau + batch))
    lane = tl.arange(0, SOURCES)
    inside = lane < k
    source = tl.where(side == 0, lane, k - 1 - lane)
    positions = tl.load(position + batch * k + source, mask=inside, other=0.0).to(tl.float64)
    index = tl.load(order + batch * k + source, mask=inside, other=0).to(tl.int64)
    v = tl.load(x + batch * x_batch + row * x_row + index * x_col, mask=inside, other=0.0).to(tl.float64)
    ends += batch * length
    outer = tl.load(ends).to(tl.float64) * 0.0 + tl.load(ends + last).to(tl.float64) * 0.0
    faults = tl.sum(tl.where(inside, positions * 0.0, 0.0), 0) + rate * 0.0 + outer
    place = ((batch * 2 + side) * k + source) * rows + row
    if TO_TAU:
        last = tl.load(position + batch * k + tl.where(side == 0, k - 1, 0)).to(tl.float64)
        positions = tl.where(inside, positions, last)
        sums, weighted = running_states(positions, v, tl.zeros_like(v), rate, EXACT, False)
        tl.store(table + weighted_at + place, weighted + faults, mask=inside)
    else:
        sums = carried_along(positions, v, inside, rate, EXACT)
    tl.store(table + place, sums + faults, mask=inside)


@triton.jit
def count_before(values, t, size, steps, OR_TIED: tl.constexpr):
    """How many of ``size`` sorted values are less than each t, or OR_TIED at most it, by bisection."""
    low, high = tl.zeros(t.shape, tl.int32), tl.zeros(t.shape, tl.int32) + size
    for _ in range(steps):
        searching = low < high
        middle = (low + high) // 2
        value = tl.load(values + middle, mask=searching, other=0.0)
        is_before = searching & ((value <= t) if OR_TIED else (value < t))
        low, high = tl.where(is_before, middle + 1, low), tl.where(searching & ~is_before, middle, high)
    return low


@triton.jit
def gaps_to_neighbours(source, t, number, k):
    """The distances from the sources ``number - 1`` and ``number`` to t, 0 where there is none."""
    left = tl.load(source + number - 1, mask=number > 0, other=0.0).to(tl.float64)
    right = tl.load(source + number, mask=number < k, other=0.0).to(tl.float64)
    t = t.to(tl.float64)
    return tl.where(number > 0, t - left, 0.0), tl.where(number < k, right - t, 0.0)


@triton.jit
def _neighbours(source, t, number, k, rate, EXACT: tl.constexpr, SUM: tl.constexpr):
    """For the sources ``number - 1`` and ``number``: the decays from each to t, then the exponents in powers of two."""
    left_gap, right_gap = gaps_to_neighbours(source, t, number, k)
    from_left, from_right = decay_over(left_gap, rate, EXACT), decay_over(right_gap, rate, EXACT)
    u_left, u_right = exponent_over(left_gap, rate), exponent_over(right_gap, rate)
    return from_left.to(SUM)[:, None], from_right.to(SUM)[:, None], u_left.to(SUM)[:, None], u_right.to(SUM)[:, None]


@program(numbers="m", callers=("target", "tau", "even", "odd"), divisible=("m", "rows"))
def spread_program(
    target, source, tau, table, even, odd, pull, stretch, m, n, k, rows, steps, weighted_at,
    even_batch, even_row, even_col, odd_batch, odd_row, odd_col,
    EXACT: tl.constexpr, EVEN: tl.constexpr, ODD: tl.constexpr, PULL: tl.constexpr, TO_TAU: tl.constexpr,
    TARGETS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """The even and odd sums of all rows at TARGETS targets, in the caller's order.

    EVEN and ODD say which sums are computed. ``odd`` is the output of the odd sums. With PULL or TO_TAU it is an input
    instead: the factors f (rows, targets) of two reductions over the rows,

        PULL      pull[i] = 1 / tau sum over rows of f O at target i; O is not stored
        TO_TAU    stretch[program] = 1 / tau sum over rows and this program's targets of f times E weighted by distance
    """
    SUM: tl.constexpr = tl.float64 if EXACT else tl.float32
    weighted_at = weighted_at // rows * rows  # the same number: now as divisible as the rows, for vector loads
    batch = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0).to(tl.int64) * TARGETS + tl.arange(0, TARGETS)
    inside = i < n
    t = tl.load(target + batch * n + i, mask=inside, other=0.0)
    source += batch * k
    tau = tl.load(tau + batch)
    rate = rate_of(tau)
    upto = count_before(source, t, k, steps, True)
    from_left, from_right, u_left, u_right = _neighbours(source, t, upto, k, rate, EXACT, SUM)
    lefts, rights = table + batch * 2 * k * rows, table + (batch * 2 + 1) * k * rows
    upto = upto.to(tl.int64)[:, None]
    if ODD:
        below = count_before(source, t, k, steps, False)
        strictly_left, _, _, _ = _neighbours(source, t, below, k, rate, EXACT, SUM)
        below = below.to(tl.int64)[:, None]
    pulled, stretched = tl.zeros([TARGETS], tl.float64), tl.zeros([TARGETS], tl.float64)
    for block in range(tl.cdiv(m, ROWS)):
        row = (block * ROWS + tl.arange(0, ROWS)).to(tl.int64)[None, :]
        both = inside[:, None] & (row < m)
        on_right, on_left = rights + upto * rows + row, lefts + (upto - 1) * rows + row
        has_right, has_left = both & (upto < k), both & (upto > 0)
        right, left = tl.load(on_right, mask=has_right, other=0.0), tl.load(on_left, mask=has_left, other=0.0)
        odd_at = odd + batch * odd_batch + row * odd_row + i[:, None] * odd_col
        if PULL or TO_TAU:
            factor = tl.load(odd_at, mask=both, other=0.0).to(tl.float64)
        if TO_TAU:
            weighted = (tl.load(on_right + weighted_at, mask=has_right, other=0.0) + u_right * right) * from_right
            weighted += (tl.load(on_left + weighted_at, mask=has_left, other=0.0) + u_left * left) * from_left
            stretched += tl.sum(factor * weighted.to(tl.float64), 1)
        right *= from_right
        if EVEN:
            even_at = even + batch * even_batch + row * even_row + i[:, None] * even_col
            tl.store(even_at, left * from_left + right, mask=both)
        if ODD:
            left = tl.load(lefts + (below - 1) * rows + row, mask=both & (below > 0), other=0.0)
            difference = right - left * strictly_left
            if PULL:
                pulled += tl.sum(factor * difference.to(tl.float64), 1)
            else:
                tl.store(odd_at, difference, mask=both)
    if PULL:
        tl.store(pull + batch * n + i, pulled / tau, mask=inside)
    if TO_TAU:
        tl.store(stretch + batch * tl.num_programs(0) + tl.program_id(0), tl.sum(stretched, 0) * LN_2 / tau)


@program(numbers="m", callers=("even", "place_of"))
def unstage_program(
    merged_y, place_of, even, m, n, padded, length, even_batch, even_row, even_col, WIDTH: tl.constexpr
):  # fmt: skip
    """Copy m rows of y from the merged order to the caller's. A program gathers, which is faster than scattering."""
    batch = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0).to(tl.int64) * WIDTH + tl.arange(0, WIDTH)
    place = tl.load(place_of + batch * length + i, mask=i < n, other=0)
    for number in range(m):
        row = tl.zeros([], tl.int64) + number
        v = tl.load(merged_y + (batch * m + row) * padded + place, mask=i < n, other=0.0)
        tl.store(even + batch * even_batch + row * even_row + i * even_col, v, mask=i < n)


@program(numbers="m", callers=("x", "place_of"), divisible=("m", "rows"))
def stage_program(
    x, place_of, merged_x, m, k, padded, rows, length, start, x_batch, x_row, x_col,
    SOURCES: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Copy x into the merged order, with the rows of x as the innermost dimension: merged_x[batch, place, row].

    The places of the sources begin at ``start`` of place_of (batches, length).
    """
    blocks = tl.cdiv(k, SOURCES)
    block, row_block = tl.program_id(0) % blocks, tl.program_id(0) // blocks
    batch = tl.program_id(1).to(tl.int64)
    j = block.to(tl.int64) * SOURCES + tl.arange(0, SOURCES)
    row = (row_block * ROWS + tl.arange(0, ROWS)).to(tl.int64)[None, :]
    both = (j < k)[:, None] & (row < m)
    place = tl.load(place_of + batch * length + start + j, mask=j < k, other=0).to(tl.int64)
    v = tl.load(x + batch * x_batch + row * x_row + j[:, None] * x_col, mask=both, other=0.0)
    tl.store(merged_x + (batch * padded + place[:, None]) * rows + row, v, mask=both)


@program(numbers="m", callers=("tau",), divisible=("m", "rows"))
def reduce_rows_program(
    merged_x, tau, entry, position, scratch, m, merged, padded, tiles, rows,
    EXACT: tl.constexpr, ODD: tl.constexpr, FIRST: tl.constexpr, IN_ORDER: tl.constexpr, FAR: tl.constexpr,
    TILE: tl.constexpr, POINTS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Sums of one tile for ROWS rows of x, as ``reduce_program`` computes them, from what ``stage_program`` copied.

    The sums are decayed to the tile's first and to its last position. ODD: a third sum has the sources that may tie
    with targets of another tile: those at the first position if targets come first at ties (FIRST), else at the last.
    ``reduce_program`` has stored the tiles' end positions in ``scratch`` before. POINTS points are read at a time.
    """
    tile, row_block = tl.program_id(0) % tiles, tl.program_id(0) // tiles
    batch = tl.program_id(1).to(tl.int64)
    batches = tl.num_programs(1).to(tl.int64)
    position += batch * padded
    entry += batch * (padded // WORD * 2 if IN_ORDER else padded)
    ends = scratch + batch * 2 * tiles
    first, last = tl.load(ends + tile), tl.load(ends + tiles + tile)
    rate = rate_of(tl.load(tau + batch))
    row = (row_block * ROWS + tl.arange(0, ROWS)).to(tl.int64)[None, :]
    SUM: tl.constexpr = tl.float64 if EXACT or ODD else tl.float32
    at_first_sums = tl.zeros([POINTS, ROWS], SUM)
    at_last_sums = tl.zeros([POINTS, ROWS], SUM)
    tied_sums = tl.zeros([POINTS, ROWS], SUM)
    span = (last - first) * rate
    for part in range(TILE // POINTS):
        place = (tile.to(tl.int64) if FAR else tile) * TILE + part * POINTS + tl.arange(0, POINTS)
        is_row, _ = entry_of(entry, tl.minimum(place, merged - 1), padded, IN_ORDER)
        is_source = (place < merged) & (~is_row if FIRST else is_row)
        p = tl.load(position + tl.minimum(place, merged - 1))
        both = is_source[:, None] & (row < m)
        x_here = merged_x + (batch * padded + place[:, None]) * rows + row
        v = tl.load(x_here, mask=both, other=0.0).to(SUM)
        if span <= NARROW:
            at_first, up, low, _high = narrow_powers(p, first, rate, span, EXACT)
            at_last = up * low
        else:
            at_first = decay_over(p.to(tl.float64) - first, rate, EXACT).to(tl.float64 if EXACT else tl.float32)
            at_last = decay_over(last - p.to(tl.float64), rate, EXACT).to(at_first.dtype)
        at_first_sums += v * at_first.to(SUM)[:, None]
        at_last_sums += v * at_last.to(SUM)[:, None]
        if ODD:
            tied_sums += tl.where((p.to(tl.float64) == (first if FIRST else last))[:, None], v, 0.0)
    totals = scratch + batches * 2 * tiles + (batch * m + row) * tiles + tile
    channel = batches * m * tiles
    tl.store(totals, tl.sum(at_first_sums.to(tl.float64), 0)[None, :], mask=row < m)
    tl.store(totals + channel, tl.sum(at_last_sums.to(tl.float64), 0)[None, :], mask=row < m)
    if ODD:
        tl.store(totals + 2 * channel, tl.sum(tied_sums, 0)[None, :], mask=row < m)
