"""The third phase of the scan, for one tile and one row of x: running sums at every point of the tile.

Points are (SERIAL, threads): each thread has SERIAL consecutive points. A scan over a tile is a scan over each thread's
own points, in the dtype of v, and then one scan over the totals of the threads, in float64.

Every sum is referred to one position, the *end* of the tile or window in the direction of the scan. A source is
multiplied by ``to_end``, its decay to that end, and the sum that a target reads by ``back``, the inverse of its own
decay to that end. So the scan is a plain prefix sum, and a point costs two exponentials for all rows. There are three
ways, and ``programs`` says why odd sums must exclude ties:

    narrow_sums        a tile that spans at most NARROW powers of two, as one window
    narrow_odd_sums    the same with odd sums: it reads them before the ties are added, and does not subtract
    windows            a wider tile, as several windows; odd sums subtract the ties, in float64
"""

import triton
import triton.language as tl

from laplex._triton.points import INFINITY, NARROW, decay_over, powers_of_two

# The powers of two that one window may span. These are bounds on accuracy:
#   NEAR        for float32 sums. Within a window v is multiplied by as little as 2^-24, so that |v| >= 2^-102 (2e-31)
#               stays a normal float32 number; a smaller one would lose digits. Exponents are float64 here, so their
#               rounding does not count.
#   NEAR_EXACT  for float64 powers. The relative error of a power is the absolute error of its exponent e, about
#               e * 2^-52: for 16 below 1e-14, the accuracy of a float64 product.
NEAR = tl.constexpr(24.0)
NEAR_EXACT = tl.constexpr(16.0)


@triton.jit
def ties_of_tile(
    p, same, first, last, p_left, p_right, rate, FIRST: tl.constexpr, STRICT: tl.constexpr, EXACT: tl.constexpr
):  # fmt: skip
    """What the odd sums of all rows need to know about ties: same, tied_end, to_end, connected, begins.

    The sources tied with a target lie on one side of it: right if FIRST, else left. ``same`` says whether a point has
    the position of its neighbour on that side, within the tile. ``tied_end`` says whether it has the position of the
    neighbouring tile's nearer end on that side, and ``to_end`` is the decay from there to this tile's opposite end.
    ``connected`` and ``begins`` are those of ``runs``, if STRICT.
    """
    end = p_right if FIRST else p_left
    tied_end = p.to(tl.float64) == end
    gap = end - first if FIRST else last - end
    to_end = decay_over(tl.where(tl.abs(end) < INFINITY, gap, 0.0), rate, EXACT)
    connected, begins = same, same
    if STRICT:
        connected, begins = runs(same)
    return same, tied_end, to_end, connected, begins


@triton.jit
def row_sums(
    v, p, inside, span, ends, powers, ties, carried, rate,
    EXACT: tl.constexpr, ODD: tl.constexpr, FIRST: tl.constexpr, SPANS: tl.constexpr,
):  # fmt: skip
    """The even and the odd sums of one row at every point of a tile. The odd sums are 0 unless ODD.

    v is x at the sources and 0 elsewhere. ``ends`` are first, last, p_left, p_right; ``powers`` come from
    ``narrow_powers``, ``ties`` from ``ties_of_tile``, ``carried`` from ``carried_to``.
    """
    STRICT: tl.constexpr = ODD and SPANS == "narrow"
    down, up, low, high = powers
    at_last, at_first, left, right, tied = carried
    to_last, from_last = up * low, down * high
    odd = tl.zeros_like(v)
    if STRICT and FIRST:
        from_right, from_left, strict = narrow_odd_sums(v, ties, tied, down, up, to_last, from_last, at_first, at_last)
        odd = strict - from_left
    elif STRICT:
        from_left, from_right, strict = narrow_odd_sums(v, ties, tied, to_last, from_last, down, up, at_last, at_first)
        odd = from_right - strict
    else:
        if SPANS == "narrow" or (SPANS == "all" and span <= NARROW):
            from_left, from_right = narrow_sums(v, down, up, to_last, from_last, at_last, at_first)
            if ODD:
                unit, tied_unit = units(down, up, ties[2]) if FIRST else units(to_last, from_last, ties[2])
        else:
            from_left, from_right, unit, tied_unit = _wide_sums(
                v, p, inside, ends, left, right, rate, EXACT, ODD, FIRST
            )
        if ODD:
            tie_part = tie_sums(ties[0], v, FIRST) * unit + tl.where(ties[1], tied.to(v.dtype) * tied_unit, 0.0)
            odd = from_right - from_left + (-tie_part if FIRST else tie_part)
    return from_left + from_right, odd


