"""The backends: which of them can run here, and which one a call uses.

    torch    any device    plain torch, in chunks
    cpp      CPU           the compiled core
    triton   CUDA          Triton programs
    dense    any device    forms every pair of anchors; the fastest for small matrices

A call chooses by device and sizes. ``backend=`` overrides the choice; if that backend cannot run, the call raises and
says why.
"""

from __future__ import annotations

import torch
from torch import Tensor

from laplex import _backends, _checks
from laplex._backends.cost import Work
from laplex._plan import Plan

__all__ = ["available", "which"]


def __dir__() -> list[str]:
    return __all__


def available() -> dict[str, str]:
    """For each backend "yes", or what is missing and what to do about it."""
    lacking = {name: _backends.missing(name) for name in _backends.NAMES}
    lacking["triton"] = lacking["triton"] or _no_gpu()
    return {name: why or "yes" for name, why in lacking.items()}


def _no_gpu() -> str:
    if torch.cuda.is_available() or _backends.interpreted():
        return ""
    return "torch sees no CUDA device"


def which(
    x: Tensor, a: Tensor, b: Tensor, *, weight: Tensor | None = None, plan: Plan | None = None, backend: str | None = None
) -> str:
    """The backend that ``laplex.linear(x, a, b, weight=weight, plan=plan, backend=backend)`` would run, here and now:
    where gradients are wanted another one may be the fastest."""
    for name, tensor in (("x", x), ("a", a), ("b", b)):
        _checks.is_tensor("laplex.backends.which", name, tensor)
    batch = tuple(torch.broadcast_shapes(a.shape[:-1], b.shape[:-1]))
    work = Work.of((x, a, b), batch, weight is not None, plan is not None, (weight,))
    return _backends.choose(x.device, a.shape[-1], b.shape[-1], backend, work)
