"""The public function ``linear``: checks, the choice of a strategy, and clean-up or continuation."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from laplex import _checks
from laplex._checks.arguments import as_float
from laplex._checks.counts import is_integer, is_number
from laplex._progress import bar, check_progress
from laplex.disk import _borders, _buckets, _streams
from laplex.disk._arrays import Stored, stored
from laplex.disk._borders import NotFiniteError
from laplex.disk._files import WHERE, bytes_on_disk
from laplex.disk._output import Output
from laplex.disk._problem import Problem, blocks
from laplex.disk._running import PLACES
from laplex.disk._workspace import Workspace, require_space

if TYPE_CHECKING:
    from laplex._progress import Progress

MEMORY = 1 << 30  # bytes
LEAST_ANCHORS = 64  # how many must fit into memory
RUNNING_SUMS = 8 * PLACES  # bytes per number of a running sum
ENDS = 512  # rows read at either end to see how large anchors are


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
    r"""y = x K(a, b)^T, written to a .npy file: :func:`laplex.linear` for arguments that do not fit into memory.

        K[i, j] = exp(-|a_i - b_j| / tau) * cos(phi_i - psi_j)

    The product with the transpose, which is also the gradient of x for a cotangent g (..., n), is
    ``laplex.disk.linear(g, b, a, tau, phi=psi, psi=phi, out=...)``. Other gradients are not computed.

    If a call is ended by Ctrl-C, a kill or a power cut, repeating it with the same arguments continues where it was.
    The result has the same bits, given the same number of threads and version of laplex. ``out`` gets its name only
    when it is complete.

    An argument is the path of a .npy file; a pair (path of a .safetensors file, name of a tensor); a NumPy memory map
    or a tensor of ``torch.from_file(..., shared=True)``, whose file is then read; or any array or tensor in memory.

    Args:
        x (..., k): the input, float32 or float64.
        a (n,): row anchors, float32 or float64, in any order.
        b (k,): column anchors, same dtype.
        tau: positive length scale.
        out: the path of the .npy file that is written; an older one is replaced at the end, and a link followed.
        phi (n,), psi (k,): phases, both or neither.
        memory: bytes that the call may use, besides what Python and torch already use.
        workspace: the folder for unfinished work, which a finished call deletes; None for one next to ``out``, named
            like it with ".work" added. A fast disk is worth more here than for the arguments.
        progress: called as progress(done, total); None shows a bar.

    Returns:
        y (..., n) as a memory map of ``out``, in the dtype of x, as accurate as the result of :func:`laplex.linear`.

    Bytes: with v bytes for a number of x, w for an anchor and m rows of x, each of the n rows takes 2 w + 1 + m v of
    reading and w + 1 + 2 m v of writing, and each of the k columns 2 (w + m v) and w + m v (labels of more than 254
    buckets take one more byte). In float32 with one row of x that is 13 and 13 for a row, 16 and 8 for a column. The
    workspace takes w + 1 + m v for a row and w + m v for a column, plus the phases if there are any. If one side takes
    at most half of the memory, the arguments are read once, and only the result and sums of its size are written.

    In addition, with c buckets, where c is about 1.7 (n + k) over the number of anchors that fit into memory, the
    workspace takes 48 c m bytes for sums, and writes 16 c m for each block of b; tables of counts take 8 c for each
    block of a and of b. That is little, unless there are many rows of x and little memory: then the tables, which are
    in memory too, may take more than ``memory`` allows. With phases the sums take twice as much.

    Example:
        >>> y = laplex.disk.linear("x.npy", "a.npy", "b.npy", tau=0.5, out="y.npy")  # doctest: +SKIP
    """
    check_progress(WHERE, progress)
    with ExitStack() as stack:
        problem = _checked((x, a, b, phi, psi), tau, memory, stack)
        path, strategy = _output_path(out, problem), _streams.fits(problem) or "buckets"
        folder = _workspace_path(workspace, path)
        _check_apart(folder, path)
        about = problem.identity() | {"strategy": strategy, "out": str(path)}
        output = Output(path, about, (*problem.x.shape[:-1], problem.a.size), problem.x.dtype)
        stack.callback(output.close)
        work = stack.enter_context(closing(Workspace(folder, about, (*STEPS[strategy], "done"))))
        if work.step == "done" and not output.is_complete(work.result):
            work.begin(None)
        if work.step != "done":
            _complete(problem, output, work, strategy, progress)
            work.finish(output.mark())
        output.finish(work.result)
        work.remove()
    return np.load(output.path, mmap_mode="r")  # type: ignore[no-any-return]


RUN: dict[str, Callable[..., None]] = {
    "buckets": _buckets.run,
    "by rows": _streams.run_by_rows,
    "by columns": _streams.run_by_columns,
}
STEPS = {"buckets": _buckets.STEPS, **_streams.STEPS}


def _complete(problem: Problem, output: Output, work: Workspace, strategy: str, progress: Progress | None) -> None:
    """Finish the output, continuing from where the workspace is."""
    try:
        _require_space(problem, output, work, strategy)
        if work.layout is None:
            _begin(problem, work, strategy)
        output.open(resumed=work.step == "output" and work.done("output", 1) > 0)
        with bar(WHERE, progress) as show:
            RUN[strategy](problem, work, output, show)
    except NotFiniteError:
        output.discard()
        work.remove()
        raise
    except (OSError, ValueError):
        if work.layout is None:  # the call failed before any work was done
            work.remove()
        raise


def _begin(problem: Problem, work: Workspace, strategy: str) -> None:
    """Divide the work, and record how."""
    n = problem.a.size
    ends = np.concatenate([problem.a.read(0, min(ENDS, n)), problem.a.read(max(n - ENDS, 0), n)], -1)
    _checks.resolution(WHERE, problem.tau, torch.from_numpy(ends), shifted=True)
    if strategy != "buckets":
        work.begin({})
        return
    _buckets.begin(problem, work)


def _require_space(problem: Problem, output: Output, work: Workspace, strategy: str) -> None:
    """Raise unless there is free space for what is still to be written, on one disk or on two."""
    during, after = space(problem, strategy)
    left = output.bytes - bytes_on_disk(output.unfinished)
    if work.step == "output":  # nothing more is written into the workspace
        require_space("out", output.path.parent, left)
    elif work.folder.stat().st_dev == output.path.parent.stat().st_dev:
        require_space("workspace", work.folder, max(during, after + left) - work.present)
    else:
        require_space("workspace", work.folder, max(during, after) - work.present)
        require_space("out", output.path.parent, left)


def space(problem: Problem, strategy: str) -> tuple[int, int]:
    """The bytes in the workspace once all products are computed, and while the output is written."""
    n, k, m = problem.a.size, problem.b.size, problem.x.m
    anchor, value = problem.a.dtype.itemsize, problem.x.dtype.itemsize
    if strategy != "buckets":
        sums = RUNNING_SUMS * n * m if strategy == "by columns" else 0
        return sums, sums
    buckets = _borders.expected_buckets(n + k, problem.capacity)
    tables = 8 * buckets * (blocks(n, problem.block) + blocks(k, problem.block))
    sums = RUNNING_SUMS * 2 * buckets * problem.channels
    results = n * (np.dtype(np.uint16).itemsize + value * m)
    phases = n * problem.phi.dtype.itemsize + k * problem.psi.dtype.itemsize if problem.phi and problem.psi else 0
    return results + n * anchor + k * (anchor + value * m) + phases + tables + sums, results + tables


# --- checks -----------------------------------------------------------------------------------------------------------


def _checked(arguments: tuple[Any, ...], tau: Any, memory: Any, stack: ExitStack) -> Problem:
    """The arguments, after checking shapes, dtypes and settings. Values of anchors are checked as they are read."""
    sides: dict[str, Stored | None] = {}
    for name, value in zip(("x", "a", "b", "phi", "psi"), arguments, strict=True):
        sides[name] = None if value is None and name in ("phi", "psi") else stored(name, value)
        if sides[name] is not None:
            stack.callback(sides[name].close)  # type: ignore[union-attr]
    x, a, b, phi, psi = sides.values()
    _check_shapes(x, a, b)
    _check_phases(a, b, phi, psi)
    if not is_integer(memory):
        raise TypeError(f"{WHERE}: `memory` must be a whole number of bytes, got {memory!r}; use one such as 2**30")
    if not is_number(tau):
        raise TypeError(f"{WHERE}: `tau` must be a positive number, got {type(tau).__name__}; use float(tau)")
    _checks.length_scale(WHERE, as_float(tau), torch.empty(0))
    problem = Problem(x, a, b, as_float(tau), phi, psi, int(memory))  # type: ignore[arg-type]
    if problem.capacity < LEAST_ANCHORS:
        least = 2 * LEAST_ANCHORS * problem.anchor_bytes
        raise ValueError(f"{WHERE}: `memory` must be at least {least} bytes for {problem.x.m} rows of x, got {memory}")
    return problem


def _check_shapes(x: Any, a: Any, b: Any) -> None:
    for name, side in (("a", a), ("b", b)):
        if len(side.shape) != 1:
            raise ValueError(
                f"{WHERE}: `{name}` must have one dimension, got shape {side.shape}; call once for each matrix"
            )
    if a.dtype != b.dtype:
        raise TypeError(f"{WHERE}: `a` and `b` must have one dtype, got {a.dtype} and {b.dtype}; cast one of them")
    if x.size != b.size:
        raise ValueError(
            f"{WHERE}: `x` must have size k = {b.size} in its last dimension to match `b`, got shape {x.shape}"
        )


def _check_phases(a: Any, b: Any, phi: Any, psi: Any) -> None:
    _checks.both_phases(WHERE, phi, psi)
    for name, phase, side, anchors in (("phi", phi, "a", a), ("psi", psi, "b", b)):
        if phase is not None:
            _checks.phase_shape(WHERE, name, phase.shape, side, anchors.shape)


def _workspace_path(workspace: Any, out: Path) -> Path:
    if workspace is None:
        return out.with_name(f"{out.name}.work")
    if not isinstance(workspace, str | os.PathLike):
        raise TypeError(f"{WHERE}: `workspace` must be the path of a folder, got {type(workspace).__name__}")
    return Path(workspace)


def _check_apart(folder: Path, out: Path) -> None:
    """Raise if the result would be inside the workspace, which must have no other files and is deleted."""
    if Path(os.path.realpath(folder)) in (out, *out.parents):
        raise ValueError(
            f"{WHERE}: `out` must be outside of `workspace`, got {out} in {folder}; give another path for one of them"
        )


def _output_path(out: Any, problem: Problem) -> Path:
    """The file that is written: ``out``, or what it points to if it is a link."""
    if not isinstance(out, str | os.PathLike) or Path(out).suffix != ".npy":
        raise ValueError(f"{WHERE}: `out` must be the path of a .npy file, got {out!r}")
    path = Path(os.path.realpath(out))
    if path.is_dir():
        raise ValueError(f"{WHERE}: `out` must be a file, got the folder {path}; give another path")
    if not path.parent.is_dir():
        raise ValueError(f"{WHERE}: `out` must be in a folder that exists, got {path}; make {path.parent}")
    sides = {"x": problem.x, "a": problem.a, "b": problem.b, "phi": problem.phi, "psi": problem.psi}
    for name, side in sides.items():
        if side is not None and side.region is not None and path.exists() and path.samefile(side.region.path):
            raise ValueError(f"{WHERE}: `out` must be another file than `{name}`, got {path} for both")
    return path
