"""Training steps of ``laplex.nn.LaplexLinear`` against nn.Linear of the same shape, as modules with their optimizer.

    python -m benchmarks.studies.modules [--device cpu] [--threads 2] [--out FILE]

Wall milliseconds of forward and backward, and of the whole step with Adam; the least of several rounds, in each of
which both layers take their turn.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from benchmarks.report import conditions
from benchmarks.studies import wall
from laplex.nn import LaplexLinear

LAYERS = ((150_528, 1000, 1, 64), (768, 1000, 16, 128), (1280, 200, 16, 128), (384, 150, 8, 128), (4096, 4096, 1, 64))


def steps(layer: torch.nn.Module, x: Any, g: Any) -> dict[str, Callable[[], None]]:
    """Forward and backward, and the same with Adam."""
    optimizer = torch.optim.Adam(layer.parameters(), lr=1e-3, fused=True)

    def both() -> None:
        optimizer.zero_grad(set_to_none=True)
        layer(x).backward(g)

    def with_adam() -> None:
        both()
        optimizer.step()

    return {"forward + backward": both, "with Adam": with_adam}


def measure(sizes: tuple[int, int, int, int], device: str, rounds: int) -> dict[str, Any]:
    """The least milliseconds of each step of each layer."""
    k, n, rank, rows = sizes
    torch.manual_seed(0)
    x, g = torch.randn(rows, k, device=device), torch.randn(rows, n, device=device)
    layers = {"nn.Linear": torch.nn.Linear(k, n), "LaplexLinear": LaplexLinear(k, n, kernels=rank)}
    calls = {(name, step): call for name, each in layers.items() for step, call in steps(each.to(device), x, g).items()}
    least = dict.fromkeys(calls, float("inf"))
    for _ in range(rounds):
        for key, call in calls.items():
            least[key] = min(least[key], wall(call, 0.2, device))
    times = {step: {name: least[name, step] for name in layers} for step in ("forward + backward", "with Adam")}
    ratios = {step: each["LaplexLinear"] / each["nn.Linear"] for step, each in times.items()}
    return {"in": k, "out": n, "rank": rank, "rows": rows, "milliseconds": times, "ratio": ratios}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path, help="write the times as JSON to this file")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    rows = []
    for sizes in LAYERS:
        rows.append(measure(sizes, given.device, given.rounds))
        print(json.dumps(rows[-1]), flush=True)
    if given.out:
        head = {**conditions(given.device), "threads": given.threads}
        given.out.write_text(json.dumps({**head, "layers": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
