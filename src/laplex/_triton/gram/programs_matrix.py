"""Triton programs over the n x n entries of a Gram matrix: its values, and their derivative; see ``laplex._gram``.

For one channel of weights and anchors a_i >= a_j an entry is M_ij = D B, with D = exp(-(a_i - a_j) / tau) and B = U_j +
(W_i - W_j) + V_i. A program chooses U, V and the sign of W_i - W_j by which anchor lies right, not by which one is the
row's. Both entries of a pair are then the same arithmetic on the same operands, and M is symmetric to the bit. W is
kept as two parts, each a multiple of its own power of two: differences of either part are exact, and W_i - W_j rounds
once, in their sum.

With phases there are three channels, each with a phase factor.

A *pull* is the cotangent of one quantity that M is computed from. Every anchor i has pulls at U_i and V_i of each
channel, at a_i, at the decays D of its pairs, and, with phases, at cos phi_i and sin phi_i. With g the cotangent of M,
q = (g_ij + g_ji) D P_ij and P_ij a channel's phase factor (1 without phases), the pulls are sums over j,

    at U_i   q where a_j > a_i              at V_i   q where a_j < a_i          q / 2 at each where a_j = a_i
    at a_i   q (V - U - (W_i - W_j)), with U of the pair's left anchor and V of its right one; divided by tau elsewhere
    at D     q B |a_i - a_j| / (2 tau): half of the pair's share, as the pair counts for both of its anchors

and those at a_i and D are sums over the channels, too.
"""

import triton
import triton.language as tl

from laplex._triton.points import LN_2, decay_over, exponent_over, rate_of
from laplex._triton.program import program

SLOTS = tl.constexpr(16)  # pulls per anchor, 4 or 10, rounded up to one power of two for both


@triton.jit
def load_below(values, index, n):
    """values[index], and 0 where index >= n."""
    return tl.load(values + index, mask=index < n, other=0.0)


@triton.jit
def channel_sums(sums, n, row, col, row_is_right):
    """For one channel: U of the left anchor, V of the right anchor, and W of the row's anchor - W of the column's."""
    left = tl.where(row_is_right, load_below(sums, col, n), load_below(sums, row, n))
    right = tl.where(row_is_right, load_below(sums + n, row, n), load_below(sums + n, col, n))
    high = load_below(sums + 2 * n, row, n) - load_below(sums + 2 * n, col, n)
    low = load_below(sums + 3 * n, row, n) - load_below(sums + 3 * n, col, n)
    return left, right, high + low


@triton.jit
def channel_value(sums, n, row, col, row_is_right):
    """B of one channel: U + W of the right anchor - W of the left anchor + V."""
    left, right, across = channel_sums(sums, n, row, col, row_is_right)
    return left + tl.where(row_is_right, across, -across) + right


@triton.jit
def phase_factors(row_cos, row_sin, col_cos, col_sin, row_is_first):
    """Half of cos(phi_i - phi_j), cos(phi_i + phi_j) and sin(phi_i + phi_j)."""
    cos_cos, sin_sin = row_cos * col_cos * 0.5, row_sin * col_sin * 0.5
    sin_cos, cos_sin = row_sin * col_cos * 0.5, row_cos * col_sin * 0.5
    # M_ij and M_ji add these two in the same order: a fused multiply-add rounds one of the products and not the other.
    sin_of_sum = tl.where(row_is_first, sin_cos, cos_sin) + tl.where(row_is_first, cos_sin, sin_cos)
    return cos_cos + sin_sin, cos_cos - sin_sin, sin_of_sum


