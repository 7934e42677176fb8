"""Triton programs between the walks: from the maps of all chunks to the states that enter them, and sums over chunks.

Maps are (field, lanes): J, N, X, r and b one after the other. A level has ``count`` maps of each series next to one
another; GROUP of them make a map of the next level, and the last level has at most GROUP.
"""

import triton
import triton.language as tl

from laplex._triton.points import INFINITY
from laplex._triton.program import program
from laplex._triton.states.maps import composed, gathered, loaded_linear_map, loaded_map, moved
from laplex._triton.states.matrices import constants, loaded, loaded_where, plus, product, stored, unit


@triton.jit
def group_of(groups, lanes, LANES: tl.constexpr):
    """For every lane: its index, whether it exists, its series, and its group in the series."""
    own = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    lane = tl.minimum(own, lanes - 1)
    return lane, own < lanes, lane // groups, lane % groups


@program(numbers="count")
def compose_program(
    maps, composed_maps, count, groups, lanes,
    SIZE: tl.constexpr, BACK: tl.constexpr, GROUP: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Compose the maps of every group; ``lanes`` counts groups of all series. BACK: only J, N and r, linearly."""
    TRIANGLE: tl.constexpr = SIZE * (SIZE + 1) // 2
    lane, known, series, group = group_of(groups, lanes, LANES)
    stride, to_stride = (lanes // groups).to(tl.int64) * count, lanes.to(tl.int64)
    first = group * GROUP
    here, to = maps + series * count + first, composed_maps + lane
    zero = tl.zeros([LANES], tl.float64)
    j, n, r = unit(zero, SIZE), constants(zero, 0.0, TRIANGLE), constants(zero, 0.0, SIZE)
    x, b = constants(zero, 0.0, TRIANGLE), constants(zero, 0.0, SIZE)
    for i in range(GROUP):
        inside = first + i < count
        if BACK:
            next_j, next_n, next_r = loaded_linear_map(here + i, stride, inside, SIZE)
            n, r = gathered(j, n, r, next_n, next_r, SIZE)
            j = product(next_j, j, SIZE, -1)
        else:
            next_j, next_n, next_x, next_r, next_b = loaded_map(here + i, stride, inside, SIZE)
            j, n, x, r, b = composed(j, n, x, r, b, next_j, next_n, next_x, next_r, next_b, SIZE)
    stored(to, to_stride, j, known, SIZE * SIZE)
    stored(to + SIZE * SIZE * to_stride, to_stride, n, known, TRIANGLE)
    stored(to + (SIZE * SIZE + 2 * TRIANGLE) * to_stride, to_stride, r, known, SIZE)
    if not BACK:
        stored(to + (SIZE * SIZE + TRIANGLE) * to_stride, to_stride, x, known, TRIANGLE)
        stored(to + (SIZE * SIZE + 2 * TRIANGLE + SIZE) * to_stride, to_stride, b, known, SIZE)


@program(numbers="count")
def spread_program(
    maps, from_groups, entries, count, groups, lanes,
    SIZE: tl.constexpr, TOP: tl.constexpr, ADD: tl.constexpr, GROUP: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """From what enters every group, find what enters each of its chunks: ``entries`` (TRIANGLE + SIZE, all maps).

    TOP: a series has one group, and nothing enters it. ADD: the result is added to ``entries`` instead of written.
    """
    TRIANGLE: tl.constexpr = SIZE * (SIZE + 1) // 2
    lane, known, series, group = group_of(groups, lanes, LANES)
    stride, group_stride = (lanes // groups).to(tl.int64) * count, lanes.to(tl.int64)
    first = group * GROUP
    here, to = maps + series * count + first, entries + series * count + first
    if TOP:
        zero = tl.zeros([LANES], tl.float64)
        state, mean = constants(zero, 0.0, TRIANGLE), constants(zero, 0.0, SIZE)
    else:
        state = loaded(from_groups + lane, group_stride, TRIANGLE)
        mean = loaded(from_groups + lane + TRIANGLE * group_stride, group_stride, SIZE)
    for i in range(GROUP):
        inside = known & (first + i < count)
        j, n, x, r, b = loaded_map(here + i, stride, inside, SIZE)
        entered, entered_mean = state, mean
        if ADD:
            entered = plus(state, loaded_where(to + i, stride, inside, TRIANGLE, 0), TRIANGLE)
            entered_mean = plus(mean, loaded_where(to + i + TRIANGLE * stride, stride, inside, SIZE, 0), SIZE)
        stored(to + i, stride, entered, inside, TRIANGLE)
        stored(to + i + TRIANGLE * stride, stride, entered_mean, inside, SIZE)
        state, mean = moved(j, n, x, r, b, state, mean, SIZE)


@program(numbers="count")
def gather_program(
    maps, from_groups, entries, count, groups, lanes,
    SIZE: tl.constexpr, TOP: tl.constexpr, GROUP: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """The same from the last chunk to the first: N and r of all that follows, (TRIANGLE + SIZE, all maps)."""
    TRIANGLE: tl.constexpr = SIZE * (SIZE + 1) // 2
    lane, known, series, group = group_of(groups, lanes, LANES)
    stride, group_stride = (lanes // groups).to(tl.int64) * count, lanes.to(tl.int64)
    first = group * GROUP
    here, to = maps + series * count + first, entries + series * count + first
    if TOP:
        zero = tl.zeros([LANES], tl.float64)
        n, r = constants(zero, 0.0, TRIANGLE), constants(zero, 0.0, SIZE)
    else:
        n = loaded(from_groups + lane, group_stride, TRIANGLE)
        r = loaded(from_groups + lane + TRIANGLE * group_stride, group_stride, SIZE)
    for back in range(GROUP):
        i = GROUP - 1 - back
        inside = known & (first + i < count)
        stored(to + i, stride, n, inside, TRIANGLE)
        stored(to + i + TRIANGLE * stride, stride, r, inside, SIZE)
        own_j, own_n, own_r = loaded_linear_map(here + i, stride, inside, SIZE)
        n, r = gathered(own_j, own_n, own_r, n, r, SIZE)


@program(numbers="chunks")
def total_program(parts, totals, chunks, smallest, WIDTH: tl.constexpr):
    """totals (fields, series): the sum over the chunks of parts (fields, series, chunks); of the field ``smallest`` the
    smallest number, -1 if that is infinite.
    """
    series, field = tl.program_id(0).to(tl.int64), tl.program_id(1)
    place = field * tl.num_programs(0).to(tl.int64) + series
    lane = tl.arange(0, WIDTH)
    total, least = tl.zeros([WIDTH], tl.float64), tl.zeros([WIDTH], tl.float64) + INFINITY
    for start in range(0, chunks, WIDTH):
        inside = start + lane < chunks
        value = tl.load(parts + place * chunks + start + lane, mask=inside, other=0.0)
        total += value
        least = tl.where(inside, tl.minimum(least, value), least)
    first = tl.min(least, 0)
    first = tl.where(first < INFINITY, first, -1.0)
    tl.store(totals + place, tl.where(field == smallest, first, tl.sum(total, 0)))
