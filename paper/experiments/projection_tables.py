"""The tables and the plot of `python -m paper experiment projection`, next to the paper's figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from paper.experiments import published, report
from paper.experiments.projection_maps import FROZEN, TITLES, TRAINED, Projection
from paper.experiments.report import Panel, Point, Section

ACCURACY = "Accuracy on the validation images in percent, the mean and the standard deviation over seeds. "
OF_FROZEN = (
    f"{ACCURACY}The weight decay of the head was chosen on held-out train rows; in brackets is the accuracy if the "
    "validation images choose it, which flatters. Numbers are those that the projection stores, over all m; a Gaussian "
    "one is drawn again from its seed. PCA and places come from the data, so that only the start of the head differs "
    "between their seeds. Bold: the best of each column.",
    f"The paper's rows are {published.PROJECTIONS_DATA} ({published.FROZEN_SOURCE}): other images. It does not "
    "say whether its LAPLEX has phases or signs, nor how its head is regularised.",
)
OF_TRAINED = (
    f"{ACCURACY}It is that after the last epoch; the validation images chose nothing. Numbers are all trained ones, "
    "batch norm and head included. Bold: the best of each column.",
    f"The paper's rows are {published.PROJECTIONS_DATA} ({published.TRAINED_SOURCE}): other images. It does not "
    "say how its anchors start.",
)


@dataclass(frozen=True)
class ProjectionResult:
    """What a projection reached at one width: fractions, over ``seeds`` seeds."""

    projection: Projection
    width: int
    numbers: int
    val: float
    deviation: float
    seeds: int
    held: float | None = None  # accuracy on held-out train rows; trained projections have none
    best: float | None = None  # accuracy where the validation images choose the weight decay
    diverged: int = 0  # of the seeds; each counts as 0 in the mean

    @property
    def text(self) -> str:
        """The accuracy in percent."""
        flattered = "" if self.best is None else f" ({100 * self.best:.1f})"
        return report.percent(self.val, self.deviation, self.seeds, self.diverged) + flattered

    @property
    def line(self) -> str:
        """What is printed when it is measured."""
        regime = "trained" if self.projection.method in TRAINED else "frozen"
        return f"{regime} {self.projection}, m = {self.width}: {self.text} %"


def write(path: Path, name: str, results: Sequence[ProjectionResult], *, quick: bool = False) -> None:
    """Write the tables and the plot next to the file of results; both say so if it is a quick look."""
    title = f"Projections of {name}" + (", a quick look: too short to compare methods" if quick else "")
    sections, panels = [], []
    for heading, methods, notes in (("Frozen", FROZEN, OF_FROZEN), ("Trained with the head", TRAINED, OF_TRAINED)):
        own = [result for result in results if result.projection.method in methods]
        if own:
            sections.append(_section(heading, own, notes))
            panels.append(Panel(("width m", "validation accuracy, %"), _curves(own), title=heading))
    report.write(path, title, sections, panels)


def _section(heading: str, results: Sequence[ProjectionResult], notes: Sequence[str]) -> Section:
    """One line per projection, and below the last one of each tau the line of the paper."""
    widths = sorted({result.width for result in results})
    best = {width: max(result.val for result in results if result.width == width) for width in widths}
    projections = list(dict.fromkeys(result.projection for result in results))
    lines = []
    for index, projection in enumerate(projections):
        lines.append(_line([result for result in results if result.projection == projection], widths, best))
        following = projections[index + 1] if index + 1 < len(projections) else None
        if following is None or _published_as(following) != _published_as(projection):
            lines += _paper_line(projection, widths)
    return Section(["projection", "numbers", *(f"m = {width}" for width in widths)], lines, notes, heading)


def _line(results: list[ProjectionResult], widths: list[int], best: dict[int, float]) -> list[str]:
    texts = {one.width: f"**{one.text}**" if one.val == best[one.width] else one.text for one in results}
    least, most = min(result.numbers for result in results), max(result.numbers for result in results)
    numbers = f"{least:,}" if least == most else f"{least:,} to {most:,}"
    return [str(results[0].projection), numbers, *(texts.get(width, "") for width in widths)]


def _published_as(projection: Projection) -> tuple[str, float | None]:
    """The key of the paper's figures: it names a tau for frozen projections only."""
    return projection.method, projection.tau if projection.method in FROZEN else None


def _paper_line(projection: Projection, widths: list[int]) -> list[list[str]]:
    method, tau = _published_as(projection)
    figures = published.projection(method, tau)
    if not any(width in figures for width in widths):
        return []
    title = TITLES[method].split(",")[0] + ("" if tau is None else f", tau = {tau:g}")
    return [[f"paper: {title}", "", *(str(figures.get(width, "")) for width in widths)]]


def _curves(results: Sequence[ProjectionResult]) -> dict[str, list[Point]]:
    """Accuracy over m, one curve per method: at each m its projection that is best on held-out rows."""
    best: dict[tuple[str, int], ProjectionResult] = {}
    for result in results:
        key = result.projection.method, result.width
        if key not in best or (result.held or 0.0) > (best[key].held or 0.0):
            best[key] = result
    curves: dict[str, list[Point]] = {}
    for (method, width), result in best.items():
        curves.setdefault(TITLES[method], []).append(Point(width, 100 * result.val, 100 * result.deviation))
    return curves
