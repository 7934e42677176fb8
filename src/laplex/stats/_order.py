"""The order of samples, and where points lie among them: by the compiled core where possible, else by torch."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from laplex import _backends
from laplex._compiled import core
from laplex._eager import plain, plainly_eager
from laplex._scan import ops
from laplex.stats._line import Line, Places, places_of


class Sorting(NamedTuple):
    """Samples x (h, n) in order."""

    s: Tensor  # (h, n), in float64
    order: Tensor  # (h, n): s = x[order]


class Finding(NamedTuple):
    """Points p (h, q) among samples, sorted, if that was cheap, for cache locality."""

    p: Tensor  # (h, q), in float64
    below: Tensor  # (h, q): how many samples are smaller
    upto: Tensor  # (h, q): how many are not larger
    order: Tensor | None  # (h, q): that of the points; None if they are as given

    def places(self, line: Line) -> Places:
        """The points among the samples of a line, all of which count."""
        return places_of(line, self.p, self.below, self.upto)


def sort(x: Tensor) -> Sorting:
    """Sort samples x (h, n)."""
    if _in_core(x):
        order = _core_order(x, x[:, :1])[0][0]
        return Sorting(x.gather(-1, order).double(), order)
    s, order = x.sort(dim=-1, stable=True)
    return Sorting(s.double(), order)


def sort_and_find(x: Tensor, points: Tensor) -> tuple[Sorting, Finding]:
    """Sort samples x (h, n), and find where points (h, q), of the same dtype, lie among them."""
    if _in_core(x, points):
        (order, below, upto), (x_order, *_) = _core_order(points, x)
        sorting = Sorting(x.gather(-1, x_order).double(), x_order)
        return sorting, Finding(points.gather(-1, order).double(), below, upto, order)
    sorting = sort(x)
    p = points.double().contiguous()
    s = sorting.s.detach().contiguous()
    below, upto = (torch.searchsorted(s, p.detach(), right=right) for right in (False, True))
    return sorting, Finding(p, below, upto, None)


def put_back(values: Tensor, order: Tensor | None) -> Tensor:
    """Put values (h, q) in an order back to the places where they were given."""
    return values if order is None else torch.zeros_like(values).scatter(-1, order, values)


def _in_core(*tensors: Tensor) -> bool:
    on_cpu = core is not None and tensors[0].device.type == "cpu"
    return on_cpu and plainly_eager() and all(map(plain, tensors))


def _core_order(a: Tensor, b: Tensor) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
    """For a (h, n) and for b (h, k): the order that sorts it and, in that order, the counts of the others < and <=."""
    table = _backends.load("cpp", "cpu")
    merged = ops.order(a.detach(), b.detach(), "merged", table)
    sides = (side.indices.long().unbind(1) for side in (merged.target, merged.source))
    (a_order, _, *a_counts), (b_order, _, *b_counts) = sides
    return (a_order, *a_counts), (b_order, *b_counts)
