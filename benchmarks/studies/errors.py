"""How exact the default of ``laplex.linear`` is: a sweep of errors; ``benchmarks.studies.ways`` sweeps times.

    python3 -m benchmarks.studies.errors --out DIR        writes errors-cuda.json (or errors-cpu.json with --device cpu)

Sizes are drawn at random, from 1 to 2^20 anchors a side and 1 to 4096 rows, with and without gradients, sums of kernels
and phases. Every point calls ``laplex.linear`` with all defaults, and compares values and gradients with the dense
float64 definition at a sample of positions. An error is relative to the sum of the sizes of the terms that are added,
so cancellation does not count against a result; x is positive in half of the points, because sums of terms with one
sign lose the most. Points are written as they are measured.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

import laplex

LARGEST, MOST_ROWS = 20, 12  # powers of two
SUMMED = (1, 1, 1, 4, 16)
SAMPLE = 48  # positions at which a result is compared
MOST_PAIRS = {"cpu": 2e9, "cuda": 2e11}  # rows times entries; gradients that sum over all of them are compared below
MOST_NUMBERS = {"cpu": 1 << 24, "cuda": 1 << 28}  # of x and y


class Problem(NamedTuple):
    """The leaves of one product, and the cotangent of its result."""

    x: Tensor  # (m, k)
    a: Tensor  # (r, n)
    b: Tensor  # (r, k)
    tau: Tensor  # ()
    weight: Tensor  # (r,)
    phi: Tensor | None  # (r, n)
    psi: Tensor | None  # (r, k)
    g: Tensor  # (m, n)

    def wide(self) -> Problem:
        return Problem(*(None if value is None else value.detach().double() for value in self))  # type: ignore[arg-type]

    def swapped(self) -> Problem:
        """The transposed product, whose x is the cotangent."""
        return Problem(self.g, self.b, self.a, self.tau, self.weight, self.psi, self.phi, self.x)


def problem(shape: dict[str, Any], device: str) -> Problem:
    n, k, m, r = (shape[name] for name in ("n", "k", "rows", "matrices"))
    generator = torch.Generator(device).manual_seed(shape["seed"])

    def normal(*size: int) -> Tensor:
        return torch.randn(size, device=device, generator=generator)

    x, g = normal(m, k), normal(m, n)
    if shape["positive"]:
        x, g = x.abs(), g.abs()
    phi, psi = (normal(r, n), normal(r, k)) if shape["phases"] else (None, None)
    weight = normal(r) if r > 1 else torch.ones(1, device=device)
    dtype, tau = getattr(torch, shape["dtype"]), torch.tensor(shape["tau"], device=device)
    return Problem(x.to(dtype), normal(r, n), normal(r, k), tau, weight, phi, psi, g.to(dtype))


def results(given: Problem, gradients: bool) -> dict[str, Tensor]:
    """What ``laplex.linear`` gives: y, and the gradients by name."""
    named = {name: value for name, value in given._asdict().items() if value is not None and name != "g"}
    leaves = {name: value.requires_grad_(gradients) for name, value in named.items()}
    y = laplex.linear(**arguments(given))
    if not gradients:
        return {"y": y}
    y.backward(given.g)
    return {"y": y.detach(), **{name: leaf.grad for name, leaf in leaves.items() if leaf.grad is not None}}


def arguments(given: Problem) -> dict[str, Any]:
    """Those of ``laplex.linear``. One matrix is given as it is: without a sum over matrices and its weight of 1."""
    named = {name: value for name, value in given._asdict().items() if value is not None and name != "g"}
    if given.a.shape[0] == 1:
        del named["weight"]
        named |= {name: named[name][0] for name in ("a", "b", "phi", "psi") if name in named}
    return named


def entries(given: Problem, rows: Tensor, q: int) -> tuple[Tensor, Tensor, Tensor]:
    """Of kernel q at some rows (s, k): the kernel without phases, its cosine and its sine."""
    u = (given.a[q, rows][:, None] - given.b[q]).abs() / given.tau
    if given.phi is None or given.psi is None:
        return torch.exp(-u), torch.ones_like(u), torch.zeros_like(u)
    turn = given.phi[q, rows][:, None] - given.psi[q]
    return torch.exp(-u), turn.cos(), turn.sin()


def sample(size: int, device: torch.device) -> Tensor:
    return torch.randperm(size, generator=torch.Generator().manual_seed(size))[:SAMPLE].to(device)


def compared(got: Tensor, truth: Tensor, sizes: Tensor) -> float:
    """The largest error over the sum of the terms' sizes; where there are no terms, over the smallest number."""
    error = (got.double() - truth).abs() / sizes.clamp_min(1e-300)
    error = torch.where(sizes > 1e-30, error, torch.zeros_like(error))  # float32 underflows
    return float(error.max()) if error.numel() else 0.0


