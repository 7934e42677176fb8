"""Times whose ratios are meaningful: the calls take turns, so that a slow spell of the machine hits them all."""

from __future__ import annotations

import ctypes
import gc
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch

CACHE_BYTES = 256 << 20  # more than the second-level cache of any GPU
MOST_CALLS = 500  # calls in a turn
STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")
RESET_PEAK = "5"  # proc(5): sets the peak of the resident size to what it is now

Call = Callable[[], object]
Key = TypeVar("Key")


@dataclass(frozen=True)
class Budget:
    """How long each call is timed, in seconds: until both minima are met, or ``max_s`` is spent."""

    min_s: float = 1.0
    min_samples: int = 3
    max_s: float = float("inf")
    turn_s: float = 0.01  # a turn lasts this long, or one call if that takes longer


@dataclass(frozen=True)
class Times:
    """Seconds per call: median, 20th and 80th percentile, over ``samples``."""

    median: float
    p20: float
    p80: float
    samples: int

    @classmethod
    def summary(cls, times: list[float]) -> Times:
        """The statistics of a list of seconds."""
        fifths = statistics.quantiles(times, n=5, method="inclusive") if len(times) > 1 else times * 4
        return cls(statistics.median(times), fifths[0], fifths[3], len(times))


def interleave(
    calls: Mapping[Key, Call], device: torch.device | str = "cpu", budget: Budget | None = None, *, cold: bool = False
) -> dict[Key, Times]:
    """Time calls in turns.

    A turn is as many calls as fit into it, one after another without waiting, as a program makes them; their mean is
    one sample. On a GPU a short call therefore costs what its launches cost.

    Args:
        calls: the calls by name. Each must have been called before, so that nothing is compiled now.
        device: where they run.
        budget: how long each is timed.
        cold: every call is a sample of its own. An untimed call opens each turn, and finds the caches as the other
            calls left them; on a GPU every timed call finds its cache empty, and the time is that of the device.
    """
    budget = budget or Budget()
    on_gpu = torch.device(device).type == "cuda"
    counts = {key: 1 if cold else _calls_per_turn(call, on_gpu, budget.turn_s) for key, call in calls.items()}
    samples: dict[Key, list[float]] = {key: [] for key in calls}
    spent = dict.fromkeys(calls, 0.0)
    unfinished = list(calls)
    while unfinished:
        for key in unfinished:
            call, count = calls[key], counts[key]
            times = _cold_turn(call, on_gpu, budget.turn_s) if cold else [_mean(call, count, on_gpu)]
            samples[key] += times
            spent[key] += sum(times) * count
        unfinished = [key for key in unfinished if not _enough(spent[key], len(samples[key]), budget)]
    return {key: Times.summary(times) for key, times in samples.items()}


def peak_bytes(call: Call, device: torch.device | str = "cpu") -> int:
    """The most memory that one call takes, beyond what was allocated before it.

    On the host this is resident memory, as Linux counts it. Memory that earlier calls left with the allocator is given
    back first, or it would be reused unnoticed; memory that the compiled core keeps between calls is not.
    """
    gc.collect()
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        call()
        torch.cuda.synchronize()
        return torch.cuda.max_memory_allocated() - before
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # only in glibc
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


def _enough(spent: float, samples: int, budget: Budget) -> bool:
    return spent >= budget.max_s or (spent >= budget.min_s and samples >= budget.min_samples)


def _calls_per_turn(call: Call, on_gpu: bool, turn_s: float) -> int:
    return max(1, min(MOST_CALLS, round(turn_s / max(_mean(call, 1, on_gpu), 1e-9))))


def _cold_turn(call: Call, on_gpu: bool, turn_s: float) -> list[float]:
    cache = torch.empty(CACHE_BYTES, dtype=torch.int8, device="cuda") if on_gpu else None
    call()
    times: list[float] = []
    opened = time.perf_counter()
    while not times or time.perf_counter() - opened < turn_s:
        times.append(_mean(call, 1, on_gpu, cache))
    return times


def _mean(call: Call, count: int, on_gpu: bool, cache: torch.Tensor | None = None) -> float:
    """Seconds per call. Clearing the cache also keeps the device busy while Python launches."""
    if not on_gpu:
        began = time.perf_counter()
        for _ in range(count):
            call()
        return (time.perf_counter() - began) / count
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    if cache is None:
        torch.cuda.synchronize()
    else:
        cache.zero_()
    start.record()
    for _ in range(count):
        call()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) / 1e3 / count
