"""Many sources, few targets, with phases: the sums of a long side at the points of a short one.

The points of the short side cut the sorted long side into *intervals*: interval q lies between the short points q - 1
and q, counted in sorted order. The sums of an interval are referred to its two ends, so that no exponent is positive,
and then carried along the short side alone. An interval may hold anything from no source to all of them, so it is cut
into *pieces* of at most PIECE consecutive places of the merged order.

    collect    ``collect_program``: the sums of every piece, both channels in one pass over the values
    gather     ``gather_program``: the sums of every interval, from those of its pieces
    settle     ``settle_program``: scans over the short side, from the left and from the right
    read       ``read_program``: E, O and P at the short points, in the caller's order

Sums are fields, each for both channels and all rows: (FIELDS, 2, m), with v sources of the interval but for ties,

    TO_LEFT, TO_RIGHT      sum of exp(-u) v, with u = |s - end| / tau for the interval's left or right end
    TIED                   sum of the sources at the one end where ties may lie
    TO_LEFT + WEIGHTED...  sum of u exp(-u) v, for the gradient of tau

Ties. In the merged order rows come before columns. If the long side has the rows (LONG_FIRST), a tied source lies just
before its short point, as a tie with the right end of its interval; else just after it, as a tie with the left end. So
the ties of short point q are those of interval q or q + 1. Among equal short points only the first, or the last, has
them. What lies strictly left or right of a point is then right at that one, and the others read it there. No tied
source is ever subtracted: with T_q for the ties of q, the scan from the left is that of

    w_q = TO_RIGHT of interval q + exp(-(s_q - s_{q-1}) / tau) T_{q-1}

and gives the sum L_q strictly left of q; the scan from the right mirrors it. E = L + T + R, O = R - L.

Faults. The long points must lie within their interval and tie on the side above, and the short points must ascend;
otherwise the order does not describe the anchors, and all sums are NaN, as they are if an anchor is not finite.
"""

import triton
import triton.language as tl

from laplex._triton.phase.programs import direction
from laplex._triton.points import INFINITY, LN_2, WORD, decay_over, entry_of, exponent_over, rate_of
from laplex._triton.program import program
from laplex._triton.running import carried_along, running_states
from laplex._triton.short.programs import count_before

TO_LEFT, TO_RIGHT, TIED = tl.constexpr(0), tl.constexpr(1), tl.constexpr(2)
WEIGHTED = tl.constexpr(3)  # from here on the fields weighted by distance: TO_LEFT, TO_RIGHT
FIELDS, FIELDS_TO_TAU = tl.constexpr(3), tl.constexpr(5)


@triton.jit
def _piece(starts, border, piece, k, merged, search, PIECE: tl.constexpr):
    """The interval of a piece, its first place, and the place where the interval ends."""
    number = tl.zeros([1], tl.int32) + piece
    interval = tl.sum(count_before(starts + 1, number, k + 1, search, True), 0)
    begin = tl.load(border + interval - 1, mask=interval > 0, other=-1) + 1
    end = tl.load(border + interval, mask=interval < k, other=0)
    end = tl.where(interval < k, end, merged)
    return interval, begin + (piece - tl.load(starts + interval)) * PIECE, end


@triton.jit
def _points(place, end, entry, source, angle, merged, padded, IN_ORDER: tl.constexpr):
    """Of these places: which lie before the end, the positions there, and the cosines and sines of their phases."""
    inside = place < end
    _is_row, index = entry_of(entry, tl.minimum(place, merged - 1), padded, IN_ORDER)
    index = index.to(tl.int64)
    s = tl.load(source + index, mask=inside, other=0.0).to(tl.float64)
    cos, sin = direction(angle, index, inside)
    return inside, s, cos, sin


