"""Moving the values that belong to anchors from the ranks that hold them to the ranks that own them, and back.

The caller's shards are in any order. Every rank owns an interval of the line. A single matrix is kept as it arrives:
rank by rank, each rank's part in order. The matrices of a batch are sorted and padded to one width. A move fills the
padding with zeros, and the move back ignores it, so each is the transpose of the other.

Large operands: the first write to a new page of memory takes longer than all the work done with it, so new memory gets
large pages where the compiled core can ask for them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from laplex.distributed._agreement import has_tangent
from laplex.distributed._ranks import Ranks, new_memory


class Share(NamedTuple):
    """The anchors of one side that this rank holds (h matrices of `size` each), and those that it owns."""

    origins: Tensor  # (held,) int64: where each value that is sent stands in the caller's (h * size)
    slots: Tensor  # (owned,) int64: where each value that arrives goes in (h * width), each matrix in order
    sent: tuple[int, ...]  # how many values go to each rank
    received: tuple[int, ...]  # how many come from each rank
    size: int
    counts: tuple[int, ...]  # owned, for each matrix
    width: int  # the largest count; at least 1, so that ranks that own nothing get to the exchange, too
    stays: bool  # the same on all ranks: every rank owns what it holds, and nothing is exchanged
    ordered: bool  # on this rank: what it holds is also in order, so that nothing moves at all

    @property
    def spans(self) -> Sequence[Sequence[tuple[int, int]]]:
        """The spans (begin, end) of the owned anchors within which they are in order, for each matrix."""
        if len(self.counts) > 1:
            return [[(0, count)] for count in self.counts]
        return [list(itertools.pairwise(itertools.accumulate(self.received, initial=0)))]


def to_owners(x: Tensor, share: Share, ranks: Ranks) -> Tensor:
    """Move the caller's x (h, m, size) to its owners: (h, m, width). Differentiable."""
    return x if share.ordered else _Move.apply(x, share, ranks, False)


def to_holders(y: Tensor, share: Share, ranks: Ranks) -> Tensor:
    """Move the owners' y (h, m, width) back to the caller: (h, m, size). Differentiable."""
    return y if share.ordered else _Move.apply(y, share, ranks, True)


def to_owners_detached(x: Tensor, share: Share, ranks: Ranks) -> Tensor:
    """:func:`to_owners` without derivatives."""
    if share.ordered:
        return x
    sent = _picked(x, share.origins)
    arrived = sent if share.stays else ranks.exchanged(sent, share.sent, share.received)
    h = len(share.counts)
    if h == 1:
        rows = _rows(arrived)[None]
        return rows if rows.shape[-1] == share.width else torch.nn.functional.pad(rows, (0, share.width))
    lines = arrived.new_zeros((h * share.width, arrived.shape[1]))
    return _as_rows(lines.index_copy_(0, share.slots, arrived), h)


def to_holders_detached(y: Tensor, share: Share, ranks: Ranks) -> Tensor:
    """:func:`to_holders` without derivatives."""
    if share.ordered:
        return y
    h = len(share.counts)
    sent = _lines(y[0, :, : share.counts[0]]) if h == 1 else _picked(y, share.slots)
    arrived = sent if share.stays else ranks.exchanged(sent, share.received, share.sent)
    return _placed(arrived, share.origins, h, share.size)


def in_line_order(values: Tensor, share: Share) -> Tensor:
    """Put values (m, width) of one matrix, as they arrived at its owner, in the order of the line. Differentiable."""
    return torch.empty_like(values).index_copy(-1, share.slots, values[..., : share.counts[0]])


def in_arrival_order(values: Tensor, share: Share) -> Tensor:
    """Put values (m, width) of one matrix, in the order of the line, as they arrived at its owner. Differentiable."""
    arrived = values.index_select(-1, share.slots)
    return torch.nn.functional.pad(arrived, (0, share.width - arrived.shape[-1]))


def _picked(x: Tensor, places: Tensor) -> Tensor:
    """Lines (count, m) of x (h, m, size), at places among (h * size): the values of one anchor are contiguous."""
    h, m, size = x.shape
    lines = new_memory(x, (places.numel(), m))
    if m == 1:
        return torch.index_select(x.reshape(h * size), 0, places, out=lines.view(-1)).view(-1, 1)
    return torch.index_select(_lines(x), 0, places, out=lines)


