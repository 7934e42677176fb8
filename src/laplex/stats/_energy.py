r"""Energy distances and the continuous ranked probability score, as integrals of squares over the merged samples.

With F and G the distribution functions of two weighted samples,

    2 E|X - Y| - E|X - X'| - E|Y - Y'| = 2 int (F - G)^2 dt

the three terms on the left nearly cancel where the samples are alike; the integral is a sum of squares over the gaps
between the merged samples, which is never negative and loses no digits. For samples without weights F - G comes from
whole numbers, which are exact. The unbiased estimators leave out the pairs of a sample with itself: with q the sum of
w^2,

    sum over i != j of w_i w_j |x_i - x_j| / (1 - q) = 2 int F (1 - F) dt / (1 - q)

The CRPS of an ensemble X for an observation y is half the energy distance of X and the sample {y}:
int (F - 1[t >= y])^2 dt = E|X - y| - E|X - X'| / 2.

The integral is linear in the places between ties, and its derivative there is a sum of masses: for a place z with the
mass s, -2 s (D_- + D_+), with D = F - G just before and just after z. At ties that is what the formula on the left has,
where the derivative of |x - y| is taken as 0.

    G. J. Szekely, M. L. Rizzo, Energy statistics: a class of statistics based on distances, Journal of Statistical
        Planning and Inference 143 (2013) 1249-1272.
    T. Gneiting, A. E. Raftery, Strictly proper scoring rules, prediction, and estimation, Journal of the American
        Statistical Association 102 (2007) 359-378.
    C. A. T. Ferro, Fair scores for ensemble forecasts, Quarterly Journal of the Royal Meteorological Society 140 (2014)
        1917-1923: the unbiased CRPS.
"""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import pad

from laplex._checks.rows import not_floating
from laplex._prefixes import following
from laplex._running import cumulative
from laplex.stats._line import equal_neighbours, run_bounds
from laplex.stats._order import sort
from laplex.stats._samples import Merged, merged, numbers


def energy_distance(
    x: Tensor,
    y: Tensor,
    *,
    weights_x: Tensor | None = None,
    weights_y: Tensor | None = None,
    unbiased: bool = False,
) -> Tensor:
    r"""The energy distance of two samples, 2 E|X - Y| - E|X - X'| - E|Y - Y'|, in O((n + m) log).

    It is 0 for equal samples and positive otherwise; it is not a square root (``scipy.stats.energy_distance`` is the
    root of it, ``dcor.energy_distance`` is the same). Differentiable in x, y and the weights; the derivative of the
    distance of equal samples is taken as 0.

    Args:
        x (..., n), y (..., m): samples. Leading dimensions of all arguments broadcast.
        weights_x (..., n), weights_y (..., m): not negative; only their ratios matter. None for equal ones.
        unbiased: leave out pairs of a sample with itself (the U-statistic). Its mean is 0 if both samples have the same
            distribution, so it may be negative. With False, the V-statistic, all pairs count.

    Returns:
        The distance (...), in the units of x.

    Example:
        >>> laplex.stats.energy_distance(torch.tensor([0.0, 1.0]), torch.tensor([0.0, 2.0]))
        tensor(0.5000)
    """
    where = "laplex.stats.energy_distance"
    data = merged(where, x, y, weights_x, weights_y, unbiased)
    return data.result(energy(data, unbiased))


def crps(observation: Tensor, ensemble: Tensor, *, weights: Tensor | None = None, unbiased: bool = False) -> Tensor:
    r"""The continuous ranked probability score of ensembles, int (F - 1[t >= y])^2 dt, in O(n log n).

        CRPS = E|X - y| - E|X - X'| / 2        X, X': members of the ensemble, y: the observation

    Smaller is better; 0 is for a forecast that is certain and right. Differentiable in all arguments.

    Args:
        observation (...): what happened.
        ensemble (..., n): what was forecast.
        weights (..., n): those of the members, not negative; only their ratios matter. None for equal ones.
        unbiased: leave out pairs of a member with itself (the "fair" score), which is unbiased for the distribution
            that the members are drawn from. With False all pairs count (the "nrg" and "qd" of ``scoringrules``).

    Returns:
        Scores (...), in the units of the ensemble.

    Example:
        >>> laplex.stats.crps(torch.tensor(1.0), torch.tensor([0.0, 1.0, 4.0]))
        tensor(0.4444)
    """
    where = "laplex.stats.crps"
    ensemble = numbers(where, "ensemble", ensemble)
    if not isinstance(observation, Tensor) or not observation.is_floating_point():
        raise not_floating(where, "observation", observation)
    names = ("ensemble", "observation", "weights", "weights_y")
    data = merged(where, ensemble, observation[..., None], weights, None, unbiased, names=names, single=True)
    return data.result(energy(data, unbiased) / 2)


def energy(data: Merged, unbiased: bool) -> Tensor:
    """The energy distance (h,)."""
    z, order = sort(data.z)
    signed, unit = data.signed()
    value = squared_difference(z, signed.gather(-1, order)) * unit**2
    if unbiased:
        for mass, excess in data.excesses():
            value = value - excess * mean_distance(z, mass.gather(-1, order))
    return value


def squared_difference(z: Tensor, masses: Tensor) -> Tensor:
    """2 int (F - G)^2 dt, (h,), for places z (h, n) in order and their signed masses."""
    fixed, after = z.detach(), cumulative(masses[..., None])
    value = squared_differences_in_order(fixed.diff(dim=-1), after)[:, 0]
    before, beyond = _around_ties(fixed, after[..., 0])
    return value - 2 * ((z - fixed) * masses * (before + beyond)).sum(-1)


def mean_distance(z: Tensor, masses: Tensor) -> Tensor:
    """sum over i, j of w_i w_j |z_i - z_j| = 2 int F (1 - F) dt, (h,), for masses with the sum 1."""
    fixed, after, beyond = z.detach(), cumulative(masses[..., None]), mass_beyond(masses[..., None])
    value = mean_distances_in_order(fixed.diff(dim=-1), after, beyond)[:, 0]
    first, last = run_bounds(*equal_neighbours(fixed))
    below, above = pad(after[..., 0], (1, 0)).gather(-1, first), beyond[..., 0].gather(-1, last)
    return value + 2 * ((z - fixed) * masses * (below - above)).sum(-1)


def squared_differences_in_order(gap: Tensor, after: Tensor) -> Tensor:
    """2 int (F - G)^2 dt, (h, c), for F - G after every place (h, n, c), and the gaps (h, n - 1) between them."""
    return 2 * (after[:, :-1].square() * gap[..., None]).sum(1)


def mean_distances_in_order(gap: Tensor, after: Tensor, beyond: Tensor) -> Tensor:
    """2 int F (1 - F) dt, (h, c), for F and 1 - F after every place (h, n, c), and the gaps (h, n - 1) between them."""
    return 2 * ((after * beyond)[:, :-1] * gap[..., None]).sum(1)


def mass_beyond(masses: Tensor) -> Tensor:
    """The sum of the masses (h, n, c) that come after every place, without a subtraction."""
    return following(cumulative(masses.flip(1)).flip(1))


def _around_ties(z: Tensor, after: Tensor) -> tuple[Tensor, Tensor]:
    """The sums before the first place equal to each, and up to the last one, from the sums up to every place."""
    first, last = run_bounds(*equal_neighbours(z))
    return pad(after, (1, 0)).gather(-1, first), after.gather(-1, last)
