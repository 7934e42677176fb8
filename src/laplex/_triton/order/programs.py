"""Triton programs that find the merged order: all anchors of both sides in one sorted sequence.

The order is two arrays. ``position`` has the anchors sorted. ``entry`` says which anchor each one is: the index i of a
row as i, the index j of a column as -1 - j. Both are padded to a multiple of WORD: the last position is repeated, and
the entries of the padding mean nothing.

Tie rule: of equal anchors the one given first comes first, and rows are given before columns. The order is that of a
stable sort of [rows; columns].

    rank_program     rank by counting: an anchor's place is the number of anchors before it. n^2 comparisons, no sort
    join_program     joins many sorted runs: a place is the sum of an anchor's places in all runs, found by bisection
    encode_program   turns the output of torch.sort into positions and entries
    split_program    merge path: where each tile of the output begins in two sorted runs
    merge_program    merges two sorted runs, tile by tile

Merge path (Odeh, Green, Mwassi, Shmueli and Birk, "Merge Path - Parallel Merging Made Simple", IPDPS Workshops 2012):
merging runs of n and k points is a path through an n x k grid, one step right for a point of the first run, one step
down for a point of the second. It crosses the diagonal d at the pair (i, d - i) for which the first d merged points are
i of the first run and d - i of the second. Bisection along the diagonal finds i without merging what comes before. So
every tile, and every thread in a tile, can start to merge at its own diagonal.

rank_program and encode_program replace NaN by infinity, which can be compared. So an anchor that is not finite is at an
end of the order, where the scan looks for it.
"""

import triton
import triton.language as tl

from laplex._triton.program import program

WORD = tl.constexpr(32)
STEP = tl.constexpr(8)  # points that one thread merges


@program(numbers="n", callers=("ones", "twos"))
def side_by_side_program(ones, twos, position, n, k, WIDTH: tl.constexpr):
    """Copy two sides, of n and k points, one after the other: the input of a sort."""
    batch = tl.program_id(1).to(tl.int64)
    place = tl.program_id(0).to(tl.int64) * WIDTH + tl.arange(0, WIDTH)
    is_one, inside = place < n, place < n + k
    value = tl.load(ones + batch * n + place, mask=is_one, other=0.0)
    value += tl.load(twos + batch * k + place - n, mask=inside & ~is_one, other=0.0)
    tl.store(position + batch * (n + k) + place, value, mask=inside)


@triton.jit
def _load_sides(ones, twos, index, n, k):
    """The points ``index`` of [ones; twos]; infinity for NaN, and after the end."""
    value = tl.load(tl.where(index < n, ones + index, twos + (index - n)), mask=index < n + k, other=float("inf"))
    return tl.where(value == value, value, float("inf"))


