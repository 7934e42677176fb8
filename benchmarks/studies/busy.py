"""What a busy machine does to small products: every parallel region waits for the scheduler.

    python -m benchmarks.studies.busy            writes benchmarks/results/busy-cpu.json

Medians in milliseconds, on a quiet machine and next to four processes that never rest; with torch's own `exp` of 40 000
numbers, which opens one region, for scale. Also what a plan costs on a quiet machine, for anchors in any order, in
order, and for b = a.
"""

import json
import multiprocessing
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import torch

import laplex
from benchmarks.report import conditions
from laplex.testing import Budget, interleave

OUT = Path(__file__).parents[1] / "results" / "busy-cpu.json"
OTHERS = 4


def rest_not() -> None:
    while True:
        pass


def median(call: Callable[[], object], seconds: float) -> float:
    """The median time of as many calls as fit, in milliseconds."""
    times = interleave({"": call}, budget=Budget(min_s=seconds, min_samples=5), cold=True)
    return round(1e3 * times[""].median, 4)


def products() -> dict[str, Callable[[], object]]:
    numbers = torch.randn(40_000)
    calls: dict[str, Callable[[], object]] = {"torch.exp of 40000 numbers": numbers.exp}
    for n in (10_000, 100_000):
        a, b, x = torch.randn(n), torch.randn(n), torch.randn(n)
        plan = laplex.Plan(a, b)
        calls[f"product, n = k = {n}"] = partial(laplex.linear, x, a, b, 0.5, plan=plan)
        calls[f"plan, n = k = {n}"] = partial(laplex.Plan, a, b)
    return calls


def plans(n: int = 1_000_000) -> dict[str, Callable[[], object]]:
    a, b = torch.randn(n), torch.randn(n)
    ordered, other = a.sort().values, b.sort().values
    return {
        "any order": lambda: laplex.Plan(a, b),
        "any order, b = a": lambda: laplex.Plan(a, a),
        "in order": lambda: laplex.Plan(ordered, other),
        "in order, b = a": lambda: laplex.Plan(ordered, ordered),
    }


def main() -> None:
    torch.manual_seed(0)
    results: dict[str, dict[str, float]] = {name: {"quiet": median(call, 2.0)} for name, call in products().items()}
    others = [multiprocessing.get_context("spawn").Process(target=rest_not, daemon=True) for _ in range(OTHERS)]
    for other in others:
        other.start()
    time.sleep(2.0)  # until all have started
    for name, call in products().items():
        results[name]["busy"] = median(call, 4.0)
    for other in others:
        other.kill()
        other.join()
    planning = {name: median(call, 2.0) for name, call in plans().items()}
    head = {**conditions("cpu"), "unit": "ms", "others": OTHERS}
    OUT.write_text(json.dumps(head | {"results": results, "plans of 10^6 anchors": planning}, indent=1) + "\n")
    for name, times in (results | {"plans of 10^6 anchors": planning}).items():
        print(name, "; ".join(f"{state} {value:g}" for state, value in times.items()))


if __name__ == "__main__":
    main()
