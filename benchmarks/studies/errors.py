"""How exact ``laplex.linear`` is with its defaults: a sweep of errors; ``benchmarks.studies.ways`` sweeps times.

    python3 -m benchmarks.studies.errors --out DIR        writes errors-cuda.json (or errors-cpu.json with --device cpu)

Sizes are drawn at random, from 1 to 2^20 anchors per side and 1 to 4096 rows, with and without gradients, sums of
kernels and phases. Every point calls ``laplex.linear`` with all defaults, and compares values and gradients with the
dense float64 definition at a sample of positions. An error is relative to the sum of the sizes of the terms that are
added, so cancellation does not count against a result; x is positive in half of the points, because sums of terms with
the same sign lose the most. Points are written as they are measured.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import laplex
from laplex import testing
from laplex.testing import Problem

LARGEST, MOST_ROWS = 20, 12  # powers of two
SUMMED = (1, 1, 1, 4, 16)
SLICE = 1 << 22  # entries of K formed at once
SAMPLE = 48  # positions at which a result is compared
MOST_PAIRS = {"cpu": 2e9, "cuda": 2e11}  # rows times entries; with fewer, gradients that sum over all are compared
MOST_NUMBERS = {"cpu": 1 << 24, "cuda": 1 << 28}  # of x and y


def draw(shape: dict[str, Any], device: str) -> Problem:
    """The problem for a shape: a sum of matrices with weights, even if it is a sum of one."""
    n, k, dtype = shape["n"], shape["k"], getattr(torch, shape["dtype"])
    options = {"rows": shape["rows"], "matrices": shape["matrices"], "phases": shape["phases"], "seed": shape["seed"]}
    problem = testing.draw(n, k, **options, device=device, dtype=dtype)
    weight = problem.weight if shape["matrices"] > 1 else torch.ones(1, device=device)
    problem = replace(problem, tau=torch.tensor(shape["tau"], device=device), weight=weight)
    return replace(problem, x=problem.x.abs(), cotangent=problem.cotangent.abs()) if shape["positive"] else problem


def arguments(problem: Problem) -> dict[str, Any]:
    """The arguments for ``laplex.linear``. A single matrix is passed as it is, without a sum and its weight."""
    named = problem.arguments
    if len(named["weight"]) == 1:
        del named["weight"]
        named |= {name: named[name][0] for name in ("a", "b", "phi", "psi") if name in named}
    return named


def results(problem: Problem, gradients: bool) -> dict[str, Tensor]:
    """What ``laplex.linear`` returns: y, and the gradients by name."""
    leaves = {name: value.requires_grad_(gradients) for name, value in problem.arguments.items()}
    y = laplex.linear(**arguments(problem))
    if not gradients:
        return {"y": y}
    y.backward(problem.cotangent)
    return {"y": y.detach(), **{name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}}


def one_matrix(problem: Problem, index: int) -> Problem:
    """One of the matrices that are summed, with a weight of 1."""
    parts = {name: value[index : index + 1] for name, value in problem.arguments.items() if name not in ("x", "tau")}
    return replace(problem, **parts | {"weight": torch.ones_like(parts["weight"])})


def side_errors(problem: Problem, got: dict[str, Tensor], names: tuple[str, str, str]) -> dict[str, float]:
    """Errors of one side at a sample of positions: of the product, and of the gradients of anchors and phases."""
    value, anchor, phase = names
    positions = testing.sample(problem.a.shape[1], SAMPLE, problem.a.device)
    errors: dict[str, float] = {}
    if value in got:
        sizes = testing.sizes(problem, positions)
        errors[value] = testing.term_error(got[value][:, positions], testing.product(problem, positions), sizes)
    if anchor not in got:
        return errors
    truth = testing.gradients(problem, positions, positions.new_zeros(1))
    for index, weight in enumerate(weights(problem)):
        sizes = testing.sizes(one_matrix(problem, index), positions) * problem.cotangent[:, positions].abs()
        scale = weight.abs() * sizes.sum(0)  # of the terms in the gradient of a phase
        for name, key, rate in ((anchor, "a", 1 / problem.tau), (phase, "phi", 1.0)):
            if name in got:
                error = testing.term_error(got[name][index, positions], truth[key][index], scale * rate)
                errors[name] = max(errors.get(name, 0.0), error)
    return errors


def total_errors(problem: Problem, got: dict[str, Tensor]) -> dict[str, float]:
    """Errors of the gradients that sum over all pairs: of the kernels' weights and of tau.

    With u = |a - b| / tau the terms of tau's are g x weight u K / tau. Both sums are taken in one pass over K.
    """
    tau = torch.as_tensor(problem.tau).double()
    g, x, a, b = (value.double() for value in (problem.cotangent, problem.x, problem.a, problem.b))
    sums = torch.zeros(4, len(b), dtype=torch.float64, device=g.device)
    for rows in torch.arange(g.shape[1], device=g.device).split(max(1, SLICE // x.shape[1])):
        outer, outer_sizes = g[:, rows].mT @ x, g[:, rows].abs().mT @ x.abs()
        for index in range(len(b)):
            u = (a[index, rows][:, None] - b[index]).abs() / tau
            kernel = torch.exp(-u)
            signed, sized = outer * kernel, outer_sizes * kernel
            if problem.phi is not None and problem.psi is not None:
                signed *= torch.cos(problem.phi[index, rows].double()[:, None] - problem.psi[index].double())
            sums[:, index] += torch.stack([signed.sum(), sized.sum(), (u * signed).sum(), (u * sized).sum()])
    weight = weights(problem) / tau
    errors = {"tau": testing.term_error(got["tau"], weight @ sums[2], weight.abs() @ sums[3])}
    return errors | ({"weight": testing.term_error(got["weight"], sums[0], sums[1])} if "weight" in got else {})


def weights(problem: Problem) -> Tensor:
    assert problem.weight is not None
    return problem.weight.double()


def point(shape: dict[str, Any], device: str) -> dict[str, Any]:
    """The errors of one call."""
    problem = draw(shape, device)
    got = results(problem, shape["gradients"])
    chosen = laplex.backends.which(**arguments(problem))
    with torch.no_grad():
        errors = side_errors(problem, got, ("y", "a", "phi"))
        if shape["gradients"]:
            errors |= side_errors(problem.mT, got, ("x", "b", "psi"))
            if shape["rows"] * shape["n"] * shape["k"] * shape["matrices"] <= MOST_PAIRS[device]:
                errors |= total_errors(problem, got)
    return {**shape, "backend": chosen, "errors": {name: float(f"{error:.3g}") for name, error in errors.items()}}


def shapes(device: str, seed: int, dtypes: list[str]) -> Iterator[dict[str, Any]]:
    """Random sizes with uniform logarithms, so that small ones are as frequent as large ones."""
    rng = random.Random(seed)
    while True:
        n, k = (round(2 ** rng.uniform(0, LARGEST)) for _ in range(2))
        rows, r = round(2 ** rng.uniform(0, MOST_ROWS)), rng.choice(SUMMED)
        if rows * max(n, k) * r > MOST_NUMBERS[device]:
            continue
        yield {
            "n": n, "k": k, "rows": rows, "matrices": r, "tau": rng.choice((0.01, 0.7, 0.7, 50.0)),
            "phases": rng.random() < 0.25, "positive": rng.random() < 0.5, "gradients": rng.random() < 0.6,
            "dtype": rng.choice(dtypes), "seed": rng.randrange(1 << 30),
        }  # fmt: skip


def write(path: Path, device: str, points: list[dict[str, Any]]) -> None:
    name = torch.cuda.get_device_name() if device == "cuda" else "cpu"
    machine = {"device": name, "torch": torch.__version__, "laplex": laplex.__version__}
    text = ",\n".join(json.dumps(row) for row in points)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f'{{"machine": {json.dumps(machine)}, "points": [\n{text}\n]}}\n')


def report(points: list[dict[str, Any]]) -> None:
    """The worst points, and the largest error of each result by dtype."""
    worst: dict[tuple[str, str], float] = {}
    for row in points:
        for name, error in row["errors"].items():
            key = row["dtype"], name
            worst[key] = max(worst.get(key, 0.0), error)
    for (dtype, name), error in sorted(worst.items()):
        print(f"{dtype:9} {name:7} {error:.2e}")
    for row in sorted(points, key=lambda row: -max(row["errors"].values()))[:12]:
        print(json.dumps(row))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=float, default=120.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dtypes", nargs="*", default=["float32", "float32", "float32", "float64", "bfloat16"])
    given = parser.parse_args()
    points: list[dict[str, Any]] = []
    path, began = given.out / f"errors-{given.device}.json", time.perf_counter()
    for shape in shapes(given.device, given.seed, given.dtypes):
        if time.perf_counter() - began > given.seconds:
            break
        points.append(point(shape, given.device))
        if len(points) % 20 == 0:
            write(path, given.device, points)
    write(path, given.device, points)
    print(len(points), "points")
    report(points)


if __name__ == "__main__":
    main()
