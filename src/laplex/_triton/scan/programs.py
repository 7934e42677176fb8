"""The ordered scan on the GPU, in tiles of the merged order: reduce every tile, carry, scan every tile.

A program stands over TILE points of the merged order, as (SERIAL, TILE / SERIAL): a thread takes SERIAL neighbouring
points, so that a scan is SERIAL additions and one scan over threads. ROWS rows of x share what depends on the points.
The decay over a span is that of its end points, never a product of decays. Between tiles (position, sum) is carried:

    left of a tile:   the tiles before it, at the last position of the one before
    right of a tile:  the tiles behind it, at the first position of the next

Within a tile every sum is referred to one position, so that the scan is two plain cumulative sums and a point costs two
exponentials; a tile that spans too many tau for that is scanned window by window.

A fault (anchors or a tau that are not finite and positive, a plan that does not hold) is a NaN among the tiles'
positions. It is carried to every tile: the whole output is NaN.
"""

from __future__ import annotations

import triton
import triton.language as tl

from laplex._triton.points import (
    INFINITY,
    LN_2,
    NARROW,
    WORD,
    decay_over,
    entries_at,
    entry_of,
    fault_at_ends,
    flat,
    follow,
    load_points,
    narrow_powers,
    places,
    rate_of,
)
from laplex._triton.scan.carry import carried_to, weights_of_tiles
from laplex._triton.scan.rows import load_rows, store_rows
from laplex._triton.scan.sums import row_sums, ties_of_tile


