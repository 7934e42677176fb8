"""Small products on the GPU without an order: every target looks at every source, in one launch."""

from __future__ import annotations

import triton
import triton.language as tl

from laplex._triton.distance.programs import exponent_over
from laplex._triton.points import INFINITY, LN_2, decay_over, rate_of


@triton.jit(do_not_specialize_on_alignment=["x", "target", "source", "tau", "even", "odd"])
def direct_program(
    x, target, source, tau, even, odd, m, n, k, x_batch, x_row, x_col, even_batch, even_row, even_col,
    EXACT: tl.constexpr, ODD: tl.constexpr, DEGREE: tl.constexpr, TARGETS: tl.constexpr, SOURCES: tl.constexpr,
    ROWS: tl.constexpr,
):  # fmt: skip
    """(A x, B x) of a degree at TARGETS targets for ROWS rows; NaN throughout if any anchor or tau is at fault."""
    blocks = tl.cdiv(n, TARGETS)
    batch = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) % blocks * TARGETS + tl.arange(0, TARGETS)
    row = (tl.program_id(0) // blocks * ROWS + tl.arange(0, ROWS)).to(tl.int64)
    target, source = target + batch * n, source + batch * k
    t = tl.load(target + at, mask=at < n, other=0.0).to(tl.float64)
    rate = rate_of(tl.load(tau + batch))
    sums = tl.zeros([ROWS, TARGETS], tl.float64)
    differences = tl.zeros([ROWS, TARGETS], tl.float64)
    fault = tl.where(rate > 0, 0.0, float("nan")) + tl.zeros([SOURCES], tl.float64)
    lane = tl.arange(0, SOURCES)
    for start in range(0, k, SOURCES):
        j = start + lane
        s = tl.load(source + j, mask=j < k, other=0.0).to(tl.float64)
        fault += tl.where(tl.abs(s) < INFINITY, 0.0, float("nan"))
        gap = s[None, :] - t[:, None]  # (target, source)
        decay = decay_over(tl.abs(gap), rate, EXACT)
        if DEGREE == 1:
            decay *= exponent_over(gap, rate) * LN_2
        both = (row < m)[:, None] & (j < k)[None, :]
        offset = batch * x_batch + row[:, None] * x_row + j[None, :].to(tl.int64) * x_col
        v = tl.load(x + offset, mask=both, other=0.0).to(tl.float64)[:, None, :]
        sums += tl.sum(v * decay[None, :, :], 2)
        if ODD:
            turned = tl.where(gap > 0, decay, tl.where(gap < 0, -decay, 0.0))
            differences += tl.sum(v * turned[None, :, :], 2)
    for start in range(0, n, SOURCES):
        i = start + lane
        other = tl.load(target + i, mask=i < n, other=0.0).to(tl.float64)
        fault += tl.where(tl.abs(other) < INFINITY, 0.0, float("nan"))
    fault = tl.sum(fault, 0)
    both = (row < m)[:, None] & (at < n)[None, :]
    offset = batch * even_batch + row[:, None] * even_row + at[None, :].to(tl.int64) * even_col
    tl.store(even + offset, sums + fault, mask=both)
    if ODD:
        tl.store(odd + (batch * m + row)[:, None] * n + at[None, :], differences + fault, mask=both)
