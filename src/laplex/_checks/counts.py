"""Numbers that are not tensors: counts, seeds and positive lengths."""

from __future__ import annotations

import math
import numbers
from typing import TypeGuard

import numpy
import torch

from laplex._checks.arguments import as_float

MOST_SEED = 2**63 - 1


def is_number(value: object) -> TypeGuard[float]:
    """Whether a value is a real number, from Python or NumPy, and not a tensor."""
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def is_integer(value: object) -> TypeGuard[int]:
    """Whether a value is a whole number of any integer type."""
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def integer(where: str, name: str, value: object, least: int = 1) -> int:
    """The value as an int, if it is a whole number, of any integer type, and at least ``least``."""
    if not is_integer(value):
        raise TypeError(f"{where}: `{name}` must be a whole number, got {value!r}; use int({name}) if it is one")
    if value < least:
        raise ValueError(f"{where}: `{name}` must be at least {least}, got {value}; use a larger one")
    return int(value)


def flag(where: str, name: str, value: object) -> bool:
    """True or False, NumPy's included. Any other number was most likely meant for another argument."""
    if not isinstance(value, bool | numpy.bool_):
        raise TypeError(f"{where}: `{name}` must be True or False, got {value!r}")
    return bool(value)


def any_generator(where: str, value: object) -> torch.Generator | None:
    """A generator of random numbers, or None."""
    if value is not None and not isinstance(value, torch.Generator):
        got = type(value).__name__
        raise TypeError(
            f"{where}: `generator` must be None or a torch.Generator, got {got}; use torch.Generator().manual_seed(0)"
        )
    return value


def generator(where: str, value: object, device: torch.device, data: str = "x") -> torch.Generator | None:
    """The same, required to be on the device where numbers are drawn, that of the argument ``data``."""
    given = any_generator(where, value)
    if given is not None and given.device.type != device.type:
        raise ValueError(
            f"{where}: `generator` must be on {device}, where `{data}` is, got one on {given.device}; use "
            f"torch.Generator({device.type!r})"
        )
    return given


def seed(where: str, value: object) -> int:
    """A seed: a whole number from 0 to 2^63 - 1."""
    number = integer(where, "seed", value, 0)
    if number > MOST_SEED:
        raise ValueError(f"{where}: `seed` must be at most 2^63 - 1, got {value}; use a smaller one")
    return number


def positive(where: str, name: str, value: object, instead: str | None = None) -> float:
    """The value as a float, if it is positive and finite; ``instead`` says what else may be given."""
    other, to_do = (f" or {instead}", "leave it out") if instead else ("", "use a number above 0")
    if not is_number(value):
        raise TypeError(f"{where}: `{name}` must be a positive number{other}, got {value!r}; {to_do}")
    if not 0 < as_float(value) < math.inf:
        also = f",{other}" if other else ""
        raise ValueError(f"{where}: `{name}` must be positive and finite{also}, got {value}; {to_do}")
    return as_float(value)