@program(numbers="n", callers=("ones", "twos"))
def rank_program(
    ones, twos, position, entry, n, k, run, length,
    WIDTH: tl.constexpr, OTHERS: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Sort every run of ``run`` points of [ones; twos] by counting: WIDTH points of one run per program.

    ``run`` is a multiple of WIDTH. If one run holds all points, the result is the whole order, in one launch.
    """
    batch = tl.program_id(1).to(tl.int64)
    ones, twos = ones + batch * n, twos + batch * k
    first = tl.program_id(0) * WIDTH
    begin = first // run * run
    end = tl.minimum(begin + run, n + k)
    own = first + tl.arange(0, WIDTH)
    value = _load_sides(ones, twos, own, n, k)
    # The tie rule: points before this program's own count if they tie with one of them, points after them do not.
    counts = _counts_before(ones, twos, n, k, value, begin, first, True, OTHERS, LANES)
    counts += _counts_before(ones, twos, n, k, value, first + WIDTH, end, False, OTHERS, LANES)
    tied_before = (value[None, :] == value[:, None]) & (own[None, :] < own[:, None])
    own_before = (value[None, :] < value[:, None]) | tied_before
    place = begin + tl.sum(counts, 1).to(tl.int32) + tl.sum(own_before.to(tl.int32), 1)
    coded = tl.where(own < n, own, n - 1 - own)  # -1 - (own - n) for the columns
    _store_points(position, entry, batch * length, place, value, coded, own, n + k, length)


@triton.jit
def _counts_before(
    ones, twos, n, k, value, start, stop, OR_TIED: tl.constexpr, OTHERS: tl.constexpr, LANES: tl.constexpr
):  # fmt: skip
    """How many points from ``start`` to ``stop`` are less than each value, or OR_TIED at most it.

    The result is (WIDTH, LANES), still to be summed over the lanes. Counts are float32: a comparison yields a float in
    one instruction, and the additions run in parallel with the next comparisons.
    """
    counts = tl.zeros([value.shape[0], LANES], tl.float32)
    offset = tl.arange(0, OTHERS // LANES)[:, None] * LANES + tl.arange(0, LANES)[None, :]
    for begin in range(start, stop, OTHERS):
        other = begin + offset
        # Behind ``stop`` the comparison is with NaN, which is false.
        against = tl.where(other < stop, _load_sides(ones, twos, other, n, k), float("nan"))[:, None, :]
        is_before = against <= value[None, :, None] if OR_TIED else against < value[None, :, None]
        counts += tl.sum(tl.where(is_before, 1.0, 0.0), 0)
    return counts


@triton.jit
def _store_points(position, entry, start, place, value, coded, own, merged, padded):
    """Store points at their places from ``start`` on; the program that has the last point stores the padding, too.

    Points with own >= merged do not exist and are not stored.
    """
    tl.store(position + start + place, value, mask=own < merged)
    tl.store(entry + start + place, coded, mask=own < merged)
    last = (place == merged - 1) & (own < merged)
    for pad in range(merged, padded):
        tl.store(position + start + pad + place * 0, value, mask=last)
        tl.store(entry + start + pad + place * 0, place * 0, mask=last)


@program(numbers="merged")
def join_program(
    run_position, run_entry, position, entry, merged, padded, run, steps,
    WIDTH: tl.constexpr, RUNS: tl.constexpr,
):  # fmt: skip
    """Join sorted runs of ``run`` points each into one order, WIDTH points per program.

    The place of a point is its place in its own run plus the number of points before it in every other run. RUNS runs
    are bisected in parallel.
    """
    batch = tl.program_id(1).to(tl.int64)
    run_position, run_entry = run_position + batch * merged, run_entry + batch * merged
    first = tl.program_id(0) * WIDTH
    own, own_run = first + tl.arange(0, WIDTH), first // run
    value = tl.load(run_position + own, mask=own < merged, other=0.0)
    coded = tl.load(run_entry + own, mask=own < merged, other=0)
    place = own - own_run * run
    for first_run in range(0, tl.cdiv(merged, run), RUNS):
        other_run = first_run + tl.arange(0, RUNS)[:, None]
        begin = other_run * run
        size = tl.where(other_run == own_run, 0, tl.minimum(merged - begin, run))
        place += tl.sum(_bisect_runs(run_position + begin, size, value[None, :], other_run < own_run, run, steps), 0)
    _store_points(position, entry, batch * padded, place, value, coded, own, merged, padded)


@triton.jit
def _bisect_runs(runs, size, value, or_tied, run, steps):
    """How many points of each sorted run are less than each value, or, for the runs ``or_tied``, at most it.

    A bisection in powers of two from ``run``, itself a power of two, down to 1. A run holds ``size`` <= ``run`` points.
    """
    count = tl.zeros([size.shape[0], value.shape[1]], tl.int32)
    for halved in range(steps):
        more = count + (run >> halved)
        against = tl.load(runs + more - 1, mask=more <= size, other=0.0)
        is_before = (against < value) | ((against == value) & or_tied)
        count = tl.where((more <= size) & is_before, more, count)
    return count


@program(numbers="n")
def encode_program(values, order, position, entry, n, merged, padded, first_row, first_column, WIDTH: tl.constexpr):
    """Positions and entries, padded, from sorted values and their indices before the sort.

    The first ``n`` of the points that were sorted are rows, numbered from ``first_row`` on; the others are columns,
    numbered from ``first_column`` on.
    """
    batch = tl.program_id(1).to(tl.int64)
    place = tl.program_id(0).to(tl.int64) * WIDTH + tl.arange(0, WIDTH)
    taken = tl.minimum(place, merged - 1)
    index = tl.load(order + batch * merged + taken, mask=place < padded, other=0)
    value = tl.load(values + batch * merged + taken, mask=place < padded, other=0.0)
    value = tl.where(value == value, value, float("inf"))  # a sort puts NaN last, so the run stays sorted
    coded = tl.where(index < n, index + first_row, -1 - (index - n + first_column))
    tl.store(position + batch * padded + place, value, mask=place < padded)
    tl.store(entry + batch * padded + place, coded, mask=place < padded)


@triton.jit
def _crossing(ones, twos, diagonal, low, high, steps):
    """How many of the first ``diagonal`` merged points are of the first run: bisection between ``low`` and ``high``.

    If the first run's point ``middle`` is at most the second run's point ``diagonal - 1 - middle``, it is merged before
    that one, and is among the first ``diagonal`` points; else it is not.
    """
    for _ in range(steps):
        searching = low < high
        middle = (low + high) // 2
        one = tl.load(ones + middle, mask=searching, other=0.0)
        two = tl.load(twos + (diagonal - 1 - middle), mask=searching, other=0.0)
        is_before = one <= two
        low = tl.where(searching & is_before, middle + 1, low)
        high = tl.where(searching & ~is_before, middle, high)
    return low


@program(numbers="n", callers=("ones", "twos"))
def split_program(
    ones, twos, splits, n, k, ones_length, twos_length, pieces, steps, TILE: tl.constexpr, LANES: tl.constexpr
):  # fmt: skip
    """splits[g] = number of points of the first run among the first g * TILE merged ones, for g = 0 ... pieces."""
    batch = tl.program_id(1).to(tl.int64)
    g = tl.program_id(0) * LANES + tl.arange(0, LANES)
    merged = tl.zeros([], tl.int64) + n + k  # the sum of two 32-bit numbers may pass 2^31
    diagonal = tl.minimum(g.to(tl.int64) * TILE, merged)
    low, high = tl.maximum(diagonal - k, 0), tl.minimum(diagonal, n)
    crossing = _crossing(ones + batch * ones_length, twos + batch * twos_length, diagonal, low, high, steps)
    tl.store(splits + batch * (pieces + 1) + g, crossing, mask=g <= pieces)


@triton.jit
def _interleaved(v):
    """Eight vectors as one: v[0][0], v[1][0], ..., v[7][0], v[0][1], ... A thread's values become one vector store."""
    even = tl.join(tl.join(v[0], v[4]), tl.join(v[2], v[6]))
    odd = tl.join(tl.join(v[1], v[5]), tl.join(v[3], v[7]))
    return tl.reshape(tl.join(even, odd), [8 * v[0].shape[0]])


@program(numbers="n", callers=("ones", "twos", "ones_entry", "twos_entry"))
def merge_program(
    ones, twos, ones_entry, twos_entry, splits, position, entry, n, k, ones_length, twos_length, padded, pieces, steps,
    WORDS: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """One tile of the merge of two sorted runs; at ties the first run's points come first.

    A thread finds its diagonal's crossing by bisection and merges STEP points from there, one after another. Entries
    are copied from the runs. With WORDS the runs are the rows and the columns as given, and entries are not needed: one
    bit per point, 1 for a row, in words of 32 bits, followed by the number of rows before each word.
    """
    LANES: tl.constexpr = TILE // STEP
    tile, batch = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    splits += batch * (pieces + 1)
    first, last = tl.load(splits + tile), tl.load(splits + tile + 1)
    start, merged = tile * TILE, tl.zeros([], tl.int64) + n + k  # the sum of two 32-bit numbers may pass 2^31
    ones, twos = ones + batch * ones_length, twos + batch * twos_length
    end = tl.maximum(tl.load(ones + n - 1), tl.load(twos + k - 1))  # the last position, which the padding repeats
    ones, twos = ones + first, twos + (start - first)
    ones_entry += batch * ones_length + first
    twos_entry += batch * twos_length + start - first
    # From here on indices count from the tile's start and fit 32 bits.
    size = tl.minimum(merged - start, TILE).to(tl.int32)
    ones_here = (last - first).to(tl.int32)
    ones_left, twos_left = tl.minimum(n - first, TILE).to(tl.int32), tl.minimum(k - start + first, TILE).to(tl.int32)
    lane = tl.arange(0, LANES)
    diagonal = tl.minimum(lane * STEP, size)
    low, high = tl.maximum(0, diagonal - (size - ones_here)), tl.minimum(diagonal, ones_here)
    one = _crossing(ones, twos, diagonal, low, high, steps)
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
        has_more = tl.where(is_one, one < ones_left, two < twos_left)
        following = tl.load(tl.where(is_one, ones + one, twos + two), mask=has_more, other=0.0)
        value_one, value_two = tl.where(is_one, following, value_one), tl.where(is_one, value_two, following)
    place = start + tl.arange(0, TILE)
    tl.store(position + batch * padded + place, _interleaved(values), mask=place < padded)
    if WORDS:
        parts: tl.constexpr = WORD // STEP  # threads per word
        part = tl.arange(0, parts)[None, :]
        word = tile * (TILE // WORD) + tl.arange(0, TILE // WORD)
        entry += batch * (padded // WORD * 2)
        inside_words = word < padded // WORD
        tl.store(entry + word, tl.sum(tl.reshape(bits, [TILE // WORD, parts]) << (part * STEP), 1), mask=inside_words)
        before = tl.where(part == 0, tl.reshape(rows_before, [TILE // WORD, parts]), 0)
        tl.store(entry + padded // WORD + word, tl.sum(before, 1), mask=inside_words)
    else:
        tl.store(entry + batch * padded + place, _interleaved(entries), mask=place < padded)
