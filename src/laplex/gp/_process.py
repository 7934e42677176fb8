"""A Gaussian process over time, in O(n): likelihood, predictions, samples."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from laplex._states import autograd as states
from laplex._states.blocks import Blocks
from laplex.gp import _checks as checks
from laplex.gp._kernels import Kernel

Mean = float | Tensor | Callable[[Tensor], Tensor]


class Prediction(NamedTuple):
    """Mean and variance of a process at some times."""

    mean: Tensor  # (*batch, m)
    variance: Tensor  # (*batch, m)


class GaussianProcess:
    """A Gaussian process with a kernel of ``laplex.gp``, observed with noise at times in any order.

        y ~ N(mean(t), K + diag),    K[i, j] = kernel(|t_i - t_j|)

    After a sort of the times everything takes O(n). It is computed in float64, and results have the dtype of y.

    Args:
        kernel: of :mod:`laplex.gp`, or a sum or product of such.
        t (*batch, n): times, in any order; some may be equal. Leading dimensions are independent series of n times.
        diag: the variance of the noise, a number or a tensor that broadcasts to t.
        yerr: its standard deviation instead; not both.
        mean: the mean of the process: a number, a tensor that broadcasts to t, or a function of times, such as a
            module. At other times than those observed it must be known, too: there a tensor of n numbers will not do.

    Example:
        >>> t = 10 * torch.rand(500)
        >>> y = torch.sin(t) + 0.1 * torch.randn(500)
        >>> process = laplex.gp.GaussianProcess(laplex.gp.Matern32(scale=2.0), t, yerr=0.1)
        >>> process.log_likelihood(y).shape
        torch.Size([])
        >>> mean, variance = process.predict(y, torch.linspace(0, 12, 50), return_var=True)
        >>> mean.shape, variance.shape
        (torch.Size([50]), torch.Size([50]))
    """

    __module__ = "laplex.gp"

    def __init__(
        self,
        kernel: Kernel,
        t: Tensor,
        *,
        diag: float | Tensor | None = None,
        yerr: float | Tensor | None = None,
        mean: Mean = 0.0,
    ) -> None:
        if not isinstance(kernel, Kernel):
            raise TypeError(
                f"{checks.WHERE}: `kernel` must be a kernel of laplex.gp, such as laplex.gp.Matern32(scale=1.0), got "
                f"{type(kernel).__name__}"
            )
        self.kernel, self.mean = kernel, mean
        self.t = checks.times(checks.WHERE, "t", t)
        self.diag = checks.noise(diag, yerr, self.t)

    # --- Likelihood --------------------------------------------------------------------------------------------------

    def log_likelihood(self, y: Tensor) -> Tensor:
        """The logarithm of the density of y (*batch, n): a number for each series.

        Differentiable to any order in y, the times, the noise, the mean and the parameters of the kernel.
        """
        checks.observations(f"{checks.WHERE}.log_likelihood", y, self.t)
        line = Line.sorted_times(self.t, self.kernel.blocks())
        residual = y.double() - self._mean_at("log_likelihood", self.t)
        quad, logdet = states.likelihood(line.gaps, line.blocks, line.take(self.diag), line.take(residual))
        value = -0.5 * (quad + logdet + self.t.shape[-1] * math.log(2 * math.pi))
        return value.reshape(line.batch).to(y.dtype)

    # --- Predictions -------------------------------------------------------------------------------------------------

    def predict(
        self, y: Tensor, t: Tensor | None = None, *, return_var: bool = False, include_mean: bool = True
    ) -> Tensor | Prediction:
        """The process, without noise, given observations y, in O(n + m).

        Args:
            y (*batch, n): the observations.
            t (*batch, m): times, in any order; None for those observed.
            return_var: return the variance, too.
            include_mean: whether the mean of the process is added.

        Returns:
            The mean (*batch, m), or with ``return_var`` mean and variance, in the dtype of y.
        """
        where = f"{checks.WHERE}.predict"
        checks.observations(where, y, self.t)
        new = self.t if t is None else checks.new_times(where, t, self.t)
        n, m = self.t.shape[-1], new.shape[-1]
        residual = y.double() - self._mean_at("predict", self.t)
        seen = torch.broadcast_shapes(self.t.shape[:-1], new.shape[:-1])
        joint = torch.cat([self.t.expand(*seen, n), new.expand(*seen, m)], -1)
        line = Line.sorted_times(joint, self.kernel.blocks())
        absent = joint.new_zeros(*seen, m)
        diag, values = (line.take(torch.cat([one.expand(*seen, n), absent], -1)) for one in (self.diag, residual))
        means, variances = states.smooth(line.gaps, line.blocks, diag, values, line.order < n)
        mean, variance = (line.put(one)[..., n:] for one in (means, variances))
        if include_mean:
            mean = mean + self._mean_at("predict", new)
        mean, variance = mean.to(y.dtype), variance.to(y.dtype)
        return Prediction(mean, variance) if return_var else mean

    def sample(self, size: int | None = None, *, include_mean: bool = True) -> Tensor:
        """Draws from the process with its noise, at its times: (*batch, n), or (size, *batch, n). In float64."""
        line = Line.sorted_times(self.t, self.kernel.blocks())
        draws = 1 if size is None else size
        white = torch.randn(*line.gaps.shape, draws, dtype=torch.float64, device=self.t.device)
        values = states.colour(line.gaps, line.blocks, line.take(self.diag), white)  # (h, n, draws)
        drawn = torch.stack([line.put(values[..., one]) for one in range(draws)])
        if include_mean:
            drawn = drawn + self._mean_at("sample", self.t)
        return drawn[0] if size is None else drawn

    def _mean_at(self, method: str, t: Tensor) -> Tensor | float:
        """The mean of the process at times."""
        if isinstance(self.mean, Tensor):
            return checks.fixed_mean(f"{checks.WHERE}.{method}", self.mean, t)
        if callable(self.mean):
            return self.mean(t).to(torch.float64)
        return float(self.mean)


class Line(NamedTuple):
    """Times of h series in order, and the blocks of a kernel for each."""

    gaps: Tensor  # (h, n), the first 0
    blocks: Blocks  # of h series
    order: Tensor  # (h, n)
    batch: torch.Size

    @classmethod
    def sorted_times(cls, t: Tensor, blocks: Blocks) -> Line:
        """Sort times (*batch, n) for blocks with a batch that broadcasts to theirs."""
        batch = torch.broadcast_shapes(t.shape[:-1], blocks.rates.shape[:-1])
        h, n = batch.numel(), t.shape[-1]
        flat = t.expand(*batch, n).reshape(h, n)
        order = torch.argsort(flat.detach(), dim=-1, stable=True)
        ordered = flat.gather(-1, order)
        gaps = torch.cat([ordered.new_zeros(h, 1), ordered.diff(dim=-1)], -1)
        rates, squares, g = (
            one.expand(*batch, one.shape[-1]).reshape(h, one.shape[-1]) for one in (blocks.rates, blocks.squares, blocks.g)
        )
        return cls(gaps, Blocks(blocks.kinds, rates, squares, g), order, batch)

    def take(self, values: Tensor) -> Tensor:
        """Values (*batch, n) of times in the order of the line: (h, n)."""
        n = self.order.shape[-1]
        return values.expand(*self.batch, n).reshape(self.order.shape).gather(-1, self.order)

    def put(self, values: Tensor) -> Tensor:
        """The inverse of :meth:`take`."""
        back = torch.argsort(self.order, dim=-1)
        return values.gather(-1, back).reshape(*self.batch, values.shape[-1])
