"""The exceptions and warnings that laplex defines. Other faults raise ValueError, TypeError or RuntimeError."""

import sys
import warnings


class StalePlanError(ValueError):
    """A plan was used with anchors whose order it does not describe. No result was computed."""

    __module__ = "laplex"  # as users import it


class PerformanceWarning(UserWarning):
    """The result is right, but something is missing that would make it much faster. Shown once per process."""

    __module__ = "laplex"


class PrecisionWarning(UserWarning):
    """Rounding shows: float32 anchors are very large compared with tau, or a matrix is nearly singular."""

    __module__ = "laplex"


class ShapeWarning(UserWarning):
    """The shapes are allowed, but nearly always something else was meant."""

    __module__ = "laplex"


def warn(text: str, category: type[Warning]) -> None:
    """Warn at the line that called laplex, however deep in it the fault was found."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "laplex":
        level, frame = level + 1, frame.f_back
    warnings.warn(text, category, stacklevel=level)


def frozen(self: object, name: str, value: object) -> None:
    """The ``__setattr__`` of classes whose objects are immutable."""
    raise AttributeError(f"{type(self).__name__}.{name} cannot be set: it is immutable; make a new one")


def set_fields(self: object, **fields: object) -> None:
    """Set attributes of an object that is immutable for everyone else.

    Not by its ``__dict__``: torch.compile of torch 2.11 cannot trace that.
    """
    for name, value in fields.items():
        object.__setattr__(self, name, value)
