"""Outcomes of random Fourier features, from `python -m paper experiment rff` and from times over the number of features."""

from __future__ import annotations

import math
import statistics

from paper.entry import Entry, Figure, Outcome, Plot, Series
from paper.experiments import published
from paper.judging import (
    OF_RIVAL,
    condition,
    curves,
    figure,
    held,
    judged,
    milliseconds,
    not_run,
    place,
    series,
    unjudged,
)
from paper.reproduce import _published as paper
from paper.results import Results, Run, Shelf

VALUE, NEAR, FAR = "value", "b", "a"  # K x, and the gradients on the side of x and on the other one
TITLES = {VALUE: "K x", NEAR: "gradient on the side of x", FAR: "gradient on the other side"}
TENTH = 0.1
SLOPES = (0.4, 0.6)  # that count as falling by the root of D
EXACT = 1e-6
RFF, LAPLEX = "random features", "laplex"
MISSING = "No results of `python -m paper experiment rff`; run `python -m paper run rff-value`."


def values(entry: Entry, shelf: Shelf) -> Outcome:
    """Errors of values over the number of features, and times."""
    source, timed = shelf.experiment("rff"), shelf.measured("rff-times")
    errors = {} if source is None else _errors(source, VALUE)
    if source is None or not timed or len(errors) < 2:
        return not_run(entry, MISSING)
    medians = {count: statistics.median(found) for count, found in errors.items()}
    slope = _slope(medians)
    enough = min((count for count, error in medians.items() if error < TENTH), default=None)
    ratios = {device: _slower(one, enough) for device, one in timed.items()}
    if not any(ratios.values()):
        return not_run(entry, "No time of as many features as an error below a tenth needs.")
    falls = condition("exponent s of an error as D^-s", 0.5, slope, "", "higher", SLOPES[0] <= slope <= SLOPES[1])
    figures = [falls, *_value_figures(medians, enough, ratios, timed)]
    size = max(run.settings["size"] for run in source.runs)
    reason = (
        f"The median error falls as D^-{slope:.2f} (n = {size:,}); with {enough} features it is below a tenth. They "
    )
    times = [
        f"{one:.0f} times as long as laplex on {place(timed[key])} (n = {_size(timed[key]):,})"
        for key, one in ratios.items()
        if one
    ]
    reason += f"take {' and '.join(times)}. The paper has {paper.RFF_RATIO:.0f} times (n = {paper.RFF_SIZE:,}), for "
    reason += f"{paper.RFF_FEATURES} features."
    plots = [_error_plot(source, [VALUE]), *(_time_plot(one) for one in timed.values())]
    return judged(entry, reason, [source, *timed.values()], figures=figures, plots=plots)


def gradients(entry: Entry, shelf: Shelf) -> Outcome:
    """Errors of gradients over the number of features."""
    source = shelf.experiment("rff")
    ours = [] if source is None else source.where(method=LAPLEX, dtype="float32")
    if source is None or not ours or len(_errors(source, VALUE)) < 2:
        return not_run(entry, MISSING)
    falls = {key: _fall(_errors(source, key)) for key in TITLES}
    tails = {key: _tail(_errors(source, key)) for key in TITLES}
    exact = max(run.result[key] for run in ours for key in TITLES)
    less = falls[NEAR] < falls[VALUE]
    figures = [
        unjudged(
            "improvement of K x, least to most features", paper.RFF_VALUE_FALL, falls[VALUE], "x", "higher", OF_RIVAL
        ),
        _claim("improvement of the gradient on the side of x", paper.RFF_GRADIENT_FALL, falls[NEAR], less),
        _claim("improvement of the other gradient", None, falls[FAR], falls[FAR] < 2),
        _claim("worst draw over the median, K x", 2.0, tails[VALUE], tails[VALUE] < 10),
        _claim("worst draw over the median, gradient on the side of x", 10.0, tails[NEAR], tails[NEAR] > 10),
        _claim("worst draw over the median, other gradient", 100.0, tails[FAR], tails[FAR] > 10),
        Figure("laplex's largest error, float32", None, exact, "relative error", "lower", held(exact < EXACT, False)),
    ]
    reason = f"From the least to the most features the gradient on the side of x improves {falls[NEAR]:.1f} times, the "
    reason += f"other one {falls[FAR]:.1f} times, the value {falls[VALUE]:.0f} times; some draws are up to "
    reason += (
        f"{max(tails[NEAR], tails[FAR]):.0f} times worse than the median. laplex's gradients are off by {exact:.0e}."
    )
    return judged(entry, reason, [source], figures=figures, plots=[_error_plot(source, list(TITLES))])


# --- Numbers ---------------------------------------------------------------------------------------------------------


