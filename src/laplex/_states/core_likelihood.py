"""The log likelihood of blocks in C++ (csrc/state*.cpp), from times, noise, observations and parameters: one node.

The chain of ``likelihood.py`` computes the same with tensors, and gives second derivatives.
"""

from __future__ import annotations

import functools
from array import array
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy
import torch
from torch import Tensor

from laplex._compiled import core
from laplex._eager import plain, plainly_eager, savable
from laplex._scan.autograd import bars_through, builds_graph
from laplex._states.blocks import blocks_only, numbers_of, variance_of
from laplex._states.components import Component
from laplex._states.numbers import Number, Real
from laplex._states.result import LikelihoodResult

Composed = Callable[..., Tensor]  # (t, diag, y, *parameters) -> the same log likelihood, differentiable to any order


def core_can_read(*tensors: Tensor) -> bool:
    """Whether C++ may read these tensors: ordinary ones on the CPU, outside graphs and transforms."""
    if core is None or not plainly_eager() or torch.autograd.forward_ad._current_level >= 0:
        return False
    return all([tensor.is_cpu and plain(tensor) for tensor in tensors])


# --- Kernels ----------------------------------------------------------------------------------------------------------


class ParameterReader:
    """Reads the tensors of a kernel as Numbers, with a value for each series or one for all, and remembers them."""

    def __init__(self, batch: torch.Size) -> None:
        self.batch, self.tensors = batch, list[Tensor]()

    def __call__(self, tensor: Tensor) -> Number:
        if not tensor.is_cpu or not plain(tensor):
            raise TypeError("a kernel has tensors that cannot be read here")
        position = len(self.tensors)
        self.tensors.append(tensor)
        if tensor.numel() == 1:
            return Number(tensor.item(), {position: 1.0})
        flat = tensor.detach().double().expand(self.batch).reshape(-1)
        return Number(flat.numpy(), {position: 1.0})


class KernelNumbers(NamedTuple):
    """The numbers of a kernel that is a sum of B blocks, with s states in all."""

    kinds: tuple[int, ...]  # (B,): the number of states of every block
    size: int  # s
    values: list[Any]  # (2 B + s,): the rates, the squares, and g; each a number or a Number
    batch: torch.Size
    parameters: list[Tensor]  # what the values depend on
    variance: Real  # k(0)

    def matrix(self) -> array[float]:
        """The values of all series, (h, 2 B + s). (An ``array`` gives its address faster than a NumPy array does.)"""
        values: list[Any] = [value.value if isinstance(value, Number) else value for value in self.values]
        if self.batch.numel() == 1:
            return array("d", values)
        columns = [numpy.broadcast_to(value, self.batch.numel()) for value in values]
        return array("d", numpy.stack(columns, -1).tobytes())

    def pull(self, bars: array[float]) -> list[Tensor]:
        """The gradients of the parameters from those of the numbers, (h, 2 B + s)."""
        columns: Sequence[Real] = bars
        if self.batch.numel() != 1:
            columns = list(numpy.array(bars).reshape(-1, len(self.values)).T)
        sums: list[Real] = [0.0] * len(self.parameters)
        for value, bar in zip(self.values, columns):
            if isinstance(value, Number):
                for i, slope in value.slopes.items():
                    sums[i] = sums[i] + slope * bar
        return [self._shaped(total, parameter) for total, parameter in zip(sums, self.parameters, strict=True)]

    def _shaped(self, bar: Real, parameter: Tensor) -> Tensor:
        if parameter.numel() == 1:
            total = bar if isinstance(bar, float) else float(numpy.sum(bar))
            return torch.full_like(parameter, total, requires_grad=False)
        each = torch.from_numpy(numpy.array(numpy.broadcast_to(bar, self.batch.numel())).reshape(self.batch))
        return each.sum_to_size(parameter.shape).to(parameter.dtype)


def kernel_numbers(components: Sequence[Component], reader: ParameterReader) -> KernelNumbers | None:
    """The numbers of components that are blocks of numbers; None for others, and for more states than C++ takes."""
    blocks = blocks_only(components)
    if blocks is None:
        return None
    kinds, values = numbers_of(blocks)
    size = sum(kinds)
    if size > core.MAX_STATES or any([isinstance(value, Tensor) for value in values]):
        return None
    return KernelNumbers(kinds, size, values, reader.batch, reader.tensors, variance_of(blocks))


# --- The node ---------------------------------------------------------------------------------------------------------


