"""A Gaussian process at its times as a distribution of PyTorch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.distributions import Distribution, constraints

from laplex._states.chain import Factored
from laplex._states.exposures import Events
from laplex._states.line import Line
from laplex.gp import _checks as checks
from laplex.gp._engine import dtype_of_likelihood, warn_if_singular
from laplex.gp._range import check_observations

if TYPE_CHECKING:
    from laplex.gp._process import GaussianProcess

WHERE = "laplex.gp.ProcessDistribution"


class ProcessDistribution(Distribution):
    """The observations of a Gaussian process, noise included, as a ``torch.distributions.Distribution``.

    ``event_shape`` is (n,), the times of the process, and ``batch_shape`` its series. ``log_prob`` and ``rsample`` take
    O(n), and are differentiable in the process's parameters. Everything is in float64, except that ``log_prob`` has the
    dtype of its argument, or float32 for half precision.

    Args:
        process: a process whose times are in one tensor, not in a list.

    Example:
        >>> process = laplex.gp.GaussianProcess(laplex.gp.Matern32(scale=2.0), torch.linspace(0, 9, 50), yerr=0.1)
        >>> distribution = process.distribution()
        >>> distribution.log_prob(distribution.sample((3,))).shape
        torch.Size([3])
    """

    __module__ = "laplex.gp"
    arg_constraints: dict[str, constraints.Constraint] = {}  # noqa: RUF012, as the base class has it
    support = constraints.real_vector
    has_rsample = True

    def __init__(self, process: GaussianProcess, validate_args: bool | None = None) -> None:
        checks.not_ragged(WHERE, process.counts)
        self.process = process
        super().__init__(process.batch_shape, process.t.shape[-1:], validate_args=validate_args)

    def expand(self, batch_shape: Sequence[int], _instance: Any = None) -> ProcessDistribution:
        """The same distribution for a larger batch; new leading dimensions take no memory."""
        expanded = self._get_checked_instance(ProcessDistribution, _instance)
        shape, old = torch.Size(batch_shape), self.process
        inner = shape[len(shape) - len(old.batch_shape) :]
        expanded.process = old if inner == old.batch_shape else _expanded(old, inner)
        super(ProcessDistribution, expanded).__init__(shape, self.event_shape, validate_args=False)
        expanded._validate_args = self._validate_args
        return expanded  # type: ignore[no-any-return]

    def __repr__(self) -> str:
        shapes = f"batch_shape={tuple(self.batch_shape)}, event_shape={tuple(self.event_shape)}"
        return f"ProcessDistribution({self.process}, {shapes})"

    @property
    def mean(self) -> Tensor:
        """The mean of the process, (*batch, n)."""
        return self._mean().expand(self._extended_shape())

    @property
    def variance(self) -> Tensor:
        """The prior variance of the observations, k(t, t) + diag."""
        process, engine = self.process, self.process.engine
        line = engine.line()
        chain = engine.chain(process.kernel.components(), line)
        prior = line.put((chain.p * chain.q).sum(-1))
        return (process.series.shaped(prior) + process.diag).expand(self._extended_shape())

    def log_prob(self, value: Tensor) -> Tensor:
        """The log density (*sample, *batch) of values (*sample, *batch, n), which share one factorisation."""
        if not isinstance(value, Tensor) or not value.is_floating_point():
            got = value.dtype if isinstance(value, Tensor) else type(value).__name__
            raise TypeError(f"{WHERE}.log_prob: `value` must be a floating-point tensor, got {got}")
        if value.dim() == 0 or value.shape[-1:] != self.event_shape:
            raise ValueError(
                f"{WHERE}.log_prob: `value` must have {self.event_shape[0]} numbers in its last dimension, one for "
                f"each time, got shape {tuple(value.shape)}"
            )
        if self._validate_args:
            self._validate_sample(value)
        shape = torch.broadcast_shapes(value.shape[:-1], self.batch_shape)
        outer = shape[: len(shape) - len(self.process.batch_shape)]
        values = value.expand(*shape, *self.event_shape)
        if outer.numel() == 1:
            return self.process.log_likelihood(values.reshape(self._inner_shape())).reshape(shape)
        return self._log_densities(values).reshape(shape).to(dtype_of_likelihood(value.dtype))

    def _log_densities(self, values: Tensor) -> Tensor:
        """The log densities (values, series) of values (*values, *batch, n), with the checks of a single value."""
        where = f"{WHERE}.log_prob"
        factored, line = self._factored(where)
        residual = (values.double() - self._mean()).reshape(-1, self.process.series.batch.numel(), *self.event_shape)
        z, _ = factored.whiten(line.take(residual.permute(1, 2, 0)))  # one factor for all values
        quad = (z.square() * factored.over_d[..., None]).sum(-2).mT
        densities = -0.5 * (quad + self._volume(factored))
        if checks.readable(densities) and not bool(densities.isfinite().all()):
            checks.finite_observations(where, residual, self._mean)
            check_observations(where, residual)
        return densities

    def rsample(self, sample_shape: Sequence[int] = ()) -> Tensor:
        """Draw values that are differentiable in the process's parameters."""
        shape = self._extended_shape(torch.Size(sample_shape))
        draws = shape[: len(shape) - len(self._inner_shape())].numel()
        drawn: Tensor = self.process.sample(draws) if draws else self._mean().new_empty(0)
        return drawn.reshape(shape)

    def entropy(self) -> Tensor:
        """The entropy of each series, (*batch)."""
        factored, _ = self._factored(f"{WHERE}.entropy")
        value = self.process.series.shaped(0.5 * (self._volume(factored) + self.event_shape.numel()))
        return value.expand(self.batch_shape)

    def _factored(self, where: str) -> tuple[Factored, Line | Events]:
        """The factor of K + diag, with a warning where the matrix is nearly singular."""
        factored, line = self.process.engine.factored(where)
        warn_if_singular(where, factored)
        return factored, line

    def _volume(self, factored: Factored) -> Tensor:
        """log det(2 pi A), (h,)."""
        d = torch.where(factored.over_d == 0, 1.0, factored.d)  # 1 where there is no observation
        return d.log().sum(-1) + self.event_shape.numel() * math.log(2 * math.pi)

    def _inner_shape(self) -> torch.Size:
        return torch.Size((*self.process.batch_shape, *self.event_shape))

    def _mean(self) -> Tensor:
        mean = self.process._mean_at(WHERE)
        return torch.as_tensor(mean, dtype=torch.float64, device=self.process.t.device).expand(self._inner_shape())


def _expanded(process: GaussianProcess, batch: torch.Size) -> GaussianProcess:
    """Expand the process to a larger batch."""
    t = process.t.expand(*batch, process.t.shape[-1])
    diag, mean, band, exposure = process.diag, process.mean, process.band, process.exposure
    return type(process)(process.kernel, t, diag=diag, mean=mean, band=band, exposure=exposure)
