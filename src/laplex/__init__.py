r"""Exact, trainable Laplace-kernel matrices in O(n log n), never formed.

The matrix
    K[i, j] = exp(-|a_i - b_j| / tau) * cos(phi_i - psi_j),        i < n, j < k

    a (n,)   row anchors, output side          phi (n,)   row phases, optional
    b (k,)   column anchors, input side        psi (k,)   column phases, optional
    tau      length scale, > 0

A dense n x k matrix held as n + k numbers (2n + 2k with phases). For a = (0, 1, 2), b = (0, 1, 3), tau = 1 and
e = exp(-1):

    K = [[1,   e,   e^3],
         [e,   1,   e^2],
         [e^2, e,   e  ]]

The algorithm
    Sort, then sum from the left and from the right. With  d_ij = exp(-|a_i - b_j| / tau),

        L_i = sum over b_j < a_i of d_ij x_j         strictly left of a_i
        R_i = sum over b_j > a_i of d_ij x_j         strictly right of a_i
        T_i = sum over b_j = a_i of x_j              ties

        even  E = L + T + R = K x                    odd  O = R - L = S x,   S_ij = sign(b_j - a_i) d_ij

    L and R take one pass each over the sorted anchors. Everything else is made of E and O. In particular
    dK/da = S / tau, so the gradients of a product are products of the same kind, at every order.

The Gram matrix
    K diag(w) K^T needs the same sums at tau / 2, and the total weight of the columns between two rows. These sums are
    computed once; then each of the n^2 entries costs O(1).

Solves
    With the anchors sorted, the symmetric K(a, a) and the Gram matrices K diag(w) K^T are quasiseparable: all points
    left of a point act on it through a state of one number, or a few. So with a positive diagonal added they are
    factored, solved and sampled from in O(n).

The tie rule
    Where a_i = b_j the matrix has a kink. The derivative there is 0, as autograd gives through |0|
    in the dense definition.

Leading dimensions of the anchors are a batch of independent matrices. ``laplex.reference`` holds the dense definition,
with which every result is tested.
"""

from laplex import backends as backends
from laplex import density as density
from laplex import disk as disk
from laplex import distributed as distributed
from laplex import gp as gp
from laplex import nn as nn
from laplex import reference as reference
from laplex import soft as soft
from laplex import stats as stats
from laplex._algebra import SumOperator as SumOperator
from laplex._cholesky import CholeskyFactor as CholeskyFactor
from laplex._errors import PerformanceWarning as PerformanceWarning
from laplex._errors import PrecisionWarning as PrecisionWarning
from laplex._errors import ShapeWarning as ShapeWarning
from laplex._errors import StalePlanError as StalePlanError
from laplex._functional import gram as gram
from laplex._functional import linear as linear
from laplex._gram_operator import GramOperator as GramOperator
from laplex._operator import LaplaceOperator as LaplaceOperator
from laplex._plan import Plan as Plan
from laplex._rank import rank as rank
from laplex._reseat import Seats as Seats
from laplex._reseat import reseat as reseat
from laplex._seriation import seriate as seriate
from laplex._version import __version__ as __version__

__all__ = [
    "CholeskyFactor",
    "GramOperator",
    "LaplaceOperator",
    "PerformanceWarning",
    "Plan",
    "PrecisionWarning",
    "Seats",
    "ShapeWarning",
    "StalePlanError",
    "SumOperator",
    "__version__",
    "backends",
    "density",
    "disk",
    "distributed",
    "gp",
    "gram",
    "linear",
    "nn",
    "rank",
    "reference",
    "reseat",
    "seriate",
    "soft",
    "stats",
]
