"""The launches of a layer with one kernel, by the scan.

mix is a factor of the shorter side, as far as it can be: of g if there are no more results than inputs, else of
E^T g. Then mix_bar is a sum over the shorter side, too.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from laplex._layer.inputs import Inputs, Settings
from laplex._scan.order import Matrix, Order
from laplex._triton import tuning
from laplex._triton.launch import launch, step
from laplex._triton.layer import programs
from laplex._triton.order.launch import order
from laplex._triton.recording import Results
from laplex._triton.scan.adjacent import adjacent as copied
from laplex._triton.scan.adjacent import adjacent_empty, copy_back
from laplex._triton.scan.launch import (
    adjacent_pull,
    adjacent_sums,
    has_adjacent_rows,
    pulled_parts,
    scan_once,
    stretch_parts,
)

LAYOUT = "joined"


class Sides(NamedTuple):
    """x and the order's two arrays, as launches read them."""

    rows: Tensor  # x, (1, m, k)
    matrix: Matrix
    adjacent: bool  # forward's sums have adjacent rows
    short: bool  # there are no more results than inputs


def _sides(settings: Settings, inputs: Inputs, entry: Tensor, position: Tensor) -> Sides:
    x, a, b, tau = inputs[:4]
    rows = _rows(x)
    nothing = position.new_empty((1, 1, 0))
    order = Order.from_tensors((entry, position, entry.new_empty((1, 1, 0)), nothing), LAYOUT)
    matrix = Matrix(a, b, tau, order, settings.backend)
    return Sides(rows, matrix, has_adjacent_rows(rows, matrix), a.shape[-1] <= b.shape[-1])


def _rows(x: Tensor) -> Tensor:
    """Return x (..., size) as (1, m, size), whose columns are adjacent in memory."""
    rows = x.reshape(1, -1, x.shape[-1])
    return rows if rows.stride(-1) == 1 else rows.contiguous()


def forward(settings: Settings, *given: Tensor) -> Results:
    """y; then for backward the order's two arrays, the odd sums, and if there are few results the even sums."""
    inputs, _ = settings.inputs(given)
    x, a, b, _tau, mix, bias = inputs[:6]
    entry, position = order(a, b, LAYOUT).tensors[:2]
    rows, matrix, adjacent, short = _sides(settings, inputs, entry, position)
    even, odd = adjacent_sums(rows, matrix, odd=True) if adjacent else scan_once(rows, matrix, odd=True)
    y = x.new_empty((*x.shape[:-1], a.shape[-1]))
    _affine(even, mix, bias, y)
    return (y, entry, position, odd, even) if short else (y, entry, position, odd)


def backward(settings: Settings, g: Tensor, *given: Tensor) -> Results:
    """The gradients that are needed, in the order of ``Inputs``."""
    inputs, (entry, position, odd, *more) = settings.inputs(given)
    x, a, b, tau, mix, bias = inputs[:6]
    rows, matrix, _, short = sides = _sides(settings, inputs, entry, position)
    g = _rows(g)
    a_bar, b_bar, mix_bar, x_bar = (torch.empty_like(tensor) for tensor in (a, b, mix, rows))
    bias_bar = None if bias is None else torch.empty_like(bias)
    tau_bar = torch.empty_like(tau) if settings.needs[3] else None
    adjacent = has_adjacent_rows(g, matrix.mT)
    weighted, pass_over = g, _PassOver(tau, mix, settings.factors.a)
    if short:
        weighted = adjacent_empty(g, g.shape[-1]) if adjacent else torch.empty_like(g)
        parts = pass_over(g, weighted, other=more[0], odd=odd, pull=a_bar, bias_bar=bias_bar)
    else:
        pass_over(g, None, odd=odd, pull=a_bar, bias_bar=bias_bar)
    sums, stretch = x_bar, None
    if adjacent:
        sums, pulled = adjacent_pull(weighted if short else copied(g), rows, matrix.mT)
    else:
        pulled, stretch = pulled_parts(weighted, rows, x_bar, matrix.mT, settings.needs[3])
    if not short:
        parts = pass_over(sums, x_bar, other=rows)
    elif adjacent:
        copy_back(sums, x_bar)
    if tau_bar is not None and stretch is None:
        stretch = stretch_parts(weighted, rows, matrix)
    _total(settings, sides, mix, (pulled, parts, stretch), (b_bar, mix_bar, tau_bar))
    return settings.needed((x_bar.view(x.shape), a_bar, b_bar, tau_bar, mix_bar, bias_bar, None, None))


def _affine(even: Tensor, mix: Tensor, bias: Tensor | None, y: Tensor) -> None:
    """y = mix even + bias."""
    _, m, n = even.shape
    width, most_rows = tuning.LAYER_TILE
    rows = step(m, most_rows, 4)
    grid, sizes = (-(-n // width) * -(-m // rows), 1, 1), (m, n, *even.stride()[1:], n, 1)
    flags = bias is not None, width, rows
    launch(programs.affine_program, grid, (even, mix, mix if bias is None else bias, y), sizes, flags, 4)


class _PassOver(NamedTuple):
    """A launch of ``rows_program``; see there."""

    tau: Tensor
    mix: Tensor
    scale: float

    def __call__(
        self,
        v: Tensor,
        out: Tensor | None,
        *,
        other: Tensor | None = None,
        odd: Tensor | None = None,
        pull: Tensor | None = None,
        bias_bar: Tensor | None = None,
    ) -> Tensor:
        """Launch the program; with ``out`` and ``other`` it returns what adds up to the gradient of mix."""
        _, m, size = v.shape
        width, most_rows = tuning.LAYER_TILE
        grid = -(-size // width), 1, 1
        parts = v.new_empty((grid[0],), dtype=torch.float64)
        operands = [v if tensor is None else tensor for tensor in (v, other, odd, out)]  # not touched if None
        strides = [stride for tensor in operands for stride in tensor.stride()[1:]]
        flags = out is not None, pull is not None, bias_bar is not None, width, step(m, most_rows, 4)
        results = [parts if tensor is None else tensor for tensor in (pull, bias_bar, parts)]
        tensors = *operands[:3], self.tau, self.mix, operands[3], *results
        launch(programs.rows_program, grid, tensors, (m, size, *strides, self.scale), flags, 4)
        return parts


def _total(
    settings: Settings,
    sides: Sides,
    mix: Tensor,
    parts: tuple[Tensor, Tensor, Tensor | None],
    bars: tuple[Tensor, Tensor, Tensor | None],
) -> None:
    """Fill the gradients of the sources, of mix and of tau."""
    (pulled, of_mix, stretch), (b_bar, mix_bar, tau_bar), factors = parts, bars, settings.factors
    _, blocks, k = pulled.shape
    numbers, most_rows = tuning.BLOCK_SUM_TILE
    rows = step(blocks, most_rows, 4, 16, 64)
    width = numbers // max(rows, 4)
    tensors = pulled, of_mix, _or(stretch, of_mix), mix, b_bar, mix_bar, _or(tau_bar, mix_bar)
    sizes = blocks, k, of_mix.numel(), 0 if stretch is None else stretch.numel(), factors.b, factors.mix, factors.tau
    flags = not sides.short, tau_bar is not None, width, rows
    launch(programs.total_program, (-(-k // width) + 1, 1, 1), tensors, sizes, flags, 4)


def _or(tensor: Tensor | None, other: Tensor) -> Tensor:
    """The tensor, or one that stands in for it and is not touched."""
    return other if tensor is None else tensor
