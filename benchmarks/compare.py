"""Two versions of laplex: what a change of the code did to the time of calls.

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
from pathlib import Path

from benchmarks.report import conditions
from benchmarks.workloads import WORK

TIMING = Path(__file__).parents[1] / "src" / "laplex" / "testing" / "_timing.py"
WORKER = """
import importlib.util, json, sys
device, core, timing, *names = sys.argv[1:]
sys.meta_path[:] = [finder for finder in sys.meta_path if "ScikitBuild" not in type(finder).__name__]

def load(name, path):
    spec = importlib.util.spec_from_file_location(name, path)
    sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]

if core:
    load("laplex._core", core)
from benchmarks import workloads
print(json.dumps(workloads.measure(device, names, load("timing", timing))))
"""


def ask(source: Path, core: str, device: str, names: list[str]) -> dict[str, float]:
    """The same in a process of its own."""
    path = os.pathsep.join([str(source), os.getcwd()])
    command = [sys.executable, "-c", WORKER, device, core, str(TIMING), *names]
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
    parser.add_argument("--out", type=Path, default=Path())
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
        **conditions(given.device),
        "rounds": given.rounds,
        "unit": "us",
    }
    (given.out / f"compare-{given.device}.json").write_text(json.dumps(head | {"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
