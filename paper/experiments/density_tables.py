"""The tables and the plot of `python -m paper experiment density`, with the paper's figures beside ours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paper.methods.gaussian import matched_rank
from paper.experiments import published, report
from paper.experiments.density_runs import Variant, budget
from paper.experiments.published import Likelihood
from paper.experiments.report import Panel, Point, Section

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
MORE = ("bits a value", "RMSE", "train", "seconds", "peak, GB")
PAPER = ("paper: likelihood", "paper: closure, %")


@dataclass(frozen=True)
class Cell:
    """A variant and the result of its run."""

    variant: Variant
    result: dict[str, Any]

    @property
    def val(self) -> float:
        """The mean log-likelihood of the validation images."""
        return float(self.result["val"]["log_likelihood"])

    @property
    def title(self) -> str:
        """What was fitted, in words; the rank has a column of its own."""
        one = self.variant
        size = f"q = {one.functions}" if one.functions else f"I = {one.components}" if one.components else ""
        ridge = f"ridge {self.result['ridge']:.3g}" if "ridge" in self.result else ""
        still = "no jumps" if one.functions and not one.jump else ""
        permuted = "permuted pixels" if one.permuted else ""
        diverged = f"diverged in epoch {self.result['diverged_in_epoch']}" if "diverged_in_epoch" in self.result else ""
        parts = METHODS[one.method], size, PLACES.get(one.start, ""), still, permuted, ridge, diverged
        return ", ".join(filter(None, parts))

    @property
    def shown(self) -> str:
        """The likelihood of the validation images, and in percent its closure."""
        part = closure(self.result["val"])
        return f"{self.val:,.0f}" + (f" ({part} %)" if part else "")


@dataclass(frozen=True)
class Page:
    """What all tables need to know."""

    name: str
    dim: int
    counts: tuple[int, int, int]  # of train, validation and test images
    rounds: int  # of EM; 0 where nothing was fitted by it
    rank: int  # of the models with components, whose budgets dense ones are matched to
    device: str
    quick: bool


def write(results: Path, page: Page, cells: Sequence[Cell], starts: Sequence[Cell]) -> None:
    """The tables and the plot beside the file of results; ``starts`` are the cells of the study of starts."""
    title = f"Gaussian densities of {page.name}, n = {page.dim:,}"
    title += ", a quick look: too short to compare methods" if page.quick else ""
    sections = [_models(page, cells)]
    if starts:
        sections.append(_starts(starts))
    report.write_sections(results, title, sections, _panels(cells))


# --- Tables ----------------------------------------------------------------------------------------------------------


def _models(page: Page, cells: Sequence[Cell]) -> Section:
    tested = page.counts[2] > 0
    header = [*COLUMNS, *(("test", "closure, %") if tested else ()), *MORE, *PAPER]
    lines = [_line(page, cell, tested) for cell in cells]
    return Section(header, lines, _notes(page), "Models")


def _line(page: Page, cell: Cell, tested: bool) -> list[str]:
    result = cell.result
    paper = _published(page, cell.variant)
    figures = [_likelihood(result["val"]), closure(result["val"])]
    if tested:
        figures += [_likelihood(result["test"]), closure(result["test"])]
    return [
        cell.title,
        f"{cell.variant.rank or result['rank']:,}",
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


def _published(page: Page, variant: Variant) -> Likelihood | None:
    """The paper's figure for the same budget: q functions have the values a pixel of q - 1 components with phases."""
    of = {"em": "laplex", "em-adam": "laplex", "adam": "laplex"}.get(variant.method, variant.method)
    if of == "empirical":
        same = [0]
    elif page.rank != published.DENSITY_RANK:
        same = []
    elif of == "laplex":
        alike = variant.rank == page.rank - page.rank % max(variant.functions, 1)  # q divides the rank of EM
        same = [variant.components or variant.functions - 1] if alike else []
    else:
        same = [number for number in (1, 2, 3) if _dense_rank(page, number) == variant.rank]
    found = (one for one in published.densities(page.dim).models if one.method == of and one.components in same)
    return next(found, None)


