"""Outcomes of the operator benchmarks: times and memory, from the measurements of `_measure`.

The paper's figures are those of a GPU, except for ``cpu`` and ``cpu-fft``; results of a CPU are shown and not judged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from paper.entry import Entry, Figure, Outcome, Plot
from paper.judging import (
    curves,
    judged,
    of_paper,
    overall,
    place,
    series,
    value,
)
from paper.judging import not_run as without
from paper.reproduce import _published as paper
from paper.reproduce._rivals import DENSE, FFT, FORWARD, KEPT, LAPLEX, LOGS, TITLES, TOEPLITZ
from paper.reproduce._runs import has_more
from paper.results import Results, Run

BUSY = 0.15  # part of the CPU that others may use before times are called noisy
GPUS = "the paper's GPU is an H100"
MEMORY = "the most that one call allocates, inputs and result counted; the paper does not say what it counts"
PRODUCTS = (LAPLEX, KEPT, DENSE, LOGS)
BESIDE_FFT = (LAPLEX, KEPT, TOEPLITZ, FFT)

Judge = Callable[[Results], tuple[list[Figure], str]]


def timed_outcome(
    entry: Entry, found: dict[str, Results], judge: Judge, draw: Callable[[Results], list[Plot]]
) -> Outcome:
    """Figures of the device that the paper's are of, with the reason that ``judge`` gives; plots of all devices."""
    shown = [plot for one in found.values() for plot in draw(one)]
    sources, device = list(found.values()), "cuda" if entry.of_gpu else "cpu"
    if device not in found:
        word = "GPU" if device == "cuda" else "CPU"
        missing = f"No measurement on a {word}: `python -m paper run {entry.name} --device {device}` makes one."
        return judged(entry, missing, sources, plots=shown) if found else without(entry, missing)
    figures, reason = judge(found[device])
    lacking = [one.label for one in figures if one.verdict == "not run"]
    if overall(figures) == "not run":
        again = f"python -m paper run {entry.name} --device {device}{' --full' if has_more(entry, device) else ''}"
        reason = f"Not all that the criterion names is there. Not measured, or withdrawn: {'; '.join(lacking)}. "
        reason += f"`{again}` measures it, "
        reason += "with --fresh also where a file has the size and lacks the figure."
    elif lacking:
        reason += f" Not measured, or withdrawn: {'; '.join(lacking)}."
    if device == "cpu":
        reason += _noise(found[device])
    return judged(entry, reason, sources, figures=figures, plots=shown)


def over_sizes(
    results: Results,
    runs: Sequence[Run],
    over: str,
    title: str,
    way: str,
    what: str,
    theirs: Mapping[str, Mapping[int, float]],
    methods: Sequence[str] = PRODUCTS,
) -> Plot | None:
    """A plot of methods over one setting, with the paper's points; None where nothing was measured."""
    scale, label = (1e3, "ms") if what == "seconds" else (1e-9, "GB, inputs and result counted")
    drawn = curves(series(runs, over, TITLES[method], method, way, what, scale) for method in methods)
    if not drawn:
        return None
    beside = [of_paper(name, points) for name, points in theirs.items()]
    return Plot(f"{title}, {place(results)}", over, label, [*drawn, *beside], "log2", "log10")


def of_gpu(results: Results, theirs: Mapping[str, Mapping[int, float]]) -> Mapping[str, Mapping[int, float]]:
    """The paper's points of its GPU; they are not drawn beside those of a CPU."""
    return theirs if results.device == "cuda" else {}


def _noise(results: Results) -> str:
    """A warning where other processes used the CPU meanwhile."""
    shares = [run.result["others"] for run in results.runs if run.result.get("others") is not None]
    if not shares or max(shares) <= BUSY:
        return ""
    return f" Other processes used up to {max(shares):.0%} of the CPU meanwhile: these times are noisy."


def present(*plots: Plot | None) -> list[Plot]:
    """Those that are there."""
    return [one for one in plots if one is not None]


def told(results: Results, figures: Sequence[Figure]) -> str:
    """What was measured beside what the paper has, in words."""
    words = [
        f"{one.label}: {one.ours:.3g} {one.unit} (paper {one.paper:g})" for one in figures if one.ours and one.paper
    ]
    return f"{place(results)} ({GPUS}): {'; '.join(words)}."


def gigabytes(points: Mapping[int, float]) -> dict[int, float]:
    """Bytes over a size, in GB."""
    return {size: of_bytes / paper.GB for size, of_bytes in points.items()}


def peak(run: Run | None, method: str, way: str = FORWARD) -> float | None:
    """The peak memory of a method, in GB."""
    found = value(run, method, way, "peak_bytes")
    return None if found is None else found / paper.GB
