"""Triton programs that form W = sum over q of w_q K_q tile by tile, and that pull a gradient of W back.

A program has one tile of W, TARGETS rows and SOURCES columns, and visits it once per matrix of the sum. Only W and its
gradient exist in memory. The pullback sums over the rows and over the columns of a tile; what the tiles give, the
*parts*, are summed by ``finish_program`` in float64. There are no atomics: the same input gives the same bits.

``laplex._formed`` has the formulas.
"""

import triton
import triton.language as tl

from laplex._triton.points import INFINITY, LN_2, decay_over, exponent_over, rate_of
from laplex._triton.program import program


@triton.jit
def decays(t, s, rate, EXACT: tl.constexpr):
    """exp(-u) and u of u = |t_i - s_j| / tau, (targets, sources): float64 if EXACT, else float32.

    In float32 an exponent of 100 would be wrong by 4e-6 if it were rounded as a whole. For float32 anchors, what the
    rounding of the difference, of the rate and of their product loses is kept, and corrects the power: three numbers in
    float32 take less time than two in float64 on any GPU, and very much less on most. For a rate that float32 cannot
    hold well, and for float64 anchors, the computation is in float64.
    """
    if EXACT:
        gap = tl.abs(t.to(tl.float64)[:, None] - s.to(tl.float64)[None, :])
        decay, u = decay_over(gap, rate, EXACT), exponent_over(gap, rate) * LN_2
    elif t.dtype == tl.float64:
        decay, u = _decays_of_doubles(t, s, rate)
    elif (rate < 1e30) & (rate > 1e-30):
        decay, u = _decays_of_floats(t[:, None], s[None, :], rate)
    else:
        decay, u = _decays_of_doubles(t, s, rate)
    return decay, u


@triton.jit
def _decays_of_doubles(t, s, rate):
    gap = tl.abs(t.to(tl.float64)[:, None] - s.to(tl.float64)[None, :])
    return decay_over(gap, rate, False).to(tl.float32), (exponent_over(gap, rate) * LN_2).to(tl.float32)


@triton.jit
def _decays_of_floats(t, s, rate):
    gap = t - s
    virtual = t - gap
    lost = (t - (gap + virtual)) + (virtual - s)  # gap + lost is t - s (Knuth's two-sum)
    high = rate.to(tl.float32)
    low = (rate - high.to(tl.float64)).to(tl.float32)
    exponent = gap * high
    rest = tl.fma(gap, high, -exponent) + (gap * low + lost * high)
    rest = tl.where(tl.abs(exponent) < 1000.0, rest, 0.0)  # beyond, the power is 0, and the rest may be NaN
    rest = tl.where(gap > 0, rest, -rest)
    power = tl.exp2(-tl.abs(exponent))
    return power - power * (rest * LN_2), tl.minimum(tl.abs(exponent), 1000.0) * LN_2


@triton.jit
def _turns(phase, index, inside, SUM: tl.constexpr):
    """The cosine and sine of the phases, in the wider of their dtype and SUM."""
    angle = tl.load(phase + index, mask=inside, other=0.0)
    if tl.float64 == SUM:
        angle = angle.to(tl.float64)
    return tl.cos(angle).to(SUM), tl.sin(angle).to(SUM)


