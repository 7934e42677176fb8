r"""For few examples: the latent covariance is shrunk towards one that few examples determine.

The q functions have the values f_i = y(b_i) (q,) at the knots, with the covariance F = K T K^T (K q, K q), T as in
``_em``. Between two knots a function is determined by its values at them, so the blocks F_ii and F_i+1,i of neighbours
give the variance of every feature, and the covariances of all features between the same knots. Each is a mean of a few
numbers over all examples, and well known. The correlations of distant knots are many, and with few examples mostly
chance. The target keeps the former, and of the latter only what varies most; the rest follows the line:

    f = U z + g                                       m patterns across the line, and what they leave
    U U^T = F O (O^T F O)^-1 O^T F,   G = F - U U^T   O (K q, m) spans the patterns that vary most
    g_i+1 = A_i g_i + e_i,   A_i = G_i+1,i G_ii^-1    from knot to knot, e_i independent of all before: a Markov chain

Its blocks of neighbours are those of F. So shrinking changes no feature's variance, and samples are as wild as the
examples, but no wilder. In terms of the latent variables y = K^-1 f, with V the covariance of the f above,

    Q = (1 - part) T + part K^-1 V K^-1

Independent y would not do: in an estimate of T the y cancel one another, and without that K makes far larger functions.
"""

from __future__ import annotations

import torch
from torch import Tensor

EXAMPLES_OF_A_PATTERN = 10  # one pattern is kept per this many examples
RIDGE = 1e-6  # relative to the mean variance of the functions at a knot
LEAST_RIDGE = 1e-9  # relative to the mean of a diagonal: makes rounding harmless


def shrinkage(rank: int, count: int) -> float:
    """The fraction of the latent covariance that a fit replaces by a simpler one: large if there are few examples.

    The covariance of ``rank`` latent variables is estimated from ``count`` examples. If count is below rank, it is all
    but singular, and held-out examples, which leave the span of the others, become unlikely. So it is mixed with the
    covariance of smooth functions. These keep the variance of every feature, and the correlations of features whose
    places are near one another; of the correlations across the line only the strongest patterns, one per ten examples.
    The fraction is rank / (rank + count), as if the simpler covariance had been seen in as many examples as there are
    latent variables; half and a quarter of that were nearly as good (`python -m benchmarks.studies.shrinkage`).
    """
    return rank / (rank + count)


def shrunk(moments: Tensor, spread: Tensor, knots: Tensor, tau: float, *, part: float, count: int) -> Tensor:
    """The shrunk covariance Q (qK, qK), in float64.

    Args:
        moments (qK, qK): T.
        spread (K, K, q, q): F, block by block.
        knots (K,), tau: the knots and the length scale of the kernel.
        part: the fraction of the target, from 0, which changes nothing, to 1.
        count: how many examples T comes from.
    """
    if part == 0:
        return moments
    several, _, q, _ = spread.shape
    covariance = spread.transpose(1, 2).reshape(several * q, several * q)
    covariance = (covariance + covariance.mT) / 2
    patterns = _patterns(covariance, min(count // EXAMPLES_OF_A_PATTERN, len(covariance) // 4))
    known = patterns @ patterns.mT
    target = known + _chain((covariance - known).reshape(several, q, several, q))
    for _ in range(2):  # K^-1 from both sides, and back to the order of y: one function after the other
        target = _weights(target.reshape(several, -1), knots.double(), tau).reshape(several, q, -1)
        target = target.transpose(0, 1).reshape(several * q, -1).mT
    return torch.lerp(moments, target, part)


def _patterns(covariance: Tensor, most: int) -> Tensor:
    """U (K q, m) for F (K q, K q). F - U U^T is definite for any O; this one spans F times m evenly spaced columns."""
    if most == 0:
        return covariance[:, :0]
    some = torch.linspace(0, len(covariance) - 1, most, device=covariance.device).round().long()
    first = _explained(covariance[:, some], covariance[some[:, None], some])
    pushed = covariance @ first
    return _explained(pushed, first.mT @ pushed)


def _explained(pushed: Tensor, inner: Tensor) -> Tensor:
    """U from F O and O^T F O."""
    inner = (inner + inner.mT) / 2
    ridge = LEAST_RIDGE * inner.diagonal().mean() * _unit(len(inner), inner)
    chol = torch.linalg.cholesky(inner + ridge)
    return torch.linalg.solve_triangular(chol, pushed.mT, upper=False).mT  # type: ignore[no-any-return]


def _chain(covariance: Tensor) -> Tensor:
    """The covariance (K q, K q) of the Markov chain with the same blocks of neighbours as G (K, q, K, q).

    For j > i it is A_j-1 ... A_i G_ii. The inverse of the matrix with 1 on its diagonal and -A_i below it contains all
    these products: it is applied to the blocks G_ii.
    """
    size = covariance.shape[0] * covariance.shape[1]
    same = covariance.diagonal(dim1=0, dim2=2).movedim(-1, 0)
    later = covariance.diagonal(-1, dim1=0, dim2=2).movedim(-1, 0)  # G_i+1,i
    own = same.diagonal(dim1=1, dim2=2).mean(1)
    same = same + (RIDGE * own + LEAST_RIDGE * own.mean())[:, None, None] * _unit(same.shape[1], same)
    step = torch.cholesky_solve(later.mT, torch.linalg.cholesky(same[:-1])).mT  # A_i
    blocks, back = torch.zeros_like(covariance), torch.zeros_like(covariance)
    blocks.diagonal(dim1=0, dim2=2).copy_(same.movedim(0, -1))
    back.diagonal(-1, dim1=0, dim2=2).copy_(-step.movedim(0, -1))
    blocks, back = blocks.reshape(size, size), back.reshape(size, size)
    below = torch.linalg.solve_triangular(back, blocks, upper=False, unitriangular=True)
    return below + below.mT - blocks  # type: ignore[no-any-return]


def _weights(values: Tensor, knots: Tensor, tau: float) -> Tensor:
    """K^-1 f for f (K, m): K is the covariance of a Markov chain, so that K^-1 has three diagonals."""
    gap = knots.diff()[:, None] / tau
    near, lost = torch.exp(-gap), -torch.expm1(-2 * gap)
    weights = values.clone()
    weights[1:] = (values[1:] - near * values[:-1]) / lost  # what is new at a knot, over its variance
    weights[:-1] -= near * weights[1:]
    return weights


def _unit(size: int, like: Tensor) -> Tensor:
    return torch.eye(size, dtype=like.dtype, device=like.device)
