"""Triton programs that walk forwards: the points in the order in which lanes read them, and the filter.

Staged arrays are (field, CHUNK, lanes): first the parts of Phi (``transitions``), then diag, then y. Points that fill
up the last chunk of a series have gap 0 and an infinite diag, and so change nothing.
"""

import triton
import triton.language as tl

from laplex._triton.points import INFINITY
from laplex._triton.program import program
from laplex._triton.states.matrices import (
    conjugated,
    constants,
    dot,
    loaded,
    minus,
    plus_outer,
    plus_scaled,
    product,
    scaled,
    stored,
    times,
    times_symmetric,
    unit,
)
from laplex._triton.states.transitions import parts_of_block, parts_of_one_state, transition

MAX_GAP = tl.constexpr(1e100)  # its cube is finite
KNOWN = tl.constexpr(1e-150)  # of a state's variance: as good as known; its inverse, squared, is finite


@program(numbers="n", callers=("gaps", "order", "counts", "diag", "y", "rates", "squares"))
def stage_program(
    gaps, order, counts, diag, y, rates, squares, staged, n, chunks, lanes,
    LAYOUT: tl.constexpr, BLOCKS: tl.constexpr, SIZE: tl.constexpr, ORDERED: tl.constexpr, COUNTED: tl.constexpr,
    CHUNK: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Write what the walks read. ORDERED: ``order`` has the index of every point in diag and y. COUNTED: ``counts`` has
    the number of points of every series.
    """
    lane = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)[:, None]
    known = lane < lanes
    series = tl.where(known, lane // chunks, 0)
    step = tl.arange(0, CHUNK)[None, :].to(tl.int64)
    point = lane % chunks * CHUNK + step
    if COUNTED:
        inside = known & (point < tl.load(counts + series))
    else:
        inside = known & (point < n)
    place = series * n + point
    gap = tl.minimum(tl.load(gaps + place, mask=inside, other=0.0), MAX_GAP)
    if ORDERED:
        place = series * n + tl.load(order + place, mask=inside, other=0)
    to, field = staged + step * lanes + lane, lanes.to(tl.int64) * CHUNK
    if SIZE == 1:
        rho, kappa = parts_of_one_state(gap, tl.load(rates + series))
        tl.store(to, tl.where(point == 0, 0.0, rho), mask=known)  # no step leads to the first point
        tl.store(to + field, tl.where(point == 0, 1.0, kappa), mask=known)
        to += 2 * field
    else:
        for i in tl.static_range(BLOCKS):
            a, b = tl.load(rates + series * BLOCKS + i), tl.load(squares + series * BLOCKS + i)
            parts = parts_of_block(gap, a, b, (LAYOUT >> (8 * i)) & 3)
            for part in tl.static_range((LAYOUT >> (8 * i)) & 3):
                tl.store(to, parts[part], mask=known)
                to += field
    tl.store(to, tl.load(diag + place, mask=inside, other=INFINITY), mask=known)
    tl.store(to + field, tl.load(y + place, mask=inside, other=0.0), mask=known)


@triton.jit
def measured(
    parts, step, noise, q, p, state, SIZE: tl.constexpr, MASK: tl.constexpr, READ: tl.constexpr, SINGLE: tl.constexpr
):  # fmt: skip
    """A step, and the point after it: the state after the step, c, d, 1 / d, and the state after the point.

    ``state`` is S. SINGLE: it is -Q after points and -P after the step, and diag / d is returned, too.
    """
    if SINGLE:
        variance = q[0] * parts[1] - parts[0] * parts[0] * state[0]
        d = variance + noise
        over = 1.0 / d
        rest = tl.where(noise == INFINITY, 1.0, noise * over)
        return (-variance,), (variance,), d, over, (-variance * rest,), rest
    else:
        stepped = conjugated(step, state, SIZE, MASK)
        c = minus(q, times_symmetric(stepped, p, SIZE, READ), SIZE)
        d = noise + dot(p, c, SIZE, READ)
        over = 1.0 / d
        return stepped, c, d, over, plus_outer(stepped, c, over, SIZE), over


@triton.jit
def mapped(
    step, w, over, z, rest, p, j, n, r, SIZE: tl.constexpr, MASK: tl.constexpr, READ: tl.constexpr, SINGLE: tl.constexpr
):  # fmt: skip
    """J, N and r of the points so far, with one more."""
    stepped = product(step, j, SIZE, MASK)
    u = ()
    for i in tl.static_range(SIZE):
        value = tl.zeros_like(z)
        for k in tl.static_range(SIZE):
            if (READ >> k) & 1:
                value += p[k] * stepped[k * SIZE + i]
        u = u + (value,)
    n, r = plus_outer(n, u, over, SIZE), plus_scaled(r, u, z * over, SIZE)
    if SINGLE:
        return (rest * stepped[0],), n, r
    else:
        values = ()
        for i in tl.static_range(SIZE):
            for k in tl.static_range(SIZE):
                values = values + (stepped[i * SIZE + k] - w[i] * u[k],)
        return values, n, r


@triton.jit
def is_valid(rates, squares, g, BLOCKS: tl.constexpr, SIZE: tl.constexpr):
    """Whether all parameters are finite, and no rate is negative. Otherwise results are NaN."""
    valid = rates[0] >= 0.0
    for i in tl.static_range(BLOCKS):
        valid = valid & (rates[i] >= 0.0) & (rates[i] * 0.0 == 0.0) & (squares[i] * 0.0 == 0.0)
    for i in tl.static_range(SIZE):
        valid = valid & (g[i] * 0.0 == 0.0)
    return valid


@program(numbers="chunks", callers=("rates", "squares", "g"))
def walk_program(
    staged, rates, squares, g, entries, maps, sums, chunks, lanes,
    LAYOUT: tl.constexpr, BLOCKS: tl.constexpr, SIZE: tl.constexpr, MASK: tl.constexpr, READ: tl.constexpr,
    START: tl.constexpr, MAPS: tl.constexpr, SUMS: tl.constexpr,
    CHUNK: tl.constexpr, UNROLL: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Walk over every chunk from ``entries`` (S, f), (TRIANGLE + SIZE, lanes).

    START: from a first guess, which is written to ``entries``. MAPS: write the map of every chunk, from which the next
    chunk's entry is subtracted; without X and b if there are SUMS. SUMS: write quad, log det, the sum of k(0) / d and
    the first point without a positive pivot, infinity for none: (4, lanes).
    """
    TRIANGLE: tl.constexpr = SIZE * (SIZE + 1) // 2
    PARTS: tl.constexpr = 2 if SIZE == 1 else SIZE
    own = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    known, lane = own < lanes, tl.minimum(own, lanes - 1)
    stride, field = lanes.to(tl.int64), lanes.to(tl.int64) * CHUNK
    series = lane // chunks
    variances, bs = loaded(g + series * SIZE, 1, SIZE), loaded(squares + series * BLOCKS, 1, BLOCKS)
    zero = tl.zeros_like(variances[0])
    ones = constants(zero, 1.0, SIZE)
    if START:
        state, mean = constants(zero, 0.0, TRIANGLE), constants(zero, 0.0, SIZE)
        if SIZE == 1:
            state = (tl.abs(variances[0]) * -KNOWN,)
        following, following_mean = state, mean
        stored(entries + lane, stride, state, known, TRIANGLE)
        stored(entries + lane + TRIANGLE * stride, stride, mean, known, SIZE)
    else:
        state, mean = loaded(entries + lane, stride, TRIANGLE), loaded(entries + lane + TRIANGLE * stride, stride, SIZE)
        after = tl.minimum(lane + 1, lanes - 1)  # of a series' last chunk the map has no effect
        following = loaded(entries + after, stride, TRIANGLE)
        following_mean = loaded(entries + after + TRIANGLE * stride, stride, SIZE)
    j, n, r = unit(zero, SIZE), constants(zero, 0.0, TRIANGLE), constants(zero, 0.0, SIZE)
    quad, logdet, loss, failed = zero, zero, zero, zero + INFINITY
    point = (lane % chunks * CHUNK).to(tl.float64)
    here = staged + lane
    for _ in tl.range(0, CHUNK, loop_unroll_factor=UNROLL):
        parts = loaded(here, field, PARTS)
        noise, value = tl.load(here + PARTS * field), tl.load(here + (PARTS + 1) * field)
        step = transition(parts, bs, LAYOUT, BLOCKS, SIZE)
        _stepped, c, d, over, state, rest = measured(
            parts, step, noise, variances, ones, state, SIZE, MASK, READ, SIZE == 1
        )
        mean = times(step, mean, SIZE, MASK)
        z, w = value - dot(ones, mean, SIZE, READ), scaled(c, over, SIZE)
        mean = plus_scaled(mean, w, z, SIZE)
        if MAPS:
            j, n, r = mapped(step, w, over, z, rest, ones, j, n, r, SIZE, MASK, READ, SIZE == 1)
        if SUMS:
            observed = noise < INFINITY
            good = (d > 0.0) & (d < INFINITY)
            quad += z * z * over
            logdet += tl.where(observed, tl.log(d), 0.0)
            loss += over
            failed = tl.where(observed & ~good, tl.minimum(failed, point), failed)
            point += 1.0
        here += stride
    to = maps + lane
    if MAPS:
        stored(to, stride, j, known, SIZE * SIZE)
        stored(to + SIZE * SIZE * stride, stride, n, known, TRIANGLE)
        stored(to + (SIZE * SIZE + 2 * TRIANGLE) * stride, stride, r, known, SIZE)
    if MAPS and not SUMS:
        x, b = minus(state, following, TRIANGLE), minus(mean, following_mean, SIZE)
        stored(to + (SIZE * SIZE + TRIANGLE) * stride, stride, x, known, TRIANGLE)
        stored(to + (SIZE * SIZE + 2 * TRIANGLE + SIZE) * stride, stride, b, known, SIZE)
    if SUMS:
        valid = is_valid(loaded(rates + series * BLOCKS, 1, BLOCKS), bs, variances, BLOCKS, SIZE)
        nan = tl.where(valid, 0.0, float("nan"))
        loss = tl.where(valid, loss * dot(ones, variances, SIZE, READ), 0.0) if SIZE > 1 else zero
        stored(sums + lane, stride, (quad + nan, logdet + nan, loss, tl.where(valid, failed, INFINITY)), known, 4)
