r"""Fitting without gradients: expectation and maximisation, with features that jump to their best places.

The model is :class:`laplex.density.PlacedGaussian`, with knots b on an even grid and q functions per place:

    x_p = m_p + sum over c of w_cp sum over j of K(a_p, b_j) y_cj + d_p eps,       y ~ N(0, Q),     Q = R R^T

E-step, for all examples X (N, n) less their mean, with B the matrix of y -> x:

    C C^T = 1 + R^T B^T D^-1 B R,   V = C^-1 R^T,   S = V^T V,   Y = X D^-1 B S,   T = Y^T Y / N + S

S is the covariance of y given x, Y (N, qK) its means, T its second moment. Q is never inverted: if knots are closer
than tau, it is all but singular. M-step, every part in closed form: Q = T, and for each feature p by itself, with
c_p = Y^T X_p / N and k_s = K(s, b) at a place s,

    t_p = k_s c_p (q,),    T_s = k_s T k_s^T (q, q):   p explains t_p^T T_s^-1 t_p of its variance with w_p = T_s^-1 t_p

so the best place of p is found by scoring all places (``_places``). The variance that p does not explain is its noise.
A feature jumps only to a place that explains more than its old one, so no step lowers the likelihood, beyond rounding.
With fewer examples than latent variables T is all but singular; then Q is T shrunk towards the covariance of smooth
functions (``_shrinkage``). And with few examples, the best of many places explains much of a feature by chance; then
its noise is inflated.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from laplex import _autocast
from laplex._functional import gram, linear
from laplex._plan import Plan
from laplex.density._examples import Examples
from laplex.density._gaussian import PlacedGaussian
from laplex.density._places import Line
from laplex.density._sharing import ALONE, Sharing
from laplex.density._shrinkage import shrunk

SCORED_AT_ONCE = {"cpu": 1 << 18, "cuda": 1 << 26}  # features x knots: few enough for a cache, or enough for a GPU
FEATURES_AT_ONCE = 1 << 16  # features whose products with the latent means are held at a time
EXCHANGED = 1 << 24  # numbers that processes with their own examples exchange at a time
TOGETHER = 64  # examples, or columns, per product in float64: with pieces of fixed size, rounding does not change
RIDGES = (0.0, 1e-12, 1e-10, 1e-8, 1e-6)  # relative to the mean diagonal: the first that makes the matrix definite


@dataclass
class State:
    """The model between rounds. A round uses no random numbers, so a fit can resume from a saved state."""

    a: Tensor  # (n,) places
    weight: Tensor  # (q, n)
    noise: Tensor  # (n,) d^2
    root: Tensor  # (qK, qK) float64: R
    knots: Tensor  # (K,)
    tau: float
    round: int = 0  # how many rounds came before

    def to(self, device: torch.device | str) -> State:
        """The same state on a device."""
        tensors: dict[str, Any] = {name: one.to(device) for name, one in vars(self).items() if isinstance(one, Tensor)}
        return replace(self, **tensors)

    @torch.no_grad()
    def model(self, mean: Tensor) -> PlacedGaussian:
        """A module with these parameters and the mean (n,) of the examples."""
        sizes = len(self.a), len(self.root), len(self.weight)
        gaussian = PlacedGaussian(*sizes, device="meta", dtype=self.a.dtype).to_empty(device=self.a.device)
        gaussian.mean.copy_(mean)
        gaussian.a.copy_(self.a)
        gaussian.b.copy_(self.knots)
        gaussian.weight.copy_(self.weight)
        gaussian.log_noise.copy_(self.noise.double().log() / 2)
        gaussian.log_tau.fill_(math.log(self.tau))
        gaussian.triangle.set(self.root)
        return gaussian


@torch.no_grad()
@_autocast.unaffected
def em_round(
    examples: Examples,
    state: State,
    *,
    jump: bool = True,
    shrinkage: float = 0.0,
    inflation: float = 1.0,
    sharing: Sharing = ALONE,
) -> tuple[State, float]:
    """The state after one round, and the mean log-likelihood of the examples *before* it.

    Args:
        examples: the examples to fit.
        state: from :func:`laplex.density.start`, or from an earlier round.
        jump: whether features may leave their places.
        shrinkage: the fraction of the latent covariance, from 0 to 1, that is replaced by one that few examples
            determine; see :func:`laplex.density._shrinkage.shrinkage`.
        inflation: the factor by which the noise variances are multiplied, up to the variances of the features; see
            :func:`inflation`. Without these two no round lowers the likelihood.
        sharing: the processes that each do a part of the round, and reach the same state.
    """
    means, moments, likelihood = _expectation(examples, state, sharing)
    if not math.isfinite(likelihood):
        raise FloatingPointError(
            f"laplex.density.EM: the likelihood before round {state.round} is {likelihood}; the state is that before "
            "the round; check the examples"
        )
    knots = state.knots.double() if sharing.apart else state.knots  # as the sums of _joint_targets
    line = Line(knots, state.tau, moments, len(state.weight))
    few = max(1, SCORED_AT_ONCE["cpu" if examples.device.type == "cpu" else "cuda"] // len(state.knots))
    a, weight, noise = (torch.empty_like(one) for one in (state.a, state.weight, state.noise))
    own = sharing.part(examples.dim, few)
    for piece, target in _targets(examples, means, few, sharing):
        c = target.reshape(-1, len(state.weight), len(state.knots))
        at_knots = linear(c, knots, knots, state.tau)
        a[piece], weight[:, piece], gain = _seated(line, at_knots, state.a[piece].to(knots.dtype), jump)
        noise[piece] = examples.variance[piece] - gain
    a, noise, *functions = (sharing.joined(one[own], examples.dim, few) for one in (a, noise, *weight))
    weight = torch.stack(functions)
    noise = examples.noise_at_least(torch.minimum(inflation * noise, examples.variance))
    root = root_of(shrunk(moments, line.spread, state.knots, state.tau, part=shrinkage, count=examples.count))
    root = sharing.same(root)
    return State(a, weight, noise, root, state.knots, state.tau, state.round + 1), likelihood


def inflation(knots: int, functions: int, count: int) -> float:
    """The factor by which a fit multiplies the noise variances: large if there are few examples.

    A feature that takes the best of M places, and fits its mean and ``functions`` weights there, explains a part of its
    ``count`` values by chance: the best of M unrelated patterns leaves about M^(-2 / count) of the variance, so that
    the noise is underestimated. The patterns at the places are learned from the same examples, which doubles the
    exponent: squared, the factor was near the best for small images (`python -m benchmarks.studies.few_images`).

    Args:
        knots: M, the number of knots; 1 for features that keep their places.
        functions: q.
        count: the number of examples.
    """
    free = max(count - functions - 1, 1)
    return float((knots ** (2 / count) * count / free) ** 2)


def _targets(examples: Examples, means: Tensor, few: int, sharing: Sharing) -> Iterator[tuple[slice, Tensor]]:
    """Yield the features of this process, a piece at a time, with their c_p (p, qK)."""
    if sharing.apart:
        yield from _joint_targets(examples, means, few, sharing)
        return
    for part in examples.feature_parts(FEATURES_AT_ONCE, sharing.part(examples.dim, few)):
        x = examples.features(part)
        for first in range(0, x.shape[1], few):  # the same pieces for any number of processes, hence the same bits
            piece = slice(part.start + first, min(part.start + first + few, part.stop))
            yield piece, x[:, first : first + few].mT @ means / len(examples)


def _joint_targets(examples: Examples, means: Tensor, few: int, sharing: Sharing) -> Iterator[tuple[slice, Tensor]]:
    """The same if examples are apart: in every step all processes sum the features that each will seat next.

    This is in float64, as is all that follows from it, so that jumps do not depend on which process has which examples.
    """
    ranks = sharing.ranks
    size, rank = (1, 0) if ranks is None else (ranks.size, ranks.rank)
    wide = means.double()
    several = max(1, min(few, EXCHANGED // (size * means.shape[1]), examples.features_at_once))
    for pieces in zip(*sharing.pieces(examples.dim, few, several), strict=True):
        sums = [examples.features(piece).double().mT @ wide for piece in pieces]
        yield pieces[rank], sharing.scattered(torch.cat(sums), [len(one) for one in sums]) / examples.count


def _seated(line: Line, at_knots: Tensor, places: Tensor, jump: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Places (p,), weights (q, p) and explained variances (p,) for features with t_p = ``at_knots`` (p, q, K)."""
    weight, gain = line.weights(at_knots, places)
    if jump:
        best = line.best(at_knots)
        best_weight, best_gain = line.weights(at_knots, best)
        better = best_gain > gain
        places, gain = torch.where(better, best, places), torch.where(better, best_gain, gain)
        weight = torch.where(better, best_weight, weight)
    return places, weight, gain


