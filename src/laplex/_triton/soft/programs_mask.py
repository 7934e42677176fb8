"""Soft masks of the k largest numbers, and their gradients.

``laplex.soft._threshold`` solves the equation for the threshold, and csrc/soft_mask.cpp has the same steps. A threshold
is three numbers: the anchor, the offset from it, and the distance to the nearest number over tau.
"""

import triton
import triton.language as tl

from laplex._triton.points import decay_over, rate_of
from laplex._triton.program import program
from laplex._triton.soft.tiles import (
    CARRIES,
    ROOM,
    SUMS,
    TOTALS,
    at_ends,
    carried_sums,
    fault_of,
    neighbour_ends,
    places_of,
    sorted_numbers,
    sums_in_tile,
)

LOG_2 = tl.constexpr(0.6931471805599453)
WIDEST = tl.constexpr(1e300)  # a gap over tau; its logarithms stay finite
UNDERFLOW = tl.constexpr(1500.0)  # distances over tau; from here on a density is 0


@triton.jit
def _log_sum_exp(a, b):
    """log(e^a + e^b); -infinity is e^a = 0."""
    high, low = tl.maximum(a, b), tl.minimum(a, b)
    return high + tl.log(1.0 + tl.exp(tl.maximum(low, -WIDEST) - tl.maximum(high, -WIDEST)))


@triton.jit
def _solve(k, n, m, below, above, s_m, s_next, tau):
    """The threshold between place m and the next; m = -1 and m = n - 1 are the ends. ``below`` is the sum from the left
    at m, ``above`` that from the right at the next place."""
    total = n.to(tl.float64)
    gap = tl.minimum((s_next - s_m) / tau, WIDEST)
    c = k - (total - 1.0 - m.to(tl.float64))
    log_c, log_below, log_above = tl.log(tl.abs(c)), tl.log(below), tl.log(above)
    root = _log_sum_exp(2.0 * log_c, log_above + log_below - gap) * 0.5
    log_sum = _log_sum_exp(log_c, root)
    after_m = c >= 0.0
    u = tl.where(after_m, log_below - log_sum, log_sum - log_above)
    anchor = tl.where(after_m, s_m, s_next)
    near = tl.maximum(tl.where(after_m, u, -u), 0.0)
    nearest = tl.minimum(near, tl.maximum(gap - near, 0.0))
    left, right = LOG_2 + tl.log(total - k) - log_above, log_below - LOG_2 - tl.log(k)
    is_left, is_right = m < 0, m >= n - 1
    u = tl.where(is_left, left, tl.where(is_right, right, u))
    anchor = tl.where(is_left, s_next, tl.where(is_right, s_m, anchor))
    nearest = tl.where(is_left | is_right, tl.maximum(tl.abs(u), 0.0), nearest)
    return anchor, tau * u, nearest


@triton.jit
def _smoothed(place, n, left, right):
    """The smoothed number above a place, from the sums at it."""
    return (n - place).to(tl.float64) - 0.5 + (left - right) * 0.5


@triton.jit
def _element(lane, index, v):
    return tl.sum(tl.where(lane == index, v, 0.0), 0)


@triton.jit
def _mask(x, anchor, offset, k, n, rate, fault, EXACT: tl.constexpr):
    """F((x - b) / tau); all zeros for k = 0, all ones for k = n."""
    distance = x.to(tl.float64) - anchor - offset
    tail = decay_over(tl.abs(distance), rate, EXACT) * 0.5
    mask = tl.where(distance < 0, tail, 1.0 - tail)
    mask = tl.where(k <= 0.0, 0.0, tl.where(k >= n.to(tl.float64), 1.0, mask))
    return mask + fault


@triton.jit
def _density(x, anchor, offset, nearest, tau, rate, EXACT: tl.constexpr):
    """u = (x - b) / tau, and e^(nearest - |u|)."""
    u = (x.to(tl.float64) - anchor - offset) / tau
    beyond = tl.maximum(tl.abs(u) - nearest, 0.0)
    return tl.maximum(tl.minimum(u, UNDERFLOW), -UNDERFLOW), decay_over(beyond * tau, rate, EXACT)


