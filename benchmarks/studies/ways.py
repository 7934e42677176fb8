"""Which way to multiply wins where: a sweep of sizes, and the coefficients of ``laplex._backends.cost`` fitted to it.

    python3 -m benchmarks.studies.ways --out DIR              writes ways-cuda.json (or ways-cpu.json with --device cpu)
    python3 -m benchmarks.studies.ways --fit ways-cuda.json   prints coefficients, and what the choice loses

Times are wall milliseconds of laplex.linear with a weight, forward alone and with backward, as a training step waits
for them; a single matrix has no weight. With --compiled, K formed by torch under torch.compile is measured, too.
(It is compiled for any sizes: compiling it for each of a thousand would take an hour.) Points are written as they are
measured, so a sweep that is cut off keeps what it has. This script forces the choice, so it uses private names.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import random
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy
import torch

import laplex
from benchmarks.studies import wall
from laplex import _backends, _route
from laplex._backends import cost

SIZES = (64, 256, 1024, 4096, 16384, 65536)
ROWS = (1, 8, 64, 512, 4096)
SUMMED = (1, 4, 16)
WAYS = ("formed", "scan", "planned")  # "planned": the scan with a plan kept
MOST_NUMBERS = {"cuda": 1 << 28, "cpu": 1 << 26}  # of a matrix that laplex forms
MOST_COMPILED = 1 << 31, 1 << 38  # numbers, and multiplications, of one that torch.compile forms


@contextmanager
def forced(way: str) -> Iterator[None]:
    """Make every call take this way."""
    before = _backends.cheapest
    _backends.cheapest = lambda work, device: way
    _forget()
    try:
        yield
    finally:
        _backends.cheapest = before
        _forget()


def _forget() -> None:
    _route.forget()
    if torch.cuda.is_available():
        from laplex._triton import replay

        replay.calls.by_form.clear()


def formed_by_torch(x: Any, a: Any, b: Any, weight: Any) -> Any:
    if weight is None:
        return x @ torch.exp(-(a[:, None] - b).abs()).T
    return x @ (torch.exp(-(a[:, :, None] - b[:, None, :]).abs()) * weight[:, None, None]).sum(0).T


def possible(way: str, n: int, k: int, rows: int, device: str) -> bool:
    if way in ("scan", "planned"):
        return True
    if way == "compiled":
        return n * k <= MOST_COMPILED[0] and n * k * rows <= MOST_COMPILED[1]
    return n * k <= MOST_NUMBERS[device]


def point(sizes: tuple[int, int, int, int], gradients: bool, ways: dict[str, Any], device: str) -> dict[str, Any]:
    n, k, r, rows = sizes
    torch.manual_seed(0)
    shapes = ((rows, k), (n,), (k,)) if r == 1 else ((rows, k), (r, n), (r, k), (r,))
    leaves = [torch.randn(shape, device=device).requires_grad_(gradients) for shape in shapes]
    x, a, b = leaves[:3]
    weight = leaves[3] if r > 1 else None
    g = torch.randn(rows, n, device=device)

    def step(function: Callable[..., Any]) -> Callable[[], None]:
        def both() -> None:
            for leaf in leaves:
                leaf.grad = None
            function().backward(g)

        return both if gradients else lambda: function()

    milliseconds: dict[str, Any] = {}
    for name, function in ways.items():
        if not possible(name, n, k, rows, device):
            continue
        try:
            if name in WAYS:
                plan = laplex.Plan(a, b) if name == "planned" else None
                with forced("formed" if name == "formed" else "scan"):
                    call = functools.partial(laplex.linear, x, a, b, 1.0, weight=weight, plan=plan)
                    milliseconds[name] = wall(step(call), 0.008, device)
            else:
                milliseconds[name] = wall(step(functools.partial(function, x, a, b, weight)), 0.008, device)
        except Exception as error:
            milliseconds[name] = f"{type(error).__name__}: {error}"[:120]
            if device == "cuda":
                torch.cuda.empty_cache()
    return {"n": n, "k": k, "matrices": r, "rows": rows, "gradients": gradients, "milliseconds": milliseconds}


def sweep(device: str, given: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The points, in random order, so that a sweep cut short has points of all kinds."""
    began = time.perf_counter()
    ways: dict[str, Any] = dict.fromkeys(given.ways)
    if given.compiled:
        torch._dynamo.config.cache_size_limit = 64
        ways["compiled"] = torch.compile(formed_by_torch, dynamic=True)
    sizes = [size for size in SIZES if size <= given.largest]
    order = [*itertools.product(sizes, sizes, SUMMED, ROWS)]
    random.Random(given.seed).shuffle(order)
    for n, k, r, rows in order:
        if (n + k) * r * rows > given.most_points or time.perf_counter() - began > given.seconds:
            continue
        for gradients in (False, True):
            yield point((n, k, r, rows), gradients, ways, device)


