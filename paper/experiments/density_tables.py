"""The tables and the plot of `python -m paper experiment density`, next to the paper's figures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from paper.experiments import published, report
from paper.experiments.density_data import Data
from paper.experiments.density_runs import RECIPE_FIELDS, DensitySpec, budget
from paper.experiments.published import Likelihood
from paper.experiments.record import Experiment
from paper.experiments.report import Panel, Point, Section
from paper.methods.gaussian import matched_rank

POINTS = 8  # of a curve over seconds
METHODS = {
    "em": "EM",
    "em-adam": "EM, then Adam",
    "adam": "Adam",
    "diagonal": "Adam, diagonal latent covariance",
    "low-rank": "dense low rank, Adam",
    "ppca": "PPCA",
    "empirical": "empirical Gaussian",
}
PLACES = {
    "tree": "from the tree",
    "curve": "from a Hilbert curve",
    "raster": "from raster order",
    "random": "from random places",
}
COLUMNS = ("model", "rank", "parameters", "validation", "closure, %")
MORE = ("bits per value", "RMSE", "train", "seconds", "peak, GB")
PAPER = ("paper: likelihood", "paper: closure, %")


@dataclass(frozen=True)
class DensityResult:
    """What was fitted, and the result of its run."""

    spec: DensitySpec
    result: dict[str, Any]

    @property
    def val(self) -> float:
        """The mean log-likelihood of the validation images."""
        return float(self.result["val"]["log_likelihood"])

    @property
    def title(self) -> str:
        """What was fitted, in words; the rank has a column of its own."""
        one = self.spec
        size = f"q = {one.functions}" if one.functions else f"I = {one.components}" if one.components else ""
        ridge = f"ridge {self.result['ridge']:.3g}" if "ridge" in self.result else ""
        still = "no jumps" if one.functions and not one.jump else ""
        permuted = "permuted pixels" if one.permuted else ""
        diverged = f"diverged in epoch {self.result['diverged_in_epoch']}" if "diverged_in_epoch" in self.result else ""
        parts = METHODS[one.method], size, PLACES.get(one.start, ""), still, permuted, ridge, diverged
        return ", ".join(filter(None, parts))

    @property
    def text(self) -> str:
        """The likelihood of the validation images, and in percent its closure."""
        part = closure(self.result["val"])
        return f"{self.val:,.0f}" + (f" ({part} %)" if part else "")


def write(experiment: Experiment[Any, Data], results: Sequence[DensityResult], starts: Sequence[DensityResult]) -> None:
    """Write the tables and the plot next to the file of results; ``starts`` are the results of the study of starts."""
    title = f"Gaussian densities of {experiment.options.name}, n = {experiment.data.dim:,}"
    title += ", a quick look: too short to compare methods" if experiment.options.quick else ""
    sections = [_models(experiment, results)]
    if starts:
        sections.append(_starts(starts))
    report.write(experiment.record.path, title, sections, _panels(results))


# --- Tables ----------------------------------------------------------------------------------------------------------


def _models(experiment: Experiment[Any, Data], results: Sequence[DensityResult]) -> Section:
    tested = experiment.data.test is not None
    header = [*COLUMNS, *(("test", "closure, %") if tested else ()), *MORE, *PAPER]
    dim, rank = experiment.data.dim, experiment.options.rank
    lines = [_line(one, published_figure(dim, rank, one.spec), tested) for one in results]
    rounds = experiment.options.rounds if any("rounds" in RECIPE_FIELDS[one.spec.method] for one in results) else 0
    return Section(header, lines, _notes(experiment.data, rounds), "Models")


def _line(one: DensityResult, paper: Likelihood | None, tested: bool) -> list[str]:
    result = one.result
    figures = [_likelihood(result["val"]), closure(result["val"])]
    if tested:
        figures += [_likelihood(result["test"]), closure(result["test"])]
    return [
        one.title,
        f"{one.spec.rank or result['rank']:,}",
        f"{result['parameters']:,}",
        *figures,
        f"{result['val']['bits_per_dim']:.3f}",
        f"{result['val']['rmse']:.4f}",
        _likelihood(result["train"]),
        f"{result['seconds']:,.1f}",
        "" if result["peak_bytes"] is None else f"{result['peak_bytes'] / 1e9:.2f}",
        "" if paper is None else f"{paper.log_likelihood:,}",
        "" if paper is None or paper.closure is None else f"{100 * paper.closure:.0f}",
    ]


def _likelihood(part: dict[str, float]) -> str:
    return f"{part['log_likelihood']:,.0f}"


def closure(part: dict[str, Any]) -> str:
    """In percent; nothing where there is none."""
    return "" if part["closure"] is None else f"{100 * part['closure']:.1f}"


def published_figure(dim: int, rank: int, spec: DensitySpec) -> Likelihood | None:
    """The paper's figure for the same budget: q functions have the values per pixel of q - 1 components with phases.

    Args:
        dim: values of an image.
        rank: of the models with components, whose budgets dense ones are matched to.
        spec: our model.
    """
    method = {"em": "laplex", "em-adam": "laplex", "adam": "laplex"}.get(spec.method, spec.method)
    if method == "empirical":
        same = [0]
    elif rank != published.DENSITY_RANK:
        same = []
    elif method == "laplex":
        same_rank = spec.rank == rank - rank % max(spec.functions, 1)  # q divides the rank of EM
        same = [spec.components or spec.functions - 1] if same_rank else []
    else:
        budgets = {number: budget(dim, DensitySpec("adam", rank, components=number)) for number in (1, 2, 3)}
        same = [number for number, count in budgets.items() if matched_rank(count, dim) == spec.rank]
    models = published.densities(dim).models
    return next((one for one in models if one.method == method and one.components in same), None)


def _notes(data: Data, rounds: int) -> list[str]:
    train, val, test = (0 if one is None else len(one) for one in (data.train, data.val, data.test))
    fit = f"{train:,} images were fitted" + (f", by EM in {rounds} rounds" if rounds else "")
    paper = published.densities(data.dim)
    counted = "beyond the data" if data.device.type != "cpu" else "of the process so far, the data included"
    return [
        f"The mean log-likelihood of an image, in nats, of values from 0 to 1; {fit}. "
        f"The ridge of the empirical Gaussian was chosen on {val:,} validation images"
        + (f"; {test:,} test images chose nothing. " if test else ", and nothing else. ")
        + "Closure is the likelihood over that of the empirical Gaussian, where that is positive. Bits and RMSE (of "
        "the most likely image without noise) are of validation images; train is of as many of the train images.",
        f"Seconds are those of the fit after the images were read, the search for places included; programs of a GPU "
        "were compiled before. Peak is the memory "
        f"{counted}. The mean is estimated and not counted among parameters; dense low rank has n (r + 1), and PPCA is "
        "counted as n (r + 1) + r, as the paper does.",
        f"The paper's figures are {paper.name} (n = {paper.dim:,}; {paper.source}): other images, so that closures can "
        "be compared and likelihoods cannot. Its LAPLEX model with I components stands beside Adam with I components, "
        "and beside EM with q = I + 1 functions, which has as many values per pixel; its dense models stand beside "
        "those with the parameters of the same I.",
    ]


def _starts(results: Sequence[DensityResult]) -> Section:
    """One line per start; columns with and without jumps, pixels as they are and permuted."""
    columns = [(jump, permuted) for permuted in (False, True) for jump in (True, False)]
    texts = {(one.spec.start, one.spec.jump, one.spec.permuted): one.text for one in results}
    header = ["start"]
    for jump, permuted in columns:
        header.append(("permuted pixels" if permuted else "pixels as they are") + ("" if jump else ", no jumps"))
    lines = []
    for start in dict.fromkeys(one.spec.start for one in results):
        lines.append([PLACES[start], *(texts.get((start, *column), "") for column in columns)])
    first = results[0].spec
    notes = [
        f"EM with q = {first.functions} and rank {first.rank:,}: the log-likelihood of validation images, and its "
        "closure. Without jumps a pixel keeps the place that it started from. The tree knows the train images and no "
        "positions; a Hilbert curve and raster order know positions, which a permutation takes away.",
    ]
    return Section(header, lines, notes, "Starts")


# --- The plot --------------------------------------------------------------------------------------------------------


def _panels(results: Sequence[DensityResult]) -> list[Panel]:
    sizes: dict[str, list[Point]] = {}
    times: dict[str, list[Point]] = {}
    level = None
    for one in results:
        spec, point = one.spec, Point(one.result["parameters"], one.val)
        if spec.method == "empirical":
            level = point
            continue
        kind = METHODS[spec.method] + (f", q = {spec.functions}" if spec.functions else "")
        sizes.setdefault(kind, []).append(point)
        if spec.method in ("em", "adam", "diagonal"):  # more curves would hide each other
            times[f"{one.title}, rank {spec.rank}"] = _thin(one.result["history"])
    panels = [Panel(("parameters", "validation log-likelihood"), sizes, level, ticks=_ticks(sizes))]
    if times:
        panels.append(Panel(("seconds", "train log-likelihood"), times, ticks=_ticks(times)))
    return panels


def _thin(history: Sequence[Sequence[float]]) -> list[Point]:
    """Some points of a history, the last one included, about evenly spaced on a logarithmic axis.

    What lies far below the end is left out: the first rounds would take most of the plot.
    """
    end = history[-1][1]
    near = [one for one in history if end - one[1] <= max(abs(end) / 3, 1.0)]
    last = len(near) - 1
    places = {round((last + 1) ** (index / (POINTS - 1))) - 1 for index in range(POINTS)}
    return [Point(max(near[index][0], 1e-3), near[index][1]) for index in sorted(places | {last})]


def _ticks(curves: dict[str, list[Point]]) -> list[float]:
    """1, 2 and 5 times powers of ten within the curves, and one outside on either side."""
    places = [point.x for points in curves.values() for point in points]
    low, high = min(places), max(places)
    powers = range(math.floor(math.log10(low)) - 1, math.ceil(math.log10(high)) + 1)
    steps = [digit * 10.0**power for power in powers for digit in (1, 2, 5)]
    below, above = [one for one in steps if one <= low], [one for one in steps if one >= high]
    return [*below[-1:], *(one for one in steps if low < one < high), *above[:1]]
