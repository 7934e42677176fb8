"""Projections of images to few numbers, by the experiment ``projection``; ``published`` has the paper's figures."""

from __future__ import annotations

import statistics
from collections import defaultdict
from typing import NamedTuple

from paper import datasets
from paper.entry import Entry, Figure, Outcome, Plot, Series
from paper.experiments import published
from paper.experiments.projection_maps import TITLES
from paper.judging import RIVAL, claim_verdict, condition, outcome, paper_series, unjudged
from paper.results import Archive, Results, Run, latest_recipe
from paper.running import Experiments, Options, Request

AGNOSTIC = ("countsketch", "gaussian")  # rivals that know nothing of the data
LARGEST, SMALLEST = 1000, 25
TRAINED_WIDTHS = (25, 100, 500, 1000)
TAUS = (0.01, 0.05, 0.1, 0.5, 1.0)  # of the paper's frozen LAPLEX
DIFFER = "The images are ImageNette's, where the paper has its own ten classes of ImageNet"


class Accuracy(NamedTuple):
    """In percent, means over seeds: on validation images, and on held-out train images if there are any."""

    val: float
    held_out: float | None


Widths = dict[int, Accuracy]
Cells = dict[tuple[str, float | None, bool, bool], Widths]  # by method, tau, phase, signs


def _options(request: Request) -> list[Options]:
    folder = datasets.imagenette(request.data)
    return [{"data": str(folder), "name": "imagenette224", "quick": request.quick}] if folder else []


# --- Judges ----------------------------------------------------------------------------------------------------------


def _frozen(entry: Entry, archive: Archive) -> Outcome | None:
    """Random LAPLEX compared with CountSketch, Gaussian projections and PCA."""
    sources = archive.experiments("projection-*")
    figures, plots, words = [], [], []
    plain: list[float] = []  # accuracies without phases and signs
    for source in sources:
        cells, name = _cells(source), _name(source)
        if not _has(cells, *AGNOSTIC, "pca", "laplex"):
            continue
        rivals = {method: cells[method, None, False, False] for method in (*AGNOSTIC, "pca")}
        best = _best_random(cells)
        lead = best[LARGEST].val - max(rivals[method][LARGEST].val for method in AGNOSTIC)
        plain += [
            accuracy.val
            for (method, _, phase, signs), widths in cells.items()
            if method == "laplex" and not phase and not signs
            for accuracy in widths.values()
        ]
        words.append(f"with {name} random LAPLEX leads by {lead:.1f} points at m = {LARGEST}")
        figures += _frozen_figures(name, best, rivals, lead)
        plots.append(_plot(f"Frozen projections, {name}", _frozen_series(cells, best)))
    if not figures:
        return None
    reason = f"{DIFFER}; {', '.join(words)}, the paper's by {_paper_lead():.1f}. It needs phases or signs, and a small "
    reason += f"tau: without either, and the paper mentions neither, it has {min(plain):.0f} to {max(plain):.0f} %."
    return outcome(entry, reason, sources, figures=figures, plots=plots)


def _frozen_figures(name: str, best: Widths, rivals: dict[str, Widths], lead: float) -> list[Figure]:
    small = {method: widths[SMALLEST].val for method, widths in rivals.items()}
    pca_lead = small["pca"] - max(best[SMALLEST].val, *(small[method] for method in AGNOSTIC))
    others = [_paper_best(SMALLEST), *(_paper(method, SMALLEST) for method in AGNOSTIC)]
    label = f"lead of PCA over all of these at m = {SMALLEST}, {name}"
    paper_lead = _paper("pca", SMALLEST) - max(others)
    verdict = claim_verdict(lead > 0, lead > _paper_lead())
    figures = [
        Figure(f"lead at m = {LARGEST}, {name}", _paper_lead(), lead, "points", "higher", verdict),
        condition(label, paper_lead, pca_lead, "points", "higher", pca_lead > 0),
    ]
    levels = {"LAPLEX": (_paper_best(LARGEST), best[LARGEST].val, "other images")}
    levels |= {
        TITLES[method]: (_paper(method, LARGEST), widths[LARGEST].val, RIVAL) for method, widths in rivals.items()
    }
    for method, (paper, ours, note) in levels.items():
        figures.append(unjudged(f"{method}, m = {LARGEST}, {name}", paper, ours, "%", "higher", note))
    return figures


def _trained(entry: Entry, archive: Archive) -> Outcome | None:
    """Trained LAPLEX compared with a trained dense projection."""
    sources = archive.experiments("projection-*")
    figures, plots, words = [], [], []
    for source in sources:
        cells, name = _cells(source), _name(source)
        if not _has(cells, "trained-laplex", "trained-dense"):
            continue
        ours, dense = (
            next(widths for key, widths in cells.items() if key[0] == method)
            for method in ("trained-laplex", "trained-dense")
        )
        leads = {m: ours[m].val - dense[m].val for m in TRAINED_WIDTHS if m in ours and m in dense}
        words.append(f"with {name} by {min(leads.values()):.1f} to {max(leads.values()):.1f} points")
        for m, lead in leads.items():
            paper = _paper("trained-laplex", m) - _paper("trained-dense", m)
            verdict = claim_verdict(lead >= 0, lead > paper)
            figures.append(Figure(f"lead over dense, m = {m}, {name}", paper, lead, "points", "higher", verdict))
        plots.append(_plot(f"Trained projections, {name}", _trained_series(cells)))
    if not figures:
        return None
    theirs = [row.paper for row in figures if row.paper is not None]
    reason = f"{DIFFER}, so that levels differ; trained LAPLEX from a random start leads dense "
    reason += f"{', '.join(words)}, the paper's by {min(theirs):.1f} to {max(theirs):.1f}."
    return outcome(entry, reason, sources, figures=figures, plots=plots)