def side_errors(given: Problem, got: dict[str, Tensor], names: tuple[str, str, str]) -> dict[str, float]:
    """Errors of one side: the product at a sample of targets, and the gradients of its anchors and phases."""
    value, anchor, phase = names
    errors: dict[str, float] = {}
    rows = sample(given.a.shape[1], given.a.device)
    outer = given.g[:, rows].mT @ given.x  # (s, k)
    outer_sizes = given.g[:, rows].abs().mT @ given.x.abs()
    total, sizes = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    for q in range(given.a.shape[0]):
        kernel, cos, sin = entries(given, rows, q)
        size = given.weight[q].abs() * kernel
        total = total.to(kernel) + given.x @ (given.weight[q] * kernel * cos).mT
        sizes = sizes.to(kernel) + given.x.abs() @ size.mT
        sign = (given.b[q] - given.a[q, rows][:, None]).sign()
        for name, factor in ((anchor, sign * cos / given.tau), (phase, -sin)):
            if name in got and got[name] is not None:
                truth = (given.weight[q] * kernel * factor * outer).sum(1)
                scale = (size * (1 / given.tau if name == anchor else 1.0) * outer_sizes).sum(1)
                part = compared(got[name][q, rows], truth, scale)
                errors[name] = max(errors.get(name, 0.0), part)
    if value in got:
        errors[value] = compared(got[value][:, rows], total, sizes)
    return errors


def total_errors(given: Problem, got: dict[str, Tensor]) -> dict[str, float]:
    """Errors of the gradients that sum over all pairs: of the kernels' weights and of tau."""
    n, (r, k) = given.a.shape[1], given.b.shape
    sums = torch.zeros(4, r, dtype=torch.float64, device=given.a.device)
    step = max(1, (1 << 22) // k)
    for rows in torch.arange(n, device=given.a.device).split(step):
        outer, outer_sizes = given.g[:, rows].mT @ given.x, given.g[:, rows].abs().mT @ given.x.abs()
        for q in range(r):
            kernel, cos, _ = entries(given, rows, q)
            u = (given.a[q, rows][:, None] - given.b[q]).abs() / given.tau
            signed, sized = outer * kernel * cos, outer_sizes * kernel
            sums[0, q] += signed.sum()
            sums[1, q] += sized.sum()
            sums[2, q] += given.weight[q] / given.tau * (u * signed).sum()
            sums[3, q] += given.weight[q].abs() / given.tau * (u * sized).sum()
    errors = {"tau": compared(got["tau"], sums[2].sum(), sums[3].sum())}
    return errors | ({"weight": compared(got["weight"], sums[0], sums[1])} if "weight" in got else {})


def point(shape: dict[str, Any], device: str) -> dict[str, Any]:
    given = problem(shape, device)
    got = results(given, shape["gradients"])
    chosen = laplex.backends.which(**arguments(given))
    truth = given.wide()
    errors = side_errors(truth, got, ("y", "a", "phi"))
    if shape["gradients"]:
        errors |= side_errors(truth.swapped(), got, ("x", "b", "psi"))
        if shape["rows"] * shape["n"] * shape["k"] * shape["matrices"] <= MOST_PAIRS[device]:
            errors |= total_errors(truth, got)
    return {**shape, "backend": chosen, "errors": {name: float(f"{error:.3g}") for name, error in errors.items()}}


def shapes(device: str, seed: int, dtypes: list[str]) -> Iterator[dict[str, Any]]:
    """Random sizes, whose logarithms are even; small ones as often as large ones."""
    draw = random.Random(seed)
    while True:
        n, k = (round(2 ** draw.uniform(0, LARGEST)) for _ in range(2))
        rows, r = round(2 ** draw.uniform(0, MOST_ROWS)), draw.choice(SUMMED)
        if rows * max(n, k) * r > MOST_NUMBERS[device]:
            continue
        yield {
            "n": n, "k": k, "rows": rows, "matrices": r, "tau": draw.choice((0.01, 0.7, 0.7, 50.0)),
            "phases": draw.random() < 0.25, "positive": draw.random() < 0.5, "gradients": draw.random() < 0.6,
            "dtype": draw.choice(dtypes), "seed": draw.randrange(1 << 30),
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
