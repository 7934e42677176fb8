"""x W^T as one differentiable function: its first derivative is fused, further ones go through the scan.

One Function holds the matrix, the product and all gradients, because every node of autograd's graph takes as long as a
launch. In a graph of torch.compile the matrix is an operator (``ops``), and so is the product of a float32 x.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from laplex import _autocast, _backends, _checks
from laplex._backends import Backend
from laplex._eager import plain, plainly_eager
from laplex._formed import ops
from laplex._formed import torch as torch_form
from laplex._formed.kernels import Kernels, Needs
from laplex._scan.autograd import bars_through, builds_graph, differentiates


def product(x: Tensor, kernels: Kernels, backend: Backend) -> Tensor:
    """x (..., k), or (h, m, k) for several W, to (..., n) in the dtype of x, which is not complex."""
    module: Any = backend.form
    tensors = [tensor for tensor in kernels.tensors if tensor is not None]
    if torch.compiler.is_compiling():
        _checks.no_transform_in_a_graph()
    elif torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0:
        return torch_form.multiply(x, torch_form.form(kernels, x.dtype))
    elif plainly_eager() and plain(x) and all(map(plain, tensors)):
        if differentiates(x, *tensors):
            return trained_product(x, kernels, backend)
        if x.numel() > 0 and 0 not in kernels.shape:
            matrix = module.form(kernels, x.dtype, _written(module, x, kernels))
            return module.multiply(x, matrix)  # type: ignore[no-any-return]
    written = _written(module, x, kernels)
    return _times_in_a_graph(x, ops.form(*kernels, x.dtype, written, backend.name), backend.name)


def _written(module: Any, x: Tensor, kernels: Kernels) -> torch.dtype:
    """In which dtype W is written. In a graph in that of x: it is not bound to a number of rows."""
    if torch.compiler.is_compiling():
        return x.dtype
    return module.entries_dtype(x.dtype, x.device, x.numel() * kernels.shape[1])  # type: ignore[no-any-return]


def _times_in_a_graph(x: Tensor, matrix: Tensor, backend: str) -> Tensor:
    """x W^T by an operator, or by torch where its own sums will do."""
    if x.dtype != torch.float32:
        return torch_form.multiply(x, matrix)
    return torch_form.times_transposed(functools.partial(ops.matmul, backend=backend), x, matrix)


def trained_product(x: Tensor, kernels: Kernels, backend: Backend) -> Tensor:
    """The same, eagerly and for gradients."""
    return _Product.apply(x, *kernels, backend)  # type: ignore[no-any-return]


class _Product(torch.autograd.Function):
    """In the older form of Functions, because binding arguments for ``setup_context`` takes as long as a launch."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *inputs: Any) -> Tensor:
        *fields, ctx.backend = inputs
        kernels = Kernels(*fields)
        ctx.summed = kernels.summed
        if x.numel() == 0 or 0 in kernels.shape:
            ctx.save_for_backward(x, *kernels[:6], None)
            return torch_form.multiply(x, torch_form.form(kernels, x.dtype))
        module = ctx.backend.form
        ctx.written = _written(module, x, kernels)
        matrix = module.form(kernels, x.dtype, ctx.written)
        ctx.save_for_backward(x, *kernels[:6], matrix if ctx.needs_input_grad[0] else None)
        return module.multiply(x, matrix)  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, target, source, tau, weight, phi, psi, matrix = ctx.saved_tensors
        need_x, *needed = ctx.needs_input_grad[:7]
        kernels = Kernels(target, source, tau, weight, phi, psi, ctx.summed)
        with _autocast.off(x.device):  # backward may run where autocast is on
            if builds_graph() or g.numel() == 0 or x.numel() == 0 or not plain(g):
                return *_by_the_scan(g, x, kernels, (need_x, *needed)), None, None
            module = ctx.backend.form
            x_bar = _times(module, g, matrix) if need_x else None
            if not any(needed):
                return x_bar, *(None,) * 8
            matrix_bar = _outer(module, g, x, kernels, ctx.written)
            bars = module.pull(matrix_bar, kernels, Needs.from_flags(needed), x.dtype)
        return x_bar, *[bar if need else None for bar, need in zip(bars, needed, strict=True)], None, None


def _times(module: Any, g: Tensor, matrix: Tensor) -> Tensor:
    """g W, the gradient of x."""
    if matrix.dim() == 3:
        return module.matmul(g, matrix, g.dtype)  # type: ignore[no-any-return]
    rows = module.matmul(g.reshape(-1, g.shape[-1]), matrix, g.dtype)
    return rows.view(*g.shape[:-1], matrix.shape[1])  # type: ignore[no-any-return]


def _outer(module: Any, g: Tensor, x: Tensor, kernels: Kernels, written: torch.dtype) -> Tensor:
    """g^T x, summed over rows: the gradient of W, in the dtype of W, or from half precision in float32."""
    dtype = torch.float32 if g.dtype.itemsize < 4 else written
    if kernels.shape[0] > 1:
        return module.matmul(g.mT, x, dtype)  # type: ignore[no-any-return]
    rows, columns = (v if v.dim() == 2 else v.reshape(-1, v.shape[-1]) for v in (g, x))
    return module.matmul(rows.t(), columns, dtype)  # type: ignore[no-any-return]


def _by_the_scan(g: Tensor, x: Tensor, kernels: Kernels, needed: Sequence[bool]) -> list[Tensor | None]:
    """The gradients as differentiable tensors."""
    functional = importlib.import_module("laplex._functional")  # which imports this module
    scan = _backends.planner(x.device)

    def function(x: Tensor, *tensors: Tensor | None) -> Tensor:
        target, source, tau, weight, phi, psi = tensors
        y: Tensor = functional.linear(x, target, source, tau, weight=weight, phi=phi, psi=psi, backend=scan)
        return y

    return bars_through(function, (x, *kernels.tensors), g, needed)
