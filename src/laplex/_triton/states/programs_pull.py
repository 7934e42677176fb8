"""A Triton program that walks back: the gradients of the likelihood. The package's docstring has the recursions.

With alpha = z / d - w^T R and beta = 1 / d + w^T M w, where R and M are the r and N of all points after point n,

    y_bar = 2 quad_bar alpha        diag_bar = logdet_bar beta - quad_bar alpha^2
    g_bar = sum of p diag_bar - 2 quad_bar alpha R - 2 logdet_bar M w
    r = R + p alpha                 N = M - p (M w)^T - (M w) p^T + beta p p^T         before point n

and the step before it has S_bar = quad_bar r r^T - logdet_bar N and f_bar = -2 quad_bar r. One state has P in place of
-S: with rest = diag / d, no difference is formed in r = z / d + rest R and N = 1 / d + rest^2 M, and as P = rho^2 Q +
g kappa, g_bar is the sum of P_bar kappa.
"""

import triton
import triton.language as tl

from laplex._triton.program import program
from laplex._triton.states.matrices import (
    conjugated_back,
    constants,
    dot,
    entry,
    full,
    loaded,
    plus,
    plus_outer,
    plus_scaled,
    product,
    scaled,
    stored,
    times,
    times_back,
    times_symmetric,
)
from laplex._triton.states.programs import MAX_GAP, is_valid, measured
from laplex._triton.states.transitions import bars_of_block, transition


@triton.jit
def before_point(later_n, later_r, w, mw, alpha, beta, over, z, rest, ones, SIZE: tl.constexpr, READ: tl.constexpr):
    """N and r with the point itself."""
    if SIZE == 1:
        return (over + rest * rest * later_n[0],), (z * over + rest * later_r[0],)
    else:
        n, r = (), ()
        for i in tl.static_range(SIZE):
            r = r + ((later_r[i] + ones[i] * alpha) if (READ >> i) & 1 else later_r[i],)
            for k in tl.static_range(i, SIZE):
                value = entry(later_n, i, k, SIZE)
                if (READ >> i) & 1:
                    value -= ones[i] * mw[k]
                if (READ >> k) & 1:
                    value -= mw[i] * ones[k]
                if ((READ >> i) & 1) and ((READ >> k) & 1):
                    value += beta * ones[i] * ones[k]
                n = n + (value,)
        return n, r


