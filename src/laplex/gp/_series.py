"""The times of a Gaussian process as h series of n sorted points, whatever shape the caller gave them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from laplex._eager import is_trained, normal_mode, plainly_eager
from laplex._states.components import Value
from laplex._states.line import Line, line_between, line_over
from laplex._states.order import sort_times


class Series:
    """Times (*batch, n), or a list of series of different sizes, padded to the largest.

    The caller's arrays are (*batch, n); inside they are (h, n), where h is the number of all series.
    """

    def __init__(
        self, t: Tensor, batch: torch.Size, counts: Tensor | None, *, sort: bool = True, ordered: bool | None = None
    ) -> None:
        """``t`` (*any, n) broadcasts to (*batch, n); counts (h,) are given if series are padded.

        Pass ``sort=False`` if nobody needs the line. ``ordered`` says whether t is in order, if that is known.
        """
        self.batch, self.n, self.counts = batch, t.shape[-1], counts
        self.caller_times = t  # (*any, n), as the caller gave them
        self._line: Line | None = None
        self._version: int | None = None  # how often the times were changed in place; None if that is not known
        if sort and not is_trained(t):  # trained times are sorted each time they are used: they may have moved
            self._sort(ordered)

    @property
    def t(self) -> Tensor:
        """The times (h, n), in the caller's order."""
        return self.flat(self.caller_times)

    def _sort(self, ordered: bool | None = None) -> None:
        with normal_mode():  # later calls may differentiate
            self._order, self._sorted_times = sort_times(self.flat(self.caller_times.detach()), self.counts, ordered)
        self._line, self._version = None, 0
        if plainly_eager():
            unknown = self.caller_times.is_inference() or is_trained(self.caller_times)
            self._version = None if unknown else self.caller_times._version

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_line": None, "_version": -1}  # a copy's times are a tensor with other writes

    def _is_differentiated(self) -> bool:
        """Whether the times may be differentiated, now or later. In forward mode a tensor does not show this."""
        return self.caller_times.requires_grad or forward_ad._current_level >= 0 or not plainly_eager()

    def _follow(self) -> None:
        """Sort again if the times have changed since, by an optimizer, say."""
        if self._version is None or (plainly_eager() and self.caller_times._version != self._version):
            self._sort()

    def ordered(self) -> tuple[Tensor, Tensor | None]:
        """The times (h, n) in order, infinite where series are padded, and the caller's index of every point.

        The index is None if the caller's times are in order.
        """
        self._follow()
        return self._sorted_times, self._order

    def line(self) -> Line:
        """The gaps, differentiable in the times."""
        self._follow()
        if self._is_differentiated():
            return line_between(self.t, self._order, self.counts)
        if self._line is None:
            with normal_mode():
                self._line = self._fixed_line()
        return self._line

    def _fixed_line(self) -> Line:
        gaps = torch.nn.functional.pad(self._sorted_times.diff(dim=1), (1, 0))
        return line_over(self.t, gaps, self._order, self.counts)

    def complete(self, values: Tensor) -> Tensor:
        """Expand values that broadcast to (*batch, n) to a number for each point, in float64."""
        return values.double() if values.shape == (*self.batch, self.n) else self.flat(values)

    def flat(self, values: Tensor) -> Tensor:
        """Return values (*any, m), which broadcast to the batch, as (h, m) in float64."""
        values = values.double()
        if values.dim() == 1 and not self.batch:
            return values[None]
        values = values.expand(*self.batch, values.shape[-1])
        return values.reshape(self.batch.numel(), values.shape[-1])

    def shaped(self, values: Tensor) -> Tensor:
        """Return (h, ...) as (*batch, ...): the inverse of :meth:`flat`."""
        return values.reshape((*self.batch, *values.shape[1:]))

    def per_series(self, value: Value) -> Tensor:
        """A parameter of a kernel as one number per series."""
        if isinstance(value, Tensor):
            return value.to(self.caller_times).expand(self.batch).reshape(self.batch.numel())
        return self.caller_times.new_full((self.batch.numel(),), value)


def padded(values: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return tensors (n_i,) as one (series, n), each padded with its last number, and their sizes."""
    size = max(len(tensor) for tensor in values)
    rows = [torch.cat([tensor, tensor[-1:].expand(size - len(tensor))]) for tensor in values]
    return torch.stack(rows), torch.tensor([len(tensor) for tensor in values], device=values[0].device)


def unpadded(values: Tensor, counts: Sequence[int]) -> list[Tensor]:
    """Split (..., series, n) into a tensor for each series: the inverse of :func:`padded`."""
    return [values[..., i, :count] for i, count in enumerate(counts)]