@program(numbers="m", callers=("sums", "direction", "target", "tau", "matrix"))
def assemble_program(
    sums, direction, target, tau, matrix, m, n,
    EXACT: tl.constexpr, PHASED: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """ROWS x COLS entries of one of the m matrices of a batch."""
    col_blocks = tl.cdiv(n, COLS)
    tiles = tl.cdiv(n, ROWS) * col_blocks
    index = (tl.program_id(0) // tiles).to(tl.int64)  # of the matrix, over all batches
    tile = tl.program_id(0) % tiles
    batch = index // m
    row = (tile // col_blocks * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    col = (tile % col_blocks * COLS + tl.arange(0, COLS)).to(tl.int64)[None, :]
    target += batch * n
    gap = load_below(target, row, n).to(tl.float64) - load_below(target, col, n).to(tl.float64)
    row_is_right = (gap > 0) | ((gap == 0) & (row >= col))
    if PHASED:
        cos, sums = direction + batch * 2 * n, sums + index * 12 * n
        sin = cos + n
        row_cos, row_sin = load_below(cos, row, n), load_below(sin, row, n)
        col_cos, col_sin = load_below(cos, col, n), load_below(sin, col, n)
        plain, cos_sum, sin_sum = phase_factors(row_cos, row_sin, col_cos, col_sin, row >= col)
        bracket = plain * channel_value(sums, n, row, col, row_is_right)
        bracket += cos_sum * channel_value(sums + 4 * n, n, row, col, row_is_right)
        bracket += sin_sum * channel_value(sums + 8 * n, n, row, col, row_is_right)
    else:
        bracket = channel_value(sums + index * 4 * n, n, row, col, row_is_right)
    value = decay_over(tl.abs(gap), rate_of(tl.load(tau + batch)), EXACT) * bracket
    tl.store(matrix + (index * n + row) * n + col, value, mask=(row < n) & (col < n))


@triton.jit
def added(pulled, slot, terms):
    """pulled (ROWS, SLOTS) after the row sums of terms (ROWS, COLS) are added to one slot."""
    slots = tl.arange(0, SLOTS)[None, :]
    return pulled + tl.where(slots == slot, tl.sum(terms, 1)[:, None], 0.0)


@triton.jit
def pull_channel(pulled, sums, n, row, col, gap, u, q, CHANNEL: tl.constexpr, CHANNELS: tl.constexpr):
    """Add one channel's pulls at U, V, the anchors and the decays; return B of the channel, too.

    u is the exponent |a_i - a_j| / tau, q the channel's part of the cotangent, as in the module's formulas.
    """
    left, right, across = channel_sums(sums, n, row, col, gap >= 0)
    is_right = tl.where(gap > 0, 1.0, tl.where(gap < 0, 0.0, 0.5))  # equal anchors share the pull
    pulled = added(pulled, CHANNEL, q * (1.0 - is_right))
    pulled = added(pulled, CHANNELS + CHANNEL, q * is_right)
    pulled = added(pulled, 2 * CHANNELS, q * (right - left - across))
    value = left + tl.where(gap >= 0, across, -across) + right
    return added(pulled, 2 * CHANNELS + 1, 0.5 * q * u * value), value


@program(numbers="m", callers=("sums", "direction", "target", "tau", "matrix", "out"))
def pull_program(
    sums, direction, target, tau, matrix, out, m, n,
    EXACT: tl.constexpr, PHASED: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """The pulls at ROWS anchors: a reduction over the columns of one matrix, COLS at a time.

    ``matrix`` is the cotangent g of M, of which each program reads ROWS rows and the same ROWS columns. ``out`` is
    (matrices, PULLS, n), with pulls in the order U of all channels, V of all channels, a, D, cos phi, sin phi.
    """
    CHANNELS: tl.constexpr = 3 if PHASED else 1
    PULLS: tl.constexpr = 10 if PHASED else 4
    row_blocks = tl.cdiv(n, ROWS)
    index = (tl.program_id(0) // row_blocks).to(tl.int64)  # of the matrix, over all batches
    batch = index // m
    row = (tl.program_id(0) % row_blocks * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    target, cos = target + batch * n, direction + batch * 2 * n
    matrix, sums = matrix + index * n * n, sums + index * CHANNELS * 4 * n
    sin = cos + n
    rate = rate_of(tl.load(tau + batch))
    pulled = tl.zeros([ROWS, SLOTS], tl.float64)
    for begin in range(0, n, COLS):
        col = (begin + tl.arange(0, COLS)).to(tl.int64)[None, :]
        gap = load_below(target, row, n).to(tl.float64) - load_below(target, col, n).to(tl.float64)
        inside = (row < n) & (col < n)
        g = tl.load(matrix + row * n + col, mask=inside, other=0.0).to(tl.float64)
        g += tl.load(matrix + col * n + row, mask=inside, other=0.0).to(tl.float64)
        g *= decay_over(tl.abs(gap), rate, EXACT)
        u = exponent_over(gap, rate) * LN_2
        if PHASED:
            row_cos, row_sin = load_below(cos, row, n), load_below(sin, row, n)
            col_cos, col_sin = load_below(cos, col, n), load_below(sin, col, n)
            plain, cos_sum, sin_sum = phase_factors(row_cos, row_sin, col_cos, col_sin, row >= col)
            pulled, value_0 = pull_channel(pulled, sums, n, row, col, gap, u, g * plain, 0, CHANNELS)
            pulled, value_1 = pull_channel(pulled, sums + 4 * n, n, row, col, gap, u, g * cos_sum, 1, CHANNELS)
            pulled, value_2 = pull_channel(pulled, sums + 8 * n, n, row, col, gap, u, g * sin_sum, 2, CHANNELS)
            # Derivatives of the phase factors by cos phi_i and by sin phi_i.
            g *= 0.5
            pulled = added(pulled, PULLS - 2, g * (col_cos * (value_0 + value_1) + col_sin * value_2))
            pulled = added(pulled, PULLS - 1, g * (col_sin * (value_0 - value_1) + col_cos * value_2))
        else:
            pulled, _ = pull_channel(pulled, sums, n, row, col, gap, u, g, 0, CHANNELS)
    slot = tl.arange(0, SLOTS)[None, :]
    tl.store(out + (index * PULLS + slot) * n + row, pulled, mask=(slot < PULLS) & (row < n))
