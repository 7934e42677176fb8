"""The table of backends: what each can do, which of them can run here, and which one a call gets.

Every backend has one module with one table, :class:`Backend`. The rest of the package asks the table and compares no
names. This package is the only one outside ``_triton`` that imports from it, and only when a GPU is used.
"""

from __future__ import annotations

import functools
import importlib.util
import os
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from laplex import _checks, _compiled
from laplex._backends.cost import Work
from laplex._backends.cost import cheapest as cheapest
from laplex._eager import always, exporting
from laplex._errors import PerformanceWarning
from laplex._scan.order import Order, layout_of_sides

NAMES = ("torch", "cpp", "triton", "dense", "formed")
NO_TRITON = "" if importlib.util.find_spec("triton") else "Triton is not installed; it comes with torch's CUDA builds"
WORTH_A_WARNING = 1 << 16  # numbers in a call; with fewer nobody notices that the compiled core is missing


class Backend(NamedTuple):
    """What a backend can do. ``Matrix`` and ``Order`` are those of ``laplex._scan.order``."""

    scan: Callable[..., tuple[Tensor, Tensor]]  # x, matrix, odd=, degree= -> E x, S x
    pullback: Callable[..., tuple[Tensor, Tensor, Tensor, Tensor]]  # g, x, odd_x, matrix, to_tau= -> the gradients
    gram: ModuleType  # assemble and pull: the n x n part of Gram matrices
    layout: Callable[[int, int], str] = layout_of_sides  # n, k -> the layout of its orders
    order: Callable[[Tensor, Tensor, str], Order] | None = None  # a (*H, n), b (*H, k), layout; None: needs none
    update: Callable[[Tensor, Tensor, Order], Order] | None = None  # a, b, the order before they moved; None: sort
    look: Callable[[Tensor, Tensor], str] | None = None  # a, b to be planned -> their layout; raises if not finite
    complete: Callable[[Order, int, int], Order] | None = None  # an order to be kept, n, k -> with more, to save time
    solver: ModuleType | None = None  # factors and sweeps of quasiseparable matrices
    form: ModuleType | None = None  # form, matmul and pull: linear then forms the matrix
    phased: ModuleType | None = None  # product and pullback with phases, fused; None: composed of scans
    fused_gram: ModuleType | None = None  # gram and pullback without anything else as long as the columns
    ahead: ModuleType | None = None  # compiles programs before they are needed
    dense_below: int = 0  # entries n * k; the dense product of fewer is faster: benchmarks/studies/crossover.py
    reads_half: bool = False  # takes float16 and bfloat16 operands as they are
    writes_columns: bool = False  # writes results with adjacent rows, as the operand has them
    raises: bool = True  # on faulty values; else the result is NaN
    joins: bool = False  # its orders join both sides in one sequence


_loaded: dict[tuple[str, str], Backend] = {}


def load(name: str, device: str) -> Backend:
    """The table of the backend with this name, for tensors on this type of device."""
    if torch.compiler.is_compiling():  # a graph that depends on the dictionary would be traced again when it changes
        return _load(name, device)
    table = _loaded.get((name, device))
    if table is None:
        table = _loaded[name, device] = _load(name, device)
    return table


def _load(name: str, device: str) -> Backend:
    """Imported here: a backend's modules import much, and torch.compile follows import statements only."""
    if name == "torch":
        from laplex._backends.of_torch import BACKEND as table
    elif name == "cpp":
        from laplex._backends.of_cpp import BACKEND as table
    elif name == "triton":
        from laplex._triton.backend import BACKEND as table
    elif name == "formed":
        table = _load_formed(device)
    elif device == "cuda" and not NO_TRITON:
        from laplex._triton.backend import DIRECT as table
    else:
        from laplex._backends.of_dense import BACKEND as table
    return table


def _load_formed(device: str) -> Backend:
    if device == "cuda" and not NO_TRITON:
        from laplex._triton.backend import FORMED as table
    elif device == "cpu" and not _compiled.MISSING:
        from laplex._backends.of_cpp import FORMED as table
    else:
        from laplex._backends.of_dense import FORMED as table
    return table


