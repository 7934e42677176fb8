"""The ordered scan on the GPU: for every target t, the sums of exp(-|t - s| / tau) x over the sources s on either side.

``laplex._scan`` derives the recurrence: pairs (s, v), of a sum v referred to the position s, combine associatively, so
that all sums are a parallel prefix sum, once from the left and once from the right; and says why pairs carry positions.

Three phases
    reduce    ``reduce_program``: every tile's sums, referred to its first and to its last position
    carry     ``carry_program``, for very many tiles after ``group_program``: a scan over tiles (``scan.carry``)
    scan      ``scan_program``: every tile again: its own running sums, plus the carries (``scan.sums``)

    This is "reduce, then scan", with separate launches. A single launch with decoupled look-back (Merrill and Garland,
    "Single-pass Parallel Prefix Scan with Decoupled Look-back", 2016) reads x once instead of twice: a tile waits for
    the sums of the tiles before it. We do not use it for three reasons. A tile here needs sums from both sides, so it
    would also wait for tiles that have not started, perhaps forever. Look-back adds in a sequence that depends on
    timing, while our results repeat bit by bit. And it needs atomics, to number the tiles in the order they start.

    A program has a tile of TILE points, (SERIAL, TILE / SERIAL), and ``rows_each`` rows of x, which share all that
    depends on the points alone. Every thread has SERIAL consecutive points: a scan is SERIAL additions and one scan
    over threads.

Ties
    A source tied with a target counts once in the even sum (left + ties + right) and not at all in the odd sum (right
    - left). In the merged order rows come before columns at ties. So if FIRST (the targets are the rows) tied sources
    lie right of their target, otherwise left of it: one of the two running sums has all of them, and the other none.
    The even sum needs no care. For the odd sum the ties must be taken out of the sum that has them. Ties may be almost
    all of that sum, so subtracting them in float32 could leave only rounding errors. A launch for narrow tiles alone
    (SPANS = "narrow", STRICT) reads the sum before the ties are added. In other launches all sums are float64, and the
    sum over the ties is computed separately and subtracted.

Narrow and wide tiles
    A tile that spans at most NARROW powers of two has all its sums referred to one position. A wider tile is cut into
    windows of at most NEAR powers of two, because weights must stay in the range of the floating-point numbers. The
    constants are bounds on accuracy: see ``points`` (NARROW, TINY) and ``sums`` and ``carry`` (NEAR, NEAR_EXACT).

The scratch memory, float64, h batch entries of m rows, all arrays contiguous
    ends      (h, 2, tiles)       the first and the last position of every tile; NaN is a fault, and reaches all carries
    totals    (2 or 3, h, m, tiles)    a tile's sum at its first position; at its last position; if ODD, the sum over
                                       sources tied with the first position if FIRST, else with the last one
    carries   (4 or 5, h, m, tiles)    from the right at the tile's first position; from the left at its last position;
                                       from the right at the right neighbour's first position; from the left at the left
                                       neighbour's last position; if ODD, the sum over ties there
    rates     (h,)                from ``rate_at`` on

Compile-time flags in addition to those of ``points``
    ODD       odd sums, too
    STAGED    how x lies in the merged order when the scan reads it: "" not at all (gathered from the caller's x),
              "places" (h, m, padded), as ``reduce_program`` has copied it, "rows" (h, padded, m)
    UNSTAGED  the even sums are written in the merged order, and may replace x there
    SPARSE    most tiles have no target, and those are skipped
    SPANS     the tiles of this launch, "all", "narrow" or "wide". Narrow tiles take a third of the registers of wide
              ones, so large products have one launch for each
    TILES     tiles of a program: several in a launch of wide tiles, of which mostly none is wide
    CARRY     as in ``carried_to``
    ONE_BATCH       h = 1
    ONE_ROW         a program has one row of x, and no loop over rows, which takes registers
    ROWS_AT_ONCE    rows that one access loads or stores, 1 or 4 (``scan.rows``)
"""

import triton
import triton.language as tl

from laplex._triton.order.programs_refresh import order_fault
from laplex._triton.points import (
    INFINITY,
    LN_2,
    NARROW,
    WORD,
    decay_over,
    entries_at,
    fault_at_ends,
    flat,
    follow,
    load_points,
    narrow_powers,
    places,
    rate_of,
)
from laplex._triton.program import program
from laplex._triton.scan.carry import carried_to, weights_of_tiles
from laplex._triton.scan.rows import load_rows, store_rows
from laplex._triton.scan.sums import row_sums, ties_of_tile


