"""A product with phases as one Function: forward and the first backward are single calls of a backend.

The composition differentiates through pointwise operations and saves what each of them needs: many times the memory of
x and y. A fused backend keeps what it needs, and reads x and g once or twice. Derivatives of the gradient, forward
mode, torch.func and torch.compile use the composition, which has every order.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from laplex._eager import plain, plainly_eager
from laplex._phase.composition import composed
from laplex._scan.autograd import bars_through, builds_graph, differentiates
from laplex._scan.order import Matrix
from laplex._scan.results import LAUNCH_AXIS


def product(x: Tensor, phi: Tensor, psi: Tensor, matrix: Matrix) -> Tensor:
    """x (h, m, k), or (..., k) without a batch, to (..., n) in the dtype of x; phases (h, n) and (h, k)."""
    operands = x, phi, psi, *matrix[:3]
    if matrix.backend.phased is None or not _runs_here(operands, matrix):
        return composed(x, phi, psi, matrix)
    if differentiates(*operands):
        return _Phased.apply(x, phi, psi, *matrix)  # type: ignore[no-any-return]
    return matrix.backend.phased.product(x, phi, psi, matrix, keep=False)[0]  # type: ignore[no-any-return]


def _runs_here(operands: tuple[Tensor, ...], matrix: Matrix) -> bool:
    """Whether programs can be launched: nothing watches, nothing is empty, and the batch fits one launch."""
    if not plainly_eager() or not all(map(plain, operands)) or forward_ad._current_level >= 0:
        return False
    return operands[0].numel() > 0 and matrix.target.numel() > 0 and matrix.tau.numel() <= LAUNCH_AXIS


class _Phased(torch.autograd.Function):
    """Reverse mode outside of torch.compile and torch.func. The order is passed as it is: nobody differentiates it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, phi: Tensor, psi: Tensor, *fields: Any) -> Tensor:
        matrix = Matrix(*fields)
        ctx.order, ctx.backend = matrix.order, matrix.backend
        _, to_phi, _, to_target, _, to_tau = ctx.needs_input_grad[:6]
        y: Tensor
        y, *sums = ctx.backend.phased.product(x, phi, psi, matrix, keep=to_phi or to_target or to_tau)
        ctx.save_for_backward(x, phi, psi, *matrix[:3], *sums)
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, phi, psi, target, source, tau, *sums = ctx.saved_tensors  # read once: torch.utils.checkpoint counts
        matrix = Matrix(target, source, tau, ctx.order, ctx.backend)
        needs = ctx.needs_input_grad[:6]
        if not builds_graph() and plainly_eager() and plain(g):
            bars = ctx.backend.phased.pullback(g, x, phi, psi, matrix, *sums, needs=needs)
            return *(bar if need else None for bar, need in zip(bars, needs, strict=True)), None, None

        def function(x: Tensor, phi: Tensor, psi: Tensor, target: Tensor, source: Tensor, tau: Tensor) -> Tensor:
            return composed(x, phi, psi, Matrix(target, source, tau, ctx.order, ctx.backend))

        return *bars_through(function, (x, phi, psi, *matrix[:3]), g, needs), None, None
