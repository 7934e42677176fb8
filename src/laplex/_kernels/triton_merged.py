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

from laplex._kernels.triton_points import (
    INFINITY,
    SERIAL,
    WORD,
    decay_over,
    entries_at,
    fault_at_ends,
    narrow_powers,
    powers_of_two,
    rate_of,
)

# Tiles in which weights differ by so few powers of two that one sum may be had from another by subtracting.
NARROW = tl.constexpr(4.0)
# Points that span no more powers of two are scanned with all sums at one position; float64 exponents must not round.
NEAR = tl.constexpr(100.0)
NEAR_EXACT = tl.constexpr(16.0)


@triton.jit(do_not_specialize_on_alignment=["target", "source"])
def refresh_kernel(
    target, source, entry, position, merged, padded, n, k,
    FIRST: tl.constexpr, IN_ORDER: tl.constexpr, WIDE: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Anchors that may have moved, in the plan's order; whether they are in it, ``reduce_kernel`` sees."""
    tile, kernel = tl.program_id(0), tl.program_id(1).to(tl.int64)
    entry += kernel * (padded // WORD * 2 if IN_ORDER else padded)
    place = (tile.to(tl.int64) if WIDE else tile) * TILE + tl.arange(0, TILE)[None, :]
    taken = tl.minimum(place, merged - 1)  # what is padded repeats the last
    is_target, t, is_source, s = entries_at(entry, taken, place < padded, padded, FIRST, IN_ORDER)
    p = tl.load(target + kernel * n + t, mask=is_target, other=0.0)
    p += tl.load(source + kernel * k + s, mask=is_source, other=0.0)
    tl.store(position + kernel * padded + place, p, mask=place < padded)


@triton.jit
def _broken(position, entry, place, p, is_target, merged, padded, FIRST: tl.constexpr, IN_ORDER: tl.constexpr):
    """NaN if the positions are not finite and in order, or tie with the second side before the first; else 0."""
    following = place + 1
    known = following < merged
    _, _, next_is_source, _ = entries_at(entry, tl.minimum(following, merged - 1), known, padded, FIRST, IN_ORDER)
    next_p = tl.load(position + following, mask=known, other=INFINITY)
    turned = ~is_target & ~next_is_source if FIRST else is_target & next_is_source
    holds = (tl.abs(p) < INFINITY) & ((p < next_p) | ((p == next_p) & ~turned) | ~known)
    return tl.where(tl.min(tl.min((holds | (place >= merged)).to(tl.int32), 1), 0) != 0, 0.0, float("nan"))


@triton.jit(do_not_specialize_on_alignment=["x", "tau"])
def reduce_kernel(
    x, merged_x, tau, entry, position, scratch, m, merged, padded, tiles, x_kernel, x_row, x_col,
    EXACT: tl.constexpr, SUM: tl.constexpr, ODD: tl.constexpr, FIRST: tl.constexpr, IN_ORDER: tl.constexpr,
    CHECKED: tl.constexpr, WIDE: tl.constexpr, TILE: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """A tile's end positions and its sums at them, from the right and from the left; and x in the merged order."""
    tile, row_block = tl.program_id(0) % tiles, tl.program_id(0) // tiles
    kernel = tl.program_id(1).to(tl.int64)
    entry += kernel * (padded // WORD * 2 if IN_ORDER else padded)
    position += kernel * padded
    start = (tile.to(tl.int64) if WIDE else tile) * TILE
    place = start + tl.arange(0, TILE // SERIAL)[None, :] * SERIAL + tl.arange(0, SERIAL)[:, None]
    inside = place < merged
    first = tl.load(position + start).to(tl.float64)
    last = tl.load(position + tl.minimum(start + TILE, merged) - 1).to(tl.float64)
    rate = rate_of(tl.load(tau + kernel))
    fault = fault_at_ends(position, merged, rate)
    p = tl.load(position + place, mask=place < padded, other=0.0)
    is_target, _, is_source, at = entries_at(entry, place, inside, padded, FIRST, IN_ORDER)
    if CHECKED:
        fault += _broken(position, entry, place, p, is_target, merged, padded, FIRST, IN_ORDER)
    kernels = tl.num_programs(1).to(tl.int64)
    ends = scratch + kernel * 2 * tiles
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
    channel = kernels * m * tiles
    for number in range(row_block * ROWS, tl.minimum(row_block * ROWS + ROWS, m)):
        row = tl.zeros([], tl.int64) + number
        of_row = kernel * m + row
        v = tl.load(x + kernel * x_kernel + row * x_row + at.to(tl.int64) * x_col, mask=is_source, other=0.0)
        if not IN_ORDER:
            tl.store(merged_x + of_row * padded + place, v, mask=place < padded)
        v = v.to(SUM)
        totals = scratch + kernels * 2 * tiles + of_row * tiles + tile
        tl.store(totals, _total(v * at_first.to(SUM)))
        tl.store(totals + channel, _total(v * at_last.to(SUM)))
        if ODD:
            tied = p.to(tl.float64) == (first if FIRST else last)
            tl.store(totals + 2 * channel, _total(tl.where(tied, v, 0.0)))


@triton.jit
def _total(v):
    return tl.sum(tl.sum(v, 0).to(tl.float64), 0)


@triton.jit(do_not_specialize_on_alignment=["x", "odd", "tau", "even"])
def scan_kernel(
    x, odd, tau, entry, position, scratch, even, pull, m, n, merged, padded, tiles,
    x_kernel, x_row, x_col, even_kernel, even_row, even_col, odd_kernel, odd_row, odd_col,
    EXACT: tl.constexpr, SUM: tl.constexpr, ODD: tl.constexpr, PULL: tl.constexpr, FIRST: tl.constexpr,
    IN_ORDER: tl.constexpr, WIDE: tl.constexpr, TILE: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """The sums at a narrow tile's targets: even, and odd; with PULL ``odd`` is what the odd sums are multiplied with
    instead, and ``pull`` takes the products' sum over the rows of this program, over tau.

    All weights are about 1, so that what lies right is the whole without what lies left, and no sum runs back.
    """
    tile, row_block = tl.program_id(0) % tiles, tl.program_id(0) // tiles
    kernel = tl.program_id(1).to(tl.int64)
    tau = tl.load(tau + kernel)
    rate = rate_of(tau)
    ends = scratch + kernel * 2 * tiles + tile
    first, last = tl.load(ends), tl.load(ends + tiles)
    span = (last - first) * rate
    if not (span <= NARROW):
        return
    entry += kernel * (padded // WORD * 2 if IN_ORDER else padded)
    position += kernel * padded
    start = (tile.to(tl.int64) if WIDE else tile) * TILE
    place, _inside, p, is_target, at, is_source, from_at = _points(
        entry, position, start, last, merged, padded, FIRST, IN_ORDER, TILE
    )
    down, up, low, high = narrow_powers(p, first, rate, span, EXACT)
    to_last, from_last = up * low, down * high
    if FIRST:
        unit, tie = _units(down, up, low, SUM)
    else:
        unit, tie = _units(to_last, from_last, low, SUM)
    kernels = tl.num_programs(1).to(tl.int64)
    channel = kernels * m * tiles
    pulled = tl.zeros(p.shape, tl.float64)
    for number in range(row_block * ROWS, tl.minimum(row_block * ROWS + ROWS, m)):
        row = tl.zeros([], tl.int64) + number
        v = _sources(x, kernel, row, m, place, from_at, is_source, padded, x_kernel, x_row, x_col, SUM, IN_ORDER)
        totals = scratch + kernels * 2 * tiles + (kernel * m + row) * tiles + tile
        carries = totals + (3 if ODD else 2) * channel
        left, whole = tl.load(carries + channel), tl.load(carries) + tl.load(totals)
        behind = v * down.to(SUM)
        from_left = (left.to(SUM) + _running(v * to_last.to(SUM))) * from_last.to(SUM)
        from_right = (whole.to(SUM) - (_running(behind) - behind)) * up.to(SUM)
        even_at = even + kernel * even_kernel + row * even_row + at.to(tl.int64) * even_col
        tl.store(even_at, from_left + from_right, mask=is_target)
        if ODD:
            tied = carries + 4 * channel
            ties = _ties(v, p, unit, tie, place, start, position, ends, tied, merged, tile, tiles, FIRST, TILE)
            difference = from_right - from_left + ties
            odd_at = odd + kernel * odd_kernel + row * odd_row + at.to(tl.int64) * odd_col
            if PULL:
                pulled += tl.load(odd_at, mask=is_target, other=0.0).to(tl.float64) * difference.to(tl.float64)
            else:
                tl.store(odd_at, difference, mask=is_target)
    if PULL:
        tl.store(pull + (kernel * (tl.num_programs(0) // tiles) + row_block) * n + at, pulled / tau, mask=is_target)


@triton.jit(do_not_specialize_on_alignment=["x", "odd", "tau", "even"])
def wide_kernel(
    x, odd, tau, entry, position, scratch, even, pull, m, n, merged, padded, tiles,
    x_kernel, x_row, x_col, even_kernel, even_row, even_col, odd_kernel, odd_row, odd_col,
    EXACT: tl.constexpr, SUM: tl.constexpr, ODD: tl.constexpr, PULL: tl.constexpr, FIRST: tl.constexpr,
    IN_ORDER: tl.constexpr, WIDE: tl.constexpr, TILE: tl.constexpr, ROWS: tl.constexpr, TILES: tl.constexpr,
):  # fmt: skip
    """The same at the targets of the wide ones among TILES tiles, window by window."""
    blocks = tl.cdiv(tiles, TILES)
    block, row_block = tl.program_id(0) % blocks, tl.program_id(0) // blocks
    kernel = tl.program_id(1).to(tl.int64)
    tau = tl.load(tau + kernel)
    rate = rate_of(tau)
    some = block * TILES + tl.arange(0, TILES)
    ends = scratch + kernel * 2 * tiles
    gap = tl.load(ends + tiles + some, mask=some < tiles, other=0.0) - tl.load(
        ends + some, mask=some < tiles, other=0.0
    )
    if tl.min((gap * rate <= NARROW).to(tl.int32), 0) != 0:
        return
    entry += kernel * (padded // WORD * 2 if IN_ORDER else padded)
    position += kernel * padded
    channel = tl.num_programs(1).to(tl.int64) * m * tiles
    all_carries = scratch + tl.num_programs(1).to(tl.int64) * 2 * tiles + (3 if ODD else 2) * channel
    for tile in range(block * TILES, tl.minimum(block * TILES + TILES, tiles)):
        first, last = tl.load(ends + tile), tl.load(ends + tiles + tile)
        if not ((last - first) * rate <= NARROW):
            start = tl.full([], TILE, tl.int64) * tile
            place, inside, p, is_target, at, is_source, from_at = _points(
                entry, position, start, last, merged, padded, FIRST, IN_ORDER, TILE
            )
            p_left = tl.load(ends + tiles + tile - 1, mask=tile > 0, other=-INFINITY)
            p_right = tl.load(ends + tile + 1, mask=tile + 1 < tiles, other=INFINITY)
            pulled = tl.zeros(p.shape, tl.float64)
            for number in range(row_block * ROWS, tl.minimum(row_block * ROWS + ROWS, m)):
                row = tl.zeros([], tl.int64) + number
                v = _sources(
                    x, kernel, row, m, place, from_at, is_source, padded, x_kernel, x_row, x_col, SUM, IN_ORDER
                )
                carries = all_carries + (kernel * m + row) * tiles + tile
                right, left = tl.load(carries + 2 * channel), tl.load(carries + 3 * channel)
                from_left, left_unit, left_tie = _windows(
                    p, v, inside, first, p_left, left, rate, ODD and not FIRST, EXACT, False
                )
                from_right, right_unit, right_tie = _windows(
                    -p, v, inside, -last, -p_right, right, rate, ODD and FIRST, EXACT, True
                )
                from_left += tl.where(left == left, 0.0, left).to(SUM)  # a fault's NaN, which opens no window
                even_at = even + kernel * even_kernel + row * even_row + at.to(tl.int64) * even_col
                tl.store(even_at, from_left + from_right, mask=is_target)
                if ODD:
                    unit, tie = (right_unit, right_tie) if FIRST else (left_unit, left_tie)
                    here, tied = ends + tile, carries + 4 * channel
                    ties = _ties(v, p, unit, tie, place, start, position, here, tied, merged, tile, tiles, FIRST, TILE)
                    difference = from_right - from_left + ties
                    odd_at = odd + kernel * odd_kernel + row * odd_row + at.to(tl.int64) * odd_col
                    if PULL:
                        pulled += tl.load(odd_at, mask=is_target, other=0.0).to(tl.float64) * difference.to(tl.float64)
                    else:
                        tl.store(odd_at, difference, mask=is_target)
            if PULL:
                place_of_sum = (kernel * (tl.num_programs(0) // blocks) + row_block) * n + at
                tl.store(pull + place_of_sum, pulled / tau, mask=is_target)


@triton.jit
def _points(
    entry, position, start, last, merged, padded, FIRST: tl.constexpr, IN_ORDER: tl.constexpr, TILE: tl.constexpr
):
    """A tile's points: their places, positions, which are targets and which sources, and where the caller has them."""
    place = start + tl.arange(0, TILE // SERIAL)[None, :] * SERIAL + tl.arange(0, SERIAL)[:, None]
    inside = place < merged
    p = tl.load(position + place, mask=place < padded, other=0.0)
    is_target, at, is_source, from_at = entries_at(entry, place, inside, padded, FIRST, IN_ORDER)
    return place, inside, tl.where(inside, p, last.to(p.dtype)), is_target, at, is_source, from_at


@triton.jit
def _sources(
    x, kernel, row, m, place, from_at, is_source, padded, x_kernel, x_row, x_col,
    SUM: tl.constexpr, IN_ORDER: tl.constexpr,
):  # fmt: skip
    """A row of x at a tile's sources, 0 elsewhere."""
    if IN_ORDER:
        v = tl.load(x + kernel * x_kernel + row * x_row + from_at.to(tl.int64) * x_col, mask=is_source, other=0.0)
    else:
        v = tl.load(x + (kernel * m + row) * padded + place, mask=place < padded, other=0.0)
    return v.to(SUM)


@triton.jit
def _ties(
    v, p, unit, tie, place, start, position, ends, tied, merged, tile, tiles, FIRST: tl.constexpr, TILE: tl.constexpr
):
    """What the odd sums must not count, with its sign.

    Tied sources lie behind a target that comes first at ties, and before one that comes second: in one sum whole.
    """
    beside = place + 1 if FIRST else place - 1
    known = (beside >= start) & (beside < tl.minimum(start + TILE, merged))
    same = known & (tl.load(position + beside, mask=known, other=0.0) == p)
    if FIRST:
        end = tl.load(ends + 1, mask=tile + 1 < tiles, other=INFINITY)
    else:
        end = tl.load(ends + tiles - 1, mask=tile > 0, other=-INFINITY)
    sums = _tie_sums(same, v, FIRST) * unit
    sums += tl.where(p.to(tl.float64) == end, tl.load(tied).to(v.dtype) * tie, 0.0)
    return -sums if FIRST else sums


@triton.jit
def _running(v):
    """Sums up to each point, it included."""
    inner = tl.cumsum(v, 0)
    total = _last(inner, False)
    return inner + (tl.cumsum(total, 0) - total)[None, :]


@triton.jit
def _last(v, REVERSE: tl.constexpr):
    """What a thread's points end with."""
    last = (tl.arange(0, SERIAL) == (0 if REVERSE else SERIAL - 1))[:, None]
    return tl.sum(tl.where(last, v, tl.zeros_like(v)), 0)


@triton.jit
def _add_but_last(v_1, before_1, v_2, before_2):
    """Sums, and sums without the last: subtracting it would leave a rest where nothing comes before."""
    return v_1 + v_2, v_1 + before_2


@triton.jit
def _window(v, here, to_end, back, carried, REVERSE: tl.constexpr):
    """Sums up to each point of a window, with what is carried to the window's end; and the sum there.

    A source is brought to the end, which decays it, and what is read at a target brought back: nothing overflows that
    should not.
    """
    part = tl.where(here, v * to_end.to(v.dtype), 0.0)
    inner = tl.cumsum(part, 0, reverse=REVERSE)
    total = _last(inner, REVERSE)  # rounded as in _tie_sums, so that ties alone leave nothing
    _sums, before = tl.associative_scan((total, tl.zeros_like(total)), 0, _add_but_last, reverse=REVERSE)
    outer = carried.to(v.dtype) + before
    return (outer[None, :] + inner) * back.to(v.dtype), carried + tl.sum(total.to(tl.float64), 0)


@triton.jit
def _units(to_end, back, low, SUM: tl.constexpr):
    """What is left of a tied source of the window by there and back, rounded, and of one carried across it."""
    return to_end.to(SUM) * back.to(SUM), low.to(SUM) * back.to(SUM)


@triton.jit
def _windows(
    p, v, inside, start, carried_at, carried, rate, TIES: tl.constexpr, EXACT: tl.constexpr, REVERSE: tl.constexpr
):
    """The same for a tile too wide for one window, window by window in the direction of p."""
    u = p.to(tl.float64)
    sums, unit, tie = tl.zeros_like(v), tl.zeros_like(v), tl.zeros_like(v)
    LIMIT: tl.constexpr = NEAR_EXACT if EXACT else NEAR
    while start < INFINITY:
        here = inside & (u >= start) & ((u - start) * rate <= LIMIT)
        end = tl.max(tl.max(tl.where(here, u, -INFINITY), 1), 0)
        # Outside the window the powers have no meaning, and are not used.
        to_end, back = powers_of_two(u, end, rate, EXACT)
        decay = decay_over(end - carried_at, rate, EXACT)
        some, carried = _window(v, here, to_end, back, carried * decay, REVERSE)
        sums = tl.where(here, some, sums)
        if TIES:
            some_unit, some_tie = _units(to_end, back, decay, v.dtype)
            unit, tie = tl.where(here, some_unit, unit), tl.where(here, some_tie, tie)
        carried_at = end
        start = tl.min(tl.min(tl.where(inside & (u > end), u, INFINITY), 1), 0)
    return sums, unit, tie


@triton.jit
def _add_if_same(same_1, v_1, but_last_1, before_1, same_2, v_2, but_last_2, before_2):
    """Runs of sums: whether all is one run, the last sum, whether all but the last is, and the sum before the last."""
    v = tl.where(same_2 != 0, v_1, 0.0) + v_2
    return same_1 & same_2, v, same_1 & but_last_2, tl.where(but_last_2 != 0, v_1, 0.0) + before_2


@triton.jit
def _tie_sums(same, v, REVERSE: tl.constexpr):
    """Sums over runs of one position, up to each point; ``same``: as the point before it on the way."""
    same = same.to(tl.int32)
    none, one = tl.zeros_like(v), tl.full(v.shape, 1, tl.int32)
    connected, sums, _but_last, _before = tl.associative_scan((same, v, one, none), 0, _add_if_same, reverse=REVERSE)
    all_same, total = _last(connected, REVERSE), _last(sums, REVERSE)
    ones, nones = tl.full(total.shape, 1, tl.int32), tl.zeros_like(total)
    _same, _sums, _one, before = tl.associative_scan((all_same, total, ones, nones), 0, _add_if_same, reverse=REVERSE)
    return sums + tl.where(connected != 0, before[None, :], 0.0)


@triton.jit(do_not_specialize_on_alignment=["g", "odd", "tau", "out"])
def row_dot_kernel(
    g, odd, tau, out, m, n, g_kernel, g_row, g_col, o_kernel, o_row, o_col, WIDTH: tl.constexpr, ROWS: tl.constexpr
):
    """1/tau sum over rows of g * odd."""
    kernel = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0).to(tl.int64) * WIDTH + tl.arange(0, WIDTH)
    total = tl.zeros([WIDTH], tl.float64)
    for block in range(tl.cdiv(m, ROWS)):
        row = (block * ROWS + tl.arange(0, ROWS)).to(tl.int64)
        both = (row < m)[:, None] & (at < n)[None, :]
        left = tl.load(g + kernel * g_kernel + row[:, None] * g_row + at[None, :] * g_col, mask=both, other=0.0)
        right = tl.load(odd + kernel * o_kernel + row[:, None] * o_row + at[None, :] * o_col, mask=both, other=0.0)
        total += tl.sum(left.to(tl.float64) * right.to(tl.float64), 0)
    tl.store(out + kernel * n + at, total / tl.load(tau + kernel), mask=at < n)
