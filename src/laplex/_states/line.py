"""The times of series in order, and the chain of states at them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from laplex._eager import plainly_eager
from laplex._states.chain import Chain
from laplex._states.components import Component, PerSeries, Reading, joined_readings, joined_steps
from laplex._states.order import existing


class Line(NamedTuple):
    """The times of h series in order."""

    t: Tensor  # (h, n): the times in the caller's order
    gaps: Tensor  # (h, n), the first 0
    order: Tensor | None  # (h, n): the caller's index of every point; None if the caller's times are in order
    counts: Tensor | None  # (h,): the number of points of every series; None if all have n

    @property
    def times(self) -> Tensor:
        """The times in order, (h, n)."""
        return self.take(self.t)

    def sorted_times(self) -> Tensor:
        """The times in order, infinite where there are no points, without gradients."""
        times, observed = self.times.detach(), self.observed()
        return times if observed is None else torch.where(observed, times, torch.inf)

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
        return None if self.counts is None else existing(self.counts, self.gaps.shape[-1])

    def masked(self, diag: Tensor) -> Tensor:
        """Return diag (h, n), which is in the order of the line, with infinity where there are no points."""
        observed = self.observed()
        return diag if observed is None else torch.where(observed, diag, torch.inf)

    def chain(
        self, components: Sequence[Component], diag: Tensor, per_series: PerSeries, band: Tensor | None = None
    ) -> Chain:
        """The chain of all points; diag and band are (h, n) in the caller's order."""
        steps = joined_steps(components, self.gaps, per_series)
        p, q = joined_readings(components, self.times, None if band is None else self.take(band), per_series)
        return Chain(steps, p, q, self.masked(self.take(diag)))

    def steps(self, components: Sequence[Component], gaps: Tensor, per_series: PerSeries) -> Tensor:
        """Transitions (h, m, s, s) over gaps (h, m)."""
        return joined_steps(components, gaps, per_series)

    def entering(self, steps: Tensor, point: Tensor) -> Tensor:
        """Transitions that lead into points (h, m)."""
        return steps

    def reading(
        self,
        components: Sequence[Component],
        t: Tensor,
        band: Tensor | None,
        point: Tensor,
        mask: Tensor,
        per_series: PerSeries,
    ) -> Reading:
        """The reading of the process at times t (h, m); ``point`` (h, m) is the last one before, -1 for none.

        ``mask`` (s,) has 1 for the states that are read, and 0 for others.
        """
        p, q = joined_readings(components, t, band, per_series)
        return Reading(p * mask, q * mask)


# --- Gaps ------------------------------------------------------------------------------------------------------------


def line_between(t: Tensor, order: Tensor | None, counts: Tensor | None) -> Line:
    """The line of the caller's times t (h, n), differentiable in them."""
    if plainly_eager() and torch.autograd.forward_ad._current_level < 0:
        gaps = _Gaps.apply(t, order)
    else:
        ordered = t if order is None else t.gather(1, order)
        gaps = torch.nn.functional.pad(ordered.diff(dim=1), (1, 0))
    return line_over(t, gaps, order, counts)


def line_over(t: Tensor, gaps: Tensor, order: Tensor | None, counts: Tensor | None) -> Line:
    """The line with these gaps, of which those beyond the counts become 0."""
    if counts is not None:
        gaps = torch.where(existing(counts, gaps.shape[-1]), gaps, 0.0)
    return Line(t, gaps, order, counts)


class _Gaps(torch.autograd.Function):
    """The gaps before the points, the first 0. Autograd would add into zeroed arrays; this backward writes each number
    once."""

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
