"""The table and the plot of `python -m paper experiment heads`, next to the paper's figures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from paper.experiments import published, report
from paper.experiments.report import Panel, Point, Section
from paper.methods.heads import Count

HEADER = ("method", "start", "r", "size", "trained", "stored", "learning rate", "validation %", "test %")
AT_END = " (end of grid)"
TUNED = (
    "The learning rate of each row was chosen on validation rows by one seed; one at the end of the grid is marked, "
    "because a better one may lie beyond it."
)
PAPER = (
    "The recipe is the paper's (Table 5): 30 epochs of batches of 128, and one learning rate for all structured heads. "
    "Its epochs of ImageNet have more steps than these: all rates are scaled so that steps times rate, about as far as "
    "Adam can carry an anchor, is the paper's."
)
CHOSEN = (
    "Test accuracy is the mean and the standard deviation over seeds. Bold: the start of each method with the best "
    "validation accuracy. Trained and stored are numbers of parameters; r is the rank of the LAPLEX head whose budget "
    "the row has, size its own rank, number of terms or width."
)
ELSEWHERE = (
    f"The paper's columns are {published.HEADS_DATA} ({published.HEADS_SOURCE}): other data and networks, so "
    "that orders of methods may be compared and levels may not. It does not say how its anchors start."
)


@dataclass(frozen=True)
class HeadResult:
    """A head, and what it reached: fractions, over ``seeds`` seeds."""

    method: str
    start: str
    rank: int | None  # the LAPLEX rank that sets the budget; None for the full head
    size: int
    parameters: Count
    lr: float
    at_end: bool  # the learning rate is the first or the last of the grid
    val: float
    test: float
    deviation: float
    seeds: int
    diverged: int = 0  # of the seeds; each counts as 0 in the means

    @property
    def text(self) -> str:
        """The test accuracy in percent."""
        return report.percent(self.test, self.deviation, self.seeds, self.diverged)

    @property
    def line(self) -> str:
        """What is printed when it is measured."""
        start = "" if self.start == "random" else f", {self.start}"
        rank = "" if self.rank is None else f", r = {self.rank}"
        return f"{self.method}{start}{rank}: lr {self.lr:g}, test {self.text}"


def write(results: Path, name: str, recipe: str, rows: list[HeadResult], *, quick: bool = False) -> None:
    """Write the table and the plot next to the file of results; both say so if it is a quick look."""
    curves, level = _curves(rows)
    title = f"Heads on {name}, recipe {recipe}" + (", a quick look: too short to compare methods" if quick else "")
    panel = Panel(("parameters", "test accuracy, %"), curves, level)
    report.write(results, title, [_section(recipe, rows)], [panel])


def best_starts(rows: Sequence[HeadResult]) -> list[HeadResult]:
    """For each method and rank the start that is best on validation rows."""
    best: dict[tuple[str, int | None], HeadResult] = {}
    for row in rows:
        key = row.method, row.rank
        if key not in best or row.val > best[key].val:
            best[key] = row
    return list(best.values())


def _section(recipe: str, rows: list[HeadResult]) -> Section:
    """The table, with rows by rank, and its notes."""
    networks = [f"paper, {network}" for network in published.NETWORKS]
    best = best_starts(rows)
    lines = [_line(row, row in best) for row in sorted(rows, key=lambda row: (row.rank or 0, rows.index(row)))]
    return Section([*HEADER, *networks], lines, [TUNED if recipe == "tuned" else PAPER, CHOSEN, ELSEWHERE])


def _line(row: HeadResult, best: bool) -> list[str]:
    rank, size = ("", "") if row.rank is None else (str(row.rank), str(row.size))
    cells = [row.method, row.start, rank, size, f"{row.parameters.trained:,}", f"{row.parameters.stored:,}"]
    cells += [f"{row.lr:g}{AT_END if row.at_end else ''}", f"{100 * row.val:.1f}"]
    cells.append(f"**{row.text}**" if best else row.text)
    figures = [published.head(network, row.method, row.rank) for network in published.NETWORKS]
    return cells + ["" if one is None else f"{one.accuracy:.2f} ± {one.deviation:.2f}" for one in figures]


def _curves(rows: list[HeadResult]) -> tuple[dict[str, list[Point]], Point | None]:
    """Test accuracy over parameters, one curve per method, each with its best start; and the full head."""
    curves: dict[str, list[Point]] = {}
    level = None
    for row in best_starts(rows):
        # PCA whose stored numbers count is placed at what it stores.
        numbers = row.parameters.stored if row.method == "pca-stored" else row.parameters.trained
        point = Point(numbers, 100 * row.test, 100 * row.deviation)
        if row.rank is None:
            level = point
        else:
            curves.setdefault(row.method, []).append(point)
    return curves, level