@triton.jit
def narrow_sums(v, down, up, to_last, from_last, left, right):
    """The sums from the left and from the right at every point of a narrow tile, each with the point itself.

    ``left`` and ``right`` are the carries, referred to the tile's last and first position. The sum from the right is
    the total minus the prefix sum, so that one scan, forwards, yields both. NARROW bounds what the subtraction costs.
    """
    at_first = v * down
    left_inner, right_inner = tl.cumsum(v * to_last, 0), tl.cumsum(at_first, 0)
    left_total, right_total = _last(left_inner, False).to(tl.float64), _last(right_inner, False).to(tl.float64)
    left_sums, right_sums = tl.associative_scan((left_total, right_total), 0, _add_both)
    from_left = _plus(left + (left_sums - left_total), left_inner) * from_last
    total = right + _of_last_thread(right_sums)
    from_right = _plus(total - (right_sums - right_total), at_first - right_inner) * up
    return from_left, from_right


@triton.jit
def _of_last_thread(v):
    """The last thread's value, for all threads. After a scan that is the total, and cheaper than a reduction."""
    return tl.gather(v, tl.full([v.shape[0]], v.shape[0] - 1, tl.int32), 0)


@triton.jit
def runs(same):
    """Runs of equal positions that cross threads; ``same`` says whether a point equals the point before it.

    Return, for every point, whether it is in one run with the last point of the thread before, and, for every thread,
    the thread in which the run that reaches it from the thread before begins.
    """
    connected = tl.associative_scan(same, 0, _both)
    thread = tl.arange(0, same.shape[1])
    begins = tl.where(_last(connected, False) != 0, 0, thread)
    return connected, _of_thread_before(tl.associative_scan(begins, 0, _larger))


@triton.jit
def _of_thread_before(v):
    """Each thread gets the value of the thread before it, the first thread 0."""
    thread = tl.arange(0, v.shape[0])
    return tl.where(thread > 0, tl.gather(v, tl.maximum(thread - 1, 0), 0), tl.zeros_like(v))


@triton.jit
def _both(same_1, same_2):
    return same_1 & same_2


@triton.jit
def _larger(one, two):
    return tl.maximum(one, two)


@triton.jit
def narrow_odd_sums(v, ties, tied, near, back_near, far, back_far, from_near, from_far):
    """For a narrow tile: the sum up to every point, the sum from it on, and the strict sum, the first without ties.

    The points come in the order in which the sources tied with a target lie before it. (If FIRST the tile is MIRRORED
    for that.) So the strict sum at a target is the sum before the first point of its run of equal positions. That sum
    is read from the scan. Subtracting the ties instead would leave a rounding error, and ties may be almost all of a
    sum. Two subtractions remain, both in float64: where a run of ties reaches into the next tile, and in the sum from a
    point on, which is the total minus a prefix sum.

    Sums up to a point are referred to the end named ``near``, of which ``near`` and ``back_near`` are to_end and back
    and ``from_near`` is the carry; sums from it on to the other end, ``far``.
    """
    same, tied_end, to_end, connected, begins = ties
    inner, inner_before = tl.associative_scan((v * near, tl.zeros_like(v)), 0, _add_but_last)
    far_inner = tl.cumsum((v * far).to(tl.float64), 0)
    total, far_total = _last(inner, False).to(tl.float64), _last(far_inner, False)
    sums, far_sums = tl.associative_scan((total, far_total), 0, _add_both)
    before = from_near + _of_thread_before(sums)
    onward = from_far + (_of_last_thread(far_sums) - _of_thread_before(far_sums))
    from_point = (onward[None, :] - (far_inner - (v * far).to(tl.float64))).to(v.dtype)
    _same, strict = tl.associative_scan((same, _plus(before, inner_before)), 0, _copy_if_same)
    of_run = tl.gather(_last(strict, False), begins, 0)
    strict = tl.where(connected != 0, of_run[None, :], strict)
    strict = tl.where(tied_end, (from_near - tied * to_end).to(v.dtype), strict)
    return _plus(before, inner) * back_near, from_point * back_far, strict * back_near


@triton.jit
def _copy_if_same(same_1, v_1, same_2, v_2):
    """Combine runs of equal positions: every point gets the value of the first point of its run."""
    return same_1 & same_2, tl.where(same_2 != 0, v_1, v_2)


@triton.jit
def _add_both(u_1, v_1, u_2, v_2):
    return u_1 + u_2, v_1 + v_2


@triton.jit
def _plus(outer, inner):
    """A thread's float64 number plus each of its points' numbers, of which the dtype may be float32.

    The float64 number is added as two float32 parts, so the result is rounded almost as if all were float64.
    """
    high = outer.to(inner.dtype)
    low = (outer - high.to(tl.float64)).to(inner.dtype)
    return (inner + high[None, :]) + low[None, :]


@triton.jit
def _last(v, REVERSE: tl.constexpr):
    """The value at the last of each thread's points, in the direction of the scan."""
    last = (tl.arange(0, v.shape[0]) == (0 if REVERSE else v.shape[0] - 1))[:, None]
    return tl.sum(tl.where(last, v, tl.zeros_like(v)), 0)


@triton.jit
def _add_but_last(v_1, before_1, v_2, before_2):
    """Combine inclusive and exclusive prefix sums. Nothing is subtracted, so a sum over no terms is exactly 0."""
    return v_1 + v_2, v_1 + before_2


