"""Values of anchors, moved from the ranks that hold them to the ranks that own them, and back.

The caller's shards are in any order. Every rank owns an interval of the line, and holds what it owns in order, padded
to one width for all matrices of a batch. Pads are the last places; the first of them are for sources of other ranks
(``_ends``). A move fills pads with zeros, and the move back ignores them, so each is the transpose of the other.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from laplex.distributed._ranks import Ranks


class Share(NamedTuple):
    """The anchors of one side that this rank holds, h matrices of `size` each, and those that it owns."""

    given: Tensor  # (held,) int64: places in the caller's (h * size), in the order in which they are sent
    slots: Tensor  # (owned,) int64: places in the owner's (h * width), in the order in which they arrive
    sent: tuple[int, ...]  # to each rank
    received: tuple[int, ...]
    size: int
    counts: tuple[int, ...]  # owned, of each matrix
    width: int  # the largest count, and the pads
    stays: bool  # on all ranks: every rank owns what it holds, and nothing is exchanged
    ordered: bool  # on this rank: and holds it in order


def moved(x: Tensor, share: Share, ranks: Ranks) -> Tensor:
    """Differentiable: x (h, m, size) of the caller to (h, m, width) of the owners, always a new tensor."""
    return _Move.apply(x, share, ranks, False)  # type: ignore[no-any-return]


def moved_back(y: Tensor, share: Share, ranks: Ranks) -> Tensor:
    """Differentiable: y (h, m, width) of the owners, which nobody needs any more, to (h, m, size) of the caller."""
    return _Move.apply(y, share, ranks, True)  # type: ignore[no-any-return]


def to_owners(x: Tensor, share: Share, ranks: Ranks) -> Tensor:
    """x (h, m, size) to (h, m, width)."""
    if share.ordered:
        padded = x.new_empty((*x.shape[:-1], share.width))
        padded[..., : share.size] = x
        padded[..., share.size :] = 0
        return padded
    sent = _as_lines(x).index_select(0, share.given)
    arrived = sent if share.stays else ranks.exchanged(sent, share.sent, share.received)
    lines = arrived.new_zeros((len(share.counts) * share.width, arrived.shape[1]))
    return _as_rows(lines.index_copy_(0, share.slots, arrived), len(share.counts))


def to_holders(y: Tensor, share: Share, ranks: Ranks) -> Tensor:
    """y (h, m, width) to (h, m, size). Where nothing moves, the result is in the memory of y.

    It is no view of y for autograd, which would refuse to let the caller write to it.
    """
    if share.ordered:
        shape = (*y.shape[:-1], share.size)
        return y.new_empty(0).set_(y.untyped_storage(), y.storage_offset(), shape, y.stride())
    sent = _as_lines(y).index_select(0, share.slots)
    arrived = sent if share.stays else ranks.exchanged(sent, share.received, share.sent)
    lines = arrived.new_empty((len(share.counts) * share.size, arrived.shape[1]))
    return _as_rows(lines.index_copy_(0, share.given, arrived), len(share.counts))


def _as_lines(x: Tensor) -> Tensor:
    """(h, m, size) -> (h * size, m): what belongs to one anchor lies together, and moves together."""
    h, m, size = x.shape
    return x.mT.reshape(h * size, m)


def _as_rows(lines: Tensor, h: int) -> Tensor:
    """(h * size, m) -> (h, m, size)."""
    return lines.reshape(h, lines.shape[0] // max(h, 1), lines.shape[1]).mT.contiguous()


class _Move(torch.autograd.Function):
    """Either direction; each is the other's derivative, in every order and mode."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, share: Share, ranks: Ranks, back: bool) -> Tensor:
        ctx.settings = share, ranks, back
        return to_holders(x, share, ranks) if back else to_owners(x, share, ranks)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None, None]:
        share, ranks, back = ctx.settings
        if not back and torch.is_grad_enabled():
            g = g.clone()  # it is a part of the graph of this gradient
        return _Move.apply(g, share, ranks, not back), None, None, None

    @staticmethod
    def jvp(ctx: Any, dx: Tensor, *others: Any) -> Tensor:
        return _Move.apply(dx, *ctx.settings)  # type: ignore[no-any-return]


class _Owned(torch.autograd.Function):
    """Anchors (h, size) whose owners already have them, as `there` (h, width): only the gradient moves."""

    @staticmethod
    def forward(ctx: Any, anchors: Tensor, there: Tensor, share: Share, ranks: Ranks) -> Tensor:
        ctx.settings = share, ranks
        return there.detach()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None, None]:
        g = g.clone() if torch.is_grad_enabled() else g
        return moved_back(g[:, None], *ctx.settings)[:, 0], None, None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *others: Any) -> Tensor:
        return moved(tangent[:, None], *ctx.settings)[:, 0]


def owned(anchors: Tensor, there: Tensor, share: Share, ranks: Ranks) -> Tensor:
    """Differentiable: anchors (h, size) of the caller, which the owners have as `there` (h, width)."""
    return _Owned.apply(anchors, there, share, ranks)  # type: ignore[no-any-return]


class _Same(torch.autograd.Function):
    """A tensor that all ranks have: its gradient is the sum of the gradients of all."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, ranks: Ranks, summed: bool) -> Tensor:
        ctx.settings = ranks, summed
        return ranks.total(value) if summed else value.view_as(value)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None]:
        return _Same.apply(g, ctx.settings[0], True), None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *others: Any) -> Tensor:
        return _Same.apply(tangent, *ctx.settings)  # type: ignore[no-any-return]


def same(value: Tensor, ranks: Ranks) -> Tensor:
    """Differentiable: a value that is the same on all ranks, whose gradient on every rank is that of all losses."""
    return _Same.apply(value, ranks, False)  # type: ignore[no-any-return]
