"""Numbers that know their derivatives in the parameters of a kernel.

A kernel turns its parameters into the few numbers of its blocks by arithmetic. With tensors, each operation would be a
node of autograd's graph, and all of them together take longer than the likelihood of 10^4 points. A ``Number`` does the
same arithmetic in float64 and carries its derivatives along, so that kernel and likelihood are one node.
"""

from __future__ import annotations

import math
from typing import Any

import numpy
from torch import Tensor

Real = float | numpy.ndarray  # a number, or one for each of h series, (h,)


class Number:
    """A value, and its derivatives in the parameters that it depends on, by the parameter's position in a list."""

    __slots__ = ("slopes", "value")
    __array_ufunc__ = None  # so that NumPy's arrays leave arithmetic with Numbers to the Numbers

    def __init__(self, value: Real, slopes: dict[int, Real]) -> None:
        self.value, self.slopes = value, slopes

    def __add__(self, other: Any) -> Number:
        if isinstance(other, Number):
            return Number(self.value + other.value, _combined(self, 1.0, other, 1.0))
        return NotImplemented if isinstance(other, Tensor) else Number(self.value + other, self.slopes)

    __radd__ = __add__

    def __neg__(self) -> Number:
        return Number(-self.value, _scaled(self, -1.0))

    def __sub__(self, other: Any) -> Number:
        return NotImplemented if isinstance(other, Tensor) else -(-self + other)

    def __rsub__(self, other: Any) -> Number:
        return (-self).__add__(other)

    def __mul__(self, other: Any) -> Number:
        if isinstance(other, Number):
            return Number(self.value * other.value, _combined(self, other.value, other, self.value))
        return NotImplemented if isinstance(other, Tensor) else Number(self.value * other, _scaled(self, other))

    __rmul__ = __mul__

    def __truediv__(self, other: Any) -> Number:
        if isinstance(other, Number):
            value, inverse = self.value / other.value, 1 / other.value
            return Number(value, _combined(self, inverse, other, -value * inverse))
        return NotImplemented if isinstance(other, Tensor) else Number(self.value / other, _scaled(self, 1 / other))

    def __rtruediv__(self, other: Any) -> Number:
        if isinstance(other, Tensor):
            return NotImplemented
        value = other / self.value
        return Number(value, _scaled(self, -value / self.value))

    def __pow__(self, power: float) -> Number:
        return Number(_power(self.value, power), _scaled(self, power * _power(self.value, power - 1)))


def _power(value: Real, power: float) -> Real:
    """Return value**power; NaN, as for tensors, where Python would return a complex number."""
    if isinstance(value, float):
        return math.nan if value < 0 and power % 1 else value**power
    with numpy.errstate(all="ignore"):
        result: Real = value**power
    return result


def _scaled(number: Number, factor: Real) -> dict[int, Real]:
    return {i: factor * slope for i, slope in number.slopes.items()}


def _combined(left: Number, left_factor: Real, right: Number, right_factor: Real) -> dict[int, Real]:
    """The derivatives of left_factor * left + right_factor * right."""
    slopes = _scaled(left, left_factor)
    for i, slope in right.slopes.items():
        added = right_factor * slope
        slopes[i] = slopes[i] + added if i in slopes else added
    return slopes