def write(path: Path, device: str, points: list[dict[str, Any]]) -> None:
    name = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    machine = {"device": name, "torch": torch.__version__, "threads": torch.get_num_threads()}
    text = ",\n".join(json.dumps(row) for row in points)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'{{"machine": {json.dumps(machine)}, "points": [\n{text}\n]}}\n')


# --- The fit ----------------------------------------------------------------------------------------------------------


def work_of(row: dict[str, Any], planned: bool) -> cost.Work:
    return cost.Work(1, row["matrices"], row["rows"], row["n"], row["k"], row["gradients"], planned)


def fitted(rows: list[dict[str, Any]], way: str) -> numpy.ndarray:
    """The nonnegative coefficients with the least squares of relative errors."""
    from scipy.optimize import nnls

    names = {"formed": (False,), "scan": (False, True)}[way]
    counts, taken = [], []
    for row, planned in itertools.product(rows, names):
        known = row["milliseconds"].get("planned" if planned else way)
        if isinstance(known, float):
            counts.append(cost.COUNTS[way](work_of(row, planned)))
            taken.append(known * 1e3)
    each = numpy.array(counts) / numpy.array(taken)[:, None]
    coefficients: numpy.ndarray = nnls(each, numpy.ones(len(taken)))[0]
    return coefficients


def judge(rows: list[dict[str, Any]], device: str) -> list[dict[str, Any]]:
    """The choice at every point, with a plan and without, compared with the best way, worst first."""
    judged = []
    for row, planned in itertools.product(rows, (False, True)):
        times = {way: taken for way, taken in row["milliseconds"].items() if isinstance(taken, float)}
        scan = "planned" if planned else "scan"
        ours = {way: times[way] for way in ("formed", scan) if way in times}
        if scan not in ours:
            continue
        chosen = cost.cheapest(work_of(row, planned), device)
        chosen = chosen if chosen in ours else scan
        ratio = ours[chosen] / min(ours.values())
        against = ours[chosen] / times["compiled"] if "compiled" in times else 0.0
        judged.append({**row, "planned": planned, "chosen": chosen, "over_best": ratio, "over_compiled": against})
    return sorted(judged, key=lambda row: -row["over_best"])


def report(rows: list[dict[str, Any]], device: str) -> None:
    for gradients, way in itertools.product((False, True), ("formed", "scan")):
        known = [row for row in rows if row["gradients"] is gradients]
        if any(isinstance(row["milliseconds"].get(way), float) for row in known):
            print(gradients, way, [float(f"{value:.4g}") for value in fitted(known, way)])
    judged = judge(rows, device)
    over = sum(row["over_best"] > 1.2 for row in judged)
    slower = sorted(judged, key=lambda row: -row["over_compiled"])
    mean = statistics.geometric_mean(row["over_best"] for row in judged)
    print(f"{over} of {len(judged)} choices over 1.2 of the best way, {mean:.4f} on geometric average; worst:")
    for row in judged[:12]:
        print(json.dumps(row))
    compared = [row for row in judged if row["over_compiled"]]
    print(f"{sum(row['over_compiled'] > 1.0 for row in compared)} of {len(compared)} slower than compiled; worst:")
    for row in slower[:12]:
        print(json.dumps(row))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path)
    parser.add_argument("--fit", type=Path, nargs="*", help="sweeps of one device")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--compiled", action="store_true", help="beside K formed by torch under torch.compile")
    parser.add_argument("--ways", nargs="*", default=WAYS)
    parser.add_argument("--largest", type=int, default=SIZES[-1])
    parser.add_argument("--most-points", type=float, default=float("inf"), help="(n + k) r rows of a point")
    parser.add_argument("--seconds", type=float, default=500.0, help="for the whole sweep")
    parser.add_argument("--seed", type=int, default=0, help="of the order of the points")
    given = parser.parse_args()
    if given.out is not None:
        points, path = [], given.out / f"ways-{given.device}.json"
        for row in sweep(given.device, given):
            points.append(row)
            if len(points) % 20 == 0:
                write(path, given.device, points)
        write(path, given.device, points)
        print(len(points), "points")
    if given.fit:
        report([row for path in given.fit for row in json.loads(path.read_text())["points"]], given.device)


if __name__ == "__main__":
    main()
