# mypy: allow-untyped-defs, allow-incomplete-defs, no-check-untyped-defs
"""The derivative of a Gram matrix by its columns, in Triton; ``gram`` has the formulas.

The targets are few: sums of what is pulled at them are a table of (target, weight, channel), which every column reads
beside the two targets it lies between. It is read in the caller's order, and weight_bar, b_bar and psi_bar are written
there: nothing else is as long as the columns. For a column at b, with U, V, W for what is pulled at them,

    right   sum over a > b of U exp(-2 (a - b) / tau)       left   sum over a < b of V exp(-2 (b - a) / tau)
    beyond  sum over a > b of W = V - U                     T_U, T_V  sums over a = b

    w_bar = right + left + beyond + (T_U + T_V + T_W) / 2,       T_W = T_V - T_U
    b_bar = w / tau (2 right - 2 left + T_U - T_V)

For tau the table has right and left with u exp(-u) in place of exp(-u), u = 2 |a - b| / tau, too: right_1 and left_1.

    tau_bar = 1/tau (sum of w (right_1 + left_1) + sum of what is pulled at the decays between anchors)
"""

from __future__ import annotations

import triton
import triton.language as tl

from laplex._triton.distance.programs import carried_over, exponent_over, running_states
from laplex._triton.gram.programs_sums import turn
from laplex._triton.points import LN_2, decay_over, rate_of
from laplex._triton.scan.carry import add_if_tied, carried_along
from laplex._triton.short.programs import count

FIELDS, FIELDS_TO_TAU = 5, 7  # of the table: right, beyond, left, T_U, T_V, and right_1, left_1