@program(numbers="m", callers=("x", "tau"))
def reduce_program(
    x, merged_x, tau, entry, position, scratch, m, merged, padded, tiles, rate_at, x_batch, x_row, x_col, rows_each,
    EXACT: tl.constexpr, ODD: tl.constexpr, FIRST: tl.constexpr, IN_ORDER: tl.constexpr, STAGED: tl.constexpr,
    CHECKED: tl.constexpr, ONE_BATCH: tl.constexpr, FAR: tl.constexpr, TILE: tl.constexpr, ONE_ROW: tl.constexpr,
    ROWS_AT_ONCE: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """The first phase: write a tile's ends and totals, and if STAGED also x in the merged order, as "places".

    The first tile stores the rate for the third phase: finding it would be much of a small tile's work there. With
    m = 0 the ends and the rates are all that is written.
    """
    if EARLY:
        follow()
    tile, row_block = tl.program_id(0), tl.program_id(1)
    batch = tl.zeros([], tl.int64) if ONE_BATCH else tl.program_id(2).to(tl.int64)
    entry += batch * (padded // WORD * 2 if IN_ORDER else padded)
    position += batch * padded
    place = places(tile, FAR, TILE)
    start = tile.to(place.dtype) * TILE
    first = tl.load(position + start).to(tl.float64)
    last = tl.load(position + tl.minimum(start + TILE, merged) - 1).to(tl.float64)
    inside = place < merged
    p = tl.load(position + place, mask=place < padded, other=0.0)
    is_target, _, is_source, s_index = entries_at(entry, place, merged, padded, FIRST, IN_ORDER)
    rate = rate_of(tl.load(tau + batch))
    if tile == 0:
        tl.store(scratch + rate_at + batch, rate)
    fault = fault_at_ends(position, merged, rate)
    if CHECKED:
        fault += order_fault(position, entry, place, p, is_target, merged, padded, FIRST, IN_ORDER)
    batches = tl.zeros([], tl.int64) + 1 if ONE_BATCH else tl.num_programs(2).to(tl.int64)
    ends = scratch + batch * 2 * tiles
    tl.store(ends + tile, first + fault)
    tl.store(ends + tiles + tile, last + fault)
    p = tl.where(inside, p, last.to(p.dtype))
    span = (last - first) * rate
    if span <= NARROW:
        to_first, up, low, _high = narrow_powers(p, first, rate, span, EXACT)
        to_last = up * low
    else:
        to_first = decay_over(p.to(tl.float64) - first, rate, EXACT).to(tl.float64 if EXACT else tl.float32)
        to_last = decay_over(last - p.to(tl.float64), rate, EXACT).to(to_first.dtype)
    SUM: tl.constexpr = tl.float64 if EXACT or ODD else tl.float32
    to_first, to_last = to_first.to(SUM), to_last.to(SUM)
    channel = batches * m * tiles
    begin, end = rows_of(row_block, rows_each, m, ONE_ROW)
    for row_start in range(begin, end, ROWS_AT_ONCE):
        rows = load_rows(x + batch * x_batch, row_start, s_index, is_source, x_row, x_col, ROWS_AT_ONCE, IN_ORDER)
        for r in tl.static_range(ROWS_AT_ONCE):
            row = tl.zeros([], tl.int64) + row_start + r
            batch_row = batch * m + row
            if STAGED:
                tl.store(merged_x + batch_row * padded + place, rows[r], mask=place < padded)
            v = rows[r].to(SUM)
            totals = scratch + batches * 2 * tiles + batch_row * tiles + tile
            tl.store(totals, total(v * to_first), mask=row < m)
            tl.store(totals + channel, total(v * to_last), mask=row < m)
            if ODD:
                is_tied = p.to(tl.float64) == (first if FIRST else last)
                tl.store(totals + 2 * channel, total(tl.where(is_tied, v, 0.0)), mask=row < m)


@triton.jit
def rows_of(row_block, rows_each, m, ONE_ROW: tl.constexpr):
    """The first row of a program, and the end of its rows."""
    if ONE_ROW:
        return row_block, row_block + 1
    else:
        return row_block * rows_each, tl.minimum((row_block + 1) * rows_each, m)


@triton.jit
def total(v):
    """The sum over a tile: of each thread's points in the dtype of v, of threads in float64."""
    return tl.sum(tl.sum(v, 0).to(tl.float64), 0)


@program(numbers="m", callers=("x", "odd_or_weights", "even"))
def scan_program(
    x, odd_or_weights, entry, position, scratch, even, pull, m, n, merged, padded, tiles, rate_at,
    x_batch, x_row, x_col, even_batch, even_row, even_col, odd_batch, odd_row, odd_col, rows_each,
    EXACT: tl.constexpr, ODD: tl.constexpr, PULL: tl.constexpr, FIRST: tl.constexpr, IN_ORDER: tl.constexpr,
    STAGED: tl.constexpr, UNSTAGED: tl.constexpr, SPARSE: tl.constexpr, FAR: tl.constexpr, CARRY: tl.constexpr,
    ONE_BATCH: tl.constexpr, TILE: tl.constexpr, ONE_ROW: tl.constexpr, SPANS: tl.constexpr, TILES: tl.constexpr,
    ROWS_AT_ONCE: tl.constexpr,
    EARLY: tl.constexpr,
):  # fmt: skip
    """The third phase: write the even sums at a tile's targets, and if ODD the odd sums.

    PULL: ``odd_or_weights``, whose strides are odd_batch, odd_row and odd_col, holds weights, which are read. The odd
    sums are not stored: 1/tau times the sum over this program's rows of weights * odd goes to ``pull``, (h, row blocks,
    n). That is the gradient of the target anchors. Without PULL ``odd_or_weights`` takes the odd sums.
    """
    if EARLY:
        follow()
    row_block = tl.program_id(1)
    batch = tl.zeros([], tl.int64) if ONE_BATCH else tl.program_id(2).to(tl.int64)
    batches = tl.zeros([], tl.int64) + 1 if ONE_BATCH else tl.num_programs(2).to(tl.int64)
    rate = tl.load(scratch + rate_at + batch)
    entry += batch * (padded // WORD * 2 if IN_ORDER else padded)
    position += batch * padded
    STRICT: tl.constexpr = ODD and SPANS == "narrow"
    MIRRORED: tl.constexpr = STRICT and FIRST  # then tied sources come before their target
    X_CONTIGUOUS: tl.constexpr = not MIRRORED and (IN_ORDER or STAGED != "")
    Y_CONTIGUOUS: tl.constexpr = IN_ORDER or (UNSTAGED and not MIRRORED)
    SUM: tl.constexpr = tl.float64 if EXACT or (ODD and not STRICT) else tl.float32  # see "Ties"
    start = tl.program_id(0) * TILES
    for step in range(_tiles_here(scratch + batch * 2 * tiles, start, tiles, rate, TILES)):
        tile = start + step
        ends = scratch + batch * 2 * tiles + tile
        first, last = tl.load(ends), tl.load(ends + tiles)
        span = (last - first) * rate
        place = places(tile, FAR, TILE, 4 if ROWS_AT_ONCE == 1 else 8, MIRRORED)
        p = load_points(position, place, place < padded, not MIRRORED)
        is_target, t_index, is_source, s_index = entries_at(entry, place, merged, padded, FIRST, IN_ORDER, MIRRORED)
        wanted = True
        if SPANS != "all":
            wanted = (span <= NARROW) == (SPANS == "narrow")
        if SPARSE:
            wanted &= tl.max(tl.max(is_target.to(tl.int32), 1), 0) > 0
        if wanted:
            inside = place < merged
            p = tl.where(inside, p, last.to(p.dtype))
            down, up, low, high = narrow_powers(p, first, rate, span, EXACT)  # without meaning, and not used, if wide
            powers = down.to(SUM), up.to(SUM), low.to(SUM), high.to(SUM)
            p_left = tl.load(ends + tiles - 1, mask=tile > 0, other=-INFINITY)
            p_right = tl.load(ends + 1, mask=tile + 1 < tiles, other=INFINITY)
            carry_weights = weights_of_tiles(ends, tile, tiles, first, last, p_left, p_right, rate, EXACT, CARRY)
            ties = ()
            if ODD:
                same = _same_as_neighbour(position, p, place, tile, merged, FIRST, TILE, MIRRORED).to(tl.int32)
                ties = ties_of_tile(p, same, first, last, p_left, p_right, rate, FIRST, STRICT, EXACT)
            pulled = tl.zeros(p.shape, tl.float64)
            begin, end = rows_of(row_block, rows_each, m, ONE_ROW)
            for row_start in range(begin, end, ROWS_AT_ONCE):
                x_index = place if STAGED != "" else s_index
                x_mask = (place < padded) if STAGED == "places" else is_source
                x_here = x + batch * x_batch
                rows = load_rows(x_here, row_start, x_index, x_mask, x_row, x_col, ROWS_AT_ONCE, X_CONTIGUOUS)
                other = odd_or_weights + batch * odd_batch
                if PULL:
                    weights = load_rows(other, row_start, t_index, is_target, odd_row, odd_col, ROWS_AT_ONCE, IN_ORDER)
                evens, odds = (), ()
                for r in tl.static_range(ROWS_AT_ONCE):
                    row = tl.minimum(tl.zeros([], tl.int64) + row_start + r, m - 1)
                    totals = scratch + batches * 2 * tiles + (batch * m + row) * tiles
                    carried = carried_to(totals, batches * m * tiles, tile, tiles, carry_weights, ODD, FIRST, CARRY)
                    even_sums, odd_sums = row_sums(
                        rows[r].to(SUM), p, inside, span, (first, last, p_left, p_right), powers, ties, carried, rate,
                        EXACT, ODD, FIRST, SPANS,
                    )  # fmt: skip
                    evens += (even_sums.to(even.dtype.element_ty),)  # type: ignore[assignment]
                    if PULL:
                        products = weights[r].to(tl.float64) * odd_sums.to(tl.float64)
                        pulled += tl.where(row_start + r < m, products, 0.0)  # memory of rows beyond m holds anything
                    elif ODD:
                        odds += (odd_sums.to(odd_or_weights.dtype.element_ty),)  # type: ignore[assignment]
                y_mask, y_index = ((place < padded), place) if UNSTAGED else (is_target, t_index)
                y_here = even + batch * even_batch
                store_rows(y_here, row_start, y_index, evens, y_mask, even_row, even_col, ROWS_AT_ONCE, Y_CONTIGUOUS)
                if ODD and not PULL:
                    store_rows(other, row_start, t_index, odds, is_target, odd_row, odd_col, ROWS_AT_ONCE, IN_ORDER)
            if PULL:
                pull_here = pull + (batch * tl.num_programs(1) + row_block) * n
                tl.store(pull_here + flat(t_index), flat(pulled * (rate * LN_2)), mask=flat(is_target))


@triton.jit
def _tiles_here(ends, start, tiles, rate, TILES: tl.constexpr):
    """How many tiles from ``start`` on a program scans: one, or, if it has several, all of them unless none is wide."""
    if TILES == 1:
        return 1
    else:
        tile = start + tl.arange(0, TILES)
        first = tl.load(ends + tile, mask=tile < tiles, other=0.0)
        last = tl.load(ends + tiles + tile, mask=tile < tiles, other=0.0)
        all_narrow = tl.min(((last - first) * rate <= NARROW).to(tl.int32), 0)
        return tl.where(all_narrow != 0, 0, tl.minimum(TILES, tiles - start))


@triton.jit
def _same_as_neighbour(
    position, p, place, tile, merged, FIRST: tl.constexpr, TILE: tl.constexpr, MIRRORED: tl.constexpr
):  # fmt: skip
    """Whether a point has the position of its neighbour in the tile on the side of tied sources: right if FIRST."""
    start = tile.to(place.dtype) * TILE
    neighbour = place + 1 if FIRST else place - 1
    in_tile = (neighbour >= start) & (neighbour < tl.minimum(start + TILE, merged))
    return in_tile & (load_points(position, neighbour, in_tile, not MIRRORED) == p)


@program(numbers="m", callers=("g", "odd", "tau", "out"))
def row_dot_program(
    g, odd, tau, out, m, n, g_batch, g_row, g_col, o_batch, o_row, o_col, WIDTH: tl.constexpr, ROWS: tl.constexpr
):
    """out (h, n) = 1/tau times the sum over rows of g * odd: the gradient of the target anchors from known odd sums."""
    batch = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0).to(tl.int64) * WIDTH + tl.arange(0, WIDTH)
    sums = tl.zeros([WIDTH], tl.float64)
    for block in range(tl.cdiv(m, ROWS)):
        row = (block * ROWS + tl.arange(0, ROWS)).to(tl.int64)
        mask = (row < m)[:, None] & (i < n)[None, :]
        left = tl.load(g + batch * g_batch + row[:, None] * g_row + i[None, :] * g_col, mask=mask, other=0.0)
        right = tl.load(odd + batch * o_batch + row[:, None] * o_row + i[None, :] * o_col, mask=mask, other=0.0)
        sums += tl.sum(left.to(tl.float64) * right.to(tl.float64), 0)
    tl.store(out + batch * n + i, sums / tl.load(tau + batch), mask=i < n)


@program(numbers="blocks")
def block_sum_program(pull, out, blocks, n, WIDTH: tl.constexpr, ROWS: tl.constexpr):
    """out (h, n) = the sum over blocks of pull (h, blocks, n), in float64."""
    batch = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0).to(tl.int64) * WIDTH + tl.arange(0, WIDTH)
    sums = tl.zeros([WIDTH], tl.float64)
    for start in range(0, blocks, ROWS):
        block = (start + tl.arange(0, ROWS)).to(tl.int64)
        mask = (block < blocks)[:, None] & (i < n)[None, :]
        part = tl.load(pull + (batch * blocks + block[:, None]) * n + i[None, :], mask=mask, other=0.0)
        sums += tl.sum(part.to(tl.float64), 0)
    tl.store(out + batch * n + i, sums, mask=i < n)