def _expectation(examples: Examples, state: State, sharing: Sharing) -> tuple[Tensor, Tensor, float]:
    """Y (N, qK), T (qK, qK) in float64, and the mean log-likelihood."""
    inverse = state.weight / state.noise
    root = state.root
    inner = root.mT @ _gram(state) @ root
    chol, info = torch.linalg.cholesky_ex(inner + torch.eye(len(root), dtype=root.dtype, device=root.device))
    chol = torch.where(info == 0, chol, torch.nan)  # which leads to a likelihood of NaN
    narrow = sharing.same(torch.linalg.solve_triangular(chol, root.mT, upper=False))  # V
    plan = Plan(state.knots, state.a)
    blocks = [narrow.new_empty((0, len(narrow)))]  # a process may have no examples
    own = sharing.rows(len(examples), TOGETHER)
    for first in range(own.start, own.stop, TOGETHER):
        x = examples.rows(slice(first, min(first + TOGETHER, own.stop)))
        pulled = [linear(x * w, state.knots, state.a, state.tau, plan=plan) for w in inverse]
        blocks.append(torch.cat(pulled, -1).double() @ narrow.mT)
    means = torch.cat([block @ narrow for block in blocks])
    if not sharing.apart:
        means = sharing.joined(means, len(examples), TOGETHER)
    moments = _moments(means, sharing) / examples.count + narrow.mT @ narrow
    explained = sharing.total(torch.stack([block.square().sum() for block in blocks]).sum()) / examples.count
    distance = (examples.variance.double() / state.noise).sum() - explained
    volume = state.noise.double().log().sum() + 2 * chol.diagonal().log().sum()
    likelihood = -0.5 * (distance + volume + examples.dim * math.log(2 * math.pi))
    return means.to(state.weight.dtype), sharing.same(moments), float(sharing.same(likelihood))


