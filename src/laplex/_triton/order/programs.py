"""The merged order on the GPU: points counted into it, entries out of a sort, and sorted runs merged into one."""

from __future__ import annotations

import triton
import triton.language as tl

WORD = tl.constexpr(32)
STEP = tl.constexpr(8)  # merged points of a thread


@triton.jit(do_not_specialize_on_alignment=["ones", "twos"])
def beside_program(ones, twos, position, n, k, WIDTH: tl.constexpr):
    """Two sides one behind the other: what is to be sorted."""
    batch = tl.program_id(1).to(tl.int64)
    place = tl.program_id(0).to(tl.int64) * WIDTH + tl.arange(0, WIDTH)
    is_one, inside = place < n, place < n + k
    value = tl.load(ones + batch * n + place, mask=is_one, other=0.0)
    value += tl.load(twos + batch * k + place - n, mask=inside & ~is_one, other=0.0)
    tl.store(position + batch * (n + k) + place, value, mask=inside)


@triton.jit
def _side_at(ones, twos, place, n, k):
    """Of places in two sides one behind the other: the values, infinite where they are NaN, or beyond the end."""
    value = tl.load(ones + place, mask=place < n, other=0.0)
    value += tl.load(twos + place - n, mask=(place >= n) & (place < n + k), other=0.0)
    return tl.where((place < n + k) & (value == value), value, float("inf"))


