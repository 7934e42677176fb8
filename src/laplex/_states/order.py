"""The order of times, in C++ (csrc/times.cpp) or by torch."""

from __future__ import annotations

import torch
from torch import Tensor

from laplex._compiled import core
from laplex._eager import plain, plainly_eager


def _core_can_sort(t: Tensor) -> bool:
    """Whether C++ may read this tensor: an ordinary one in float64, on the CPU."""
    return core is not None and plainly_eager() and plain(t) and t.device.type == "cpu" and t.dtype == torch.float64


def sort_times(t: Tensor, counts: Tensor | None, ordered: bool | None = None) -> tuple[Tensor | None, Tensor]:
    """The order of times (h, n), None if they are in order already, and the sorted times, infinite beyond the counts.

    Equal times stay in the caller's order. ``ordered`` says whether they are in order, if that is known.
    """
    if _core_can_sort(t):
        t = t.contiguous()
        numbers = 0 if counts is None else counts.data_ptr()
        if core.times_in_order(t.data_ptr(), numbers, *t.shape):
            return None, _cut(t, counts)
        order, times = torch.empty_like(t, dtype=torch.int64), torch.empty_like(t)
        places = order.data_ptr(), times.data_ptr()
        if not core.sort_times(t.data_ptr(), numbers, *places, *t.shape, torch.get_num_threads()):
            return order, times
    t = _cut(t, counts)
    if ordered is None:
        ordered = _in_order(t)
    if ordered:
        return None, t
    # NaN is last.
    order = torch.argsort(t, dim=-1, stable=True).contiguous()
    return order, t.gather(1, order)


def _in_order(t: Tensor) -> bool:
    """Whether times are known to be in order. In a graph nobody can look, so they are sorted in any case."""
    if not plainly_eager() or not plain(t):
        return False
    return t.shape[-1] < 2 or bool((t[:, 1:] >= t[:, :-1]).all())


def _cut(t: Tensor, counts: Tensor | None) -> Tensor:
    """Return times (h, n) with infinity beyond the counts."""
    if counts is None:
        return t
    return t.masked_fill(~existing(counts, t.shape[-1]), torch.inf)


def existing(counts: Tensor, n: int) -> Tensor:
    """Which of n points exist in series of so many points, (h, n)."""
    return torch.arange(n, device=counts.device) < counts[:, None]


def survey(t: Tensor, other: Tensor) -> tuple[list[float], bool | None]:
    """The extremes of ordinary times and of another tensor, and whether the times are in order, None if unknown.

    On a GPU everything is read with one synchronisation.
    """
    if t.is_cpu:
        return [*extremes(t), *extremes(other)], None
    later, before = t.detach()[..., 1:], t.detach()[..., :-1]
    numbers = *t.detach().aminmax(), *other.detach().aminmax(), (later >= before).all().double()
    *values, ordered = torch.stack(numbers).tolist()
    return values, bool(ordered)


def extremes(x: Tensor) -> tuple[float, float]:
    """The smallest and the largest value of an ordinary tensor, NaN if there is one, in one pass over the memory."""
    if core is not None and x.dtype == torch.float64 and x.device.type == "cpu" and x.is_contiguous():
        both: tuple[float, float] = core.extremes(x.data_ptr(), x.numel())
        return both
    smallest, largest = torch.stack(x.detach().aminmax()).tolist()  # one synchronisation, on a GPU
    return smallest, largest
