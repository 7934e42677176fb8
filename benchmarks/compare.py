"""Two versions of laplex beside each other: what a change of the code did to the time of calls.

    python -m benchmarks.compare --before SRC [--device cpu|cuda] [--rounds N] [--out DIR]    writes compare-DEVICE.json

SRC is the ``src`` folder of another checkout. Processes with either version take turns, ``--rounds`` of each. A figure
is the smallest median of its rounds: what disturbs a machine makes calls slower, never faster. On the CPU
``--cores BEFORE AFTER`` names the files of the two compiled cores (``_core*.so``).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import laplex
from benchmarks.report import git, machine, versions
from benchmarks.timing import Budget, interleave

OUT = Path(__file__).parent / "results"
BUDGET = Budget(min_s=0.2, min_samples=20, max_s=1.0, turn_s=0.1)
Call = Callable[[], object]
WORK = {  # kind, and sizes: see ``workload``
    "cpu": [
        "kept 14 1", "kept 18 1", "kept 20 1", "kept 14 8", "whole 20 1", "whole 8 1", "whole 8 64", "train 14 1",
        "train 14 8", "train 18 1", "train 18 8", "train 12 64", "long 20 1024 8", "short 20 1024 8", "plan 20",
        "gram 1024 17", "gram_train 512 17", "solve 100000", "solve_train 100000", "gram_solve 100000",
    ],
    "cuda": [
        "kept 14 8", "kept 17 8", "kept 20 1", "kept 20 8", "kept 24 1", "kept 26 1", "whole 9 8", "whole 12 8",
        "whole 14 8", "whole 20 1", "train 12 8", "train 14 8", "train 20 8", "tau 20 8", "long 21 1000 64",
        "short 21 1000 64", "plan 20", "gram 1024 17", "gram_whole 1024 17", "gram_train 1000 20", "solve 100000",
    ],
}  # fmt: skip


def workload(name: str, device: str) -> Call:
    """A call to be timed; E stands for sizes 2^E.

    kept E B, whole E B, train E B    a product of n = k = 2^E with B rows: plan kept, with planning, and trained
    tau E B                           trained with tau
    long E K B, short E K B           2^E rows and K columns, or the reverse, plan kept
    gram N E, gram_whole, gram_train  a Gram matrix of N rows and 2^E columns
    plan E                            a plan
    solve N, solve_train, gram_solve  (K + 0.1)^-1 y and its log determinant, of K or of a Gram matrix
    """
    kind, *numbers = name.split()
    sizes = [int(number) for number in numbers]

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device=device)

    if kind.startswith("gram") and kind != "gram_solve":
        return _gram(kind, normal(sizes[0]), normal(1 << sizes[1]), torch.rand(1 << sizes[1], device=device))
    if "solve" in kind:
        return _solve(kind, normal(sizes[0]), normal(sizes[0]))
    n, k = 1 << sizes[0], sizes[1] if kind in ("long", "short") else 1 << sizes[0]
    n, k = (k, n) if kind == "short" else (n, k)
    a, b, x = normal(n), normal(k), normal(sizes[-1], k)
    if kind == "plan":
        return lambda: laplex.Plan(a, b)
    if kind in ("train", "tau"):
        tau: Any = torch.ones((), device=device) if kind == "tau" else 1.0
        leaves = [value.requires_grad_() for value in (x, a, b, *([tau] if kind == "tau" else []))]
        g = normal(sizes[-1], n)
        return lambda: torch.autograd.grad(laplex.linear(x, a, b, tau), leaves, g)
    plan = None if kind == "whole" else laplex.Plan(a, b)
    return lambda: laplex.linear(x, a, b, 1.0, plan=plan)


def _gram(kind: str, a: torch.Tensor, b: torch.Tensor, weight: torch.Tensor) -> Call:
    plan = laplex.Plan(a, b) if kind == "gram" else None
    if kind != "gram_train":
        return lambda: laplex.gram(a, b, weight, 1.0, plan=plan)
    leaves, g = [value.requires_grad_() for value in (a, b, weight)], torch.randn_like(laplex.gram(a, b).detach())
    return lambda: torch.autograd.grad(laplex.gram(a, b, weight, 1.0), leaves, g)


def _solve(kind: str, a: torch.Tensor, y: torch.Tensor) -> Call:
    a.requires_grad_(kind == "solve_train")
    K = laplex.LaplaceOperator(a, tau=0.1) if kind != "gram_solve" else laplex.LaplaceOperator(a, a.flip(0), 0.1).gram()

    def call() -> object:
        value = (y @ K.solve(y, 0.1)) + K.logdet(0.1)
        return torch.autograd.grad(value, a) if kind == "solve_train" else value

    return call


def measure(device: str, names: list[str]) -> dict[str, float]:
    """Seconds of every workload, with the laplex that is on the path."""
    found = {}
    for name in names:
        torch.manual_seed(0)
        call = workload(name, device)
        call()
        found[name] = interleave({name: call}, device, BUDGET)[name].median
    return found


WORKER = """
import importlib.util, json, sys
device, core, *names = sys.argv[1:]
sys.meta_path[:] = [finder for finder in sys.meta_path if "ScikitBuild" not in type(finder).__name__]
if core:
    spec = importlib.util.spec_from_file_location("laplex._core", core)
    sys.modules["laplex._core"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules["laplex._core"])
from benchmarks import compare
print(json.dumps(compare.measure(device, names)))
"""


def ask(source: Path, core: str, device: str, names: list[str]) -> dict[str, float]:
    """The same in a process of its own."""
    path = os.pathsep.join([str(source), os.getcwd()])
    command = [sys.executable, "-c", WORKER, device, core, *names]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{source}: {done.stderr[-2000:]}")
    measured: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare", description=__doc__)
    parser.add_argument("--before", type=Path, required=True, help="the src folder of the other version")
    parser.add_argument("--after", type=Path, default=Path("src"))
    parser.add_argument("--cores", nargs=2, default=("", ""), metavar=("BEFORE", "AFTER"), help="compiled cores")
    parser.add_argument("--device", choices=tuple(WORK), default="cpu")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="*", help="names of workloads; all of the device if none is given")
    parser.add_argument("--out", type=Path, default=OUT)
    given = parser.parse_args()
    sides: dict[str, list[dict[str, float]]] = {"before": [], "after": []}
    names = given.only or WORK[given.device]
    for _ in range(given.rounds):
        sides["before"].append(ask(given.before, given.cores[0], given.device, names))
        sides["after"].append(ask(given.after, given.cores[1], given.device, names))
    rows = {}
    for name in names:
        best = {side: min(round_[name] for round_ in rounds) for side, rounds in sides.items()}
        rows[name] = {side: round(1e6 * value, 2) for side, value in best.items()}
        rows[name]["ratio"] = round(best["after"] / best["before"], 3)
        print(f"{name:20s} {rows[name]}", flush=True)
    head = {
        "machine": machine(given.device),
        "versions": versions(),
        "git": git(),
        "rounds": given.rounds,
        "unit": "us",
    }
    (given.out / f"compare-{given.device}.json").write_text(json.dumps(head | {"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
