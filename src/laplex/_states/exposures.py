r"""Observations that are means of the process over exposures, [t - delta / 2, t + delta / 2], which may overlap.

The chain has an event at the start and one at the end of every exposure. Besides the states x of the process it has
slots that integrate the process, as many as exposures overlap: a slot is set to 0 when its exposure starts, and what it
holds when the exposure ends is observed, divided by delta. With G = [[0, h^T, 0], [0, F, q], [0, 0, 0]], where q = P h,

    exp(G D) = [[1, v, kappa], [0, Phi, u], [0, 0, 1]]

has the transition Phi over a gap D; v = h^T times the integral of Phi, which a slot gains from x; u, the covariance of
x with a slot that has been open for D; and kappa, the integral of the integral of k. Slots that have been open for D
and D' have the covariance kappa(D) + kappa(D') - kappa(|D - D'|).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from laplex._exponential import exponential
from laplex._small import block_diagonal
from laplex._states.chain import Chain
from laplex._states.components import Component, PerSeries, Reading, joined_readings

ROUNDS = 16  # each takes a quarter from the logarithms of what is left to balance


class Events:
    """The starts and ends of n exposures of each of h series, in order. Takes the place of a ``Line``."""

    def __init__(self, t: Tensor, exposure: Tensor) -> None:
        """``t`` (h, n) are the times, and ``exposure`` (h, n) the lengths of the exposures."""
        self.n = t.shape[1]
        starts, ends = t - exposure / 2, t + exposure / 2
        if not _is_true((starts < ends).all()):
            raise ValueError(
                "laplex.gp.GaussianProcess: `exposure` must be long enough to change the times, got exposures below "
                "the spacing of float64 there; subtract an origin from the times, or leave `exposure` out"
            )
        self.exposure = ends - starts  # as it is after rounding
        bounds = torch.cat([ends, starts], 1)  # ends first: a slot is free for the next start
        self.order = torch.argsort(bounds.detach(), dim=1, stable=True)
        self.times = bounds.gather(1, self.order)  # (h, 2n)
        self.which, self.ends = self.order % self.n, self.order < self.n  # whose event it is, and whether it is an end
        slots = [_slots(*rows) for rows in zip(self.which.tolist(), self.ends.tolist(), strict=True)]
        self.count = max(max(row) for row in slots) + 1  # of slots
        self.slot = torch.tensor(slots, device=t.device)  # (h, 2n)
        self.starts = starts
        self._open = self._open_exposures()

    def take(self, values: Tensor) -> Tensor:
        """Values (h, n) or (h, n, m) of exposures at their ends, and 0 at starts: (h, 2n) or (h, 2n, m)."""
        index, ends = (self.which, self.ends) if values.dim() == 2 else (self.which[..., None], self.ends[..., None])
        picked = values.gather(1, index.expand(*index.shape[:2], *values.shape[2:]))
        return torch.where(ends, picked, 0.0)

    def put(self, values: Tensor) -> Tensor:
        """The inverse of :meth:`take`."""
        back = torch.argsort(self.order, dim=1)[:, : self.n]
        return values.gather(1, back if values.dim() == 2 else back[..., None].expand(*back.shape, values.shape[-1]))

    def observed(self) -> Tensor:
        """Where something is observed: at ends, (h, 2n)."""
        return self.ends

    def masked(self, diag: Tensor) -> Tensor:
        """Return diag (h, 2n) with infinity at starts."""
        return torch.where(self.ends, diag, torch.inf)

    def sorted_times(self) -> Tensor:
        """The times of all events in order, (h, 2n), without gradients."""
        return self.times.detach()

    def chain(
        self, components: Sequence[Component], diag: Tensor, per_series: PerSeries, band: Tensor | None = None
    ) -> Chain:
        """The chain of all events; diag is (h, n) in the caller's order. There are no bands with exposures."""
        system = System.joined(components, per_series)
        gaps = torch.nn.functional.pad(self.times.diff(dim=1), (1, 0))
        starts = torch.nn.functional.one_hot(self.slot, self.count).bool() & ~self.ends[..., None]
        steps = self.reset(system.steps(gaps, self.count), starts)
        length = self.exposure.gather(1, self.which)
        own = torch.nn.functional.one_hot(self.slot, self.count).to(gaps.dtype)
        p = torch.nn.functional.pad(own / length[..., None], (system.size, 0))
        q = self._covariances(system, length) / length[..., None]
        ends = self.ends[..., None]
        return Chain(steps, torch.where(ends, p, 0.0), torch.where(ends, q, 0.0), self.masked(self.take(diag)))

    def _covariances(self, system: System, length: Tensor) -> Tensor:
        """The covariances of the states and slots with the slot that ends, (h, 2n, s + slots)."""
        _, u, kappa = system.integrals(length)
        since = self._since(self.times, torch.arange(2 * self.n, device=length.device).expand_as(self.order))
        inner = system.integrals(since.nan_to_num(0.0))[2] + kappa[..., None]
        inner = inner - system.integrals((since.nan_to_num(0.0) - length[..., None]).abs())[2]
        return torch.cat([u, torch.where(since.isnan(), 0.0, inner)], -1)

    def reset(self, steps: Tensor, starts: Tensor) -> Tensor:
        """Transitions (..., s + slots, s + slots) into events at which the slots ``starts`` (..., slots) begin anew."""
        emptied = torch.nn.functional.pad(starts, (steps.shape[-1] - self.count, 0))
        return torch.where(emptied[..., None], 0.0, steps)

    def steps(self, components: Sequence[Component], gaps: Tensor, per_series: PerSeries) -> Tensor:
        """Transitions (h, m, s + slots, s + slots) over gaps (h, m)."""
        return System.joined(components, per_series).steps(gaps, self.count)

    def entering(self, steps: Tensor, event: Tensor) -> Tensor:
        """Transitions that lead into events (h, m): the slots that begin there begin anew."""
        index = event.clamp(min=0)
        slot, ends = self.slot.gather(1, index), self.ends.gather(1, index)
        return self.reset(steps, torch.nn.functional.one_hot(slot, self.count).bool() & ~ends[..., None])

    def reading(
        self,
        components: Sequence[Component],
        t: Tensor,
        band: Tensor | None,
        event: Tensor,
        mask: Tensor,
        per_series: PerSeries,
    ) -> Reading:
        """The reading of the process itself at times t (h, m); ``event`` (h, m) is the last one before, -1 for none.

        ``mask`` (s,) has 1 for the states that are read, and 0 for others.
        """
        system = System.joined(components, per_series)
        p, q = (part.expand(*t.shape, -1) * mask for part in joined_readings(components, t, band, per_series))
        since = self._since(t, event.clamp(min=0))
        v = system.integrals(since.nan_to_num(0.0))[0]  # what an open slot has gained from the states where it began
        gained = (v * (system.q * mask)[:, None, None]).sum(-1)
        gained = torch.where(since.isnan() | (event < 0)[..., None], 0.0, gained)
        return Reading(torch.nn.functional.pad(p, (0, self.count)), torch.cat([q, gained], -1))

    def _since(self, t: Tensor, event: Tensor) -> Tensor:
        """How long every slot has been open at times t (h, m), at or just after ``event``; NaN if it is not open."""
        exposure = self._open.gather(1, event[..., None].expand(*event.shape, self.count))
        began = self.starts[:, None].expand(-1, exposure.shape[1], -1).gather(2, exposure.clamp(min=0))
        return torch.where(exposure < 0, torch.nan, t[..., None] - began)

    def _open_exposures(self) -> Tensor:
        """The exposure in every slot at every event, the one that ends there included, (h, 2n, slots); -1 for none."""
        h, events = self.order.shape
        touched = torch.nn.functional.one_hot(self.slot, self.count).bool()
        index = torch.arange(events, device=self.order.device)[:, None]
        last = torch.where(touched, index, -1).cummax(1).values  # the last event of the slot
        rows = torch.arange(h, device=self.order.device)[:, None, None]
        exposure, ended = self.which[rows, last.clamp(min=0)], self.ends[rows, last.clamp(min=0)]
        idle = (last < 0) | (ended & (last != index))
        return torch.where(idle, -1, exposure)


