"""The machine, the versions and the commit that a measurement depends on, and whether others use the machine."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import time
from pathlib import Path

import numpy
import torch

from laplex._version import __version__

STAT = Path("/proc/stat")  # proc(5): the time of all cores, by what they did, in ticks


def describe(device: torch.device | str = "cpu") -> dict[str, str | int | None]:
    """The results of :func:`versions` and :func:`machine`, together.

    >>> from laplex import testing
    >>> print(testing.describe()["torch"] == torch.__version__)
    True
    """
    return {**versions(), **machine(device)}


def versions() -> dict[str, str]:
    """The versions that a measurement depends on."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "laplex": __version__,
    }


def machine(device: torch.device | str = "cpu") -> dict[str, str | int | None]:
    """The hardware and system, with the name of the GPU if the device is one."""
    described: dict[str, str | int | None] = {
        "device": str(device),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "torch_threads": torch.get_num_threads(),
        "system": f"{platform.system()} {platform.machine()}",
    }
    if torch.device(device).type == "cuda":
        described["gpu"] = torch.cuda.get_device_name(device)
    return described


def commit(*paths: str) -> str | None:
    """The commit of the checkout that laplex is imported from, with "+" if it was changed; None outside a checkout.

    Args:
        paths: git pathspecs of the files whose changes count, relative to the package; by default those of laplex.
    """
    package = Path(__file__).parents[1]
    # A package installed inside someone else's checkout is not part of it: git does not track its files.
    if _git(package, "ls-files", "--error-unmatch", "__init__.py") is None:
        return None
    head, changes = _git(package, "rev-parse", "HEAD"), _git(package, "status", "--porcelain", "--", *(paths or ("",)))
    return None if head is None else head + ("+" if changes else "")


def load() -> float | None:
    """The number of processes that wanted to run, averaged over a minute; None on systems that do not count them."""
    return os.getloadavg()[0] if hasattr(os, "getloadavg") else None


def busy(before: float | None = None) -> str:
    """A warning if others use the machine, judged by :func:`load` now or ``before``; otherwise an empty string."""
    measured, cores = before if before is not None else load(), os.cpu_count() or 1
    if measured is None or measured <= 0.5 * cores:
        return ""
    return f"The machine is busy (load {measured:.1f} on {cores} cores): times are noisy."


class OtherProcesses:
    """Measure the share of all cores that other processes use from now on: if it is large, times mean little."""

    def __init__(self) -> None:
        self._began = _clocks()

    def share(self) -> float | None:
        """The share so far, from 0 to 1; None on systems without /proc/stat."""
        if self._began is None or (now := _clocks()) is None:
            return None
        wall, working, own = (after - before for after, before in zip(now, self._began, strict=True))
        return round(max(0.0, working - own) / (wall * (os.cpu_count() or 1)), 3)


def _clocks() -> tuple[float, float, float] | None:
    """Seconds of the wall clock, of work on all cores, and of this process on them."""
    try:
        first = STAT.read_text().splitlines()[0].split()
    except OSError:
        return None
    user, nice, system, _, _, *interrupts = (int(ticks) for ticks in first[1:9])
    ticks = user + nice + system + sum(interrupts)
    return time.perf_counter(), ticks / os.sysconf("SC_CLK_TCK"), time.process_time()


def _git(folder: Path, *arguments: str) -> str | None:
    """What git prints, or None if it is missing or fails."""
    try:
        done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def _cpu() -> str:
    """The CPU's name, from /proc/cpuinfo if there is one, because platform.processor() says nothing on Linux."""
    cpuinfo = Path("/proc/cpuinfo")
    match = re.search(r"model name\s*:\s*(.+)", cpuinfo.read_text()) if cpuinfo.exists() else None
    return match[1].strip() if match else platform.processor() or platform.machine()