@triton.jit(do_not_specialize_on_alignment=["target", "source"])
def refresh_program(
    target, source, entry, position, merged, padded, n, k,
    FIRST: tl.constexpr, IN_ORDER: tl.constexpr, FAR: tl.constexpr, TILE: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """Anchors that may have moved, in the plan's order; whether they are in it, ``reduce_program`` sees."""
    if EARLY:
        follow()
    tile, batch = tl.program_id(0), tl.program_id(1).to(tl.int64)
    entry += batch * (padded // WORD * 2 if IN_ORDER else padded)
    place = places(tile, FAR, TILE)
    is_target, t, is_source, s = entries_at(entry, place, merged, padded, FIRST, IN_ORDER)
    p = tl.load(target + batch * n + t, mask=is_target, other=0.0)
    p += tl.load(source + batch * k + s, mask=is_source, other=0.0)
    is_row, i = entry_of(entry, tl.zeros([1, 1], place.dtype) + merged - 1, padded, IN_ORDER)
    from_target = is_row if FIRST else ~is_row
    last = tl.load(target + batch * n + i, mask=from_target, other=0.0)
    last += tl.load(source + batch * k + i, mask=~from_target, other=0.0)
    p = tl.where(place < merged, p, last)  # what is padded repeats the last
    tl.store(position + batch * padded + place, p, mask=place < padded)


@triton.jit
def broken(position, entry, place, p, is_target, merged, padded, FIRST: tl.constexpr, IN_ORDER: tl.constexpr):
    """NaN if the positions are not finite and in order, or tie with the second side before the first; else 0."""
    following = place + 1
    known = following < merged
    next_is_row, _ = entry_of(entry, tl.minimum(following, merged - 1), padded, IN_ORDER)
    next_p = tl.load(position + following, mask=known, other=INFINITY)
    turned = ~is_target & next_is_row if FIRST else is_target & next_is_row
    holds = (tl.abs(p) < INFINITY) & ((p < next_p) | ((p == next_p) & ~turned) | ~known)
    return tl.where(tl.min(tl.min((holds | (place >= merged)).to(tl.int32), 1), 0) != 0, 0.0, float("nan"))


@triton.jit(do_not_specialize_on_alignment=["x", "tau"])
def reduce_program(
    x, merged_x, tau, entry, position, scratch, m, merged, padded, tiles, rate_at, x_batch, x_row, x_col,
    EXACT: tl.constexpr, ODD: tl.constexpr, FIRST: tl.constexpr, IN_ORDER: tl.constexpr, STAGED: tl.constexpr,
    CHECKED: tl.constexpr, ALONE: tl.constexpr, FAR: tl.constexpr, TILE: tl.constexpr, ROWS: tl.constexpr,
    SIDE: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """A tile's end positions and its sums at them, from the right and the left; "places": x in the merged order.

    The first tile leaves the rate at ``rate_at``: to find it is a good part of a small tile's work.
    """
    if EARLY:
        follow()
    tile, row_block = tl.program_id(0), tl.program_id(1)
    batch = tl.zeros([], tl.int64) if ALONE else tl.program_id(2).to(tl.int64)
    entry += batch * (padded // WORD * 2 if IN_ORDER else padded)
    position += batch * padded
    place = places(tile, FAR, TILE)
    start = tile.to(place.dtype) * TILE
    first = tl.load(position + start).to(tl.float64)
    last = tl.load(position + tl.minimum(start + TILE, merged) - 1).to(tl.float64)
    inside = place < merged
    p = tl.load(position + place, mask=place < padded, other=0.0)
    is_target, _, is_source, at = entries_at(entry, place, merged, padded, FIRST, IN_ORDER)
    rate = rate_of(tl.load(tau + batch))
    if tile == 0:
        tl.store(scratch + rate_at + batch, rate)
    fault = fault_at_ends(position, merged, rate)
    if CHECKED:
        fault += broken(position, entry, place, p, is_target, merged, padded, FIRST, IN_ORDER)
    batches = tl.zeros([], tl.int64) + 1 if ALONE else tl.num_programs(2).to(tl.int64)
    ends = scratch + batch * 2 * tiles
    tl.store(ends + tile, first + fault)
    tl.store(ends + tiles + tile, last + fault)
    p = tl.where(inside, p, last.to(p.dtype))
    span = (last - first) * rate
    if span <= NARROW:
        at_first, up, low, _high = narrow_powers(p, first, rate, span, EXACT)
        at_last = up * low
    else:
        at_first = decay_over(p.to(tl.float64) - first, rate, EXACT).to(tl.float64 if EXACT else tl.float32)
        at_last = decay_over(last - p.to(tl.float64), rate, EXACT).to(at_first.dtype)
    SUM: tl.constexpr = tl.float64 if EXACT or ODD else tl.float32
    at_first, at_last = at_first.to(SUM), at_last.to(SUM)
    channel = batches * m * tiles
    for number in range(row_block * ROWS, tl.minimum(row_block * ROWS + ROWS, m), SIDE):
        rows = load_rows(x + batch * x_batch, number, at, is_source, x_row, x_col, SIDE, IN_ORDER)
        for beside in tl.static_range(SIDE):
            row = tl.zeros([], tl.int64) + number + beside
            of_row = batch * m + row
            if STAGED == "places":
                tl.store(merged_x + of_row * padded + place, rows[beside], mask=place < padded)
            v = rows[beside].to(SUM)
            totals = scratch + batches * 2 * tiles + of_row * tiles + tile
            tl.store(totals, total(v * at_first), mask=row < m)
            tl.store(totals + channel, total(v * at_last), mask=row < m)
            if ODD:
                tied = p.to(tl.float64) == (first if FIRST else last)
                tl.store(totals + 2 * channel, total(tl.where(tied, v, 0.0)), mask=row < m)


@triton.jit
def total(v):
    return tl.sum(tl.sum(v, 0).to(tl.float64), 0)


@triton.jit(do_not_specialize_on_alignment=["x", "odd", "even"])
def scan_program(
    x, odd, entry, position, scratch, even, pull, m, n, merged, padded, tiles, rate_at,
    x_batch, x_row, x_col, even_batch, even_row, even_col, odd_batch, odd_row, odd_col,
    EXACT: tl.constexpr, ODD: tl.constexpr, PULL: tl.constexpr, FIRST: tl.constexpr, IN_ORDER: tl.constexpr,
    STAGED: tl.constexpr, UNSTAGED: tl.constexpr, SPARSE: tl.constexpr, FAR: tl.constexpr, CARRY: tl.constexpr,
    ALONE: tl.constexpr, TILE: tl.constexpr, ROWS: tl.constexpr, SPANS: tl.constexpr, TILES: tl.constexpr,
    SIDE: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """The sums at a tile's targets: even, and odd; with PULL ``odd`` is what the odd sums are multiplied with instead,
    and ``pull`` takes the products' sum over the rows of this program, over tau.

    SPANS: of "all" tiles, or those that are "narrow", which take a third of the registers that "wide" ones do. A
    program may stand over several TILES that are wide, if they are: mostly none is, and then it is soon done.
    """
    if EARLY:
        follow()
    start = tl.program_id(0) * TILES
    if TILES == 1:
        _scan_tile(
            start, x, odd, entry, position, scratch, even, pull, m, n, merged, padded, tiles, rate_at,
            x_batch, x_row, x_col, even_batch, even_row, even_col, odd_batch, odd_row, odd_col,
            EXACT, ODD, PULL, FIRST, IN_ORDER, STAGED, UNSTAGED, SPARSE, FAR, CARRY, ALONE, TILE, ROWS, SPANS,
            SIDE,
        )  # fmt: skip
    else:
        batch = tl.program_id(2).to(tl.int64)
        tile = start + tl.arange(0, TILES)
        ends = scratch + batch * 2 * tiles + tile
        first, last = tl.load(ends, mask=tile < tiles, other=0.0), tl.load(ends + tiles, mask=tile < tiles, other=0.0)
        narrow = (last - first) * tl.load(scratch + rate_at + batch) <= NARROW
        if tl.min(narrow.to(tl.int32), 0) == 0:
            for number in range(tl.minimum(TILES, tiles - start)):
                _scan_tile(
                    start + number, x, odd, entry, position, scratch, even, pull, m, n, merged, padded, tiles, rate_at,
                    x_batch, x_row, x_col, even_batch, even_row, even_col, odd_batch, odd_row, odd_col,
                    EXACT, ODD, PULL, FIRST, IN_ORDER, STAGED, UNSTAGED, SPARSE, FAR, CARRY, ALONE, TILE, ROWS, SPANS,
                    SIDE,
                )  # fmt: skip


@triton.jit
def _scan_tile(
    tile,
    x, odd, entry, position, scratch, even, pull, m, n, merged, padded, tiles, rate_at,
    x_batch, x_row, x_col, even_batch, even_row, even_col, odd_batch, odd_row, odd_col,
    EXACT: tl.constexpr, ODD: tl.constexpr, PULL: tl.constexpr, FIRST: tl.constexpr, IN_ORDER: tl.constexpr,
    STAGED: tl.constexpr, UNSTAGED: tl.constexpr, SPARSE: tl.constexpr, FAR: tl.constexpr, CARRY: tl.constexpr,
    ALONE: tl.constexpr, TILE: tl.constexpr, ROWS: tl.constexpr, SPANS: tl.constexpr, SIDE: tl.constexpr,
):  # fmt: skip
    row_block = tl.program_id(1)
    batch = tl.zeros([], tl.int64) if ALONE else tl.program_id(2).to(tl.int64)
    rate = tl.load(scratch + rate_at + batch)
    ends = scratch + batch * 2 * tiles + tile
    first, last = tl.load(ends), tl.load(ends + tiles)
    span = (last - first) * rate
    entry += batch * (padded // WORD * 2 if IN_ORDER else padded)
    position += batch * padded
    STRICT: tl.constexpr = ODD and SPANS == "narrow"
    MIRRORED: tl.constexpr = STRICT and FIRST  # a target's tied sources come before it then
    place = places(tile, FAR, TILE, 4 if SIDE == 1 else 8, MIRRORED)
    start = tile.to(place.dtype) * TILE
    p = load_points(position, place, place < padded, not MIRRORED)
    is_target, at, is_source, from_at = entries_at(entry, place, merged, padded, FIRST, IN_ORDER, MIRRORED)
    wanted = True
    if SPANS != "all":
        wanted = (span <= NARROW) == (SPANS == "narrow")
    if SPARSE:  # most tiles have no target
        wanted &= tl.max(tl.max(is_target.to(tl.int32), 1), 0) > 0
    if wanted:
        inside = place < merged
        p = tl.where(inside, p, last.to(p.dtype))
        # Ties may be all but everything. Where they are subtracted from odd sums, that must be what was added.
        SUM: tl.constexpr = tl.float64 if EXACT or (ODD and not STRICT) else tl.float32
        down, up, low, high = narrow_powers(p, first, rate, span, EXACT)  # of wide tiles without meaning, and not used
        down, up, low, high = down.to(SUM), up.to(SUM), low.to(SUM), high.to(SUM)
        p_left = tl.load(ends + tiles - 1, mask=tile > 0, other=-INFINITY)
        p_right = tl.load(ends + 1, mask=tile + 1 < tiles, other=INFINITY)
        outside = weights_of_tiles(ends, tile, tiles, first, last, p_left, p_right, rate, EXACT, CARRY)
        ties = ()
        if ODD:
            same = _same_beside(position, p, place, start, merged, FIRST, TILE, MIRRORED).to(tl.int32)
            ties = ties_of_tile(p, same, first, last, p_left, p_right, rate, FIRST, STRICT, EXACT)
        batches = tl.zeros([], tl.int64) + 1 if ALONE else tl.num_programs(2).to(tl.int64)
        pulled = tl.zeros(p.shape, tl.float64)
        for number in range(row_block * ROWS, tl.minimum(row_block * ROWS + ROWS, m), SIDE):
            from_places = place if STAGED != "" else from_at
            known = (place < padded) if STAGED == "places" else is_source
            IN_TURN: tl.constexpr = not MIRRORED and (IN_ORDER or STAGED != "")
            rows = load_rows(x + batch * x_batch, number, from_places, known, x_row, x_col, SIDE, IN_TURN)
            if PULL:
                weights = load_rows(odd + batch * odd_batch, number, at, is_target, odd_row, odd_col, SIDE, IN_ORDER)
            evens, odds = (), ()
            for beside in tl.static_range(SIDE):
                v = rows[beside].to(SUM)
                row = tl.minimum(tl.zeros([], tl.int64) + number + beside, m - 1)
                totals = scratch + batches * 2 * tiles + (batch * m + row) * tiles
                carried = carried_to(totals, batches * m * tiles, tile, tiles, outside, ODD, FIRST, CARRY)
                total_sum, difference = row_sums(
                    v, p, inside, span, (first, last, p_left, p_right), (down, up, low, high), ties, carried, rate,
                    EXACT, ODD, FIRST, SPANS,
                )  # fmt: skip
                evens += (total_sum.to(even.dtype.element_ty),)  # type: ignore[assignment]
                if PULL:
                    pulling = weights[beside].to(tl.float64) * difference.to(tl.float64)
                    pulled += tl.where(number + beside < m, pulling, 0.0)  # rows beyond m are anything
                elif ODD:
                    odds += (difference.to(odd.dtype.element_ty),)  # type: ignore[assignment]
            asked, places_of = ((place < padded), place) if UNSTAGED else (is_target, at)
            TO_TURN: tl.constexpr = IN_ORDER or (UNSTAGED and not MIRRORED)
            store_rows(even + batch * even_batch, number, places_of, evens, asked, even_row, even_col, SIDE, TO_TURN)
            if ODD and not PULL:
                store_rows(odd + batch * odd_batch, number, at, odds, is_target, odd_row, odd_col, SIDE, IN_ORDER)
        if PULL:
            pull += (batch * tl.num_programs(1) + row_block) * n
            tl.store(pull + flat(at), flat(pulled * (rate * LN_2)), mask=flat(is_target))


@triton.jit
def _same_beside(position, p, place, start, merged, FIRST: tl.constexpr, TILE: tl.constexpr, MIRRORED: tl.constexpr):
    """Whether the point's neighbour in the tile, behind it or before it, has its position.

    Tied sources lie behind a target that comes first at ties, and before one that comes second: in one sum whole.
    """
    beside = place + 1 if FIRST else place - 1
    known = (beside >= start) & (beside < tl.minimum(start + TILE, merged))
    return known & (load_points(position, beside, known, not MIRRORED) == p)


@triton.jit(do_not_specialize_on_alignment=["g", "odd", "tau", "out"])
def row_dot_program(
    g, odd, tau, out, m, n, g_batch, g_row, g_col, o_batch, o_row, o_col, WIDTH: tl.constexpr, ROWS: tl.constexpr
):
    """1/tau sum over rows of g * odd."""
    batch = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0).to(tl.int64) * WIDTH + tl.arange(0, WIDTH)
    total = tl.zeros([WIDTH], tl.float64)
    for block in range(tl.cdiv(m, ROWS)):
        row = (block * ROWS + tl.arange(0, ROWS)).to(tl.int64)
        both = (row < m)[:, None] & (at < n)[None, :]
        left = tl.load(g + batch * g_batch + row[:, None] * g_row + at[None, :] * g_col, mask=both, other=0.0)
        right = tl.load(odd + batch * o_batch + row[:, None] * o_row + at[None, :] * o_col, mask=both, other=0.0)
        total += tl.sum(left.to(tl.float64) * right.to(tl.float64), 0)
    tl.store(out + batch * n + at, total / tl.load(tau + batch), mask=at < n)


@triton.jit
def block_sum_program(pull, out, blocks, n, WIDTH: tl.constexpr, ROWS: tl.constexpr):
    """The sum over blocks of rows, (batch, block, n) to (batch, n)."""
    batch = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0).to(tl.int64) * WIDTH + tl.arange(0, WIDTH)
    total = tl.zeros([WIDTH], tl.float64)
    for start in range(0, blocks, ROWS):
        block = (start + tl.arange(0, ROWS)).to(tl.int64)
        both = (block < blocks)[:, None] & (at < n)[None, :]
        part = tl.load(pull + (batch * blocks + block[:, None]) * n + at[None, :], mask=both, other=0.0)
        total += tl.sum(part.to(tl.float64), 0)
    tl.store(out + batch * n + at, total, mask=at < n)