@program(numbers="n", callers=("x", "tau", "k_wanted"))
def mask_row_program(
    x, position, tau, k_wanted, mask, threshold, n, EXACT: tl.constexpr, SORT: tl.constexpr, TILE: tl.constexpr
):
    """The mask and the threshold of a row that is one tile. SORT: it is sorted here, else ``position`` is."""
    batch, lane = tl.program_id(0).to(tl.int64), tl.arange(0, TILE)
    base, inside = batch * n, lane < n
    length, count = tl.load(tau + batch), tl.load(k_wanted + batch)
    rate = rate_of(length)
    numbers = tl.load(x + base + lane, mask=inside, other=0.0)
    if SORT:
        p = sorted_numbers(numbers, n, TILE).to(tl.float64)
    else:
        p = tl.load(position + base + tl.minimum(lane, n - 1)).to(tl.float64)
    first, last = at_ends(p, n)
    left, _p, right, _q = sums_in_tile(p, first, last, inside.to(tl.float64), rate, "all", EXACT, False)
    above = tl.sum((inside & (_smoothed(lane, n, left, right) >= count)).to(tl.int32), 0)
    anchor, offset, nearest = _solve(
        count, n, above - 1, _element(lane, above - 1, left), _element(lane, above, right),
        _element(lane, above - 1, p), _element(lane, above, p), length,
    )  # fmt: skip
    tl.store(threshold + 3 * batch, anchor)
    tl.store(threshold + 3 * batch + 1, offset)
    tl.store(threshold + 3 * batch + 2, nearest)
    fault = fault_of(first, last, rate)
    tl.store(mask + base + lane, _mask(numbers, anchor, offset, count, n, rate, fault, EXACT), mask=inside)


@program(numbers="n", callers=("tau", "k_wanted"))
def threshold_program(
    position, tau, k_wanted, scratch, threshold, n, tiles, EXACT: tl.constexpr, GROUP: tl.constexpr, TILE: tl.constexpr
):
    """The threshold of a row of many tiles, whose carries are known: the tile that has it is found, and scanned."""
    batch = tl.program_id(0).to(tl.int64)
    base, row = batch * n, scratch + batch * ROOM * tiles
    length, count = tl.load(tau + batch), tl.load(k_wanted + batch)
    rate = rate_of(length)
    group = tl.arange(0, GROUP)
    reaching = tl.zeros([GROUP], tl.int32)
    for begin in range(0, tiles, GROUP):  # tiles whose first number has at least k above it
        other = begin + group
        known = other < tiles
        start = tl.load(row + other, mask=known, other=0.0)
        before = tl.load(row + tiles + other - 1, mask=known & (other > 0), other=0.0)
        after = tl.load(row + other + 1, mask=other + 1 < tiles, other=0.0)
        from_left = tl.load(row + CARRIES * tiles + other, mask=known, other=0.0)
        from_right = tl.load(row + (CARRIES + SUMS) * tiles + other, mask=known, other=0.0)
        own = tl.load(row + (TOTALS + SUMS) * tiles + other, mask=known, other=0.0)
        left = 1.0 + from_left * decay_over(tl.where(other > 0, start - before, 0.0), rate, True)
        right = own + from_right * decay_over(tl.where(other + 1 < tiles, after - start, 0.0), rate, True)
        reaching += (known & (_smoothed(other.to(tl.int64) * TILE, n, left, right) >= count)).to(tl.int32)
    tile = tl.maximum(tl.sum(reaching, 0) - 1, 0)
    lane = tl.arange(0, TILE)
    place, inside, start, end = places_of(tile, n, TILE)
    p = tl.load(position + base + tl.minimum(place, n - 1)).to(tl.float64)
    first, last = tl.load(position + base + start).to(tl.float64), tl.load(position + base + end).to(tl.float64)
    left, _p, right, _q = sums_in_tile(p, first, last, inside.to(tl.float64), rate, "all", EXACT, False)
    p_left, p_right = neighbour_ends(row, tile, tiles, first, last)
    from_left, from_right = carried_sums(row, tile, tiles, 0)
    left += from_left * decay_over(p - p_left, rate, EXACT)
    right += from_right * decay_over(p_right - p, rate, EXACT)
    above = tl.sum((inside & (_smoothed(place, n, left, right) >= count)).to(tl.int32), 0)
    size = (end - start + 1).to(tl.int32)
    below_sum = tl.where(above > 0, _element(lane, above - 1, left), from_left)
    above_sum = tl.where(above < size, _element(lane, above, right), from_right)
    s_m = tl.where(above > 0, _element(lane, above - 1, p), p_left)
    s_next = tl.where(above < size, _element(lane, above, p), p_right)
    anchor, offset, nearest = _solve(count, n, start + above - 1, below_sum, above_sum, s_m, s_next, length)
    tl.store(threshold + 3 * batch, anchor)
    tl.store(threshold + 3 * batch + 1, offset)
    tl.store(threshold + 3 * batch + 2, nearest)


