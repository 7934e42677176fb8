"""The likelihood of sorted series: by Triton, on CUDA, for few blocks; and as a chain of states for any kernel.

``core_likelihood.py`` has the likelihood of blocks in C++.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from laplex._eager import plain
from laplex._scan.autograd import bars_through, builds_graph
from laplex._states import cpp
from laplex._states.blocks import Blocks
from laplex._states.chain import Chain, factorise
from laplex._states.exposures import Events
from laplex._states.fast import module_for
from laplex._states.line import Line


class Result(NamedTuple):
    """The parts of the likelihood of each of h series."""

    quad: Tensor  # (h,): y^T A^-1 y
    logdet: Tensor  # (h,): log det A
    loss: Tensor  # (h,): the sum of k(0) / d, to which rounding errors of log det A are proportional
    failed: Tensor  # (h,): the first point without a positive pivot, or -1; int64, but float64 from Triton


def block_likelihood(line: Line, blocks: Blocks, diag: Tensor, y: Tensor) -> Result:
    """The likelihood of a kernel that is a sum of blocks; diag and y are (h, n) in the caller's order."""
    tensors = line.gaps, blocks.rates, blocks.squares, blocks.g, diag, y
    module = _module(blocks, tensors)
    if module is None or y.shape[-1] == 0:
        return _block_chain(line, blocks, diag, y)
    order, counts = (None if index is None else index.contiguous() for index in (line.order, line.counts))
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors):
        return Result(*_Likelihood.apply(*tensors, blocks.kinds, order, counts, module))
    contiguous = [tensor.contiguous() for tensor in tensors]
    return Result(*module.likelihood(contiguous, blocks.kinds, order, counts, keep=False)[:4])


def _module(blocks: Blocks, tensors: Sequence[Tensor]) -> ModuleType | None:
    """The compiled module with a likelihood of so many states. ``cpp`` has none: C++ takes numbers, not tensors."""
    module = module_for(*tensors)
    if module is None or module is cpp or blocks.g.shape[-1] > module.MAX_STATES:
        return None
    return module


def chain_likelihood(line: Line | Events, chain: Chain, y: Tensor) -> Result:
    """The likelihood of any chain of states; y is (h, n) in the caller's order."""
    factored, failed = factorise(chain)
    z, _ = factored.whiten(line.take(y)[..., None])
    observed = line.observed()
    d = factored.d if observed is None else torch.where(observed, factored.d, 1.0)
    variance = (chain.p * chain.q).sum(-1).detach()
    loss = (variance * factored.over_d.detach()).sum(-1)
    return Result((z[..., 0].square() * factored.over_d).sum(-1), d.log().sum(-1), loss, failed)


def _block_chain(line: Line, blocks: Blocks, diag: Tensor, y: Tensor) -> Result:
    return chain_likelihood(line, line.chain(blocks.components(), diag, torch.as_tensor), y)


class _Likelihood(torch.autograd.Function):
    """The likelihood by a compiled module, and its pullback. Second derivatives are those of the chain."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, ...]:
        *tensors, kinds, order, counts, module = inputs
        contiguous = [tensor.contiguous() for tensor in tensors]
        quad, logdet, loss, failed, saved = module.likelihood(contiguous, kinds, order, counts, keep=True)
        ctx.save_for_backward(*tensors, *(index for index in (order, counts) if index is not None), *saved)
        ctx.kinds, ctx.module = kinds, module
        ctx.has_order, ctx.has_counts = order is not None, counts is not None
        ctx.mark_non_differentiable(loss, failed)
        ctx.set_materialize_grads(False)  # those of loss and failed would each be a launch on a GPU
        return quad, logdet, loss, failed

    @staticmethod
    def backward(ctx: Any, quad_bar: Tensor | None, logdet_bar: Tensor | None, *_: Any) -> tuple[Any, ...]:
        tensors, others = ctx.saved_tensors[:6], iter(ctx.saved_tensors[6:])
        quad_bar, logdet_bar = (
            tensors[0].new_zeros(len(tensors[0])) if g is None else g.resolve_neg() for g in (quad_bar, logdet_bar)
        )
        order = next(others) if ctx.has_order else None
        counts = next(others) if ctx.has_counts else None
        if builds_graph() or not (plain(quad_bar) and plain(logdet_bar)):  # batches of cotangents have no memory
            return *_chain_bars(tensors, ctx.kinds, order, counts, quad_bar, logdet_bar), None, None, None, None
        contiguous = [tensor.contiguous() for tensor in tensors]
        gradients = quad_bar.contiguous(), logdet_bar.contiguous()
        bars = ctx.module.pullback(contiguous, ctx.kinds, order, counts, list(others), *gradients)
        return *bars, None, None, None, None


def _chain_bars(
    tensors: tuple[Tensor, ...], kinds: tuple[int, ...], order: Any, counts: Any, quad_bar: Tensor, logdet_bar: Tensor
) -> list[Tensor | None]:
    """The gradients, as differentiable functions of everything."""

    def both(gaps: Tensor, rates: Tensor, squares: Tensor, g: Tensor, diag: Tensor, y: Tensor) -> Tensor:
        line = Line(gaps, gaps, order, counts)  # blocks do not read the times
        result = _block_chain(line, Blocks(kinds, rates, squares, g), diag, y)
        return torch.stack([result.quad, result.logdet])

    return bars_through(
        both, tensors, torch.stack([quad_bar, logdet_bar]), [tensor.requires_grad for tensor in tensors]
    )
