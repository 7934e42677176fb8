"""Kernels with trainable numbers, kept positive by training their logarithms, and fits by maximum likelihood."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from laplex._checks.counts import any_generator, integer, positive
from laplex._eager import normal_mode
from laplex.gp import _checks as checks
from laplex.gp._kernel import Kernel
from laplex.gp._process import GaussianProcess
from laplex.gp._range import check_observations
from laplex.gp._series import Series

WHERE = "laplex.gp.fit"
RESTART_DEVIATION = 2.0  # the standard deviation, in logarithms, of the parameters from which a restart begins
REFUSED = 1e10  # the loss where K + diag is not positive definite: it makes a search turn back


def trainable(kernel: Kernel, *, batch_shape: Sequence[int] = ()) -> Kernel:
    """Copy a kernel, turning every number into a parameter that can be trained.

    Positive numbers stay positive, because their logarithms are trained. Tensors stay the same objects, so a parameter
    that should keep its value can be given as a tensor.

    Args:
        kernel: a kernel of :mod:`laplex.gp`.
        batch_shape: the shape of the parameters, one number for each series; by default one for all of them.

    Example:
        >>> kernel = laplex.gp.trainable(laplex.gp.Matern32(scale=2.0) + laplex.gp.SHO(period=3.0))
        >>> sum(one.numel() for one in kernel.parameters())
        5
    """
    checks.check_kernel("laplex.gp.trainable", kernel)
    if not isinstance(batch_shape, list | tuple):
        raise TypeError(
            f"laplex.gp.trainable: `batch_shape` must be a tuple of positive integers, got {batch_shape!r}; use (3,) "
            "for 3 series"
        )
    shape = [integer("laplex.gp.trainable", "batch_shape", size) for size in batch_shape]
    copied = copy.deepcopy(kernel, {id(tensor): tensor for tensor in _tensors(kernel)})
    for part in _parts(copied):
        numbers = {name: float(part.__dict__[name]) for name in part.parameter_names if name in part.__dict__}
        logs = nn.ParameterDict()
        for name, number in numbers.items():
            delattr(part, name)
            if name in part.signed_parameters:
                part.register_parameter(name, _parameter(shape, number))
            else:
                logs[name] = _parameter(shape, math.log(number))
        if len(logs):
            part.logs = logs
    return copied


def fixed(kernel: Kernel) -> Kernel:
    """Copy a kernel, turning its trainable parameters into numbers, or into tensors where they hold several."""
    checks.check_kernel("laplex.gp.fixed", kernel)
    copied = copy.deepcopy(kernel, {id(tensor): tensor.detach().clone() for tensor in _tensors(kernel)})
    for part in _parts(copied):
        logs = getattr(part, "logs", None)
        values = {name: getattr(part, name) for name in (*part._parameters, *(logs or ()))}
        for name in list(part._parameters):
            delattr(part, name)
        if logs is not None:
            del part.logs
        for name, value in values.items():
            part._set(name, float(value) if value.dim() == 0 else value.detach())
    return copied


class Fitted(NamedTuple):
    """The result of :func:`laplex.gp.fit`."""

    process: GaussianProcess  # with the fitted parameters, which are numbers, or tensors without gradients
    noise: float  # the standard deviation of the fitted noise, which the process includes; 0 if none was fitted
    log_likelihood: Tensor  # of each series, (*batch)


def fit(
    process: GaussianProcess,
    y: Any,
    *,
    noise: float | None = None,
    restarts: int = 0,
    max_iter: int = 200,
    generator: torch.Generator | None = None,
) -> Fitted:
    """Find the parameters with the largest likelihood, by L-BFGS with exact gradients, in O(n) a step.

    The fit covers all numbers of the kernel, as :func:`laplex.gp.trainable` describes, the parameters that it already
    has, and the mean, if that is an nn.Parameter or a module with parameters. The given process does not change.

    Args:
        process: holds the initial kernel and noise. For several series the sum of the log likelihoods counts.
        y (*batch, n): the observations.
        noise: the initial standard deviation of white noise that is added to the process's noise and fitted, too.
        restarts: how often to search again from random parameters around the initial ones; the best result counts.
        max_iter: the largest number of steps of each search.
        generator: the random generator of the restarts.

    Example:
        >>> t = 10 * torch.rand(200)
        >>> y = torch.sin(t) + 0.1 * torch.randn(200)
        >>> process = laplex.gp.GaussianProcess(laplex.gp.Matern32(scale=1.0), t, diag=0.0)
        >>> process, noise, log_likelihood = laplex.gp.fit(process, y, noise=0.5)
        >>> 0.05 < noise < 0.2
        True
    """
    if not isinstance(process, GaussianProcess):
        raise TypeError(f"{WHERE}: `process` must be a laplex.gp.GaussianProcess, got {type(process).__name__}")
    integer(WHERE, "restarts", restarts, 0)
    integer(WHERE, "max_iter", max_iter)
    any_generator(WHERE, generator)
    with normal_mode():
        return _best(
            _Search(process, y, None if noise is None else positive(WHERE, "noise", noise)),
            restarts,
            max_iter,
            generator,
        )


def _best(search: _Search, restarts: int, max_iter: int, generator: torch.Generator | None) -> Fitted:
    least = search.run(max_iter)
    best = search.values()
    for _ in range(restarts):
        search.load(search.scattered(search.begin, generator))
        loss = search.run(max_iter)
        if loss < least:
            best, least = search.values(), loss
    search.load(best)
    return search.fitted()


class _Search:
    """A copy of a process, whose parameters are changed in place."""

    def __init__(self, process: GaussianProcess, y: Any, noise: float | None) -> None:
        process = _with_savable_data(process)
        self.y, self.diag = _savable(y), _savable(process.diag.detach())
        detached = {id(tensor): tensor.detach().clone() for tensor in process.kernel.buffers()}
        kernel = trainable(copy.deepcopy(process.kernel, detached)).to(process.t.device)
        mean = copy.deepcopy(process.mean) if isinstance(process.mean, nn.Module | nn.Parameter) else process.mean
        self.process = _changed(process, kernel=kernel, mean=mean, diag=self.diag)
        self.log_noise = None if noise is None else _parameter((), math.log(noise), process.t.device)
        self.begin = self.values()
        residual = self.process._residual(WHERE, y)[0]
        checks.finite_observations(WHERE, residual.detach(), lambda: self.process._mean_at(WHERE))
        # These raise errors that the search would take for a refusal.
        check_observations(WHERE, residual.detach())
        self.process.engine.check_variance(self.process.engine.likelihood(residual).variance)

    def parameters(self) -> list[Tensor]:
        mean = self.process.mean
        trained = isinstance(mean, nn.Parameter) and mean.requires_grad
        means = list(mean.parameters()) if isinstance(mean, nn.Module) else [mean] if trained else []
        noise = [] if self.log_noise is None else [self.log_noise]
        return [*self.process.kernel.parameters(), *means, *noise]

    def logarithms(self) -> set[int]:
        """The identities of the parameters that are logarithms."""
        parts = (getattr(part, "logs", {}) for part in _parts(self.process.kernel))
        return {id(parameter) for logs in parts for parameter in logs.values()} | {id(self.log_noise)}

    def values(self) -> list[Tensor]:
        return [parameter.detach().clone() for parameter in self.parameters()]

    def load(self, values: Sequence[Tensor]) -> None:
        for parameter, value in zip(self.parameters(), values, strict=True):
            parameter.detach().copy_(value)

    def scattered(self, values: Sequence[Tensor], generator: torch.Generator | None) -> list[Tensor]:
        """Draw logarithms at random around the given ones, and leave the rest as it is."""
        logs = self.logarithms()
        device = None if generator is None else generator.device
        options: dict[str, Any] = {"dtype": torch.float64, "device": device, "generator": generator}
        drawn = [torch.randn(value.shape, **options) for value in values]
        return [
            value + RESTART_DEVIATION * noise.to(value) if id(parameter) in logs else value
            for parameter, value, noise in zip(self.parameters(), values, drawn, strict=True)
        ]

    def loss(self, gradients: bool = False) -> float:
        """Minus twice the log likelihood per observation; REFUSED if there is none."""
        parameters = self.parameters()
        with torch.set_grad_enabled(gradients):
            process = self.process
            try:  # a kernel refuses some parameters, such as CARMA where its states would grow; and noise may be NaN
                if self.log_noise is not None:
                    process = _changed(process, diag=self.diag + (2 * self.log_noise).exp())
                result = process.engine.likelihood(process._residual(WHERE, self.y)[0])
                process.engine.check_variance(result.variance)
            except ValueError:
                return self._refuse()
            series = self.process.series
            points = series.batch.numel() * series.n if series.counts is None else series.counts.sum()
            value = -2 * result.value.sum() / points
        if max(result.failed.tolist()) >= 0 or not bool(torch.isfinite(value)):
            return self._refuse()
        if gradients:
            bars = torch.autograd.grad(value, parameters, allow_unused=True)
            for parameter, bar in zip(parameters, bars, strict=True):
                parameter.grad = torch.zeros_like(parameter) if bar is None else bar.nan_to_num()
        return float(value.detach())

    def _refuse(self) -> float:
        for parameter in self.parameters():
            parameter.grad = torch.zeros_like(parameter)
        return REFUSED

    def run(self, max_iter: int) -> float:
        """Search from the present parameters, and return the final loss. A search that gets lost, as L-BFGS does when
        gradients overflow, ends at the best parameters on its way."""
        least, best = math.inf, self.values()

        def step() -> float:
            nonlocal least, best
            loss = self.loss(gradients=True)
            if loss < least:
                least, best = loss, self.values()
            return loss

        if self.parameters():
            optimizer = torch.optim.LBFGS(self.parameters(), max_iter=max_iter, line_search_fn="strong_wolfe")
            optimizer.step(step)
        end = self.loss()
        if end < REFUSED:
            return end
        self.load(best)
        return least

    def fitted(self) -> Fitted:
        noise = 0.0 if self.log_noise is None else math.exp(float(self.log_noise.detach()))
        mean = self.process.mean
        mean = mean.detach() if isinstance(mean, Tensor) else mean
        process = _changed(self.process, kernel=fixed(self.process.kernel), mean=mean, diag=self.diag + noise**2)
        with torch.no_grad():
            return Fitted(process, noise, process.log_likelihood(self.y))


def _changed(process: GaussianProcess, **parts: Any) -> GaussianProcess:
    """A copy of a process at the same times, with another kernel, mean or diag."""
    changed = copy.copy(process)
    for name, value in parts.items():
        setattr(changed, name, value)
    return changed


def _with_savable_data(process: GaussianProcess) -> GaussianProcess:
    """Return the process, or a copy if it was made in inference mode."""
    t, mean, series = _savable(process.t), _savable(process.mean), process.series
    if t is process.t and mean is process.mean:
        return process
    series = Series(t, series.batch, _savable(series.counts))
    parts = {"series": series, "band": _savable(process.band), "exposure": _savable(process.exposure)}
    return _changed(process, _t=t, mean=mean, engine=process.engine.replaced(**parts), diag=_savable(process.diag))


def _savable(value: Any) -> Any:
    """Return a value whose tensors autograd may save: those made in inference mode are copied."""
    if isinstance(value, list | tuple):
        return [_savable(part) for part in value]
    return value.clone() if isinstance(value, Tensor) and value.is_inference() else value


def _parameter(shape: Sequence[int], value: float, device: torch.device | None = None) -> nn.Parameter:
    return nn.Parameter(torch.full(tuple(shape), value, dtype=torch.float64, device=device))


def _parts(kernel: Kernel) -> Iterator[Kernel]:
    """The kernel and all kernels in it."""
    return (module for module in list(kernel.modules()) if isinstance(module, Kernel))


def _tensors(kernel: Kernel) -> list[Tensor]:
    return [*kernel.parameters(), *kernel.buffers()]
