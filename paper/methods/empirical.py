r"""The empirical Gaussian of N examples X (N, n) with a ridge: N(m, X^T X / N + ridge), never formed.

Let X X^T = U diag(N v) U^T. Then F = X^T U / sqrt(N) is a factor of the covariance with F^T F = diag(v), so that the
capacitance 1 + diag(v) / ridge is diagonal, and u = F^T y = U^T X y / sqrt(N) is all that is needed of an example y,
besides its length:

    log p = -1/2 (|y|^2 / ridge - sum of u^2 / (ridge (ridge + v)) + sum of log(1 + v / ridge) + n log(2 pi ridge))

Another ridge costs O(N). Nothing is held but the examples, and N x N.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from laplex.density._examples import Examples
from laplex.density._factor import Capacitance, FactorGaussian, Statistics
from paper.methods.gaussian import parts, spectrum, spread_blocks

LEAST = 1e-10  # of the largest variance: directions below it are rounding
RIDGES = (1e-4, 10.0, 577)  # from and to, in mean variances of a feature, and how many: 2 % apart


class EmpiricalGaussian(FactorGaussian):
    """N(mean, X^T X / N + ridge) of examples X; see the head of this module.

    Args:
        examples (N, n): less their mean.
        variances (r,), vectors (N, r): v and U, float64.
        ridge: the variance of the noise.
    """

    def __init__(self, examples: Examples, variances: Tensor, vectors: Tensor, ridge: float) -> None:
        noise = torch.full_like(examples.mean, math.sqrt(ridge))
        super().__init__(examples.mean, noise, len(variances))
        self.ridge = ridge
        self._examples, self._variances, self._vectors = examples, variances, vectors / math.sqrt(len(examples))

    def spread(self, z: Tensor) -> Tensor:
        """Z (..., r) -> F z (..., n)."""
        weights = self._vectors @ z.reshape(-1, self.latents).double().mT  # (N, B)
        blocks = [block.to(self._mean.dtype) for block in spread_blocks(self._examples, weights)]
        return torch.cat(blocks, 1).reshape(*z.shape[:-1], len(self._mean))

    def statistics(self, x: Tensor) -> Statistics:
        """What the likelihood needs of x (..., n)."""
        rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
        lengths, pulled = _read(self._examples, self._vectors, len(rows), lambda part: rows[:, part] - self._mean[part])
        return Statistics(
            lengths.reshape(x.shape[:-1]) / self.ridge, pulled.reshape(*x.shape[:-1], self.latents) / self.ridge
        )

    def capacitance(self) -> Capacitance:
        """M, which is diagonal."""
        return _Diagonal(1 + self._variances / self.ridge)


class _Diagonal:
    """A diagonal capacitance."""

    def __init__(self, diagonal: Tensor) -> None:
        self._diagonal = diagonal

    def quadratic(self, u: Tensor) -> Tensor:
        return (u.square() / self._diagonal).sum(-1)

    def solve(self, u: Tensor) -> Tensor:
        return u / self._diagonal

    def logdet(self) -> Tensor:
        return self._diagonal.log().sum()

    def whitened(self, columns: Tensor) -> Tensor:
        return columns / self._diagonal.sqrt()[:, None]


@torch.no_grad()
def empirical(
    examples: Examples, validation: Examples, ridges: Sequence[float] | None = None
) -> tuple[EmpiricalGaussian, float]:
    """The empirical Gaussian with the ridge under which validation examples are likeliest, and that ridge.

    Args:
        examples (N, n): less their mean.
        validation (V, n): less the same mean.
        ridges: those that are tried; if not given, 2 % apart from 1e-4 to 10 mean variances of a feature.
    """
    where = "paper.methods.empirical"
    if not torch.equal(validation.mean, examples.mean):
        raise ValueError(
            f"{where}: `validation` must be less the mean of `examples`, got another mean; use Examples(values, "
            "mean=examples.mean)"
        )
    if ridges is None:
        low, high, count = RIDGES
        scale = float(examples.variance.mean(dtype=torch.float64))
        ridges = [scale * low * (high / low) ** (index / (count - 1)) for index in range(count)]
    variances, vectors = spectrum(examples, len(examples))
    rank = int((variances > LEAST * variances[0]).sum())
    if rank == 0:
        raise ValueError(f"{where}: `examples` must differ, got {len(examples)} equal ones; check what is read")
    variances, vectors = variances[:rank], vectors[:, :rank]
    lengths, pulled = _read(examples, vectors / math.sqrt(len(examples)), len(validation), validation.features)
    means = variances.cpu(), lengths.mean().cpu(), pulled.square().mean(0).cpu()  # small, and read many times
    best = max(ridges, key=lambda ridge: _likelihood(ridge, examples.dim, *means))
    return EmpiricalGaussian(examples, variances, vectors, best), best


def _likelihood(ridge: float, dim: int, variances: Tensor, length: Tensor, squares: Tensor) -> float:
    """The mean of log p from means of |y|^2 () and of u^2 (r,)."""
    volume = torch.log1p(variances / ridge).sum() + dim * math.log(2 * math.pi * ridge)
    return -0.5 * float(length / ridge - (squares / (ridge + variances)).sum() / ridge + volume)


def _read(
    examples: Examples, vectors: Tensor, count: int, features: Callable[[slice], Tensor]
) -> tuple[Tensor, Tensor]:
    """|y|^2 (count,) and vectors^T X y (count, r) of other examples y, some features of which a function reads."""
    lengths = vectors.new_zeros(count)
    products = vectors.new_zeros(count, len(examples))
    for part in parts(examples):
        y = features(part).double()
        lengths += y.square().sum(1)
        products.addmm_(y, examples.features(part).double().mT)
    return lengths, products @ vectors