@triton.jit
def _wide_sums(
    v, p, inside, ends, left, right, rate, EXACT: tl.constexpr, ODD: tl.constexpr, FIRST: tl.constexpr
):  # fmt: skip
    """The sums from the left and from the right at every point of a wide tile, and the ``units`` if ODD."""
    first, last, p_left, p_right = ends
    from_left, left_unit, left_tied_unit = windows(
        p, v, inside, first, p_left, left, rate, ODD and not FIRST, EXACT, False
    )
    from_right, right_unit, right_tied_unit = windows(
        -p, v, inside, -last, -p_right, right, rate, ODD and FIRST, EXACT, True
    )
    from_left += tl.where(left == left, 0.0, left).to(v.dtype)  # a fault: with a NaN for a start there is no window
    if FIRST:
        return from_left, from_right, right_unit, right_tied_unit
    else:
        return from_left, from_right, left_unit, left_tied_unit


@triton.jit
def _window(v, here, to_end, back, carried, REVERSE: tl.constexpr):
    """The sums up to each point of a window, and the sum at the window's end. ``carried`` is the carry at that end.

    A source decays on the way to the end, so no product overflows, and ``back`` only undoes the decay.
    """
    part = tl.where(here, v * to_end, 0.0)
    inner = tl.cumsum(part, 0, reverse=REVERSE)
    total = _last(inner, REVERSE).to(tl.float64)
    _sums, before = tl.associative_scan((total, tl.zeros_like(total)), 0, _add_but_last, reverse=REVERSE)
    return _plus(carried + before, inner) * back, carried + tl.sum(total, 0)


@triton.jit
def units(to_end, back, carried_decay):
    """The factors by which tied sources are contained in a sum: those of the tile, and those of a neighbouring tile.

    Both are 1 up to rounding errors. Ties are multiplied by these factors before they are subtracted from a sum, so
    that the rounding errors in the factors cancel.
    """
    return to_end * back, carried_decay.to(back.dtype) * back


@triton.jit
def windows(
    p, v, inside, start, carried_at, carried, rate, TIES: tl.constexpr, EXACT: tl.constexpr, REVERSE: tl.constexpr
):
    """The sums up to each point of a tile, and its ``units`` if TIES, window by window.

    p ascends in the direction of the scan: for sums from the right, all positions are negated. ``start`` is the first
    position, ``carried`` the carry, referred to the position ``carried_at``.
    """
    u = p.to(tl.float64)
    sums, unit, tied_unit = tl.zeros_like(v), tl.zeros_like(v), tl.zeros_like(v)
    LIMIT: tl.constexpr = NEAR_EXACT if EXACT else NEAR
    while start < INFINITY:
        here = inside & (u >= start) & ((u - start) * rate <= LIMIT)
        end = tl.max(tl.max(tl.where(here, u, -INFINITY), 1), 0)
        to_end, back = powers_of_two(u, end, rate, EXACT)  # without meaning, and not used, outside the window
        to_end, back = to_end.to(v.dtype), back.to(v.dtype)
        decay = decay_over(end - carried_at, rate, EXACT)
        window_sums, carried = _window(v, here, to_end, back, carried * decay, REVERSE)
        sums = tl.where(here, window_sums, sums)
        if TIES:
            window_unit, window_tied_unit = units(to_end, back, decay)
            unit, tied_unit = tl.where(here, window_unit, unit), tl.where(here, window_tied_unit, tied_unit)
        carried_at = end
        start = tl.min(tl.min(tl.where(inside & (u > end), u, INFINITY), 1), 0)
    return sums, unit, tied_unit


@triton.jit
def _add_if_same(same_1, v_1, but_last_1, before_1, same_2, v_2, but_last_2, before_2):
    """Combine sums over runs of equal positions, inclusive and exclusive.

    same, v: whether every point continues the run before it, and the sum over the run that ends with the last point.
    but_last, before: the same of all points but the last.
    """
    v = tl.where(same_2 != 0, v_1, 0.0) + v_2
    return same_1 & same_2, v, same_1 & but_last_2, tl.where(but_last_2 != 0, v_1, 0.0) + before_2


@triton.jit
def tie_sums(same, v, REVERSE: tl.constexpr):
    """The sum of v over each point's run of equal positions, up to the point, in the direction of the scan.

    ``same`` says whether a point equals the point before it in that direction. The additions come in the same sequence
    as in ``_window``, so that rounding errors cancel when the ties are subtracted from its sums.
    """
    none, one = tl.zeros_like(v), tl.full(v.shape, 1, tl.int32)
    connected, sums, _but_last, _before = tl.associative_scan((same, v, one, none), 0, _add_if_same, reverse=REVERSE)
    all_same, total = _last(connected, REVERSE), _last(sums, REVERSE).to(tl.float64)
    ones, nones = tl.full(total.shape, 1, tl.int32), tl.zeros_like(total)
    _same, _sums, _one, before = tl.associative_scan((all_same, total, ones, nones), 0, _add_if_same, reverse=REVERSE)
    joined = _plus(before, sums)
    return tl.where(connected != 0, joined, sums)
