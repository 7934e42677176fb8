"""The blocks of a state-space kernel, as the fast likelihood takes them, and their transitions in plain torch."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from laplex._eager import plainly_eager
from laplex._states.components import Component, PerSeries, Reading, Value
from laplex._states.numbers import Number

SMALL = 1.0  # of |b D^2|: below, C and S are power series
TERMS = 10
MAX_GAP = 1e100  # its cube is finite


class Block(Component):
    """k(D) = h^T Phi(D) g with one, two or three states; the package's docstring has Phi and h of every kind."""

    def __init__(self, kind: int, rate: Value, square: Value, g: tuple[Value, ...], *, smooth: bool) -> None:
        self.size, self.rate, self.square, self.g, self.smooth = kind, rate, square, g, smooth

    def scaled(self, factor: Value) -> Block:
        return Block(self.size, self.rate, self.square, tuple(factor * number for number in self.g), smooth=self.smooth)

    def times(self, other: Component) -> Component:
        if isinstance(other, Block) and 1 in (self.size, other.size):
            single, larger = (self, other) if self.size == 1 else (other, self)
            g = tuple(single.g[0] * number for number in larger.g)
            smooth = self.smooth and other.smooth
            return Block(larger.size, self.rate + other.rate, larger.square, g, smooth=smooth)
        return super().times(other)

    def steps(self, gaps: Tensor, per_series: PerSeries) -> Tensor:
        a, b = (per_series(value)[:, None] for value in (self.rate, self.square))
        entries = _entries(self.size, gaps.clamp(max=MAX_GAP), a, b)
        return torch.stack([torch.stack(row, -1) for row in entries], -2)

    def value(self, t: Tensor, per_series: PerSeries) -> Reading:
        q = torch.stack([per_series(number) for number in self.g], -1)
        p = torch.zeros_like(q)
        p[:, 0] = 1.0
        return Reading(p[:, None], q[:, None])

    def slope(self, t: Tensor, per_series: PerSeries) -> Reading:
        if not self.smooth:
            self.raise_without_slope()
        # F^T h, and -F g, the covariance of the slope with the states after it if the whole sum is smooth.
        a, b = per_series(self.rate), per_series(self.square)
        g = [per_series(number) for number in self.g]
        zero, one = torch.zeros_like(a), torch.ones_like(a)
        if self.size == 1:
            p, q = [-a], [a * g[0]]
        elif self.size == 2:
            p, q = [-a, one], [a * g[0] - g[1], a * g[1] + b * g[0]]
        else:
            p, q = [-a, one, zero], [a * g[0] - g[1], a * g[1] - g[2], a * g[2]]
        return Reading(torch.stack(p, -1)[:, None], torch.stack(q, -1)[:, None])

    def feedback(self, per_series: PerSeries) -> Tensor:
        a, b = per_series(self.rate), per_series(self.square)
        zero, one = torch.zeros_like(a), torch.ones_like(a)
        rows = {
            1: [[-a]],
            2: [[-a, one], [-b, -a]],
            3: [[-a, one, zero], [zero, -a, one], [zero, zero, -a]],
        }[self.size]
        return torch.stack([torch.stack(row, -1) for row in rows], -2)


class Blocks(NamedTuple):
    """A kernel that is a sum of B blocks with s states in all, for each of h series, as tensors."""

    kinds: tuple[int, ...]  # (B,): the number of states of every block; the same for all series
    rates: Tensor  # (h, B): a
    squares: Tensor  # (h, B): b; read for blocks of two states only
    g: Tensor  # (h, s)

    def components(self) -> list[Component]:
        """The blocks one by one, with their numbers as tensors (h,)."""
        parts, first = [], 0
        for i, kind in enumerate(self.kinds):
            g = tuple(self.g[:, first + j] for j in range(kind))
            parts.append(Block(kind, self.rates[:, i], self.squares[:, i], g, smooth=False))
            first += kind
        return list(parts)