@triton.jit
def bars_of_step(
    gap, rates, squares, state_bar, mean_bar, stepped, mean, pushed, before,
    LAYOUT: tl.constexpr, BLOCKS: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """The gradients of a step in all a, all b, and in the gap."""
    a_bars, b_bars, gap_bar = (), (), tl.zeros_like(gap)
    state = full(stepped, SIZE)
    for i in tl.static_range(BLOCKS):
        a_bar, b_bar, own = bars_of_block(
            gap, rates[i], squares[i], state_bar, mean_bar, state, mean, pushed, before,
            (LAYOUT >> (8 * i)) & 3, (LAYOUT >> (8 * i + 2)) & 15, SIZE,
        )  # fmt: skip
        a_bars, b_bars, gap_bar = a_bars + (a_bar,), b_bars + (b_bar,), gap_bar + own
    return a_bars, b_bars, gap_bar


@triton.jit
def filtered(
    staged, entries, scratch, lane, known, squares, g, ones, stride, field,
    LAYOUT: tl.constexpr, BLOCKS: tl.constexpr, SIZE: tl.constexpr, MASK: tl.constexpr, READ: tl.constexpr,
    CHUNK: tl.constexpr,
):  # fmt: skip
    """Write the state before every step of the chunk to ``scratch``, (TRIANGLE + SIZE, CHUNK, lanes)."""
    TRIANGLE: tl.constexpr = SIZE * (SIZE + 1) // 2
    PARTS: tl.constexpr = 2 if SIZE == 1 else SIZE
    state, mean = loaded(entries + lane, stride, TRIANGLE), loaded(entries + lane + TRIANGLE * stride, stride, SIZE)
    here, to = staged + lane, scratch + lane
    for _ in range(CHUNK):
        stored(to, field, state, known, TRIANGLE)
        stored(to + TRIANGLE * field, field, mean, known, SIZE)
        parts = loaded(here, field, PARTS)
        noise, value = tl.load(here + PARTS * field), tl.load(here + (PARTS + 1) * field)
        step = transition(parts, squares, LAYOUT, BLOCKS, SIZE)
        _stepped, c, _d, over, state, _rest = measured(parts, step, noise, g, ones, state, SIZE, MASK, READ, SIZE == 1)
        mean = times(step, mean, SIZE, MASK)
        mean = plus_scaled(mean, c, over * (value - dot(ones, mean, SIZE, READ)), SIZE)
        here += stride
        to += stride


@program(numbers="n", callers=("gaps", "order", "counts", "rates", "squares", "g", "quad_bar", "logdet_bar"))
def pull_program(
    staged, gaps, order, counts, rates, squares, g, quad_bar, logdet_bar, entries, later, scratch,
    gaps_bar, diag_bar, y_bar, sums, n, chunks, lanes,
    LAYOUT: tl.constexpr, BLOCKS: tl.constexpr, SIZE: tl.constexpr, MASK: tl.constexpr, READ: tl.constexpr,
    ORDERED: tl.constexpr, COUNTED: tl.constexpr, CHUNK: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Walk over every chunk, and back: from ``entries``, and from the N and r of all that follows it, in ``later``.

    Write the gradients of gaps, diag and y, and the sums over a chunk for rates, squares and g: (2 BLOCKS + SIZE,
    lanes).
    """
    TRIANGLE: tl.constexpr = SIZE * (SIZE + 1) // 2
    PARTS: tl.constexpr = 2 if SIZE == 1 else SIZE
    own = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    known, lane = own < lanes, tl.minimum(own, lanes - 1)
    stride, field = lanes.to(tl.int64), lanes.to(tl.int64) * CHUNK
    series = lane // chunks
    variances = loaded(g + series * SIZE, 1, SIZE)
    rate, bs = loaded(rates + series * BLOCKS, 1, BLOCKS), loaded(squares + series * BLOCKS, 1, BLOCKS)
    zero = tl.zeros_like(variances[0])
    ones = constants(zero, 1.0, SIZE)
    filtered(
        staged, entries, scratch, lane, known, bs, variances, ones, stride, field,
        LAYOUT, BLOCKS, SIZE, MASK, READ, CHUNK,
    )  # fmt: skip
    tl.debug_barrier()  # a lane reads what it has written itself; nothing else is known of where lanes are
    fault = tl.where(is_valid(rate, bs, variances, BLOCKS, SIZE), 0.0, float("nan"))
    to_quad, to_logdet = tl.load(quad_bar + series) + fault, tl.load(logdet_bar + series) + fault
    later_n, later_r = loaded(later + lane, stride, TRIANGLE), loaded(later + lane + TRIANGLE * stride, stride, SIZE)
    a_bars, b_bars, g_bars = constants(zero, 0.0, BLOCKS), constants(zero, 0.0, BLOCKS), constants(zero, 0.0, SIZE)
    point = lane % chunks * CHUNK + CHUNK - 1
    here, back = staged + lane + field - stride, scratch + lane + field - stride
    for _ in range(CHUNK):
        if COUNTED:
            inside = known & (point < tl.load(counts + series))
        else:
            inside = known & (point < n)
        gap = tl.minimum(tl.load(gaps + series * n + point, mask=inside, other=0.0), MAX_GAP)
        parts = loaded(here, field, PARTS)
        noise, value = tl.load(here + PARTS * field), tl.load(here + (PARTS + 1) * field)
        state, before = loaded(back, field, TRIANGLE), loaded(back + TRIANGLE * field, field, SIZE)
        step = transition(parts, bs, LAYOUT, BLOCKS, SIZE)
        stepped, c, _d, over, _after, rest = measured(
            parts, step, noise, variances, ones, state, SIZE, MASK, READ, SIZE == 1
        )
        mean = times(step, before, SIZE, MASK)
        z, w = value - dot(ones, mean, SIZE, READ), scaled(c, over, SIZE)
        mw = times_symmetric(later_n, w, SIZE, -1)
        alpha, beta = z * over - dot(w, later_r, SIZE, -1), over + dot(w, mw, SIZE, -1)
        to_diag = to_logdet * beta - to_quad * alpha * alpha
        all_n, all_r = before_point(later_n, later_r, w, mw, alpha, beta, over, z, rest, ones, SIZE, READ)
        mean_bar = scaled(all_r, -2.0 * to_quad, SIZE)
        state_bar = plus_outer(scaled(all_n, -to_logdet, TRIANGLE), all_r, to_quad, SIZE)
        if SIZE == 1:
            g_bars = (g_bars[0] - tl.where(inside, state_bar[0] * parts[1], 0.0),)
            u_bar = -2.0 * state_bar[0] * (variances[0] + stepped[0]) - mean_bar[0] * mean[0]
            to_gap, a_bars = rate[0] * u_bar, (a_bars[0] + gap * u_bar,)
        else:
            own_bars = plus_scaled(scaled(later_r, -2.0 * to_quad * alpha, SIZE), mw, -2.0 * to_logdet, SIZE)
            for_g = ()
            for i in tl.static_range(SIZE):
                for_g = for_g + ((own_bars[i] + ones[i] * to_diag) if (READ >> i) & 1 else own_bars[i],)
            g_bars = plus(g_bars, for_g, SIZE)
            pushed = product(step, full(state, SIZE), SIZE, MASK)
            more_a, more_b, to_gap = bars_of_step(
                gap, rate, bs, state_bar, mean_bar, stepped, mean, pushed, before, LAYOUT, BLOCKS, SIZE
            )
            a_bars, b_bars = plus(a_bars, more_a, BLOCKS), plus(b_bars, more_b, BLOCKS)
        place = series * n + point
        tl.store(gaps_bar + place, tl.where(point == 0, fault, to_gap), mask=inside)
        if ORDERED:
            place = series * n + tl.load(order + place, mask=inside, other=0)
        tl.store(diag_bar + place, to_diag, mask=inside)
        tl.store(y_bar + place, 2.0 * to_quad * alpha, mask=inside)
        later_n, later_r = conjugated_back(step, all_n, SIZE, MASK), times_back(step, all_r, SIZE, MASK)
        here -= stride
        back -= stride
        point -= 1
    stored(sums + lane, stride, a_bars, known, BLOCKS)
    stored(sums + lane + BLOCKS * stride, stride, b_bars, known, BLOCKS)
    stored(sums + lane + 2 * BLOCKS * stride, stride, g_bars, known, SIZE)
