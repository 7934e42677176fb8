"""A Triton program that multiplies two float32 matrices with sums as exact as their terms.

A float32 sum of k positive terms is off by about sqrt(k) / 4 roundings on average, and by several times that at worst.
GPUs with units for float64 (DOUBLES) sum in float64, of operands that are float32 in memory. On others that would take
many times as long, so a float32 sum has TERMS terms only, and such sums are added with their rounding errors kept: the
result is high + low, two float32 numbers.
"""

import triton
import triton.language as tl

from laplex._triton.program import program


@triton.jit
def _tile_of(matrix, line, lines, stride, begin, length, ADJACENT: tl.constexpr, TERMS: tl.constexpr):
    """(lines, TERMS) of a matrix from the term ``begin`` on, whose terms are adjacent in memory, or else its lines."""
    term = begin + tl.arange(0, TERMS)
    if ADJACENT:
        offset = line[:, None].to(tl.int64) * stride + term[None, :]
        terms = tl.load(matrix + offset, mask=(line < lines)[:, None] & (term < length)[None, :], other=0.0)
    else:
        offset = term[:, None].to(tl.int64) * stride + line[None, :]
        terms = tl.trans(tl.load(matrix + offset, mask=(term < length)[:, None] & (line < lines)[None, :], other=0.0))
    return terms


@program(numbers="m", callers=("left", "right", "bias"), divisible=("left_stride", "right_stride"))
def multiply_program(
    left, right, bias, out, m, n, length, left_stride, right_stride, left_batch, right_batch,
    LEFT_ADJACENT: tl.constexpr, RIGHT_ADJACENT: tl.constexpr, DOUBLES: tl.constexpr, BIAS: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, TERMS: tl.constexpr,
):  # fmt: skip
    """One tile of out (h, m, n): the products of lines of left (h, m, length) and of right (h, n, length).

    BIAS: plus bias (n,).
    """
    SUM: tl.constexpr = tl.float64 if DOUBLES else tl.float32
    down, across = tl.cdiv(m, ROWS), tl.cdiv(n, COLS)
    tile, batch = tl.program_id(0) % (down * across), (tl.program_id(0) // (down * across)).to(tl.int64)
    i, j = tile // across * ROWS + tl.arange(0, ROWS), tile % across * COLS + tl.arange(0, COLS)
    left += batch * left_batch
    right += batch * right_batch
    high, low = tl.zeros([ROWS, COLS], SUM), tl.zeros([ROWS, COLS], SUM)
    for begin in range(0, length, TERMS):
        rows = _tile_of(left, i, m, left_stride, begin, length, LEFT_ADJACENT, TERMS)
        cols = _tile_of(right, j, n, right_stride, begin, length, RIGHT_ADJACENT, TERMS)
        if DOUBLES:
            high += tl.dot(rows.to(tl.float64), tl.trans(cols).to(tl.float64), out_dtype=tl.float64)
        else:
            chunk = tl.dot(rows, tl.trans(cols), input_precision="ieee")
            total = high + chunk
            virtual = total - high
            low += (high - (total - virtual)) + (chunk - virtual)  # what rounding lost (Knuth's two-sum)
            high = total
    offset = (batch * m + i[:, None]) * n + j[None, :]
    # A sum that is not finite has no error to add: infinity minus infinity would be NaN.
    rounded = tl.where(tl.abs(high) < float("inf"), high + low, high)
    if BIAS:
        rounded += tl.load(bias + j, mask=j < n, other=0.0).to(SUM)[None, :]
    tl.store(out + offset, rounded, mask=(i < m)[:, None] & (j < n)[None, :])
