"""Times and memory of calls. Calls that are compared take turns, so that a slow spell of the machine hits them alike.

A turn is as many calls as take ten milliseconds, one after the other without waiting, as a program makes them: on a
GPU a short call therefore costs what its launches cost. The paper times in the same way.
"""

from __future__ import annotations

import gc
import os
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

import torch

TURN, MOST_CALLS = 0.01, 500  # seconds and calls of a turn
FEWEST = 3  # turns of each call
STAT = Path("/proc/stat")  # proc(5): time of all cores by what they did, in ticks

Key = TypeVar("Key")


def interleaved(calls: Mapping[Key, Callable[[], object]], device: str, seconds: float) -> dict[Key, dict[str, float]]:
    """Seconds of each call: the median and the range from the 20th to the 80th percentile, over all turns.

    Args:
        calls: each was called before, so that nothing is compiled now.
        device: "cpu" or "cuda".
        seconds: for all of them together, at least; each has three turns in any case.
    """
    turn = _cuda_turn if torch.device(device).type == "cuda" else _cpu_turn
    counts = {key: max(1, min(MOST_CALLS, round(TURN / max(turn(call, 1), 1e-9)))) for key, call in calls.items()}
    samples: dict[Key, list[float]] = {key: [] for key in calls}
    end = time.perf_counter() + seconds
    rounds = 0
    while rounds < FEWEST or time.perf_counter() < end:
        for key, call in calls.items():
            samples[key].append(turn(call, counts[key]))
        rounds += 1
    return {key: _summary(found) for key, found in samples.items()}


def peak_bytes(make: Callable[[], Callable[[], object]], inputs: int, device: str) -> int | None:
    """The most device memory that a call takes while it is made and run once; None on a CPU.

    Args:
        make: makes the call.
        inputs: the bytes of its inputs, which are there before and are counted. What else is there before is not: other
            calls that are kept, and work spaces of libraries.
        device: "cpu" or "cuda".
    """
    if torch.device(device).type != "cuda":
        return None
    gc.collect()
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    make()()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before + inputs


class Others:
    """The part of all cores that other processes use from now on: with much of it, times mean little."""

    def __init__(self) -> None:
        self._began = _clocks()

    def share(self) -> float | None:
        """From 0 to 1, so far; None on systems without /proc/stat."""
        if self._began is None or (now := _clocks()) is None:
            return None
        wall, busy, own = (after - before for after, before in zip(now, self._began, strict=True))
        return round(max(0.0, busy - own) / (wall * (os.cpu_count() or 1)), 3)


def _clocks() -> tuple[float, float, float] | None:
    """Seconds: of the wall clock, of all cores at work, and of this process on them."""
    try:
        first = STAT.read_text().splitlines()[0].split()
    except OSError:
        return None
    user, nice, system, _, _, *interrupts = (int(one) for one in first[1:9])
    ticks = user + nice + system + sum(interrupts)
    return time.perf_counter(), ticks / os.sysconf("SC_CLK_TCK"), time.process_time()


def _summary(samples: list[float]) -> dict[str, float]:
    fifths = statistics.quantiles(samples, n=5, method="inclusive")
    return {"seconds": statistics.median(samples), "p20": fifths[0], "p80": fifths[3], "turns": len(samples)}


def _cpu_turn(call: Callable[[], object], count: int) -> float:
    start = time.perf_counter()
    for _ in range(count):
        call()
    return (time.perf_counter() - start) / count


def _cuda_turn(call: Callable[[], object], count: int) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    start.record()
    for _ in range(count):
        call()
    end.record()
    torch.cuda.synchronize()
    return float(start.elapsed_time(end)) / 1e3 / count
