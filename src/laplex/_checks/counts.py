"""Numbers that are no tensors: how many of something, and positive lengths."""

from __future__ import annotations

import math
import numbers

from laplex._checks.arguments import as_float


def whole(where: str, name: str, value: object, least: int = 1) -> int:
    """A whole number of at least ``least``, of any integer type."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError(f"{where}: `{name}` must be a whole number, got {value!r}; use int({name}) if it is one")
    if value < least:
        raise ValueError(f"{where}: `{name}` must be at least {least}, got {value}; use a larger one")
    return int(value)


def positive(where: str, name: str, value: object, instead: str) -> float:
    """A positive, finite number; ``instead`` is what else may be given."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError(f"{where}: `{name}` must be a positive number or {instead}, got {value!r}; leave it out")
    if not 0 < as_float(value) < math.inf:
        raise ValueError(f"{where}: `{name}` must be positive and finite, or {instead}, got {value}; leave it out")
    return as_float(value)
