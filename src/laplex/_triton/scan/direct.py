"""Small products on the GPU without an order: one launch visits every pair of a target and a source."""

import triton.language as tl

from laplex._triton.points import INFINITY, LN_2, decay_over, exponent_over, rate_of
from laplex._triton.program import program


@program(numbers="m", callers=("x", "target", "source", "tau", "even", "odd"))
def direct_program(
    x, target, source, tau, even, odd, m, n, k, x_batch, x_row, x_col, even_batch, even_row, even_col,
    EXACT: tl.constexpr, ODD: tl.constexpr, DEGREE: tl.constexpr, TARGETS: tl.constexpr, SOURCES: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    """The even sums at TARGETS targets for ROWS rows of x, and if ODD the odd sums.

    With u = |t - s| / tau, the even sum at a target t is the sum over the sources s of u^DEGREE exp(-u) x, and the odd
    sum is the same with the sign of s - t: a tied source counts nothing. All outputs of a batch entry are NaN if one of
    its anchors is not finite, or its tau not positive and finite.
    """
    blocks = tl.cdiv(n, TARGETS)
    batch = tl.program_id(1).to(tl.int64)
    i = tl.program_id(0) % blocks * TARGETS + tl.arange(0, TARGETS)
    row = (tl.program_id(0) // blocks * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    target, source = target + batch * n, source + batch * k
    t = tl.load(target + i, mask=i < n, other=0.0).to(tl.float64)
    rate = rate_of(tl.load(tau + batch))
    even_sums = tl.zeros([ROWS, TARGETS], tl.float64)
    odd_sums = tl.zeros([ROWS, TARGETS], tl.float64)
    fault = tl.where(rate > 0, 0.0, float("nan")) + tl.zeros([SOURCES], tl.float64)
    lane = tl.arange(0, SOURCES)
    for start in range(0, k, SOURCES):
        j = start + lane
        s = tl.load(source + j, mask=j < k, other=0.0).to(tl.float64)
        fault += tl.where(tl.abs(s) < INFINITY, 0.0, float("nan"))
        gap = s[None, :] - t[:, None]  # (targets, sources)
        decay = decay_over(tl.abs(gap), rate, EXACT)
        if DEGREE == 1:
            decay *= exponent_over(gap, rate) * LN_2
        mask = (row < m)[:, None] & (j < k)[None, :]
        offset = batch * x_batch + row[:, None] * x_row + j[None, :].to(tl.int64) * x_col
        v = tl.load(x + offset, mask=mask, other=0.0).to(tl.float64)[:, None, :]  # (rows, 1, sources)
        even_sums += tl.sum(v * decay[None, :, :], 2)
        if ODD:
            signed = tl.where(gap > 0, decay, tl.where(gap < 0, -decay, 0.0))
            odd_sums += tl.sum(v * signed[None, :, :], 2)
    for start in range(0, n, SOURCES):  # every program checks all targets, so that all outputs share a fault
        other = start + lane
        other_t = tl.load(target + other, mask=other < n, other=0.0).to(tl.float64)
        fault += tl.where(tl.abs(other_t) < INFINITY, 0.0, float("nan"))
    fault = tl.sum(fault, 0)
    mask = (row < m)[:, None] & (i < n)[None, :]
    offset = batch * even_batch + row[:, None] * even_row + i[None, :].to(tl.int64) * even_col
    tl.store(even + offset, even_sums + fault, mask=mask)
    if ODD:
        tl.store(odd + (batch * m + row)[:, None] * n + i[None, :], odd_sums + fault, mask=mask)
