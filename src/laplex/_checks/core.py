"""What is checked before the compiled core is called, and the errors for the status that it returns."""

from __future__ import annotations

from typing import NoReturn

import torch
from torch import Tensor

from laplex._checks.messages import not_finite, stale_plan
from laplex._checks.tau import bad_tau
from laplex._compiled import core
from laplex._errors import StalePlanError


def is_double(where: str, *arrays: Tensor) -> bool:
    """Whether arrays that the core is to read are in float64; if not, all of them are in float32.

    The core is given addresses and cannot see a dtype: it would read, and write, beyond the end of any other one.
    """
    dtypes = {array.dtype for array in arrays}
    if len(dtypes) != 1 or not dtypes <= {torch.float32, torch.float64}:
        got = ", ".join(sorted(map(str, dtypes)))
        raise TypeError(f"{where}: all tensors must be in float32, or all in float64, got {got}; call .float()")
    return torch.float64 in dtypes


def core_fault(where: str, status: int, tau: Tensor | None = None) -> NoReturn:
    """Raise the error that a nonzero status stands for."""
    if status == core.STALE_PLAN:
        raise StalePlanError(stale_plan(where))
    if status == core.BAD_TAU and tau is not None:
        raise ValueError(bad_tau(where, tau))
    if status in (core.NOT_FINITE_A, core.NOT_FINITE_B):
        raise ValueError(not_finite(where, "a" if status == core.NOT_FINITE_A else "b"))
    raise MemoryError(f"{where}: no memory for the compiled core's scratch arrays; use smaller batches")