def _placed(lines: Tensor, places: Tensor, h: int, size: int) -> Tensor:
    """The inverse: rows (h, m, size), made by putting each of the lines (h * size, m) at its place."""
    m = lines.shape[1]
    out = new_memory(lines, (h * size, m))
    if m == 1:
        return out.view(-1).scatter_(0, places, lines.view(-1)).view(h, 1, size)
    return _as_rows(out.index_copy_(0, places, lines), h)


def _lines(x: Tensor) -> Tensor:
    """(h, m, size) or (m, size) -> (h * size, m)."""
    m, size = x.shape[-2:]
    if m == 1 and x.is_contiguous():
        return x.reshape(-1, 1)
    lines = new_memory(x, (*x.shape[:-2], size, m)).copy_(x.mT)
    return lines.view(math.prod(x.shape[:-2]) * size, m)


def _rows(lines: Tensor) -> Tensor:
    """(size, m) -> (m, size)."""
    if lines.shape[1] == 1:
        return lines.view(1, -1)
    return new_memory(lines, lines.shape[::-1]).copy_(lines.mT)


def _as_rows(lines: Tensor, h: int) -> Tensor:
    """(h * size, m) -> (h, m, size)."""
    if h == 1:
        return _rows(lines)[None]
    return lines.reshape(h, lines.shape[0] // max(h, 1), lines.shape[1]).mT.contiguous()


class _Move(torch.autograd.Function):
    """A move in either direction; each is the other's derivative, in every order and mode."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, share: Share, ranks: Ranks, back: bool) -> Tensor:
        ctx.settings = share, ranks, back
        return to_holders_detached(x, share, ranks) if back else to_owners_detached(x, share, ranks)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None, None]:
        share, ranks, back = ctx.settings
        return _Move.apply(g, share, ranks, not back), None, None, None

    @staticmethod
    def jvp(ctx: Any, dx: Tensor, *others: Any) -> Tensor:
        return _Move.apply(dx, *ctx.settings)  # type: ignore[no-any-return]


class _Owned(torch.autograd.Function):
    """Anchors (h, size) that their owners already have as `at_owners` (h, width): only the gradient moves."""

    @staticmethod
    def forward(ctx: Any, anchors: Tensor, at_owners: Tensor, share: Share, ranks: Ranks) -> Tensor:
        ctx.settings = share, ranks
        return at_owners.detach()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None, None]:
        return to_holders(g[:, None], *ctx.settings)[:, 0], None, None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *others: Any) -> Tensor:
        return to_owners(tangent[:, None], *ctx.settings)[:, 0]


def owned(anchors: Tensor, at_owners: Tensor, share: Share, ranks: Ranks) -> Tensor:
    """The caller's anchors (h, size), which their owners already have as `at_owners` (h, width). Differentiable."""
    return _Owned.apply(anchors, at_owners, share, ranks)  # type: ignore[no-any-return]


class _Replicated(torch.autograd.Function):
    """A tensor that all ranks have: its gradient is the sum of all ranks' gradients."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, ranks: Ranks, summed: bool) -> Tensor:
        ctx.settings = ranks, summed
        return ranks.total(value) if summed else value.view_as(value)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None]:
        return _Replicated.apply(g, ctx.settings[0], True), None, None

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *others: Any) -> Tensor:
        return _Replicated.apply(tangent, *ctx.settings)  # type: ignore[no-any-return]


def total(value: Tensor, ranks: Ranks) -> Tensor:
    """The sum of all ranks' values, on every rank. Differentiable: the gradient is that of the sum of all losses."""
    return _Replicated.apply(value, ranks, True)  # type: ignore[no-any-return]


def replicated(value: Tensor, ranks: Ranks) -> Tensor:
    """A value that is the same on all ranks. Differentiable: on every rank the gradient is that of all losses.

    A value that is not differentiated is returned itself, so that plans recognize it.
    """
    if not (value.requires_grad or has_tangent(value)):
        return value
    return _Replicated.apply(value, ranks, False)  # type: ignore[no-any-return]