@program(numbers="n", callers=("x", "tau", "k_wanted"))
def mask_program(
    x, position, tau, k_wanted, threshold, mask, n, tiles, EXACT: tl.constexpr, TILE: tl.constexpr
):  # fmt: skip
    """The mask of a tile of the row, in the caller's order, from the threshold."""
    tile, batch = tl.program_id(0) % tiles, (tl.program_id(0) // tiles).to(tl.int64)
    base, rate = batch * n, rate_of(tl.load(tau + batch))
    place, inside, _start, _end = places_of(tile, n, TILE)
    anchor, offset = tl.load(threshold + 3 * batch), tl.load(threshold + 3 * batch + 1)
    fault = fault_of(tl.load(position + base), tl.load(position + base + n - 1), rate)
    numbers = tl.load(x + base + place, mask=inside, other=0.0)
    result = _mask(numbers, anchor, offset, tl.load(k_wanted + batch), n, rate, fault, EXACT)
    tl.store(mask + base + place, result, mask=inside)


@program(numbers="n", callers=("g", "x", "tau", "k_wanted"))
def reduce_mask_program(
    g, x, tau, k_wanted, threshold, parts, n, count, steps, EXACT: tl.constexpr, TILE: tl.constexpr
):  # fmt: skip
    """A part's share of the sums of f, f g, f u and f g u: parts (h, 4, count). A part is ``steps`` tiles."""
    own, batch = tl.program_id(0) % count, (tl.program_id(0) // count).to(tl.int64)
    base, length = batch * n, tl.load(tau + batch)
    rate, b = rate_of(length), threshold + 3 * batch
    anchor, offset, nearest = tl.load(b), tl.load(b + 1), tl.load(b + 2)
    one, of_g = tl.zeros([TILE], tl.float64), tl.zeros([TILE], tl.float64)
    of_u, of_both = tl.zeros([TILE], tl.float64), tl.zeros([TILE], tl.float64)
    for turn in range(0, steps):
        place, inside, _start, _end = places_of(own.to(tl.int64) * steps + turn, n, TILE)
        numbers = tl.load(x + base + place, mask=inside, other=0.0)
        u, f = _density(numbers, anchor, offset, nearest, length, rate, EXACT)
        f = tl.where(inside, f, 0.0)
        fg = f * tl.load(g + base + place, mask=inside, other=0.0).to(tl.float64)
        one, of_g, of_u, of_both = one + f, of_g + fg, of_u + f * u, of_both + fg * u
    part = parts + batch * 4 * count + own
    tl.store(part, tl.sum(one, 0))
    tl.store(part + count, tl.sum(of_g, 0))
    tl.store(part + 2 * count, tl.sum(of_u, 0))
    tl.store(part + 3 * count, tl.sum(of_both, 0))


@triton.jit
def _added_up(parts, count, PARTS: tl.constexpr):
    lane = tl.arange(0, PARTS)
    return tl.sum(tl.load(parts + lane, mask=lane < count, other=0.0), 0)


@program(numbers="n", callers=("g", "x", "tau", "k_wanted"))
def pull_mask_program(
    g, x, tau, k_wanted, threshold, parts, x_bar, k_bar, tau_bar, n, count, steps,
    EXACT: tl.constexpr, ALONE: tl.constexpr, PARTS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """The gradients of a part's numbers; the first part of a row writes those of k and tau. Every program adds up
    ``parts`` again: there are few. ALONE: the row is one tile, and its sums are made here."""
    own, batch = tl.program_id(0) % count, (tl.program_id(0) // count).to(tl.int64)
    base, length, wanted = batch * n, tl.load(tau + batch), tl.load(k_wanted + batch)
    rate, b = rate_of(length), threshold + 3 * batch
    anchor, offset, nearest = tl.load(b), tl.load(b + 1), tl.load(b + 2)
    if ALONE:
        place, inside, _start, _end = places_of(own, n, TILE)
        numbers = tl.load(x + base + place, mask=inside, other=0.0)
        u, f = _density(numbers, anchor, offset, nearest, length, rate, EXACT)
        v = tl.load(g + base + place, mask=inside, other=0.0).to(tl.float64)
        f = tl.where(inside, f, 0.0)
        one, of_g = tl.sum(f, 0), tl.sum(f * v, 0)
        of_u, of_both = tl.sum(f * u, 0), tl.sum(f * v * u, 0)
    else:
        row = parts + batch * 4 * count
        one, of_g = _added_up(row, count, PARTS), _added_up(row + count, count, PARTS)
        of_u, of_both = _added_up(row + 2 * count, count, PARTS), _added_up(row + 3 * count, count, PARTS)
    soft = (wanted > 0.0) & (wanted < n.to(tl.float64))
    mean, scale = of_g / one, decay_over(nearest * length, rate, EXACT) * 0.5 / length
    for turn in range(0, steps):
        place, inside, _start, _end = places_of(own.to(tl.int64) * steps + turn, n, TILE)
        numbers = tl.load(x + base + place, mask=inside, other=0.0)
        _u, f = _density(numbers, anchor, offset, nearest, length, rate, EXACT)
        v = tl.load(g + base + place, mask=inside, other=0.0).to(tl.float64)
        tl.store(x_bar + base + place, tl.where(soft, scale * f * (v - mean), 0.0), mask=inside)
    tl.store(k_bar + batch, tl.where(soft, mean, 0.0), mask=own == 0)
    tl.store(tau_bar + batch, tl.where(soft, scale * (mean * of_u - of_both), 0.0), mask=own == 0)
