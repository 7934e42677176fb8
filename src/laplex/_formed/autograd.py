"""x W^T as one differentiable function: its first derivative is fused, further ones go through the scan.

One Function holds the matrix, the product and all gradients, because every node of autograd's graph takes as long as a
launch. In a graph of torch.compile the matrix is an operator (``ops``) and the product torch's.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import forward_ad

from laplex import _backends, _checks
from laplex._eager import plain, plainly_eager
from laplex._formed import ops
from laplex._formed import torch as of_torch
from laplex._formed.kernels import Kernels, Needs
from laplex._scan.autograd import differentiates, not_again


def product(x: Tensor, kernels: Kernels, backend: str, kept: dict[Any, Any]) -> Tensor:
    """x (..., k), or (h, m, k) for several W, to (..., n) in the dtype of x, which is not complex.

    ``kept`` is a dictionary for calls of this form, in which a backend keeps what it found out.
    """
    if torch.compiler.is_compiling():
        _checks.no_transform_in_a_graph()
        return multiplied(x, ops.form(*kernels, x.dtype, backend))
    if plainly_eager() and forward_ad._current_level < 0:
        given = [tensor for tensor in kernels.tensors if tensor is not None]
        if differentiates(x, *given):
            return trained_product(x, kernels, backend, kept)
        if x.numel() > 0 and 0 not in kernels.shape and plain(x) and all(map(plain, given)):
            module = ops.backend_of(backend, kernels)
            return module.multiply(x, module.form(kernels, x.dtype, kept))  # type: ignore[no-any-return]
    if torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0:
        return multiplied(x, of_torch.form(kernels, x.dtype))
    return multiplied(x, ops.form(*kernels, x.dtype, backend))


def trained_product(x: Tensor, kernels: Kernels, backend: str, kept: dict[Any, Any]) -> Tensor:
    """The same, eagerly and for gradients."""
    made: Tensor = _Product.apply(x, *kernels, backend, kept)
    return made


def multiplied(x: Tensor, matrix: Tensor) -> Tensor:
    """x W^T for W (n, k), or (h, n, k)."""
    return F.linear(x, matrix) if matrix.dim() == 2 else x @ matrix.mT


class _Product(torch.autograd.Function):
    """In the older form of Functions, because binding arguments for ``setup_context`` takes as long as a launch."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *inputs: Any) -> Tensor:
        *given, ctx.summed, ctx.backend, ctx.kept = inputs
        kernels = Kernels(*inputs[:7])
        if x.numel() == 0 or 0 in kernels.shape:
            matrix = ops.form(*kernels, x.dtype, ctx.backend)
        else:
            matrix = ops.backend_of(ctx.backend, kernels).form(kernels, x.dtype, ctx.kept)
        ctx.save_for_backward(x, *given, matrix if ctx.needs_input_grad[0] else None)
        return multiplied(x, matrix)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, target, source, tau, weight, phi, psi, matrix = ctx.saved_tensors
        need_x, *needed = ctx.needs_input_grad[:7]
        kernels = Kernels(target, source, tau, weight, phi, psi, ctx.summed)
        if not not_again() or g.numel() == 0 or x.numel() == 0 or not plain(g):
            return *_by_the_scan(g, x, kernels, (need_x, *needed)), None, None, None
        x_bar = torch.matmul(g, matrix) if need_x else None
        if not any(needed):
            return x_bar, *(None,) * 9
        module = ops.backend_of(ctx.backend, kernels)
        bars = module.pull(_outer(g, x, kernels), kernels, Needs.of(needed), ctx.kept)
        return x_bar, *[bar if need else None for bar, need in zip(bars, needed, strict=True)], None, None, None


def _outer(g: Tensor, x: Tensor, kernels: Kernels) -> Tensor:
    """g^T x, summed over rows: the gradient of W, from half precision in float32 where torch can."""
    if kernels.shape[0] > 1:
        return g.mT @ x
    rows, columns = (v if v.dim() == 2 else v.reshape(-1, v.shape[-1]) for v in (g, x))
    if g.dtype.itemsize < 4 and g.is_cuda:
        return torch.mm(rows.t(), columns, out_dtype=torch.float32)
    return torch.mm(rows.t(), columns)


def _by_the_scan(g: Tensor, x: Tensor, kernels: Kernels, needed: tuple[bool, ...]) -> list[Tensor | None]:
    """The gradients as differentiable tensors."""
    functional = importlib.import_module("laplex._functional")  # which imports this module
    target, source, tau, weight, phi, psi, _ = kernels
    how = {"weight": weight, "phi": phi, "psi": psi, "backend": _backends.planner(x.device)}
    with torch.enable_grad():
        y = functional.linear(x, target, source, tau, **how)
        given = zip((x, *kernels.tensors), needed, strict=True)
        inputs = [tensor for tensor, need in given if need and tensor is not None]
        found = iter(torch.autograd.grad(y, inputs, g, create_graph=not not_again()))
    return [next(found) if need else None for need in needed]
