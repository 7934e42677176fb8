"""What the judges of times and memory share.

The paper's figures are those of a GPU, except for ``cpu`` and ``cpu-fft``; results of a CPU are shown and not judged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from paper.entry import Entry, Figure, Outcome, Plot
from paper.judging import machine_name, method_series, outcome, overall, paper_series, value
from paper.measuring import DENSE, FORWARD, LAPLEX, LOGS, PLANNED, TITLES
from paper.results import Archive, Results, Run
from paper.running import FULL, Measurement, Request

GB = 1e9
BUSY = 0.15  # part of the CPU that others may use before times are called noisy
GPU = "the paper's GPU is an H100"
MEMORY = "the most that one call allocates, inputs and result counted; the paper does not say what it counts"
PRODUCTS = (LAPLEX, PLANNED, DENSE, LOGS)

Points = Mapping[str, Mapping[int, float]]  # of the paper, by the label of its curve


def judge_times(
    measurement: Measurement,
    figures: Callable[[Results], tuple[list[Figure], str]],
    plots: Callable[[Results], Sequence[Plot | None]],
) -> Callable[[Entry, Archive], Outcome]:
    """A judge: figures of the device that the paper's are of, with their reason; plots of all devices."""

    def judge(entry: Entry, archive: Archive) -> Outcome:
        by_device = archive.measurement(measurement.name)
        device = "cuda" if entry.gpu_figures else "cpu"
        if "cuda" not in entry.minutes:
            by_device.pop("cuda", None)
        drawn = [plot for results in by_device.values() for plot in plots(results) if plot is not None]
        sources = list(by_device.values())
        if device not in by_device:
            word = "GPU" if device == "cuda" else "CPU"
            missing = f"No measurement on a {word}: `python -m paper run {entry.name} --device {device}` makes one."
            return outcome(entry, missing, sources, plots=drawn)
        rows, reason = figures(by_device[device])
        reason = _with_missing(reason, rows, entry, device, measurement)
        if device == "cpu":
            reason += _noise(by_device[device])
        return outcome(entry, reason, sources, figures=rows, plots=drawn)

    return judge


def _with_missing(reason: str, rows: list[Figure], entry: Entry, device: str, measurement: Measurement) -> str:
    """The reason, and which figures are missing; where these decide, only that and how to measure them."""
    labels = "; ".join(row.label for row in rows if row.verdict == "not run")
    if overall(rows) != "not run":
        return reason + (f" Not measured, or withdrawn: {labels}." if labels else "")
    usual, full = (len(measurement.points(Request(device, level))) for level in ("usual", FULL))
    command = f"python -m paper run {entry.name} --device {device}{' --full' if full > usual else ''}"
    return (
        f"Not all that the criterion names is there. Not measured, or withdrawn: {labels}. `{command}` measures it, "
        "with --fresh also where a file has the size and lacks the figure."
    )


def _noise(results: Results) -> str:
    """A warning where other processes used the CPU meanwhile."""
    shares = [run.result["others"] for run in results.runs if run.result.get("others") is not None]
    if max(shares, default=0.0) <= BUSY:
        return ""
    return f" Other processes used up to {max(shares):.0%} of the CPU meanwhile: these times are noisy."


def times_plot(
    results: Results,
    title: str,
    *,
    over: str = "n",
    runs: Sequence[Run] | None = None,
    way: str = FORWARD,
    quantity: str = "seconds",
    gpu_points: Points | None = None,
    points: Points | None = None,
    methods: Sequence[str] = PRODUCTS,
) -> Plot | None:
    """A plot of methods over one setting, with the paper's points; None where nothing was measured.

    ``gpu_points`` are those of the paper's GPU: they are not drawn with results of a CPU.
    """
    scale, label = (1e3, "ms") if quantity == "seconds" else (1 / GB, "GB, inputs and result counted")
    chosen = results.runs if runs is None else runs
    drawn = method_series(chosen, over, {method: TITLES[method] for method in methods}, way, quantity, scale)
    if not drawn:
        return None
    paper = {**(points or {}), **((gpu_points or {}) if results.device == "cuda" else {})}
    marks = [paper_series(name, named) for name, named in paper.items()]
    return Plot(f"{title}, {machine_name(results)}", over, label, [*drawn, *marks], "log2", "log10")


def in_words(results: Results, figures: Sequence[Figure]) -> str:
    """What was measured and what the paper has, in words."""
    words = [
        f"{row.label}: {row.ours:.3g} {row.unit} (paper {row.paper:g})" for row in figures if row.ours and row.paper
    ]
    return f"{machine_name(results)} ({GPU}): {'; '.join(words)}."


def peak(run: Run | None, method: str) -> float | None:
    """The peak memory of a method, in GB."""
    number = value(run, method, FORWARD, "peak_bytes")
    return None if number is None else number / GB
