"""Kernel density estimates on the line, with the Laplace distribution as the kernel."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from laplex._checks import counts
from laplex._checks.counts import integer
from laplex._checks.rows import warn_of_column
from laplex._checks.tau import row_lengths
from laplex._running import cumulative
from laplex.stats._estimation import PlacesOn, estimation
from laplex.stats._line import Line, one_sided, read, take
from laplex.stats._samples import batch_shape, masses, numbers, rows, sums_of_others


def kde(x: Tensor, points: Tensor | None = None, *, tau: Any, weights: Tensor | None = None) -> Tensor:
    r"""The logarithm of a kernel density estimate, at any points, in O((n + m) log n).

        log f(p) = log sum over j of w_j e^{-|p - x_j| / tau} / (2 tau W)        W: the sum of the weights w

    It is right however far a point is from all samples. Differentiable to any order in points, x, tau and weights;
    where a point is equal to a sample the derivative of their distance is taken as 0.

    Args:
        x (..., n): samples.
        points (..., m): where the density is estimated. None: at the samples, each of which is left out of the estimate
            at its own place (leave-one-out). Their sum is a likelihood by which :func:`bandwidth` chooses tau.
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
    problem = estimation("laplex.stats.kde", x, points, tau, weights)
    return problem.result(log_density(problem.line, problem.places_on, left_out=points is None))


def log_density(line: Line, places_on: PlacesOn, *, left_out: bool) -> Tensor:
    """Log densities (h, q), in float64; with ``left_out`` each sample is left out of the density at its own place."""
    terms = read(line, one_sided(line), places_on(line))
    w = line.mass[..., 0]
    total = sums_of_others(w) if left_out else w.sum(-1, keepdim=True)
    return terms.log_scale + terms.sums()[..., 0].log() - (2 * line.tau * total).log()


def kde_sample(
    x: Tensor,
    count: int,
    *,
    tau: Any,
    weights: Tensor | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Draw (..., count) numbers from the kernel density estimate: a sample plus Laplace noise each.

    They have derivatives in x and tau, with the choice of the sample held fixed.

    Args:
        x (..., n): samples.
        count: how many to draw from each row.
        tau: the bandwidth, as in :func:`kde`.
        weights (..., n): not negative; None for equal ones.
        generator: the random generator.

    Example:
        >>> laplex.stats.kde_sample(torch.tensor([0.0, 10.0]), 4, tau=0.1).shape
        torch.Size([4])
    """
    where = "laplex.stats.kde_sample"
    x = numbers(where, "x", x)
    warn_of_column(where, "x", x, "sample")
    w = masses(where, "weights", weights, x)
    count = integer(where, "count", count, 0)
    generator = counts.generator(where, generator, x.device)
    batch = batch_shape(where, tau, x=x, weights=w)
    length = row_lengths(where, "tau", tau, batch, x).reshape(-1, 1)
    n, h = x.shape[-1], math.prod(batch)
    uniform = torch.rand(2, h, count, generator=generator, device=x.device, dtype=torch.float64)
    place, level = uniform[0], uniform[1] - 0.5
    if w is None:
        index = (place * n).long().clamp(max=n - 1)
    else:
        mass = cumulative(rows(w.detach(), batch)[..., None])[..., 0]
        index = torch.searchsorted(mass, place * mass[:, -1:], right=True).clamp(max=n - 1)
    noise = -level.sign() * torch.log1p(-2 * level.abs())
    drawn: Tensor = take(rows(x, batch).double()[..., None], index)[..., 0] + length * noise
    return drawn.reshape(*batch, count).to(x.dtype)
