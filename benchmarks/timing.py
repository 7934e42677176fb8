"""Times that may be divided by each other: the sides take turns within one run, so that a slow spell hits them all."""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch

Call = Callable[[], object]

CACHE_BYTES = 256 << 20  # more than the second-level cache of any GPU


@dataclass(frozen=True)
class Budget:
    """How long a side is timed: until both minima are met, or `max_s` is spent."""

    min_s: float
    min_samples: int
    max_s: float
    turn_s: float  # a side's turn lasts this long, or one call where that is longer


@dataclass(frozen=True)
class Stats:
    """Seconds of one call: median, 20th and 80th percentile, over `samples` calls."""

    median: float
    p20: float
    p80: float
    samples: int

    @classmethod
    def of(cls, times: list[float]) -> "Stats":
        """The statistics of a list of seconds."""
        ordered = sorted(times)
        return cls(_quantile(ordered, 0.5), _quantile(ordered, 0.2), _quantile(ordered, 0.8), len(ordered))


def wall(call: Call, seconds: float, device: str) -> float:
    """Milliseconds a call, without waiting between calls: the smaller of two rounds of as many as fit into the time."""
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    call()
    wait()
    start = time.perf_counter()
    call()
    wait()
    count = max(1, min(200, int(seconds / (time.perf_counter() - start))))
    taken = []
    for _ in range(2):
        start = time.perf_counter()
        for _ in range(count):
            call()
        wait()
        taken.append((time.perf_counter() - start) / count * 1e3)
    return min(taken)


def interleave(calls: Mapping[str, Call], device: str, budget: Budget) -> dict[str, Stats]:
    """Time the calls in turns. An untimed call opens each turn: it finds the caches as the other side left them."""
    turn = _cuda_turn if device == "cuda" else _cpu_turn
    samples: dict[str, list[float]] = {name: [] for name in calls}
    unfinished = list(calls)
    while unfinished:
        for name in unfinished:
            calls[name]()
            samples[name] += turn(calls[name], budget.turn_s)
        unfinished = [name for name in unfinished if not _enough(samples[name], budget)]
    return {name: Stats.of(times) for name, times in samples.items()}


def _enough(times: list[float], budget: Budget) -> bool:
    spent = sum(times)
    return spent >= budget.max_s or (spent >= budget.min_s and len(times) >= budget.min_samples)


def _cpu_turn(call: Call, turn_s: float) -> list[float]:
    times: list[float] = []
    opened = time.perf_counter()
    while not times or time.perf_counter() - opened < turn_s:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return times


def _cuda_turn(call: Call, turn_s: float) -> list[float]:
    """Device time between events, from a cold cache; clearing it also keeps the device busy while Python launches."""
    cache = torch.empty(CACHE_BYTES, dtype=torch.int8, device="cuda")
    pairs: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []
    opened = time.perf_counter()
    while not pairs or time.perf_counter() - opened < turn_s:
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        cache.zero_()
        start.record()
        call()
        end.record()
        pairs.append((start, end))
        torch.cuda.synchronize()
    return [start.elapsed_time(end) / 1e3 for start, end in pairs]


def _quantile(ordered: list[float], q: float) -> float:
    """Linear between neighbours, as numpy's default."""
    place = q * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (place - low) * (ordered[high] - ordered[low])