def choose(device: torch.device, n: int, k: int, backend: str | None, work: Work | None = None) -> str:
    """The backend for a product of size n x k on a device, or the one asked for if it can run.

    With ``work`` the cheapest way for it, as ``cost`` estimates. Transforms and forward mode take the scan, which has
    all derivatives.
    """
    if backend is None:
        chosen = planner(device)
        if work is not None and _by_cost(chosen):
            return cheapest_backend(work, device)
        return "dense" if always(n * k < load(chosen, device.type).dense_below) else chosen
    if backend not in NAMES:
        raise ValueError(f"laplex: `backend` must be one of {', '.join(NAMES)} or None, got {backend!r}")
    why = refusal(backend, device)
    if why:
        raise RuntimeError(f"laplex: backend '{backend}' {why}")
    return backend


def cheapest_backend(work: Work, device: torch.device) -> str:
    """The backend of the way that takes the least time, as ``cost`` estimates."""
    return "formed" if cheapest(work, device.type) == "formed" else planner(device)


def _by_cost(scan: str) -> bool:
    """Whether costs are known for this backend's scan, and no derivative is wanted that only the scan has."""
    if torch.compiler.is_compiling():
        return not exporting() and scan in ("cpp", "triton")
    if torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0:
        return False
    return scan in ("cpp", "triton")


def refusal(backend: str, device: torch.device) -> str:
    """Why a backend cannot run on a device, or nothing."""
    if missing(backend):
        return f"cannot run: {missing(backend)}"
    if backend == "cpp" and device.type != "cpu":
        return f"runs on the CPU, the tensors are on {device}; use backend='torch'"
    if backend == "triton" and device.type != "cuda" and not interpreted():
        return f"runs on CUDA, the tensors are on {device}; use backend='torch' or .cuda()"
    return ""


def missing(backend: str) -> str:
    """What a backend lacks on this machine, or nothing."""
    return {"cpp": _compiled.MISSING, "triton": NO_TRITON}.get(backend, "")


def interpreted() -> bool:
    """Whether Triton's interpreter runs the programs, on any device: for tests without a GPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def planner(device: torch.device) -> str:
    """The backend that sorts, and multiplies unless the matrix is small."""
    if device.type == "cuda" and not NO_TRITON:
        return "triton"
    return planner_of_sides(device)


def planner_of_sides(device: torch.device) -> str:
    """The backend that sorts each side apart, and solves."""
    return "cpp" if device.type == "cpu" and not _compiled.MISSING else "torch"


def of_order(order: Order) -> str:
    """The backend that uses an order; "torch" and "cpp" share theirs."""
    return "triton" if order.joined else planner_of_sides(order.target.indices.device)


class Call(NamedTuple):
    """Which call is made, and which of its optional tensors are given."""

    name: str
    summed: bool
    phased: bool


class WholeCall:
    """A public call that is not replayed; on a GPU :func:`whole_call` gives one that may be."""

    def again(self) -> Tensor | None:
        """The result of a replay, if a call of this form was recorded."""
        return None

    def constant(self, tensor: Tensor) -> None:
        """Take note of a tensor that replays may read as it is now: tau, if it was given as a number."""

    def keep(self, result: Tensor) -> Tensor:
        """Record the call, which gave this result; within ``with``."""
        return result

    def __enter__(self) -> None:
        return None

    def __exit__(self, *error: object) -> None:
        return None


def whole_call(what: Call, tau: object, inputs: tuple[Any, ...], a: Tensor, b: Tensor, plan: Any) -> WholeCall:
    """A call of ``laplex.linear`` or ``laplex.gram`` that a GPU may replay: its launches, without checks and planning.

    The caller returns ``again()`` unless it is None, else computes the result within ``with`` and passes it to
    ``keep``. ``laplex._triton.replay`` says which calls are replayed.
    """
    if not (isinstance(a, Tensor) and isinstance(b, Tensor)) or not a.is_cuda:
        return WholeCall()
    if NO_TRITON or torch.compiler.is_compiling():
        return WholeCall()
    found: WholeCall | None = _replay().whole_call(what, tau, inputs, a, b, plan)
    return WholeCall() if found is None else found


@functools.cache
def _replay() -> Any:
    return importlib.import_module("laplex._triton.replay")


def tell_without_core(device: torch.device, numbers: int) -> None:
    """Warn, once a process, where work of some size runs on the CPU without the compiled core."""
    if torch.compiler.is_compiling() or not _compiled.MISSING:  # asked first: a graph is bound to no sizes
        return
    if device.type == "cpu" and numbers >= WORTH_A_WARNING:
        _warn_without_core()


@functools.cache
def _warn_without_core() -> None:
    warnings.warn(_checks.without_core(_compiled.MISSING), PerformanceWarning, stacklevel=4)