def _dense_rank(page: Page, components: int) -> int:
    return matched_rank(budget(page.dim, Variant("adam", page.rank, components=components)), page.dim)


def _notes(page: Page) -> list[str]:
    train, val, test = page.counts
    rounds = f", by EM in {page.rounds} rounds" if page.rounds else ""
    paper = published.densities(page.dim)
    counted = "beyond the data" if page.device != "cpu" else "of the process so far, the data included"
    return [
        f"The mean log-likelihood of an image, in nats, of values from 0 to 1; {train:,} images were fitted{rounds}. "
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
        "and beside EM with q = I + 1 functions, which has as many values a pixel; its dense models stand beside those "
        "with the parameters of the same I.",
    ]


def _starts(cells: Sequence[Cell]) -> Section:
    """One line a start; columns with and without jumps, pixels as they are and permuted."""
    columns = [(jump, permuted) for permuted in (False, True) for jump in (True, False)]
    found = {(one.variant.start, one.variant.jump, one.variant.permuted): one for one in cells}
    header = ["start"]
    for jump, permuted in columns:
        header.append(("permuted pixels" if permuted else "pixels as they are") + ("" if jump else ", no jumps"))
    lines = []
    for start in dict.fromkeys(one.variant.start for one in cells):
        them = [found.get((start, *column)) for column in columns]
        lines.append([PLACES[start], *("" if one is None else one.shown for one in them)])
    first = cells[0].variant
    notes = [
        f"EM with q = {first.functions} and rank {first.rank:,}: the log-likelihood of validation images, and its "
        "closure. Without jumps a pixel keeps the place that it started from. The tree knows the train images and no "
        "positions; a Hilbert curve and raster order know positions, which a permutation takes away.",
    ]
    return Section(header, lines, notes, "Starts")


# --- The plot --------------------------------------------------------------------------------------------------------


def _panels(cells: Sequence[Cell]) -> list[Panel]:
    sizes: dict[str, list[Point]] = {}
    times: dict[str, list[Point]] = {}
    level = None
    for cell in cells:
        if cell.variant.method == "empirical":
            level = Point(cell.result["parameters"], cell.val)
            continue
        one = cell.variant
        kind = METHODS[one.method] + (f", q = {one.functions}" if one.functions else "")
        sizes.setdefault(kind, []).append(Point(cell.result["parameters"], cell.val))
        if cell.variant.method in ("em", "adam", "diagonal"):  # more curves would hide each other
            times[f"{cell.title}, rank {cell.variant.rank}"] = _thinned(cell.result["history"])
    panels = [Panel(("parameters", "validation log-likelihood"), sizes, level, ticks=_ticks(sizes))]
    if times:
        panels.append(Panel(("seconds", "train log-likelihood"), times, ticks=_ticks(times)))
    return panels


def _thinned(history: Sequence[Sequence[float]]) -> list[Point]:
    """Some points of a history, the last one included, about evenly spaced on a logarithmic axis.

    What lies far below the end is left out: the first rounds would take most of the plot.
    """
    end = history[-1][1]
    near = [one for one in history if end - one[1] <= max(abs(end) / 3, 1.0)]
    last = len(near) - 1
    chosen = {round((last + 1) ** (index / (POINTS - 1))) - 1 for index in range(POINTS)}
    return [Point(max(near[index][0], 1e-3), near[index][1]) for index in sorted(chosen | {last})]


def _ticks(curves: dict[str, list[Point]]) -> list[float]:
    """1, 2 and 5 times powers of ten within the curves, and one outside on either side."""
    found = [point.x for points in curves.values() for point in points]
    powers = range(math.floor(math.log10(min(found))) - 1, math.ceil(math.log10(max(found))) + 1)
    steps = [digit * 10.0**power for power in powers for digit in (1, 2, 5)]
    below, above = ([one for one in steps if one <= min(found)], [one for one in steps if one >= max(found)])
    return [*below[-1:], *(one for one in steps if min(found) < one < max(found)), *above[:1]]
