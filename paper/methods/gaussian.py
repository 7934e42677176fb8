"""Gaussians whose factor is held as a dense matrix: trained, or the closed form of probabilistic PCA.

They have the interface of ``laplex.density``, so that the same code trains, evaluates and draws from them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from laplex import _autocast
from laplex._checks.counts import integer
from laplex.density._examples import Examples
from laplex.density._factor import LATENTS_AT_ONCE, Capacitance, Cholesky, FactorGaussian, Statistics
from laplex.density._module import START_NOISE, Density

READ_AT_ONCE = 1 << 24  # numbers that are float64 at a time
START_LOADINGS = 0.05  # standard deviation of random ones; at 0 the gradient vanishes


class DenseFactorGaussian(FactorGaussian):
    """N(mean, F^T F + diag(noise^2)) with loadings F (r, n); tensors are not checked. Sums are float64.

    Args:
        mean (n,), noise (n,): m and d.
        loadings (r, n): one row per latent number.
    """

    def __init__(self, mean: Tensor, noise: Tensor, loadings: Tensor) -> None:
        super().__init__(mean, noise, len(loadings))
        self.loadings = loadings

    def spread(self, z: Tensor) -> Tensor:
        """Z (..., r) -> z F (..., n)."""
        with _autocast.off(z.device):
            return z @ self.loadings

    def columns(self) -> Iterator[Tensor]:
        """F in blocks of rows (few, n)."""
        return iter(self.loadings.split(LATENTS_AT_ONCE))

    def statistics(self, x: Tensor) -> Statistics:
        """What the likelihood needs of x (..., n), which is read in parts; gradients keep no part."""
        rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
        tensors = [rows, self._mean, self.noise, self.loadings]
        squares, pulled = _sum_parts(_part_statistics, tensors, max(1, len(rows), self.latents))
        return Statistics(squares.reshape(x.shape[:-1]), pulled.reshape(*x.shape[:-1], self.latents))

    def capacitance(self) -> Capacitance:
        """M = 1 + F D^-1 F^T, by its Cholesky factor."""
        gram = self.inner(self.noise)
        return Cholesky(gram + torch.eye(self.latents, dtype=gram.dtype, device=gram.device))

    def inner(self, noise: Tensor) -> Tensor:
        """F diag(noise^-2) F^T (r, r), in float64, for noise (n,)."""
        return _sum_parts(_part_gram, [noise, self.loadings], max(1, self.latents))[0]


def _sum_parts(function: Callable[..., tuple[Tensor, ...]], tensors: Sequence[Tensor], rows: int) -> list[Tensor]:
    """Sums of what a function returns for parts of the features, the last dimension of all tensors."""
    few = max(1, READ_AT_ONCE // rows)
    again = torch.is_grad_enabled() and tensors[0].shape[-1] > few
    total: list[Any] = []
    for part in zip(*(one.split(few, -1) for one in tensors), strict=True):
        if again:  # computed once more in backward, so that nothing in float64 of the size of x is kept
            sums = checkpoint(function, *part, use_reentrant=False, preserve_rng_state=False)
        else:
            sums = function(*part)
        total = [one + other for one, other in zip(total, sums, strict=True)] if total else list(sums)
    return total


def _part_statistics(x: Tensor, mean: Tensor, noise: Tensor, loadings: Tensor) -> tuple[Tensor, Tensor]:
    """Of some features x (B, s): the sum of y^2 / d^2 (B,), and F D^-1 y (B, r)."""
    y = (x - mean).double() / noise.double()
    return y.square().sum(-1), y @ (loadings / noise).double().mT


def _part_gram(noise: Tensor, loadings: Tensor) -> tuple[Tensor]:
    """F D^-1 F^T of some features (r, r)."""
    scaled = (loadings / noise).double()
    return (scaled @ scaled.mT,)


# --- Trained ----------------------------------------------------------------------------------------------------------


class LowRankGaussian(Density):
    """The dense rival of :class:`laplex.density.LaplexGaussian`: N(m, F^T F + diag(d^2)) with F trained entry by entry.

    It has dim (rank + 1) parameters.

    Args:
        dim: how many features an example has.
        rank: r.
        device, dtype: of the parameters; never half precision.

    Attributes:
        loadings (rank, dim): F, small random numbers at the start.
        log_noise (dim,): log d.
        mean (dim,): m, a buffer.
    """

    _package = "paper.methods"

    def __init__(
        self,
        dim: int,
        rank: int,
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(dim, rank, device, dtype)
        self.loadings = self._parameter(rank, dim)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Small random loadings under much noise, mean 0."""
        self.mean.zero_()
        self.loadings.normal_(0.0, START_LOADINGS)
        self.log_noise.fill_(math.log(START_NOISE))

    def distribution(self) -> DenseFactorGaussian:
        """The Gaussian with the parameters as they are, differentiable in them."""
        return DenseFactorGaussian(self.mean, self.log_noise.exp(), self.loadings)


