r"""The sum over matrices y = sum over h of w_h x K_h^T, by the scan.

All matrices take the same x. With x_h = K_h^T g, the transposed product of each matrix with the cotangent g,

    x_bar = sum over h of w_h x_h        w_bar_h = <x, x_h>

and the gradients of a matrix's anchors and tau are those of its product with x, times w_h. So backward needs no result
of forward. Matrices are taken in parts, so that never more than a part's results exist.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from laplex import _autocast
from laplex._scan import ops
from laplex._scan.autograd import bars_through, builds_graph, differentiates, scan
from laplex._scan.order import Matrix
from laplex._scan.parts import batch_parts

MOST_NUMBERS = 1 << 27  # of a part's results: half a gigabyte in float32


def weighted(x: Tensor, matrix: Matrix, weight: Tensor) -> Tensor:
    """x (m, k) and weight (h,) -> (m, n), in the dtype of x."""
    eager = not torch.compiler.is_compiling() and not torch._C._are_functorch_transforms_active()
    if not eager or torch.autograd.forward_ad._current_level >= 0:
        return _composed(x, matrix, weight)
    if differentiates(x, weight, *matrix[:3]):
        return _Weighted.apply(x, weight, *matrix)  # type: ignore[no-any-return]
    return _summed(x, matrix, weight, odd=False)[0]


def _composed(x: Tensor, matrix: Matrix, weight: Tensor) -> Tensor:
    """By products that have all derivatives."""
    rows = x.expand(weight.numel(), *x.shape)
    odd = torch.is_grad_enabled() and matrix.target.requires_grad
    return mixed(scan(rows, matrix, odd=odd)[0], weight)


def mixed(values: Tensor, weight: Tensor) -> Tensor:
    """sum over h of weight_h values_h, of values (h, m, size), differentiably.

    By torch's sum: the gradient of a weight adds m * size terms, and a matrix product would lose digits of so many.
    """
    return (weight.to(values.dtype)[:, None, None] * values).sum(0)


def parts_of(x: Tensor, matrix: Matrix) -> list[tuple[slice, Matrix]]:
    """Parts of the matrices whose results for x (m, k) are few enough to exist at once."""
    each = x.shape[0] * max(matrix.target.shape[-1], matrix.source.shape[-1], 1)
    return batch_parts(matrix, max(MOST_NUMBERS // max(each, 1), 1))


def _summed(x: Tensor, matrix: Matrix, weight: Tensor, *, odd: bool) -> tuple[Tensor, Tensor | None]:
    """The sum, and the odd sums (h, m, n) on request and if they fit one part."""
    parts, y, saved = parts_of(x, matrix), None, None
    for part, matrices in parts:
        rows = x.expand(matrices.tau.numel(), *x.shape)
        keep = odd and len(parts) == 1
        even, saved = ops.run_scan(rows, matrices, odd=keep)
        added = _combined(even, weight[part])
        y = added if y is None else y.add_(added)
        saved = saved if keep else None
    return x.new_zeros((x.shape[0], matrix.target.shape[-1])) if y is None else y, saved


def _combined(values: Tensor, weight: Tensor) -> Tensor:
    """sum over h of weight_h values_h, of values (h, m, size) that nobody else holds."""
    factor = weight.to(values.dtype)
    return torch.mv(values.reshape(values.shape[0], -1).t(), factor).view(values.shape[1:])


class _Weighted(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, *inputs: Any) -> Tensor:
        matrix = Matrix(*inputs)
        ctx.order, ctx.backend = matrix.order, matrix.backend
        y, odd_x = _summed(x, matrix, weight, odd=ctx.needs_input_grad[2])
        ctx.save_for_backward(x, weight, *matrix[:3], odd_x)
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, target, source, tau, odd_x = ctx.saved_tensors
        matrix = Matrix(target, source, tau, ctx.order, ctx.backend)
        needed = ctx.needs_input_grad[:5]
        with _autocast.off(x.device):  # backward may run where autocast is on
            if not builds_graph():
                return *_bars(g, x, weight, matrix, odd_x, needed), None, None
            return *bars_through(_composed_of(matrix), (x, weight, target, source, tau), g, needed), None, None


def _composed_of(matrix: Matrix) -> Callable[..., Tensor]:
    def function(x: Tensor, weight: Tensor, target: Tensor, source: Tensor, tau: Tensor) -> Tensor:
        return _composed(x, matrix._replace(target=target, source=source, tau=tau), weight)

    return function


def _bars(
    g: Tensor, x: Tensor, weight: Tensor, matrix: Matrix, odd_x: Tensor | None, needed: tuple[bool, ...]
) -> list[Tensor | None]:
    """The gradients of x, weight, targets, sources and tau that are needed."""
    x_bar, others = None, []
    for part, matrices in parts_of(x, matrix):
        h, factor = matrices.tau.numel(), weight[part]
        rows, cotangents = x.expand(h, *x.shape), g.expand(h, *g.shape)
        odd = g.new_empty((h, g.shape[0], 0))
        if needed[2]:
            odd = odd_x if odd_x is not None else ops.run_scan(rows, matrices, odd=True)[1]
        x_bars, *bars, tau_bar = ops.run_pullback(cotangents, rows, odd, matrices, to_tau=needed[4])
        w_bar = (x_bars * x).sum(-1).sum(-1, dtype=torch.float64) if needed[1] else None
        anchor_bars = [bar * factor.to(bar.dtype)[:, None] for bar in bars]
        others.append((w_bar, *anchor_bars, tau_bar * factor if needed[4] else None))
        if needed[0]:
            added = _combined(x_bars, factor)
            x_bar = added if x_bar is None else x_bar.add_(added)
    joined = [torch.cat(values) if values[0] is not None else None for values in zip(*others, strict=True)]
    shaped = [
        bar.to(value.dtype).view(value.shape) if need and bar is not None else None
        for bar, value, need in zip(joined, (weight, *matrix[:3]), needed[1:], strict=True)
    ]
    return [x_bar, *shaped]
