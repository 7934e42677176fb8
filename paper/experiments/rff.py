"""`python -m paper experiment rff`: errors of random Fourier features against their number D, beside laplex's exact product.

For n row anchors a and n column anchors b, all standard normal, and normal x, it compares y = K x and the gradients of
L = sum_i y_i in a and in b with the dense definition in float64. The error is |estimate - truth| / |truth| in the
Euclidean norm. A seed draws new features; anchors and x stay the same.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

import laplex
from paper.methods import rff
from paper.experiments import published, report
from paper.experiments.options import at_least_one, words
from paper.experiments.record import Record
from paper.experiments.report import Panel, Point, Section

ABOUT = "Values and gradients of random Fourier features against their number, beside the exact product."
SIZE, SEEDS, MOST = 4096, 10, 2048
ENTRIES = 1 << 22  # of the dense matrix formed at a time
COMPARED = {"value": "K x", "a": "gradient in a", "b": "gradient in b (side of x)"}
DTYPES = {"float32": torch.float32, "float64": torch.float64}
HEADER = ("method", "D", *COMPARED.values(), "paper, K x")
NOTES = (
    "Relative errors against the dense definition in float64: the median over seeds, and in brackets the least and the "
    "largest. Random Fourier features are computed in float64. The gradients are those of the sum of K x.",
    f"The paper's figures are read from the text around {published.RFF_SOURCE}, for n = 65 536. "
    f"{published.RFF_GRADIENTS}",
)


class Inputs(NamedTuple):
    """What is multiplied: all (n,), float64, with values that float32 has, too."""

    x: Tensor
    a: Tensor
    b: Tensor


class Outcome(NamedTuple):
    """y = K x (n,), and the gradients of its sum in a and in b."""

    value: Tensor
    a: Tensor
    b: Tensor


Errors = dict[str, list[float]]  # by the keys of COMPARED, one number a seed


@dataclass(frozen=True)
class Study:
    """Everything that decides which runs there are."""

    record: Record
    size: int
    features: tuple[int, ...]
    seeds: int
    device: str


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options that this experiment has beside the common ones."""
    parser.add_argument("--size", type=int, default=SIZE, metavar="N", help="anchors on each side")
    parser.add_argument("--features", type=int, nargs="+", metavar="D", help=f"powers of two up to {MOST} if not given")
    parser.add_argument("--seeds", type=int, default=SEEDS, metavar="S", help="draws of the features")


def prepare(given: argparse.Namespace) -> Study:
    """Check the options; ValueError where something is wrong, and nothing is written."""
    features = given.features or [1 << power for power in range(MOST.bit_length())]
    for option, values in (("size", [given.size]), ("features", features), ("seeds", [given.seeds])):
        at_least_one(option, values)
    record = Record(Path(given.out) / "rff.json", "rff", device=given.device, fresh=given.fresh)
    return Study(record, given.size, tuple(sorted(set(features))), given.seeds, given.device)


# --- Runs ------------------------------------------------------------------------------------------------------------


def run(study: Study) -> int:
    """Every run that the record lacks; then the table and the plot."""
    given = inputs(study.size, study.device)
    expected = cache(partial(truth, given))  # the dense sums take longest, and a finished record needs none

    def measured(settings: dict[str, Any], compute: Callable[[], Outcome]) -> dict[str, float]:
        settings = {"size": study.size, "device": torch.device(study.device).type, **settings}
        return study.record.run(settings, lambda: errors(compute(), expected()))

    exact = {
        name: collected([measured({"method": "laplex", "dtype": name}, partial(of_laplex, given, dtype))])
        for name, dtype in DTYPES.items()
    }
    sampled = {}
    for number, count in enumerate(study.features, 1):
        settings = {"method": "rff", "features": count}
        runs = [measured(settings | {"seed": s}, partial(of_features, given, count, s)) for s in range(study.seeds)]
        sampled[count] = collected(runs)
        medians = words([f"{title} {statistics.median(sampled[count][key]):.2g}" for key, title in COMPARED.items()])
        print(f"[{number}/{len(study.features)}] D = {count}: {medians}", file=sys.stderr, flush=True)
    _write(study, exact, sampled)
    return 0


