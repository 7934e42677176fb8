"""Kernel density estimates on the line, with the Laplace distribution as the kernel."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from laplex.stats._line import Line, one_sided, places_left_out, read
from laplex.stats._order import put_back, sort, sort_and_find
from laplex.stats._samples import Shape, at_least_two, batch_shape, length_scale, masses, numbers, rows


def kde(x: Tensor, points: Tensor | None = None, *, tau: Any, weights: Tensor | None = None) -> Tensor:
    r"""The logarithm of a kernel density estimate, at any points, in O((n + m) log n).

        log f(p) = log sum over j of w_j e^{-|p - x_j| / tau} / (2 tau W)        W: the sum of the weights w

    It is right however far from all samples a point is. Differentiable to any order in points, x, tau and weights;
    where a point is equal to a sample the derivative of their distance is taken as 0.

    Args:
        x (..., n): samples.
        points (..., m): where the density is estimated. None: at the samples, each of which is left out of the estimate
            at its own place (leave-one-out). The sum of that is a likelihood, which can choose tau: :func:`bandwidth`.
        tau: the bandwidth, in the units of x: a positive number, or a tensor with one value for every row.
        weights (..., n): not negative; None for equal ones.

    Returns:
        Log densities (..., m), or (..., n). Leading dimensions of all arguments broadcast.

    Example:
        >>> x = torch.tensor([0.0, 1.0, 3.0])
        >>> laplex.stats.kde(x, torch.tensor([0.0, 1e6]), tau=1.0).exp()
        tensor([0.2363, 0.0000])
        >>> laplex.stats.kde(x, torch.tensor([1e6]), tau=1.0)  # log(e^3 + e + 1) - log(6) - 1e6
        tensor([-999998.6250])
    """
    where = "laplex.stats.kde"
    x = numbers(where, "x", x)
    w = masses(where, "weights", weights, x)
    tau = length_scale(where, tau, x)
    if points is not None:
        points = numbers(where, "points", points, x)
    batch = batch_shape(where, tau, x=x, points=points, weights=w)
    n, dtype = x.shape[-1], x.dtype if points is None else torch.promote_types(x.dtype, points.dtype)
    flat, tau = rows(x, batch), tau.expand(batch).reshape(-1, 1)
    if points is None:
        at_least_two(where, n, w)
        log_density = left_out(flat, None if w is None else rows(w, batch), tau)
        return log_density.reshape(*batch, n).to(dtype)
    sorting, finding = sort_and_find(flat.to(dtype), rows(points, batch).to(dtype))
    mass = _sorted_weights(w, sorting.order, batch)
    line = Line(sorting.s, mass[..., None], tau, w is not None)
    terms = read(line, one_sided(line), finding.places(line))
    log_density = terms.log_scale + terms.sums()[..., 0].log() - (2 * tau * mass.sum(-1, keepdim=True)).log()
    return put_back(log_density, finding.order).reshape(*batch, points.shape[-1]).to(dtype)


def left_out(x: Tensor, w: Tensor | None, tau: Tensor) -> Tensor:
    """Log densities (h, n) at samples x (h, n), each left out of its own, for w (h, n) and tau (h, 1); in float64."""
    sorting = sort(x)
    return put_back(left_out_in_order(sorting.s, None if w is None else w.gather(-1, sorting.order), tau), sorting.order)


def left_out_in_order(s: Tensor, w: Tensor | None, tau: Tensor) -> Tensor:
    """The same for samples (h, n) in order, in float64."""
    mass = torch.ones_like(s) if w is None else w
    line = Line(s, mass[..., None], tau, w is not None)
    terms = read(line, one_sided(line), places_left_out(line))
    others = s.new_full((1, 1), s.shape[-1] - 1.0) if w is None else _sums_of_others(w)
    return terms.log_scale + terms.sums()[..., 0].log() - (2 * tau * others).log()


def kde_sample(
    x: Tensor,
    count: int,
    *,
    tau: Any,
    weights: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Draws (..., count) from the kernel density estimate: a sample, and noise of the Laplace distribution.

    They have derivatives in x and tau, with the choice of the sample held.

    Args:
        x (..., n): samples.
        count: how many to draw from each row.
        tau: the bandwidth, as in :func:`kde`.
        weights (..., n): not negative; None for equal ones.
        generator: of the random numbers.

    Example:
        >>> laplex.stats.kde_sample(torch.tensor([0.0, 10.0]), 4, tau=0.1).shape
        torch.Size([4])
    """
    where = "laplex.stats.kde_sample"
    x = numbers(where, "x", x)
    w = masses(where, "weights", weights, x)
    tau = length_scale(where, tau, x)
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise ValueError(f"{where}: `count` must be an integer, 0 or more, got {count!r}")
    batch = batch_shape(where, tau, x=x, weights=w)
    draw = {"generator": generator, "device": x.device, "dtype": torch.float64}
    n, h = x.shape[-1], math.prod(batch)
    place, level = torch.rand(h, count, **draw), torch.rand(h, count, **draw) - 0.5
    if w is None:
        index = (place * n).long().clamp(max=n - 1)
    else:
        mass = rows(w.detach(), batch).cumsum(-1)
        index = torch.searchsorted(mass, place * mass[:, -1:], right=True).clamp(max=n - 1)
    noise = -level.sign() * torch.log1p(-2 * level.abs())
    drawn = rows(x, batch).double().gather(-1, index) + tau.expand(batch).reshape(-1, 1) * noise
    return drawn.reshape(*batch, count).to(x.dtype)


def _sorted_weights(w: Tensor | None, order: Tensor, batch: Shape) -> Tensor:
    """Weights in the order of the samples, (h, n); ones without weights."""
    if w is None:
        return torch.ones_like(order, dtype=torch.float64)
    return rows(w, batch).gather(-1, order)


def _sums_of_others(w: Tensor) -> Tensor:
    """For every weight the sum of all others, (h, n), without a subtraction."""
    before, after = w.cumsum(-1)[:, :-1], w.flip(-1).cumsum(-1)[:, :-1].flip(-1)
    return pad(before, (1, 0)) + pad(after, (0, 1))