def blocks_only(components: Sequence[Component]) -> list[Block] | None:
    """The components, if all of them are blocks."""
    blocks = [component for component in components if isinstance(component, Block)]
    return blocks if len(blocks) == len(components) else None


def numbers_of(blocks: Sequence[Block]) -> tuple[tuple[int, ...], list[Any]]:
    """The number of states of every block, and the rates, the squares, and g."""
    kinds = tuple([block.size for block in blocks])
    return kinds, [*[b.rate for b in blocks], *[b.square for b in blocks], *[number for b in blocks for number in b.g]]


def variance_of(blocks: Sequence[Block]) -> Any:
    """k(0), a number, or one for each series."""
    firsts: list[Any] = [block.g[0] for block in blocks]
    return sum([first.value if isinstance(first, Number) else first for first in firsts], 0.0)


def stacked(blocks: Sequence[Block], per_series: PerSeries) -> Blocks:
    """All blocks as tensors."""
    kinds = tuple(block.size for block in blocks)
    rates, squares = tuple(block.rate for block in blocks), tuple(block.square for block in blocks)
    g = tuple(number for block in blocks for number in block.g)
    if not any(isinstance(value, Tensor) for value in (*rates, *squares, *g)):
        sample = per_series(0.0)
        # A tensor that is made in one of torch's modes may only be used in that mode.
        reusable = plainly_eager() and not torch.is_inference_mode_enabled()
        make = _numbers if reusable else _numbers.__wrapped__
        return make(kinds, rates, squares, g, len(sample), sample.device)
    return Blocks(kinds, *(torch.stack([per_series(value) for value in values], -1) for values in (rates, squares, g)))


@functools.lru_cache(maxsize=64)
def _numbers(kinds: tuple[int, ...], *values: Any) -> Blocks:
    """Blocks whose numbers are all known, cached: making them takes longer than a likelihood with a small kernel."""
    *parts, h, device = values
    return Blocks(kinds, *(torch.tensor([part], dtype=torch.float64, device=device).expand(h, -1) for part in parts))


def _entries(kind: int, gap: Tensor, a: Tensor, b: Tensor) -> list[list[Tensor]]:
    """The entries of a block of Phi, (h, n) each; a and b are (h, 1)."""
    if kind == 2:
        c, s = _damped(gap, a, b)
        return [[c, s], [-b * s, c]]
    rho = (-a * gap).exp()
    if kind == 1:
        return [[rho]]
    zero = torch.zeros_like(rho)
    return [[rho, rho * gap, rho * gap * gap / 2], [zero, rho, rho * gap], [zero, zero, rho]]


def _damped(gap: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """e^(-aD) C and e^(-aD) S. Every branch of a ``where`` has finite derivatives, so that none spoils the others."""
    x = b * gap * gap
    near, above = x.abs() <= SMALL, b > 0
    rho = (-a * gap).exp()
    series = torch.where(near, x, 0.0)
    w = torch.where(near, 1.0, b.abs()).sqrt()
    angle = torch.where(above, w * gap, 0.0)
    slow, fast = (torch.where(near | above, 0.0, rate * gap) for rate in (a - w, a + w))
    c_far = torch.where(above, rho * angle.cos(), ((-slow).exp() + (-fast).exp()) / 2)
    s_far = torch.where(above, rho * angle.sin() / w, ((-slow).exp() - (-fast).exp()) / (2 * w))
    c_near, s_near = rho * _series(series, 0), rho * gap * _series(series, 1)
    return torch.where(near, c_near, c_far), torch.where(near, s_near, s_far)


def _series(x: Tensor, odd: int) -> Tensor:
    """The sum over k of (-x)^k / (2k + odd)!."""
    result = torch.zeros_like(x)
    for k in reversed(range(TERMS)):
        result = 1.0 / math.factorial(2 * k + odd) - x * result
    return result
