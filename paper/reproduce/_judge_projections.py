"""Outcomes of the projections, from the results of `python -m paper experiment projection`."""

from __future__ import annotations

import statistics
from collections import defaultdict
from typing import NamedTuple

from paper.entry import Entry, Figure, Outcome, Plot, Series
from paper.experiments import published
from paper.experiments.projection_maps import TITLES
from paper.judging import OF_RIVAL, condition, held, judged, not_run, unjudged
from paper.results import Results, Run, Shelf

AGNOSTIC = ("countsketch", "gaussian")  # rivals that know nothing of the data
LARGEST, SMALLEST = 1000, 25
TRAINED_WIDTHS = (25, 100, 500, 1000)
DIFFER = "The images are ImageNette's, where the paper has its own ten classes of ImageNet"
MISSING = "No results of `python -m paper experiment projection`; give the images with --data."


class Reached(NamedTuple):
    """Accuracies in percent, means over seeds: on validation images, and on held-out train images if there are any."""

    val: float
    held: float | None


Cells = dict[tuple[str, float | None, bool, bool], dict[int, Reached]]  # method, tau, phase, signs; then by width


def frozen(entry: Entry, shelf: Shelf) -> Outcome:
    """Random LAPLEX beside CountSketch, Gaussian projections and PCA."""
    sources = shelf.experiments("projection-*")
    figures, plots, words = [], [], []
    plain: list[float] = []  # accuracies without phases and signs
    for source in sources:
        cells = _cells(source)
        name = _name(source)
        if not _has(cells, *AGNOSTIC, "pca", "laplex"):
            continue
        best, lead = _best_random(cells)
        rivals = {method: cells[method, None, False, False] for method in (*AGNOSTIC, "pca")}
        plain += [
            one.val for key, found in cells.items() if key[0] == "laplex" and not any(key[2:]) for one in found.values()
        ]
        words.append(f"with {name} random LAPLEX leads by {lead:.1f} points at m = {LARGEST}")
        figures += _frozen_figures(name, best, rivals, lead)
        plots.append(_plot(f"Frozen projections, {name}", _frozen_series(cells, best)))
    if not figures:
        return not_run(entry, MISSING)
    reason = f"{DIFFER}; {', '.join(words)}, the paper's by {_paper_lead():.1f}. It needs phases or signs, and a small "
    reason += f"tau: without either, and the paper mentions neither, it has {min(plain):.0f} to {max(plain):.0f} %."
    return judged(entry, reason, sources, figures=figures, plots=plots)


def trained(entry: Entry, shelf: Shelf) -> Outcome:
    """Trained LAPLEX beside a trained dense projection."""
    sources = shelf.experiments("projection-*")
    figures, plots, words = [], [], []
    for source in sources:
        cells = _cells(source)
        if not _has(cells, "trained-laplex", "trained-dense"):
            continue
        ours, dense = _merged(cells, "trained-laplex"), _merged(cells, "trained-dense")
        leads = {m: ours[m].val - dense[m].val for m in TRAINED_WIDTHS if m in ours and m in dense}
        theirs = {m: _paper("trained-laplex", m) - _paper("trained-dense", m) for m in leads}
        name = _name(source)
        words.append(f"with {name} by {min(leads.values()):.1f} to {max(leads.values()):.1f} points")
        for m, lead in leads.items():
            verdict = held(lead >= 0, lead > theirs[m])
            figures.append(Figure(f"lead over dense, m = {m}, {name}", theirs[m], lead, "points", "higher", verdict))
        plots.append(_plot(f"Trained projections, {name}", _trained_series(cells)))
    if not figures:
        return not_run(entry, MISSING)
    reason = f"{DIFFER}, so that levels differ; trained LAPLEX from a random start leads dense "
    reason += f"{', '.join(words)}, the paper's by {min(theirs.values()):.1f} to {max(theirs.values()):.1f}."
    return judged(entry, reason, sources, figures=figures, plots=plots)


# --- Reading ---------------------------------------------------------------------------------------------------------


def _cells(source: Results) -> Cells:
    """Accuracies of every projection on the data, and under the recipe, that were run last."""
    groups: dict[tuple[str, float | None, bool, bool, int], dict[str, list[Run]]] = defaultdict(dict)
    for run in source.of_last("data").runs:
        one = run.settings
        key = one["method"], one["tau"], one["phase"], one["signs"], one["width"]
        recipe = f"{one['lr']} {one.get('epochs')}"
        groups[key].setdefault(recipe, []).append(run)
    cells: Cells = defaultdict(dict)
    for (method, tau, phase, signs, width), recipes in groups.items():
        newest = max(recipes.values(), key=lambda runs: max(run.date for run in runs))
        kept = [run.result["held"] for run in newest if "held" in run.result]
        val = 100 * statistics.fmean(run.result["val"] for run in newest)
        cells[method, tau, phase, signs][width] = Reached(val, 100 * statistics.fmean(kept) if kept else None)
    return dict(cells)


