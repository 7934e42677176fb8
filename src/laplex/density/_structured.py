r"""A Gaussian over n features whose factor is made of Laplace kernels and never formed.

    F = sum over i of diag(w_i) A L_i^T,       A = K(a, b; tau, phi, psi)

    m, d, a, phi (n,)    mean, noise, places and phases of the features    w (I, n)     weights
    b, psi (k,)          knots, and their phases                           L (I, r, k)  factors of the latent covariance

    M = 1 + F^T D^-1 F = 1 + sum over i, j of L_i G_ij L_j^T,      G_ij = A^T diag(w_i w_j / d^2) A       r x r, k x k
    u = F^T D^-1 y     = sum over i of L_i A^T (w_i / d^2 * y)

Nothing of size n x k or n x n exists. r x r and k x k matrices are float64. With a diagonal L, which has one number per
knot, M is a scaled Gram matrix plus 1: then M is never formed either, and is solved in O(k).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from laplex import _autocast
from laplex._functional import gram, linear
from laplex._gram_operator import GramOperator
from laplex._operator import LaplaceOperator
from laplex.density._factor import Capacitance, Cholesky, FactorGaussian, Statistics
from laplex.density._reading import weighted

READ_AT_ONCE = 1 << 28  # numbers of x, times components, of which a training step may keep a weighted copy
DENSE_LATENTS = 1 << 13  # larger diagonal latent covariances are not made dense to condition on features


class StructuredGaussian(FactorGaussian):
    """The distribution; the module's docstring explains the letters. Its tensors are not checked.

    It is the distribution that a module such as :class:`laplex.density.LaplexGaussian` has at one moment of its
    training, and the class that ``marginal`` and ``condition`` return.

    Args:
        mean (n,), noise (n,), weight (I, n): m, d and w.
        factor (I, r, k): L; or (k,), the diagonal of L, with I = 1.
        anchors: a (n,) and b (k,).
        tau: the length scale ().
        phases: phi (n,) and psi (k,), or None.
    """

    def __init__(
        self,
        mean: Tensor,
        noise: Tensor,
        weight: Tensor,
        factor: Tensor,
        anchors: tuple[Tensor, Tensor],
        tau: Tensor,
        phases: tuple[Tensor, Tensor] | None = None,
    ) -> None:
        super().__init__(mean, noise, factor.shape[-2] if factor.dim() == 3 else len(factor))
        self.weight, self.factor = weight, factor
        self.a, self.b = anchors
        self.tau = tau
        self.phases = phases

    def spread(self, z: Tensor) -> Tensor:
        """Z (..., r) -> F z (..., n)."""
        phi, psi = self.phases if self.phases is not None else (None, None)
        total: Any = 0.0
        with _autocast.off(z.device):
            for w, y in zip(self.weight, self._at_knots(z.to(self.factor.dtype)), strict=True):
                total = total + w * linear(y.to(w.dtype), self.a, self.b, self.tau, phi=phi, psi=psi)
        return total  # type: ignore[no-any-return]

    def statistics(self, x: Tensor) -> Statistics:
        """What the likelihood needs to know about x (..., n). Gradients keep one copy of x, or none if it is huge."""
        rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
        parts = max(1, READ_AT_ONCE // max(1, len(rows) * len(self.weight)))
        features = [self._mean, self.noise, self.weight, self.a, *([] if self.phases is None else [self.phases[0]])]
        split = zip(rows.split(parts, -1), *(one.split(parts, -1) for one in features), strict=True)
        knots = [self.b, self.tau, *([] if self.phases is None else [self.phases[1]])]
        compute: Callable[..., tuple[Tensor, Tensor]] = _part_statistics
        if torch.is_grad_enabled() and x.shape[-1] > parts:  # recomputed in backward
            compute = partial(checkpoint, _part_statistics, use_reentrant=False, preserve_rng_state=False)
        squares: Any = 0.0
        pulled: Any = 0.0
        for part in split:
            more_squares, more_pulled = compute(part, knots)
            squares, pulled = squares + more_squares, pulled + more_pulled
        latents = self._to_latents(pulled).reshape(*x.shape[:-1], self.latents)
        return Statistics(squares.reshape(x.shape[:-1]), latents)

    def capacitance(self) -> Capacitance:
        """M as its Cholesky factor or, for a diagonal L, as a solver that never forms it."""
        if self.factor.dim() == 1:
            return self._scaled_gram(self.noise)
        unit = torch.eye(self.latents, dtype=torch.float64, device=self.factor.device)
        return Cholesky(unit + self.inner(self.noise))

    def inner(self, noise: Tensor) -> Tensor:
        """F^T diag(noise^-2) F (r, r), in float64, for noise (n,)."""
        if self.factor.dim() == 1:
            return self._scaled_gram(noise).formed()
        factor, inverse = self.factor.double(), self.weight.double() / noise.double()
        phi, psi = self._wide_phases()
        pairs = [(i, j) for i in range(len(inverse)) for j in range(i + 1)]
        weights = torch.stack([inverse[i] * inverse[j] for i, j in pairs])
        grams = gram(self.b.double(), self.a.double(), weights, self.tau.double(), phi=psi, psi=phi)
        total: Any = 0.0
        for (i, j), each in zip(pairs, grams, strict=True):
            part = factor[i] @ each @ factor[j].mT
            total = total + (part if i == j else part + part.mT)
        return total  # type: ignore[no-any-return]

    def restricted(self, indices: Tensor, mean: Tensor, covariance: Capacitance | None = None) -> StructuredGaussian:
        """Only the features ``indices`` (s,), with another mean (s,). Given M, z has the covariance M^-1, not 1."""
        factor = self.factor
        if covariance is not None:
            factor = _narrowed(factor, covariance)
        phases = None if self.phases is None else (self.phases[0][indices], self.phases[1])
        anchors = self.a[indices], self.b
        return StructuredGaussian(mean, self.noise[indices], self.weight[:, indices], factor, anchors, self.tau, phases)

    def _scaled_gram(self, noise: Tensor) -> _Quasiseparable:
        """M for a diagonal L."""
        phi, psi = self._wide_phases()
        kernel = LaplaceOperator(self.b.double(), self.a.double(), self.tau.double(), phi=psi, psi=phi)
        return _Quasiseparable(kernel.gram((self.weight[0].double() / noise.double()).square()), self.factor.double())

    def _wide_phases(self) -> tuple[Tensor | None, Tensor | None]:
        return (None, None) if self.phases is None else (self.phases[0].double(), self.phases[1].double())

    def _at_knots(self, z: Tensor) -> Sequence[Tensor]:
        """L_i^T z for each i: (..., r) -> I times (..., k)."""
        return [z * self.factor] if self.factor.dim() == 1 else [z @ one for one in self.factor]

    def _to_latents(self, h: Tensor) -> Tensor:
        """The sum over i of L_i h_i: (I, B, k) -> (B, r), in float64."""
        if self.factor.dim() == 1:
            return h[0] * self.factor.double()
        return torch.einsum("irk,ibk->br", self.factor.double(), h)


def _part_statistics(part: Sequence[Tensor], knots: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """For some features x (B, s): the sum of y^2 / d^2 (B,), and A^T (w_i / d^2 * y) (I, B, k), in float64."""
    x, mean, noise, weight, a, *phi = part
    b, tau, *psi = knots
    phases: dict[str, Any] = {"phi": psi[0], "psi": phi[0]} if psi else {}
    inverse = noise.reciprocal()
    squares, product = weighted(x, mean, inverse, weight * inverse)
    with _autocast.off(x.device):  # in half precision the likelihood would be far from exact
        return squares, linear(product, b, a, tau, **phases).double()


class _Quasiseparable:
    """M = 1 + s G s for a Gram matrix G (k, k) that is never formed, and a diagonal s (k,)."""

    def __init__(self, gram: GramOperator, scale: Tensor) -> None:
        self._gram, self._scale, self._added = gram, scale, scale.square().reciprocal()

    def quadratic(self, u: Tensor) -> Tensor:
        return (u * self.solve(u)).sum(-1)

    def solve(self, u: Tensor) -> Tensor:
        rows = (u / self._scale).reshape(-1, u.shape[-1])
        return self._gram.solve(rows.mT, self._added).mT.reshape(u.shape) / self._scale

    def logdet(self) -> Tensor:
        return self._gram.logdet(self._added) + 2 * self._scale.log().sum()

    def whitened(self, columns: Tensor) -> Tensor:
        dense = self.formed()
        return Cholesky(dense + torch.eye(len(dense), dtype=dense.dtype, device=dense.device)).whitened(columns)

    def formed(self) -> Tensor:
        """S G s (k, k): for a few thousand knots."""
        if len(self._scale) > DENSE_LATENTS:
            raise ValueError(
                f"laplex.density: spectrum: a diagonal latent covariance must have at most {DENSE_LATENTS} knots, got "
                f"{len(self._scale)}: a matrix of their squared number would be formed"
            )
        return self._scale[:, None] * self._gram.to_dense() * self._scale


def _narrowed(factor: Tensor, covariance: Capacitance) -> Tensor:
    """L (I, r, k) for latent variables with the covariance M^-1 = C^-T C^-1: C^-1 L."""
    if factor.dim() == 1:
        if len(factor) > DENSE_LATENTS:
            raise ValueError(
                f"laplex.density: condition: a diagonal latent covariance must have at most {DENSE_LATENTS} knots, got "
                f"{len(factor)}: given features it is dense; use .inpaint, which needs its mean alone"
            )
        factor = factor.diag_embed()[None]
    rows, columns = factor.shape[1], factor.shape[0] * factor.shape[2]
    flat = factor.double().movedim(1, 0).reshape(rows, columns)
    narrow = covariance.whitened(flat).reshape(rows, factor.shape[0], factor.shape[2]).movedim(0, 1)
    return narrow.to(factor.dtype)
