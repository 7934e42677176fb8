"""Triton programs for any chain of few states: transitions, p and q are read, point by point, as the chain has them."""

import triton
import triton.language as tl

from laplex._triton.points import INFINITY
from laplex._triton.program import program
from laplex._triton.states.matrices import (
    conjugated,
    conjugated_back,
    constants,
    full,
    loaded,
    loaded_where,
    minus,
    plus,
    product,
    scaled,
    stored,
    times,
    times_back,
    unit,
)
from laplex._triton.states.programs import mapped, measured


@triton.jit
def place_of(point, series, n, REVERSE: tl.constexpr):
    """Where a point is, the step that leads to it in the direction of the walk, and whether it exists."""
    inside = point < n
    if REVERSE:
        place = series * n + tl.where(inside, n - 1 - point, 0)
        return place, tl.where(point > 0, place + 1, place), inside
    else:
        place = series * n + tl.where(inside, point, 0)
        return place, place, inside


@program(numbers="n")
def factor_program(
    step_matrices, p, q, diag, entries, maps, states, failures, n, chunks, lanes,
    SIZE: tl.constexpr, START: tl.constexpr, MAPS: tl.constexpr, CHUNK: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Walk over every chunk from ``entries``, as ``walk_program`` does.

    MAPS: write the maps of chunks, of which r and b are 0. Else write S before every point to ``states``, and the first
    point without a positive pivot, infinity for none, to ``failures`` (lanes,).
    """
    TRIANGLE: tl.constexpr = SIZE * (SIZE + 1) // 2
    own = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    known, lane = own < lanes, tl.minimum(own, lanes - 1)
    stride = lanes.to(tl.int64)
    series, point = lane // chunks, lane % chunks * CHUNK
    zero = tl.zeros([LANES], tl.float64)
    nothing = constants(zero, 0.0, SIZE)
    if START:
        state = constants(zero, 0.0, TRIANGLE)
        following = state
        stored(entries + lane, stride, state, known, TRIANGLE)
        stored(entries + lane + TRIANGLE * stride, stride, nothing, known, SIZE)
    else:
        state = loaded(entries + lane, stride, TRIANGLE)
        following = loaded(entries + tl.minimum(lane + 1, lanes - 1), stride, TRIANGLE)
    j, sum_n, r = unit(zero, SIZE), constants(zero, 0.0, TRIANGLE), nothing
    failed = zero + INFINITY
    for _ in range(CHUNK):
        place, _step, inside = place_of(point, series, n, False)
        step = loaded_where(step_matrices + place * (SIZE * SIZE), 1, inside, SIZE * SIZE, SIZE)
        own_p = loaded_where(p + place * SIZE, 1, inside, SIZE, 0)
        own_q = loaded_where(q + place * SIZE, 1, inside, SIZE, 0)
        noise = tl.load(diag + place, mask=inside, other=INFINITY)
        stepped, c, d, over, state, rest = measured(step, step, noise, own_q, own_p, state, SIZE, -1, -1, False)
        if MAPS:
            j, sum_n, r = mapped(step, scaled(c, over, SIZE), over, zero, rest, own_p, j, sum_n, r, SIZE, -1, -1, False)
        else:
            stored(states + place * (SIZE * SIZE), 1, full(stepped, SIZE), known & inside, SIZE * SIZE)
            failed = tl.where(inside & ~(d > 0.0), tl.minimum(failed, point.to(tl.float64)), failed)
        point += 1
    if MAPS:
        to = maps + lane
        stored(to, stride, j, known, SIZE * SIZE)
        stored(to + SIZE * SIZE * stride, stride, sum_n, known, TRIANGLE)
        x = minus(state, following, TRIANGLE)
        stored(to + (SIZE * SIZE + TRIANGLE) * stride, stride, x, known, TRIANGLE)
        stored(to + (SIZE * SIZE + 2 * TRIANGLE) * stride, stride, nothing, known, SIZE)
        stored(to + (SIZE * SIZE + 2 * TRIANGLE + SIZE) * stride, stride, nothing, known, SIZE)
    else:
        tl.store(failures + lane, failed, mask=known)


@triton.jit
def loaded_upper(base, inside, SIZE: tl.constexpr):
    """A symmetric matrix, of which all entries are in memory; 0 where not ``inside``."""
    values = ()
    for i in tl.static_range(SIZE):
        for j in tl.static_range(i, SIZE):
            values = values + (tl.load(base + i * SIZE + j, mask=inside, other=0.0),)
    return values


@program(numbers="n")
def scan_program(
    step_matrices, source, entries, maps, result, n, columns, chunks, lanes,
    SIZE: tl.constexpr, MATRICES: tl.constexpr, REVERSE: tl.constexpr, MAPS: tl.constexpr,
    CHUNK: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """f_n = T_n f_{n-1} + u_n, or MATRICES Z_n = T_n Z_{n-1} T_n^T + X_n.

    REVERSE: from the last point to the first, with T_{n+1}^T in place of T_n.

    A lane has a chunk of one column; chunks count in the direction of the walk. MAPS: write what chunks do to a state,
    as maps whose other fields are 0. Else walk from ``entries``, and write all results.
    """
    TRIANGLE: tl.constexpr = SIZE * (SIZE + 1) // 2
    own = tl.program_id(0).to(tl.int64) * LANES + tl.arange(0, LANES)
    known, lane = own < lanes, tl.minimum(own, lanes - 1)
    stride = lanes.to(tl.int64)
    line, point = lane // chunks, lane % chunks * CHUNK
    series, column = line // columns, line % columns
    zero = tl.zeros([LANES], tl.float64)
    state, mean, j = constants(zero, 0.0, TRIANGLE), constants(zero, 0.0, SIZE), unit(zero, SIZE)
    if not MAPS:
        if MATRICES:
            state = loaded(entries + lane, stride, TRIANGLE)
        else:
            mean = loaded(entries + lane + TRIANGLE * stride, stride, SIZE)
    for _ in range(CHUNK):
        place, led_by, inside = place_of(point, series, n, REVERSE)
        step = loaded_where(step_matrices + led_by * (SIZE * SIZE), 1, inside, SIZE * SIZE, SIZE)
        if MATRICES:
            offset = place * (SIZE * SIZE)
            moved = conjugated_back(step, state, SIZE, -1) if REVERSE else conjugated(step, state, SIZE, -1)
            state = plus(moved, loaded_upper(source + offset, inside, SIZE), TRIANGLE)
            if not MAPS:
                stored(result + offset, 1, full(state, SIZE), known & inside, SIZE * SIZE)
        else:
            offset = place * (SIZE * columns) + column
            moved = times_back(step, mean, SIZE, -1) if REVERSE else times(step, mean, SIZE, -1)
            mean = plus(moved, loaded_where(source + offset, columns, inside, SIZE, 0), SIZE)
            if not MAPS:
                stored(result + offset, columns, mean, known & inside, SIZE)
        if MAPS:
            j = product(transposed(step, SIZE) if REVERSE else step, j, SIZE, -1)
        point += 1
    if MAPS:
        to = maps + lane
        stored(to, stride, j, known, SIZE * SIZE)
        stored(to + SIZE * SIZE * stride, stride, constants(zero, 0.0, TRIANGLE), known, TRIANGLE)
        stored(to + (SIZE * SIZE + TRIANGLE) * stride, stride, state, known, TRIANGLE)
        stored(to + (SIZE * SIZE + 2 * TRIANGLE) * stride, stride, constants(zero, 0.0, SIZE), known, SIZE)
        stored(to + (SIZE * SIZE + 2 * TRIANGLE + SIZE) * stride, stride, mean, known, SIZE)


@triton.jit
def transposed(m, SIZE: tl.constexpr):
    """m^T."""
    values = ()
    for i in tl.static_range(SIZE):
        for j in tl.static_range(SIZE):
            values = values + (m[j * SIZE + i],)
    return values
