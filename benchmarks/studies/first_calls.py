"""How long the first calls of many sizes take on a GPU, where they compile programs.

    python -m benchmarks.studies.first_calls [--out DIR]     200 random sizes, empty cache; writes first-calls.json
    python -m benchmarks.studies.first_calls --count         counts the programs of these sizes, without a GPU

Sizes n and k are uniform in 1 ... 20 000, x has 1 or 8 rows, in float32, without gradients. Each measurement runs in
its own process with its own cache directory: "cold" are the first calls alone, "warmed up" the same calls after
`laplex.backends.warm_up`. Times are wall time, until the work on the device is done.
"""

from __future__ import annotations

import argparse
import collections
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import laplex
from benchmarks.report import conditions
from laplex._triton import launch, warm_up

OUT = Path(__file__).parents[1] / "results"
CALLS, LARGEST, ROWS, TAU = 200, 20_000, (1, 8), 0.5


def calls() -> list[tuple[int, int, int]]:
    """n, k and rows of x."""
    draw = random.Random(0)
    return [(draw.randint(1, LARGEST), draw.randint(1, LARGEST), draw.choice(ROWS)) for _ in range(CALLS)]


def count() -> None:
    """Print how many programs the calls need on a Hopper GPU, by name and flags."""
    launch.can_start_early = lambda device: True
    device, variants = torch.device("cuda", 0), collections.Counter()
    for n, k, rows in calls():
        variants.update(warm_up.survey(device, warm_up.Request(torch.float32, rows), [(n, k)]).keys())
    for name, number in collections.Counter(variant.program.__name__ for variant in variants).most_common():
        print(f"{number:4d}  {name}")
        for variant, times in variants.most_common():
            if variant.program.__name__ == name:
                print(f"      {times:4d} calls, {variant.warps} warps, {' '.join(map(repr, variant.flags))}")
    print(f"{len(variants):4d}  in all, for {CALLS} calls")


def measured(warmed: bool) -> dict[str, Any]:
    """Measure in this process, whose cache is empty."""
    torch.zeros(1, device="cuda")  # CUDA's own start-up should not count
    figures: dict[str, Any] = {}
    if warmed:
        start = time.perf_counter()
        figures["warm_up programs"] = laplex.backends.warm_up(rows=ROWS, points=2 * LARGEST)
        figures["warm_up s"] = round(time.perf_counter() - start, 2)
    before, times = len(launch.compiled), []
    for n, k, rows in calls():
        x, a, b = torch.randn(rows, k, device="cuda"), torch.randn(n, device="cuda"), torch.randn(k, device="cuda")
        torch.cuda.synchronize()
        start = time.perf_counter()
        laplex.linear(x, a, b, TAU)
        torch.cuda.synchronize()
        times.append((time.perf_counter() - start, (n, k, rows)))
    longest, sizes = max(times)
    figures |= {"total s": round(sum(taken for taken, _ in times), 2), "longest s": round(longest, 3)}
    figures |= {"longest n, k, rows": sizes, "programs compiled": len(launch.compiled) - before}
    slowest = sorted(times, reverse=True)[:10]
    return figures | {"slowest": [{"s": round(taken, 3), "n, k, rows": sizes} for taken, sizes in slowest]}


def in_a_process(mode: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "benchmarks.studies.first_calls", "--measure", mode]
        environment = os.environ | {"TRITON_CACHE_DIR": folder}
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    figures: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", action="store_true", help="count programs; needs no GPU")
    parser.add_argument("--out", type=Path, default=OUT, help="where first-calls.json goes")
    parser.add_argument("--measure", choices=["cold", "warmed up"], help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.count:
        count()
    elif given.measure:
        print(json.dumps(measured(given.measure == "warmed up")))
    else:
        head = {**conditions("cuda"), "calls": CALLS}
        results = {mode: in_a_process(mode) for mode in ("cold", "warmed up")}
        given.out.mkdir(parents=True, exist_ok=True)
        (given.out / "first-calls.json").write_text(json.dumps(head | results, indent=1) + "\n")
        print(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
