"""The merged order on the GPU: entries out of a sort, and two sorted runs merged into one."""

from __future__ import annotations

import triton
import triton.language as tl

WORD = tl.constexpr(32)


@triton.jit
def encode_kernel(values, order, position, entry, n, merged, padded, first_row, first_col, WIDTH: tl.constexpr):
    """Sorted values and their order as positions and entries: a row's index, or -1 - a column's; padded at the end.

    The first ``n`` of what was sorted are rows, from ``first_row`` on, the others columns, from ``first_col`` on.
    """
    kernel = tl.program_id(1).to(tl.int64)
    place = tl.program_id(0).to(tl.int64) * WIDTH + tl.arange(0, WIDTH)
    taken = tl.minimum(place, merged - 1)
    index = tl.load(order + kernel * merged + taken, mask=place < padded, other=0)
    value = tl.load(values + kernel * merged + taken, mask=place < padded, other=0.0)
    value = tl.where(value == value, value, float("inf"))  # so that runs with NaN merge, and it is found at the end
    coded = tl.where(index < n, index + first_row, -1 - (index - n + first_col))
    tl.store(position + kernel * padded + place, value, mask=place < padded)
    tl.store(entry + kernel * padded + place, coded, mask=place < padded)


@triton.jit
def _ones_before(ones, twos, diagonal, low, high, steps):
    """How many of the first ``diagonal`` merged points are of the first run, by bisection between low and high."""
    for _ in range(steps):
        searching = low < high
        middle = (low + high) // 2
        one = tl.load(ones + middle, mask=searching, other=0.0)
        two = tl.load(twos + (diagonal - 1 - middle), mask=searching, other=0.0)
        ahead = one <= two
        low = tl.where(searching & ahead, middle + 1, low)
        high = tl.where(searching & ~ahead, middle, high)
    return low


@triton.jit(do_not_specialize_on_alignment=["ones", "twos"])
def split_kernel(
    ones, twos, splits, n, k, ones_length, twos_length, pieces, steps, TILE: tl.constexpr, LANES: tl.constexpr
):  # fmt: skip
    """splits[g] = points of the first run among the first g * TILE merged ones, for g = 0 ... pieces."""
    kernel = tl.program_id(1).to(tl.int64)
    g = tl.program_id(0) * LANES + tl.arange(0, LANES)
    diagonal = tl.minimum(g.to(tl.int64) * TILE, tl.zeros([], tl.int64) + n + k)  # n + k alone may pass 2^31
    low, high = tl.maximum(diagonal - k, 0), tl.minimum(diagonal, n)
    found = _ones_before(ones + kernel * ones_length, twos + kernel * twos_length, diagonal, low, high, steps)
    tl.store(splits + kernel * (pieces + 1) + g, found, mask=g <= pieces)


@triton.jit(do_not_specialize_on_alignment=["ones", "twos", "ones_entry", "twos_entry"])
def merge_kernel(
    ones, twos, ones_entry, twos_entry, splits, position, entry, n, k, ones_length, twos_length, padded, pieces, steps,
    WORDS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Two sorted runs into one, the first run's before the second's where they tie.

    The entries are those of the runs; or, where the runs are rows and columns as the caller has them, words of bits, 1
    for a row, and behind them the number of rows before each word.
    """
    tile, kernel = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    ones, twos, splits = ones + kernel * ones_length, twos + kernel * twos_length, splits + kernel * (pieces + 1)
    first, last = tl.load(splits + tile), tl.load(splits + tile + 1)
    merged = tl.zeros([], tl.int64) + n + k  # n + k alone may pass 2^31
    start, stop = tile * TILE, tl.minimum(tile * TILE + TILE, merged)
    place = start + tl.arange(0, TILE)
    diagonal = tl.minimum(place, stop)
    low, high = tl.maximum(first, diagonal - (stop - last)), tl.minimum(last, diagonal - (start - first))
    one = _ones_before(ones, twos, diagonal, low, high, steps)
    two = diagonal - one
    inside = place < merged
    value_one = tl.load(ones + one, mask=one < n, other=0.0)
    value_two = tl.load(twos + two, mask=two < k, other=0.0)
    is_one = (one < n) & ((two >= k) | (value_one <= value_two))
    end = tl.maximum(tl.load(ones + n - 1), tl.load(twos + k - 1))  # also behind the end, up to what is padded
    value = tl.where(inside, tl.where(is_one, value_one, value_two), end)
    tl.store(position + kernel * padded + place, value, mask=place < padded)
    if WORDS:
        lane = tl.reshape(tl.arange(0, TILE) % WORD, [TILE // WORD, WORD])
        bits = tl.sum(tl.reshape((inside & is_one).to(tl.int32), [TILE // WORD, WORD]) << lane, 1)
        before = tl.sum(tl.where(lane == 0, tl.reshape(one, [TILE // WORD, WORD]), 0), 1)
        word = tile * (TILE // WORD) + tl.arange(0, TILE // WORD)
        entry += kernel * (padded // WORD * 2)
        tl.store(entry + word, bits, mask=word < padded // WORD)
        tl.store(entry + padded // WORD + word, before, mask=word < padded // WORD)
    else:
        of_one = tl.load(ones_entry + kernel * ones_length + one, mask=inside & is_one, other=0)
        of_two = tl.load(twos_entry + kernel * twos_length + two, mask=inside & ~is_one, other=0)
        tl.store(entry + kernel * padded + place, of_one + of_two, mask=place < padded)
