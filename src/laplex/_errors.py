"""Exceptions and warnings of laplex's own; bad arguments otherwise raise ValueError, TypeError or RuntimeError."""


class StalePlanError(ValueError):
    """A plan was used with anchors whose order it does not describe. No result was computed."""

    __module__ = "laplex"  # as users import it


class PerformanceWarning(UserWarning):
    """The result is right, but could be had much faster. Told once; filter it as any warning."""

    __module__ = "laplex"


def frozen(self: object, name: str, value: object) -> None:
    """As ``__setattr__`` of a class whose instances are not to be changed once made."""
    raise AttributeError(f"{type(self).__name__}.{name} cannot be set: it is immutable; make a new one")
