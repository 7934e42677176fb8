"""The most memory of the host that a call holds, as Linux counts it."""

import ctypes
import gc
from collections.abc import Callable
from pathlib import Path

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
RESET_PEAK = "5"  # proc(5): sets the peak of the resident size to what it is now


def host_peak_bytes(call: Callable[[], object]) -> int:
    """The peak of resident memory during one call, beyond what was resident before it.

    What earlier calls left to the allocator is given back first, or it would be used again unseen. What the compiled
    core keeps from call to call is not.
    """
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's
    if trim is not None:
        trim(0)
    try:
        CLEAR.write_text(RESET_PEAK)
    except OSError as error:
        raise RuntimeError(f"peak memory of the host is read from Linux's /proc: {error}") from None
    before = _resident("VmRSS")
    call()
    return max(0, _resident("VmHWM") - before)


def _resident(name: str) -> int:
    line = next(line for line in STATUS.read_text().splitlines() if line.startswith(name))
    return int(line.split()[1]) * 1024
