"""Where the time of a forward and a backward goes: in the compiled core, or around it.

    python -m benchmarks.profile            writes benchmarks/results/profile-cpu.json

Plan kept; medians in microseconds. "forward" and "backward" (to x, a and b) take turns, as in training; "inference" is
the forward without gradients, by itself, which is what the suite divides by.
"""

import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

import laplex
from benchmarks.report import git, machine, versions
from laplex._scan import cpp

OUT = Path(__file__).parent / "results" / "profile-cpu.json"
SIZES = [(14, 1), (14, 8), (18, 1), (18, 8), (20, 1), (20, 8)]


def clocked(call: Callable[..., Any], spent: list[float]) -> Callable[..., Any]:
    """The call, which also notes how long it took."""

    def timed(*args: Any) -> Any:
        start = time.perf_counter()
        result = call(*args)
        spent.append(1e6 * (time.perf_counter() - start))
        return result

    return timed


def repeat(step: Callable[[], object], seconds: float) -> None:
    end, times = time.perf_counter() + seconds, 0
    while time.perf_counter() < end or times < 5:
        step()
        times += 1


def profile(exponent: int, batch: int) -> dict[str, float]:
    n = 1 << exponent
    a, b, x = (torch.randn(*lead, n, requires_grad=True) for lead in ((), (), (batch,)))
    plan, g = laplex.Plan(a, b), torch.randn(batch, n)
    spent: dict[str, list[float]] = {name: [] for name in ("inference", "forward", "backward", "scan", "row_dot")}
    forward = clocked(lambda: laplex.linear(x, a, b, 1.0, plan=plan), spent["forward"])
    backward = clocked(lambda y: torch.autograd.grad(y, (x, a, b), g), spent["backward"])
    core = cpp.core
    inside = {name: clocked(getattr(core, name), spent[name]) for name in ("scan", "row_dot")}
    cpp.core = SimpleNamespace(**inside)
    try:
        with torch.no_grad():
            repeat(clocked(lambda: laplex.linear(x, a, b, 1.0, plan=plan), spent["inference"]), 1.0)
        alone = spent["scan"].copy()
        spent["scan"].clear()
        repeat(lambda: backward(forward()), 2.0)
    finally:
        cpp.core = core
    parts = {name: spent[name] for name in ("inference", "forward", "backward")}
    parts |= {"core, inference": alone, "core, forward": spent["scan"][::2], "core, backward": spent["scan"][1::2]}
    return {name: round(statistics.median(times), 1) for name, times in (parts | {"row dot": spent["row_dot"]}).items()}


if __name__ == "__main__":
    torch.manual_seed(0)
    results = {f"2^{exponent}, B = {batch}": profile(exponent, batch) for exponent, batch in SIZES}
    head = {"machine": machine("cpu"), "versions": versions(), "git": git(), "unit": "us"}
    OUT.write_text(json.dumps(head | {"results": results}, indent=1) + "\n")
    for size, parts in results.items():
        print(size, "; ".join(f"{name} {value:g}" for name, value in parts.items()))
