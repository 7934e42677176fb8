"""Sums within a tile, (SERIAL, TILE / SERIAL) points: a thread's own as they are, and those of threads in float64."""

from __future__ import annotations

import triton
import triton.language as tl

from laplex._triton.points import INFINITY, NARROW, decay_over, powers_of_two

# Points that span no more powers of two are scanned with all sums at one position; float64 exponents must not round.
NEAR = tl.constexpr(100.0)
NEAR_EXACT = tl.constexpr(16.0)


@triton.jit
def ties_of_tile(
    p, same, first, last, p_left, p_right, rate, FIRST: tl.constexpr, STRICT: tl.constexpr, EXACT: tl.constexpr
):  # fmt: skip
    """What the odd sums of every row ask of a tile's ties: which points have the position of the one before them on the
    way to a target's tied sources, or of the end of the next tile there; how much of that end arrives; the runs."""
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
    """The sums of a row at a tile's points: all of it, and what lies right less what lies left, without ties."""
    STRICT: tl.constexpr = ODD and SPANS == "narrow"
    first, last, p_left, p_right = ends
    down, up, low, high = powers
    at_last, at_first, left, right, tied = carried
    to_last, from_last = up * low, down * high
    difference = tl.zeros_like(v)
    if STRICT and FIRST:
        from_right, from_left, strict = narrow_odd_sums(v, ties, tied, down, up, to_last, from_last, at_first, at_last)
        difference = strict - from_left
    elif STRICT:
        from_left, from_right, strict = narrow_odd_sums(v, ties, tied, to_last, from_last, down, up, at_last, at_first)
        difference = from_right - strict
    else:
        if SPANS == "narrow" or (SPANS == "all" and span <= NARROW):
            from_left, from_right = narrow_sums(v, down, up, to_last, from_last, at_last, at_first)
            if ODD:
                unit, tie = units(down, up, ties[2]) if FIRST else units(to_last, from_last, ties[2])
        else:
            from_left, left_unit, left_tie = windows(
                p, v, inside, first, p_left, left, rate, ODD and not FIRST, EXACT, False
            )
            from_right, right_unit, right_tie = windows(
                -p, v, inside, -last, -p_right, right, rate, ODD and FIRST, EXACT, True
            )
            from_left += tl.where(left == left, 0.0, left).to(v.dtype)  # a fault's NaN, which opens no window
            if ODD:
                unit, tie = (right_unit, right_tie) if FIRST else (left_unit, left_tie)
        if ODD:
            of_ties = tie_sums(ties[0], v, FIRST) * unit + tl.where(ties[1], tied.to(v.dtype) * tie, 0.0)
            difference = from_right - from_left + (-of_ties if FIRST else of_ties)
    return from_left + from_right, difference


@triton.jit
def narrow_sums(v, down, up, to_last, from_last, left, right):
    """The sums left and right of every point, it included, where all weights are about 1.

    What lies right is the whole without what lies left, so that no sum runs back. A thread's own points are summed as
    they are, and threads in float64.
    """
    behind = v * down
    left_inner, right_inner = tl.cumsum(v * to_last, 0), tl.cumsum(behind, 0)
    left_total, right_total = _last(left_inner, False).to(tl.float64), _last(right_inner, False).to(tl.float64)
    left_sums, right_sums = tl.associative_scan((left_total, right_total), 0, _add_both)
    from_left = _plus(left + (left_sums - left_total), left_inner) * from_last
    whole = right + _of_last_thread(right_sums)
    from_right = _plus(whole - (right_sums - right_total), behind - right_inner) * up
    return from_left, from_right


@triton.jit
def _of_last_thread(v):
    """For all of them: what it has of a scan is the sum, which another reduction would take as long for."""
    return tl.gather(v, tl.full([v.shape[0]], v.shape[0] - 1, tl.int32), 0)


@triton.jit
def runs(same):
    """Of runs of one position: whether a point is in one with the last of the thread before, and in which thread before
    each such a run begins. ``same``: as the point before it."""
    connected = tl.associative_scan(same, 0, _both)
    thread = tl.arange(0, same.shape[1])
    begins = tl.where(_last(connected, False) != 0, 0, thread)
    return connected, _of_thread_before(tl.associative_scan(begins, 0, _larger))


@triton.jit
def _of_thread_before(v):
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
    """The sums up to every point and from it on, and the first without ties, which may be all but everything.

    Points come in the order in which a target's tied sources come before it, all of them: the sum up to the first of
    them is strict. What is strict is never had by subtracting, but between threads, in float64.
    """
    same, tied_end, to_end, connected, begins = ties
    inner, but_last = tl.associative_scan((v * near, tl.zeros_like(v)), 0, _add_but_last)
    far_inner = tl.cumsum((v * far).to(tl.float64), 0)
    total, far_total = _last(inner, False).to(tl.float64), _last(far_inner, False)
    sums, far_sums = tl.associative_scan((total, far_total), 0, _add_both)
    before = from_near + _of_thread_before(sums)
    onward = from_far + (_of_last_thread(far_sums) - _of_thread_before(far_sums))
    from_there = (onward[None, :] - (far_inner - (v * far).to(tl.float64))).to(v.dtype)
    _same, strict = tl.associative_scan((same, _plus(before, but_last)), 0, _copy_if_same)
    of_run = tl.gather(_last(strict, False), begins, 0)
    strict = tl.where(connected != 0, of_run[None, :], strict)
    strict = tl.where(tied_end, (from_near - tied * to_end).to(v.dtype), strict)
    return _plus(before, inner) * back_near, from_there * back_far, strict * back_near


