"""W itself as a differentiable tensor: for code that reads the weight of a layer instead of calling it.

Autograd keeps the kernels' tensors alone, r (n + k) numbers, and not the r matrices that are summed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from laplex import _autocast, _backends, _checks
from laplex._eager import plain, plainly_eager
from laplex._flops import tell_counters
from laplex._formed import ops
from laplex._formed import torch as torch_form
from laplex._formed.kernels import Kernels, Needs
from laplex._scan.autograd import bars_through, builds_graph, differentiates


def matrix(kernels: Kernels) -> Tensor:
    """W (h, n, k), or (n, k) if all matrices are summed, in the dtype of the anchors; any order of derivative."""
    dtype, device = kernels.target.dtype, kernels.target.device
    backend = _backends.load("formed", device.type)
    tensors = [tensor for tensor in kernels.tensors if tensor is not None]
    if torch.compiler.is_compiling():
        _checks.no_transform_in_a_graph()
    elif torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0:
        return torch_form.form(kernels, dtype)
    elif plainly_eager() and all(map(plain, tensors)) and 0 not in kernels.shape:
        if differentiates(*tensors):
            return _Matrix.apply(*kernels, backend.form)  # type: ignore[no-any-return]
        module: Any = backend.form
        return module.form(kernels, dtype)  # type: ignore[no-any-return]
    tell_counters()
    return ops.form(*kernels, dtype, dtype, backend.name)  # type: ignore[no-any-return]


class _Matrix(torch.autograd.Function):
    """The first derivative is fused; a derivative of it goes through the definition in torch."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        *fields, ctx.module = inputs
        kernels = Kernels(*fields)
        ctx.summed = kernels.summed
        ctx.save_for_backward(*kernels.tensors)
        return ctx.module.form(kernels, kernels.target.dtype)  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        target, source, tau, weight, phi, psi = ctx.saved_tensors
        kernels = Kernels(target, source, tau, weight, phi, psi, ctx.summed)
        needed = ctx.needs_input_grad[:6]
        g = g.to_dense()  # torch's embedding can send a sparse one
        with _autocast.off(g.device):  # backward may run where autocast is on
            if builds_graph() or not plain(g):
                return *bars_through(_definition(kernels), kernels.tensors, g, needed), None, None
            bars = ctx.module.pull(g, kernels, Needs.from_flags(needed))
        return *[bar if need else None for bar, need in zip(bars, needed, strict=True)], None, None


def _definition(kernels: Kernels) -> Callable[..., Tensor]:
    """W as a function of the tensors, by differentiable operations of torch."""

    def function(target: Any, source: Any, tau: Any, weight: Any, phi: Any, psi: Any) -> Tensor:
        return torch_form.form(Kernels(target, source, tau, weight, phi, psi, kernels.summed), kernels.target.dtype)

    return function
