r"""Kernel statistics on the line, exact, differentiable and in O(n log n): densities, regression, two-sample distances.

    laplex.stats.kde(x, points, tau=0.1)                      log densities
    laplex.stats.nadaraya_watson(x, y, points, tau=0.1)       local means; local_linear: local lines
    laplex.stats.mmd(x, y, tau=0.1)                           squared maximum mean discrepancy
    laplex.stats.energy_distance(x, y), crps(y, ensemble)
    laplex.stats.permutation_test(x, y, tau=0.1)              p values
    laplex.stats.sliced_mmd(x, y, tau=0.1)                    for vectors, by projections

Samples are in the last dimension, and leading dimensions broadcast. tau is in the units of x. All sums are in float64,
whatever the dtype of the samples; results have the dtype that samples, values and points promote to, on which weights
and tau have no influence. Nothing of size n x m is made.

The mathematics
    Everything is a running sum over sorted samples z_1 <= z_2 <= ..., one pass from the left or from the right:

        L_j = e^{-(z_j - z_{j-1}) / tau} L_{j-1} + s_j = sum over i <= j of e^{-(z_j - z_i) / tau} s_i

    _line.py         a sum over all samples, seen from a point, is one L from its left, one R from its right, and ties.
                     Scaled by the term of the nearest sample it never underflows; leaving a sample out needs no
                     subtraction
    _density.py      densities are its logarithm, minus log(2 tau W)
    _regression.py   means and slopes are moments under these weights, merged so that nothing cancels
    _bandwidth.py    tau with the best leave-one-out score, O(n) a try
    _mmd.py          s^T K s = sum over j of L_j^2 (1 - e^{-2 (z_{j+1} - z_j) / tau}), for signed masses s: squares only
    _energy.py       its limit for a large tau: 2 int (F - G)^2 dt
    _sliced.py       means over projections of vectors
    _permutations.py permuted labels are other masses s on the same line: one sort for all of them
    _samples.py, _order.py    checks and shapes; sorting

    Where samples or points are equal, the derivative of their distance is taken as 0, as in ``laplex.linear``.
"""

from laplex.stats._bandwidth import bandwidth
from laplex.stats._density import kde, kde_sample
from laplex.stats._energy import crps, energy_distance
from laplex.stats._mmd import mmd
from laplex.stats._permutations import PermutationTest, permutation_test
from laplex.stats._regression import local_linear, nadaraya_watson
from laplex.stats._sliced import sliced_energy_distance, sliced_mmd

__all__ = [
    "PermutationTest",
    "bandwidth",
    "crps",
    "energy_distance",
    "kde",
    "kde_sample",
    "local_linear",
    "mmd",
    "nadaraya_watson",
    "permutation_test",
    "sliced_energy_distance",
    "sliced_mmd",
]
