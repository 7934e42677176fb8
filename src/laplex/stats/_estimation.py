"""What estimates at points have in common: samples in order on a line, and the places where estimates are wanted."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from laplex._checks.rows import warn_of_column
from laplex._checks.tau import row_lengths
from laplex.stats._line import Line, Places, places_left_out
from laplex.stats._order import put_back, sort, sort_and_find
from laplex.stats._samples import Shape, at_least_two, batch_shape, common_dtype, masses, numbers, rows

PlacesOn = Callable[[Line], Places]


class Estimation(NamedTuple):
    """Samples, and where estimates are wanted."""

    line: Line
    places_on: PlacesOn
    order: Tensor | None  # (h, q): of the places
    shape: Shape  # of the result
    dtype: torch.dtype  # of the result

    def result(self, values: Tensor) -> Tensor:
        """Return values (h, q) in the order and the shape in which the caller gave the places."""
        return put_back(values, self.order).reshape(self.shape).to(self.dtype)


def estimation(where: str, x: Any, points: Any, tau: Any, weights: Any, y: Any = None) -> Estimation:
    """Check the arguments of an estimate; without points it leaves out every sample at its own place."""
    x = numbers(where, "x", x)
    warn_of_column(where, "x", x, "sample")
    y = values(where, y, x)
    w = masses(where, "weights", weights, x)
    if points is None:
        at_least_two(where, x.shape[-1], w)
    else:
        points = numbers(where, "points", points, x)
    batch = batch_shape(where, tau, x=x, y=y, points=points, weights=w)
    flat, length = rows(x, batch), row_lengths(where, "tau", tau, batch, x).reshape(-1, 1)
    places_dtype = torch.promote_types(torch.float32, common_dtype(x, points))
    order: Tensor | None
    if points is None:
        sorting = sort(flat.to(places_dtype))
        places_on, order, size = places_left_out, sorting.order, x.shape[-1]
    else:
        sorting, finding = sort_and_find(flat.to(places_dtype), rows(points, batch).to(places_dtype))
        places_on, order, size = finding.places, finding.order, points.shape[-1]
    line = line_of(sorting.s, _in_order(w, sorting.order, batch), length, _in_order(y, sorting.order, batch))
    return Estimation(line, places_on, order, (*batch, size), common_dtype(x, y, points))


def values(where: str, y: Any, x: Tensor) -> Tensor | None:
    """Return y, which must have one value for each sample; None stays None."""
    if y is None:
        return None
    y = numbers(where, "y", y, x)
    if y.shape[-1] != x.shape[-1]:
        raise ValueError(
            f"{where}: `y` must have one value for each of the {x.shape[-1]} samples `x`, got shape {tuple(y.shape)}"
        )
    checked: Tensor = y
    return checked


def line_of(s: Tensor, w: Tensor | None, tau: Tensor, y: Tensor | None = None) -> Line:
    """Samples s (h, n) in order, with the masses w, or w (1, y)."""
    mass = torch.ones_like(s) if w is None else w
    channels = [mass] if y is None else [mass, mass * y]
    return Line(s, torch.stack(channels, -1), tau, w is not None)


def _in_order(value: Tensor | None, order: Tensor, batch: Shape) -> Tensor | None:
    """Return (..., n) as (h, n), in the order of the samples and in float64; None stays None."""
    return None if value is None else rows(value, batch).double().gather(-1, order)
