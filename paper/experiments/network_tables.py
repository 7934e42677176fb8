"""The tables and plots of `python -m paper experiment networks`, from its file of results."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paper.experiments import report
from paper.experiments.network_models import METHODS
from paper.experiments.report import Panel, Point, Section
from paper.results import Results, Run, read

QUANTITIES = {"text": "bits per byte", "images": "validation accuracy, %"}
AT_END = " (end of grid)"
RECIPE = ("data", "precision", "width", "heads", "blocks", "tokens", "batch", "expansion")  # settings all runs share
REACHED = ("method", "budget", "learning rate", "rates tried", "seeds")
CHOSEN = (
    "A budget is the number of kernels of LAPLEX whose parameters in the blocks a row has. The learning rate is the "
    "best one at seed 0, on the same validation data for all methods; one at the end of its grid is marked, because a "
    "better one may lie beyond it. Figures are means and standard deviations over seeds at that rate."
)
WORK = (
    "Multiply-adds are those of a forward pass per token, with attention and the output head. LAPLEX saves parameters "
    "and no work: its matrices are as large as the dense ones, and are formed once per step, one exponential (and with "
    "phases one cosine) per kernel and entry, shared by all tokens of the batch. Kronecker sums are formed, too. Low "
    "rank, Monarch and BTT are counted as products with their factors; forming Monarch and BTT is faster here, so the "
    "timed step does that. Steps were timed alone on the device: forward, backward, clipping and AdamW."
)
HELD = (
    "Gradients, the two moments of AdamW and the checkpoint are of the network with its dense embedding and head. Peak "
    "memory is of a training step, network and activations included, on a GPU."
)


@dataclass(frozen=True)
class NetworkResult:
    """A network, and what it reached at its best learning rate: in bits per byte, or as a fraction."""

    method: str
    budget: int | None  # kernels of the LAPLEX network with as many parameters; None for the full dense one
    size: int
    lr: float
    rates: int  # that were tried
    at_end: bool  # the rate is the lowest or the highest of those
    figure: float | None  # None where every seed diverged
    deviation: float
    seeds: int
    diverged: int  # of the seeds
    block_parameters: int
    parameters: int
    multiply_adds: float  # per token
    held: dict[str, int]  # bytes of gradients, of the optimizer and of a checkpoint
    seconds_per_step: float | None  # None where it was not timed
    peak_bytes: int | None


# --- Read ------------------------------------------------------------------------------------------------------------


def figure(result: Mapping[str, Any]) -> float | None:
    """What a run reached: bits per byte, or accuracy as a fraction; None where it diverged."""
    value = result.get("bits", result.get("accuracy"))
    return None if value is None else float(value)


def figure_text(result: Mapping[str, Any]) -> str:
    """The same in words."""
    if result["diverged"]:
        return "diverged"
    return f"{result['bits']:.4f} bits per byte" if "bits" in result else f"accuracy {100 * result['accuracy']:.1f} %"


def best_rate(results: Mapping[float, Mapping[str, Any]]) -> float:
    """The learning rate with the best result; the lowest of equals."""

    def quality(lr: float) -> float:
        value = figure(results[lr])
        if value is None:
            return -math.inf
        return value if "accuracy" in results[lr] else -value

    return max(sorted(results), key=quality)


def summaries(results: Results) -> list[NetworkResult]:
    """What each network reached, by budget; runs under another recipe than that of the last run are left out."""
    runs = results.like_last(*RECIPE).runs
    trained = [run for run in runs if "lr" in run.settings]
    last = trained[-1].settings["steps"] if trained else None
    timed = {_key(run): run.result for run in runs if "timed" in run.settings}
    groups: dict[tuple[int, int], list[Run]] = {}
    for run in (run for run in trained if run.settings["steps"] == last):
        groups.setdefault(_key(run), []).append(run)
    return [_summary(groups[key], timed.get(key, {})) for key in sorted(groups)]


def _key(run: Run) -> tuple[int, int]:
    """The place of a network in tables: by budget and method, the full dense one first."""
    return run.settings["budget"] or 0, METHODS.index(run.settings["method"])


def _summary(runs: Sequence[Run], timed: Mapping[str, Any]) -> NetworkResult:
    first = {run.settings["lr"]: run.result for run in runs if run.settings["seed"] == 0}
    lr = best_rate(first)
    seeds = [run for run in runs if run.settings["lr"] == lr]
    values = [value for run in seeds if (value := figure(run.result)) is not None]
    settings, result = seeds[0].settings, seeds[0].result
    work = result["multiply_adds"]
    tokens = settings["tokens"] * settings["batch"]
    return NetworkResult(
        method=settings["method"],
        budget=settings["budget"],
        size=settings["size"],
        lr=lr,
        rates=len(first),
        at_end=len(first) > 1 and lr in (min(first), max(first)),
        figure=statistics.fmean(values) if values else None,
        deviation=statistics.stdev(values) if len(values) > 1 else 0.0,
        seeds=len(seeds),
        diverged=len(seeds) - len(values),
        block_parameters=result["parameters"]["blocks"],
        parameters=result["parameters"]["all"],
        multiply_adds=work["maps"] + work["elsewhere"] + work["forming"] / tokens,
        held=result["bytes"],
        seconds_per_step=timed.get("seconds_per_step"),
        peak_bytes=timed.get("peak_bytes"),
    )


# --- Written ---------------------------------------------------------------------------------------------------------


def write(path: Path, task: str, *, quick: bool = False) -> None:
    """Write tables and plots next to the file of results; without a finished run there is nothing to write."""
    rows = summaries(read(path)) if path.exists() else []
    if not rows:
        return
    title = f"Linear maps inside networks, {task}" + (", a quick look: too short to compare methods" if quick else "")
    report.write(path, title, [_reached(task, rows), _held(rows)], _panels(task, rows))


def _reached(task: str, rows: Sequence[NetworkResult]) -> Section:
    """What each network reached, and what it takes."""
    header = [*REACHED, "parameters in blocks", "all parameters", "multiply-adds per token", "ms per step"]
    best = {row.budget: _best(task, [one for one in rows if one.budget == row.budget]) for row in rows}
    lines = []
    for row in rows:
        cells = [*_name(row), f"{row.lr:g}{AT_END if row.at_end else ''}", str(row.rates), str(row.seeds)]
        cells += [f"{row.block_parameters:,}", f"{row.parameters:,}", f"{row.multiply_adds:,.0f}"]
        cells.append("" if row.seconds_per_step is None else f"{1e3 * row.seconds_per_step:.2f}")
        text = _shown(task, row)
        lines.append([*cells, f"**{text}**" if row.budget is not None and row is best[row.budget] else text])
    return Section([*header, QUANTITIES[task]], lines, [CHOSEN, WORK])


def _held(rows: Sequence[NetworkResult]) -> Section:
    """Memory."""
    header = ["method", "budget", "gradients, kB", "optimizer, kB", "checkpoint, kB", "peak, MB"]
    lines = []
    for row in rows:
        sizes = [f"{row.held[name] / 1e3:,.0f}" for name in ("gradients", "optimizer", "checkpoint")]
        lines.append([*_name(row), *sizes, "" if row.peak_bytes is None else f"{row.peak_bytes / 1e6:,.0f}"])
    return Section(header, lines, [HELD], "Memory")


def _name(row: NetworkResult) -> list[str]:
    return [row.method, "full" if row.budget is None else str(row.budget)]


def _shown(task: str, row: NetworkResult) -> str:
    """The figure with its deviation, and how many seeds diverged."""
    if row.figure is None:
        return "diverged"
    if task == "images":
        return report.percent(row.figure, row.deviation, row.seeds, row.diverged)
    spread = f" ± {row.deviation:.4f}" if row.seeds > 1 else ""
    lost = f" ({row.diverged} of {row.seeds} diverged)" if row.diverged else ""
    return f"{row.figure:.4f}{spread}{lost}"


def _best(task: str, rows: Sequence[NetworkResult]) -> NetworkResult | None:
    sign = 1 if task == "images" else -1
    known = [row for row in rows if row.figure is not None]
    return max(known, key=lambda row: sign * (row.figure or 0.0), default=None)


# --- Plots -----------------------------------------------------------------------------------------------------------


def _panels(task: str, rows: Sequence[NetworkResult]) -> list[Panel]:
    """The figure over parameters, over multiply-adds, and over the time of a step; dense is one curve of all widths."""
    axes = {
        "parameters in blocks, thousands": [row.block_parameters / 1e3 for row in rows],
        "million multiply-adds per token": [row.multiply_adds / 1e6 for row in rows],
        "ms per training step": [1e3 * (row.seconds_per_step or 0.0) for row in rows],
    }
    scale = 100 if task == "images" else 1
    panels = []
    for label, places in axes.items():
        curves: dict[str, list[Point]] = {}
        for row, x in zip(rows, places, strict=True):
            if x > 0 and row.figure is not None:
                name = row.method.removesuffix("-narrow")
                curves.setdefault(name, []).append(Point(x, scale * row.figure, scale * row.deviation))
        if curves:
            ticks = _ticks([point.x for points in curves.values() for point in points])
            panels.append(Panel((label, QUANTITIES[task]), curves, ticks=ticks))
    return panels


def _ticks(values: Sequence[float]) -> list[float]:
    """Round numbers 1, 2, 5, 10, ... over the range of the values."""
    powers = range(math.floor(math.log10(min(values))), math.ceil(math.log10(max(values))) + 1)
    steps = [digit * 10.0**power for power in powers for digit in (1, 2, 5)]
    inside = [step for step in steps if min(values) / 1.5 <= step <= max(values) * 1.5]
    return inside or steps
