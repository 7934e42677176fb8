"""Quasiseparable factors in C++ (csrc/kernels_solve*.cpp), called with addresses. Results are written in place."""

from __future__ import annotations

import torch
from torch import Tensor

from laplex._compiled import core

BLOCK = {0: 0, 1: 1, 3: 2}  # the size of W by the number of its packed entries


def factor(
    decay: Tensor, p: Tensor, q: Tensor, mass: Tensor, diag: Tensor, d: Tensor, z: Tensor, states: Tensor
) -> None:
    """A = L diag(d) L^T, as ``_solve_ops`` describes it."""
    arrays = _contiguous(decay, p, q, mass, diag)
    core.factor(*_addresses(*arrays, d, z, states), *p.shape[:2], *_sizes(p, mass))


def factor_pullback(
    decay: Tensor,
    p: Tensor,
    mass: Tensor,
    d: Tensor,
    z: Tensor,
    states: Tensor,
    d_bar: Tensor,
    z_bar: Tensor,
    p_bar: Tensor,
    q_bar: Tensor,
    mass_bar: Tensor,
    diag_bar: Tensor,
    gap_bar: Tensor,
) -> None:
    """The gradients of what ``factor`` was given."""
    arrays = _contiguous(decay, p, mass, d, z, states, d_bar, z_bar)
    bars = p_bar, q_bar, mass_bar, diag_bar, gap_bar
    core.factor_pullback(*_addresses(*arrays, *bars), *p.shape[:2], *_sizes(p, mass))


def sweep(
    decay: Tensor, p: Tensor, z: Tensor, mass: Tensor, x: Tensor, y: Tensor, *, transposed: bool, inverse: bool
) -> None:
    """y = L x, L^T x, L^-1 x or L^-T x for x (h, n, m)."""
    _sweep(_contiguous(decay, p, z, mass), 0, 0, x.contiguous(), y, transposed, inverse)


def solve(decay: Tensor, p: Tensor, z: Tensor, mass: Tensor, d: Tensor, order: Tensor, y: Tensor, x: Tensor) -> None:
    """x = L^-T diag(d)^-1 L^-1 y, for y and x (h, n, m) in the caller's order, whose rows ``order`` (h, n) names."""
    arrays, (d, order, y) = _contiguous(decay, p, z, mass), _contiguous(d, order, y)
    inner = torch.empty_like(y)
    _sweep(arrays, order.data_ptr(), 0, y, inner, transposed=False, inverse=True)
    _sweep(arrays, order.data_ptr(), d.data_ptr(), inner, x, transposed=True, inverse=True)


def sweep_pullback(
    decay: Tensor,
    p: Tensor,
    z: Tensor,
    mass: Tensor,
    left: Tensor,
    right: Tensor,
    p_bar: Tensor,
    z_bar: Tensor,
    mass_bar: Tensor,
    gap_bar: Tensor,
) -> None:
    """The gradients of the sum over i > j of left_i L_ij right_j, and over the columns of left and right (h, n, m)."""
    arrays = _contiguous(decay, p, z, mass, left, right)
    status = core.sweep_pullback(*_addresses(*arrays, p_bar, z_bar, mass_bar, gap_bar), *left.shape, *_sizes(p, mass))
    if status:
        raise MemoryError("laplex: no memory for the compiled core's scratch arrays; use smaller batches")


def _sweep(
    arrays: list[Tensor], order: int, divisor: int, x: Tensor, y: Tensor, transposed: bool, inverse: bool
) -> None:
    r, block, threads = _sizes(arrays[1], arrays[3])
    operands = *_addresses(*arrays), order, divisor, *_addresses(x, y)
    core.sweep(*operands, *x.shape, r, block, transposed, inverse, threads)


def _contiguous(*tensors: Tensor) -> list[Tensor]:
    return [tensor.contiguous() for tensor in tensors]


def _addresses(*tensors: Tensor) -> list[int]:
    """0 for a tensor without elements, which the core takes as not wanted."""
    return [tensor.data_ptr() for tensor in tensors]


def _sizes(p: Tensor, mass: Tensor) -> tuple[int, int, int]:
    return p.shape[-1], BLOCK[mass.shape[-1]], torch.get_num_threads()
