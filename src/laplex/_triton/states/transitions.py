"""Transitions Phi of blocks with one to three states, which ``laplex._states`` defines, and their derivatives.

A block has as many *parts*, numbers that determine its Phi, as it has states:

    kind 1    e^(-aD)
    kind 2    e^(-aD) times C and S
    kind 3    e^(-aD) times 1, D and D^2 / 2

A kernel of one state has two: rho = e^(-aD) and kappa = 1 - rho^2. Byte i of LAYOUT describes block i: two bits hold
its kind, the next four its first state.
"""

import triton
import triton.language as tl

from laplex._triton.states.matrices import entry

SMALL = tl.constexpr(1.0)  # of |b D^2|: up to here C and S are power series, which have all digits after ten terms
LITTLE = tl.constexpr(0.5)  # of 2 a D: up to here 1 - rho^2 is a power series


@triton.jit
def small_angle(x):
    """For |x| <= 1: C, S / D and (dS/db) / D^3 with x = b D^2.

    C = 1 - x / (1 2) (1 - x / (3 4) (1 - ...)), and so on. Coefficients must be known when the program is compiled: as
    variables they would be float32.
    """
    c, s, slope = tl.zeros_like(x) + 1.0, tl.zeros_like(x) + 1.0, tl.zeros_like(x) + 1.0
    for i in tl.static_range(9):  # k = 9 - i
        c = 1.0 - x * c * (1.0 / ((17 - 2 * i) * (18 - 2 * i)))
        s = 1.0 - x * s * (1.0 / ((18 - 2 * i) * (19 - 2 * i)))
        if i > 0:
            slope = 1.0 - x * slope * (1.0 / ((18 - 2 * i) * (21 - 2 * i)))
    return c, s, slope * (-1.0 / 6.0)


@triton.jit
def damped(gap, a, b):
    """e^(-aD) times C, S and dS/db."""
    rho, x = tl.exp(-a * gap), b * gap * gap
    near = tl.abs(x) <= SMALL
    c, s, slope = small_angle(tl.where(near, x, 0.0))
    w = tl.where(near, 1.0, tl.sqrt(tl.abs(b)))
    angle = tl.where(near, 0.0, w * gap)
    slow, fast = tl.exp(tl.where(near, 0.0, (w - a) * gap)), tl.exp(-(a + w) * gap)
    above = b > 0.0
    c_far = tl.where(above, rho * tl.cos(angle), 0.5 * (slow + fast))
    s_far = tl.where(above, rho * tl.sin(angle), 0.5 * (slow - fast)) / w
    c, s = tl.where(near, rho * c, c_far), tl.where(near, rho * gap * s, s_far)
    slope = tl.where(near, rho * gap * (gap * gap) * slope, (gap * c - s) / tl.where(near, 1.0, 2.0 * b))
    return c, s, slope


@triton.jit
def parts_of_block(gap, a, b, KIND: tl.constexpr):
    """The parts of one block of a sum."""
    if KIND == 2:
        c, s, _slope = damped(gap, a, b)
        return c, s
    else:
        rho = tl.exp(-a * gap)
        if KIND == 1:
            return (rho,)
        else:
            return rho, rho * gap, 0.5 * (rho * gap) * gap


@triton.jit
def parts_of_one_state(gap, a):
    """rho and kappa, which has all its digits."""
    u = 2.0 * a * gap
    x = tl.minimum(u, LITTLE)
    power = tl.zeros_like(x) + 1.0
    for i in tl.static_range(14):  # 1 - e^-x = x (1 - x / 2 (1 - x / 3 (1 - ...)))
        power = 1.0 - x * power * (1.0 / (15 - i))
    return tl.exp(-a * gap), tl.where(u <= LITTLE, x * power, 1.0 - tl.exp(-u))


@triton.jit
def entry_of_block(parts, square, KIND: tl.constexpr, FIRST: tl.constexpr, ROW: tl.constexpr, COL: tl.constexpr):
    """An entry of Phi within a block."""
    if KIND == 2:
        if ROW == COL:
            return parts[FIRST]
        else:
            if ROW < COL:
                return parts[FIRST + 1]
            else:
                return -square * parts[FIRST + 1]
    else:
        if ROW <= COL:
            return parts[FIRST + COL - ROW]
        else:
            return tl.zeros_like(parts[FIRST])


@triton.jit
def rows_of_block(parts, square, KIND: tl.constexpr, FIRST: tl.constexpr, SIZE: tl.constexpr):
    """The rows of Phi that belong to a block."""
    values = ()
    for row in tl.static_range(KIND):
        for col in tl.static_range(SIZE):
            if col >= FIRST and col < FIRST + KIND:
                values = values + (entry_of_block(parts, square, KIND, FIRST, row, col - FIRST),)
            else:
                values = values + (tl.zeros_like(parts[0]),)
    return values


@triton.jit
def transition(parts, squares, LAYOUT: tl.constexpr, BLOCKS: tl.constexpr, SIZE: tl.constexpr):
    """Phi."""
    values = ()
    for i in tl.static_range(BLOCKS):
        values = values + rows_of_block(parts, squares[i], (LAYOUT >> (8 * i)) & 3, (LAYOUT >> (8 * i + 2)) & 15, SIZE)
    return values


@triton.jit
def moment(state_bar, mean_bar, state, mean, ROW: tl.constexpr, COL: tl.constexpr, SIZE: tl.constexpr):
    """Entry (ROW, COL) of 2 S_bar S + f_bar f^T; ``state`` has all entries of S, or of another matrix."""
    value = tl.zeros_like(mean[0])
    for k in tl.static_range(SIZE):
        value += entry(state_bar, ROW, k, SIZE) * state[k * SIZE + COL]
    return 2.0 * value + mean_bar[ROW] * mean[COL]


@triton.jit
def bars_of_block(
    gap, a, b, state_bar, mean_bar, state, mean, pushed, before,
    KIND: tl.constexpr, FIRST: tl.constexpr, SIZE: tl.constexpr,
):  # fmt: skip
    """The gradients of a step in a, b and D, from those of S and f after it; csrc/states_pullback.cpp derives them.

    ``state`` and ``mean`` are S and f after the step, ``pushed`` is Phi times S before it, and ``before`` f before it.
    """
    if KIND == 2:
        c, s, slope = damped(gap, a, b)
        bar_10 = moment(state_bar, mean_bar, pushed, before, FIRST + 1, FIRST, SIZE)
        c_bar = moment(state_bar, mean_bar, pushed, before, FIRST, FIRST, SIZE)
        c_bar += moment(state_bar, mean_bar, pushed, before, FIRST + 1, FIRST + 1, SIZE)
        s_bar = moment(state_bar, mean_bar, pushed, before, FIRST, FIRST + 1, SIZE) - b * bar_10
        a_bar = -gap * (c * c_bar + s * s_bar)
        b_bar = slope * s_bar - s * (0.5 * gap * c_bar + bar_10)
        return a_bar, b_bar, (c - a * s) * s_bar - (a * c + b * s) * c_bar
    else:
        trace, above = tl.zeros_like(gap), tl.zeros_like(gap)
        for i in tl.static_range(KIND):
            trace += moment(state_bar, mean_bar, state, mean, FIRST + i, FIRST + i, SIZE)
        for i in tl.static_range(KIND - 1):
            above += moment(state_bar, mean_bar, state, mean, FIRST + i, FIRST + i + 1, SIZE)
        return -gap * trace, tl.zeros_like(gap), above - a * trace
