"""Vectors and matrices of few numbers, as tuples of blocks with one number per lane.

A matrix (SIZE, SIZE) is a tuple of its rows, one after the other; a symmetric one a tuple of its upper triangle. Bit
SIZE i + j of MASK says whether entry (i, j) of a matrix may differ from 0; those of -1 all may. Loops are unrolled.
"""

import triton
import triton.language as tl


@triton.jit
def loaded(base, stride, COUNT: tl.constexpr):
    """COUNT numbers of every lane, ``stride`` apart."""
    values = ()
    for i in tl.static_range(COUNT):
        values = values + (tl.load(base + i * stride),)
    return values


@triton.jit
def loaded_where(base, stride, inside, COUNT: tl.constexpr, DIAGONAL: tl.constexpr):
    """The same, and where not ``inside`` the unit matrix of DIAGONAL rows, or 0 if that is 0."""
    values = ()
    for i in tl.static_range(COUNT):
        if DIAGONAL > 0 and i % (DIAGONAL + 1) == 0:
            values = values + (tl.load(base + i * stride, mask=inside, other=1.0),)
        else:
            values = values + (tl.load(base + i * stride, mask=inside, other=0.0),)
    return values


@triton.jit
def stored(base, stride, values, inside, COUNT: tl.constexpr):
    """Write COUNT numbers of every lane."""
    for i in tl.static_range(COUNT):
        tl.store(base + i * stride, values[i], mask=inside)


@triton.jit
def constants(like, value, COUNT: tl.constexpr):
    """COUNT times the same number, as a vector."""
    values = ()
    for _ in tl.static_range(COUNT):
        values = values + (tl.zeros_like(like) + value,)
    return values


@triton.jit
def unit(like, SIZE: tl.constexpr):
    """The unit matrix."""
    values = ()
    for i in tl.static_range(SIZE * SIZE):
        values = values + (tl.zeros_like(like) + (1.0 if i % (SIZE + 1) == 0 else 0.0),)
    return values


