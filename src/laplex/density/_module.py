"""What the trainable densities share: each is a module that at any moment gives a distribution."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from laplex._checks.counts import integer
from laplex.density._factor import Capacitance, FactorGaussian, in_units
from laplex.nn._anchored import Anchored
from laplex.nn._checks import at_least_single, features

START_NOISE = 0.5  # if nothing is known about the data


class Density(Anchored):
    """A Gaussian over ``dim`` features with trained parameters and a mean that is data, not trained.

    Attributes:
        mean (dim,): a buffer, zeros at the start; ``model.mean.copy_(...)`` sets it.
        log_noise (dim,): the logarithm of the noise.
    """

    mean: Tensor
    _package = "laplex.density"  # for messages

    def __init__(self, dim: int, rank: int, device: torch.device | str | None, dtype: torch.dtype | None) -> None:
        super().__init__()
        self._where = f"{self._package}.{type(self).__name__}"
        self.dim, self.rank = integer(self._where, "dim", dim), integer(self._where, "rank", rank)
        self._like: dict[str, Any] = {"device": device, "dtype": at_least_single(self._where, dtype)}
        self.register_buffer("mean", torch.zeros(self.dim, **self._like))
        self.log_noise = self._parameter(self.dim)

    def _parameter(self, *shape: int) -> nn.Parameter:
        return nn.Parameter(torch.empty(shape, **self._like))

    def distribution(self) -> FactorGaussian:
        """The Gaussian with the parameters as they are, differentiable in them."""
        raise NotImplementedError

    def log_prob(self, x: Tensor) -> Tensor:
        """The log density of x (..., dim): (...), in float64.

        It is the difference between a sum of squares and the part that the latent variables explain. For float32
        parameters both have relative errors of some 1e-7, so fewer digits are left if noise is far below the signal.
        """
        self._check("log_prob", "x", x)
        return self.distribution().log_prob(x)

    def _check(self, where: str, name: str, x: Tensor) -> None:
        """Raise unless x has this many features, in the units of the model."""
        features(f"{self._where}.{where}", x, self.dim)
        in_units(f"{self._where}.{where}", name, x)

    def forward(self, x: Tensor) -> Tensor:
        """As :meth:`log_prob`, so that wrappers such as DistributedDataParallel see it."""
        return self.log_prob(x)

    @torch.no_grad()
    def sample(self, count: int, *, noise: bool = True) -> Tensor:
        """Draws (count, dim); without ``noise``, those that the same seed gives with noise, but only m + F z."""
        drawn, gaussian = (integer(f"{self._where}.sample", "count", count),), self.distribution()
        return gaussian.rsample(drawn) if noise else gaussian.signal(drawn)

    @torch.no_grad()
    def reconstruct(self, x: Tensor) -> Tensor:
        """Each x (..., dim) without what the model considers noise: its most likely m + F z."""
        self._check("reconstruct", "x", x)
        return self.distribution().reconstruct(x)

    @torch.no_grad()
    def posterior(self, x: Tensor) -> tuple[Tensor, Capacitance]:
        """The distribution of z given x (..., dim): its mean (..., rank), and its inverse covariance, which solves."""
        self._check("posterior", "x", x)
        return self.distribution().posterior(x)

    def covariance(self) -> Tensor:
        """The covariance as a dense matrix (dim, dim): for small dim."""
        return self.distribution().covariance()

    def marginal(self, indices: Tensor) -> FactorGaussian:
        """The distribution of some of the features: ``indices`` (s,), or a mask (dim,)."""
        return self.distribution().marginal(indices)

    def condition(self, indices: Tensor, values: Tensor) -> FactorGaussian:
        """The distribution of the other features, in order, given that those at ``indices`` are ``values`` (s,)."""
        return self.distribution().condition(indices, values)

    @torch.no_grad()
    def inpaint(self, known: Tensor, values: Tensor) -> Tensor:
        """``values`` (..., dim), with features not ``known``, a mask (dim,), replaced by their mean given the rest."""
        self._check("inpaint", "values", values)
        return self.distribution().inpaint(known, values)


class LowerTriangle(nn.Module):
    """A lower triangular matrix with a positive diagonal, as size (size + 1) / 2 unconstrained numbers.

    Args:
        size: the size of the matrix.
        like: device and dtype.

    Attributes:
        lower: the strict triangle, row by row.
        log_diagonal (size,): the logarithm of the diagonal.
    """

    def __init__(self, size: int, like: dict[str, Any]) -> None:
        super().__init__()
        self.lower = nn.Parameter(torch.empty(size * (size - 1) // 2, **like))
        self.log_diagonal = nn.Parameter(torch.empty(size, **like))
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Set the matrix to the identity."""
        self.lower.zero_()
        self.log_diagonal.zero_()

    def forward(self) -> Tensor:
        """The matrix (size, size)."""
        rows, cols = self._places()
        return self.log_diagonal.exp().diag_embed().index_put((rows, cols), self.lower)

    @torch.no_grad()
    def set(self, matrix: Tensor) -> None:
        """Become the lower triangle of ``matrix`` (size, size), whose diagonal is positive."""
        self.lower.copy_(matrix[self._places()])
        self.log_diagonal.copy_(matrix.diagonal().log())

    def _places(self) -> tuple[Tensor, Tensor]:
        size = len(self.log_diagonal)
        rows, cols = torch.tril_indices(size, size, -1, device=self.lower.device)
        return rows, cols
