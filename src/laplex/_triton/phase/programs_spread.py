"""Few sources, many targets, with phases: the sums of both channels at every source are a table that all targets read.

The table is that of ``short.programs``, of a stack: the sums of x cos psi are the first m of its rows, those of x sin
psi the others. For a target between the sources l <= t < r, with L for the sums from the left, R for those from the
right, and the four weights lc = exp(-(t - s_l) / tau) cos phi, ls with sin phi, rc and rs from the right,

    even    cos E_c + sin E_s = lc L_c + ls L_s + rc R_c + rs R_s
    turn    cos E_s - sin E_c = lc L_s - ls L_c + rc R_s - rs R_c
    odd     cos O_c + sin O_s = rc R_c + rs R_s - (lc L_c + ls L_s)       with the last source < t in place of l

A weight is rounded once, as the product of a decay and a cosine, both float64.
"""

import triton
import triton.language as tl

from laplex._triton.phase.programs import direction
from laplex._triton.points import decay_over, rate_of
from laplex._triton.program import program
from laplex._triton.short.programs import count_before, gaps_to_neighbours


@triton.jit
def _weights(source, t, number, k, rate, cos, sin, EXACT: tl.constexpr, SUM: tl.constexpr):
    """lc, ls, rc and rs for the neighbours ``number - 1`` and ``number`` of t, (targets, 1)."""
    left_gap, right_gap = gaps_to_neighbours(source, t, number, k)
    from_left, from_right = decay_over(left_gap, rate, EXACT), decay_over(right_gap, rate, EXACT)
    left_cos, left_sin = (from_left * cos).to(SUM), (from_left * sin).to(SUM)
    right_cos, right_sin = (from_right * cos).to(SUM), (from_right * sin).to(SUM)
    return left_cos[:, None], left_sin[:, None], right_cos[:, None], right_sin[:, None]


@program(numbers="m", callers=("target", "angle", "factor", "out", "tau"), divisible=("m",))
def phased_spread_program(
    target, source, tau, angle, table, factor, out, pull, turn, m, n, k, search,
    factor_batch, factor_row, factor_col, out_batch, out_row, out_col,
    EXACT: tl.constexpr, EVEN: tl.constexpr, PULL: tl.constexpr, TARGETS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """TARGETS targets of all rows, in the caller's order.

    EVEN: out = even. PULL, with factors f (h, m, n): pull[i] = 1/tau sum over rows of f odd, turn[i] = sum over rows of
    f turn. ``search`` is the number of steps of a bisection.
    """
    SUM: tl.constexpr = tl.float64 if EXACT else tl.float32
    batch = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0).to(tl.int64) * TARGETS + tl.arange(0, TARGETS)
    inside = i < n
    t = tl.load(target + batch * n + i, mask=inside, other=0.0)
    cos, sin = direction(angle + batch * n, i, inside)
    source += batch * k
    tau = tl.load(tau + batch)
    rate = rate_of(tau)
    upto = count_before(source, t, k, search, True)
    lc, ls, rc, rs = _weights(source, t, upto, k, rate, cos, sin, EXACT, SUM)
    if PULL:
        is_tied = inside & (upto > 0) & (tl.load(source + upto - 1, mask=upto > 0, other=0.0) == t)
        ties = tl.max(is_tied.to(tl.int32), 0)
        below, strict_lc, strict_ls = upto, lc, ls
        if ties > 0:
            below = count_before(source, t, k, search, False)
            strict_lc, strict_ls, _rc, _rs = _weights(source, t, below, k, rate, cos, sin, EXACT, SUM)
        below = below.to(tl.int64)[:, None]
    lefts, rights = table + batch * 4 * k * m, table + (batch * 4 + 2) * k * m
    upto = upto.to(tl.int64)[:, None]
    pulled, turned = tl.zeros([TARGETS], tl.float64), tl.zeros([TARGETS], tl.float64)
    for block in range(tl.cdiv(m, ROWS)):
        row = (block * ROWS + tl.arange(0, ROWS)).to(tl.int64)[None, :]
        both = inside[:, None] & (row < m)
        on_left, on_right = lefts + (upto - 1) * 2 * m + row, rights + upto * 2 * m + row
        has_left, has_right = both & (upto > 0), both & (upto < k)
        l_cos, l_sin = tl.load(on_left, mask=has_left, other=0.0), tl.load(on_left + m, mask=has_left, other=0.0)
        r_cos, r_sin = tl.load(on_right, mask=has_right, other=0.0), tl.load(on_right + m, mask=has_right, other=0.0)
        left, right = l_cos * lc + l_sin * ls, r_cos * rc + r_sin * rs
        if EVEN:
            out_at = out + batch * out_batch + row * out_row + i[:, None] * out_col
            tl.store(out_at, left + right, mask=both)
        if PULL:
            if ties > 0:
                on_left = lefts + (below - 1) * 2 * m + row
                tied = is_tied[:, None] & both
                l_strict = tl.load(on_left, mask=tied & (below > 0), other=0.0) * strict_lc
                l_strict += tl.load(on_left + m, mask=tied & (below > 0), other=0.0) * strict_ls
                left = tl.where(tied, l_strict, left)
            factor_at = factor + batch * factor_batch + row * factor_row + i[:, None] * factor_col
            f = tl.load(factor_at, mask=both, other=0.0).to(tl.float64)
            pulled += tl.sum(f * (right - left).to(tl.float64), 1)
            turned += tl.sum(f * (l_sin * lc - l_cos * ls + (r_sin * rc - r_cos * rs)).to(tl.float64), 1)
    if PULL:
        tl.store(pull + batch * n + i, pulled / tau, mask=inside)
        tl.store(turn + batch * n + i, turned, mask=inside)
