"""W in plain torch, by differentiable operations: for any device, and for derivatives of derivatives.

The matrices of a sum are formed one after the other, but autograd keeps all of them if it watches.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from laplex import _checks, reference
from laplex._eager import plainly_eager
from laplex._formed.kernels import Gradients, Kernels, Needs, gradients_like
from laplex._scan.torch import BEYOND


def form(kernels: Kernels, dtype: torch.dtype, written: torch.dtype | None = None) -> Tensor:
    """W (h, n, k), or (n, k) if all matrices are summed, for an x of this dtype; computed in float64."""
    if kernels.target.device.type == "cpu" and plainly_eager():  # on a GPU faulty values make W NaN
        _checks.values("laplex.linear", kernels.target, kernels.source, kernels.tau)
    total = kernels.target.new_zeros((), dtype=torch.float64)
    for q in range(kernels.summed):
        target, source, tau, weight, phi, psi = kernels.one(q)
        entries = reference.kernel(target, source, tau, phi=phi, psi=psi)
        total = total + (entries if weight is None else entries * weight[:, None, None])
    return total.to(written or dtype).reshape(kernels.shape_of_results)


def entries_dtype(dtype: torch.dtype, _device: torch.device, _multiplications: int) -> torch.dtype:
    """In which dtype W is written for an x of this dtype."""
    return dtype


def multiply(x: Tensor, matrix: Tensor) -> Tensor:
    """x W^T for x (..., k) and W (n, k), or x (h, m, k) and W (h, n, k)."""
    return times_transposed(matmul, x, matrix)


def times_transposed(product: Callable[..., Tensor], x: Tensor, matrix: Tensor) -> Tensor:
    """The same with another ``matmul``."""
    if matrix.dim() == 3:
        return product(x, matrix.mT, x.dtype)
    rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
    return product(rows, matrix.t(), x.dtype).reshape(*x.shape[:-1], matrix.shape[0])


def matmul(left: Tensor, right: Tensor, dtype: torch.dtype) -> Tensor:
    """left (m, l) times right (l, n), or of batches (h, m, l) and (h, l, n), in this dtype.

    Of float32 operands sums are in float64: a float32 sum of many terms of one sign loses digits.
    """
    if left.dtype == torch.float32:
        left, right = left.double(), right.double()
    return torch.matmul(left, right).to(dtype)


def pull(g: Tensor, kernels: Kernels, needs: Needs, _dtype: Any = None) -> Gradients:
    """The gradients of sum(g * W), in the order of ``Kernels.tensors``; None where they are not needed.

    By the formulas, in float64: operators run where autograd does not look.
    """
    bars, cotangent = gradients_like(kernels, needs), g.double().view(kernels.shape)
    for q in range(kernels.summed):
        _pull_one(cotangent, kernels, q, bars, needs)
    return bars


def _pull_one(g: Tensor, kernels: Kernels, q: int, bars: Gradients, needs: Needs) -> None:
    """Fill the gradients of the q-th matrix of every sum."""
    t, s, tau, weight, phi, psi = kernels.one(q)
    t_bar, s_bar, tau_bar, weight_bar, phi_bar, psi_bar = kernels.each(bars, q)
    gap = s[:, None, :] - t[:, :, None]
    u = gap.abs() / tau[:, None, None]
    pulled = g * torch.exp(-u)
    factor = torch.ones_like(tau) if weight is None else weight
    if phi is not None:
        turn = phi[:, :, None] - psi[:, None, :]
        if needs.phase:
            turned = pulled * turn.sin() * factor[:, None, None]
            phi_bar[:], psi_bar[:] = -turned.sum(2), turned.sum(1)
        pulled = pulled * turn.cos()
    if needs.weight:
        weight_bar[:] = pulled.sum((1, 2))
    if needs.tau:
        tau_bar[:] = factor / tau * (pulled * u.clamp(max=BEYOND)).sum((1, 2))
    if needs.anchors:
        signed = pulled * gap.sign() * (factor / tau)[:, None, None]
        t_bar[:], s_bar[:] = signed.sum(2), -signed.sum(1)
