"""`python -m paper experiment rff`: errors of random Fourier features against their number D, and of laplex.

For n row anchors a and n column anchors b, all standard normal, and normal x, it compares y = K x and the gradients of
L = sum_i y_i in a and in b with the dense definition in float64. The error is |estimate - truth| / |truth| in the
Euclidean norm. A seed draws new features; anchors and x stay the same.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

import laplex
from laplex import testing
from laplex.testing import Problem
from paper.experiments import published, record, report
from paper.experiments.options import at_least_one, option, words
from paper.experiments.record import Target
from paper.experiments.report import Panel, Point, Section
from paper.methods import rff

ABOUT = "Values and gradients of random Fourier features against their number, and of the exact product."
SIZE, SEEDS = 4096, 10
COMPARED = {"value": "K x", "a": "gradient in a", "b": "gradient in b (side of x)"}
DTYPES = {"float32": torch.float32, "float64": torch.float64}
HEADER = ("method", "D", *COMPARED.values(), "paper, K x")
NOTES = (
    "Relative errors against the dense definition in float64: the median over seeds, and in brackets the least and the "
    "largest. Random Fourier features are computed in float64. The gradients are those of the sum of K x.",
    f"The paper's figures are read from the text around {published.RFF_SOURCE}, for n = 65 536. "
    f"{published.RFF_GRADIENTS}",
)


class Outcome(NamedTuple):
    """y = K x (1, n), and the gradients of its sum in a and in b."""

    value: Tensor
    a: Tensor
    b: Tensor


Errors = dict[str, list[float]]  # by the keys of COMPARED, one number per seed


@dataclass(frozen=True, kw_only=True)
class Options:
    """What `rff` can be asked."""

    size: int = option("anchors on each side", SIZE, metavar="N")
    features: tuple[int, ...] = option("numbers of features", tuple(1 << power for power in range(12)), metavar="D")
    seeds: int = option("draws of the features", SEEDS, metavar="S")


Experiment = record.Experiment[Options, Problem]


def prepare(options: Options, target: Target) -> Experiment:
    """Check the options; ValueError where something is wrong, and nothing is written."""
    at_least_one(options, "size", "features", "seeds")
    options = replace(options, features=tuple(sorted(set(options.features))))
    return Experiment(options, draw(options.size, target.device), target.record("rff", "rff"))


# --- Runs ------------------------------------------------------------------------------------------------------------


def run(experiment: Experiment) -> int:
    """Every run that the record lacks; then the table and the plot."""
    options, problem = experiment.options, experiment.data
    expected = cache(partial(truth, problem))  # the dense sums take longest, and a finished record needs none

    def measure(settings: dict[str, Any], compute: Callable[[], Outcome]) -> dict[str, float]:
        settings = {"size": options.size, "device": problem.x.device.type, **settings}
        return experiment.record.run(settings, lambda: errors(compute(), expected()))

    exact = {
        name: by_quantity([measure({"method": "laplex", "dtype": name}, partial(laplex_outcome, problem, dtype))])
        for name, dtype in DTYPES.items()
    }
    sampled = {}
    for number, count in enumerate(options.features, 1):
        key = {"method": "rff", "features": count}
        seeds = range(options.seeds)
        runs = [measure(key | {"seed": seed}, partial(features_outcome, problem, count, seed)) for seed in seeds]
        sampled[count] = by_quantity(runs)
        medians = words([f"{title} {statistics.median(sampled[count][name]):.2g}" for name, title in COMPARED.items()])
        print(f"[{number}/{len(options.features)}] D = {count}: {medians}", file=sys.stderr, flush=True)
    _write(experiment, exact, sampled)
    return 0


def draw(size: int, device: str) -> Problem:
    """Standard normal numbers (1, n) and (n,), float64, with values that float32 has, too; the same on every device."""
    x, a, b = torch.randn(3, size, generator=torch.Generator().manual_seed(0)).to(device, torch.float64)
    return Problem(x[None], a, b, cotangent=torch.ones_like(a)[None])


def truth(problem: Problem) -> Outcome:
    """By the dense definition, in blocks."""
    gradients = testing.gradients(problem)
    return Outcome(testing.product(problem), gradients["a"], gradients["b"])


def laplex_outcome(problem: Problem, dtype: torch.dtype) -> Outcome:
    """By laplex.linear."""
    return _differentiate(laplex.linear, problem, dtype)


def features_outcome(problem: Problem, count: int, seed: int) -> Outcome:
    """By ``count`` random Fourier features, in float64."""
    generator = torch.Generator().manual_seed(seed)
    features = rff.draw(count, generator=generator, device=problem.x.device, dtype=torch.float64)
    return _differentiate(features.linear, problem, torch.float64)


def _differentiate(linear: Callable[[Tensor, Tensor, Tensor], Tensor], problem: Problem, dtype: torch.dtype) -> Outcome:
    x, a, b = (one.to(dtype) for one in (problem.x, problem.a, problem.b))
    a, b = a.clone().requires_grad_(), b.clone().requires_grad_()
    y = linear(x, a, b)
    return Outcome(y.detach(), *torch.autograd.grad(y.sum(), (a, b)))


def errors(got: Outcome, want: Outcome) -> dict[str, float]:
    """Relative errors of value and gradients, by the keys of COMPARED."""
    return {key: testing.relative_error(*pair) for key, *pair in zip(COMPARED, got, want, strict=True)}


def by_quantity(runs: list[dict[str, float]]) -> Errors:
    """The errors of several seeds by what was compared."""
    return {key: [one[key] for one in runs] for key in COMPARED}


# --- The table -------------------------------------------------------------------------------------------------------


def _write(experiment: Experiment, exact: dict[str, Errors], sampled: dict[int, Errors]) -> None:
    """The page and, where matplotlib is installed, the plot."""
    lines = [
        [f"laplex, {name}", "", *(f"{values[key][0]:.1e}" for key in COMPARED), ""] for name, values in exact.items()
    ]
    for count, values in sampled.items():
        paper = published.RFF_VALUES.get(count)
        cells = [_range(values[key]) for key in COMPARED]
        lines.append(["random Fourier features", str(count), *cells, "" if paper is None else f"{paper:g}"])
    curves = {
        f"features, {title}": [_point(count, values[key]) for count, values in sampled.items()]
        for key, title in COMPARED.items()
    }
    for key, title in COMPARED.items():
        curves[f"laplex float32, {title}"] = [Point(count, exact["float32"][key][0]) for count in sampled]
    title = f"Random Fourier features and laplex, n = {experiment.options.size:,}, {experiment.options.seeds} seeds"
    panel = Panel(("number of features D", "relative error"), curves, log_y=True)
    report.write(experiment.record.path, title, [Section(HEADER, lines, NOTES)], [panel])


def _range(values: list[float]) -> str:
    return f"{statistics.median(values):.3g} [{min(values):.2g}, {max(values):.2g}]"


def _point(count: int, values: list[float]) -> Point:
    middle = statistics.median(values)
    return Point(count, middle, middle - min(values), max(values) - middle)
