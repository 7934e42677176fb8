"""Tensors whose gradients are multiplied by a number."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad


def scaled(tensor: Any, factor: float) -> Any:
    """The tensor itself, but with its gradient multiplied by a factor; None for None."""
    if tensor is None or factor == 1.0 or not torch.is_grad_enabled():
        return tensor
    compiles = torch.compiler.is_compiling()
    if not compiles and torch._C._is_tracing():  # TorchScript cannot save a Function
        return tensor
    in_transform = not compiles and torch._C._are_functorch_transforms_active()
    if not (in_transform or tensor.requires_grad):  # in vmap a tensor does not show that it is differentiated
        return tensor
    transformed = in_transform or (not compiles and forward_ad._current_level >= 0)
    return (_TransformableScaled if transformed else _Scaled).apply(tensor, factor)


class _Scaled(torch.autograd.Function):
    @staticmethod
    def forward(tensor: Tensor, factor: float) -> Tensor:
        return tensor.view_as(tensor)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.factor = inputs[1]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        return g * ctx.factor, None


class _TransformableScaled(_Scaled):
    """The same for torch.func, and for forward mode, whose derivatives are true ones. torch.compile refuses it."""

    generate_vmap_rule = True

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, _factor: Any) -> Tensor:
        return tangent.view_as(tangent)
