r"""Kernel regression on the line: local constants (Nadaraya and Watson) and local lines.

Both come from the moments of the samples as a point p sees them, with weights w_j e^{-|p - x_j| / tau} that add up to 1
after division: the means of z = (x - p) / tau and of y, the variance of z, and the covariance of z and y,

    constant = mean y        linear = mean y - mean z * cov(z, y) / var z

Raw moments would cancel. Instead moments are merged: two groups with shares a and b of the weight have together

    mean = a mean_1 + b mean_2        var = a var_1 + b var_2 + a b (mean_1 - mean_2)^2

and likewise the covariance, in which nothing is subtracted that is not a difference of places or of values. Along the
samples the group so far meets one sample after the other; that is a running sum again, for L_j * var_j and L_j * cov_j,
with the terms a b (...)^2 as its sources. At a point the samples to its left, tied ones and those to its right merge.

    E. A. Nadaraya, On estimating regression, Theory of Probability and its Applications 9 (1964) 141-142.
    G. S. Watson, Smooth regression analysis, Sankhya A 26 (1964) 359-372.
    W. S. Cleveland, Robust locally weighted regression and smoothing scatterplots, Journal of the American Statistical
        Association 74 (1979) 829-836: local lines.
    D. P. Hofmeyr, Fast exact evaluation of univariate kernel sums, IEEE Transactions on Pattern Analysis and Machine
        Intelligence 43 (2021) 447-458: kernel sums in O(n log n), and regression by them.
    T. F. Chan, G. H. Golub, R. J. LeVeque, Algorithms for computing the sample variance, The American Statistician 37
        (1983) 242-247: variances that are merged.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from laplex._prefixes import previous
from laplex._running import running
from laplex.stats._estimation import PlacesOn, estimation
from laplex.stats._line import Line, Places, Terms, one_sided, ratio, read
from laplex.stats._samples import numbers

SMALLEST = 1e-290  # of sums and of variances of z: smaller ones lose digits
ALONE = 1e-60  # of the weight of the nearest samples; where all others have less, a line goes through the nearest


def nadaraya_watson(
    x: Tensor, y: Tensor, points: Tensor | None = None, *, tau: Any, weights: Tensor | None = None
) -> Tensor:
    r"""The mean of y near every point, each weighted by its distance, in O((n + m) log n).

        sum over j of w_j e^{-|p - x_j| / tau} y_j  /  sum over j of w_j e^{-|p - x_j| / tau}

    The weights never vanish: far away from all samples the result is that of the nearest ones. Differentiable to any
    order in all arguments; where a point is equal to a sample the derivative of their distance is taken as 0.

    Args:
        x (..., n): places of the samples.
        y (..., n): their values.
        points (..., m): where the mean is taken. None: at the samples, each of which is left out of the mean at its own
            place (leave-one-out), so that ``y - nadaraya_watson(x, y, tau=tau)`` are residuals that can choose tau, as
            :func:`bandwidth` does.
        tau: the bandwidth, in the units of x: a positive number, or a tensor with one value for every row.
        weights (..., n): not negative; None for equal ones.

    Returns:
        Values (..., m), or (..., n). Leading dimensions of all arguments broadcast.

    Example:
        >>> x, y = torch.tensor([0.0, 1.0, 2.0]), torch.tensor([0.0, 10.0, 20.0])
        >>> laplex.stats.nadaraya_watson(x, y, torch.tensor([1.0, 1e6]), tau=0.5)
        tensor([10.0000, 18.5094])
    """
    where = "laplex.stats.nadaraya_watson"
    problem = estimation(where, x, points, tau, weights, numbers(where, "y", y))
    return problem.result(constant(problem.line, problem.places_on))


def local_linear(
    x: Tensor, y: Tensor, points: Tensor | None = None, *, tau: Any, weights: Tensor | None = None
) -> Tensor:
    r"""The value at every point of the line that best fits y near it, in O((n + m) log n).

    The line has the least sum over j of w_j e^{-|p - x_j| / tau} (y_j - line)^2. A straight line is reproduced exactly,
    even at the ends of the data, where the mean of :func:`nadaraya_watson` is biased. Beyond them it extrapolates the
    line of the last samples. Where all samples are in one place, the line is flat.

    Arguments, results and derivatives are those of :func:`nadaraya_watson`. (There the gradient of a weight that is 0
    is always right; here it is 0 for points beyond all samples of positive weight on its side.)

    Example:
        >>> x, y = torch.tensor([0.0, 1.0, 2.0]), torch.tensor([0.0, 10.0, 20.0])
        >>> laplex.stats.local_linear(x, y, torch.tensor([1.0, 1e6]), tau=0.5)
        tensor([1.0000e+01, 1.0000e+07])
    """
    where = "laplex.stats.local_linear"
    problem = estimation(where, x, points, tau, weights, numbers(where, "y", y))
    return problem.result(linear(problem.line, problem.places_on))


def constant(line: Line, places_on: PlacesOn) -> Tensor:
    """The weighted mean of y at every place, (h, q)."""
    sums = read(line, one_sided(line), places_on(line)).sums()
    return sums[..., 1] / sums[..., 0]


class _Moments(NamedTuple):
    """The moments of samples as a place (h, q) sees them, by their weights there. z counts from it, over tau."""

    mean_z: Tensor
    mean_y: Tensor
    var: Tensor  # of z
    cov: Tensor  # of z and y


def linear(line: Line, places_on: PlacesOn) -> Tensor:
    """The value of the local line at every place, (h, q)."""
    places = places_on(line._replace(mass=_with_places(line)))
    states = _moments(line)
    terms = read(line, states, places)
    others = _beyond_nearest(line, terms, places)
    other_terms = read(line, states, others)
    near, far = _merged(line, terms, places), _merged(line, other_terms, others)
    # Samples whose weight is lost beside that of the nearest place still decide the slope of the line through it.
    z, y = far.mean_z - near.mean_z, far.mean_y - near.mean_y
    alone = other_terms.log_weight() - terms.log_weight() < math.log(ALONE)
    var = torch.where(alone, far.var + z.square(), near.var)
    cov = torch.where(alone, far.cov + z * y, near.cov)
    sloped = var > SMALLEST
    slope = torch.where(sloped, ratio(cov, torch.where(sloped, var, 1.0)), 0.0)
    return near.mean_y - near.mean_z * slope


def _merged(line: Line, terms: Terms, places: Places) -> _Moments:
    """The joint moments of the samples to the left, the tied ones and those to the right."""
    total = terms.shares[0] + terms.shares[1] + terms.shares[2]
    a, t, b = (share / total for share in terms.shares)
    (_, y_left, u_left, var_left, cov_left), (_, y_right, u_right, var_right, cov_right) = (
        side.unbind(-1) for side in (terms.left, terms.right)
    )
    tied = _tied_moments(terms.tied / total[..., None], (places.p - places.p.detach()) / line.tau)
    z_left, z_right = -terms.distances[0] - u_left, terms.distances[1] + u_right
    apart, y_apart = z_right - z_left, y_right - y_left
    var = a * var_left + b * var_right + a * b * apart.square() + t * tied[3] - tied[1].square()
    cov = b * cov_right - a * cov_left + a * b * apart * y_apart + t * tied[2] - tied[0] * tied[1]
    for share, z, y in ((a, z_left, y_left), (b, z_right, y_right)):
        var = var + share * (tied[3] - 2 * z * tied[1] + t * z.square())
        cov = cov + share * (tied[2] - y * tied[1] + z * (t * y - tied[0]))
    return _Moments(a * z_left + tied[1] + b * z_right, a * y_left + tied[0] + b * y_right, var, cov)


def _beyond_nearest(line: Line, terms: Terms, places: Places) -> Places:
    """The places without the samples nearest to each: those at one point of the line, on one side of the place.

    A place that would then see no sample keeps all it has.
    """
    s, n = line.s.detach(), line.s.shape[-1]
    counted, index = line.mass[..., 0].detach() > 0, torch.arange(n, device=s.device)
    last = pad(torch.where(counted, index, -1).cummax(-1).values, (1, 0), value=-1)  # of the first 0, 1 ... n samples
    first = pad(torch.where(counted, index, n).flip(-1).cummin(-1).values.flip(-1), (0, 1), value=n)  # from there on
    from_left, from_right = (s.gather(-1, side.clamp(0, n - 1)) for side in (last, first))
    nearest = torch.stack(terms.shares).detach().argmax(0)  # 0: on the left, 1: tied, 2: on the right
    below = torch.searchsorted(s, from_left.gather(-1, places.below))
    upto = torch.searchsorted(s, from_right.gather(-1, places.upto), right=True)
    below = torch.where(nearest == 0, below, places.below)
    upto = torch.where(nearest == 2, upto, places.upto)
    tied = torch.where((nearest == 1)[..., None], 0.0, places.tied)
    sees_any = (last.gather(-1, below) >= 0) | (first.gather(-1, upto) < n) | (tied[..., 0] > 0)
    return Places(
        places.p,
        torch.where(sees_any, below, places.below),
        torch.where(sees_any, upto, places.upto),
        torch.where(sees_any[..., None], tied, places.tied),
    )


def _with_places(line: Line) -> Tensor:
    """The masses w (1, y, z, y z, z^2), (h, n, 5). z is 0 and has the derivative of s / tau: a sample that is tied with
    a point has a place z that changes."""
    z = ((line.s - line.s.detach()) / line.tau)[..., None]
    return torch.cat([line.mass, line.mass * z, line.mass[..., :1] * z.square()], -1)


def _tied_moments(tied: Tensor, p: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Sums of (y, z, y z, z^2) over the samples tied with points, (h, q) each, with z measured from the points.

    The last three are 0 and have derivatives; p is 0 with the derivative of the points over tau.
    """
    t, y, z, yz, zz = tied.unbind(-1)
    return y, z - t * p, yz - y * p, zz - 2 * p * z + t * p * p


def _moments(line: Line) -> Tensor:
    """L, and times L: mean y, mean distance u, var u and cov(u, y), from both ends of the line, (2 h, n, 5)."""
    u, mass = line.both_ways()
    decay = torch.exp(-u)
    w, wy = mass.unbind(-1)
    sums = running(decay, mass)
    weight = sums[..., 0]
    arriving = decay * previous(weight)  # the weight of all samples before, as the next one sees it
    usable = weight > SMALLEST
    safe = torch.where(usable, weight, 1.0)
    stretch = running(decay, (u * arriving)[..., None])
    distance = u + previous(ratio(stretch[..., 0], safe))  # of the mean place of the samples before
    joint = torch.where(usable, ratio(arriving, safe), 0.0)
    products = torch.stack([w * distance.square(), distance * (w * previous(ratio(sums[..., 1], safe)) - wy)], -1)
    return torch.cat([sums, stretch, running(decay, joint[..., None] * products)], -1)
