"""Triton programs for the derivative of a Gram matrix by its columns: weights, sources, their phases, and tau.

``programs_matrix`` has found the pulls at every target, gU and gV for each weight vector and channel; ``laplex._gram``
has the formulas. The derivative is the transpose of the sums U, V and W: here every source sums over the targets. For a
source at b, with gW = gV - gU,

    right    sum over a > b of gU exp(-2 (a - b) / tau)        beyond   sum over a > b of gW
    left     sum over a < b of gV exp(-2 (b - a) / tau)        T_U, T_V sums of gU and gV over a = b

    w_bar = right + left + beyond + (T_U + T_V + T_W) / 2 = right + left + beyond + T_V,          as T_W = T_V - T_U
    b_bar = w / tau (2 right - 2 left + T_U - T_V)

    tau_bar = 1 / tau (sum over sources of w (right_1 + left_1) + sum over targets of the pulls at D)

where right_1 and left_1 have u exp(-u) in place of exp(-u), u = 2 |a - b| / tau. With phases the three channels
contribute w_bar = w_bar_0 + cos 2 psi w_bar_1 + sin 2 psi w_bar_2, and the same for right_1, left_1 and b_bar; and

    psi_bar = 2 w (cos 2 psi w_bar_2 - sin 2 psi w_bar_1)

Two launches compute this. The first one scans the sorted targets, which are few, and stores every sum at every target
in a table. The second one finds, by bisection, the two targets between which a source lies, reads the table there, and
applies the decay over the remaining gap. It reads and writes the sources in the caller's order. No other tensor is as
long as the columns.
"""

import triton
import triton.language as tl

from laplex._triton.gram.programs_sums import double_angle
from laplex._triton.points import LN_2, decay_over, exponent_over, rate_of
from laplex._triton.program import program
from laplex._triton.running import add_if_tied, carried_along, carried_over, running_states
from laplex._triton.short.programs import count_before

FIELDS, FIELDS_TO_TAU = 5, 7  # of the table: 0 right, 1 beyond, 2 left, 3 T_U, 4 T_V; for tau 5 right_1, 6 left_1, too