@triton.jit(do_not_specialize_on_alignment=["ones", "twos"])
def rank_program(
    ones, twos, position, entry, n, k, run, padded,
    WIDTH: tl.constexpr, OTHERS: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Positions and entries of runs of points, each at the place in its run that counting those before it gives.

    A run is a multiple of WIDTH; where it is all there is, this is the whole order, in one launch.
    """
    batch = tl.program_id(1).to(tl.int64)
    ones, twos = ones + batch * n, twos + batch * k
    first = tl.program_id(0) * WIDTH
    begin = first // run * run
    end = tl.minimum(begin + run, n + k)
    own = first + tl.arange(0, WIDTH)
    value = _side_at(ones, twos, own, n, k)
    # At a tie what was given first comes first: all of those before the program's own points do, none behind them.
    number = _number_among(ones, twos, n, k, value, begin, first, True, OTHERS, LANES)
    number += _number_among(ones, twos, n, k, value, first + WIDTH, end, False, OTHERS, LANES)
    tied_before = (value[None, :] == value[:, None]) & (own[None, :] < own[:, None])
    beside = (value[None, :] < value[:, None]) | tied_before
    before = begin + tl.sum(number, 1).to(tl.int32) + tl.sum(beside.to(tl.int32), 1)
    _put(position, entry, batch * padded, before, value, tl.where(own < n, own, n - 1 - own), own, n + k, padded)


@triton.jit
def _number_among(
    ones, twos, n, k, value, start, stop, OR_TIED: tl.constexpr, OTHERS: tl.constexpr, LANES: tl.constexpr
):  # fmt: skip
    """How many of the points from ``start`` to ``stop`` come before the values: (WIDTH, LANES), to be added up.

    Counted in floats: a comparison gives them at once, and they are added beside the next comparison, not after it.
    """
    number = tl.zeros([value.shape[0], LANES], tl.float32)
    among = tl.arange(0, OTHERS // LANES)[:, None] * LANES + tl.arange(0, LANES)[None, :]
    for at in range(start, stop, OTHERS):
        other = at + among
        against = tl.where(other < stop, _side_at(ones, twos, other, n, k), float("nan"))[:, None, :]  # before nothing
        ahead = against <= value[None, :, None] if OR_TIED else against < value[None, :, None]
        number += tl.sum(tl.where(ahead, 1.0, 0.0), 0)
    return number


@triton.jit
def _put(position, entry, start, place, value, coded, own, merged, padded):
    """Points at their places from ``start`` on; what is padded repeats the position of the last."""
    tl.store(position + start + place, value, mask=own < merged)
    tl.store(entry + start + place, coded, mask=own < merged)
    last = (place == merged - 1) & (own < merged)
    for pad in range(merged, padded):
        tl.store(position + start + pad + place * 0, value, mask=last)
        tl.store(entry + start + pad + place * 0, place * 0, mask=last)


@triton.jit
def join_program(
    run_position, run_entry, position, entry, merged, padded, run, steps,
    WIDTH: tl.constexpr, RUNS: tl.constexpr,
):  # fmt: skip
    """Sorted runs as one order: a point's place is the sum of those it has in all runs, RUNS bisected side by side."""
    batch = tl.program_id(1).to(tl.int64)
    run_position, run_entry = run_position + batch * merged, run_entry + batch * merged
    first = tl.program_id(0) * WIDTH
    own, own_run = first + tl.arange(0, WIDTH), first // run
    value = tl.load(run_position + own, mask=own < merged, other=0.0)
    coded = tl.load(run_entry + own, mask=own < merged, other=0)
    before = own - own_run * run
    for first_run in range(0, tl.cdiv(merged, run), RUNS):
        other_run = first_run + tl.arange(0, RUNS)[:, None]
        begin = other_run * run
        size = tl.where(other_run == own_run, 0, tl.minimum(merged - begin, run))
        in_other = _number_before(run_position + begin, size, value[None, :], other_run < own_run, run, steps)
        before += tl.sum(in_other, 0)
    _put(position, entry, batch * padded, before, value, coded, own, merged, padded)


@triton.jit
def _number_before(runs, size, value, or_tied, run, steps):
    """How many points of sorted runs (of ``run``, or as few as ``size``) come before the values, by bisection."""
    number = tl.zeros([size.shape[0], value.shape[1]], tl.int32)
    for halved in range(steps):
        more = number + (run >> halved)
        against = tl.load(runs + more - 1, mask=more <= size, other=0.0)
        ahead = (against < value) | ((against == value) & or_tied)
        number = tl.where((more <= size) & ahead, more, number)
    return number


@triton.jit
def encode_program(values, order, position, entry, n, merged, padded, first_row, first_col, WIDTH: tl.constexpr):
    """Sorted values and their order as positions and entries: a row's index, or -1 - a column's; padded at the end.

    The first ``n`` of what was sorted are rows, from ``first_row`` on, the others columns, from ``first_col`` on.
    """
    batch = tl.program_id(1).to(tl.int64)
    place = tl.program_id(0).to(tl.int64) * WIDTH + tl.arange(0, WIDTH)
    taken = tl.minimum(place, merged - 1)
    index = tl.load(order + batch * merged + taken, mask=place < padded, other=0)
    value = tl.load(values + batch * merged + taken, mask=place < padded, other=0.0)
    value = tl.where(value == value, value, float("inf"))  # so that runs with NaN merge, and it is found at the end
    coded = tl.where(index < n, index + first_row, -1 - (index - n + first_col))
    tl.store(position + batch * padded + place, value, mask=place < padded)
    tl.store(entry + batch * padded + place, coded, mask=place < padded)


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
def split_program(
    ones, twos, splits, n, k, ones_length, twos_length, pieces, steps, TILE: tl.constexpr, LANES: tl.constexpr
):  # fmt: skip
    """splits[g] = points of the first run among the first g * TILE merged ones, for g = 0 ... pieces."""
    batch = tl.program_id(1).to(tl.int64)
    g = tl.program_id(0) * LANES + tl.arange(0, LANES)
    diagonal = tl.minimum(g.to(tl.int64) * TILE, tl.zeros([], tl.int64) + n + k)  # n + k alone may pass 2^31
    low, high = tl.maximum(diagonal - k, 0), tl.minimum(diagonal, n)
    found = _ones_before(ones + batch * ones_length, twos + batch * twos_length, diagonal, low, high, steps)
    tl.store(splits + batch * (pieces + 1) + g, found, mask=g <= pieces)


@triton.jit
def _side_by_side(v):
    """Eight vectors as one, point by point: a thread's own stay together, and are stored at once."""
    even = tl.join(tl.join(v[0], v[4]), tl.join(v[2], v[6]))
    odd = tl.join(tl.join(v[1], v[5]), tl.join(v[3], v[7]))
    return tl.reshape(tl.join(even, odd), [8 * v[0].shape[0]])


@triton.jit(do_not_specialize_on_alignment=["ones", "twos", "ones_entry", "twos_entry"])
def merge_program(
    ones, twos, ones_entry, twos_entry, splits, position, entry, n, k, ones_length, twos_length, padded, pieces, steps,
    WORDS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """Two sorted runs into one, the first run's before the second's where they tie.

    A thread bisects for the first of its STEP points and steps through the others. The entries are those of the runs;
    or, where the runs are rows and columns as the caller has them, words of bits, 1 for a row, and behind them the
    number of rows before each word.
    """
    LANES: tl.constexpr = TILE // STEP
    tile, batch = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    splits += batch * (pieces + 1)
    first, last = tl.load(splits + tile), tl.load(splits + tile + 1)
    start, merged = tile * TILE, tl.zeros([], tl.int64) + n + k  # n + k alone may pass 2^31
    ones, twos = ones + batch * ones_length, twos + batch * twos_length
    end = tl.maximum(tl.load(ones + n - 1), tl.load(twos + k - 1))  # also behind the end, up to what is padded
    ones, twos = ones + first, twos + (start - first)
    ones_entry += batch * ones_length + first
    twos_entry += batch * twos_length + start - first
    # From here on all is counted from the tile's start, in 32 bits.
    size = tl.minimum(merged - start, TILE).to(tl.int32)
    ones_here = (last - first).to(tl.int32)
    ones_left, twos_left = tl.minimum(n - first, TILE).to(tl.int32), tl.minimum(k - start + first, TILE).to(tl.int32)
    lane = tl.arange(0, LANES)
    diagonal = tl.minimum(lane * STEP, size)
    low, high = tl.maximum(0, diagonal - (size - ones_here)), tl.minimum(diagonal, ones_here)
    one = _ones_before(ones, twos, diagonal, low, high, steps)
    two = diagonal - one
    value_one = tl.load(ones + one, mask=one < ones_left, other=0.0)
    value_two = tl.load(twos + two, mask=two < twos_left, other=0.0)
    rows_before, bits = first + one, tl.zeros([LANES], tl.int32)
    values, entries = (), ()
    for step in tl.static_range(STEP):
        inside = lane * STEP + step < size
        is_one = (one < ones_left) & ((two >= twos_left) | (value_one <= value_two))
        values += (tl.where(inside, tl.where(is_one, value_one, value_two), end),)  # type: ignore[assignment]
        if WORDS:
            bits |= (inside & is_one).to(tl.int32) << step
        else:
            its_entry = tl.where(is_one, ones_entry + one, twos_entry + two)
            entries += (tl.load(its_entry, mask=inside, other=0),)  # type: ignore[assignment]
        one, two = one + is_one.to(tl.int32), two + (~is_one).to(tl.int32)
        more = tl.where(is_one, one < ones_left, two < twos_left)
        following = tl.load(tl.where(is_one, ones + one, twos + two), mask=more, other=0.0)
        value_one, value_two = tl.where(is_one, following, value_one), tl.where(is_one, value_two, following)
    place = start + tl.arange(0, TILE)
    tl.store(position + batch * padded + place, _side_by_side(values), mask=place < padded)
    if WORDS:
        of_word: tl.constexpr = WORD // STEP
        in_word = tl.arange(0, of_word)[None, :]
        word = tile * (TILE // WORD) + tl.arange(0, TILE // WORD)
        entry += batch * (padded // WORD * 2)
        known = word < padded // WORD
        tl.store(entry + word, tl.sum(tl.reshape(bits, [TILE // WORD, of_word]) << (in_word * STEP), 1), mask=known)
        before = tl.where(in_word == 0, tl.reshape(rows_before, [TILE // WORD, of_word]), 0)
        tl.store(entry + padded // WORD + word, tl.sum(before, 1), mask=known)
    else:
        tl.store(entry + batch * padded + place, _side_by_side(entries), mask=place < padded)
