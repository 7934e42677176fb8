"""The operators in C++ (csrc/kernels_solve*.cpp): one walk over the points, in O(n r^3). Results are written in place.

The compiled core takes addresses of contiguous arrays; this file makes them contiguous.
"""

from __future__ import annotations

import torch
from torch import Tensor

from laplex._checks.core import core_fault
from laplex._compiled import core
from laplex._quasisep.arrays import BLOCK, Chain, ChainBars, MatrixBars, Pivots, Quasiseparable


def factor(matrix: Quasiseparable, pivots: Pivots) -> None:
    """A = L diag(d) L^T."""
    arrays = _contiguous(*matrix)
    core.factor(*_addresses(*arrays, *pivots), *matrix.p.shape[:2], *_sizes(matrix))


def factor_pullback(chain: Chain, d: Tensor, states: Tensor, d_bar: Tensor, z_bar: Tensor, bars: MatrixBars) -> None:
    """The gradients of what A is made of, from those of d and z."""
    decay, p, z, mass = chain
    arrays = _contiguous(decay, p, mass, d, z, states, d_bar, z_bar)
    core.factor_pullback(*_addresses(*arrays, *bars), *p.shape[:2], *_sizes(chain))


def sweep(chain: Chain, x: Tensor, y: Tensor, *, transposed: bool, inverse: bool) -> None:
    """y = L x, L^T x, L^-1 x or L^-T x, for x (h, n, m)."""
    _sweep(Chain(*_contiguous(*chain)), 0, 0, x.contiguous(), y, transposed, inverse)


def solve(chain: Chain, d: Tensor, order: Tensor, y: Tensor, x: Tensor) -> None:
    """x = L^-T diag(d)^-1 L^-1 y, for y and x (h, n, m) in the caller's order."""
    chain, (d, order, y) = Chain(*_contiguous(*chain)), _contiguous(d, order, y)
    inner = torch.empty_like(y)
    _sweep(chain, order.data_ptr(), 0, y, inner, transposed=False, inverse=True)
    _sweep(chain, order.data_ptr(), d.data_ptr(), inner, x, transposed=True, inverse=True)


def sweep_pullback(chain: Chain, left: Tensor, right: Tensor, bars: ChainBars) -> None:
    """The gradients of the sum over i > j, and over columns, of left_i L_ij right_j, for left and right (h, n, m)."""
    arrays = _contiguous(*chain, left, right)
    status = core.sweep_pullback(*_addresses(*arrays, *bars), *left.shape, *_sizes(chain))
    if status:
        core_fault("laplex", status)


def _sweep(chain: Chain, order: int, divisor: int, x: Tensor, y: Tensor, transposed: bool, inverse: bool) -> None:
    """The sweep of contiguous arrays; order and divisor are addresses, or 0 for none."""
    r, block, threads = _sizes(chain)
    operands = *_addresses(*chain), order, divisor, *_addresses(x, y)
    core.sweep(*operands, *x.shape, r, block, transposed, inverse, threads)


def _contiguous(*tensors: Tensor) -> list[Tensor]:
    return [tensor.contiguous() for tensor in tensors]


def _addresses(*tensors: Tensor) -> list[int]:
    """The addresses; 0 for a tensor without elements, which the core neither reads nor writes."""
    return [tensor.data_ptr() for tensor in tensors]


def _sizes(arrays: Quasiseparable | Chain) -> tuple[int, int, int]:
    """r, the number of rows of W, and the number of threads."""
    return arrays.p.shape[-1], BLOCK[arrays.mass.shape[-1]], torch.get_num_threads()
