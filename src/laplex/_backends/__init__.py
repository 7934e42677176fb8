"""The table of backends: what each can do, which of them can run here, and which one a call gets.

Every backend has one module with one table, :class:`Backend`. The rest of the package asks the table and never compares
names. This package is the only one outside ``_triton`` that imports from it, and only when a GPU is used.
"""

from __future__ import annotations

import functools
import importlib.util
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.autograd import forward_ad

from laplex import _checks, _compiled
from laplex._backends.cost import Work
from laplex._backends.cost import cheapest as cheapest
from laplex._eager import always, exporting
from laplex._errors import PerformanceWarning, warn
from laplex._scan.order import Order, layout_of_sides

F = TypeVar("F", bound=Callable[..., Tensor])
NAMES = ("torch", "cpp", "triton", "dense", "formed")
NO_TRITON = "" if importlib.util.find_spec("triton") else "Triton is not installed; it comes with torch's CUDA builds"
WORTH_A_WARNING = 1 << 16  # numbers in a call; with fewer, no one notices that the compiled core is missing


class Backend(NamedTuple):
    """What a backend can do. ``Matrix`` and ``Order`` come from ``laplex._scan.order``."""

    name: str
    scan: Callable[..., tuple[Tensor, Tensor]]  # x, matrix, odd=, degree= -> E x, S x
    pullback: Callable[..., tuple[Tensor, Tensor, Tensor, Tensor]]  # g, x, odd_x, matrix, to_tau= -> the gradients
    gram: ModuleType  # assemble and pull: the n x n part of Gram matrices
    layout: Callable[[int, int], str] = layout_of_sides  # n, k -> the layout of its orders
    order: Callable[[Tensor, Tensor, str], Order] | None = None  # a (*H, n), b (*H, k), layout; None: needs none
    update: Callable[[Tensor, Tensor, Order], Order] | None = None  # a, b, the order before they moved; None: sort
    look: Callable[[Tensor, Tensor], str] | None = None  # a, b to plan -> their layout; raises if not finite
    complete: Callable[[Order, int, int], Order] | None = None  # an order to keep, n, k -> one with more, to save time
    solver: ModuleType | None = None  # factors and sweeps of quasiseparable matrices
    form: ModuleType | None = None  # form, matmul and pull: linear then forms the matrix
    phased: ModuleType | None = None  # product and pullback with phases, fused; None: composed of scans
    fused_gram: ModuleType | None = None  # gram and pullback that make nothing else as long as the columns
    step: Callable[..., Any] | None = None  # settings, inputs -> a layer's forward and backward in one piece, or None
    states: ModuleType | None = None  # Gaussian processes with few states; on the CPU laplex._states has its own
    sorted: ModuleType | None = None  # soft ranks, sorts and masks in one piece; None: composed of scans
    ties: Callable[..., Tensor] | None = None  # x, matrix -> T x, if not all sources are here; None: they are
    centre: Callable[..., Tensor] | None = None  # matrix -> a point among all anchors, not only those here
    ahead: ModuleType | None = None  # compiles programs before they are needed
    dense_below: int = 0  # below this many entries n * k the dense product is faster: benchmarks/studies/crossover.py
    reads_half: bool = False  # takes float16 and bfloat16 operands as they are
    writes_columns: bool = False  # writes results with adjacent rows if the operand has them
    raises: bool = True  # whether faulty values raise; otherwise the result is NaN
    joins: bool = False  # its orders join both sides in one sequence
    takes_tail: bool = False  # scan and pullback take x of the last sources separately, as tail=, if sides are merged


_loaded: dict[tuple[str, str], Backend] = {}


def load(name: str, device: str) -> Backend:
    """The table of the backend with this name, for tensors on this type of device."""
    if torch.compiler.is_compiling():  # a graph that depends on the dictionary would be retraced when it changes
        return _load(name, device)
    table = _loaded.get((name, device))
    if table is None:
        table = _loaded[name, device] = _load(name, device)
    return table


