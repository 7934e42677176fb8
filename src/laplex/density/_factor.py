r"""The base of every density here: a Gaussian whose covariance is a factor times its transpose, plus a diagonal.

    x = m + F z + d * eps,      z ~ N(0, 1) (r,),      eps ~ N(0, 1) (n,),      D = diag(d^2)

F (n, r) is never needed as a matrix. Three things are needed: ``spread``, z -> F z; ``statistics``, which reads the
data; and the ``capacitance`` M = 1 + F^T D^-1 F (r, r), as something that solves. All else follows from the Woodbury
identity and the determinant lemma, with y = x - m and u = F^T D^-1 y:

    log p(x) = -1/2 (sum of y^2 / d^2 - u^T M^-1 u + sum of log d^2 + log det M + n log 2 pi)
    z given x ~ N(M^-1 u, M^-1)
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints, register_kl

from laplex import _autocast, _checks

LATENTS_AT_ONCE = 64  # columns of F at a time, each as long as x
FORMED = 1 << 14  # the covariance of more features than this is not formed


class Statistics(NamedTuple):
    """What a likelihood needs to know about examples (..., n), in float64."""

    squares: Tensor  # (...): the sum of y^2 / d^2
    pulled: Tensor  # (..., r): u = F^T D^-1 y


class Capacitance(Protocol):
    """The matrix M (r, r), in float64."""

    def quadratic(self, u: Tensor) -> Tensor:
        """u^T M^-1 u for u (..., r): (...)."""

    def solve(self, u: Tensor) -> Tensor:
        """M^-1 u for u (..., r)."""

    def logdet(self) -> Tensor:
        """log det M."""

    def whitened(self, columns: Tensor) -> Tensor:
        """C^-1 columns (r, c), where C C^T = M."""


class Cholesky:
    """A capacitance with its Cholesky factor C (r, r). If 1 + F^T D^-1 F is not finite, it has none and C is NaN."""

    def __init__(self, matrix: Tensor) -> None:
        chol, info = torch.linalg.cholesky_ex(matrix)  # looking at info would wait for the device
        self._chol = torch.where(info == 0, chol, torch.nan)

    def quadratic(self, u: Tensor) -> Tensor:
        rows = u.reshape(-1, u.shape[-1])
        return self.whitened(rows.mT).square().sum(0).reshape(u.shape[:-1])

    def solve(self, u: Tensor) -> Tensor:
        rows = u.reshape(-1, u.shape[-1])
        return torch.cholesky_solve(rows.mT, self._chol).mT.reshape(u.shape)

    def logdet(self) -> Tensor:
        return 2 * self._chol.diagonal().log().sum()

    def whitened(self, columns: Tensor) -> Tensor:
        return torch.linalg.solve_triangular(self._chol, columns, upper=False)  # type: ignore[no-any-return]


class FactorGaussian(Distribution):
    """N(mean, F F^T + diag(noise^2)). Subclasses know F; examples are not checked.

    Args:
        mean (n,), noise (n,): m and d.
        latents: r.
    """

    arg_constraints: ClassVar[dict[str, constraints.Constraint]] = {}
    support = constraints.real_vector
    has_rsample = True

    def __init__(self, mean: Tensor, noise: Tensor, latents: int) -> None:
        self._mean, self.noise, self.latents = mean, noise, latents
        super().__init__(torch.Size(), mean.shape, validate_args=False)

    # --- what subclasses know -----------------------------------------------------------------------------------------

    def spread(self, z: Tensor) -> Tensor:
        """Z (..., r) -> F z (..., n), in the dtype of the mean."""
        raise NotImplementedError

    def statistics(self, x: Tensor) -> Statistics:
        """What the likelihood needs to know about x (..., n)."""
        raise NotImplementedError

    def capacitance(self) -> Capacitance:
        """M, as an object that solves."""
        raise NotImplementedError

    def inner(self, noise: Tensor) -> Tensor:
        """F^T diag(noise^-2) F (r, r), in float64, for noise (n,)."""
        raise NotImplementedError

    def restricted(self, indices: Tensor, mean: Tensor, covariance: Capacitance | None = None) -> FactorGaussian:
        """Only the features ``indices`` (s,), with another mean (s,). Given M, z has the covariance M^-1, not 1."""
        raise NotImplementedError

    # --- as a distribution --------------------------------------------------------------------------------------------

    @property
    def mean(self) -> Tensor:
        """The mean m (n,), which is also the mode."""
        return self._mean

    @property
    def mode(self) -> Tensor:
        """The mode, which is the mean."""
        return self._mean

    @property
    def variance(self) -> Tensor:
        """The variance of each feature (n,), in O(n r)."""
        total = self.noise.square()
        for block in self.columns():
            total = total + block.square().sum(0)
        return total

    def columns(self) -> Iterator[Tensor]:
        """F^T in blocks of rows (few, n)."""
        for first in range(0, self.latents, LATENTS_AT_ONCE):
            few = torch.zeros(min(LATENTS_AT_ONCE, self.latents - first), self.latents, **self._like())
            few[:, first:].fill_diagonal_(1.0)
            yield self.spread(few)

    def log_prob(self, value: Tensor) -> Tensor:
        """The log density of x (..., n): (...), in float64."""
        capacitance, known = self.capacitance(), self.statistics(value)
        distance = known.squares - capacitance.quadratic(known.pulled)
        return -0.5 * (distance + self.volume(capacitance) + len(self._mean) * math.log(2 * math.pi))

    def rsample(self, sample_shape: Any = torch.Size()) -> Tensor:  # noqa: B008
        """Draws (*sample_shape, n), differentiable."""
        signal = self.signal(sample_shape)
        return signal + self.noise * torch.randn_like(signal)

    def signal(self, sample_shape: Any = torch.Size()) -> Tensor:  # noqa: B008
        """Draws of m + F z (*sample_shape, n): with the same seed, the draws of ``rsample`` without their noise."""
        return self._mean + self.spread(torch.randn(*sample_shape, self.latents, **self._like()))

    def entropy(self) -> Tensor:
        """The entropy, in float64."""
        return 0.5 * (self.volume(self.capacitance()) + len(self._mean) * (1 + math.log(2 * math.pi)))

    @_autocast.unaffected
    def covariance(self) -> Tensor:
        """F F^T + D as a dense matrix (n, n): for small n."""
        if len(self._mean) > FORMED:
            raise ValueError(
                f"laplex.density: covariance() must be of at most {FORMED} features, got {len(self._mean)}; "
                "use .marginal(indices).covariance()"
            )
        loadings = torch.cat(list(self.columns()))
        return loadings.mT @ loadings + self.noise.square().diag_embed()

    def spectrum(self) -> Tensor:
        """The eigenvalues (r,) of F F^T that may differ from 0, largest first, in float64."""
        values: Tensor = torch.linalg.eigvalsh(self.inner(torch.ones_like(self.noise)))
        return values.flip(0).clamp_min(0)

    def _like(self) -> dict[str, Any]:
        return {"dtype": self._mean.dtype, "device": self._mean.device}

    def volume(self, capacitance: Capacitance) -> Tensor:
        """The log determinant of the covariance (n, n), from the capacitance."""
        return 2 * self.noise.double().log().sum() + capacitance.logdet()

    # --- what the latent variables are, and parts of x ----------------------------------------------------------------

    def posterior(self, x: Tensor) -> tuple[Tensor, Capacitance]:
        """The distribution of z given x (..., n): its mean (..., r), and the inverse M of its covariance."""
        capacitance = self.capacitance()
        return capacitance.solve(self.statistics(x).pulled), capacitance

    def reconstruct(self, x: Tensor) -> Tensor:
        """The most likely m + F z given x (..., n)."""
        return self._mean + self.spread(self.posterior(x)[0].to(self._mean.dtype))

    def marginal(self, indices: Tensor) -> FactorGaussian:
        """The exact distribution of some of the features: ``indices`` (s,), or a mask (n,)."""
        chosen = self._chosen("marginal", indices)
        return self.restricted(chosen, self._mean[chosen])

    def condition(self, indices: Tensor, values: Tensor) -> FactorGaussian:
        """The distribution of the other features, in order, given that those at ``indices`` are ``values`` (s,)."""
        chosen = self._chosen("condition", indices)
        in_units("laplex.density: condition", "values", values)
        if values.shape != chosen.shape:
            raise ValueError(
                f"laplex.density: condition: `values` must be {tuple(chosen.shape)}, one for each of `indices`, got "
                f"{tuple(values.shape)}"
            )
        rest = torch.ones_like(self._mean, dtype=torch.bool)
        rest[chosen] = False
        others = rest.nonzero()[:, 0]
        z, capacitance = self.marginal(chosen).posterior(values)
        shift = self.restricted(others, self._mean[others]).spread(z.to(self._mean.dtype))
        return self.restricted(others, self._mean[others] + shift, capacitance)

    def inpaint(self, known: Tensor, values: Tensor) -> Tensor:
        """``values`` (..., n), with features not ``known``, a mask (n,), replaced by their mean given the rest."""
        _checks.check_tensor("laplex.density: inpaint", "known", known)
        in_units("laplex.density: inpaint", "values", values)
        if known.dtype != torch.bool or known.shape != self._mean.shape:
            got = f"{known.dtype} {tuple(known.shape)}"
            raise ValueError(f"laplex.density: inpaint: `known` must be a mask ({len(self._mean)},), got {got}")
        chosen = known.nonzero()[:, 0]
        z, _ = self.marginal(chosen).posterior(values[..., chosen])
        return torch.where(known, values, self._mean + self.spread(z.to(self._mean.dtype)))

    def _chosen(self, where: str, indices: Tensor) -> Tensor:
        """Distinct indices (s,), from indices or from a mask."""
        n = len(self._mean)
        _checks.check_tensor(f"laplex.density: {where}", "indices", indices)
        if indices.dtype == torch.bool and tuple(indices.shape) == (n,):
            return indices.nonzero()[:, 0]
        integers = not indices.is_floating_point() and not indices.is_complex() and indices.dtype != torch.bool
        if not integers or indices.dim() != 1:
            got = f"{indices.dtype} {tuple(indices.shape)}"
            raise ValueError(f"laplex.density: {where}: `indices` must be integers (s,) or a mask ({n},), got {got}")
        indices = indices.long()  # torch would treat uint8 indices as a mask
        positive = torch.where(indices < 0, indices + n, indices)
        if len(positive) and (int(positive.min()) < 0 or int(positive.max()) >= n):
            raise ValueError(f"laplex.density: {where}: `indices` must be from {-n} to {n - 1}; one of them is not")
        if len(positive.unique()) < len(positive):
            raise ValueError(f"laplex.density: {where}: `indices` must differ, got one of them twice; use .unique()")
        return positive


def in_units(where: str, name: str, x: Tensor) -> None:
    """Raise TypeError unless x is a floating-point tensor. Bytes count in 1/255, and the result would be wrong."""
    _checks.check_tensor(where, name, x)
    if not x.is_floating_point():
        raise TypeError(
            f"{where}: `{name}` must be floating point, in the units of the fit, got {x.dtype}; bytes count in 1/255: "
            f"use {name} / 255"
        )


@register_kl(FactorGaussian, FactorGaussian)
def _divergence(p: FactorGaussian, q: FactorGaussian) -> Tensor:
    """KL(p | q), in O(n r) and in blocks: tr(S_q^-1 S_p) by Woodbury, with S_p = F_p F_p^T + D_p."""
    other, ratio = q.capacitance(), (p.noise.double() / q.noise.double()).square()
    trace = ratio.sum()
    for block in p.columns():
        known = q.statistics(q.mean + block)
        trace = trace + (known.squares - other.quadratic(known.pulled)).sum()
    for number, block in enumerate(q.columns()):  # minus tr(M^-1 F_q^T D_p D_q^-2 F_q)
        pulled = q.statistics(q.mean + block * ratio.to(block.dtype)).pulled
        rows = torch.arange(len(block), device=block.device)
        trace = trace - other.solve(pulled)[rows, rows + number * LATENTS_AT_ONCE].sum()
    known = q.statistics(p.mean)
    apart = known.squares - other.quadratic(known.pulled)
    return 0.5 * (trace + apart - len(p.mean) + q.volume(other) - p.volume(p.capacitance()))
