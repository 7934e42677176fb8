"""Triton programs around the scan of a layer's one kernel: factor and bias, and the gradients of the parameters.

``laplex._layer`` has the formulas. Tiles are (columns, rows): memory with adjacent rows is then read along them, and
other memory along its columns, whose stride of 1 Triton knows.
"""

import triton
import triton.language as tl

from laplex._triton.program import program


@program(numbers="m", callers=("mix", "bias", "y"))
def affine_program(
    x, mix, bias, y, m, size, x_row, x_col, y_row, y_col, BIAS: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr
):
    """y (m, size) = mix x + bias, in float64 before it is rounded."""
    blocks = tl.cdiv(size, WIDTH)
    col = ((tl.program_id(0) % blocks).to(tl.int64) * WIDTH + tl.arange(0, WIDTH))[:, None]
    row = ((tl.program_id(0) // blocks).to(tl.int64) * ROWS + tl.arange(0, ROWS))[None, :]
    mask = (col < size) & (row < m)
    v = tl.load(x + row * x_row + col * x_col, mask=mask, other=0.0).to(tl.float64) * tl.load(mix).to(tl.float64)
    if BIAS:
        v += tl.load(bias + col, mask=col < size, other=0.0).to(tl.float64)
    tl.store(y + row * y_row + col * y_col, v, mask=mask)


@program(numbers="m", callers=("x", "sums"))
def sum_rows_program(x, sums, m, size, x_row, WIDTH: tl.constexpr, ROWS: tl.constexpr):
    """sums (size,) of x (m, size) over its rows, in float64 before they are rounded."""
    col = tl.program_id(0).to(tl.int64) * WIDTH + tl.arange(0, WIDTH)
    total = tl.zeros([WIDTH], tl.float64)
    for start in range(0, m, ROWS):
        row = (start + tl.arange(0, ROWS)).to(tl.int64)
        mask = (row < m)[:, None] & (col < size)[None, :]
        total += tl.sum(tl.load(x + row[:, None] * x_row + col[None, :], mask=mask, other=0.0).to(tl.float64), 0)
    tl.store(sums + col, total, mask=col < size)


@program(numbers="m", callers=("v", "other", "tau", "mix", "out"))
def rows_program(
    v, other, odd, tau, mix, out, pull, bias_bar, parts, m, size, v_row, v_col, other_row, other_col,
    odd_row, odd_col, out_row, out_col, scale,
    MIX: tl.constexpr, PULL: tl.constexpr, BIAS: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """All rows of WIDTH columns of v (m, size): the cotangent of the results, or E^T g at the sources.

    MIX     out = mix v, and parts[program] = the sum of v * other: what adds up to the gradient of mix
    PULL    pull = scale mix / tau times the sum over rows of v * odd: the gradient of the targets
    BIAS    bias_bar = the sum over rows of v
    """
    i = tl.program_id(0).to(tl.int64) * WIDTH + tl.arange(0, WIDTH)
    col = i[:, None]
    factor = tl.load(mix).to(tl.float64)
    products, pulled = tl.zeros([WIDTH], tl.float64), tl.zeros([WIDTH], tl.float64)
    sums = tl.zeros([WIDTH], tl.float64)
    for start in range(0, m, ROWS):
        row = (start + tl.arange(0, ROWS)).to(tl.int64)[None, :]
        mask = (col < size) & (row < m)
        here = tl.load(v + row * v_row + col * v_col, mask=mask, other=0.0).to(tl.float64)
        if MIX:
            paired = tl.load(other + row * other_row + col * other_col, mask=mask, other=0.0).to(tl.float64)
            products += tl.sum(here * paired, 1)
            tl.store(out + row * out_row + col * out_col, here * factor, mask=mask)
        if PULL:
            odd_sums = tl.load(odd + row * odd_row + col * odd_col, mask=mask, other=0.0).to(tl.float64)
            pulled += tl.sum(here * odd_sums, 1)
        if BIAS:
            sums += tl.sum(here, 1)
    if MIX:
        tl.store(parts + tl.program_id(0), tl.sum(products, 0))
    if PULL:
        tl.store(pull + i, pulled * (factor * scale / tl.load(tau).to(tl.float64)), mask=i < size)
    if BIAS:
        tl.store(bias_bar + i, sums, mask=i < size)


@triton.jit
def _added_up(parts, count, WIDTH: tl.constexpr):
    """The sum of ``count`` numbers, in one program."""
    total = tl.zeros([WIDTH], tl.float64)
    for start in range(0, count, WIDTH):
        place = start + tl.arange(0, WIDTH)
        total += tl.load(parts + place, mask=place < count, other=0.0)
    return tl.sum(total, 0)


@program(numbers="blocks", callers=("mix",))
def total_program(
    pulled, parts, stretch, mix, s_bar, mix_bar, tau_bar, blocks, size, count, stretches, scale, mix_scale, tau_scale,
    WEIGHT: tl.constexpr, TAU: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Add up what other launches left: the gradients of the sources, and, in the last program, of mix and tau.

    s_bar = scale times the sum over blocks of pulled (blocks, size); mix_bar = mix_scale times the sum of ``parts``;
    tau_bar = tau_scale times the sum of ``stretch``. WEIGHT: mix is a factor of s_bar and tau_bar, too.
    """
    factor = tl.load(mix).to(tl.float64) if WEIGHT else 1.0
    if tl.program_id(0) + 1 < tl.num_programs(0):
        i = tl.program_id(0).to(tl.int64) * WIDTH + tl.arange(0, WIDTH)
        sums = tl.zeros([WIDTH], tl.float64)
        for start in range(0, blocks, ROWS):
            block = (start + tl.arange(0, ROWS)).to(tl.int64)[:, None]
            mask = (block < blocks) & (i < size)[None, :]
            sums += tl.sum(tl.load(pulled + block * size + i[None, :], mask=mask, other=0.0).to(tl.float64), 0)
        tl.store(s_bar + i, sums * factor * scale, mask=i < size)
    else:
        tl.store(mix_bar, _added_up(parts, count, 256) * mix_scale)
        if TAU:
            tl.store(tau_bar, _added_up(stretch, stretches, 256) * factor * tau_scale)
