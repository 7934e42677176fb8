"""The machine and the versions that a figure depends on. torch is imported where it is used: help does without."""

import os
import platform
import re
from pathlib import Path

from laplex._version import __version__


def describe(device: str) -> dict[str, str | int | None]:
    """What runs here; with the name of the GPU where the device is one."""
    import numpy
    import torch

    about: dict[str, str | int | None] = {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "laplex": __version__,
        "device": device,
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "system": f"{platform.system()} {platform.machine()}",
    }
    if torch.device(device).type == "cuda":
        about["gpu"] = torch.cuda.get_device_name(device)
    return about


def busy() -> str:
    """A warning if others use the machine; else nothing."""
    load, cores = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0, os.cpu_count() or 1
    return f"The machine is busy (load {load:.1f} on {cores} cores): times are noisy." if load > 0.5 * cores else ""


def refuse_device(name: str) -> None:
    """Raise ValueError where torch has no such device."""
    kind, _, index = name.partition(":")
    if kind not in ("cpu", "cuda") or not (index or "0").isdecimal():
        raise ValueError(f"--device must be cpu, cuda or cuda:INDEX, got {name!r}")
    import torch

    if kind == "cuda" and int(index or 0) >= torch.cuda.device_count():
        raise ValueError(f"--device {name}: torch sees {torch.cuda.device_count()} CUDA devices here")


def refuse_seed(seed: int) -> None:
    """Raise ValueError where a seed is negative or too large for a generator of torch."""
    from laplex._checks.counts import MOST_SEED

    if not 0 <= seed <= MOST_SEED:
        raise ValueError(f"--seed must be a whole number from 0 to 2^63 - 1, got {seed}")


def _cpu() -> str:
    """From /proc/cpuinfo where there is one, because platform.processor() says nothing on Linux."""
    cpuinfo = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*:\s*(.+)", cpuinfo.read_text()) if cpuinfo.exists() else None
    return found[1].strip() if found else platform.processor() or platform.machine()
