"""What can run here, what would run, and why.

    torch    any device: plain torch, chunked
    cpp      CPU: the compiled core
    triton   CUDA: kernels in Triton
    dense    any device: every pair of anchors; the fastest for small matrices

The device and the sizes choose; ``backend=`` overrides; a request that cannot be met raises and says why.
"""

from __future__ import annotations

import torch
from torch import Tensor

from laplex import _checks
from laplex._kernels import cpp_scan, triton_scan
from laplex._shapes import always

NAMES = ("torch", "cpp", "triton", "dense")

# Below these numbers of entries n * k the dense product is the faster (benchmarks/crossover.py). The compiled scan is
# never slower, whatever the size; the torch scan is many small calls, the triton scan several launches.
DENSE_BELOW = {"cpp": 0, "torch": 512 * 512, "triton": 1024 * 1024}


def available() -> dict[str, str]:
    """Each backend's name, and "yes" or what is missing and what to do."""
    return {
        "torch": "yes",
        "cpp": cpp_scan.MISSING or "yes",
        "triton": triton_scan.MISSING or _no_gpu() or "yes",
        "dense": "yes",
    }


def _no_gpu() -> str:
    if torch.cuda.is_available() or triton_scan.interpreted():
        return ""
    return "torch sees no CUDA device"


def which(x: Tensor, a: Tensor, b: Tensor, *, backend: str | None = None) -> str:
    """The backend that ``laplex.linear(x, a, b, backend=backend)`` would run."""
    for name, tensor in (("x", x), ("a", a), ("b", b)):
        _checks.is_tensor("laplex.backends.which", name, tensor)
    return choose(x.device, a.shape[-1], b.shape[-1], backend)


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
