"""Running sums over few points, which one program holds, and over tiles: each sum referred to its own position.

A sum is v, of exp(-u) x, or for tau's gradient a *state* (v, p) in float64, with the sum p of u exp(-u) x. Over a gap u
a state becomes exp(-u) (v, p + u v); ``laplex._scan`` derives it, under "Degree 1". A tied source has u = 0 and adds
nothing to p, so ties need no care. The code counts u in powers of two, as the rate does: its p is divided by ln 2.
"""

import triton
import triton.language as tl

from laplex._triton.points import decay_over, exponent_over

# The powers of two that tiles may span to be carried by a plain prefix sum, with all sums referred to one position.
# These are bounds on accuracy:
#   NEAR        unless EXACT, so x is float32. The weights 2^-800 and 2^800 leave 2^222 of the range of float64 for x,
#               which is below 2^128, and for the number of sources. The rounding of exponents, 800 * 2^-52, does not
#               count.
#   NEAR_EXACT  if EXACT, so x may be float64. The relative error of a weight is the absolute error of its exponent e,
#               about e * 2^-52: for 16 below 1e-14, the accuracy of a float64 product.
NEAR = tl.constexpr(800.0)
NEAR_EXACT = tl.constexpr(16.0)


@triton.jit
def carried_along(positions, v, inside, rate, EXACT: tl.constexpr):
    """Running sums of v, each referred to its own position: at s_i the sum of exp(-|s_i - s_j| / tau) v_j.

    Positions ascend or descend. Where not ``inside``, v must be 0, and the result has no meaning.
    """
    start = tl.sum(tl.where(tl.arange(0, positions.shape[0]) == 0, positions, 0.0), 0)
    exponent = tl.where(inside, tl.abs(positions - start) * rate, 0.0)
    if tl.max(exponent, 0) <= (NEAR_EXACT if EXACT else NEAR):
        decay = decay_over(exponent, 1.0, EXACT)
        sums = tl.cumsum(v / decay, 0) * decay
    else:
        rates = tl.zeros_like(positions) + rate
        if EXACT:
            _rates, _positions, sums = tl.associative_scan((rates, positions, v), 0, _add_decayed_exactly)
        else:
            _rates, _positions, sums = tl.associative_scan((rates, positions, v), 0, _add_decayed)
    return sums


@triton.jit
def _add_decayed(rate_1, s_1, v_1, rate_2, s_2, v_2):
    """Combine two neighbouring (position, sum) pairs, as ``laplex._scan`` derives. The rate is carried along."""
    return rate_2, s_2, v_1 * decay_over(tl.abs(s_1 - s_2), rate_2, False) + v_2


@triton.jit
def _add_decayed_exactly(rate_1, s_1, v_1, rate_2, s_2, v_2):
    """The same with EXACT decays: a scan's function takes no flags."""
    return rate_2, s_2, v_1 * decay_over(tl.abs(s_1 - s_2), rate_2, True) + v_2


@triton.jit
def add_if_tied(s_1, t_1, s_2, t_2):
    """Combine two neighbouring (position, sum of ties) pairs: the first sum counts if the positions are equal."""
    return s_2, tl.where(s_1 == s_2, t_1, 0.0) + t_2


@triton.jit
def carried_over(v, p, gap, rate, EXACT: tl.constexpr):
    """The state (v, p) after a gap: exp(-u) (v, p + u v)."""
    decay = decay_over(tl.abs(gap), rate, EXACT)
    return v * decay, (p + exponent_over(gap, rate) * v) * decay


@triton.jit
def _add_states(rate_1, at_1, v_1, p_1, rate_2, at_2, v_2, p_2):
    """Combine two neighbouring (position, v, p). The rate goes along as a constant."""
    v, p = carried_over(v_1, p_1, at_2 - at_1, rate_2, False)
    return rate_2, at_2, v + v_2, p + p_2


@triton.jit
def _add_states_exactly(rate_1, at_1, v_1, p_1, rate_2, at_2, v_2, p_2):
    """The same with EXACT decays: a scan's function takes no flags."""
    v, p = carried_over(v_1, p_1, at_2 - at_1, rate_2, True)
    return rate_2, at_2, v + v_2, p + p_2


@triton.jit
def running_states(positions, v, p, rate, EXACT: tl.constexpr, REVERSE: tl.constexpr):
    """The running states of (v, p) at positions in order: up to each point, and referred to it."""
    rates = tl.zeros_like(positions) + rate
    if EXACT:
        _rates, _positions, v, p = tl.associative_scan(
            (rates, positions, v, p), 0, _add_states_exactly, reverse=REVERSE
        )
    else:
        _rates, _positions, v, p = tl.associative_scan((rates, positions, v, p), 0, _add_states, reverse=REVERSE)
    return v, p
