"""Exponentials of very many small matrices, with derivatives that keep their digits.

The derivative of exp at x in a direction d is the upper right block of exp [[x, d], [0, x]]. Torch computes it so, too,
but with d as it comes: if d is large, as the gradient of a likelihood may be, the algorithm halves this matrix many
times, and squaring its exponential as often loses the digits. The derivative is linear in d, so d is scaled first.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from laplex._eager import forward_mode_again, plain, plainly_eager


def exponential(x: Tensor) -> Tensor:
    """exp x for matrices x (..., s, s), real. Differentiable to any order."""
    function = _Exponential if torch.compiler.is_compiling() else _TransformableExponential
    result: Tensor = function.apply(x)
    return result


def _derivative(x: Tensor, direction: Tensor) -> Tensor:
    """The derivative of exp at x in a direction."""
    s = x.shape[-1]
    with torch.no_grad():
        largest = direction.abs().amax((-2, -1), keepdim=True)
        size = torch.where((largest > 0) & largest.isfinite(), largest, 1.0)
    upper = torch.cat([x, direction / size], -1)
    lower = torch.cat([torch.zeros_like(x), x], -1)
    # Inside the derivative of a Function, torch.func, graphs and batches of directions lose the derivatives of another
    # Function. Those of torch's own they keep.
    function = exponential if plainly_eager() and plain(direction) else torch.linalg.matrix_exp
    return function(torch.cat([upper, lower], -2))[..., :s, s:] * size


class _Exponential(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor) -> Tensor:
        return torch.linalg.matrix_exp(x)  # type: ignore[no-any-return]

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return _derivative(x.mT, g)


class _TransformableExponential(_Exponential):
    """The same with forward mode, which torch.compile does not trace."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor) -> Tensor:
        with forward_mode_again(ctx.saved_tensors) as (x,):
            return _derivative(x, tangent)
