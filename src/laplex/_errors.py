"""The exceptions and warnings that laplex defines. Other faults raise ValueError, TypeError or RuntimeError."""


class StalePlanError(ValueError):
    """A plan was used with anchors whose order it does not describe. No result was computed."""

    __module__ = "laplex"  # as users import it


class PerformanceWarning(UserWarning):
    """The result is right, but something is missing that would make it much faster. Shown once per process."""

    __module__ = "laplex"


def frozen(self: object, name: str, value: object) -> None:
    """The ``__setattr__`` of classes whose objects are immutable."""
    raise AttributeError(f"{type(self).__name__}.{name} cannot be set: it is immutable; make a new one")