@program(numbers="m", callers=("source", "angle", "tau"), divisible=("m",))
def collect_program(
    merged_x, source, angle, tau, entry, position, border, starts, parts, faults,
    m, merged, padded, k, pieces, search,
    EXACT: tl.constexpr, TO_TAU: tl.constexpr, LONG_FIRST: tl.constexpr, IN_ORDER: tl.constexpr,
    PIECE: tl.constexpr, POINTS: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """The fields of one piece for ROWS rows: parts (h, pieces, FIELDS, 2, m); and its fault, (h, pieces).

    ``merged_x`` (h, padded, m) is the values in the merged order, ``source`` and ``angle`` the long side in the
    caller's order, ``position`` and ``border`` (h, k) the short points in ascending order and their places, ``starts``
    (h, k + 2) the first piece of every interval and the number of pieces.
    """
    SUM: tl.constexpr = tl.float64 if EXACT else tl.float32
    piece, row_block = tl.program_id(0) % pieces, tl.program_id(0) // pieces
    batch = tl.program_id(1).to(tl.int64)
    entry += batch * (padded // WORD * 2 if IN_ORDER else padded)
    source, angle = source + batch * (merged - k), angle + batch * (merged - k)
    position, border, starts = position + batch * k, border + batch * k, starts + batch * (k + 2)
    row = (row_block * ROWS + tl.arange(0, ROWS)).to(tl.int64)[None, :]
    fault = tl.zeros([POINTS], tl.float64)
    if piece < tl.load(starts + k + 1):
        interval, begin, end = _piece(starts, border, piece, k, merged, search, PIECE)
        left = tl.load(position + interval - 1, mask=interval > 0, other=-INFINITY).to(tl.float64)
        right = tl.load(position + interval, mask=interval < k, other=INFINITY).to(tl.float64)
        rate = rate_of(tl.load(tau + batch))
        to_left_cos, to_left_sin = tl.zeros([POINTS, ROWS], SUM), tl.zeros([POINTS, ROWS], SUM)
        to_right_cos, to_right_sin = tl.zeros([POINTS, ROWS], SUM), tl.zeros([POINTS, ROWS], SUM)
        far_left_cos, far_left_sin = tl.zeros([POINTS, ROWS], SUM), tl.zeros([POINTS, ROWS], SUM)
        far_right_cos, far_right_sin = tl.zeros([POINTS, ROWS], SUM), tl.zeros([POINTS, ROWS], SUM)
        ties = tl.zeros([POINTS], tl.int32)
        steps = tl.cdiv(tl.minimum(end - begin, PIECE), POINTS)
        for step in range(steps):
            place = begin + step * POINTS + tl.arange(0, POINTS)
            inside, s, cos, sin = _points(place, end, entry, source, angle, merged, padded, IN_ORDER)
            is_tied = inside & (s == (right if LONG_FIRST else left))
            within = (left < s) & (s <= right) if LONG_FIRST else (left <= s) & (s < right)
            fault += tl.where(inside & ~(within & (tl.abs(s) < INFINITY)), float("nan"), 0.0)
            ties += is_tied.to(tl.int32)
            x_here = merged_x + (batch * padded + place[:, None]) * m + row
            v = tl.load(x_here, mask=inside[:, None] & (row < m), other=0.0).to(SUM)
            left_gap = tl.where(inside & (interval > 0), s - left, 0.0)
            right_gap = tl.where(inside & (interval < k), right - s, 0.0)
            to_left = tl.where(is_tied | (interval == 0), 0.0, decay_over(left_gap, rate, EXACT))
            to_right = tl.where(is_tied | (interval == k), 0.0, decay_over(right_gap, rate, EXACT))
            to_left_cos += v * (to_left * cos).to(SUM)[:, None]
            to_left_sin += v * (to_left * sin).to(SUM)[:, None]
            to_right_cos += v * (to_right * cos).to(SUM)[:, None]
            to_right_sin += v * (to_right * sin).to(SUM)[:, None]
            if TO_TAU:
                to_left *= exponent_over(left_gap, rate)
                to_right *= exponent_over(right_gap, rate)
                far_left_cos += v * (to_left * cos).to(SUM)[:, None]
                far_left_sin += v * (to_left * sin).to(SUM)[:, None]
                far_right_cos += v * (to_right * cos).to(SUM)[:, None]
                far_right_sin += v * (to_right * sin).to(SUM)[:, None]
        fields = parts + (batch * pieces + piece) * (FIELDS_TO_TAU if TO_TAU else FIELDS) * 2 * m + row
        _store_field(fields, TO_LEFT, to_left_cos, to_left_sin, row, m)
        _store_field(fields, TO_RIGHT, to_right_cos, to_right_sin, row, m)
        if TO_TAU:
            _store_field(fields, WEIGHTED + TO_LEFT, far_left_cos, far_left_sin, row, m)
            _store_field(fields, WEIGHTED + TO_RIGHT, far_right_cos, far_right_sin, row, m)
        tied_cos, tied_sin = tl.zeros([POINTS, ROWS], SUM), tl.zeros([POINTS, ROWS], SUM)
        if tl.max(ties, 0) > 0:  # rare, so that it is a pass of its own
            for step in range(steps):
                place = begin + step * POINTS + tl.arange(0, POINTS)
                inside, s, cos, sin = _points(place, end, entry, source, angle, merged, padded, IN_ORDER)
                is_tied = inside & (s == (right if LONG_FIRST else left))
                x_here = merged_x + (batch * padded + place[:, None]) * m + row
                v = tl.load(x_here, mask=is_tied[:, None] & (row < m), other=0.0).to(SUM)
                tied_cos += v * cos.to(SUM)[:, None]
                tied_sin += v * sin.to(SUM)[:, None]
        _store_field(fields, TIED, tied_cos, tied_sin, row, m)
    tl.store(faults + batch * pieces + piece, tl.sum(fault, 0))


@triton.jit
def _store_field(fields, number, of_cos, of_sin, row, m):
    """Both channels of a field, summed over points in float64."""
    tl.store(fields + number * 2 * m, tl.sum(of_cos.to(tl.float64), 0)[None, :], mask=row < m)
    tl.store(fields + (number * 2 + 1) * m, tl.sum(of_sin.to(tl.float64), 0)[None, :], mask=row < m)


@program(numbers="k", divisible=("numbers",))
def gather_program(parts, starts, mass, k, pieces, numbers, PIECES: tl.constexpr, WIDTH: tl.constexpr):
    """mass (h, k + 1, numbers): the fields of an interval, the sum over its pieces; ``numbers`` = FIELDS * 2 * m."""
    interval, block = tl.program_id(0) % (k + 1), tl.program_id(0) // (k + 1)
    batch = tl.program_id(1).to(tl.int64)
    number = block * WIDTH + tl.arange(0, WIDTH)
    first = tl.load(starts + batch * (k + 2) + interval)
    end = tl.load(starts + batch * (k + 2) + interval + 1)
    sums = tl.zeros([PIECES, WIDTH], tl.float64)
    for start in range(first, end, PIECES):
        piece = (start + tl.arange(0, PIECES)).to(tl.int64)[:, None]
        numbers_here = parts + (batch * pieces + piece) * numbers + number[None, :]
        sums += tl.load(numbers_here, mask=(piece < end) & (number < numbers)[None, :], other=0.0)
    numbers_here = mass + (batch * (k + 1) + interval) * numbers + number
    tl.store(numbers_here, tl.sum(sums, 0), mask=number < numbers)


@program(numbers="m", callers=("tau",))
def settle_program(
    mass, position, tau, fault, sides, m, k, numbers,
    EXACT: tl.constexpr, TO_TAU: tl.constexpr, LONG_FIRST: tl.constexpr, SHORT: tl.constexpr,
):  # fmt: skip
    """The sums strictly on one side of every short point, which one program holds, for one row of one channel.

    sides (h, 2, 1 or 2 if TO_TAU, 2 m, k): from the left at [:, 0], from the right at [:, 1]; the sums, then those
    weighted by distance. Short points are in ascending order.
    """
    side, row = tl.program_id(0) % 2, (tl.program_id(0) // 2).to(tl.int64)
    batch = tl.program_id(1).to(tl.int64)
    rate = rate_of(tl.load(tau + batch))
    lane = tl.arange(0, SHORT)
    inside = lane < k
    q = tl.where(side == 0, lane, k - 1 - lane)
    neighbour = tl.where(side == 0, q - 1, q + 1)  # the short point before this one, in the direction of the scan
    has_neighbour = inside & (neighbour >= 0) & (neighbour < k)
    position += batch * k
    s = tl.load(position + q, mask=inside, other=0.0).to(tl.float64)
    s_neighbour = tl.load(position + neighbour, mask=has_neighbour, other=0.0).to(tl.float64)
    gap = tl.where(has_neighbour, tl.abs(s - s_neighbour), 0.0)
    has_left = inside & (q > 0)
    left = tl.load(position + q - 1, mask=has_left, other=0.0)
    ascends = tl.load(position + q, mask=has_left, other=0.0) >= left
    faults = tl.sum(tl.where(inside, s * 0.0 + tl.where(ascends, 0.0, float("nan")), 0.0), 0)
    faults += rate * 0.0 + tl.load(fault + batch)
    mass += batch * (k + 1) * numbers + row
    own = mass + (q + side).to(tl.int64) * numbers  # the interval on this side
    ties = mass + (neighbour + (0 if LONG_FIRST else 1)).to(tl.int64) * numbers  # where its ties are
    field = tl.where(side == 0, TO_RIGHT, TO_LEFT) * 2 * m
    tied = tl.load(ties + TIED * 2 * m, mask=has_neighbour, other=0.0) * decay_over(gap, rate, EXACT)
    v = tl.load(own + field, mask=inside, other=0.0) + tied
    degrees = 2 if TO_TAU else 1
    place = ((batch * 2 + side) * degrees * 2 * m + row) * k + q
    if TO_TAU:
        p = tl.load(own + field + WEIGHTED * 2 * m, mask=inside, other=0.0) + tied * exponent_over(gap, rate)
        last = tl.load(position + tl.where(side == 0, k - 1, 0)).to(tl.float64)
        sums, weighted = running_states(tl.where(inside, s, last), v, p, rate, EXACT, False)
        tl.store(sides + place + (tl.zeros([], tl.int64) + 2 * m) * k, weighted + faults, mask=inside)
    else:
        sums = carried_along(s, v, inside, rate, EXACT)
    tl.store(sides + place, sums + faults, mask=inside)


@program(numbers="m", callers=("target",))
def read_program(
    sides, mass, target, position, sums, m, k, numbers, search, batches,
    TO_TAU: tl.constexpr, LONG_FIRST: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """sums (2 or 3 if TO_TAU, h, 2 m, k): E, O and P of both channels at the short points, in the caller's order."""
    blocks = tl.cdiv(k, WIDTH)
    block, row_block = tl.program_id(0) % blocks, tl.program_id(0) // blocks
    batch = tl.program_id(1).to(tl.int64)
    j = block * WIDTH + tl.arange(0, WIDTH)
    inside = j < k
    t = tl.load(target + batch * k + j, mask=inside, other=0.0)
    if LONG_FIRST:  # of equal points the first has the ties
        q = tl.minimum(count_before(position + batch * k, t, k, search, False), k - 1)
    else:
        q = tl.maximum(count_before(position + batch * k, t, k, search, True) - 1, 0)
    row = (row_block * ROWS + tl.arange(0, ROWS)).to(tl.int64)[:, None]
    both = (row < 2 * m) & inside[None, :]
    q = q.to(tl.int64)[None, :]
    degrees = 2 if TO_TAU else 1
    one_side = (tl.zeros([], tl.int64) + degrees * 2 * m) * k
    on_left = sides + batch * 2 * one_side + row * k + q
    left, right = tl.load(on_left, mask=both, other=0.0), tl.load(on_left + one_side, mask=both, other=0.0)
    tie_at = mass + (batch * (k + 1) + q + (0 if LONG_FIRST else 1)) * numbers + TIED * 2 * m + row
    tied = tl.load(tie_at, mask=both, other=0.0)
    sums_here = sums + (batch * 2 * m + row) * k + j[None, :]
    tl.store(sums_here, left + tied + right, mask=both)
    kind = (tl.zeros([], tl.int64) + batches) * 2 * m * k
    tl.store(sums_here + kind, right - left, mask=both)
    if TO_TAU:
        weighted = (tl.zeros([], tl.int64) + 2 * m) * k
        p_left = tl.load(on_left + weighted, mask=both, other=0.0)
        p_right = tl.load(on_left + one_side + weighted, mask=both, other=0.0)
        tl.store(sums_here + 2 * kind, (p_left + p_right) * LN_2, mask=both)