@triton.jit(do_not_specialize_on_alignment=["tau"])
def gram_table_program(
    pulled, sums, tau, position, order, table, m, n,
    EXACT: tl.constexpr, PHASED: tl.constexpr, FIELDS: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """table[batch, target, row, field] for one row (of weights and channels) and field: sums up to each target.

    Targets are in order, as ``position`` is; ``order`` says where the caller has them. A fault, which has made all of
    the sums NaN, makes all of it NaN.
    """
    CHANNELS: tl.constexpr = 3 if PHASED else 1
    PULLS: tl.constexpr = 10 if PHASED else 4
    number, row = tl.program_id(0) % FIELDS, tl.program_id(0) // FIELDS
    field = tl.where(number == 5, 0, tl.where(number == 6, 2, number))  # weighted by distance or not
    batch = tl.program_id(1).to(tl.int64)
    index = batch * m + row // CHANNELS
    at_left = pulled + (index * PULLS + row % CHANNELS) * n
    fault = tl.load(sums + index * CHANNELS * 4 * n) * 0.0
    of_left = tl.where((field == 0) | (field == 3), 1.0, tl.where(field == 1, -1.0, 0.0)).to(tl.float64)
    of_right = tl.where((field == 0) | (field == 3), 0.0, 1.0).to(tl.float64)
    rate = tl.where(field == 1, 0.0, rate_of(tl.load(tau + batch) * 0.5))  # what lies beyond does not decay
    lane = tl.arange(0, GROUP)
    carried, carried_at, carried_sum = tl.zeros([], tl.float64), tl.zeros([], tl.float64), tl.zeros([], tl.float64)
    for begin in range(0, n, GROUP):
        have = begin + lane < n
        place = tl.where(field < 2, n - 1 - begin - lane, begin + lane).to(tl.int64)
        at = tl.load(position + batch * n + place, mask=have, other=0.0).to(tl.float64)
        i = tl.load(order + batch * n + place, mask=have, other=0)
        v = tl.load(at_left + i, mask=have, other=0.0) * of_left
        v += tl.load(at_left + CHANNELS * n + i, mask=have, other=0.0) * of_right
        sums_there = v
        if number > 4:
            sums_there, found = running_states(at, v, tl.zeros_like(v), rate, EXACT, False)
            more, brought = carried_over(carried_sum, carried, tl.where(have, at - carried_at, 0.0), rate, EXACT)
            sums_there, found = sums_there + more, found + brought
        elif field < 3:
            found = carried_along(at, v, have, rate, EXACT)
            found += carried * decay_over(tl.where(have, tl.abs(at - carried_at), 0.0), rate, EXACT)
        else:
            _at, found = tl.associative_scan((at, v), 0, add_if_tied)
            found += tl.where((begin > 0) & (at == carried_at), carried, 0.0)
        out = table + ((batch * n + place) * m * CHANNELS + row) * FIELDS + number
        tl.store(out, found + fault, mask=have)
        carried = tl.sum(tl.where(lane == GROUP - 1, found, 0.0), 0)
        carried_at = tl.sum(tl.where(lane == GROUP - 1, at, 0.0), 0)
        carried_sum = tl.sum(tl.where(lane == GROUP - 1, sums_there, 0.0), 0)


@triton.jit
def _bars(below_at, upto_at, tied_at, places, decays, exponents, TO_TAU: tl.constexpr):
    """Of one weight and channel: w_bar, tau / w times what is added to b_bar, and right_1 + left_1."""
    is_left, is_right, is_inside, is_tied = places
    from_left, from_right = decays
    u_left, u_right = exponents
    on_right = tl.load(upto_at, mask=is_right, other=0.0)
    on_left = tl.load(below_at + 2, mask=is_left, other=0.0)
    weighted = tl.zeros_like(on_left)
    if TO_TAU:
        weighted = (tl.load(upto_at + 5, mask=is_right, other=0.0) + u_right * on_right) * from_right
        weighted += (tl.load(below_at + 6, mask=is_left, other=0.0) + u_left * on_left) * from_left
    right, left = on_right * from_right, on_left * from_left
    beyond = tl.load(upto_at + 1, mask=is_right & is_inside, other=0.0)  # left of all targets it is 0, but for rounding
    tied_u = tl.load(tied_at + 3, mask=is_tied, other=0.0)
    tied_v = tl.load(tied_at + 4, mask=is_tied, other=0.0)
    return right + left + (beyond + tied_v), 2.0 * (right - left) + (tied_u - tied_v), weighted


@triton.jit(do_not_specialize_on_alignment=["weight", "psi", "source", "tau"])
def gram_source_program(
    weight, psi, source, tau, position, table, weight_bar, source_bar, psi_bar, stretch,
    m, n, k, steps, w_batch, w_row, w_col,
    EXACT: tl.constexpr, PHASED: tl.constexpr, TO_WEIGHT: tl.constexpr, TO_SOURCE: tl.constexpr, TO_PSI: tl.constexpr,
    TO_TAU: tl.constexpr, FIELDS: tl.constexpr, SOURCES: tl.constexpr,
):  # fmt: skip
    """The bars of SOURCES columns, in the caller's order, over all weights."""
    CHANNELS: tl.constexpr = 3 if PHASED else 1
    batch = tl.program_id(1).to(tl.int64)
    j = tl.program_id(0).to(tl.int64) * SOURCES + tl.arange(0, SOURCES)
    inside = j < k
    s = tl.load(source + batch * k + j, mask=inside, other=0.0)
    position += batch * n
    below = count(position, s, n, steps, False)
    is_tied = inside & (below < n) & (tl.load(position + below, mask=below < n, other=0.0) == s)
    upto = below
    if tl.max(is_tied.to(tl.int32), 0) != 0:
        upto = count(position, s, n, steps, True)
    is_left, is_right = inside & (below > 0), inside & (upto < n)
    length = tl.load(tau + batch)
    rate, b = rate_of(length * 0.5), s.to(tl.float64)
    before = tl.load(position + below - 1, mask=is_left, other=0.0).to(tl.float64)
    behind = tl.load(position + upto, mask=is_right, other=0.0).to(tl.float64)
    left_gap, right_gap = tl.where(is_left, tl.abs(b - before), 0.0), tl.where(is_right, tl.abs(behind - b), 0.0)
    decays = decay_over(left_gap, rate, EXACT), decay_over(right_gap, rate, EXACT)
    exponents = exponent_over(left_gap, rate), exponent_over(right_gap, rate)
    places = is_left, is_right, upto > 0, is_tied
    stride = tl.zeros([], tl.int64) + m * CHANNELS * FIELDS
    table += batch * n * stride
    if PHASED:
        cos, sin = turn(psi + batch * k + j, inside)
    pulled, turned, stretched = tl.zeros_like(b), tl.zeros_like(b), tl.zeros_like(b)
    for number in range(m):
        row = tl.zeros([], tl.int64) + number
        w = tl.load(weight + batch * w_batch + row * w_row + j * w_col, mask=inside, other=0.0).to(tl.float64)
        below_at = table + (below - 1) * stride + row * CHANNELS * FIELDS
        upto_at = table + upto * stride + row * CHANNELS * FIELDS
        bar, slope, weighted = _bars(below_at, upto_at, upto_at - stride, places, decays, exponents, TO_TAU)
        if PHASED:
            below_at, upto_at = below_at + FIELDS, upto_at + FIELDS
            of_cos, cos_slope, cos_weighted = _bars(
                below_at, upto_at, upto_at - stride, places, decays, exponents, TO_TAU
            )
            below_at, upto_at = below_at + FIELDS, upto_at + FIELDS
            of_sin, sin_slope, sin_weighted = _bars(
                below_at, upto_at, upto_at - stride, places, decays, exponents, TO_TAU
            )
            bar += cos * of_cos + sin * of_sin
            slope += cos * cos_slope + sin * sin_slope
            weighted += cos * cos_weighted + sin * sin_weighted
            turned += w * (cos * of_sin - sin * of_cos)
        pulled += w * slope
        stretched += w * weighted
        if TO_WEIGHT:
            tl.store(weight_bar + (batch * m + row) * k + j, bar, mask=inside)
    if TO_SOURCE:
        tl.store(source_bar + batch * k + j, pulled / length, mask=inside)
    if TO_TAU:
        tl.store(stretch + batch * tl.num_programs(0) + tl.program_id(0), tl.sum(stretched, 0) * LN_2)
    if TO_PSI:
        tl.store(psi_bar + batch * k + j, 2.0 * turned, mask=inside)
