"""`python -m paper experiment compress`: a trained weight W (out, in) replaced by LAPLEX^(r), and by its truncated SVD.

The residual energy of an approximation V is  sum_ij h_j (W_ij - V_ij)^2 / sum_ij h_j W_ij^2  with h_j = E x_j^2, the
mean error of the scores for uncorrelated features; h_j = 1 where the features are not known. The SVD is that of
W diag(sqrt h), which minimises it. Both have r (out + in) parameters, LAPLEX r more; the bias is kept by both.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from laplex.nn import LaplexLinear
from laplex.reference import kernel
from paper.experiments import record, report
from paper.experiments.data import Features, digest, features, read_npz
from paper.experiments.options import at_least_one, option
from paper.experiments.record import Target
from paper.experiments.report import Panel, Point, Section
from paper.experiments.training import GRID, TUNED, Recipe, accuracy, seeded, train

ABOUT = "A trained weight replaced by LAPLEX and by its truncated SVD, at equal parameters."
WAYS = {"svd": "truncated SVD", "singular": "LAPLEX at singular vectors", "reseated": "LAPLEX, re-seated"}
HEADER = ("approximation", "r", "parameters", "residual energy", "test %")
NOTE = (
    "Residual energy is weighted by the mean square of each feature where that is known. Parameters leave out the "
    "bias, which is kept. Test accuracy is that of the compressed head, not trained again."
)


@dataclass(frozen=True, kw_only=True)
class Options:
    """What `compress` can be asked: --weight or --data, and not both."""

    weight: str = option("W (out, in) and, if there, b (out,), importance (in,)", "", metavar="FILE.npz")
    data: str = option("features to train a full head on first, as for `heads`", "", metavar="FILE.npz")
    ranks: tuple[int, ...] = option("kernels of LAPLEX", (4, 8, 16), metavar="R")
    sweeps: int = option("of re-seating", 60, metavar="N")


@dataclass(frozen=True)
class Subject:
    """A head to compress, or the features to train it on first."""

    name: str
    digest: str
    head: nn.Linear | None
    importance: Tensor | None  # (in,): h
    features: Features | None
    device: str


Experiment = record.Experiment[Options, Subject]


def prepare(options: Options, target: Target) -> Experiment:
    """Check the options and read the data; ValueError where something is wrong, and nothing is written."""
    if bool(options.weight) == bool(options.data):
        raise ValueError("--weight or --data must be given, and not both")
    at_least_one(options, "ranks", "sweeps")
    options = replace(options, ranks=tuple(sorted(set(options.ranks))))
    file = Path(options.weight or options.data)
    head, importance, data = None, None, None
    if options.weight:
        head, importance = read_head(file, target.device)
    else:
        data = features(file).standardised().to(target.device)
        importance = data.importance
    subject = Subject(file.stem, digest(file), head, importance, data, target.device)
    return Experiment(options, subject, target.record("compress", f"compress-{file.stem}"))


def read_head(path: Path, device: str) -> tuple[nn.Linear, Tensor | None]:
    """The head W, b of an .npz file as a layer, in float32, and its importance (in,) if the file has one."""
    where = "paper.experiments.compress"
    arrays = read_npz(where, path, ("W",))
    weight = arrays["W"]
    if weight.ndim != 2 or weight.size == 0:
        raise ValueError(
            f"{where}: `W` must have the shape (out, in), got {weight.shape}; pass the weight of one layer"
        )
    sizes = {"b": weight.shape[:1], "importance": weight.shape[1:]}
    for name, shape in sizes.items():
        if name in arrays and arrays[name].shape != shape:
            raise ValueError(
                f"{where}: `{name}` must have the shape {shape}, for `W` {weight.shape}, got {arrays[name].shape}; "
                "give one number per row for `b`, one per column for `importance`"
            )
    values = {name: arrays[name].astype(np.float32) for name in ("W", *sizes) if name in arrays}
    for name, array in values.items():
        if not np.isfinite(array).all():
            raise ValueError(f"{where}: `{name}` must be finite, got NaN or infinity; find it with numpy.isfinite")
    if "importance" in values and not values["importance"].min() > 0:
        raise ValueError(
            f"{where}: `importance` must be positive, got {values['importance'].min():g}; it is the mean of x_j^2, to "
            "which a little may be added"
        )
    head = nn.Linear(weight.shape[1], weight.shape[0], bias="b" in values, device=device)
    with torch.no_grad():
        head.weight.copy_(torch.from_numpy(values["W"]))
        if "b" in values:
            head.bias.copy_(torch.from_numpy(values["b"]))
    return head, torch.from_numpy(values["importance"]).to(device) if "importance" in values else None


# --- Runs ------------------------------------------------------------------------------------------------------------


def run(experiment: Experiment) -> int:
    """Every approximation that the record lacks; then the table and the plot."""
    options, subject = experiment.options, experiment.data
    source = stored_head(subject.head) if subject.head is not None else trained_head(experiment)
    most = min(source.shape)  # singular vectors; more kernels than that cannot start at them
    candidates = [(way, rank) for rank in options.ranks for way in WAYS if way != "singular" or rank <= most]
    results = {}
    for number, (way, rank) in enumerate(candidates, 1):
        settings = {"data": subject.digest, "way": way, "rank": rank} | source.settings
        settings |= {"sweeps": options.sweeps} if way == "reseated" else {}
        result = experiment.record.run(settings, partial(measure, experiment, source.make, way, rank))
        results[way, rank] = result
        line = f"[{number}/{len(candidates)}] {WAYS[way]}, r = {rank}: residual energy {result['residual']:.3f}"
        print(line, file=sys.stderr, flush=True)
    _write(experiment, source, results)
    return 0


@dataclass(frozen=True)
class HeadSource:
    """The head to compress: what gives it, and what of it decides the results, besides the file."""

    make: Callable[[], nn.Linear]
    settings: dict[str, Any]
    shape: tuple[int, int]  # (out, in)
    test: float | None = None  # its accuracy, where there are features


def stored_head(head: nn.Linear) -> HeadSource:
    """The head of the file."""
    return HeadSource(lambda: head, {}, (head.out_features, head.in_features))


def trained_head(experiment: Experiment) -> HeadSource:
    """A full head at the learning rate that is best on validation rows. It is trained again when it is needed."""
    subject, data = experiment.data, experiment.data.features
    if data is None:
        raise ValueError("paper.experiments.compress: there must be a head or features, got neither")

    def start() -> nn.Linear:
        with seeded(0):
            return nn.Linear(data.width, data.classes).to(subject.device)

    def attempt(recipe: Recipe) -> dict[str, Any]:
        settings = {"data": subject.digest, "method": "full", "seed": 0, **asdict(recipe)}
        result = experiment.record.run(settings, lambda: train(start(), data, recipe, 0))
        print(f"full head, lr {recipe.lr:g}: validation {100 * result['val']:.1f} %", file=sys.stderr, flush=True)
        return result

    results = {replace(TUNED, lr=lr): attempt(replace(TUNED, lr=lr)) for lr in GRID}
    best = max(results, key=lambda recipe: results[recipe]["val"])

    @cache
    def make() -> nn.Linear:
        head = start()
        train(head, data, best, 0)
        return head

    return HeadSource(make, {"head": asdict(best)}, (data.classes, data.width), results[best]["test"])


def measure(experiment: Experiment, make: Callable[[], nn.Linear], way: str, rank: int) -> dict[str, Any]:
    """The residual energy of one approximation; where there are features also the test accuracy with it."""
    subject, head = experiment.data, make()
    compressed = copy.deepcopy(head)
    with torch.no_grad():
        compressed.weight.copy_(approximation(head, subject.importance, way, rank, experiment.options.sweeps))
    residual = residual_energy(head.weight.detach(), compressed.weight, subject.importance)
    test = None if subject.features is None else accuracy(compressed, *subject.features.test)
    return {"residual": residual, "test": test}


@torch.no_grad()
def approximation(head: nn.Linear, importance: Tensor | None, way: str, rank: int, sweeps: int) -> Tensor:
    """The weight (out, in) that stands for the head's own."""
    weight = head.weight
    if way == "svd":
        h = torch.ones(()) if importance is None else importance.double()
        left: Tensor = torch.linalg.svd(weight.double() * h.sqrt().to(weight.device), full_matrices=False).U[:, :rank]
        return left @ (left.mT @ weight.double())
    if way == "singular":
        layer = LaplexLinear(head.in_features, head.out_features, False, kernels=rank, device=weight.device)
        return best_sum(layer.init_from(weight), weight, importance)
    return LaplexLinear.from_linear(head, rank, importance=importance, sweeps=sweeps).to_dense()