def _moments(means: Tensor, sharing: Sharing) -> Tensor:
    """Y^T Y, in pieces of columns that do not depend on the number of processes, unless the examples are apart."""
    if sharing.apart:
        return sharing.sums(means.mT @ means)
    size = means.shape[1]
    own = sharing.part(size, TOGETHER)
    pieces = [means[:, first : min(first + TOGETHER, own.stop)] for first in range(own.start, own.stop, TOGETHER)]
    columns = [means.new_empty((0, size)), *(piece.mT @ means for piece in pieces)]
    return sharing.joined(torch.cat(columns), size, TOGETHER)


def _gram(state: State) -> Tensor:
    """B^T D^-1 B (qK, qK), in float64."""
    q, count = len(state.weight), len(state.knots)
    pairs = [(i, j) for i in range(q) for j in range(i + 1)]
    products = torch.stack([state.weight[i].double() * state.weight[j] / state.noise for i, j in pairs])
    matrix = state.root.new_empty(q, count, q, count)
    for (i, j), each in zip(pairs, gram(state.knots.double(), state.a.double(), products, state.tau), strict=True):
        matrix[i, :, j] = each
        matrix[j, :, i] = each
    return matrix.reshape(q * count, q * count)


def root_of(moments: Tensor) -> Tensor:
    """R with R R^T = T, after adding the smallest ridge that makes rounding harmless."""
    symmetric = (moments + moments.mT) / 2
    unit = torch.eye(len(symmetric), dtype=symmetric.dtype, device=symmetric.device) * symmetric.diagonal().mean()
    for ridge in RIDGES:
        root, info = torch.linalg.cholesky_ex(symmetric + ridge * unit)
        if int(info) == 0:
            # Row-major: how a product is summed may depend on strides, which a file does not keep.
            return root.contiguous()  # type: ignore[no-any-return]
    raise FloatingPointError(
        "laplex.density: the latent covariance is not definite; the examples may have NaN or infinity"
    )
