"""The likelihood of sorted series: by Triton, on CUDA, for few blocks; and as a chain of states for any kernel.

``core_likelihood.py`` has the likelihood of blocks in C++.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from laplex._eager import plain, plainly_eager
from laplex._scan.autograd import bars_through, builds_graph
from laplex._states import cpp
from laplex._states.blocks import Blocks
from laplex._states.chain import Chain, factorise
from laplex._states.components import joined_readings, joined_steps
from laplex._states.exposures import Events
from laplex._states.fast import module_for


class Line(NamedTuple):
    """The times of h series in order."""

    gaps: Tensor  # (h, n), the first 0
    order: Tensor | None  # (h, n): the caller's index of every point; None if the caller's times are in order
    counts: Tensor | None  # (h,): the number of points of every series; None if all have n

    def take(self, values: Tensor) -> Tensor:
        """The caller's values (h, n) or (h, n, m), in the order of the line."""
        if self.order is None:
            return values
        order = self.order if values.dim() == 2 else self.order[..., None].expand(values.shape)
        return values.gather(1, order)

    def put(self, values: Tensor) -> Tensor:
        """The inverse of :meth:`take`."""
        if self.order is None:
            return values
        back = torch.argsort(self.order, dim=-1)
        return values.gather(1, back if values.dim() == 2 else back[..., None].expand(values.shape))

    def observed(self) -> Tensor | None:
        """Which points exist, (h, n); None if all do."""
        if self.counts is None:
            return None
        return torch.arange(self.gaps.shape[-1], device=self.gaps.device) < self.counts[:, None]

    def masked(self, diag: Tensor) -> Tensor:
        """Return diag (h, n), which is in the order of the line, with infinity where there are no points."""
        observed = self.observed()
        return diag if observed is None else torch.where(observed, diag, torch.inf)


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
    order, counts = (None if one is None else one.contiguous() for one in (line.order, line.counts))
    if torch.is_grad_enabled() and any(one.requires_grad for one in tensors):
        return Result(*_Likelihood.apply(*tensors, blocks.kinds, order, counts, module))
    held = [one.contiguous() for one in tensors]
    return Result(*module.likelihood(held, blocks.kinds, order, counts, keep=False)[:4])


def _module(blocks: Blocks, tensors: Sequence[Tensor]) -> ModuleType | None:
    """The compiled module with a likelihood of so many states. ``cpp`` has none: C++ takes numbers, not tensors."""
    module = module_for(*tensors)
    if module is None or module is cpp or blocks.g.shape[-1] > module.MAX_STATES:
        return None
    return module


def chain_likelihood(line: Line | Events, chain: Chain, y: Tensor) -> Result:
    """The likelihood of any chain of states; y is (h, n) in the order of the line."""
    factored, failed = factorise(chain)
    z, _ = factored.whiten(y[..., None])
    observed = line.observed()
    d = factored.d if observed is None else torch.where(observed, factored.d, 1.0)
    variance = (chain.p * chain.q).sum(-1).detach()
    loss = (variance * factored.over_d.detach()).sum(-1)
    return Result((z[..., 0].square() * factored.over_d).sum(-1), d.log().sum(-1), loss, failed)


def _block_chain(line: Line, blocks: Blocks, diag: Tensor, y: Tensor) -> Result:
    components = blocks.components()
    steps = joined_steps(components, line.gaps, torch.as_tensor)
    p, q = joined_readings(components, line.gaps, None, torch.as_tensor)
    return chain_likelihood(line, Chain(steps, p, q, line.masked(line.take(diag))), line.take(y))


class _Likelihood(torch.autograd.Function):
    """The likelihood by a compiled module, and its pullback. Second derivatives are those of the chain."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, ...]:
        *tensors, kinds, order, counts, module = inputs
        held = [one.contiguous() for one in tensors]
        quad, logdet, loss, failed, saved = module.likelihood(held, kinds, order, counts, keep=True)
        ctx.save_for_backward(*tensors, *(one for one in (order, counts) if one is not None), *saved)
        ctx.kinds, ctx.given, ctx.module = kinds, (order is not None, counts is not None), module
        ctx.mark_non_differentiable(loss, failed)
        ctx.set_materialize_grads(False)  # those of loss and failed would each be a launch on a GPU
        return quad, logdet, loss, failed

    @staticmethod
    def backward(ctx: Any, quad_bar: Tensor | None, logdet_bar: Tensor | None, *_: Any) -> tuple[Any, ...]:
        tensors, others = ctx.saved_tensors[:6], iter(ctx.saved_tensors[6:])
        quad_bar, logdet_bar = (
            tensors[0].new_zeros(len(tensors[0])) if g is None else g.resolve_neg() for g in (quad_bar, logdet_bar)
        )
        order, counts = (next(others) if given else None for given in ctx.given)
        if builds_graph() or not (plain(quad_bar) and plain(logdet_bar)):  # batches of cotangents have no memory
            return *_chain_bars(tensors, ctx.kinds, order, counts, quad_bar, logdet_bar), None, None, None, None
        held, gradients = ([one.contiguous() for one in some] for some in (tensors, (quad_bar, logdet_bar)))
        bars = ctx.module.pullback(held, ctx.kinds, order, counts, list(others), *gradients)
        return *bars, None, None, None, None


def _chain_bars(
    tensors: tuple[Tensor, ...], kinds: tuple[int, ...], order: Any, counts: Any, quad_bar: Tensor, logdet_bar: Tensor
) -> list[Tensor | None]:
    """The gradients, as differentiable functions of everything."""

    def both(gaps: Tensor, rates: Tensor, squares: Tensor, g: Tensor, diag: Tensor, y: Tensor) -> Tensor:
        result = _block_chain(Line(gaps, order, counts), Blocks(kinds, rates, squares, g), diag, y)
        return torch.stack([result.quad, result.logdet])

    return bars_through(both, tensors, torch.stack([quad_bar, logdet_bar]), [one.requires_grad for one in tensors])


# --- Gaps ------------------------------------------------------------------------------------------------------------


def line_between(t: Tensor, order: Tensor | None, counts: Tensor | None) -> Line:
    """The line of the caller's times t (h, n), differentiable in them."""
    gaps = gaps_between(t, order)
    if counts is not None:
        gaps = torch.where(torch.arange(t.shape[-1], device=t.device) < counts[:, None], gaps, 0.0)
    return Line(gaps, order, counts)


def gaps_between(t: Tensor, order: Tensor | None) -> Tensor:
    """The gaps (h, n) before the points, the first 0, from the caller's times and their order."""
    if plainly_eager() and torch.autograd.forward_ad._current_level < 0:
        gaps: Tensor = _Gaps.apply(t, order)
        return gaps
    ordered = t if order is None else t.gather(1, order)
    return torch.nn.functional.pad(ordered.diff(dim=1), (1, 0))


class _Gaps(torch.autograd.Function):
    """The gaps of ``gaps_between``. Autograd would add into zeroed arrays; this backward writes every number once."""

    @staticmethod
    def forward(ctx: Any, t: Tensor, order: Tensor | None) -> Tensor:
        ctx.order = order
        ordered = t if order is None else t.gather(1, order)
        gaps = torch.empty_like(ordered)
        gaps[:, 0] = 0.0
        torch.sub(ordered[:, 1:], ordered[:, :-1], out=gaps[:, 1:])
        return gaps

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        t_bar = g.clone()
        t_bar[:, 0] = 0.0
        t_bar[:, :-1] -= g[:, 1:]
        return t_bar if ctx.order is None else torch.empty_like(g).scatter(1, ctx.order, t_bar), None