# --- Reading ---------------------------------------------------------------------------------------------------------


def _cells(source: Results) -> Cells:
    """Accuracies of every projection on the data, and under the recipe, that were run last."""
    groups: dict[tuple[str, float | None, bool, bool, int], list[Run]] = defaultdict(list)
    for run in source.like_last("data").runs:
        settings = run.settings
        key = settings["method"], settings["tau"], settings["phase"], settings["signs"], settings["width"]
        groups[key].append(run)
    cells: Cells = defaultdict(dict)
    for (method, tau, phase, signs, width), runs in groups.items():
        latest = latest_recipe(runs)
        held_out = [run.result["held"] for run in latest if "held" in run.result]
        val = 100 * statistics.fmean(run.result["val"] for run in latest)
        accuracy = Accuracy(val, 100 * statistics.fmean(held_out) if held_out else None)
        cells[method, tau, phase, signs][width] = accuracy
    return dict(cells)


def _has(cells: Cells, *methods: str) -> bool:
    """Whether all methods were run at the widths that are judged."""
    return all(
        {SMALLEST, LARGEST} <= {width for key, widths in cells.items() if key[0] == method for width in widths}
        for method in methods
    )


def _best_random(cells: Cells) -> Widths:
    """The random LAPLEX that is best on held-out train images at the largest m."""
    random = [widths for key, widths in cells.items() if key[0] == "laplex" and LARGEST in widths]
    return max(random, key=lambda widths: widths[LARGEST].held_out or 0.0)


def _name(source: Results) -> str:
    """The data, from the name of the file: projection-imagenette224-3000."""
    _, *parts = source.path.stem.split("-")
    return f"{parts[-1]} images" if parts[-1].isdecimal() else "-".join(parts)


def _paper(method: str, width: int, tau: float | None = None) -> float:
    return published.projection(method, tau)[width].mean


def _paper_best(width: int) -> float:
    """The best frozen LAPLEX of the paper."""
    return max(_paper("laplex", width, tau) for tau in TAUS)


def _paper_lead() -> float:
    """Of the best frozen LAPLEX over the other maps that know nothing of the data, at the largest m."""
    return _paper_best(LARGEST) - max(_paper(method, LARGEST) for method in AGNOSTIC)


# --- Plots -----------------------------------------------------------------------------------------------------------


def _frozen_series(cells: Cells, best: Widths) -> list[Series]:
    rivals = (*AGNOSTIC, "pca")
    lines = [_series("LAPLEX, random, best on held-out images", best)]
    lines += [_series(TITLES[method], cells[method, None, False, False]) for method in rivals]
    placed = cells.get(("placed", 0.002, False, False))
    if placed:
        lines.append(_series("LAPLEX, pixels placed by laplex.seriate", placed))
    lines.append(_paper_series("laplex", 0.1, "LAPLEX, tau = 0.1"))
    return [*lines, *(_paper_series(method, None, TITLES[method]) for method in rivals)]


def _trained_series(cells: Cells) -> list[Series]:
    lines = [_series(TITLES[key[0]], widths) for key, widths in cells.items() if key[0].startswith("trained-")]
    paper = {"trained-laplex": "LAPLEX", "trained-dense": "dense"}
    return [*lines, *(_paper_series(method, None, label) for method, label in paper.items())]


def _series(label: str, accuracies: Widths) -> Series:
    widths = sorted(accuracies)
    return Series(label, [float(width) for width in widths], [accuracies[width].val for width in widths])


def _paper_series(method: str, tau: float | None, label: str) -> Series:
    return paper_series(label, {width: cell.mean for width, cell in published.projection(method, tau).items()})


def _plot(title: str, lines: list[Series]) -> Plot:
    return Plot(title, "width m", "validation accuracy, %", lines, "log10")


PROJECTION = Experiments("projection", "projection", _options)
ENTRIES = (
    Entry(
        name="projection-frozen",
        title="Frozen projections of images, with a linear head",
        section="Projections",
        source="Table 4",
        claim="Of projections that know nothing of the data, LAPLEX is the best at m = 1000: 31.6 %, where "
        "CountSketch has 26.0 and Gaussian ones 25.2; PCA is the best at small m.",
        criterion="Reproduced if a random LAPLEX, chosen on held-out train images, is above CountSketch and Gaussian "
        "projections at m = 1000, and PCA above all of these at m = 25; exceeded if its lead is above the paper's.",
        minutes={"cuda": 20.0, "cpu": 600.0},
        measure=(PROJECTION,),
        judge=_frozen,
        data=datasets.IMAGES,
    ),
    Entry(
        name="projection-trained",
        title="Projections trained with the head",
        section="Projections",
        source="Table 1",
        claim="A LAPLEX projection trained with the head is at least as accurate as a trained dense one at every m, "
        "with d + m numbers in place of d m.",
        criterion="Reproduced if trained LAPLEX is at or above trained dense at every m; exceeded if its lead is above "
        "the paper's at every m.",
        minutes={"cuda": 20.0, "cpu": 600.0},
        measure=(PROJECTION,),
        judge=_trained,
        data=datasets.IMAGES,
    ),
)