class System(NamedTuple):
    """F, h and q of all components together."""

    feedback: Tensor  # (h, s, s)
    p: Tensor  # (h, s)
    q: Tensor  # (h, s)

    @classmethod
    def joined(cls, components: Sequence[Component], per_series: PerSeries) -> System:
        """Join the components, side by side."""
        p, q = joined_readings(components, per_series(0.0)[:, None], None, per_series)
        feedback = block_diagonal([component.feedback(per_series) for component in components])
        return cls(feedback, p[:, 0], q[:, 0])

    @property
    def size(self) -> int:
        return self.p.shape[-1]

    def _exponentials(self, gaps: Tensor) -> Tensor:
        """exp(G D), (h, ..., s + 2, s + 2), for gaps (h, ...)."""
        top = torch.nn.functional.pad(self.p[:, None], (1, 1))
        middle = torch.nn.functional.pad(torch.cat([self.feedback, self.q[..., None]], -1), (1, 0))
        generator = torch.cat([top, middle, torch.zeros_like(top)], 1)
        units = self._units()
        ratios = units[:, None, :] / units[:, :, None]
        shape = len(generator), *(1,) * (gaps.dim() - 1), *generator.shape[1:]
        return exponential((generator * ratios).reshape(shape) * gaps[..., None, None]) / ratios.reshape(shape)

    def _units(self) -> Tensor:
        """Units (h, s + 2) of the integral, the states and the observation, powers of 2, without a graph.

        The exponential loses the digits of entries that are small next to the largest one of G. So rows and columns of
        F are balanced, whatever the unit of time is; and p and q, with the unit of y, are made as large as F.
        """
        sizes, p, q = (part.detach().abs() for part in self)
        units = torch.ones_like(p)
        for _ in range(ROUNDS):
            scaled = sizes * units[:, None, :] / units[:, :, None]
            rows, cols = scaled.sum(-1), scaled.sum(-2)
            units = units * torch.where((rows > 0) & (cols > 0), rows / cols, 1.0) ** 0.25
        rate = (sizes * units[:, None, :] / units[:, :, None]).amax((-2, -1))
        first, last = (p * units).amax(-1) / rate, rate / (q / units).amax(-1)
        first, last = (torch.where((unit > 0) & unit.isfinite(), unit, 1.0) for unit in (first, last))
        return torch.cat([first[:, None], units, last[:, None]], -1).log2().round().exp2()

    def integrals(self, gaps: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """v (h, ..., s), u (h, ..., s) and kappa (h, ...)."""
        powers = self._exponentials(gaps)
        return powers[..., 0, 1:-1], powers[..., 1:-1, -1], powers[..., 0, -1]

    def steps(self, gaps: Tensor, slots: int) -> Tensor:
        """Transitions (h, n, s + slots, s + slots) of the states and of slots that are open."""
        powers = self._exponentials(gaps)
        upper = torch.nn.functional.pad(powers[..., 1:-1, 1:-1], (0, slots))
        gains = powers[..., :1, 1:-1].expand(*gaps.shape, slots, self.size)
        unit = torch.eye(slots, dtype=gaps.dtype, device=gaps.device).expand(*gaps.shape, slots, slots)
        return torch.cat([upper, torch.cat([gains, unit], -1)], -2)


def _is_true(condition: Tensor) -> bool:
    try:
        return bool(condition)
    except RuntimeError as error:  # from vmap, whose tensors cannot be read
        raise RuntimeError(
            "laplex.gp.GaussianProcess: times and `exposure` must not be mapped by torch.func.vmap, because starts and "
            "ends are put in order; give the process a batch of series, (*batch, n)"
        ) from error


def _slots(which: list[int], ends: list[bool]) -> list[int]:
    """The slot of every event; where an exposure starts, it is the smallest free one."""
    free: list[int] = []
    held: dict[int, int] = {}
    slots = []
    for exposure, is_end in zip(which, ends, strict=True):
        if is_end:
            slot = held.pop(exposure)
            heapq.heappush(free, slot)
        else:
            slot = heapq.heappop(free) if free else len(held)
            held[exposure] = slot
        slots.append(slot)
    return slots
