"""A layer that forms its matrix on the CPU against nn.Linear: what forming and its pullback add to torch's products.

    python -m benchmarks.studies.formed_cpu [--out FILE] [--seconds S] [--threads T]

The layer is y = x W^T with W = sum over q of w_q K_q, r = 16, float32, 128 rows of x. Forward and backward, with the
gradients of x, the anchors, the weights and tau. Each time is the minimum over calls taken in turns. Anchors have a
standard deviation of 2.5 tau, as in a new layer, and in the rows "wide" of 25 and 250 tau.
"""

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

import laplex
from benchmarks.report import conditions
from laplex._formed import cpp
from laplex._formed.kernels import Kernels, Needs

ROWS, KERNELS = 128, 16
SIZES = ((768, 1000), (1280, 200))  # in, out
DEVIATIONS = {"layer": 2.5, "wide, 25 tau": 25.0, "wide, 250 tau": 250.0}


def minima(calls: dict[str, Callable[[], object]], seconds: float) -> dict[str, float]:
    """The least milliseconds of each call; the calls take turns."""
    least = dict.fromkeys(calls, float("inf"))
    for call in calls.values():
        call()
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            least[name] = min(least[name], 1e3 * (time.perf_counter() - start))
    return least


def measure(k: int, n: int, deviation: float, seconds: float) -> dict[str, float]:
    """Milliseconds of nn.Linear and of the layer, forward + backward, and of forming and its pullback alone."""
    x, y_bar, linear = torch.randn(ROWS, k, requires_grad=True), torch.randn(ROWS, n), nn.Linear(k, n, bias=False)
    target, source = (deviation * torch.randn(KERNELS, size) for size in (n, k))
    tau, weight, g = torch.ones(KERNELS), torch.randn(KERNELS), torch.randn(n, k)
    kernels = Kernels(target, source, tau, weight, None, None, KERNELS)
    leaves = [x, *(value.clone().requires_grad_() for value in (target, source, tau, weight))]
    return minima(
        {
            "linear": lambda: torch.autograd.grad(linear(x), [x, linear.weight], y_bar),
            "laplex": lambda: torch.autograd.grad(laplex.linear(*leaves[:4], weight=leaves[4]), leaves, y_bar),
            "form": lambda: cpp.form(kernels, torch.float32),
            "pull": lambda: cpp.pull(g, kernels, Needs(True, True, True, False)),
        },
        seconds,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="A layer that forms its matrix on the CPU, compared with nn.Linear.")
    parser.add_argument("--out", type=Path, help="write the times as JSON to this file")
    parser.add_argument("--seconds", type=float, default=5.0, help="for each row (5)")
    parser.add_argument("--threads", type=int, default=2, help="of torch and of the compiled core (2)")
    options = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(options.threads)
    rows = []
    for name, deviation in DEVIATIONS.items():
        for k, n in SIZES:
            times = measure(k, n, deviation, options.seconds)
            rows.append({"name": name, "in": k, "out": n, "kernels": KERNELS, "rows": ROWS, "ms": times})
            print(f"{name:14} {k:5} -> {n:<5} " + "  ".join(f"{way} {ms:6.2f} ms" for way, ms in times.items()), end="")
            print(f"  laplex / linear {times['laplex'] / times['linear']:.2f}")
    if options.out:
        head = {**conditions("cpu"), "threads": options.threads}
        options.out.write_text(json.dumps({**head, "results": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
