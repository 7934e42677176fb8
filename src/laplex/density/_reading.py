r"""How a likelihood reads the examples: x once, in parts, holding nothing of its size except one weighted copy.

    s = (x - m) / d,    squares = sum of s^2,    weighted_i = s * v_i           (B, n) -> (B,), (I, B, n)

    ds       = 2 s * dsquares + sum over i of v_i * dweighted_i,       dv_i = sum over rows of s * dweighted_i
    d(1 / d) = d * sum over rows of s * ds = d * (2 sum over rows of s^2 dsquares + sum over i of v_i dv_i)

s is recomputed in backward: saving it would take as much memory as x, and so would autograd through each operation.
If a gradient is differentiated again, or under a transform of torch.func, plain operations compute the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from laplex._eager import plainly_eager

PART = 1 << 25  # numbers of s at a time
BLOCK = 256  # squares that are summed in the dtype of x; the sums of blocks are added in float64


def weighted(x: Tensor, mean: Tensor, inverse: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Squares (B,), in float64, and weighted (I, B, n), from x (B, n), the mean (n,), 1 / d (n,) and v (I, n)."""
    if plainly_eager():
        return _Weighted.apply(x, mean, inverse, v)  # type: ignore[no-any-return]
    s = (x - mean).to(inverse.dtype) * inverse
    return s.double().square().sum(-1), s * v[:, None]


class _Weighted(torch.autograd.Function):
    """``weighted``, computed in parts."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, mean: Tensor, inverse: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(x, mean, inverse, v)
        squares = torch.zeros(len(x), dtype=torch.float64, device=x.device)
        product = torch.empty((len(v), *x.shape), dtype=v.dtype, device=x.device)
        for part, s in _parts(x, mean, inverse):
            torch.mul(s, v[:, None, part], out=product[..., part])
            squares += _squares(s)
        return squares, product

    @staticmethod
    def backward(ctx: Any, squares_bar: Tensor, product_bar: Tensor) -> tuple[Tensor | None, ...]:
        x, mean, inverse, v = ctx.saved_tensors
        if torch.is_grad_enabled():
            return _bars(x, mean, inverse, v, squares_bar, product_bar)
        to_x, to_mean = ctx.needs_input_grad[:2]
        rows_bar = 2 * squares_bar.to(v.dtype)
        x_bar = torch.empty(x.shape, dtype=v.dtype, device=x.device) if to_x or to_mean else None
        v_bar, squares = torch.empty_like(v), torch.empty_like(inverse)
        for part, s in _parts(x, mean, inverse):
            bar = product_bar[..., part]
            v_bar[:, part] = (s * bar).sum(1)
            if x_bar is not None:
                s_bar = rows_bar[:, None] * s + (v[:, None, part] * bar).sum(0)
                torch.mul(s_bar, inverse[part], out=x_bar[:, part])
            squares[part] = rows_bar @ s.square_()
        inverse_bar = (squares + (v * v_bar).sum(0)) / inverse
        mean_bar = -x_bar.sum(0) if x_bar is not None and to_mean else None
        return x_bar.to(x.dtype) if x_bar is not None and to_x else None, mean_bar, inverse_bar, v_bar


def _bars(
    x: Tensor, mean: Tensor, inverse: Tensor, v: Tensor, squares_bar: Tensor, product_bar: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The gradients, differentiable: the formulas in the module's docstring, without parts."""
    y = (x - mean).to(inverse.dtype)
    s = y * inverse
    s_bar = 2 * squares_bar.to(v.dtype)[:, None] * s + (v[:, None] * product_bar).sum(0)
    y_bar = s_bar * inverse
    return y_bar.to(x.dtype), -y_bar.sum(0).to(mean.dtype), (s_bar * y).sum(0), (s * product_bar).sum(1)


def _parts(x: Tensor, mean: Tensor, inverse: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """Slices of features, and s of each, in the dtype of the parameters."""
    width = max(BLOCK, PART // max(1, len(x)))
    for first in range(0, x.shape[-1], width):
        part = slice(first, min(first + width, x.shape[-1]))
        yield part, (x[:, part] - mean[part]).to(inverse.dtype).mul_(inverse[part])


def _squares(s: Tensor) -> Tensor:
    """The sum of s^2 over features (B,), in float64, without a copy of s in float64."""
    end = s.shape[-1] // BLOCK * BLOCK
    blocks = torch.linalg.vector_norm(s[:, :end].unflatten(-1, (-1, BLOCK)), dim=-1) if end else s[:, :0]
    rest = torch.linalg.vector_norm(s[:, end:], dim=-1)
    return blocks.double().square().sum(-1) + rest.double().square()  # type: ignore[no-any-return]