@program(numbers="size", callers=("target",))
def fault_program(target, target_faults, size, fault_parts, WIDTH: tl.constexpr):
    """target_faults (h, fault_parts): NaN where one of the ``size`` anchors of an entry is not finite, else 0."""
    part, batch = tl.program_id(0) % fault_parts, (tl.program_id(0) // fault_parts).to(tl.int64)
    fault = _fault_in_steps(target + batch * size, part * WIDTH, size, fault_parts * WIDTH, WIDTH)
    tl.store(target_faults + batch * fault_parts + part, fault)


@triton.jit
def _fault_in_steps(target, begin, size, step, WIDTH: tl.constexpr):
    """NaN if one of the WIDTH anchors at every ``step`` from ``begin`` on is not finite, else 0."""
    faults = tl.zeros([WIDTH], tl.float32)
    for start in range(begin, size, step):
        i = start + tl.arange(0, WIDTH)
        t = tl.load(target + i, mask=i < size, other=0.0)
        faults += tl.where(tl.abs(t) < INFINITY, 0.0, float("nan"))
    return tl.sum(faults, 0)


@triton.jit
def _tile(n, k, TARGETS: tl.constexpr, SOURCES: tl.constexpr):
    """Which tile of which W: its row and column of tiles, and W's number. All are on one axis, which has no limit."""
    down, across = tl.cdiv(n, TARGETS), tl.cdiv(k, SOURCES)
    tile = tl.program_id(0) % (down * across)
    return tile // across, tile % across, (tl.program_id(0) // (down * across)).to(tl.int64)


@triton.jit
def _fault_of_targets(target, target_faults, size, fault_parts, KNOWN: tl.constexpr):
    """NaN if one of the ``size`` anchors is not finite, else 0."""
    if KNOWN:
        lane = tl.arange(0, 64)
        fault = tl.sum(tl.load(target_faults + lane, mask=lane < fault_parts, other=0.0), 0)
    else:
        fault = _fault_in_steps(target, 0, size, 1024, 1024)
    return fault


@program(numbers="r", callers=("target", "source", "tau", "weight", "phi", "psi"), divisible=("k",))
def form_program(
    target, source, tau, weight, phi, psi, target_faults, out, r, n, k, fault_parts,
    EXACT: tl.constexpr, WEIGHTED: tl.constexpr, PHASED: tl.constexpr, KNOWN: tl.constexpr,
    TARGETS: tl.constexpr, SOURCES: tl.constexpr,
):  # fmt: skip
    """One tile of W (h, n, k), the weighted sum of r matrices.

    A fault shows in every row of W, so that all of x W^T is NaN. A source that is not finite, or a bad tau, shows in
    its column in every row anyway. For the targets the programs of the first columns look at all of them; KNOWN:
    ``fault_program`` did so before.
    """
    SUM: tl.constexpr = tl.float64 if EXACT else tl.float32
    row, col, batch = _tile(n, k, TARGETS, SOURCES)
    first = col == 0
    i, j = row * TARGETS + tl.arange(0, TARGETS), col * SOURCES + tl.arange(0, SOURCES)
    total = tl.zeros([TARGETS, SOURCES], SUM)
    fault = tl.zeros([SOURCES], tl.float32)
    if first:
        targets_here, faults = target + batch * r * n, target_faults + batch * fault_parts
        fault += _fault_of_targets(targets_here, faults, r * n, fault_parts, KNOWN)
    for q in range(r):
        matrix = batch * r + q
        t = tl.load(target + matrix * n + i, mask=i < n, other=0.0)
        s = tl.load(source + matrix * k + j, mask=j < k, other=0.0)
        rate = rate_of(tl.load(tau + matrix).to(tl.float64))
        fault += tl.where(tl.abs(s) < INFINITY, 0.0, float("nan")) + (rate * 0.0).to(tl.float32)
        entry, _u = decays(t, s, rate, EXACT)
        if WEIGHTED:
            entry *= tl.load(weight + matrix).to(SUM)
        if PHASED:
            cos_t, sin_t = _turns(phi, matrix * n + i, i < n, SUM)
            cos_s, sin_s = _turns(psi, matrix * k + j, j < k, SUM)
            entry *= cos_t[:, None] * cos_s[None, :] + sin_t[:, None] * sin_s[None, :]
        total += entry
    offset = (batch * n + i[:, None]) * k + j[None, :]
    tl.store(out + offset, total + fault.to(SUM)[None, :], mask=(i < n)[:, None] & (j < k)[None, :])


@program(numbers="sources_at", callers=("g", "target", "source", "tau", "phi", "psi"), divisible=("k",))
def pull_program(
    g, target, source, tau, phi, psi, parts, sources_at, all_at, r, begin, group, n, k,
    EXACT: tl.constexpr, ANCHORS: tl.constexpr, TAU: tl.constexpr, WEIGHT: tl.constexpr, PHASED: tl.constexpr,
    PHASE: tl.constexpr, TARGETS: tl.constexpr, SOURCES: tl.constexpr,
):  # fmt: skip
    """What one tile of g, the gradient of W, gives to the gradients, without the factors of ``finish_program``.

    Of the r matrices of a sum ``group`` are pulled, from ``begin`` on. Parts are three arrays, one after the other:

        at 0             (h group, channels, tiles across, n)    sums over columns: for t if ANCHORS, for phi if PHASE
        at sources_at    (h group, channels, tiles down, k)      sums over rows: for s and psi, with opposite sign
        at all_at        (h group, 2, tiles)                     sums over the tile: for the weight, for tau
    """
    SUM: tl.constexpr = tl.float64 if EXACT else tl.float32
    channels: tl.constexpr = (1 if ANCHORS else 0) + (1 if PHASE else 0)
    down, across = tl.cdiv(n, TARGETS), tl.cdiv(k, SOURCES)
    row, col, batch = _tile(n, k, TARGETS, SOURCES)
    i, j = row * TARGETS + tl.arange(0, TARGETS), col * SOURCES + tl.arange(0, SOURCES)
    both = (i < n)[:, None] & (j < k)[None, :]
    g_tile = tl.load(g + (batch * n + i[:, None]) * k + j[None, :], mask=both, other=0.0).to(SUM)
    for q in range(group):
        matrix, slot = batch * r + begin + q, batch * group + q
        t = tl.load(target + matrix * n + i, mask=i < n, other=0.0)
        s = tl.load(source + matrix * k + j, mask=j < k, other=0.0)
        entry, u = decays(t, s, rate_of(tl.load(tau + matrix).to(tl.float64)), EXACT)
        entry *= g_tile
        to_target = parts + (slot * channels * across + col) * n + i
        to_source = parts + sources_at + (slot * channels * down + row) * k + j
        if PHASED:
            cos_t, sin_t = _turns(phi, matrix * n + i, i < n, SUM)
            cos_s, sin_s = _turns(psi, matrix * k + j, j < k, SUM)
            if PHASE:
                turned = entry * (sin_t[:, None] * cos_s[None, :] - cos_t[:, None] * sin_s[None, :])
                last: tl.constexpr = channels - 1
                tl.store(to_target + last * across * n, -tl.sum(turned, 1), mask=i < n)
                tl.store(to_source + last * down * k, tl.sum(turned, 0), mask=j < k)
            entry *= cos_t[:, None] * cos_s[None, :] + sin_t[:, None] * sin_s[None, :]
        if WEIGHT:
            tl.store(parts + all_at + (slot * 2 * down + row) * across + col, tl.sum(tl.sum(entry, 1), 0))
        if TAU:
            tl.store(parts + all_at + ((slot * 2 + 1) * down + row) * across + col, tl.sum(tl.sum(entry * u, 1), 0))
        if ANCHORS:
            signed = tl.where(t[:, None] < s[None, :], entry, tl.where(t[:, None] > s[None, :], -entry, 0.0))
            tl.store(to_target, tl.sum(signed, 1), mask=i < n)
            tl.store(to_source, -tl.sum(signed, 0), mask=j < k)


@triton.jit
def _finished(parts, bar, i, size, count, factor, CHUNK: tl.constexpr):
    """bar = factor times the sum of ``count`` parts at i < size."""
    total = tl.zeros([CHUNK, i.shape[0]], tl.float64)
    lane = tl.arange(0, CHUNK)
    for start in range(0, count, CHUNK):
        mask = (start + lane < count)[:, None] & (i < size)[None, :]
        total += tl.load(parts + (start + lane)[:, None].to(tl.int64) * size + i[None, :], mask=mask, other=0.0)
    tl.store(bar + i, tl.sum(total, 0) * factor, mask=i < size)


@program(numbers="sources_at", callers=("tau", "weight"))
def finish_program(
    parts, tau, weight, t_bar, s_bar, tau_bar, weight_bar, phi_bar, psi_bar,
    sources_at, all_at, r, begin, group, n, k, across, down,
    target_scale, source_scale, tau_scale, weight_scale, phase_scale,
    ANCHORS: tl.constexpr, TAU: tl.constexpr, WEIGHT: tl.constexpr, WEIGHTED: tl.constexpr, PHASE: tl.constexpr,
    WIDTH: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Sum the parts of one matrix, WIDTH targets or sources per program; the last one sums those for weight and tau.

    Gradients are multiplied by their scales.
    """
    channels: tl.constexpr = (1 if ANCHORS else 0) + (1 if PHASE else 0)
    last: tl.constexpr = channels - 1
    blocks_of_targets, blocks_of_sources = tl.cdiv(n, WIDTH), tl.cdiv(k, WIDTH)
    blocks = blocks_of_targets + blocks_of_sources + 1
    block, slot = tl.program_id(0) % blocks, (tl.program_id(0) // blocks).to(tl.int64)
    matrix = slot // group * r + begin + slot % group
    length = tl.load(tau + matrix).to(tl.float64)
    factor = tl.load(weight + matrix).to(tl.float64) if WEIGHTED else 1.0
    if block < blocks_of_targets:
        i = block * WIDTH + tl.arange(0, WIDTH)
        of_targets = parts + slot * channels * across * n
        if ANCHORS:
            _finished(of_targets, t_bar + matrix * n, i, n, across, factor * target_scale / length, CHUNK)
        if PHASE:
            _finished(of_targets + last * across * n, phi_bar + matrix * n, i, n, across, factor * phase_scale, CHUNK)
    elif block < blocks_of_targets + blocks_of_sources:
        j = (block - blocks_of_targets) * WIDTH + tl.arange(0, WIDTH)
        of_sources = parts + sources_at + slot * channels * down * k
        if ANCHORS:
            _finished(of_sources, s_bar + matrix * k, j, k, down, factor * source_scale / length, CHUNK)
        if PHASE:
            _finished(of_sources + last * down * k, psi_bar + matrix * k, j, k, down, factor * phase_scale, CHUNK)
    else:
        tiles = across * down
        lane = tl.arange(0, WIDTH)
        of_weight, of_tau = tl.zeros([WIDTH], tl.float64), tl.zeros([WIDTH], tl.float64)
        for start in range(0, tiles, WIDTH):
            parts_here = parts + all_at + slot * 2 * tiles + start + lane
            if WEIGHT:
                of_weight += tl.load(parts_here, mask=start + lane < tiles, other=0.0)
            if TAU:
                of_tau += tl.load(parts_here + tiles, mask=start + lane < tiles, other=0.0)
        if WEIGHT:
            tl.store(weight_bar + matrix, tl.sum(of_weight, 0) * weight_scale)
        if TAU:
            tl.store(tau_bar + matrix, tl.sum(of_tau, 0) * factor * tau_scale / length)