def _has(cells: Cells, *methods: str) -> bool:
    """Whether all methods were run at the widths that are judged."""
    widths = {method: {m for key, found in cells.items() if key[0] == method for m in found} for method in methods}
    return all({SMALLEST, LARGEST} <= found for found in widths.values())


def _merged(cells: Cells, method: str) -> dict[int, Reached]:
    """A trained method, which has one variant."""
    return next(found for key, found in cells.items() if key[0] == method)


def _best_random(cells: Cells) -> tuple[dict[int, Reached], float]:
    """The random LAPLEX that is best on held-out train images at the largest m, and its lead there."""
    variants = [found for key, found in cells.items() if key[0] == "laplex" and LARGEST in found]
    best = max(variants, key=lambda found: found[LARGEST].held or 0.0)
    rival = max(cells[method, None, False, False][LARGEST].val for method in AGNOSTIC)
    return best, best[LARGEST].val - rival


def _name(source: Results) -> str:
    """The data, from the name of the file: projection-imagenette224-3000."""
    _, *parts = source.path.stem.split("-")
    return f"{parts[-1]} images" if parts[-1].isdecimal() else "-".join(parts)


def _paper(method: str, width: int, tau: float | None = None) -> float:
    return published.projection(method, tau)[width].mean


def _paper_lead() -> float:
    """Of the best frozen LAPLEX over the other maps that know nothing of the data, at the largest m."""
    return _best_of_paper(LARGEST) - max(_paper(method, LARGEST) for method in AGNOSTIC)


def _best_of_paper(width: int) -> float:
    """The best frozen LAPLEX of the paper."""
    return max(_paper("laplex", width, tau) for tau in (0.01, 0.05, 0.1, 0.5, 1.0))


# --- Figures and plots -----------------------------------------------------------------------------------------------


def _frozen_figures(
    name: str, best: dict[int, Reached], rivals: dict[str, dict[int, Reached]], lead: float
) -> list[Figure]:
    small = {method: found[SMALLEST].val for method, found in rivals.items()}
    ahead = small["pca"] - max(best[SMALLEST].val, *(small[method] for method in AGNOSTIC))
    others = [_best_of_paper(SMALLEST), *(_paper(method, SMALLEST) for method in AGNOSTIC)]
    first = f"lead of PCA over all of these at m = {SMALLEST}, {name}", _paper("pca", SMALLEST) - max(others), ahead
    verdict = held(lead > 0, lead > _paper_lead())
    figures = [
        Figure(f"lead at m = {LARGEST}, {name}", _paper_lead(), lead, "points", "higher", verdict),
        condition(*first, "points", "higher", ahead > 0),
    ]
    levels = {"LAPLEX": (_best_of_paper(LARGEST), best[LARGEST].val, "other images")}
    levels |= {TITLES[one]: (_paper(one, LARGEST), found[LARGEST].val, OF_RIVAL) for one, found in rivals.items()}
    for method, (paper, ours, note) in levels.items():
        figures.append(unjudged(f"{method}, m = {LARGEST}, {name}", paper, ours, "%", "higher", note))
    return figures


def _frozen_series(cells: Cells, best: dict[int, Reached]) -> list[Series]:
    rows = {method: cells[method, None, False, False] for method in (*AGNOSTIC, "pca")}
    found = [_series("LAPLEX, random, best on held-out images", best)]
    found += [_series(TITLES[method], row) for method, row in rows.items()]
    placed = cells.get(("placed", 0.002, False, False))
    if placed:
        found.append(_series("LAPLEX, pixels placed by laplex.seriate", placed))
    found.append(_paper_series("laplex", 0.1, "LAPLEX, tau = 0.1"))
    return [*found, *(_paper_series(method, None, TITLES[method]) for method in rows)]


def _trained_series(cells: Cells) -> list[Series]:
    found = [_series(TITLES[key[0]], row) for key, row in cells.items() if key[0].startswith("trained-")]
    found.append(_paper_series("trained-laplex", None, "LAPLEX"))
    return [*found, _paper_series("trained-dense", None, "dense")]


def _series(label: str, found: dict[int, Reached]) -> Series:
    widths = sorted(found)
    return Series(label, [float(width) for width in widths], [found[width].val for width in widths])


def _paper_series(method: str, tau: float | None, label: str) -> Series:
    figures = published.projection(method, tau)
    widths = sorted(figures)
    values: list[float | None] = [figures[width].mean for width in widths]
    return Series(f"{label}, paper", [float(width) for width in widths], values, of_paper=True)


def _plot(title: str, series: list[Series]) -> Plot:
    return Plot(title, "width m", "validation accuracy, %", series, "log10")
