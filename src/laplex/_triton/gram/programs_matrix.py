# mypy: allow-untyped-defs, allow-incomplete-defs, no-check-untyped-defs
"""The n x n part of a Gram matrix in Triton: one launch each way; ``gram`` has the formulas.

Every program computes the same for a pair of anchors, whichever of them is the row's, so M is symmetric to the bit.
"""

from __future__ import annotations

import triton
import triton.language as tl

from laplex._triton.distance.programs import exponent_over
from laplex._triton.points import LN_2, decay_over, rate_of

SLOTS = tl.constexpr(16)  # no fewer than the pulls, a power of two


@triton.jit
def read(values, at, n):
    return tl.load(values + at, mask=at < n, other=0.0)


@triton.jit
def sides_of(sums, n, row, col, row_is_right):
    """Of one channel: U of the left of two anchors, V of the right one, W of the row's less W of the column's."""
    left = tl.where(row_is_right, read(sums, col, n), read(sums, row, n))
    right = tl.where(row_is_right, read(sums + n, row, n), read(sums + n, col, n))
    high = read(sums + 2 * n, row, n) - read(sums + 2 * n, col, n)
    low = read(sums + 3 * n, row, n) - read(sums + 3 * n, col, n)
    return left, right, high + low


@triton.jit
def mass_of(sums, n, row, col, row_is_right):
    left, right, across = sides_of(sums, n, row, col, row_is_right)
    return left + tl.where(row_is_right, across, -across) + right


@triton.jit
def turns_of(row_cos, row_sin, col_cos, col_sin, row_is_first):
    """Half the cosine of the difference of the phases, half the cosine and the sine of their sum."""
    cos_cos, sin_sin = row_cos * col_cos * 0.5, row_sin * col_sin * 0.5
    one, two = row_sin * col_cos * 0.5, row_cos * col_sin * 0.5
    crossed = tl.where(row_is_first, one, two) + tl.where(row_is_first, two, one)  # in one order for both places
    return cos_cos + sin_sin, cos_cos - sin_sin, crossed


@triton.jit(do_not_specialize_on_alignment=["sums", "direction", "target", "tau", "matrix"])
def assemble_program(
    sums, direction, target, tau, matrix, m, n,
    EXACT: tl.constexpr, PHASED: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """ROWS x COLS entries of one matrix."""
    blocks = tl.cdiv(n, COLS)
    tiles = tl.cdiv(n, ROWS) * blocks
    index = (tl.program_id(0) // tiles).to(tl.int64)
    tile = tl.program_id(0) % tiles
    batch = index // m
    row = (tile // blocks * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    col = (tile % blocks * COLS + tl.arange(0, COLS)).to(tl.int64)[None, :]
    gap = read(target + batch * n, row, n).to(tl.float64) - read(target + batch * n, col, n).to(tl.float64)
    row_is_right = (gap > 0) | ((gap == 0) & (row >= col))
    if PHASED:
        cos, sums = direction + batch * 2 * n, sums + index * 12 * n
        sin = cos + n
        plain, of_cos, of_sin = turns_of(
            read(cos, row, n), read(sin, row, n), read(cos, col, n), read(sin, col, n), row >= col
        )
        mass = plain * mass_of(sums, n, row, col, row_is_right)
        mass += of_cos * mass_of(sums + 4 * n, n, row, col, row_is_right)
        mass += of_sin * mass_of(sums + 8 * n, n, row, col, row_is_right)
    else:
        mass = mass_of(sums + index * 4 * n, n, row, col, row_is_right)
    value = decay_over(tl.abs(gap), rate_of(tl.load(tau + batch)), EXACT) * mass
    tl.store(matrix + (index * n + row) * n + col, value, mask=(row < n) & (col < n))


@triton.jit
def added(pulled, place, terms):
    """pulled (ROWS, SLOTS) with the sums of terms (ROWS, COLS) added at one slot."""
    slot = tl.arange(0, SLOTS)[None, :]
    return pulled + tl.where(slot == place, tl.sum(terms, 1)[:, None], 0.0)


@triton.jit
def pull_channel(pulled, sums, n, row, col, gap, u, q, CHANNEL: tl.constexpr, CHANNELS: tl.constexpr):
    """With what one channel's q pulls at U, V, the anchors and the decay between them; and the channel's mass."""
    left, right, across = sides_of(sums, n, row, col, gap >= 0)
    is_right = tl.where(gap > 0, 1.0, tl.where(gap < 0, 0.0, 0.5))
    pulled = added(pulled, CHANNEL, q * (1.0 - is_right))
    pulled = added(pulled, CHANNELS + CHANNEL, q * is_right)
    pulled = added(pulled, 2 * CHANNELS, q * (right - left - across))
    mass = left + tl.where(gap >= 0, across, -across) + right
    return added(pulled, 2 * CHANNELS + 1, 0.5 * q * u * mass), mass  # half for each of a pair


@triton.jit(do_not_specialize_on_alignment=["sums", "direction", "target", "tau", "matrix", "out"])
def pull_program(
    sums, direction, target, tau, matrix, out, m, n,
    EXACT: tl.constexpr, PHASED: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """What the cotangent of one matrix pulls with at ROWS anchors."""
    CHANNELS: tl.constexpr = 3 if PHASED else 1
    PULLS: tl.constexpr = 10 if PHASED else 4
    blocks = tl.cdiv(n, ROWS)
    index = (tl.program_id(0) // blocks).to(tl.int64)
    batch = index // m
    row = (tl.program_id(0) % blocks * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    target, cos = target + batch * n, direction + batch * 2 * n
    matrix, sums = matrix + index * n * n, sums + index * CHANNELS * 4 * n
    sin = cos + n
    rate = rate_of(tl.load(tau + batch))
    pulled = tl.zeros([ROWS, SLOTS], tl.float64)
    for begin in range(0, n, COLS):
        col = (begin + tl.arange(0, COLS)).to(tl.int64)[None, :]
        gap = read(target, row, n).to(tl.float64) - read(target, col, n).to(tl.float64)
        inside = (row < n) & (col < n)
        g = tl.load(matrix + row * n + col, mask=inside, other=0.0).to(tl.float64)
        g += tl.load(matrix + col * n + row, mask=inside, other=0.0).to(tl.float64)
        g *= decay_over(tl.abs(gap), rate, EXACT)
        u = exponent_over(gap, rate) * LN_2
        if PHASED:
            col_cos, col_sin = read(cos, col, n), read(sin, col, n)
            plain, of_cos, of_sin = turns_of(read(cos, row, n), read(sin, row, n), col_cos, col_sin, row >= col)
            pulled, mass = pull_channel(pulled, sums, n, row, col, gap, u, g * plain, 0, CHANNELS)
            pulled, turned = pull_channel(pulled, sums + 4 * n, n, row, col, gap, u, g * of_cos, 1, CHANNELS)
            pulled, crossed = pull_channel(pulled, sums + 8 * n, n, row, col, gap, u, g * of_sin, 2, CHANNELS)
            g *= 0.5
            pulled = added(pulled, PULLS - 2, g * (col_cos * (mass + turned) + col_sin * crossed))
            pulled = added(pulled, PULLS - 1, g * (col_sin * (mass - turned) + col_cos * crossed))
        else:
            pulled, _ = pull_channel(pulled, sums, n, row, col, gap, u, g, 0, CHANNELS)
    slot = tl.arange(0, SLOTS)[None, :]
    tl.store(out + (index * PULLS + slot) * n + row, pulled, mask=(slot < PULLS) & (row < n))
