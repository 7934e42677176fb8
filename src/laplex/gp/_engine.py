"""What a Gaussian process computes: its likelihood, and the factor of K + diag, on tensors that were checked before."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.linalg import LinAlgError  # type: ignore[attr-defined]

from laplex._checks.solves import warn_of_lost_digits
from laplex._eager import is_trained, normal_mode
from laplex._states.arithmetic import blocks_of_numbers
from laplex._states.blocks import blocks_only, stacked, variance_of
from laplex._states.chain import Chain, Factored, factorise
from laplex._states.components import Component
from laplex._states.core_likelihood import CoreLikelihood, KernelNumbers, ParameterReader, core_can_read, kernel_numbers
from laplex._states.exposures import Events
from laplex._states.likelihood import Result, block_likelihood, chain_likelihood
from laplex._states.line import Line, line_between
from laplex._states.result import LikelihoodResult, read
from laplex.gp import _checks as checks
from laplex.gp._kernel import Kernel
from laplex.gp._range import WHERE, check_variance, has_valid_parameters, refuse_numbers
from laplex.gp._series import Series


class Engine:
    """A kernel, series of times, and noise. None of them is replaced: :meth:`replaced` makes another engine."""

    def __init__(
        self,
        kernel: Kernel,
        series: Series,
        noise: Tensor,
        is_deviation: bool,
        band: Tensor | None,
        exposure: Tensor | None,
    ) -> None:
        """``noise`` (*batch, n) is a standard deviation or a variance; band and exposure are (*any, n)."""
        self.kernel, self.series, self.noise, self.is_deviation = kernel, series, noise, is_deviation
        self.band, self.exposure = band, exposure
        self._cached_diag: tuple[int, Tensor] | None = None  # the version of the noise, and diag (h, n)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_cached_diag": None}  # a copy's noise is a tensor with other writes

    def replaced(self, **parts: Any) -> Engine:
        """The same engine with another kernel, series, noise, band or exposure."""
        names = "kernel", "series", "noise", "is_deviation", "band", "exposure"
        return Engine(**({name: getattr(self, name) for name in names} | parts))

    @property
    def diag(self) -> Tensor:
        """The variance of the noise, (*batch, n)."""
        return self.noise.square() if self.is_deviation else self.noise

    # --- Likelihood --------------------------------------------------------------------------------------------------

    def likelihood(self, y: Tensor) -> LikelihoodResult:
        """The likelihood of y (*batch, n), the observations minus the mean, by the first of three ways that can do it:

        1. in C++, for a sum of blocks, if the tensors are ordinary ones on the CPU;
        2. for a sum of blocks, whose numbers are computed on the host, if they are not: on a GPU, above all;
        3. with tensors, for any kernel and for exposures.
        """
        try:
            result = None
            if self.exposure is None:
                by_core = core_can_read(self.series.caller_times, self.noise, y)
                result = self._by_core(y) if by_core else self._by_host(y)
            return self._by_tensors(y) if result is None else result
        except RuntimeError:
            self.check_batch()
            raise

    def _by_core(self, y: Tensor) -> LikelihoodResult | None:
        """The likelihood in C++; None for a kernel that is not a sum of few blocks."""
        numbers = self.kernel_numbers()
        if numbers is None:
            return None
        series = self.series
        inputs = [series.complete(part) for part in (series.caller_times, self.diag, y)]
        return CoreLikelihood(numbers, *series.ordered(), series.counts, self._chain_value).evaluate(*inputs)

    def _by_host(self, y: Tensor) -> LikelihoodResult | None:
        """The likelihood of blocks whose numbers the host computes; None for other kernels."""
        known = blocks_of_numbers(self.kernel.components_by, self.series.caller_times, self.series.batch.numel())
        if known is None:
            return None
        blocks, variance = known
        result = block_likelihood(self.series.line(), blocks, self._flat_diag(), self.series.flat(y))
        return self._shaped(result, variance)

    def _by_tensors(self, y: Tensor) -> LikelihoodResult:
        """The likelihood with tensors, for any kernel."""
        line, diag, flat = self.line(), self._flat_diag(), self.series.flat(y)
        return self._shaped(*self._parts(self.components(), line, diag, flat))

    def _shaped(self, result: Result, variance: float | Tensor) -> LikelihoodResult:
        return LikelihoodResult(self.series.shaped(self._value(result)), result.loss, result.failed, variance)

    def kernel_numbers(self) -> KernelNumbers | None:
        """The numbers of the kernel, if it is made of blocks by arithmetic alone."""
        reader = ParameterReader(self.series.batch)
        try:
            return kernel_numbers(self.kernel.components_by(reader), reader)
        except (ArithmeticError, TypeError):
            return None  # the kernel is then computed with tensors, which allow division by 0, and more

    def _chain_value(self, t: Tensor, diag: Tensor, y: Tensor, *parameters: Tensor) -> Tensor:
        """The likelihood by a chain of states, as a function of everything it depends on."""
        series, rest = self.series, iter(parameters)
        components = self.kernel.components_by(lambda _: next(rest).double())
        flat = [part.reshape(-1, series.n) for part in (t, diag, y)]
        line = line_between(flat[0], series.ordered()[1], series.counts)
        return series.shaped(self._value(self._parts(components, line, *flat[1:])[0]))

    def _value(self, result: Result) -> Tensor:
        n = self.series.n if self.series.counts is None else self.series.counts.double()
        return -0.5 * (result.quad + result.logdet + n * math.log(2 * math.pi))

    def _parts(
        self, components: Sequence[Component], line: Line | Events, diag: Tensor, y: Tensor
    ) -> tuple[Result, float | Tensor]:
        """The likelihood for these components, and k(0); diag and y are (h, n) in the caller's order."""
        blocks = blocks_only(components)
        if blocks is not None and isinstance(line, Line):
            variance = variance_of(blocks)
            variance = self.series.per_series(variance.detach()) if isinstance(variance, Tensor) else variance
            return block_likelihood(line, stacked(blocks, self.series.per_series), diag, y), variance
        chain = self.chain(components, line)
        return chain_likelihood(line, chain, y), chain.variance()

    def _flat_diag(self) -> Tensor:
        """The variance of the noise, (h, n), cached as a contiguous copy unless its gradient is needed."""
        noise = self.noise
        if noise.requires_grad or not checks.readable(noise) or noise.is_inference() or is_trained(noise):
            return self.series.flat(self.diag)
        cached = self._cached_diag
        if cached is None or cached[0] != noise._version:
            with normal_mode():
                cached = noise._version, self.series.flat(self.diag).contiguous()
            self._cached_diag = cached
        return cached[1]

    # --- The chain of states, and its factor -------------------------------------------------------------------------

    def components(self) -> list[Component]:
        """The components of the kernel."""
        try:
            return self.kernel.components()
        except ArithmeticError:
            refuse_numbers(self.kernel)

    def line(self) -> Line | Events:
        """The times in order, or the starts and ends of the exposures."""
        if self.exposure is None:
            return self.series.line()
        return Events(self.series.t, self.series.flat(self.exposure))

    def chain(self, components: Sequence[Component], line: Line | Events) -> Chain:
        """K + diag as a chain of states."""
        band = None if self.band is None else self.series.flat(self.band).long()
        return line.chain(components, self._flat_diag(), self.series.per_series, band)

    def factored(self, where: str) -> tuple[Factored, Line | Events]:
        """The factor of K + diag, which has to be positive definite."""
        line = self.line()
        try:
            chain = self.chain(self.components(), line)
        except RuntimeError:
            self.check_batch()
            raise
        factored, failed = factorise(chain)
        if checks.readable(failed):  # else the results are NaN
            points, variance = read(failed, chain.variance())
            self.check_variance(variance)
            if max(points) >= 0 and not chain.is_finite() and has_valid_parameters(self.kernel):
                refuse_numbers(self.kernel)
            self.check_pivots(where, points)
        return factored, line

    def solver(self, where: str) -> tuple[Factored, Line | Events]:
        """The factor for solves, with a warning where the matrix is nearly singular."""
        factored, line = self.factored(where)
        warn_if_singular(where, factored, "; what is solved loses digits, too")
        return factored, line

    def check_batch(self) -> None:
        """Raise if the kernel's parameters do not broadcast to the batch of series, as after they were changed."""
        of_kernel, batch = self.kernel.batch_shape, self.series.batch
        try:
            fits = torch.broadcast_shapes(of_kernel, batch) == batch
        except RuntimeError:
            fits = False
        if not fits:
            raise ValueError(
                f"{WHERE}: the kernel's parameters must broadcast to the batch {tuple(batch)} of the process, got "
                f"parameters of shape {tuple(of_kernel)}; make a new process"
            )

    # --- Checks of results -------------------------------------------------------------------------------------------

    def check_variance(self, variance: Any) -> None:
        """Raise if k(0), a number or one for each series, is too large, or too small even with the noise."""
        check_variance(variance, self.kernel, lambda: self.diag)

    def check_pivots(self, where: str, failed: Sequence[float]) -> None:
        """Raise if K + diag is not positive definite: if a series has a point without a positive pivot."""
        if max(failed) >= 0:
            series = next(i for i, point in enumerate(failed) if point >= 0)
            time = float(self.line().sorted_times()[series, int(failed[series])])
            raise LinAlgError(
                f"{where}: K + diag must be positive definite, but at time {time:g} of series {series} the variance, "
                "given the times before, is not positive; raise `diag`, or check the kernel's parameters"
            )


def warn_if_singular(where: str, factored: Factored, others: str = "") -> None:
    """Warn where a factored matrix is nearly singular; ``others`` says what suffers besides its log determinant."""
    loss = (factored.chain.variance()[:, None] * factored.over_d).detach().sum(-1)
    if checks.readable(loss):
        warn_of_lost_digits(where, max(loss.tolist()), others)


def dtype_of_likelihood(dtype: torch.dtype) -> torch.dtype:
    """The dtype of a likelihood of y in ``dtype``: the same, but not half precision, which would overflow."""
    return dtype if dtype.itemsize > 2 else torch.float32
