"""Where one way becomes faster than another: the source of the CPU backends' thresholds.

    python -m benchmarks.studies.crossover            writes benchmarks/results/crossover-cpu.json
    python -m benchmarks.studies.crossover --gpu      writes crossover-gpu.json there, by `crossover_gpu`

Four sweeps, each of the median time of a whole call (dense, chunk) or of one with a kept plan (short axis):
    dense   n = k, B = 1: the dense backend against `cpp` and against `torch`
    short   n = 2^16, k = n / ratio, B = 8, both directions: only the short side sorted against both sides sorted
    chunk   n = k = 2^18: the `torch` backend by the size of its chunks
    moved   n = k, B = 1: a plan kept with the anchors it was built from, whose values are compared with those it keeps,
            against anchors that moved and kept their order (all doubled, tau too), which are gathered again
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import torch

import laplex
from benchmarks.report import conditions
from laplex import _backends
from laplex._scan import cpp
from laplex._scan import torch as torch_scan
from laplex._scan.order import Matrix
from laplex.testing import Budget, interleave

OUT = Path(__file__).parents[1] / "results" / "crossover-cpu.json"


def medians(calls: dict[str, Callable[[], object]], seconds: float = 0.5) -> dict[str, float]:
    """Median seconds of each call, taken in turns."""
    for call in calls.values():
        call()
    times = interleave(calls, budget=Budget(min_s=seconds, min_samples=5, turn_s=0.0), cold=True)
    return {name: each.median for name, each in times.items()}


def dense(n: int) -> dict[str, float]:
    a, b, x = torch.randn(n), torch.randn(n), torch.randn(1, n)
    return medians({way: lambda way=way: laplex.linear(x, a, b, backend=way) for way in ("dense", "cpp", "torch")})


def short_axis(ratio: int, forward: bool) -> dict[str, float]:
    n = 1 << 16
    a, b, tau = torch.randn(1, n), torch.randn(1, n // ratio), torch.ones(1, dtype=torch.float64)
    calls = {}
    for layout in ("merged", "short_cols"):
        matrix = Matrix(a, b, tau, cpp.order(a, b, layout), _backends.load("cpp", "cpu"))
        matrix = matrix if forward else matrix.mT
        x = torch.randn(1, 8, matrix.source.shape[1])
        calls[layout] = lambda x=x, matrix=matrix: cpp.scan(x, matrix, odd=False)
    return medians(calls)


def chunk(size: int) -> float:
    a, b, x = torch.randn(1 << 18), torch.randn(1 << 18), torch.randn(1, 1 << 18)
    plan, committed = laplex.Plan(a, b), torch_scan.CHUNK
    torch_scan.CHUNK = size
    try:
        return medians({"torch": lambda: laplex.linear(x, a, b, plan=plan, backend="torch")}, 1.0)["torch"]
    finally:
        torch_scan.CHUNK = committed


def moved(n: int) -> dict[str, float]:
    a, b, x = torch.randn(n), torch.randn(n), torch.randn(1, n)
    plan, two_a, two_b = laplex.Plan(a, b), 2 * a, 2 * b
    return medians(
        {
            "compared": lambda: laplex.linear(x, a, b, 1.0, plan=plan),
            "gathered": lambda: laplex.linear(x, two_a, two_b, 2.0, plan=plan),
        }
    )


def on_cpu() -> None:
    results = {
        **conditions("cpu"),
        "dense": {n: dense(n) for n in (4, 8, 16, 24, 32, 64, 128, 256, 384, 512, 768)},
        "short to long": {ratio: short_axis(ratio, True) for ratio in (2, 4, 8, 16, 32)},
        "long to short": {ratio: short_axis(ratio, False) for ratio in (2, 4, 8, 16, 32)},
        "chunk": {size: chunk(size) for size in (8, 16, 32, 64, 128)},
        "moved": {n: moved(n) for n in (1 << 14, 1 << 18, 1 << 20)},
    }
    OUT.write_text(json.dumps(results, indent=1) + "\n")
    for sweep in ("dense", "short to long", "long to short", "chunk", "moved"):
        print(sweep)
        for point, times in results[sweep].items():
            row = times if isinstance(times, dict) else {"torch": times}
            print(f"  {point:>5}  " + "  ".join(f"{name} {1e6 * value:9.1f} us" for name, value in row.items()))


if __name__ == "__main__":
    torch.manual_seed(0)
    if "--gpu" in sys.argv[1:]:
        from benchmarks.studies import crossover_gpu

        crossover_gpu.main(sys.argv[1:])
    else:
        on_cpu()
