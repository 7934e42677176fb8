"""The public function ``linear``: it checks, chooses a way, and sees to what an interruption leaves."""

from __future__ import annotations

import math
import numbers
import os
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from laplex import _checks
from laplex._progress import bar
from laplex.disk import _borders, _buckets, _streams
from laplex.disk._arrays import Stored, stored
from laplex.disk._files import Traffic
from laplex.disk._output import Output
from laplex.disk._problem import Problem
from laplex.disk._workspace import Workspace, require_space

if TYPE_CHECKING:
    from laplex._progress import Progress

WHERE = "laplex.disk.linear"
MEMORY = 1 << 30  # bytes
LEAST_ANCHORS = 64  # that must fit into memory


def linear(
    x: Any,
    a: Any,
    b: Any,
    tau: float = 1.0,
    *,
    out: str | os.PathLike[str],
    phi: Any = None,
    psi: Any = None,
    memory: int = MEMORY,
    workspace: str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> np.ndarray[Any, Any]:
    r"""y = x K(a, b)^T into a .npy file: :func:`laplex.linear` for arguments that do not fit into memory."""
    traffic = Traffic()
    with ExitStack() as stack:
        problem = _checked((x, a, b, phi, psi), tau, memory, traffic, stack)
        output = Output(_output_path(out, problem), (*problem.x.shape[:-1], problem.a.size), problem.x.dtype, traffic)
        folder = output.path.with_name(f"{output.path.name}.work") if workspace is None else Path(workspace)
        way = _streams.fits(problem) or "buckets"
        samples = _samples(problem)
        about = problem.identity() | {"out": str(output.path.absolute())}
        room = stack.enter_context(closing(Workspace(folder, about, (*STEPS[way], "done"), traffic, WHERE)))
        if room.step != "done":
            stack.callback(output.close)
            _open(problem, output, room, samples, way)
            with bar(WHERE, progress) as show:
                RUN[way](problem, room, output, show)
            room.enter("done")
        output.finish()
        room.remove()
    return np.load(output.path, mmap_mode="r")  # type: ignore[no-any-return]


RUN: dict[str, Callable[..., None]] = {
    "buckets": _buckets.run,
    "by rows": _streams.run_by_rows,
    "by columns": _streams.run_by_columns,
}
STEPS = {"buckets": _buckets.STEPS, **_streams.STEPS}


def _open(problem: Problem, output: Output, room: Workspace, samples: Any, way: str) -> None:
    """Begin, or go on where the workspace is."""
    _require_space(problem, output, room, way)
    if room.layout is None and way == "buckets":
        _buckets.begin(problem, samples, room)
    elif room.layout is None:
        room.begin({"way": way})
    output.open(resumed=room.step == "output" and room.done("output", 1) > 0, where=WHERE)


def space(problem: Problem, way: str) -> int:
    """The most bytes that the workspace has at a time."""
    n, k, m = problem.a.size, problem.b.size, problem.x.m
    anchor, value = problem.a.dtype.itemsize, problem.x.dtype.itemsize
    if way != "buckets":
        return 16 * n * m if way == "by columns" else 0
    phases = problem.phi.dtype.itemsize + problem.psi.dtype.itemsize if problem.phi and problem.psi else 0
    return n * (anchor + 2 + value * m) + k * (anchor + value * m) + phases * max(n, k)


def _require_space(problem: Problem, output: Output, room: Workspace, way: str) -> None:
    """Raise unless what is still to be written has room, on one disk or on two."""
    needed, present = space(problem, way), room.present
    left = output.bytes - (output.unfinished.stat().st_blocks * 512 if output.unfinished.exists() else 0)
    if room.folder.stat().st_dev == output.path.parent.stat().st_dev:
        require_space(WHERE, "workspace", room.folder, needed + (left if way != "buckets" else 0) - present)
        return
    require_space(WHERE, "workspace", room.folder, needed - present)
    require_space(WHERE, "out", output.path.parent, left)


# --- checks -----------------------------------------------------------------------------------------------------------


def _checked(arguments: tuple[Any, ...], tau: Any, memory: Any, traffic: Traffic, stack: ExitStack) -> Problem:
    """The arguments, whose shapes, dtypes and settings are right. The values of anchors are seen as they are read."""
    sides: dict[str, Stored | None] = {}
    for name, value in zip(("x", "a", "b", "phi", "psi"), arguments, strict=True):
        sides[name] = None if value is None and name in ("phi", "psi") else stored(WHERE, name, value, traffic)
        if sides[name] is not None:
            stack.callback(sides[name].close)  # type: ignore[union-attr]
    x, a, b, phi, psi = sides.values()
    _check_shapes(x, a, b)
    _check_phases(a, b, phi, psi)
    if isinstance(memory, bool) or not isinstance(memory, numbers.Integral):
        raise TypeError(f"{WHERE}: `memory` must be a whole number of bytes, got {type(memory).__name__}")
    if isinstance(tau, torch.Tensor) or isinstance(tau, bool) or not isinstance(tau, numbers.Real):
        raise TypeError(f"{WHERE}: `tau` must be a positive number, got {type(tau).__name__}")
    problem = Problem(x, a, b, float(tau), phi, psi, int(memory), WHERE)  # type: ignore[arg-type]
    if memory < LEAST_ANCHORS * problem.anchor_bytes:
        raise ValueError(
            f"{WHERE}: `memory` must be at least {LEAST_ANCHORS * problem.anchor_bytes} bytes for {problem.x.m} rows "
            f"of {problem.x.dtype}, got {memory}"
        )
    return problem


def _check_shapes(x: Any, a: Any, b: Any) -> None:
    for name, side in (("a", a), ("b", b)):
        if len(side.shape) != 1:
            raise ValueError(
                f"{WHERE}: `{name}` must have one dimension, got shape {side.shape}; a batch of matrices is a call for each"
            )
    if a.dtype != b.dtype:
        raise TypeError(f"{WHERE}: `a` and `b` must have one dtype, got {a.dtype} and {b.dtype}; cast one of them")
    if x.size != b.size:
        raise ValueError(
            f"{WHERE}: `x` must have size k = {b.size} in its last dimension to match `b`, got shape {x.shape}"
        )


def _check_phases(a: Any, b: Any, phi: Any, psi: Any) -> None:
    if (phi is None) != (psi is None):
        given, missing = ("phi", "psi") if psi is None else ("psi", "phi")
        raise ValueError(
            f"{WHERE}: `phi` and `psi` go together, got `{given}` without `{missing}`; pass zeros for `{missing}` if "
            "only one side has phases"
        )
    for name, phase, side, anchors in (("phi", phi, "a", a), ("psi", psi, "b", b)):
        if phase is not None and phase.shape != anchors.shape:
            raise ValueError(f"{WHERE}: `{name}` must have the shape of `{side}`, {anchors.shape}, got {phase.shape}")


def _output_path(out: Any, problem: Problem) -> Path:
    if not isinstance(out, str | os.PathLike) or Path(out).suffix != ".npy":
        raise ValueError(f"{WHERE}: `out` must be the path of a .npy file, got {out!r}")
    path = Path(out)
    if not path.parent.is_dir():
        raise ValueError(f"{WHERE}: `out` must be in a folder that exists, got {path}; make {path.parent}")
    sides = {"x": problem.x, "a": problem.a, "b": problem.b, "phi": problem.phi, "psi": problem.psi}
    for name, side in sides.items():
        if side is not None and side.region is not None and path.exists() and path.samefile(side.region.path):
            raise ValueError(f"{WHERE}: `out` must be another file than `{name}`, got {path} for both")
    return path


def _samples(problem: Problem) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Samples of rows and columns, and checks of tau against them."""
    rows, columns = _borders.sample(problem.a, "a", WHERE), _borders.sample(problem.b, "b", WHERE)
    _checks.length_scale(WHERE, problem.tau, torch.from_numpy(rows))
    return rows, columns
