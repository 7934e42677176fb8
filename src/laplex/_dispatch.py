"""Which backend runs, for a device and sizes. ``laplex.backends`` tells users of it."""

from __future__ import annotations

import functools
import warnings

import torch

from laplex import _checks
from laplex._errors import PerformanceWarning
from laplex._scan import cpp as cpp_scan
from laplex._shapes import always
from laplex._triton.scan import launch as triton_scan

NAMES = ("torch", "cpp", "triton", "dense")

# Below these numbers of entries n * k the dense product is the faster (benchmarks/crossover.py). The compiled scan is
# never slower, whatever the size; the torch scan is many small calls, the triton scan several launches.
DENSE_BELOW = {"cpp": 0, "torch": 512 * 512, "triton": 1024 * 1024}

WORTH_A_WARNING = 1 << 16  # numbers to work through, from which on a missing core is felt


def choose(device: torch.device, n: int, k: int, backend: str | None) -> str:
    """The backend for a product of size n x k on a device, or the one asked for if it can run."""
    if backend is None:
        scan = planner(device)
        return "dense" if always(n * k < DENSE_BELOW[scan]) else scan
    if backend not in NAMES:
        raise ValueError(f"laplex: `backend` must be one of {', '.join(NAMES)} or None, got {backend!r}")
    if backend == "cpp":
        if cpp_scan.MISSING:
            raise RuntimeError(f"laplex: backend 'cpp' cannot run: {cpp_scan.MISSING}")
        if device.type != "cpu":
            raise RuntimeError(
                f"laplex: backend 'cpp' runs on the CPU, the tensors are on {device}; use backend='torch'"
            )
    if backend == "triton":
        if triton_scan.MISSING:
            raise RuntimeError(f"laplex: backend 'triton' cannot run: {triton_scan.MISSING}")
        if device.type != "cuda" and not triton_scan.interpreted():
            raise RuntimeError(
                f"laplex: backend 'triton' runs on CUDA, the tensors are on {device}; use backend='torch' or .cuda()"
            )
    return backend


def planner(device: torch.device) -> str:
    """The backend that sorts, and scans unless the matrix is small."""
    if device.type == "cuda" and not triton_scan.MISSING:
        return "triton"
    return planner_of_sides(device)


def planner_of_sides(device: torch.device) -> str:
    """The backend that sorts each side by itself."""
    return "cpp" if device.type == "cpu" and not cpp_scan.MISSING else "torch"


def tell_without_core(device: torch.device, numbers: int) -> None:
    """Warn, once a process, where work of some size runs on the CPU without the compiled core."""
    if torch.compiler.is_compiling() or not cpp_scan.MISSING:  # asked first: a graph is bound to no sizes
        return
    if device.type == "cpu" and numbers >= WORTH_A_WARNING:
        _warn_without_core()


@functools.cache
def _warn_without_core() -> None:
    warnings.warn(_checks.without_core(cpp_scan.MISSING), PerformanceWarning, stacklevel=4)
