"""Exceptions of laplex's own; bad arguments otherwise raise ValueError, TypeError or RuntimeError."""


class StalePlanError(ValueError):
    """A plan was used with anchors whose order it does not describe. No result was computed."""