class CoreLikelihood:
    """Everything that a likelihood depends on, as C++ takes it."""

    def __init__(
        self, numbers: KernelNumbers, times: Tensor, order: Tensor | None, counts: Tensor | None, composed: Composed
    ) -> None:
        """``times`` (h, n) are in order; order and counts are as in Line; see Composed for the last argument."""
        self.numbers, self.matrix = numbers, numbers.matrix()
        self.times, self.order, self.counts, self.composed = times.contiguous(), order, counts, composed

    def evaluate(self, t: Tensor, diag: Tensor, y: Tensor) -> LikelihoodResult:
        """The likelihood of observations y (*batch, n) with noise, differentiable in t, diag, y and the parameters."""
        inputs = t, with_constant_strides(diag), y.contiguous(), *map(savable, self.numbers.parameters)
        if torch.is_grad_enabled() and any([tensor.requires_grad for tensor in inputs]):
            value, loss, failed = _CoreLikelihood.apply(self, *inputs)
        else:
            value, loss, failed, _ = self.run(*inputs[1:3], keep=False)
        return LikelihoodResult(value, loss, failed, self.numbers.variance)

    def run(self, diag: Tensor, y: Tensor, *, keep: bool) -> tuple[Any, ...]:
        """The fields of a LikelihoodResult, and what the pullback starts from."""
        h, problem = len(self.times), self.problem(diag, y)
        value = y.new_empty(self.numbers.batch)
        checkpoints = y.new_empty(problem.checkpoint_size() * h if keep else 0)
        loss, failed = array("d", bytes(8 * h)), array("q", bytes(8 * h))
        outputs = value.data_ptr(), _address(loss), _address(failed), checkpoints.data_ptr()
        raise_for(core.state_likelihood(problem, *outputs))
        return value, loss, failed, checkpoints

    def problem(self, diag: Tensor, y: Tensor) -> Any:
        """The points and the kernel."""
        kinds, size = self.numbers.kinds, self.numbers.size
        return core.state_problem(
            self.times.data_ptr(), _address(_codes(kinds)), _address(self.matrix), _place(self.counts),
            _place(self.order), diag.data_ptr(), y.data_ptr(), *self.times.shape, *_strides(diag), len(kinds), size,
            torch.get_num_threads(),
        )  # fmt: skip


class _CoreLikelihood(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, likelihood: CoreLikelihood, t: Tensor, diag: Tensor, y: Tensor, *parameters: Tensor
    ) -> tuple[Any, ...]:
        value, loss, failed, checkpoints = likelihood.run(diag, y, keep=True)
        ctx.likelihood = likelihood
        ctx.save_for_backward(t, diag, y, checkpoints, *parameters)
        return value, loss, failed

    @staticmethod
    def backward(ctx: Any, value_bar: Tensor, *_: Any) -> tuple[Any, ...]:
        t, diag, y, checkpoints, *parameters = ctx.saved_tensors
        likelihood, needed, value_bar = ctx.likelihood, ctx.needs_input_grad[1:], value_bar.resolve_neg()
        if builds_graph() or not plain(value_bar):  # a batch of cotangents has no memory
            return None, *bars_through(likelihood.composed, (t, diag, y, *parameters), value_bar, needed)
        # Beyond the counts nothing is written.
        fresh = y.new_empty if likelihood.counts is None else y.new_zeros
        bars = [fresh(x.shape) if need else None for x, need in zip((t, diag, y), needed)]
        matrix_bar = array("d", bytes(8 * len(likelihood.matrix)))
        value_bar = value_bar.contiguous()
        addresses = checkpoints.data_ptr(), value_bar.data_ptr(), *map(_place, bars)
        raise_for(core.state_pullback(likelihood.problem(diag, y), *addresses, _address(matrix_bar)))
        return None, *bars, *(likelihood.numbers.pull(matrix_bar) if any(needed[3:]) else [None] * len(parameters))


def with_constant_strides(diag: Tensor) -> Tensor:
    """Return diag (*batch, n) such that two strides describe it: from number to number, and from series to series."""
    return diag if diag.dim() <= 2 or not any(diag.stride()) else diag.contiguous()


def _strides(diag: Tensor) -> tuple[int, int]:
    """The strides from series to series, and from number to number."""
    if diag.dim() == 2:
        return diag.stride(0), diag.stride(1)
    return diag.stride(-1) * diag.shape[-1], diag.stride(-1)


def raise_for(status: int) -> None:
    if status:
        raise MemoryError("laplex.gp: no memory for a likelihood or its gradient")


@functools.cache
def _codes(kinds: tuple[int, ...]) -> array[int]:
    return array("i", kinds)


def _place(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _address(numbers: array[Any]) -> int:
    return numbers.buffer_info()[0]
