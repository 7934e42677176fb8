"""The operators of formed matrices that PyTorch sees: schemas, fakes, registrations, and their derivative in a graph.

    laplex::form(kernels, dtype, written, backend)             -> W (h, n, k), or (n, k) if all are summed, for an x of
                                                                  this dtype, written in another
    laplex::form_pullback(g, kernels, needs, dtype, backend)   -> the gradients of target, source, tau, weight, phi, psi
    laplex::matmul(left, right, dtype, backend)                -> left right in this dtype, with exact sums

``kernels`` stands for the fields of ``Kernels``. A gradient that is not needed has no elements.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from laplex import _backends
from laplex._formed import torch as torch_form
from laplex._formed.kernels import Kernels, Needs, gradients_like
from laplex._scan.autograd import bars_through, builds_graph

KERNELS = "Tensor target, Tensor source, Tensor tau, Tensor? weight, Tensor? phi, Tensor? psi, int summed"
_library = torch.library.Library("laplex", "FRAGMENT")
_library.define(
    f"form({KERNELS}, ScalarType dtype, ScalarType written, str backend) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)
_library.define(
    f"form_pullback(Tensor g, {KERNELS}, bool[] needs, ScalarType dtype, str backend) -> "
    "(Tensor, Tensor, Tensor, Tensor, Tensor, Tensor)",
    tags=(torch.Tag.pt2_compliant_tag,),
)
_library.define(
    "matmul(Tensor left, Tensor right, ScalarType dtype, str backend) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,)
)
form = torch.ops.laplex.form.default
form_pullback = torch.ops.laplex.form_pullback.default
matmul = torch.ops.laplex.matmul.default


def backend_of(backend: str, tensor: Tensor) -> Any:
    """The module with ``form``, ``matmul`` and ``pull`` for tensors on this one's device."""
    return _backends.load(backend, tensor.device.type).form


@torch.library.impl(_library, "form", "CompositeExplicitAutograd")
def _form(*inputs: Any) -> Tensor:
    *fields, dtype, written, backend = inputs
    kernels = Kernels(*fields)
    if 0 in kernels.shape:
        return kernels.target.new_zeros(kernels.shape_of_results, dtype=written)
    matrix: Tensor = backend_of(backend, kernels.target).form(kernels, dtype, written)
    return matrix


@torch.library.register_fake("laplex::form", lib=_library)
def _form_fake(*inputs: Any) -> Tensor:
    *fields, _dtype, written, _backend = inputs
    kernels = Kernels(*fields)
    return kernels.target.new_empty(kernels.shape_of_results, dtype=written)


@torch.library.impl(_library, "form_pullback", "CompositeExplicitAutograd")
def _form_pullback(g: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
    *fields, needs, dtype, backend = inputs
    kernels = Kernels(*fields)
    if g.numel() == 0:
        return tuple(bar.zero_() for bar in _all_like(kernels, needs))
    bars = backend_of(backend, g).pull(g, kernels, Needs(*needs), dtype)
    return tuple(kernels.target.new_empty(0) if bar is None else bar for bar in bars)


@torch.library.register_fake("laplex::form_pullback", lib=_library)
def _form_pullback_fake(g: Tensor, *inputs: Any) -> tuple[Tensor, ...]:
    *fields, needs, _dtype, _backend = inputs
    return _all_like(Kernels(*fields), needs)


def _all_like(kernels: Kernels, needs: list[bool]) -> tuple[Tensor, ...]:
    bars = gradients_like(kernels, Needs(*needs))
    return tuple(kernels.target.new_empty(0) if bar is None else bar for bar in bars)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    *fields, ctx.summed, ctx.dtype, _written, ctx.backend = inputs
    ctx.save_for_backward(*fields)


def _backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
    needed = ctx.needs_input_grad[:6]
    if builds_graph():

        def function(target: Any, source: Any, tau: Any, weight: Any, phi: Any, psi: Any) -> Tensor:
            return torch_form.form(Kernels(target, source, tau, weight, phi, psi, ctx.summed), g.dtype)

        return *bars_through(function, ctx.saved_tensors, g, needed), None, None, None, None
    bars = form_pullback(g, *ctx.saved_tensors, ctx.summed, list(Needs.from_flags(needed)), ctx.dtype, ctx.backend)
    return *(bar if need else None for bar, need in zip(bars, needed, strict=True)), None, None, None, None


torch.library.register_autograd("laplex::form", _backward, setup_context=_save, lib=_library)


@torch.library.impl(_library, "matmul", "CompositeExplicitAutograd")
def _matmul(left: Tensor, right: Tensor, dtype: torch.dtype, backend: str) -> Tensor:
    if 0 in (*left.shape, *right.shape):
        empty: Tensor = _matmul_fake(left, right, dtype, backend)
        return empty.zero_()
    product: Tensor = backend_of(backend, left).matmul(left, right, dtype)
    return product


@torch.library.register_fake("laplex::matmul", lib=_library)
def _matmul_fake(left: Tensor, right: Tensor, dtype: torch.dtype, _backend: str) -> Tensor:
    return left.new_empty((*left.shape[:-1], right.shape[-1]), dtype=dtype)


def _save_sides(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    left, right, _dtype, ctx.backend = inputs
    ctx.save_for_backward(left, right)


def _matmul_backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
    left, right = ctx.saved_tensors
    to_left, to_right = ctx.needs_input_grad[:2]
    left_bar = matmul(g, right.mT, left.dtype, ctx.backend) if to_left else None
    right_bar = matmul(left.mT, g, right.dtype, ctx.backend) if to_right else None
    return left_bar, right_bar, None, None


torch.library.register_autograd("laplex::matmul", _matmul_backward, setup_context=_save_sides, lib=_library)
