"""Loads and stores of several rows of x or y at once.

x is (batch, m, k), and all m rows are multiplied by the same matrix. In the layout "rows adjacent" the m values of one
column lie next to each other in memory, so a gather of one point fetches ROWS_AT_ONCE = 4 rows in one access. A gather
of 16 bytes takes as long as one of 4 bytes.
"""

import triton
import triton.language as tl

from laplex._triton.points import flat, load_points
from laplex._triton.program import program

ROWS_IN_LINE = tl.constexpr(4)  # a line, the adjacent rows of a point in our own copies, is a multiple of so many


@triton.jit
def lines_at(x, index, row, row_stride, col_stride, LINES: tl.constexpr):
    """Addresses (points, rows) of x at columns ``index`` (points,) and rows ``row`` (rows,).

    LINES: the rows of a point are a line, which is aligned, so that vectors are loaded and stored.
    """
    index = index[:, None].to(tl.int64)
    if LINES:
        offset = index * (col_stride // ROWS_IN_LINE * ROWS_IN_LINE) + row[None, :]
        return tl.multiple_of(x + offset, (1, ROWS_IN_LINE * x.dtype.element_ty.primitive_bitwidth // 8))
    else:
        return x + index * col_stride + row[None, :].to(tl.int64) * row_stride


@triton.jit
def rows_in_memory(m, LINES: tl.constexpr):
    """How many rows may be accessed; what lies in the rest of a line means nothing."""
    return tl.cdiv(m, ROWS_IN_LINE) * ROWS_IN_LINE if LINES else m


@program(numbers="m", callers=("x", "y"))
def copy_program(
    x, y, m, size, x_batch, x_row, x_col, y_batch, y_row, y_col,
    X_LINES: tl.constexpr, Y_LINES: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr,
):  # fmt: skip
    """Copy x (batch, m, size) to y, which has other strides: a transpose in memory."""
    batch = tl.program_id(2).to(tl.int64)
    col = tl.program_id(0).to(tl.int64) * WIDTH + tl.arange(0, WIDTH)
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    mask = (col < size)[:, None] & (row < rows_in_memory(m, X_LINES))[None, :]
    v = tl.load(lines_at(x + batch * x_batch, col, row, x_row, x_col, X_LINES), mask=mask, other=0.0)
    mask = (col < size)[:, None] & (row < rows_in_memory(m, Y_LINES))[None, :]
    tl.store(lines_at(y + batch * y_batch, col, row, y_row, y_col, Y_LINES), v, mask=mask)


@triton.jit
def load_rows(x, row, index, mask, row_stride, stride, ROWS_AT_ONCE: tl.constexpr, CONTIGUOUS: tl.constexpr):
    """A tuple of ROWS_AT_ONCE rows of x, from ``row`` on, each at the indices of a tile's points; 0 where not ``mask``.

    With ROWS_AT_ONCE = 4 the rows must be adjacent in memory. With 1, CONTIGUOUS is as in ``load_points``.
    """
    if ROWS_AT_ONCE == 1:
        return (load_points(x + (tl.zeros([], tl.int64) + row) * row_stride, index * stride, mask, CONTIGUOUS),)
    else:
        tl.static_assert(ROWS_AT_ONCE == 4)
        loaded = tl.load(_adjacent_rows(x, row, index, stride, ROWS_AT_ONCE), mask=flat(mask)[:, None], other=0.0)
        rows_0_2, rows_1_3 = tl.split(tl.reshape(loaded, [index.numel, 2, 2]))
        row_0, row_2 = tl.split(rows_0_2)
        row_1, row_3 = tl.split(rows_1_3)
        return (
            tl.reshape(row_0, index.shape),
            tl.reshape(row_1, index.shape),
            tl.reshape(row_2, index.shape),
            tl.reshape(row_3, index.shape),
        )


@triton.jit
def store_rows(y, row, index, rows, mask, row_stride, stride, ROWS_AT_ONCE: tl.constexpr, CONTIGUOUS: tl.constexpr):
    """Store a tuple of rows: the inverse of :func:`load_rows`."""
    if ROWS_AT_ONCE == 1 and CONTIGUOUS:
        tl.store(y + (tl.zeros([], tl.int64) + row) * row_stride + index * stride, rows[0], mask=mask)
    elif ROWS_AT_ONCE == 1:
        y += (tl.zeros([], tl.int64) + row) * row_stride
        tl.store(y + flat(index * stride), flat(rows[0]), mask=flat(mask))
    else:
        rows_0_2, rows_1_3 = tl.join(flat(rows[0]), flat(rows[2])), tl.join(flat(rows[1]), flat(rows[3]))
        joined = tl.reshape(tl.join(rows_0_2, rows_1_3), [index.numel, ROWS_AT_ONCE])
        tl.store(_adjacent_rows(y, row, index, stride, ROWS_AT_ONCE), joined, mask=flat(mask)[:, None])


@triton.jit
def _adjacent_rows(x, row, index, stride, ROWS_AT_ONCE: tl.constexpr):
    """Addresses (points, ROWS_AT_ONCE) of adjacent rows, marked as aligned so that one access fetches a point's rows.

    The alignment holds because these tensors are our own copies: their stride is a multiple of ROWS_AT_ONCE.
    """
    offset = (flat(index) * (stride // ROWS_AT_ONCE) * ROWS_AT_ONCE + row)[:, None] + tl.arange(0, ROWS_AT_ONCE)
    return tl.multiple_of(x + offset, (1, ROWS_AT_ONCE * x.dtype.element_ty.primitive_bitwidth // 8))
