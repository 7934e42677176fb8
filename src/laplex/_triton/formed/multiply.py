"""Products of matrices on the GPU whose float32 sums are as exact as their terms.

A GPU with matrix units for float64 multiplies in float64 at least as fast as in float32. But for torch's product
operands and results have to be converted, and for a small product each conversion takes longer than the product. So
torch multiplies large products, and the matrix is written in float64 at once; a program of our own multiplies small
ones (``programs_multiply``), and all where there are no such units.

Callers who allow TF32 (``torch.set_float32_matmul_precision``) ask for speed, not digits, and get torch's product.
"""

from __future__ import annotations

import torch
from torch import Tensor

from laplex._precision import allows_tf32
from laplex._triton import tuning
from laplex._triton.formed.programs_multiply import multiply_program
from laplex._triton.launch import launch
from laplex._triton.precision import multiplies_doubles
from laplex._triton.recording import call


def entries_dtype(dtype: torch.dtype, device: torch.device, multiplications: int) -> torch.dtype:
    """The dtype in which a matrix for an x of this dtype is written; a float64 matrix is multiplied in float64."""
    if dtype != torch.float32 or multiplications < tuning.MULTIPLY_DOUBLES or not multiplies_doubles(device):
        return dtype
    return torch.float32 if allows_tf32() else torch.float64


def multiply(x: Tensor, matrix: Tensor, bias: Tensor | None = None) -> Tensor:
    """x W^T for x (..., k) and W (n, k), as a step that can be replayed; or for x (h, m, k) and W (h, n, k).

    A single W may have a ``bias`` (n,), which is added.
    """
    if matrix.dim() == 3:
        return matmul(x, matrix.mT, x.dtype)
    n, k = matrix.shape
    y = x.new_empty((*x.shape[:-1], n))
    rows, out = x.reshape(-1, k), y.view(-1, n)
    if x.dtype == torch.float32 == matrix.dtype and not allows_tf32():
        _multiply(rows[None], matrix.t()[None], out[None], bias=bias)
    else:
        call(_times_transposed, rows, matrix, *(() if bias is None else (bias,)), out=(out,))
    return y


def matmul(left: Tensor, right: Tensor, dtype: torch.dtype) -> Tensor:
    """left (m, l) times right (l, n), or the same for batches (h, m, l) and (h, l, n), in this dtype.

    It is computed in float64 if the matrix, or its gradient that is computed here, is float64.
    """
    if torch.float64 in (right.dtype, dtype):
        return torch.matmul(left.double(), right.double()).to(dtype)
    if left.dtype == torch.float32 and not allows_tf32():
        out = left.new_empty((*left.shape[:-1], right.shape[-1]))
        batches = (left, right, out) if out.dim() == 3 else (left[None], right[None], out[None])
        _multiply(*batches)
        return out
    product = torch.bmm if left.dim() == 3 else torch.mm
    if left.is_cuda and left.dtype.itemsize < 4 and dtype == torch.float32:  # torch sums half precision in float32
        return product(left, right, out_dtype=dtype)
    return product(left, right).to(dtype)


def _times_transposed(x: Tensor, matrix: Tensor, bias: Tensor | None = None, *, out: Tensor) -> None:
    """Fill ``out`` with x W^T + bias. It takes W itself: a replay makes views by their shape, and so no transpose."""
    rows = x if x.dtype == matrix.dtype else x.to(matrix.dtype)
    into = out if out.dtype == matrix.dtype else None
    if bias is None:
        product = torch.mm(rows, matrix.t(), out=into)
    else:
        product = torch.addmm(bias.to(matrix.dtype), rows, matrix.t(), out=into)
    if into is None:
        out.copy_(product)


def _multiply(left: Tensor, right: Tensor, out: Tensor, *, bias: Tensor | None = None) -> None:
    """out (h, m, n) = left (h, m, l) right (h, l, n) + bias (n,), all float32."""
    (h, m, length), n = left.shape, right.shape[-1]
    (left, left_stride, left_adjacent), (lines, right_stride, right_adjacent) = _lines(left), _lines(right.mT)
    small, large = tuning.MULTIPLY_TILES
    few = h * m * n < tuning.MULTIPLY_MANY * large[0] * large[1]
    (rows, cols), warps = (small if few else large), tuning.MULTIPLY_WARPS[0 if few else 1]
    grid = h * -(-m // rows) * -(-n // cols), 1, 1
    numbers = m, n, length, left_stride, right_stride, left.stride(0), lines.stride(0)
    doubles = multiplies_doubles(out.device)
    terms = tuning.MULTIPLY_TERMS[doubles]
    flags = left_adjacent, right_adjacent, doubles, bias is not None, rows, cols, terms
    tensors = left, lines, out if bias is None else bias, out
    launch(multiply_program, grid, tensors, numbers, flags, warps)


def _lines(matrix: Tensor) -> tuple[Tensor, int, bool]:
    """A matrix (h, lines, l) in memory, its stride that is not 1, and whether the terms of a line are adjacent."""
    if matrix.stride(2) == 1:
        return matrix, matrix.stride(1), True
    if matrix.stride(1) == 1:
        return matrix, matrix.stride(2), False
    return matrix.contiguous(), matrix.shape[2], True