def best_sum(layer: LaplexLinear, weight: Tensor, importance: Tensor | None) -> Tensor:
    """The kernels of the layer, summed with the weights that leave the least residual energy."""
    kernels = kernel(layer.a.double(), layer.b.double(), layer.tau.double())  # (r, out, in)
    root = torch.ones_like(kernels[0, 0]) if importance is None else importance.double().sqrt()
    columns = (kernels * root).flatten(1).mT
    target = (weight.double() * root).reshape(-1, 1)
    # The normal equations may be singular where two kernels are equal; the pseudo-inverse is not.
    solved = torch.linalg.pinv(columns.mT @ columns, hermitian=True) @ (columns.mT @ target)
    approximated: Tensor = torch.tensordot(solved[:, 0], kernels, 1)
    return approximated


@torch.no_grad()
def residual_energy(weight: Tensor, other: Tensor, importance: Tensor | None) -> float:
    """sum_ij h_j (W_ij - V_ij)^2 / sum_ij h_j W_ij^2, in float64."""
    h = 1.0 if importance is None else importance.double()
    error = (weight.double() - other.double()).square() * h
    return float(error.sum() / (weight.double().square() * h).sum())


# --- The table -------------------------------------------------------------------------------------------------------


def _write(experiment: Experiment, source: HeadSource, results: dict[tuple[str, int], dict[str, Any]]) -> None:
    """The page and, where matplotlib is installed, the plot."""
    rows, cols = source.shape
    lines = [("the head itself", "", f"{rows * cols:,}", "0", _percent(source.test))]
    curves: dict[str, list[Point]] = {title: [] for title in WAYS.values()}
    for (way, rank), result in results.items():
        numbers = rank * (rows + cols) + (0 if way == "svd" else rank)
        lines.append((WAYS[way], str(rank), f"{numbers:,}", f"{result['residual']:.3f}", _percent(result["test"])))
        curves[WAYS[way]].append(Point(numbers, result["residual"]))
    title = f"{experiment.data.name}, {rows} x {cols}, compressed"
    panel = Panel(("parameters", "residual energy"), curves)
    report.write(experiment.record.path, title, [Section(HEADER, lines, [NOTE])], [panel])


def _percent(fraction: float | None) -> str:
    return "" if fraction is None else f"{100 * fraction:.1f}"
