"""Maps of chunks: how they compose, and what they do to a state. The package's docstring derives them."""

import triton
import triton.language as tl

from laplex._triton.states.matrices import (
    conjugated,
    conjugated_back,
    dot,
    entry,
    full,
    loaded_where,
    minus,
    plus,
    plus_outer,
    product,
    times,
    times_back,
    times_symmetric,
    unit,
    upper_product_back,
)


@triton.jit
def loaded_map(base, stride, inside, SIZE: tl.constexpr):
    """J, N, X, r and b of every lane; where not ``inside`` those of the map that changes nothing."""
    TRIANGLE: tl.constexpr = SIZE * (SIZE + 1) // 2
    j = loaded_where(base, stride, inside, SIZE * SIZE, SIZE)
    n = loaded_where(base + SIZE * SIZE * stride, stride, inside, TRIANGLE, 0)
    x = loaded_where(base + (SIZE * SIZE + TRIANGLE) * stride, stride, inside, TRIANGLE, 0)
    r = loaded_where(base + (SIZE * SIZE + 2 * TRIANGLE) * stride, stride, inside, SIZE, 0)
    b = loaded_where(base + (SIZE * SIZE + 2 * TRIANGLE + SIZE) * stride, stride, inside, SIZE, 0)
    return j, n, x, r, b


@triton.jit
def loaded_linear_map(base, stride, inside, SIZE: tl.constexpr):
    """J, N and r."""
    TRIANGLE: tl.constexpr = SIZE * (SIZE + 1) // 2
    j = loaded_where(base, stride, inside, SIZE * SIZE, SIZE)
    n = loaded_where(base + SIZE * SIZE * stride, stride, inside, TRIANGLE, 0)
    r = loaded_where(base + (SIZE * SIZE + 2 * TRIANGLE) * stride, stride, inside, SIZE, 0)
    return j, n, r


@triton.jit
def met(x, n, SIZE: tl.constexpr):
    """Y = X (I - N X)^-1, symmetric, and D = I + Y N.

    N = sum of v v^T, by Cholesky's method, and for one term after the other Y becomes Y + Y v v^T Y / (1 - v^T Y v). A
    pivot that is not positive is one of rounding errors: then nothing is left of N.
    """
    if SIZE == 1:
        over = 1.0 / (1.0 - n[0] * x[0])
        return (x[0] * over,), (over,)
    else:
        y, left = x, n
        for k in tl.static_range(SIZE):
            column = ()
            for i in tl.static_range(SIZE):
                column = column + ((entry(left, i, k, SIZE) if i >= k else tl.zeros_like(x[0])),)
            pivot = entry(left, k, k, SIZE)
            inverse = tl.where(pivot > 0.0, 1.0 / pivot, 0.0)
            yv = times_symmetric(y, column, SIZE, -1 << k)
            y = plus_outer(y, yv, inverse / (1.0 - dot(column, yv, SIZE, -1 << k) * inverse), SIZE)
            left = plus_outer(left, column, -inverse, SIZE)
        return y, plus(unit(x[0], SIZE), product(full(y, SIZE), full(n, SIZE), SIZE, -1), SIZE * SIZE)


@triton.jit
def moved(j, n, x, r, b, state, mean, SIZE: tl.constexpr):
    """A state (S, f) after a map."""
    y, d = met(state, n, SIZE)
    pushed = minus(times(d, mean, SIZE, -1), times_symmetric(y, r, SIZE, -1), SIZE)
    return plus(x, conjugated(j, y, SIZE, -1), SIZE * (SIZE + 1) // 2), plus(b, times(j, pushed, SIZE, -1), SIZE)


@triton.jit
def composed(j1, n1, x1, r1, b1, j2, n2, x2, r2, b2, SIZE: tl.constexpr):
    """The map that applies the first, then the second."""
    y, d = met(x1, n2, SIZE)
    k = product(d, j1, SIZE, -1)
    n2_k = product(full(n2, SIZE), k, SIZE, -1)
    n = plus(n1, upper_product_back(n2_k, j1, SIZE, -1), SIZE * (SIZE + 1) // 2)
    r = plus(r1, times_back(k, minus(r2, times_symmetric(n2, b1, SIZE, -1), SIZE), SIZE, -1), SIZE)
    pushed = minus(times(d, b1, SIZE, -1), times_symmetric(y, r2, SIZE, -1), SIZE)
    x = plus(x2, conjugated(j2, y, SIZE, -1), SIZE * (SIZE + 1) // 2)
    return product(j2, k, SIZE, -1), n, x, r, plus(b2, times(j2, pushed, SIZE, -1), SIZE)


@triton.jit
def gathered(j, n, r, later_n, later_r, SIZE: tl.constexpr):
    """N and r of a chunk and all that follows it, from those of what follows."""
    n = plus(n, conjugated_back(j, later_n, SIZE, -1), SIZE * (SIZE + 1) // 2)
    return n, plus(r, times_back(j, later_r, SIZE, -1), SIZE)