def inputs(size: int, device: str) -> Inputs:
    """Standard normal numbers, the same on every device."""
    drawn = torch.randn(3, size, generator=torch.Generator().manual_seed(0))
    return Inputs(*drawn.to(device, torch.float64))


def truth(given: Inputs) -> Outcome:
    """By the dense definition, in blocks of rows."""
    b = given.b.clone().requires_grad_()
    values, of_a, of_b = [], [], torch.zeros_like(b)
    for rows in given.a.split(max(1, ENTRIES // len(given.b))):
        a = rows.clone().requires_grad_()
        y = laplex.reference.linear(given.x, a, b)
        a_bar, b_bar = torch.autograd.grad(y.sum(), (a, b))
        values.append(y.detach())
        of_a.append(a_bar)
        of_b += b_bar
    return Outcome(torch.cat(values), torch.cat(of_a), of_b)


def of_laplex(given: Inputs, dtype: torch.dtype) -> Outcome:
    """By laplex.linear."""
    return _differentiated(laplex.linear, Inputs(*(one.to(dtype) for one in given)))


def of_features(given: Inputs, count: int, seed: int) -> Outcome:
    """By ``count`` random Fourier features."""
    generator = torch.Generator().manual_seed(seed)
    drawn = rff.draw(count, generator=generator, device=given.x.device, dtype=given.x.dtype)
    return _differentiated(drawn.linear, given)


def _differentiated(linear: Callable[[Tensor, Tensor, Tensor], Tensor], given: Inputs) -> Outcome:
    a, b = given.a.clone().requires_grad_(), given.b.clone().requires_grad_()
    y = linear(given.x, a, b)
    return Outcome(y.detach(), *torch.autograd.grad(y.sum(), (a, b)))


def errors(got: Outcome, want: Outcome) -> dict[str, float]:
    """Relative errors of value and gradients, by the keys of COMPARED."""
    pairs = zip(COMPARED, got, want, strict=True)
    return {key: float((one.double() - other).norm() / other.norm()) for key, one, other in pairs}


def collected(runs: list[dict[str, float]]) -> Errors:
    """The errors of several seeds by what was compared."""
    return {key: [one[key] for one in runs] for key in COMPARED}


# --- The table -------------------------------------------------------------------------------------------------------


def _write(study: Study, exact: dict[str, Errors], sampled: dict[int, Errors]) -> None:
    """The page and, where matplotlib is installed, the plot."""
    lines = [
        [f"laplex, {name}", "", *(f"{found[key][0]:.1e}" for key in COMPARED), ""] for name, found in exact.items()
    ]
    for count, found in sampled.items():
        paper = published.RFF_VALUES.get(count)
        cells = [_range(found[key]) for key in COMPARED]
        lines.append(["random Fourier features", str(count), *cells, "" if paper is None else f"{paper:g}"])
    curves = {
        f"features, {title}": [_point(count, found[key]) for count, found in sampled.items()]
        for key, title in COMPARED.items()
    }
    for key, title in COMPARED.items():
        curves[f"laplex float32, {title}"] = [Point(count, exact["float32"][key][0]) for count in sampled]
    title = f"Random Fourier features and laplex, n = {study.size:,}, {study.seeds} seeds"
    panel = Panel(("number of features D", "relative error"), curves, log_y=True)
    report.write_sections(study.record.path, title, [Section(HEADER, lines, NOTES)], [panel])


def _range(values: list[float]) -> str:
    return f"{statistics.median(values):.3g} [{min(values):.2g}, {max(values):.2g}]"


def _point(count: int, values: list[float]) -> Point:
    middle = statistics.median(values)
    return Point(count, middle, middle - min(values), max(values) - middle)