def _errors(source: Results, key: str) -> dict[int, list[float]]:
    """Errors of all seeds by the number of features, at the largest size that was run."""
    runs = source.where(method="rff")
    size = max((run.settings["size"] for run in runs), default=0)
    found: dict[int, list[float]] = {}
    for run in runs:
        if run.settings["size"] == size:
            error = float(run.result[key])
            if not 0 < error < math.inf:
                raise ValueError(f"an error of {run.settings['features']} features is {error}")
            found.setdefault(run.settings["features"], []).append(error)
    return dict(sorted(found.items()))


def _slope(medians: dict[int, float]) -> float:
    """s where the error falls as D^-s, by least squares of logarithms."""
    pairs = [(math.log(count), math.log(error)) for count, error in medians.items()]
    return -statistics.linear_regression(*zip(*pairs, strict=True)).slope


def _fall(errors: dict[int, list[float]]) -> float:
    """How many times smaller the median is with the most features than with the least."""
    medians = [statistics.median(one) for one in errors.values()]
    return medians[0] / medians[-1]


def _tail(errors: dict[int, list[float]]) -> float:
    """The worst draw over the median of its number of features."""
    return max(max(one) / statistics.median(one) for one in errors.values())


def _size(timed: Results) -> int:
    return max(int(run.settings["n"]) for run in timed.runs)


def _slower(timed: Results, features: int | None) -> float | None:
    """How many times as long as laplex that many features take."""
    run = timed.at(features=features)
    ours, theirs = milliseconds(run, LAPLEX), milliseconds(run, RFF)
    return theirs / ours if ours and theirs else None


def _crossover(timed: Results) -> Run | None:
    """The run with the most features that take no longer than laplex."""
    faster = [run for run in timed.runs if (milliseconds(run, RFF) or 0) <= (milliseconds(run, LAPLEX) or 0)]
    return max(faster, key=lambda run: run.settings["features"], default=None)


# --- Figures and plots -----------------------------------------------------------------------------------------------


def _claim(label: str, theirs: float | None, ours: float, holds: bool) -> Figure:
    return Figure(label, theirs, ours, "x", "lower", held(holds, False))


def _value_figures(
    medians: dict[int, float], enough: int | None, ratios: dict[str, float | None], timed: dict[str, Results]
) -> list[Figure]:
    figures = [
        unjudged(f"median error, D = {count}", theirs, medians[count], "relative error", "lower", OF_RIVAL)
        for count, theirs in published.RFF_VALUES.items()
        if count in medians
    ]
    for device, one in timed.items():
        label = f"time of {enough} features (error below a tenth) over laplex's, n = {_size(one):,}, {place(one)}"
        figures.append(figure(label, paper.RFF_RATIO, ratios[device], "x", "higher"))
        crossing = _crossover(one)
        if crossing is not None:
            count = crossing.settings["features"]
            label = f"most features that are no slower than laplex, n = {_size(one):,}, {place(one)}"
            figures.append(
                unjudged(label, float(paper.RFF_CROSSOVER), float(count), "features", "lower", "for comparison")
            )
    return figures


def _error_plot(source: Results, keys: list[str]) -> Plot:
    drawn = []
    for key in keys:
        errors = _errors(source, key)
        x = [float(count) for count in errors]
        drawn.append(Series(f"features, {TITLES[key]}", x, [statistics.median(one) for one in errors.values()]))
        exact = source.at(method=LAPLEX, dtype="float32")
        if exact is not None:
            drawn.append(Series(f"laplex, {TITLES[key]}", x, [float(exact.result[key])] * len(x)))
    counts = sorted(published.RFF_VALUES)
    theirs: list[float | None] = [published.RFF_VALUES[count] for count in counts]
    drawn.append(Series("features, K x, paper", [float(count) for count in counts], theirs, of_paper=True))
    return Plot("Errors of random features", "number of features D", "relative error", drawn, "log2", "log10")


def _time_plot(timed: Results) -> Plot:
    pairs = ((RFF, "random features"), (LAPLEX, "laplex, whole call"))
    drawn = curves(series(timed.runs, "features", label, method, "forward", "seconds", 1e3) for method, label in pairs)
    counts = [float(run.settings["features"]) for run in timed.runs]
    if _size(timed) == paper.RFF_SIZE:
        ends: list[float | None] = [paper.RFF_LAPLEX_MS, paper.RFF_LAPLEX_MS]
        drawn.append(Series("LAPLEX, paper", [min(counts), max(counts)], ends, of_paper=True))
    return Plot(f"Times, n = {_size(timed):,}, {place(timed)}", "number of features D", "ms", drawn, "log2", "log10")
