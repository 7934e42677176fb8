"""W in C++ (csrc/formed*.cpp), called with addresses: this file owns dtypes, contiguity and messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from laplex._checks.core import core_fault, is_double
from laplex._compiled import core
from laplex._formed.kernels import Gradients, Kernels, Needs
from laplex._formed.torch import entries_dtype as entries_dtype
from laplex._formed.torch import times_transposed


def form(kernels: Kernels, dtype: torch.dtype, _written: Any = None) -> Tensor:
    """W (h, n, k), or (n, k) if all matrices are summed."""
    wide = torch.promote_types(dtype, kernels.target.dtype)  # the core takes one dtype: the wider, so nothing is lost
    matrix = kernels.target.new_empty(kernels.shape_of_results, dtype=wide)
    _run(core.form, kernels, matrix)
    return matrix.to(dtype)


def multiply(x: Tensor, matrix: Tensor) -> Tensor:
    """x W^T for x (..., k) and W (n, k), or x (h, m, k) and W (h, n, k)."""
    return times_transposed(matmul, x, matrix)


def matmul(left: Tensor, right: Tensor, dtype: torch.dtype) -> Tensor:
    """left (m, l) times right (l, n), or of batches (h, m, l) and (h, l, n), in this dtype.

    Of float32 operands the core sums in float64, block by block: a float32 sum of many terms of one sign loses digits.
    """
    if left.dtype != torch.float32 or right.dtype != torch.float32:
        return torch.matmul(left, right).to(dtype)
    product = left.new_empty((*left.shape[:-1], right.shape[-1]))
    a, b = (side if side.dim() == 3 else side[None] for side in (left, right))
    (h, m, length), n = a.shape, b.shape[-1]
    addresses = a.data_ptr(), b.data_ptr(), product.data_ptr()
    status = core.multiply(*addresses, h, m, n, length, *a.stride(), *b.stride(), torch.get_num_threads())
    if status:
        core_fault("laplex.linear", status)
    return product.to(dtype)


def pull(g: Tensor, kernels: Kernels, needs: Needs, _dtype: Any = None) -> Gradients:
    """The gradients of sum(g * W), in the order of ``Kernels.tensors``; None where they are not needed."""
    target, source, tau, weight, phi, psi = kernels.tensors
    g = g.to(torch.promote_types(g.dtype, kernels.target.dtype)).contiguous()
    t_bar, s_bar = (_bar(g, anchors, needs.anchors) for anchors in (target, source))
    phi_bar, psi_bar = (_bar(g, phase, needs.phase) for phase in (phi, psi))
    tau_bar, weight_bar = (g.new_empty(kernels.tau.shape, dtype=torch.float64) for _ in range(2))
    _run(core.form_pullback, kernels, g, t_bar, s_bar, tau_bar, weight_bar, phi_bar, psi_bar)
    return (
        _like(t_bar, target),
        _like(s_bar, source),
        _like(tau_bar, tau) if needs.tau else None,
        _like(weight_bar, weight) if needs.weight else None,
        _like(phi_bar, phi),
        _like(psi_bar, psi),
    )


def _bar(g: Tensor, value: Tensor | None, needed: bool) -> Tensor | None:
    """Memory for the gradient of ``value`` in the dtype of g, which is the core's."""
    return g.new_empty(value.shape) if needed and value is not None else None


def _like(bar: Tensor | None, value: Tensor | None) -> Tensor | None:
    return None if bar is None or value is None else bar.to(value.dtype)


def _run(function: Callable[..., int], kernels: Kernels, matrix: Tensor, *bars: Tensor | None) -> None:
    """Call the core, with the kernels in the dtype of ``matrix``, which is W or its cotangent."""
    (h, n, k), dtype = kernels.shape, matrix.dtype
    weight = None if kernels.weight is None else kernels.weight.double()
    directions = _direction(kernels.phi, dtype), _direction(kernels.psi, dtype)
    inputs = kernels.target.to(dtype), kernels.source.to(dtype), kernels.tau.double(), weight, *directions
    arrays = [None if array is None else array.contiguous() for array in inputs]  # alive until the core returns
    addresses = [0 if array is None else array.data_ptr() for array in (*arrays, matrix, *bars)]
    double = is_double("laplex.linear", matrix)
    status = function(*addresses, h, kernels.summed, n, k, double, torch.get_num_threads())
    if status:
        core_fault("laplex.linear", status, kernels.tau)


def _direction(phase: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """(*H, 2, size): cos and sin, rounded once."""
    if phase is None:
        return None
    wide = phase.double()
    return torch.stack((wide.cos(), wide.sin()), dim=-2).to(dtype)