def _load(name: str, device: str) -> Backend:
    """Import a backend's table: here, because it imports much, and torch.compile follows only import statements."""
    if name == "triton" or (device == "cuda" and not NO_TRITON and name in ("dense", "formed")):
        from laplex._triton.backend import TABLES as tables
    else:
        from laplex._backends.tables import TABLES as tables
    if name == "formed" and device == "cpu" and not _compiled.MISSING:
        return tables["formed by cpp"]
    return tables[name]


def choose(device: torch.device, n: int, k: int, backend: str | None, work: Work | None = None) -> Backend:
    """The backend for a product of size n x k on a device, or the requested one if it can run.

    Given ``work``, it is the cheapest way to do it, as ``cost`` estimates. Transforms and forward mode take the scan,
    which has all derivatives.
    """
    if backend is None:
        table = load(planner(device), device.type)
        if work is not None and _by_cost(table.name):
            return load(cheapest_backend(work, device), device.type)
        return load("dense", device.type) if always(n * k < table.dense_below) else table
    if backend not in NAMES:
        raise ValueError(f"laplex: `backend` must be one of {', '.join(NAMES)} or None, got {backend!r}")
    why = refusal(backend, device)
    if why:
        raise RuntimeError(f"laplex: backend '{backend}' {why}")
    return load(backend, device.type)


def cheapest_backend(work: Work, device: torch.device) -> str:
    """The backend of the way that takes the least time, as ``cost`` estimates."""
    return "formed" if cheapest(work, device.type) == "formed" else planner(device)


def _by_cost(scan: str) -> bool:
    """Whether costs are known for this backend's scan, and no derivative is needed that only the scan has."""
    if torch.compiler.is_compiling():
        return not exporting() and scan in ("cpp", "triton")
    if torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0:
        return False
    return scan in ("cpp", "triton")


def refusal(backend: str, device: torch.device) -> str:
    """Why a backend cannot run on a device; empty if it can."""
    if missing(backend):
        return f"cannot run: {missing(backend)}"
    if backend == "cpp" and device.type != "cpu":
        return f"runs on the CPU, the tensors are on {device}; use backend='torch'"
    if backend == "triton" and device.type != "cuda" and not interpreted():
        return f"runs on CUDA, the tensors are on {device}; use backend='torch' or .cuda()"
    return ""


def missing(backend: str) -> str:
    """What a backend lacks on this machine; empty if nothing."""
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
    """The backend that sorts each side separately, and solves."""
    return "cpp" if device.type == "cpu" and not _compiled.MISSING else "torch"


def order_backend(order: Order) -> str:
    """The backend that uses an order; "torch" and "cpp" share theirs."""
    return "triton" if order.joined else planner_of_sides(order.target.indices.device)


def replayable(function: F) -> F:
    """A decorator for ``linear`` and ``gram``: on CUDA, a call of a known form repeats the launches of an earlier one.

    That skips checks and planning. ``laplex._triton.replay`` says which calls qualify; all others run as usual.
    """

    @functools.wraps(function)
    def call(*args: Any, **options: Any) -> Tensor:
        if torch.compiler.is_compiling() or not args or not isinstance(args[0], Tensor) or not args[0].is_cuda:
            return function(*args, **options)
        if NO_TRITON:
            return function(*args, **options)
        result: Tensor = _replay().repeated(function, args, options)
        return result

    return call  # type: ignore[return-value]


@functools.cache
def _replay() -> Any:
    return importlib.import_module("laplex._triton.replay")


def tell_without_core(device: torch.device, numbers: int) -> None:
    """Warn, once per process, if a sizeable call runs on the CPU without the compiled core."""
    if torch.compiler.is_compiling() or not _compiled.MISSING:  # tested first, so that a graph does not depend on sizes
        return
    if device.type == "cpu" and numbers >= WORTH_A_WARNING:
        _warn_without_core()


@functools.cache
def _warn_without_core() -> None:
    warn(_checks.without_core(_compiled.MISSING), PerformanceWarning)
