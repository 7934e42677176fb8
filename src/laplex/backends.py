"""The backends: which of them can run here, and which one a call uses.

    torch    any device    plain torch, in chunks
    cpp      CPU           the compiled core
    triton   CUDA          Triton programs
    dense    any device    sums every pair of anchors, in float64
    formed   any device    forms the matrix (or a sum of matrices) once and multiplies by it, as nn.Linear does

The first three sort the anchors and scan; the others visit all n * k entries, which is faster for small matrices and
many rows. A call chooses by device, sizes and whether gradients are needed: each way's time is estimated from a sweep.
``backend=`` overrides the choice; if that backend cannot run, the call raises an error that says why.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from laplex import _backends, _checks, _progress
from laplex._plan import Plan, check_plan
from laplex._route import Arguments, find_route

__all__ = ["available", "warm_up", "which"]


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
    x: Tensor,
    a: Tensor,
    b: Tensor,
    tau: float | Tensor = 1.0,
    *,
    weight: Tensor | None = None,
    phi: Tensor | None = None,
    psi: Tensor | None = None,
    plan: Plan | None = None,
    backend: str | None = None,
) -> str:
    """The backend that ``laplex.linear`` would run with these arguments, here and now: where gradients are needed
    another one may be the fastest. The arguments are those of :func:`laplex.linear`."""
    for name, tensor in (("x", x), ("a", a), ("b", b)):
        _checks.check_tensor("laplex.backends.which", name, tensor)
    route = find_route(Arguments(x, a, b, tau, weight, phi, psi, plan, backend))
    check_plan("laplex.backends.which", plan, (a, b), route.batch)
    return route.backend.name


def warm_up(
    device: torch.device | str = "cuda",
    *,
    rows: Sequence[int] = (1, 8),
    dtypes: Sequence[torch.dtype] = (torch.float32,),
    points: int = 1 << 20,
    batch: int = 0,
    gradients: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> int:
    """Compile the GPU programs of :func:`laplex.linear` now, and not at the first call that needs them.

    Afterwards no call compiles anything, whatever n and k, if it fits this description and has neither a plan nor
    phases. (For a weighted sum that is scanned, ``batch`` is the number of matrices.) Programs that Triton has in its
    cache on disk are only loaded. Compiling uses all cores.

    Args:
        device: a CUDA device.
        rows: for each number of rows of x, the product of its leading dimensions.
        dtypes: the dtypes of x. Anchors have the same dtype, or float32 for half precision.
        points: the largest n + k.
        batch: how many matrices a batch has; 0 for one matrix without a batch.
        gradients: for backward, too: about four times as many programs.
        progress: called with the number of programs compiled so far and the number of all. None shows progress on
            stderr: a bar in a terminal if rich is installed, else lines.

    Returns:
        The number of programs.
    """
    where = torch.device(device)
    if where.type != "cuda":
        raise RuntimeError(
            f"laplex.backends.warm_up: `device` must be a CUDA device, got {where}; nothing else compiles"
        )
    why = _backends.refusal("triton", where) or _no_gpu()
    if why:
        raise RuntimeError(f"laplex.backends.warm_up: backend 'triton' cannot run: {why}")
    if not rows or min(rows) < 1 or not dtypes or points < 2:
        raise ValueError(
            "laplex.backends.warm_up: needs at least one number of `rows`, one of `dtypes` and 2 `points`, got "
            f"rows={tuple(rows)}, dtypes={tuple(dtypes)}, points={points}"
        )
    if where == torch.device("cuda"):
        where = torch.device("cuda", torch.cuda.current_device())
    ahead: Any = _backends.load("triton", "cuda").ahead
    calls = [ahead.Request(dtype, m, batch, gradients) for dtype, m in itertools.product(dtypes, rows)]
    with _progress.bar("laplex: compiling GPU programs", progress) as report:
        programs: int = ahead.prepare(where, calls, points, report)
    return programs
