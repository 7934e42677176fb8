"""Rows of x and y side by side, so that one access is for several: a gather takes as long for 16 bytes as for 4."""

from __future__ import annotations

import triton
import triton.language as tl

from laplex._triton.points import flat, load_points


@triton.jit(do_not_specialize_on_alignment=["x", "y"])
def copy_program(
    x, y, m, size, x_batch, x_row, x_col, y_batch, y_row, y_col,
    WIDTH: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """A copy in another layout: rows of numbers side by side to rows side by side, or back."""
    batch = tl.program_id(2).to(tl.int64)
    at = (tl.program_id(0).to(tl.int64) * WIDTH + tl.arange(0, WIDTH))[:, None]
    row = (tl.program_id(1) * ROWS + tl.arange(0, ROWS)).to(tl.int64)[None, :]
    both = (at < size) & (row < m)
    v = tl.load(x + batch * x_batch + row * x_row + at * x_col, mask=both, other=0.0)
    tl.store(y + batch * y_batch + row * y_row + at * y_col, v, mask=both)


@triton.jit
def load_rows(x, row, at, known, row_step, step, SIDE: tl.constexpr, IN_TURN: tl.constexpr):
    """SIDE rows of x from ``row`` on, at the places of a tile: a tuple. Those of several lie side by side.

    IN_TURN: a thread's places are neighbours there.
    """
    if SIDE == 1:
        return (load_points(x + (tl.zeros([], tl.int64) + row) * row_step, at * step, known, IN_TURN),)
    else:
        tl.static_assert(SIDE == 4)
        asked = flat(known)[:, None]
        both = tl.load(_side_by_side(x, row, at, step, SIDE), mask=asked, other=0.0)
        even, odd = tl.split(tl.reshape(both, [at.numel, 2, 2]))
        first, third = tl.split(even)
        second, fourth = tl.split(odd)
        return (
            tl.reshape(first, at.shape),
            tl.reshape(second, at.shape),
            tl.reshape(third, at.shape),
            tl.reshape(fourth, at.shape),
        )


@triton.jit
def store_rows(y, row, at, rows, known, row_step, step, SIDE: tl.constexpr, IN_TURN: tl.constexpr):
    """The reverse of :func:`load_rows`."""
    if SIDE == 1 and IN_TURN:
        tl.store(y + (tl.zeros([], tl.int64) + row) * row_step + at * step, rows[0], mask=known)
    elif SIDE == 1:
        y += (tl.zeros([], tl.int64) + row) * row_step
        tl.store(y + flat(at * step), flat(rows[0]), mask=flat(known))
    else:
        asked = flat(known)[:, None]
        even, odd = tl.join(flat(rows[0]), flat(rows[2])), tl.join(flat(rows[1]), flat(rows[3]))
        both = tl.reshape(tl.join(even, odd), [at.numel, SIDE])
        tl.store(_side_by_side(y, row, at, step, SIDE), both, mask=asked)


@triton.jit
def _side_by_side(x, row, at, step, SIDE: tl.constexpr):
    """Addresses of SIDE rows, told to be aligned to all of them: what is side by side is our own."""
    offset = (flat(at) * (step // SIDE) * SIDE + row)[:, None] + tl.arange(0, SIDE)
    return tl.multiple_of(x + offset, (1, SIDE * x.dtype.element_ty.primitive_bitwidth // 8))