@program(numbers="m", callers=("tau",))
def gram_table_program(
    pulled, sums, tau, position, order, table, m, n,
    EXACT: tl.constexpr, PHASED: tl.constexpr, FIELDS: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """One field of table (batches, n, m * channels, FIELDS) for one weight vector and channel: a scan over the targets.

    At each target, in the order of ``position``, the field is the sum up to and including it: from the right for fields
    0, 1 and 5, from the left for the others. Fields 3 and 4 sum over ties only. ``order`` has the targets' indices in
    the caller's order. A fault has made ``sums`` NaN, and makes the table NaN. GROUP targets are scanned at a time.
    """
    CHANNELS: tl.constexpr = 3 if PHASED else 1
    PULLS: tl.constexpr = 10 if PHASED else 4
    number, row = tl.program_id(0) % FIELDS, tl.program_id(0) // FIELDS
    field = tl.where(number == 5, 0, tl.where(number == 6, 2, number))  # the same sum without the factor u
    batch = tl.program_id(1).to(tl.int64)
    index = batch * m + row // CHANNELS
    u_pulls = pulled + (index * PULLS + row % CHANNELS) * n
    fault = tl.load(sums + index * CHANNELS * 4 * n) * 0.0
    of_u = tl.where((field == 0) | (field == 3), 1.0, tl.where(field == 1, -1.0, 0.0)).to(tl.float64)
    of_v = tl.where((field == 0) | (field == 3), 0.0, 1.0).to(tl.float64)
    rate = tl.where(field == 1, 0.0, rate_of(tl.load(tau + batch) * 0.5))  # W does not decay
    lane = tl.arange(0, GROUP)
    carried, carried_at, carried_plain = tl.zeros([], tl.float64), tl.zeros([], tl.float64), tl.zeros([], tl.float64)
    for begin in range(0, n, GROUP):
        inside = begin + lane < n
        place = tl.where(field < 2, n - 1 - begin - lane, begin + lane).to(tl.int64)
        positions = tl.load(position + batch * n + place, mask=inside, other=0.0).to(tl.float64)
        i = tl.load(order + batch * n + place, mask=inside, other=0)
        v = tl.load(u_pulls + i, mask=inside, other=0.0) * of_u
        v += tl.load(u_pulls + CHANNELS * n + i, mask=inside, other=0.0) * of_v
        plain = v
        if number > 4:
            plain, sums_here = running_states(positions, v, tl.zeros_like(v), rate, EXACT, False)
            gap = tl.where(inside, positions - carried_at, 0.0)
            more, brought = carried_over(carried_plain, carried, gap, rate, EXACT)
            plain, sums_here = plain + more, sums_here + brought
        elif field < 3:
            sums_here = carried_along(positions, v, inside, rate, EXACT)
            sums_here += carried * decay_over(tl.where(inside, tl.abs(positions - carried_at), 0.0), rate, EXACT)
        else:
            _positions, sums_here = tl.associative_scan((positions, v), 0, add_if_tied)
            sums_here += tl.where((begin > 0) & (positions == carried_at), carried, 0.0)
        out = table + ((batch * n + place) * m * CHANNELS + row) * FIELDS + number
        tl.store(out, sums_here + fault, mask=inside)
        carried = tl.sum(tl.where(lane == GROUP - 1, sums_here, 0.0), 0)
        carried_at = tl.sum(tl.where(lane == GROUP - 1, positions, 0.0), 0)
        carried_plain = tl.sum(tl.where(lane == GROUP - 1, plain, 0.0), 0)


@triton.jit
def _channel_bars(left_at, right_at, stride, neighbours, TO_TAU: tl.constexpr):
    """For one weight vector and channel: w_bar, b_bar * tau / w, and right_1 + left_1.

    ``left_at`` and ``right_at`` are the table's addresses for the next target on the left and on the right; the one
    before the latter is the last that ties. Exponents, and so right_1 + left_1, are in powers of two.
    """
    has_left, has_right, is_inside, is_tied, from_left, from_right, u_left, u_right = neighbours
    tied_at = right_at - stride
    right = tl.load(right_at, mask=has_right, other=0.0)
    left = tl.load(left_at + 2, mask=has_left, other=0.0)
    weighted = tl.zeros_like(left)
    if TO_TAU:  # over a gap of u the sums (v, p) of exp(-u) and u exp(-u) become exp(-u) (v, p + u v)
        weighted = (tl.load(right_at + 5, mask=has_right, other=0.0) + u_right * right) * from_right
        weighted += (tl.load(left_at + 6, mask=has_left, other=0.0) + u_left * left) * from_left
    right, left = right * from_right, left * from_left
    # Left of all targets ``beyond`` is the sum of all gW, which is 0: not read, as the table has its rounding errors.
    beyond = tl.load(right_at + 1, mask=has_right & is_inside, other=0.0)
    tied_u = tl.load(tied_at + 3, mask=is_tied, other=0.0)
    tied_v = tl.load(tied_at + 4, mask=is_tied, other=0.0)
    return right + left + (beyond + tied_v), 2.0 * (right - left) + (tied_u - tied_v), weighted


@program(numbers="m", callers=("weight", "psi", "source", "tau"))
def gram_source_program(
    weight, psi, source, tau, position, table, weight_bar, source_bar, psi_bar, stretch,
    m, n, k, steps, w_batch, w_row, w_col,
    EXACT: tl.constexpr, PHASED: tl.constexpr, TO_WEIGHT: tl.constexpr, TO_SOURCE: tl.constexpr, TO_PSI: tl.constexpr,
    TO_TAU: tl.constexpr, FIELDS: tl.constexpr, SOURCES: tl.constexpr,
):  # fmt: skip
    """Cotangents of SOURCES columns in the caller's order, over all weight vectors.

    TO_WEIGHT, TO_SOURCE, TO_PSI and TO_TAU say which of the outputs are written. ``stretch`` takes this program's part
    of the sum of w (right_1 + left_1).
    """
    CHANNELS: tl.constexpr = 3 if PHASED else 1
    batch = tl.program_id(1).to(tl.int64)
    j = tl.program_id(0).to(tl.int64) * SOURCES + tl.arange(0, SOURCES)
    inside = j < k
    s = tl.load(source + batch * k + j, mask=inside, other=0.0)
    position += batch * n
    below = count_before(position, s, n, steps, False)
    is_tied = inside & (below < n) & (tl.load(position + below, mask=below < n, other=0.0) == s)
    upto = below
    if tl.max(is_tied.to(tl.int32), 0) != 0:
        upto = count_before(position, s, n, steps, True)
    has_left, has_right = inside & (below > 0), inside & (upto < n)
    length = tl.load(tau + batch)
    rate, b = rate_of(length * 0.5), s.to(tl.float64)
    before = tl.load(position + below - 1, mask=has_left, other=0.0).to(tl.float64)
    after = tl.load(position + upto, mask=has_right, other=0.0).to(tl.float64)
    left_gap, right_gap = tl.where(has_left, tl.abs(b - before), 0.0), tl.where(has_right, tl.abs(after - b), 0.0)
    from_left, from_right = decay_over(left_gap, rate, EXACT), decay_over(right_gap, rate, EXACT)
    u_left, u_right = exponent_over(left_gap, rate), exponent_over(right_gap, rate)
    neighbours = has_left, has_right, upto > 0, is_tied, from_left, from_right, u_left, u_right
    stride = tl.zeros([], tl.int64) + m * CHANNELS * FIELDS  # of a target in the table
    table += batch * n * stride
    if PHASED:
        cos, sin = double_angle(psi + batch * k + j, inside)
    source_sum, psi_sum, tau_sum = tl.zeros_like(b), tl.zeros_like(b), tl.zeros_like(b)
    for number in range(m):
        row = tl.zeros([], tl.int64) + number
        w = tl.load(weight + batch * w_batch + row * w_row + j * w_col, mask=inside, other=0.0).to(tl.float64)
        left_at = table + (below - 1) * stride + row * CHANNELS * FIELDS
        right_at = table + upto * stride + row * CHANNELS * FIELDS
        bar, slope, weighted = _channel_bars(left_at, right_at, stride, neighbours, TO_TAU)
        if PHASED:
            left_at, right_at = left_at + FIELDS, right_at + FIELDS
            cos_bar, cos_slope, cos_weighted = _channel_bars(left_at, right_at, stride, neighbours, TO_TAU)
            left_at, right_at = left_at + FIELDS, right_at + FIELDS
            sin_bar, sin_slope, sin_weighted = _channel_bars(left_at, right_at, stride, neighbours, TO_TAU)
            bar += cos * cos_bar + sin * sin_bar
            slope += cos * cos_slope + sin * sin_slope
            weighted += cos * cos_weighted + sin * sin_weighted
            psi_sum += w * (cos * sin_bar - sin * cos_bar)
        source_sum += w * slope
        tau_sum += w * weighted
        if TO_WEIGHT:
            tl.store(weight_bar + (batch * m + row) * k + j, bar, mask=inside)
    if TO_SOURCE:
        tl.store(source_bar + batch * k + j, source_sum / length, mask=inside)
    if TO_TAU:
        tl.store(stretch + batch * tl.num_programs(0) + tl.program_id(0), tl.sum(tau_sum, 0) * LN_2)
    if TO_PSI:
        tl.store(psi_bar + batch * k + j, 2.0 * psi_sum, mask=inside)