@triton.jit
def entry(x, ROW: tl.constexpr, COL: tl.constexpr, SIZE: tl.constexpr):
    """Entry (ROW, COL) of a symmetric matrix."""
    if ROW <= COL:
        return x[ROW * (2 * SIZE - ROW + 1) // 2 + COL - ROW]
    else:
        return x[COL * (2 * SIZE - COL + 1) // 2 + ROW - COL]


@triton.jit
def plus(x, y, COUNT: tl.constexpr):
    """x + y."""
    values = ()
    for i in tl.static_range(COUNT):
        values = values + (x[i] + y[i],)
    return values


@triton.jit
def minus(x, y, COUNT: tl.constexpr):
    """x - y."""
    values = ()
    for i in tl.static_range(COUNT):
        values = values + (x[i] - y[i],)
    return values


@triton.jit
def plus_scaled(x, y, scale, COUNT: tl.constexpr):
    """x + y scale."""
    values = ()
    for i in tl.static_range(COUNT):
        values = values + (x[i] + y[i] * scale,)
    return values


@triton.jit
def scaled(x, scale, COUNT: tl.constexpr):
    """x scale."""
    values = ()
    for i in tl.static_range(COUNT):
        values = values + (x[i] * scale,)
    return values


@triton.jit
def dot(x, y, SIZE: tl.constexpr, MASK: tl.constexpr):
    """x^T y, where bit i of MASK says whether x_i may differ from 0."""
    value = tl.zeros_like(y[0])
    for i in tl.static_range(SIZE):
        if (MASK >> i) & 1:
            value += x[i] * y[i]
    return value


@triton.jit
def plus_outer(x, v, scale, SIZE: tl.constexpr):
    """x + v v^T scale, for a symmetric x."""
    values = ()
    for i in tl.static_range(SIZE):
        scaled = v[i] * scale
        for j in tl.static_range(i, SIZE):
            values = values + (entry(x, i, j, SIZE) + scaled * v[j],)
    return values


@triton.jit
def times(m, x, SIZE: tl.constexpr, MASK: tl.constexpr):
    """m x, for a vector x."""
    values = ()
    for i in tl.static_range(SIZE):
        value = tl.zeros_like(x[0])
        for j in tl.static_range(SIZE):
            if (MASK >> (i * SIZE + j)) & 1:
                value += m[i * SIZE + j] * x[j]
        values = values + (value,)
    return values


@triton.jit
def times_back(m, x, SIZE: tl.constexpr, MASK: tl.constexpr):
    """m^T x, for a vector x."""
    values = ()
    for i in tl.static_range(SIZE):
        value = tl.zeros_like(x[0])
        for j in tl.static_range(SIZE):
            if (MASK >> (j * SIZE + i)) & 1:
                value += m[j * SIZE + i] * x[j]
        values = values + (value,)
    return values


@triton.jit
def times_symmetric(x, v, SIZE: tl.constexpr, MASK: tl.constexpr):
    """x v, for a symmetric x, where bit i of MASK says whether v_i may differ from 0."""
    values = ()
    for i in tl.static_range(SIZE):
        value = tl.zeros_like(x[0])
        for j in tl.static_range(SIZE):
            if (MASK >> j) & 1:
                value += entry(x, i, j, SIZE) * v[j]
        values = values + (value,)
    return values


@triton.jit
def product(m, x, SIZE: tl.constexpr, MASK: tl.constexpr):
    """m x, for matrices; MASK is that of m."""
    values = ()
    for i in tl.static_range(SIZE):
        for j in tl.static_range(SIZE):
            value = tl.zeros_like(x[0])
            for k in tl.static_range(SIZE):
                if (MASK >> (i * SIZE + k)) & 1:
                    value += m[i * SIZE + k] * x[k * SIZE + j]
            values = values + (value,)
    return values


@triton.jit
def full(x, SIZE: tl.constexpr):
    """A symmetric matrix with all its entries."""
    values = ()
    for i in tl.static_range(SIZE):
        for j in tl.static_range(SIZE):
            values = values + (entry(x, i, j, SIZE),)
    return values


@triton.jit
def upper_product(m, x, SIZE: tl.constexpr, MASK: tl.constexpr):
    """m x^T, known to be symmetric; MASK is that of x."""
    values = ()
    for i in tl.static_range(SIZE):
        for j in tl.static_range(i, SIZE):
            value = tl.zeros_like(m[0])
            for k in tl.static_range(SIZE):
                if (MASK >> (j * SIZE + k)) & 1:
                    value += m[i * SIZE + k] * x[j * SIZE + k]
            values = values + (value,)
    return values


@triton.jit
def upper_product_back(m, x, SIZE: tl.constexpr, MASK: tl.constexpr):
    """x^T m, known to be symmetric; MASK is that of x."""
    values = ()
    for i in tl.static_range(SIZE):
        for j in tl.static_range(i, SIZE):
            value = tl.zeros_like(m[0])
            for k in tl.static_range(SIZE):
                if (MASK >> (k * SIZE + i)) & 1:
                    value += x[k * SIZE + i] * m[k * SIZE + j]
            values = values + (value,)
    return values


@triton.jit
def conjugated(m, x, SIZE: tl.constexpr, MASK: tl.constexpr):
    """m x m^T, for a symmetric x."""
    return upper_product(product(m, full(x, SIZE), SIZE, MASK), m, SIZE, MASK)


@triton.jit
def conjugated_back(m, x, SIZE: tl.constexpr, MASK: tl.constexpr):
    """m^T x m, for a symmetric x."""
    every = full(x, SIZE)
    values = ()
    for i in tl.static_range(SIZE):  # x m
        for j in tl.static_range(SIZE):
            value = tl.zeros_like(x[0])
            for k in tl.static_range(SIZE):
                if (MASK >> (k * SIZE + j)) & 1:
                    value += every[i * SIZE + k] * m[k * SIZE + j]
            values = values + (value,)
    return upper_product_back(values, m, SIZE, MASK)
