"""A product with phases as one Function: forward and the first backward are single calls of a backend.

The composition differentiates through pointwise operations and saves what each of them needs: many times the memory of
x and y. A fused backend keeps what it needs, and reads x and g once or twice. Derivatives of the gradient, forward
mode, torch.func and torch.compile use the composition, which has every order.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from laplex import _backends
from laplex._eager import plain, plainly_eager
from laplex._phase.composition import composed
from laplex._scan.autograd import bars_through, differentiates, not_again
from laplex._scan.order import Matrix
from laplex._scan.results import LAUNCH_AXIS


def fused_for(x: Tensor, phase: tuple[Tensor, ...], matrix: Matrix) -> Callable[..., Tensor] | None:
    """What computes the product from ``(x, phi, psi, *matrix)`` in a fused backend; None if the composition has to.

    A function that returns a function, so that the way from a public call to the backend stays short.
    """
    given = x, *phase, *matrix[:3]
    if not plainly_eager() or not all(map(plain, given)) or forward_ad._current_level >= 0:
        return None
    if _backends.load(matrix.backend, x.device.type).phased is None:
        return None
    if x.numel() == 0 or matrix.target.numel() == 0 or matrix.tau.numel() > LAUNCH_AXIS:
        return None
    return _Phased.apply if differentiates(*given) else _product


def _product(x: Tensor, phi: Tensor, psi: Tensor, *of_matrix: Any) -> Tensor:
    matrix = Matrix(*of_matrix)
    made: Tensor = _fused(x, matrix).product(x, phi, psi, matrix, keep=False)[0]
    return made


def _fused(x: Tensor, matrix: Matrix) -> ModuleType:
    found = _backends.load(matrix.backend, x.device.type).phased
    if found is None:
        raise NotImplementedError(f"backend '{matrix.backend}' has no fused product with phases")
    return found


class _Phased(torch.autograd.Function):
    """Reverse mode outside of torch.compile and torch.func. The order is passed as it is: nobody differentiates it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, phi: Tensor, psi: Tensor, *of_matrix: Any) -> Tensor:
        matrix = Matrix(*of_matrix)
        ctx.order, ctx.backend = matrix.order, matrix.backend
        _, to_phi, _, to_target, _, to_tau = ctx.needs_input_grad[:6]
        y: Tensor
        y, *kept = _fused(x, matrix).product(x, phi, psi, matrix, keep=to_phi or to_target or to_tau)
        ctx.save_for_backward(x, phi, psi, *matrix[:3], *kept)
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, phi, psi, target, source, tau, *kept = ctx.saved_tensors  # read once: torch.utils.checkpoint counts
        matrix = Matrix(target, source, tau, ctx.order, ctx.backend)
        needs = ctx.needs_input_grad[:6]
        if not_again() and plainly_eager() and plain(g):
            bars = _fused(x, matrix).pullback(g, x, phi, psi, matrix, *kept, needs=needs)
            return *(bar if need else None for bar, need in zip(bars, needs, strict=True)), None, None

        def function(x: Tensor, phi: Tensor, psi: Tensor, target: Tensor, source: Tensor, tau: Tensor) -> Tensor:
            return composed(x, phi, psi, Matrix(target, source, tau, ctx.order, ctx.backend))

        return *bars_through(function, (x, phi, psi, *matrix[:3]), g, needs), None, None
