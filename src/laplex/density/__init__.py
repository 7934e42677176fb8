r"""Gaussian densities over very many numbers, such as the pixels of images.

The model
    x = m + F z + d * eps,      z ~ N(0, 1) (r,),      eps ~ N(0, 1) (n,)

    The covariance of the n features is F F^T + diag(d^2). Every feature has a place a_p on a line, which also holds k
    knots b_j, and F is built from the kernel matrix A = K(a, b): n + k numbers, and r k for the latent covariance.

        LaplexGaussian    F = sum over i of diag(w_i) A L_i^T: the paper's model. Trained by Adam.
        PlacedGaussian    x_p = m_p + sum over c of w_cp y_c(a_p) + d_p eps, with q random functions
                          y_c(s) = sum over j of K(s, b_j) y_cj, jointly Gaussian. Fitted by EM.

    Between two knots a function is determined by its values at them. So a feature is q weights times the values at two
    neighbouring knots out of k, and these values may be correlated in any way: a low-rank Gaussian with a sparse
    factor, whose pattern of zeros is found by search.

Everything is exact
    With D = diag(d^2), the r x r matrix M = 1 + F^T D^-1 F gives likelihoods, posteriors, conditionals, marginals and
    divergences (``_factor``). M comes from Gram matrices A^T diag(.) A (:func:`laplex.gram`), and F^T D^-1 x from one
    product (:func:`laplex.linear`): for large n, nothing of size n x k or n x n is ever stored.

Fitting
    ``fit``       closed-form rounds of EM, in which every feature may jump to the best place on the line (``_em``,
                  ``_places``), annealed in their first half (``_anneal``). It needs no positions of pixels.
    ``EM``        the same, round by round, from a state that can be saved.
    ``Trainer``   Adam on the exact likelihood, from scratch or after EM.
"""

from laplex.density import files, images, pictures
from laplex.density._em import State
from laplex.density._examples import Examples
from laplex.density._factor import FactorGaussian
from laplex.density._fit import Evaluation, Fitted, evaluate, fit
from laplex.density._gaussian import LaplexGaussian, PlacedGaussian
from laplex.density._rounds import EM, Round
from laplex.density._starts import start
from laplex.density._structured import StructuredGaussian
from laplex.density._train import Trainer

__all__ = [
    "EM",
    "Evaluation",
    "Examples",
    "FactorGaussian",
    "Fitted",
    "LaplexGaussian",
    "PlacedGaussian",
    "Round",
    "State",
    "StructuredGaussian",
    "Trainer",
    "evaluate",
    "files",
    "fit",
    "images",
    "pictures",
    "start",
]