def matched_rank(parameters: int, dim: int) -> int:
    """The rank whose dense factor and noise, dim (rank + 1) numbers, come nearest to ``parameters``; at least 1."""
    return max(1, round(parameters / dim) - 1)


# --- In closed form ---------------------------------------------------------------------------------------------------


def ppca_parameters(dim: int, rank: int) -> int:
    """Parameters of probabilistic PCA as the paper counts them: directions, one more vector, and the variances."""
    return dim * (rank + 1) + rank


@torch.no_grad()
def ppca(examples: Examples, rank: int) -> DenseFactorGaussian:
    """Probabilistic PCA (Tipping and Bishop): the most likely Gaussian of this rank with isotropic noise.

    The leading directions of the covariance come from the N x N products of the examples. The noise is the variance
    that they leave, over dim - rank; a direction of variance v gets the loadings sqrt(v - noise^2).

    Args:
        examples (N, n): less their mean.
        rank: at most N - 2 and n - 1, so that some variance is left.
    """
    where = "paper.methods.ppca"
    count, dim = len(examples), examples.dim
    most = min(count - 2, dim - 1)
    if integer(where, "rank", rank) > most:
        raise ValueError(
            f"{where}: `rank` must be at most {most} for {count} examples of {dim} features, got {rank}; use a smaller "
            "one, or more examples"
        )
    variances, vectors = spectrum(examples, rank)
    noise = (examples.variance.sum(dtype=torch.float64) - variances.sum()) / (dim - rank)
    if not noise > torch.finfo(torch.float32).eps ** 2 * variances[0]:
        raise ValueError(
            f"{where}: `examples` must vary in more than {rank} directions, got no more; use a smaller rank"
        )
    scale = (variances - noise).clamp_min_(0).div_(variances * count).sqrt_()
    loadings = torch.cat([block.to(examples.dtype) for block in spread_blocks(examples, vectors * scale)], 1)
    return DenseFactorGaussian(examples.mean, noise.sqrt().to(examples.mean).expand(dim), loadings)


@torch.no_grad()
def spectrum(examples: Examples, most: int) -> tuple[Tensor, Tensor]:
    """The leading eigenvalues of X^T X / N, the largest first, and eigenvectors of X X^T (N, most), in float64."""
    gram = torch.zeros(len(examples), len(examples), dtype=torch.float64, device=examples.device)
    for part in parts(examples):
        wide = examples.features(part).double()
        gram.addmm_(wide, wide.mT)
    values, vectors = torch.linalg.eigh(gram)
    return values[-most:].flip(0) / len(examples), vectors[:, -most:].flip(1)


def spread_blocks(examples: Examples, vectors: Tensor) -> Iterator[Tensor]:
    """vectors^T X for vectors (N, r): float64 blocks (r, few), one for each of ``parts``."""
    return (vectors.mT @ examples.features(part).double() for part in parts(examples))


def parts(examples: Examples) -> list[slice]:
    """Slices of features that are float64 at a time."""
    return examples.feature_parts(max(1, READ_AT_ONCE // len(examples)))
