"""A Gaussian process over time, in O(n): likelihood, predictions, samples."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from laplex._checks.counts import flag, is_number
from laplex._checks.counts import generator as generator_on
from laplex._checks.solves import warn_of_lost_digits
from laplex._states.chain import Factored
from laplex._states.exposures import Events
from laplex._states.line import Line
from laplex._states.order import extremes
from laplex.gp import _checks as checks
from laplex.gp._conditional import Conditional
from laplex.gp._distribution import ProcessDistribution
from laplex.gp._engine import Engine, dtype_of_likelihood
from laplex.gp._kernel import Kernel
from laplex.gp._range import check_observations, has_valid_parameters, refuse_numbers
from laplex.gp._series import Series, padded, unpadded

Mean = float | Tensor | Callable[[Tensor], Tensor]


class Prediction(NamedTuple):
    """Mean and variance, or covariance, of a process at some times."""

    mean: Any  # (*batch, m), or a list of tensors if the times are a list
    variance: Any  # (*batch, m), or (*batch, m, m) for a covariance


SETTABLE = "kernel", "mean", "diag"
HELD = "engine", "counts"  # what a process is made of, next to these
FIXED = "t", "yerr", "band", "exposure", "series", "batch_shape"


class GaussianProcess:
    """A Gaussian process with a kernel of ``laplex.gp``, observed with noise at times in any order.

        y ~ N(mean(t), K + diag),    K[i, j] = kernel(t_i, t_j)

    Once the times are sorted, everything takes O(n). Computations are in float64, and results have the dtype of y. All
    results are differentiable, to any order, in y, the times, the noise, the mean and the kernel's parameters.

    Args:
        kernel: a kernel of :mod:`laplex.gp`, or a sum or product of them.
        t (*batch, n): times, in any order; some may be equal. If they are in float64 you may change them in place
            later; else they are copied. (Torch does not count writes through NumPy or ``.data``: results would mix old
            and new.) Leading dimensions are independent series of n times. A list of tensors (n_i,) holds series of
            different sizes; y and results are such lists, too.
        diag: the variance of the noise, a number or a tensor that broadcasts to t (or a list of tensors).
        yerr: its standard deviation instead; not both.
        mean: the mean of the process: a number, a tensor that broadcasts to t, or a function of times, such as a
            module. Predictions at other times need the mean there, too, for which a tensor of n numbers will not do.
        band (*batch, n): integers, the band of every time, for kernels with :class:`laplex.gp.Bands`.
        exposure: a positive number, or a tensor that broadcasts to t. If given, y is the mean of the process over
            [t - exposure / 2, t + exposure / 2]. Exposures may overlap. Predictions are of the process itself.

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
        t: Tensor | Sequence[Tensor],
        *,
        diag: Any = None,
        yerr: Any = None,
        mean: Mean = 0.0,
        band: Any = None,
        exposure: Any = None,
    ) -> None:
        checks.check_kernel(checks.WHERE, kernel)
        checks.check_mean(checks.WHERE, mean, many=isinstance(t, list | tuple))
        self._mean = mean
        self.counts: list[int] | None = None
        sizes = None
        if isinstance(t, list | tuple):
            t, sizes = padded([checks.observed_times(times) for times in checks.list_of_series(t)])
            self._t, self.counts = t, sizes.tolist()
        else:
            self._t = checks.observed_times(t)
        batch = checks.batch(self.t, kernel.batch_shape)
        noise = checks.noise(self._padded("diag", diag), self._padded("yerr", yerr), self.t, batch)
        ordered = checks.check_values(self.t, noise)
        bands = checks.bands(checks.WHERE, self._padded("band", band), self.t)
        exposures = checks.exposures(exposure, self.t, batch, self.counts, bands)
        counts = None if sizes is None else sizes.expand(batch).reshape(-1).contiguous()
        series = Series(self.t, batch, counts, ordered=ordered)
        self.engine = Engine(kernel, series, noise.expanded, noise.is_deviation, bands, exposures)

    def __repr__(self) -> str:
        sizes = f"{len(self.counts)} series of {self.counts} times" if self.counts else f"times {tuple(self.t.shape)}"
        return f"GaussianProcess({self.kernel}, {sizes}, device={self.t.device})"

    def __setattr__(self, name: str, value: Any) -> None:
        """Refuse names that cannot be set, which would have no effect. Subclasses may have others."""
        if name in SETTABLE:  # torch.compile of torch 2.11 ignores setters: those below only say this to type checkers
            getattr(self, f"_set_{name}")(value)
            return
        if not (name in HELD or name.startswith("_")) and (name in FIXED or type(self).__module__ == "laplex.gp"):
            raise AttributeError(
                f"{checks.WHERE}: `{name}` cannot be set, only `kernel`, `mean` and `diag`, the variance of the noise; "
                "for anything else make a new process"
            )
        super().__setattr__(name, value)

    @property
    def batch_shape(self) -> torch.Size:
        """The shape of the batch of series."""
        return self.series.batch

    @property
    def series(self) -> Series:
        """The times as series of sorted points."""
        return self.engine.series

    @property
    def t(self) -> Tensor:
        """The times (*batch, n) in float64; series of different sizes are padded."""
        return self._t

    @property
    def band(self) -> Tensor | None:
        """The bands of the times."""
        return self.engine.band

    @property
    def exposure(self) -> Tensor | None:
        """The lengths of the exposures."""
        return self.engine.exposure

    @property
    def kernel(self) -> Kernel:
        """The kernel; another one may take its place."""
        return self.engine.kernel

    @kernel.setter
    def kernel(self, kernel: Kernel) -> None:
        self._set_kernel(kernel)

    def _set_kernel(self, kernel: Kernel) -> None:
        checks.check_kernel(checks.WHERE, kernel)
        engine = self.engine.replaced(kernel=kernel)
        engine.check_batch()
        self.engine = engine

    @property
    def mean(self) -> Any:
        """The mean, as it was given; another one may take its place."""
        return self._mean

    @mean.setter
    def mean(self, mean: Any) -> None:
        self._set_mean(mean)

    def _set_mean(self, mean: Any) -> None:
        checks.check_mean(checks.WHERE, mean, many=self.counts is not None)
        self._mean = mean

    @property
    def diag(self) -> Tensor:
        """The variance of the noise, (*batch, n)."""
        return self.engine.diag

    @diag.setter
    def diag(self, value: Any) -> None:
        self._set_diag(value)

    def _set_diag(self, value: Any) -> None:
        value = self._padded("diag", value) if isinstance(value, list | tuple) else value
        noise = checks.noise(value, None, self.t, self.series.batch)
        if checks.readable(noise.given):
            checks.check_noise_range(noise, *extremes(noise.given))
        self.engine = self.engine.replaced(noise=noise.expanded, is_deviation=False)

    # --- Likelihood --------------------------------------------------------------------------------------------------

    def log_likelihood(self, y: Any) -> Tensor:
        """The log density of y (*batch, n): a number for each series, (*batch)."""
        where = f"{checks.WHERE}.log_likelihood"
        residual, dtype = self._residual(where, y)
        result = self.engine.likelihood(residual)
        if checks.readable(result.value):  # otherwise the results are NaN where something is wrong
            values, loss, failed, variance = result.read()
            self.engine.check_variance(variance)
            if not all(map(math.isfinite, values)):
                checks.finite_observations(where, residual, lambda: self._mean_at(where))
                check_observations(where, residual)
            self.engine.check_pivots(where, failed)
            if any(map(math.isnan, values)) and has_valid_parameters(self.kernel):
                refuse_numbers(self.kernel)
            warn_of_lost_digits(where, max(loss))
        return result.value.to(dtype_of_likelihood(dtype))

    # --- Predictions -------------------------------------------------------------------------------------------------

    def condition(self, y: Any) -> Conditional:
        """The process, without noise, given observations y (*batch, n).

        The observations are processed once, in O(n). Mean and variance at any m times then take O(m), a sample
        O(n + m) and a covariance O((n + m) m), as often as you ask for them. The result keeps the present times,
        bands, noise, mean and kernel, whatever is written to them later; but a mean that is a function is called each
        time.
        """
        return self._conditioned(f"{checks.WHERE}.condition", y)

    def _conditioned(self, where: str, y: Any, named: str | None = None) -> Conditional:
        """The process given y; errors of its methods name them, or ``named``."""
        residual, dtype = self._residual(where, y)
        checks.finite_observations(where, residual, lambda: self._mean_at(where))
        flat = self.series.flat(residual)
        factored, line = self.engine.solver(where)
        return Conditional(self, factored, line, line.take(flat)[..., None], dtype, named)

    def predict(
        self,
        y: Any,
        t: Any = None,
        *,
        return_var: bool = False,
        return_cov: bool = False,
        include_mean: bool = True,
        kernel: Kernel | None = None,
        band: Any = None,
    ) -> Any:
        """Predict the process, without noise, given observations y, in O(n + m).

        Args:
            y (*batch, n): the observations.
            t (*batch, m): times, in any order; None for the observed ones.
            return_var: return the variance, too.
            return_cov: return the covariance (*batch, m, m), too; it takes O((n + m) m).
            include_mean: whether the mean of the process is added.
            kernel: a term of the process's kernel, if that is a sum; only the part with this kernel is predicted.
            band (*batch, m): the bands of the times; None for the observed ones.

        Returns:
            The mean (*batch, m), or a tuple of mean and variance or covariance, in the dtype of y.
        """
        where = f"{checks.WHERE}.predict"
        if flag(where, "return_var", return_var) and flag(where, "return_cov", return_cov):
            raise ValueError(f"{where}: `return_var` and `return_cov` exclude each other, got both")
        conditional = self._conditioned(where, y, where)
        mean = conditional.mean(t, include_mean=include_mean, kernel=kernel, band=band)
        if return_var:
            return Prediction(mean, conditional.variance(t, kernel=kernel, band=band))
        return Prediction(mean, conditional.covariance(t, kernel=kernel, band=band)) if return_cov else mean

    def leave_one_out(self, y: Any) -> Prediction:
        """Mean and variance of every observation, noise included, given all others, (*batch, n) each, in O(n)."""
        where = f"{checks.WHERE}.leave_one_out"
        residual, dtype = self._residual(where, y)
        checks.finite_observations(where, residual, lambda: self._mean_at(where))
        flat = self.series.flat(residual)
        factored, line = self.engine.solver(where)
        variance = 1 / torch.where(
            factored.over_d == 0, 1.0, factored.inverse_diagonal()
        )  # 1 where nothing is observed
        ordered = line.take(flat)
        mean = ordered - factored.solve(ordered[..., None])[..., 0] * variance
        mean, variance = (self.series.shaped(line.put(part)) for part in (mean, variance))
        return Prediction(*(self._in_callers_form(part.to(dtype)) for part in (mean + self._mean_at(where), variance)))

    # --- Samples and solves ------------------------------------------------------------------------------------------

    def sample(
        self, size: int | None = None, *, include_mean: bool = True, generator: torch.Generator | None = None
    ) -> Any:
        """Draw from the process with its noise, at its times: (*batch, n), or (size, *batch, n), in float64."""
        where = f"{checks.WHERE}.sample"
        draws, with_mean = checks.draws(where, size), flag(where, "include_mean", include_mean)
        generator_on(where, generator, self.t.device, "t")
        factored, line = self.engine.factored(where)
        drawn = self._coloured(factored, line, draws, generator)  # (h, n, draws)
        values = self.series.shaped(drawn).movedim(-1, 0)
        if with_mean:
            values = values + self._mean_at(where)
        return self._in_callers_form(values if size is not None else values[0])

    def distribution(self) -> ProcessDistribution:
        """The observations, noise included, as a ``torch.distributions.Distribution``."""
        return ProcessDistribution(self)

    def apply_inverse(self, y: Tensor) -> Tensor:
        """(K + diag)^-1 y for y (*batch, n), or for columns (*batch, n, m)."""
        return self._columns("apply_inverse", y, self.engine.solver, lambda factored, x: factored.solve(x))

    def dot_tril(self, y: Tensor) -> Tensor:
        """L y, where L L^T = K + diag and L is lower triangular in the order of time: y (*batch, n) or columns."""
        return self._columns(
            "dot_tril", y, self.engine.factored, lambda factored, x: factored.colour(factored.roots()[..., None] * x)
        )

    def _columns(
        self,
        name: str,
        y: Tensor,
        factor: Callable[[str], tuple[Factored, Line | Events]],
        function: Callable[[Factored, Tensor], Tensor],
    ) -> Tensor:
        where = f"{checks.WHERE}.{name}"
        checks.not_ragged(where, self.counts)
        columns = checks.columns(where, y, (*self.series.batch, self.series.n))
        shape = *self.series.batch, *columns.shape[-2:]
        flat = columns.double().expand(shape).reshape(-1, *columns.shape[-2:])
        factored, line = factor(where)
        result = self.series.shaped(line.put(function(factored, line.take(flat)))).to(y.dtype)
        return result if columns is y else result[..., 0]

    def _coloured(
        self, factored: Factored, line: Line | Events, draws: int, generator: torch.Generator | None
    ) -> Tensor:
        """Draw from N(0, A), (h, n, draws), in the caller's order."""
        shape = *factored.d.shape, draws
        white = torch.randn(shape, dtype=torch.float64, device=self.t.device, generator=generator)
        return line.put(factored.colour(factored.roots()[..., None] * white))

    # --- What the caller gave, and gets ------------------------------------------------------------------------------

    def _residual(self, where: str, y: Any) -> tuple[Tensor, torch.dtype]:
        """Observations minus the mean, which broadcast to (*batch, n), and the dtype of results."""
        values = checks.observations(where, self._padded("y", y), self.engine.series.batch, self.t.shape)
        checks.same_device(where, "y", values, self.t)
        residual = values.double()
        if not is_number(self._mean) or self._mean != 0:
            residual = residual - self._mean_at(where)
        return residual, values.dtype

    def _mean_at(self, where: str, t: Tensor | None = None) -> Tensor | float:
        """The mean of the process, at the times observed or at others."""
        mean, dims = self._padded("mean", self._mean), 1 + len(self.series.batch)
        if isinstance(mean, Tensor):
            return checks.fixed_mean(where, mean, self.t if t is None else t, dims, observed=t is None)
        if callable(mean):
            times = self.t if t is None else t
            return checks.computed_mean(where, _called(where, mean, times), times, dims)
        return float(mean)

    def _padded(self, name: str, values: Any) -> Any:
        """Turn a list with a tensor for each series into one tensor. Series of different sizes need a list."""
        if self.counts is None:
            return values
        one_for_all = len(set(self.counts)) > 1 and checks.last_size(values) > 1
        if isinstance(values, list | tuple) or one_for_all:
            return padded(checks.one_value_per_time(name, values, self.counts))[0]
        return values

    def _in_callers_form(self, values: Tensor) -> Any:
        """Return values (..., n) in the form of the caller's times: one tensor, or one for each series."""
        return values if self.counts is None else unpadded(values, self.counts)


def _called(where: str, mean: Callable[[Tensor], Any], t: Tensor) -> Any:
    try:
        return mean(t)
    except RuntimeError as error:
        if type(error) is not RuntimeError:  # such as when memory runs out, which says more
            raise
        raise RuntimeError(
            f"{where}: `mean` failed: {error}\nIt is called with the times, a float64 tensor of shape "
            f"{tuple(t.shape)}, and must return as many numbers. A layer takes columns: use mean=lambda t: "
            "layer(t[..., None])[..., 0] with layer.double()"
        ) from error
