"""The machine and the versions that a figure depends on. torch is imported where it is used: help does without."""

import os
import platform
import re
import subprocess
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


def commit() -> str | None:
    """The commit of the checkout that laplex is imported from, with "+" if it was changed; None outside one."""
    package = Path(__file__).parents[1]
    # A package that is installed inside somebody else's checkout is not part of it: git does not track its files.
    if _git(package, "ls-files", "--error-unmatch", "__init__.py") is None:
        return None
    head, changes = _git(package, "rev-parse", "HEAD"), _git(package, "status", "--porcelain", "--", ".")
    return None if head is None else head + ("+" if changes else "")


def _git(folder: Path, *arguments: str) -> str | None:
    """What git prints, or None where it is missing or fails."""
    try:
        done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _cpu() -> str:
    """From /proc/cpuinfo where there is one, because platform.processor() says nothing on Linux."""
    cpuinfo = Path("/proc/cpuinfo")
    found = re.search(r"model name\s*:\s*(.+)", cpuinfo.read_text()) if cpuinfo.exists() else None
    return found[1].strip() if found else platform.processor() or platform.machine()
