"""Triton programs that put phases on operands and take them off sums. ``laplex._phase`` has the mathematics.

An operand x (h, m, size) and its phases become a *stack* (h, 2 m, size): the channel x cos psi in the first m rows, the
channel x sin psi in the others. Sums of a stack are stacks, too.

Cosines and sines are float64 and so are products with them; a stack is rounded once, where it is stored. They are taken
for each point, not for each row, so they cost little.
"""

import triton
import triton.language as tl

from laplex._triton.program import program


@triton.jit
def direction(angle, index, inside):
    """The cosines and the sines of the phases at these indices, float64."""
    phase = tl.load(angle + index, mask=inside, other=0.0).to(tl.float64)
    return tl.cos(phase), tl.sin(phase)


@program(numbers="m", callers=("x", "angle"))
def stack_program(
    x, angle, stacked, m, size, x_batch, x_row, x_col, WIDTH: tl.constexpr, ROWS: tl.constexpr
):  # fmt: skip
    """stacked = x cos angle, x sin angle, for ROWS rows and WIDTH points."""
    blocks = tl.cdiv(size, WIDTH)
    block, row_block = tl.program_id(0) % blocks, tl.program_id(0) // blocks
    batch = tl.program_id(1).to(tl.int64)
    i = block.to(tl.int64) * WIDTH + tl.arange(0, WIDTH)
    cos, sin = direction(angle + batch * size, i, i < size)
    row = (row_block * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    both = (row < m) & (i < size)[None, :]
    v = tl.load(x + batch * x_batch + row * x_row + i[None, :] * x_col, mask=both, other=0.0).to(tl.float64)
    stacked_here = stacked + (batch * 2 * m + row) * size + i[None, :]
    tl.store(stacked_here, v * cos[None, :], mask=both)
    tl.store(stacked_here + (tl.zeros([], tl.int64) + m) * size, v * sin[None, :], mask=both)


@triton.jit
def _channels(stacked, offset, channel, mask):
    """Both channels at these offsets of a stack, float64."""
    of_cos = tl.load(stacked + offset, mask=mask, other=0.0).to(tl.float64)
    return of_cos, tl.load(stacked + channel + offset, mask=mask, other=0.0).to(tl.float64)


@program(numbers="m", callers=("angle", "factor", "out", "tau"))
def unstack_program(
    even, odd, weighted, angle, factor, tau, out, turn, pull, stretch, m, size, row_blocks, steps,
    factor_batch, factor_row, factor_col, out_batch, out_row, out_col,
    EVEN: tl.constexpr, TURN: tl.constexpr, PULL: tl.constexpr, STRETCH: tl.constexpr,
    WIDTH: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Take the phases off the stacked sums E, O and P (even, odd, weighted by distance), with factors f (h, m, size):

        EVEN      out                                    = cos E_c + sin E_s
        TURN      turn[i], the gradient of the phase     = sum over rows of f (cos E_s - sin E_c)
        PULL      pull[i], the gradient of the anchor    = 1/tau sum over rows of f (cos O_c + sin O_s)
        STRETCH   stretch[program], a part of tau's      = 1/tau sum over rows and points of f (cos P_c + sin P_s)

    A program has WIDTH points and ``steps`` times ROWS rows. turn and pull are (h, row blocks, size), one sum for each
    block of rows.
    """
    blocks = tl.cdiv(size, WIDTH)
    block, row_block = tl.program_id(0) % blocks, tl.program_id(0) // blocks
    batch = tl.program_id(1).to(tl.int64)
    i = block.to(tl.int64) * WIDTH + tl.arange(0, WIDTH)
    cos, sin = direction(angle + batch * size, i, i < size)
    cos, sin = cos[None, :], sin[None, :]
    channel = (tl.zeros([], tl.int64) + m) * size
    nothing = tl.zeros([WIDTH], tl.float64)
    turned, pulled, stretched = nothing, nothing, nothing
    for step in range(steps):
        row = ((row_block * steps + step) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
        both = (row < m) & (i < size)[None, :]
        offset = (batch * 2 * m + row) * size + i[None, :]
        if TURN or PULL or STRETCH:
            factor_at = factor + batch * factor_batch + row * factor_row + i[None, :] * factor_col
            f = tl.load(factor_at, mask=both, other=0.0).to(tl.float64)
        if EVEN or TURN:
            of_cos, of_sin = _channels(even, offset, channel, both)
            if EVEN:
                out_at = out + batch * out_batch + row * out_row + i[None, :] * out_col
                v = of_cos * cos + of_sin * sin
                tl.store(out_at, v if out.dtype.element_ty == tl.float64 else v.to(tl.float32), mask=both)
            if TURN:
                turned += tl.sum(f * (of_sin * cos - of_cos * sin), 0)
        if PULL:
            of_cos, of_sin = _channels(odd, offset, channel, both)
            pulled += tl.sum(f * (of_cos * cos + of_sin * sin), 0)
        if STRETCH:
            of_cos, of_sin = _channels(weighted, offset, channel, both)
            stretched += tl.sum(f * (of_cos * cos + of_sin * sin), 0)
    offset_here = (batch * row_blocks + row_block) * size + i
    if TURN:
        tl.store(turn + offset_here, turned, mask=i < size)
    if PULL:
        tl.store(pull + offset_here, pulled / tl.load(tau + batch), mask=i < size)
    if STRETCH:
        program = batch * tl.num_programs(0) + tl.program_id(0)
        tl.store(stretch + program, tl.sum(stretched, 0) / tl.load(tau + batch))
