"""x W^T as one differentiable function: its first derivative is fused, further ones go through the scan.

One Function holds the matrix, the product and all gradients, because every node of autograd's graph takes as long as a
launch. In a graph of torch.compile the matrix is an operator (``ops``) and the product torch's.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from laplex import _autocast, _backends, _checks
from laplex._eager import plain, plainly_eager
from laplex._formed import ops
from laplex._formed import torch as of_torch
from laplex._formed.kernels import Kernels, Needs
from laplex._scan.autograd import bars_through, differentiates, not_again


def product(x: Tensor, kernels: Kernels, backend: str, kept: dict[Any, Any]) -> Tensor:
    """x (..., k), or (h, m, k) for several W, to (..., n) in the dtype of x, which is not complex.

    ``kept`` is a dictionary for calls of this form, in which a backend keeps what it found out.
    """
    given = [tensor for tensor in kernels.tensors if tensor is not None]
    if torch.compiler.is_compiling():
        _checks.no_transform_in_a_graph()
    elif torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0:
        return of_torch.multiply(x, of_torch.form(kernels, x.dtype))
    elif plainly_eager() and plain(x) and all(map(plain, given)):
        if differentiates(x, *given):
            return trained_product(x, kernels, backend, kept)
        if x.numel() > 0 and 0 not in kernels.shape:
            module = ops.backend_of(backend, kernels)
            return module.multiply(x, module.form(kernels, x.dtype, kept))  # type: ignore[no-any-return]
    return of_torch.multiply(x, ops.form(*kernels, x.dtype, backend))


def trained_product(x: Tensor, kernels: Kernels, backend: str, kept: dict[Any, Any]) -> Tensor:
    """The same, eagerly and for gradients."""
    made: Tensor = _Product.apply(x, *kernels[:6], (kernels.summed, backend, kept))
    return made


class _Product(torch.autograd.Function):
    """In the older form of Functions, because binding arguments for ``setup_context`` takes as long as a launch."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *inputs: Any) -> Tensor:
        target, source, tau, weight, phi, psi, ctx.how = inputs
        summed, backend, kept = ctx.how
        kernels = Kernels(target, source, tau, weight, phi, psi, summed)
        if x.numel() == 0 or 0 in kernels.shape:
            matrix = ops.form(*kernels, x.dtype, backend)
        else:
            matrix = ops.backend_of(backend, kernels).form(kernels, x.dtype, kept)
        ctx.save_for_backward(x, *kernels[:6], matrix if ctx.needs_input_grad[0] else None)
        return of_torch.multiply(x, matrix)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, target, source, tau, weight, phi, psi, matrix = ctx.saved_tensors
        need_x, *needed = ctx.needs_input_grad[:7]
        summed, backend, kept = ctx.how
        kernels = Kernels(target, source, tau, weight, phi, psi, summed)
        with _autocast.off(x.device):  # backward may run where autocast is on
            if not not_again() or g.numel() == 0 or x.numel() == 0 or not plain(g):
                return *_by_the_scan(g, x, kernels, (need_x, *needed)), None
            x_bar = torch.matmul(g, matrix) if need_x else None
            if not any(needed):
                return x_bar, *(None,) * 7
            module = ops.backend_of(backend, kernels)
            bars = module.pull(_outer(g, x, kernels), kernels, Needs.of(needed), kept)
        return x_bar, *[bar if need else None for bar, need in zip(bars, needed, strict=True)], None


def _outer(g: Tensor, x: Tensor, kernels: Kernels) -> Tensor:
    """g^T x, summed over rows: the gradient of W, from half precision in float32 where torch can."""
    how: Any = {"out_dtype": torch.float32} if g.dtype.itemsize < 4 and g.is_cuda else {}
    if kernels.shape[0] > 1:
        return torch.bmm(g.mT, x, **how)
    rows, columns = (v if v.dim() == 2 else v.reshape(-1, v.shape[-1]) for v in (g, x))
    return torch.mm(rows.t(), columns, **how)


def _by_the_scan(g: Tensor, x: Tensor, kernels: Kernels, needed: Sequence[bool]) -> list[Tensor | None]:
    """The gradients as differentiable tensors."""
    functional = importlib.import_module("laplex._functional")  # which imports this module
    scan = _backends.planner(x.device)

    def function(x: Tensor, *of_kernels: Tensor | None) -> Tensor:
        target, source, tau, weight, phi, psi = of_kernels
        made: Tensor = functional.linear(x, target, source, tau, weight=weight, phi=phi, psi=psi, backend=scan)
        return made

    return bars_through(function, (x, *kernels.tensors), g, needed)
