"""W in plain torch, by differentiable operations: for any device, and for derivatives of derivatives.

The matrices of a sum are formed one after the other, but autograd keeps all of them if it watches.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from laplex import reference
from laplex._formed.kernels import Gradients, Kernels, Needs
from laplex._formed.values import checked


def form(kernels: Kernels, dtype: torch.dtype, _kept: Any = None) -> Tensor:
    """W (h, n, k), or (n, k) if all matrices are summed; computed in float64."""
    checked(kernels)
    target, source, tau, weight, phi, psi = (None if v is None else v.double() for v in kernels.flat)
    total = target.new_zeros(())
    for q in range(kernels.summed):
        phases = {} if phi is None else {"phi": phi[:, q], "psi": psi[:, q]}
        entries = reference.kernel(target[:, q], source[:, q], tau[:, q], **phases)
        total = total + (entries if weight is None else entries * weight[:, q, None, None])
    return total.to(dtype).reshape(kernels.shape_of_results)


def multiply(x: Tensor, matrix: Tensor) -> Tensor:
    """x W^T for x (..., k) and W (n, k), or x (h, m, k) and W (h, n, k)."""
    return torch.nn.functional.linear(x, matrix) if matrix.dim() == 2 else x @ matrix.mT


def pull(g: Tensor, kernels: Kernels, needs: Needs, _kept: Any = None) -> Gradients:
    """The gradients of sum(g * W), in the order of ``Kernels.tensors``; None where they are not wanted."""
    given = [None if tensor is None else tensor.detach().requires_grad_() for tensor in kernels.tensors]
    wanted = [need and tensor is not None for tensor, need in zip(given, needs.of_each, strict=True)]
    inputs = [tensor for tensor, want in zip(given, wanted, strict=True) if want and tensor is not None]
    with torch.enable_grad():
        made = form(Kernels(*given, kernels.summed), g.dtype)  # type: ignore[arg-type]
    found = iter(torch.autograd.grad(made, inputs, g.view(made.shape)))
    bars = [next(found) if want else None for want in wanted]
    return bars[0], bars[1], bars[2], bars[3], bars[4], bars[5]
