"""Products of which one side is short, on the GPU.

Short to long: the sums left and right of every source, a table of (source, row) with the rows side by side, are read by
every target, in the caller's order, beside the two sources it lies between. Long to short: the tiles of the merged
order are reduced with the rows side by side, too, so that a point is one access for all of them.
"""

from __future__ import annotations

import triton
import triton.language as tl

from laplex._triton.distance.programs import exponent_over, running_states
from laplex._triton.points import (
    LN_2,
    NARROW,
    WORD,
    decay_over,
    entries_at,
    entry_of,
    narrow_powers,
    places,
    rate_of,
)
from laplex._triton.scan.carry import carried_along


@triton.jit(do_not_specialize_on_alignment=["x", "tau"])
def table_program(
    x, tau, position, order, fault, table, m, k, rows, degree, x_batch, x_row, x_col,
    EXACT: tl.constexpr, TO_TAU: tl.constexpr, SOURCES: tl.constexpr,
):  # fmt: skip
    """table[batch, side, source, row]: the sum at a source of those up to it, from the left (side 0) or the right.

    TO_TAU: ``degree`` further on the same of the sums weighted by distance, in powers of two.

    Sources are in order, as ``position`` is; ``order`` says where the caller has them. A fault makes all of it NaN.
    """
    row, side, batch = (tl.program_id(0) // 2).to(tl.int64), tl.program_id(0) % 2, tl.program_id(1).to(tl.int64)
    rate = rate_of(tl.load(tau + batch))
    way = tl.arange(0, SOURCES)
    have = way < k
    source = tl.where(side == 0, way, k - 1 - way)
    at = tl.load(position + batch * k + source, mask=have, other=0.0).to(tl.float64)
    index = tl.load(order + batch * k + source, mask=have, other=0)
    v = tl.load(x + batch * x_batch + row * x_row + index * x_col, mask=have, other=0.0).to(tl.float64)
    broken = tl.sum(tl.where(have, at * 0.0, 0.0), 0) + rate * 0.0 + tl.load(fault + batch)
    place = ((batch * 2 + side) * k + source) * rows + row
    if TO_TAU:
        last = tl.load(position + batch * k + tl.where(side == 0, k - 1, 0)).to(tl.float64)
        at = tl.where(have, at, last)
        sums, weighted = running_states(at, v, tl.zeros_like(v), rate, EXACT, False)
        tl.store(table + degree + place, weighted + broken, mask=have)
    else:
        sums = carried_along(at, v, have, rate, EXACT)
    tl.store(table + place, sums + broken, mask=have)


@triton.jit
def count(source, t, k, steps, TIED: tl.constexpr):
    """How many of the k sources in order are less than t, or TIED with it, by bisection."""
    low, high = tl.zeros(t.shape, tl.int32), tl.zeros(t.shape, tl.int32) + k
    for _ in range(steps):
        searching = low < high
        middle = (low + high) // 2
        s = tl.load(source + middle, mask=searching, other=0.0)
        ahead = searching & ((s <= t) if TIED else (s < t))
        low, high = tl.where(ahead, middle + 1, low), tl.where(searching & ~ahead, middle, high)
    return low


@triton.jit
def _beside(source, t, number, k, rate, EXACT: tl.constexpr, SUM: tl.constexpr):
    """The decays from the last of ``number`` sources, and from the next, to t; and their exponents."""
    left = tl.load(source + number - 1, mask=number > 0, other=0.0).to(tl.float64)
    right = tl.load(source + number, mask=number < k, other=0.0).to(tl.float64)
    left_gap = tl.where(number > 0, t.to(tl.float64) - left, 0.0)
    right_gap = tl.where(number < k, right - t.to(tl.float64), 0.0)
    from_left, from_right = decay_over(left_gap, rate, EXACT), decay_over(right_gap, rate, EXACT)
    u_left, u_right = exponent_over(left_gap, rate), exponent_over(right_gap, rate)
    return from_left.to(SUM)[:, None], from_right.to(SUM)[:, None], u_left.to(SUM)[:, None], u_right.to(SUM)[:, None]


@triton.jit(do_not_specialize_on_alignment=["target", "tau", "even", "odd"])
def spread_program(
    target, source, tau, table, even, odd, pull, stretch, m, n, k, rows, steps, degree,
    even_batch, even_row, even_col, odd_batch, odd_row, odd_col,
    EXACT: tl.constexpr, EVEN: tl.constexpr, ODD: tl.constexpr, PULL: tl.constexpr, TO_TAU: tl.constexpr,
    TARGETS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """The sums at targets in the caller's order: even, and odd; PULL as in ``scan_program``, over all rows.

    TO_TAU: ``odd`` is the weights, as for PULL, and ``stretch`` takes 1/tau times the sum, over this program's targets
    and all rows, of the weights times the sums weighted by distance.
    """
    SUM: tl.constexpr = tl.float64 if EXACT else tl.float32
    batch = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0).to(tl.int64) * TARGETS + tl.arange(0, TARGETS)
    inside = i < n
    t = tl.load(target + batch * n + i, mask=inside, other=0.0)
    source += batch * k
    tau = tl.load(tau + batch)
    rate = rate_of(tau)
    upto = count(source, t, k, steps, True)
    from_left, from_right, u_left, u_right = _beside(source, t, upto, k, rate, EXACT, SUM)
    lefts, rights = table + batch * 2 * k * rows, table + (batch * 2 + 1) * k * rows
    upto = upto.to(tl.int64)[:, None]
    if ODD:
        below = count(source, t, k, steps, False)
        strictly_left, _, _, _ = _beside(source, t, below, k, rate, EXACT, SUM)
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
            weighted = (tl.load(on_right + degree, mask=has_right, other=0.0) + u_right * right) * from_right
            weighted += (tl.load(on_left + degree, mask=has_left, other=0.0) + u_left * left) * from_left
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


@triton.jit
def place_program(
    entry, place_of, merged, padded, n, length, IN_ORDER: tl.constexpr, FAR: tl.constexpr, TILE: tl.constexpr
):
    """Where in the merged order each row lies, and behind the n rows each column."""
    tile, batch = tl.program_id(0), tl.program_id(1).to(tl.int64)
    entry += batch * (padded // WORD * 2 if IN_ORDER else padded)
    place = places(tile, FAR, TILE)
    is_row, row, is_col, col = entries_at(entry, place, merged, padded, True, IN_ORDER)
    tl.store(place_of + batch * length + row, place, mask=is_row)
    tl.store(place_of + batch * length + n + col, place, mask=is_col)


@triton.jit(do_not_specialize_on_alignment=["even", "place_of"])
def unstage_program(
    merged_y, place_of, even, m, n, padded, length, even_batch, even_row, even_col, WIDTH: tl.constexpr
):  # fmt: skip
    """y out of the merged order: gathering is faster than scattering."""
    batch = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0).to(tl.int64) * WIDTH + tl.arange(0, WIDTH)
    place = tl.load(place_of + batch * length + i, mask=i < n, other=0)
    for number in range(m):
        row = tl.zeros([], tl.int64) + number
        v = tl.load(merged_y + (batch * m + row) * padded + place, mask=i < n, other=0.0)
        tl.store(even + batch * even_batch + row * even_row + i * even_col, v, mask=i < n)


@triton.jit(do_not_specialize_on_alignment=["x", "place_of"])
def stage_program(
    x, place_of, merged_x, m, k, padded, rows, length, x_batch, x_row, x_col,
    SOURCES: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """x in the merged order with its rows side by side: merged_x[batch, place, row]."""
    blocks = tl.cdiv(k, SOURCES)
    block, row_block = tl.program_id(0) % blocks, tl.program_id(0) // blocks
    batch = tl.program_id(1).to(tl.int64)
    j = block.to(tl.int64) * SOURCES + tl.arange(0, SOURCES)
    row = (row_block * ROWS + tl.arange(0, ROWS)).to(tl.int64)[None, :]
    both = (j < k)[:, None] & (row < m)
    place = tl.load(place_of + batch * length + j, mask=j < k, other=0).to(tl.int64)
    v = tl.load(x + batch * x_batch + row * x_row + j[:, None] * x_col, mask=both, other=0.0)
    tl.store(merged_x + (batch * padded + place[:, None]) * rows + row, v, mask=both)


@triton.jit(do_not_specialize_on_alignment=["tau"])
def reduce_rows_program(
    merged_x, tau, entry, position, scratch, m, merged, padded, tiles, rows,
    EXACT: tl.constexpr, ODD: tl.constexpr, FIRST: tl.constexpr, IN_ORDER: tl.constexpr, FAR: tl.constexpr,
    TILE: tl.constexpr, POINTS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """As ``reduce_program``, which found the tiles' ends, of x with its rows side by side."""
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
        at = merged_x + (batch * padded + place[:, None]) * rows + row
        v = tl.load(at, mask=both, other=0.0).to(SUM)
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
