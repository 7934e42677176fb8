"""Kernels of Gaussian processes over time. D stands for the distance |t - t'|."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from laplex._states.blocks import Block
from laplex._states.components import Component, Trend
from laplex.gp._kernel import Kernel, largest


class _Scaled(Kernel):
    """A kernel with a length scale and a standard deviation."""

    parameter_names = ("scale", "sigma")

    def __init__(self, scale: Any, sigma: Any = 1.0) -> None:
        super().__init__()
        self._set_checked(scale=scale, sigma=sigma)


class Exponential(_Scaled):
    """sigma^2 exp(-D / scale): a random walk that is pulled back to the mean (Ornstein-Uhlenbeck, Matern 1/2).

    Args:
        scale: positive.
        sigma: the standard deviation, positive.
    """

    def components(self) -> list[Component]:
        return [Block(1, 1 / self._value("scale"), 0.0, (self._value("sigma") ** 2,), smooth=False)]

    def _covariance(self, distance: Tensor) -> Tensor:
        scale, sigma = self._over(distance, "scale", "sigma")
        return sigma**2 * torch.exp(-distance / scale)


class Matern32(_Scaled):
    """sigma^2 (1 + u) exp(-u), u = sqrt(3) D / scale: differentiable once. Exact, with two states.

    Args:
        scale: positive.
        sigma: the standard deviation, positive.
    """

    def components(self) -> list[Component]:
        rate, variance = math.sqrt(3) / self._value("scale"), self._value("sigma") ** 2
        return [Block(2, rate, 0.0, (variance, rate * variance), smooth=True)]

    def _covariance(self, distance: Tensor) -> Tensor:
        scale, sigma = self._over(distance, "scale", "sigma")
        u = math.sqrt(3) * distance / scale
        return sigma**2 * (1 + u) * torch.exp(-u)


class Matern52(_Scaled):
    """sigma^2 (1 + u + u^2 / 3) exp(-u), u = sqrt(5) D / scale: differentiable twice. Exact, with three states.

    Args:
        scale: positive.
        sigma: the standard deviation, positive.
    """

    def components(self) -> list[Component]:
        rate, variance = math.sqrt(5) / self._value("scale"), self._value("sigma") ** 2
        return [Block(3, rate, 0.0, (variance, rate * variance, rate * rate * variance * (2 / 3)), smooth=True)]

    def _covariance(self, distance: Tensor) -> Tensor:
        scale, sigma = self._over(distance, "scale", "sigma")
        u = math.sqrt(5) * distance / scale
        return sigma**2 * (1 + u + u * u / 3) * torch.exp(-u)


class SHO(Kernel):
    r"""A damped harmonic oscillator that is driven by noise, with angular frequency w = 2 pi / period.

    With a = w / (2 quality) and b = w^2 - a^2,

        sigma^2 exp(-a D) (cos(sqrt(b) D) + a sin(sqrt(b) D) / sqrt(b))

    For quality = 1/2 (critical damping) b is 0 and sin(sqrt(b) D) / sqrt(b) is D; below, cos and sin become cosh and
    sinh. All of them are one function that is smooth in quality, so quality can be trained through 1/2. Far below 1/2
    the kernel is computed as a sum of two exponentials. (Under torch.compile and torch.func, where the quality cannot
    be read, and in batches with larger ones, that sum is not used, and digits are lost below about 1e-3.)

    Args:
        period: the period of the undamped oscillator, positive.
        quality: positive; oscillations show from 1/2 on.
        sigma: the standard deviation, positive.
        omega: the angular frequency w, in place of the period.
    """

    parameter_names = ("period", "quality", "sigma")

    def __init__(self, period: Any = None, quality: Any = 1.0, sigma: Any = 1.0, *, omega: Any = None) -> None:
        super().__init__()
        if (period is None) == (omega is None):
            got = "neither" if period is None else "both"
            raise ValueError(f"laplex.gp.SHO: either `period` or `omega` = 2 pi / period must be given, got {got}")
        if omega is not None:
            self.parameter_names = ("omega", "quality", "sigma")
        first = {self.parameter_names[0]: period if omega is None else omega}
        self._set_checked(**first, quality=quality, sigma=sigma)

    def components(self) -> list[Component]:
        first, quality, sigma = map(self._value, self.parameter_names)
        return [*oscillator(self._frequency(first), quality, sigma**2)]

    def _frequency(self, first: Any) -> Any:
        """The angular frequency, from whichever of the two was given."""
        return first if self.parameter_names[0] == "omega" else 2 * math.pi / first

    def _covariance(self, distance: Tensor) -> Tensor:
        first, quality, sigma = self._over(distance, *self.parameter_names)
        return oscillation(distance, self._frequency(first), quality, sigma**2)


OVERDAMPED = 0.1  # a quality below which there is no cancellation in the sum of two exponentials


def oscillator(omega: Any, quality: Any, variance: Any) -> list[Block]:
    """The states of a damped oscillator."""
    if largest(quality) < OVERDAMPED:
        return _two_exponentials(omega, quality, variance)
    rate = omega / (2 * quality)
    # w^2 - a^2 = w^2 (1 - 1 / (2 q)) (1 + 1 / (2 q)): near critical damping this keeps its digits.
    square = omega * omega * ((2 * quality - 1) * (2 * quality + 1)) / (4 * quality * quality)
    return [Block(2, rate, square, (variance, rate * variance), smooth=True)]


def _two_exponentials(omega: Any, quality: Any, variance: Any) -> list[Block]:
    """With v = sqrt(a^2 - w^2) the rates are a + v and a - v = w^2 / (a + v), which as a difference would cancel."""
    v = omega * ((1 - 2 * quality) * (1 + 2 * quality)) ** 0.5 / (2 * quality)
    fast = omega / (2 * quality) + v
    slow = omega * omega / fast
    half = variance / (2 * v)
    return [Block(1, slow, 0.0, (half * fast,), smooth=True), Block(1, fast, 0.0, (-half * slow,), smooth=True)]


def oscillation(distance: Tensor, omega: Any, quality: Any, variance: Any) -> Tensor:
    """The kernel of a damped oscillator, by its definition; complex numbers cover all quality factors."""
    rate, frequency = (
        torch.as_tensor(number, dtype=torch.float64, device=distance.device)
        for number in (omega / (2 * quality), omega)
    )
    square = (frequency - rate) * (frequency + rate)
    x = square * distance * distance  # near 0, cos(sqrt(x)) and sin(sqrt(x)) / sqrt(x) are computed as series
    near = x.abs() < 1e-4
    w = torch.where(near, 1.0, square).to(torch.complex128).sqrt()
    root = rate - 1j * w  # the other root is frequency^2 / root: as rate + 1j * w it would cancel far below 1/2
    fast, slow = (-root * distance).exp(), (-(frequency * frequency) / root * distance).exp()
    cosine, sine = ((fast + slow) / 2).real, ((fast - slow) / (2j * w)).real
    decay = torch.exp(-rate * distance)
    cosine = torch.where(near, decay * (1 - x / 2 + x * x / 24 - x**3 / 720), cosine)
    sine = torch.where(near, decay * distance * (1 - x / 6 + x * x / 120 - x**3 / 5040), sine)
    value: Tensor = variance * (cosine + rate * sine)
    return value


class Cosine(Kernel):
    """sigma^2 cos(2 pi D / period): a wave of fixed frequency, whose phase and amplitude are random.

    Args:
        period: positive.
        sigma: the standard deviation, positive.
    """

    parameter_names = ("period", "sigma")

    def __init__(self, period: Any, sigma: Any = 1.0) -> None:
        super().__init__()
        self._set_checked(period=period, sigma=sigma)

    def components(self) -> list[Component]:
        omega = 2 * math.pi / self._value("period")
        return [Block(2, 0.0, omega * omega, (self._value("sigma") ** 2, 0.0), smooth=True)]

    def _covariance(self, distance: Tensor) -> Tensor:
        period, sigma = self._over(distance, "period", "sigma")
        return sigma**2 * torch.cos(2 * math.pi * distance / period)


class Celerite(Kernel):
    """exp(-c D) (a cos(d D) + b sin(d D)), the term of celerite: positive definite if a c >= |b d|.

    Args:
        a: the variance, positive.
        b: of any sign.
        c: the rate, positive.
        d: the angular frequency, positive.
    """

    parameter_names = ("a", "b", "c", "d")
    signed_parameters = ("b",)

    def __init__(self, a: Any, b: Any, c: Any, d: Any) -> None:
        super().__init__()
        self._set_checked(a=a, c=c, d=d, b=b)

    def components(self) -> list[Component]:
        a, b, c, d = map(self._value, self.parameter_names)
        return [Block(2, c, d * d, (a, b * d), smooth=False)]

    def _covariance(self, distance: Tensor) -> Tensor:
        a, b, c, d = self._over(distance, *self.parameter_names)
        return torch.exp(-c * distance) * (a * torch.cos(d * distance) + b * torch.sin(d * distance))


class Rotation(Kernel):
    """A star that rotates: the sum of two oscillators, at the period and at half of it.

    The first has quality Q1 = 1/2 + quality + difference, the second 1/2 + quality; their variances have the ratio
    ``fraction``, and add up to sigma^2 (RotationTerm of celerite2).

    Args:
        period: the period of the rotation, positive.
        quality: the quality factor of the second oscillator minus 1/2; positive.
        difference: the first quality factor minus the second; positive.
        fraction: the variance of the second over that of the first; positive.
        sigma: the standard deviation, positive.
    """

    parameter_names = ("period", "quality", "difference", "fraction", "sigma")

    def __init__(self, period: Any, quality: Any, difference: Any, fraction: Any, sigma: Any = 1.0) -> None:
        super().__init__()
        self._set_checked(period=period, quality=quality, difference=difference, fraction=fraction, sigma=sigma)

    def components(self) -> list[Component]:
        values = map(self._value, self.parameter_names)
        return [block for parts in self._oscillators(*values) for block in oscillator(*parts)]

    def _covariance(self, distance: Tensor) -> Tensor:
        values = self._over(distance, *self.parameter_names)
        first, second = (oscillation(distance, *parts) for parts in self._oscillators(*values))
        return first + second

    @staticmethod
    def _oscillators(period: Any, quality: Any, difference: Any, fraction: Any, sigma: Any) -> tuple[Any, Any]:
        """Angular frequency, quality factor and variance of both. The frequency of the damped wave is 2 pi / period."""
        variance = sigma**2 / (1 + fraction)
        first, second = 0.5 + quality + difference, 0.5 + quality
        first_omega = 4 * math.pi * first / (period * (4 * first**2 - 1) ** 0.5)
        second_omega = 8 * math.pi * second / (period * (4 * second**2 - 1) ** 0.5)
        return (first_omega, first, variance), (second_omega, second, fraction * variance)


class Constant(Kernel):
    """sigma^2: an unknown offset, the same at all times.

    Args:
        sigma: the standard deviation, positive.
    """

    parameter_names = ("sigma",)

    def __init__(self, sigma: Any = 1.0) -> None:
        super().__init__()
        self._set_checked(sigma=sigma)

    def components(self) -> list[Component]:
        return [Block(1, 0.0, 0.0, (self._value("sigma") ** 2,), smooth=True)]

    def _covariance(self, distance: Tensor) -> Tensor:
        return self._over(distance, "sigma")[0] ** 2 * torch.ones_like(distance)


class Linear(Kernel):
    """sigma^2 (t - center) (t' - center): a straight line with an unknown slope, 0 at ``center``.

    Args:
        sigma: the standard deviation of the slope, positive.
        center: a time; it should be near the data, because it is subtracted from the times.
    """

    parameter_names = ("sigma", "center")
    signed_parameters = ("center",)

    def __init__(self, sigma: Any = 1.0, center: Any = 0.0) -> None:
        super().__init__()
        self._set_checked(sigma=sigma, center=center)

    def components(self) -> list[Component]:
        return [Trend(self._value("sigma") ** 2, self._value("center"))]

    def forward(self, t1: Tensor, t2: Tensor | None = None) -> Tensor:
        other = t1 if t2 is None else t2
        self._check_times(t1, other)
        first, second = t1.double()[..., :, None], other.double()[..., None, :]
        sigma, center = self._over(first, *self.parameter_names)
        dense: Tensor = sigma**2 * (first - center) * (second - center)
        return dense.to(torch.promote_types(t1.dtype, other.dtype))

    def evaluate(self, distance: Any) -> Tensor:
        raise ValueError("laplex.gp.Linear.evaluate: depends on both times, not on their distance; use kernel(t1, t2)")