@triton.jit
def _copy_if_same(same_1, v_1, same_2, v_2):
    """Runs: the value that each begins with."""
    return same_1 & same_2, tl.where(same_2 != 0, v_1, v_2)


@triton.jit
def _add_both(u_1, v_1, u_2, v_2):
    return u_1 + u_2, v_1 + v_2


@triton.jit
def _plus(outer, inner):
    """A thread's float64 number and its points', rounded about as if all were float64: in two parts."""
    high = outer.to(inner.dtype)
    low = (outer - high.to(tl.float64)).to(inner.dtype)
    return (inner + high[None, :]) + low[None, :]


@triton.jit
def _last(v, REVERSE: tl.constexpr):
    """What a thread's points end with."""
    last = (tl.arange(0, v.shape[0]) == (0 if REVERSE else v.shape[0] - 1))[:, None]
    return tl.sum(tl.where(last, v, tl.zeros_like(v)), 0)


@triton.jit
def _add_but_last(v_1, before_1, v_2, before_2):
    """Sums, and sums without the last: subtracting it would leave a rest where nothing comes before."""
    return v_1 + v_2, v_1 + before_2


@triton.jit
def _window(v, here, to_end, back, carried, REVERSE: tl.constexpr):
    """Sums up to each point of a window, with what is carried to the window's end; and the sum there.

    A source is brought to the end, which decays it, and what is read at a target brought back: nothing overflows that
    should not.
    """
    part = tl.where(here, v * to_end, 0.0)
    inner = tl.cumsum(part, 0, reverse=REVERSE)
    total = _last(inner, REVERSE).to(tl.float64)
    _sums, before = tl.associative_scan((total, tl.zeros_like(total)), 0, _add_but_last, reverse=REVERSE)
    return _plus(carried + before, inner) * back, carried + tl.sum(total, 0)


@triton.jit
def units(to_end, back, low):
    """What is left of a tied source by there and back, rounded, and of one carried across ``low``."""
    return to_end * back, low.to(back.dtype) * back


@triton.jit
def windows(
    p, v, inside, start, carried_at, carried, rate, TIES: tl.constexpr, EXACT: tl.constexpr, REVERSE: tl.constexpr
):
    """The same for a tile too wide for one window, window by window in the direction of p."""
    u = p.to(tl.float64)
    sums, unit, tie = tl.zeros_like(v), tl.zeros_like(v), tl.zeros_like(v)
    LIMIT: tl.constexpr = NEAR_EXACT if EXACT else NEAR
    while start < INFINITY:
        here = inside & (u >= start) & ((u - start) * rate <= LIMIT)
        end = tl.max(tl.max(tl.where(here, u, -INFINITY), 1), 0)
        # Outside the window the powers have no meaning, and are not used.
        to_end, back = powers_of_two(u, end, rate, EXACT)
        to_end, back = to_end.to(v.dtype), back.to(v.dtype)
        decay = decay_over(end - carried_at, rate, EXACT)
        some, carried = _window(v, here, to_end, back, carried * decay, REVERSE)
        sums = tl.where(here, some, sums)
        if TIES:
            some_unit, some_tie = units(to_end, back, decay)
            unit, tie = tl.where(here, some_unit, unit), tl.where(here, some_tie, tie)
        carried_at = end
        start = tl.min(tl.min(tl.where(inside & (u > end), u, INFINITY), 1), 0)
    return sums, unit, tie


@triton.jit
def _add_if_same(same_1, v_1, but_last_1, before_1, same_2, v_2, but_last_2, before_2):
    """Runs of sums: whether all is one run, the last sum, whether all but the last is, and the sum before the last."""
    v = tl.where(same_2 != 0, v_1, 0.0) + v_2
    return same_1 & same_2, v, same_1 & but_last_2, tl.where(but_last_2 != 0, v_1, 0.0) + before_2


@triton.jit
def tie_sums(same, v, REVERSE: tl.constexpr):
    """Sums over runs of one position, up to each point; ``same``: as the point before it on the way.

    Rounded as in ``_window``, so that ties alone leave nothing.
    """
    none, one = tl.zeros_like(v), tl.full(v.shape, 1, tl.int32)
    connected, sums, _but_last, _before = tl.associative_scan((same, v, one, none), 0, _add_if_same, reverse=REVERSE)
    all_same, total = _last(connected, REVERSE), _last(sums, REVERSE).to(tl.float64)
    ones, nones = tl.full(total.shape, 1, tl.int32), tl.zeros_like(total)
    _same, _sums, _one, before = tl.associative_scan((all_same, total, ones, nones), 0, _add_if_same, reverse=REVERSE)
    joined = _plus(before, sums)
    return tl.where(connected != 0, joined, sums)
