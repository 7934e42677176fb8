"""Errors for the status that the compiled core returns in place of a result."""

from __future__ import annotations

from typing import NoReturn

from torch import Tensor

from laplex._checks.messages import not_finite, stale_plan
from laplex._checks.tau import bad_tau
from laplex._compiled import core
from laplex._errors import StalePlanError


def core_fault(where: str, status: int, tau: Tensor | None = None) -> NoReturn:
    """Raise the error that a nonzero status stands for."""
    if status == core.STALE_PLAN:
        raise StalePlanError(stale_plan(where))
    if status == core.BAD_TAU and tau is not None:
        raise ValueError(bad_tau(where, tau))
    if status in (core.NOT_FINITE_A, core.NOT_FINITE_B):
        raise ValueError(not_finite(where, "a" if status == core.NOT_FINITE_A else "b"))
    raise MemoryError(f"{where}: no memory for the compiled core's scratch arrays; use smaller batches")
