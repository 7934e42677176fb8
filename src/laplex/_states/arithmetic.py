"""A kernel's arithmetic as one node of autograd's graph, for likelihoods that take the blocks as tensors.

On a GPU every operation with a parameter is a launch, and so is each of its derivatives: together they take longer than
the likelihood of 10^5 points. So all parameters are read at once, and ``numbers.py`` does the arithmetic on the host.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from laplex._eager import apart, plain, savable
from laplex._scan.autograd import bars_through
from laplex._states.blocks import Block, Blocks, blocks_only, numbers_of, stacked, variance_of
from laplex._states.components import Component
from laplex._states.fast import module_for
from laplex._states.numbers import Number

# (read, branch) -> the components of a kernel, as ``Kernel.components_by`` has them.
Components = Callable[[Callable[[Tensor], Any], Callable[[float], float] | None], Sequence[Component]]

BlocksOf = Callable[..., Sequence[Block]]  # parameters -> blocks


def blocks_of_numbers(components: Components, sample: Tensor, h: int) -> tuple[Blocks, float] | None:
    """The blocks, for h series, of a kernel whose parameters are numbers on the device of ``sample``, and k(0).

    None for other kernels.
    """
    if module_for(sample) is None:
        return None
    try:
        parameters = _parameters(components, sample)
        if not parameters:
            return None
        blocks, branches = _evaluated(components, parameters)
    except (ArithmeticError, TypeError):
        return None  # the kernel is then computed with tensors, which allow division by 0, and more
    if blocks is None:
        return None
    kinds, columns = numbers_of(blocks)
    if any(isinstance(number, Tensor) for number in columns):
        return None
    rows = _rows(columns, len(parameters), sample)
    blocks_again = functools.partial(_repeated, components, branches)
    parts = _Arithmetic.apply(rows, kinds, blocks_again, *map(savable, parameters))
    return Blocks(kinds, *(part.expand(h, -1) for part in parts)), variance_of(blocks)


def _parameters(components: Components, sample: Tensor) -> list[Tensor]:
    """The tensors of a kernel, in the order in which it reads them; none if it is not made of blocks."""
    parameters: list[Tensor] = []

    def collect(tensor: Tensor) -> Number:
        if tensor.numel() != 1 or tensor.device != sample.device or not plain(tensor):
            raise TypeError("a kernel has tensors that cannot be read here")
        parameters.append(tensor)
        return Number(math.nan, {})

    return [] if blocks_only(components(collect, None)) is None else parameters


def _evaluated(components: Components, parameters: Sequence[Tensor]) -> tuple[list[Block] | None, list[float]]:
    """The blocks, and the numbers by which the kernel chose them: backward has to make the same choices."""
    values: list[float] = torch.stack([parameter.detach().double().reshape(()) for parameter in parameters]).tolist()
    numbers = iter([Number(value, {i: 1.0}) for i, value in enumerate(values)])
    branches: list[float] = []

    def record(number: float) -> float:
        branches.append(number)
        return number

    return blocks_only(components(lambda _: next(numbers), record)), branches


def _repeated(components: Components, branches: Sequence[float], *parameters: Tensor) -> Sequence[Block]:
    """The blocks for other values of the parameters, with the choices that were made before."""
    values, known = iter(parameters), iter(branches)
    return blocks_only(components(lambda _: next(values), lambda _: next(known))) or []


def _rows(columns: Sequence[Any], count: int, sample: Tensor) -> Tensor:
    """The numbers, and below them their derivatives in every parameter, (1 + count, 2 B + s)."""
    known = [number if isinstance(number, Number) else Number(number, {}) for number in columns]
    slopes = [[number.slopes.get(i, 0.0) for number in known] for i in range(count)]
    return torch.tensor([[number.value for number in known], *slopes], dtype=torch.float64, device=sample.device)


class _Arithmetic(torch.autograd.Function):
    """Rates, squares and g, (1, size) each, from the rows of ``_rows``. Second derivatives use tensor arithmetic."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, kinds: tuple[int, ...], blocks_of: BlocksOf, *parameters: Tensor) -> Any:
        ctx.save_for_backward(rows, *parameters)
        ctx.blocks_of = blocks_of
        return rows[:1].split([len(kinds), len(kinds), sum(kinds)], -1)

    @staticmethod
    def backward(ctx: Any, *bars: Tensor) -> tuple[Any, ...]:
        rows, *parameters = ctx.saved_tensors
        joined, needed = torch.cat(bars, -1)[0], ctx.needs_input_grad[3:]
        if torch.is_grad_enabled():
            return None, None, None, *_differentiable(ctx.blocks_of, parameters, joined, needed)
        sums = (rows[1:] @ joined).unbind()
        shaped = [total.reshape(parameter.shape).to(parameter.dtype) for total, parameter in zip(sums, parameters)]
        return None, None, None, *(bar if need else None for bar, need in zip(shaped, needed, strict=True))


def _differentiable(
    blocks_of: BlocksOf, parameters: list[Tensor], bar: Tensor, needed: Sequence[bool]
) -> list[Tensor | None]:
    """The gradients, as differentiable functions of the parameters."""

    def numbers(*values: Tensor) -> Tensor:
        blocks = blocks_of(*(value.cpu().double().reshape(()) for value in values))  # on the host, as the first time
        parts = stacked(blocks, lambda value: torch.as_tensor(value, dtype=bar.dtype).reshape(1))
        return torch.cat(parts[1:], -1)[0].to(bar.device)

    return bars_through(numbers, tuple(apart(parameters)), bar, needed)
