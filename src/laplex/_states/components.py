r"""What a state-space kernel is made of: components, whose states stand next to one another.

A component has states x(t) with x' = F x + noise, so that the transition over a gap D is exp(F D). What is observed at
a point, such as the value or the slope of the process, is p^T x, and q is its covariance with the states:

    value        p = h            q = P h              P: the covariance of the states
    slope        p = F^T h        q = P F^T h          exists if the process is differentiable

so that two observations at t >= t' have the covariance p(t)^T exp(F (t - t')) q(t').
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import NamedTuple, NoReturn

import torch
from torch import Tensor

from laplex._eager import plain, plainly_eager
from laplex._exponential import exponential
from laplex._small import block_diagonal

Value = float | Tensor  # a parameter: a number, or a tensor that broadcasts to the batch of series
PerSeries = Callable[[Value], Tensor]  # a parameter as one number per series: (h,), float64


class Reading(NamedTuple):
    """What is observed of the states, at n points or, if the second size is 1, the same at all points."""

    p: Tensor  # (h, n or 1, s)
    q: Tensor  # (h, n or 1, s)


class Component(ABC):
    """A part of a kernel with states of its own."""

    size: int

    @abstractmethod
    def scaled(self, factor: Value) -> Component:
        """The component whose kernel is ``factor`` times as large."""

    @abstractmethod
    def steps(self, gaps: Tensor, per_series: PerSeries) -> Tensor:
        """exp(F D), (h, n, s, s), for gaps D (h, n)."""

    @abstractmethod
    def value(self, t: Tensor, per_series: PerSeries) -> Reading:
        """The reading of the value at times t (h, n)."""

    @abstractmethod
    def slope(self, t: Tensor, per_series: PerSeries) -> Reading:
        """The reading of the slope at times t (h, n). Raises if the process has none."""

    @abstractmethod
    def feedback(self, per_series: PerSeries) -> Tensor:
        """F, (h, s, s)."""

    def reading(self, t: Tensor, band: Tensor | None, per_series: PerSeries) -> Reading:
        """What is observed at times t (h, n) in the given bands (h, n); ``band`` is None if there are none."""
        return self.value(t, per_series)

    def times(self, other: Component) -> Component:
        """The component of the product of both kernels."""
        return Product(self, other)

    def raise_without_slope(self) -> NoReturn:
        raise ValueError(
            "laplex.gp: the slope of the process is asked for, but a process with this kernel is not differentiable; "
            "use Matern32, Matern52, SHO or Cosine, and no products with Exponential (the slope of a StateSpace is not "
            "known inside torch.compile and torch.func.vmap)"
        )


class Product(Component):
    """The product of two components: the states are all products of a state of one with a state of the other."""

    def __init__(self, left: Component, right: Component) -> None:
        self.left, self.right, self.size = left, right, left.size * right.size

    def scaled(self, factor: Value) -> Product:
        return Product(self.left.scaled(factor), self.right)

    def steps(self, gaps: Tensor, per_series: PerSeries) -> Tensor:
        return _kronecker(self.left.steps(gaps, per_series), self.right.steps(gaps, per_series))

    def value(self, t: Tensor, per_series: PerSeries) -> Reading:
        return _products(self.left.value(t, per_series), self.right.value(t, per_series))

    def slope(self, t: Tensor, per_series: PerSeries) -> Reading:
        first = _products(self.left.slope(t, per_series), self.right.value(t, per_series))
        second = _products(self.left.value(t, per_series), self.right.slope(t, per_series))
        return Reading(first.p + second.p, first.q + second.q)

    def reading(self, t: Tensor, band: Tensor | None, per_series: PerSeries) -> Reading:
        return _products(self.left.reading(t, band, per_series), self.right.reading(t, band, per_series))

    def feedback(self, per_series: PerSeries) -> Tensor:
        left, right = self.left.feedback(per_series), self.right.feedback(per_series)
        units = [
            torch.eye(part.shape[-1], dtype=part.dtype, device=part.device).expand_as(part) for part in (left, right)
        ]
        return _kronecker(left, units[1]) + _kronecker(units[0], right)


class Feedback(Component):
    """States given by F and by the covariances of the value: transitions are matrix exponentials."""

    def __init__(self, dynamics: Tensor, p: Tensor, q: Tensor, slope_q: Tensor | None) -> None:
        """``dynamics`` is F (*batch, s, s), the others (*batch, s); slope_q is P F^T h, or None without a slope."""
        self.size, self.dynamics, self.p, self.q, self.slope_q = p.shape[-1], dynamics, p, q, slope_q

    def scaled(self, factor: Value) -> Feedback:
        by = factor[..., None] if isinstance(factor, Tensor) else factor
        slope = None if self.slope_q is None else by * self.slope_q
        return Feedback(self.dynamics, self.p, by * self.q, slope)

    def steps(self, gaps: Tensor, per_series: PerSeries) -> Tensor:
        return exponential(self.feedback(per_series)[:, None] * gaps[..., None, None])

    def value(self, t: Tensor, per_series: PerSeries) -> Reading:
        return Reading(_vector_per_series(self.p, per_series), _vector_per_series(self.q, per_series))

    def slope(self, t: Tensor, per_series: PerSeries) -> Reading:
        if self.slope_q is None:
            self.raise_without_slope()
        p = self.p[..., None, :] @ self.dynamics
        return Reading(_vector_per_series(p[..., 0, :], per_series), _vector_per_series(self.slope_q, per_series))

    def feedback(self, per_series: PerSeries) -> Tensor:
        return torch.stack([_vector_per_series(row, per_series)[:, 0] for row in self.dynamics.unbind(-2)], -2)


class Trend(Component):
    """A straight line through 0 at ``center``: sigma^2 (t - center) (t' - center). Its state is the slope."""

    size = 1

    def __init__(self, variance: Value, center: Value) -> None:
        self.variance, self.center = variance, center

    def scaled(self, factor: Value) -> Trend:
        return Trend(factor * self.variance, self.center)

    def steps(self, gaps: Tensor, per_series: PerSeries) -> Tensor:
        return torch.ones_like(gaps)[..., None, None]

    def value(self, t: Tensor, per_series: PerSeries) -> Reading:
        p = (t - per_series(self.center)[:, None])[..., None]
        return Reading(p, per_series(self.variance)[:, None, None] * p)

    def slope(self, t: Tensor, per_series: PerSeries) -> Reading:
        p = torch.ones_like(t)[..., None]
        return Reading(p, per_series(self.variance)[:, None, None] * p)

    def feedback(self, per_series: PerSeries) -> Tensor:
        raise ValueError("laplex.gp: observations over an exposure are not defined for Linear; make it the mean")


class Banded(Component):
    """A component that bands observe differently: value[i] times the process plus slope[i] times its slope."""

    def __init__(self, inner: Component, value: Tensor, slope: Tensor | None) -> None:
        self.inner, self.size, self._value, self._slope = inner, inner.size, value, slope

    def scaled(self, factor: Value) -> Banded:
        return Banded(self.inner.scaled(factor), self._value, self._slope)

    def steps(self, gaps: Tensor, per_series: PerSeries) -> Tensor:
        return self.inner.steps(gaps, per_series)

    def value(self, t: Tensor, per_series: PerSeries) -> Reading:
        return self.inner.value(t, per_series)

    def slope(self, t: Tensor, per_series: PerSeries) -> Reading:
        return self.inner.slope(t, per_series)

    def feedback(self, per_series: PerSeries) -> Tensor:
        return self.inner.feedback(per_series)

    def reading(self, t: Tensor, band: Tensor | None, per_series: PerSeries) -> Reading:
        if band is None:
            raise ValueError("laplex.gp: the kernel has bands, so `band` must say which of them every time is in")
        if plainly_eager() and plain(band) and not bool(((band >= 0) & (band < len(self._value))).all()):
            raise ValueError(
                f"laplex.gp: `band` must be from 0 to {len(self._value) - 1}, for the bands of the kernel, got "
                f"{int(band.min())} to {int(band.max())}"
            )
        inner = self.inner.reading(t, band, per_series)
        value = self._value.to(t.dtype)[band][..., None]
        p, q = value * inner.p, value * inner.q
        if self._slope is not None:
            slope, own = self._slope.to(t.dtype)[band][..., None], self.inner.slope(t, per_series)
            p, q = p + slope * own.p, q + slope * own.q
        return Reading(p, q)


def joined_steps(components: Sequence[Component], gaps: Tensor, per_series: PerSeries) -> Tensor:
    """The transitions of all components, (h, n, s, s): blocks on the diagonal."""
    return block_diagonal([component.steps(gaps, per_series) for component in components])


def joined_readings(components: Sequence[Component], t: Tensor, band: Tensor | None, per_series: PerSeries) -> Reading:
    """What is observed of all components, p and q (h, n, s)."""
    readings = [component.reading(t, band, per_series) for component in components]
    h, n = t.shape
    p, q = (torch.cat([part.expand(h, n, -1) for part in parts], -1) for parts in zip(*readings, strict=True))
    return Reading(p, q)


def _products(left: Reading, right: Reading) -> Reading:
    p, q = ((x[..., :, None] * y[..., None, :]).flatten(-2) for x, y in zip(left, right, strict=True))
    return Reading(p, q)


def _kronecker(left: Tensor, right: Tensor) -> Tensor:
    rows, cols = left.shape[-2] * right.shape[-2], left.shape[-1] * right.shape[-1]
    product = left[..., :, None, :, None] * right[..., None, :, None, :]
    return product.reshape(*product.shape[:-4], rows, cols)


def _vector_per_series(vector: Tensor, per_series: PerSeries) -> Tensor:
    """Return a vector (*batch, s) as (h, 1, s)."""
    return torch.stack([per_series(part) for part in vector.unbind(-1)], -1)[:, None]
