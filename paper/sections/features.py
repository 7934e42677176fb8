"""Random Fourier features: errors by the experiment ``rff``, and times over the number of features."""

from __future__ import annotations

import math
import statistics

import torch

import laplex
from laplex import testing
from paper.entry import Entry, Figure, Outcome, Plot, Series
from paper.experiments import published
from paper.judging import (
    RIVAL,
    claim_verdict,
    condition,
    figure,
    machine_name,
    method_series,
    milliseconds,
    outcome,
    paper_series,
    unjudged,
)
from paper.measuring import FORWARD, LAPLEX, RIGHT, check, draw, powers, time_calls
from paper.methods import rff
from paper.results import Archive, Results, Run
from paper.running import Experiments, Measurement, Options, Request, Result, Settings

FEATURES = "random features"
SIZES = {"cpu": 1 << 12, "cuda": 1 << 16}
VALUE, NEAR, FAR = "value", "b", "a"  # K x, and the gradients on the side of x and on the other one
TITLES = {VALUE: "K x", NEAR: "gradient on the side of x", FAR: "gradient on the other side"}
TENTH = 0.1
SLOPES = (0.4, 0.6)  # that count as falling by the root of D
EXACT = 1e-6

# Figure 6, at n = 2^16.
PAPER_SIZE, PAPER_FEATURES = 1 << 16, 1024
PAPER_LAPLEX_MS = 0.5
PAPER_CROSSOVER = 16  # features that take as long as LAPLEX
PAPER_RATIO = 75.0  # how many times as long 1024 features take, whose error is below a tenth

# Figure 18, from D = 1 to 2048.
PAPER_VALUE_FALL, PAPER_GRADIENT_FALL = 57.0, 26.0


# --- Measurements ----------------------------------------------------------------------------------------------------


def _options(request: Request) -> list[Options]:
    if request.quick:
        return [{"size": 256, "features": (1, 4, 16), "seeds": 3}]
    return [{"size": SIZES[request.kind]}]


def _points(request: Request) -> list[Settings]:
    n = 256 if request.quick else SIZES[request.kind]
    counts = (1, 16) if request.quick else powers(0, 11)
    return [{"n": n, "features": count, "seed": request.seed} for count in counts]


def _times(settings: Settings, request: Request) -> Result:
    """Both in float32; the errors are those of the experiment."""
    problem = draw(settings, request)
    generator = torch.Generator().manual_seed(settings["seed"])
    drawn = rff.draw(settings["features"], generator=generator, device=problem.a.device, dtype=torch.float32)
    calls = {
        LAPLEX: lambda: laplex.linear(problem.x, problem.a, problem.b),
        FEATURES: lambda: drawn.linear(problem.x, problem.a, problem.b),
    }
    error = check(LAPLEX, FORWARD, problem, (calls[LAPLEX](),), all_rows=False)["error"]
    if not error <= RIGHT[LAPLEX]:
        return {"measured": {}, "left_out": {LAPLEX: f"wrong: its relative error is {error:.1e}"}}
    calls[FEATURES]()
    others = testing.OtherProcesses()
    measured = {method: {FORWARD: times} for method, times in time_calls(calls, request).items()}
    return {"measured": measured, "left_out": {}, "others": others.share()}


# --- Judges ----------------------------------------------------------------------------------------------------------


def _values(entry: Entry, archive: Archive) -> Outcome | None:
    source, timed = archive.experiment("rff"), archive.measurement(TIMES.name)
    errors = {} if source is None else _errors(source, VALUE)
    if source is None or not timed or len(errors) < 2:
        return None
    medians = {count: statistics.median(draws) for count, draws in errors.items()}
    slope = _slope(medians)
    enough = min((count for count, error in medians.items() if error < TENTH), default=None)
    ratios = {device: _slower(results, enough) for device, results in timed.items()}
    if not any(ratios.values()):
        return None
    falls = condition("exponent s of an error as D^-s", 0.5, slope, "", "higher", SLOPES[0] <= slope <= SLOPES[1])
    figures = [falls, *_value_figures(medians, enough, ratios, timed)]
    size = max(run.settings["size"] for run in source.runs)
    times = " and ".join(
        f"{times:.0f} times as long as laplex on {machine_name(timed[device])} (n = {_size(timed[device]):,})"
        for device, times in ratios.items()
        if times
    )
    reason = (
        f"The median error falls as D^-{slope:.2f} (n = {size:,}); with {enough} features it is below a tenth. They "
        f"take {times}. The paper has {PAPER_RATIO:.0f} times (n = {PAPER_SIZE:,}), for {PAPER_FEATURES} features."
    )
    plots = [_error_plot(source, [VALUE]), *map(_time_plot, timed.values())]
    return outcome(entry, reason, [source, *timed.values()], figures=figures, plots=plots)


def _value_figures(
    medians: dict[int, float], enough: int | None, ratios: dict[str, float | None], timed: dict[str, Results]
) -> list[Figure]:
    figures = [
        unjudged(f"median error, D = {count}", theirs, medians[count], "relative error", "lower", RIVAL)
        for count, theirs in published.RFF_VALUES.items()
        if count in medians
    ]
    for device, results in timed.items():
        place = f"n = {_size(results):,}, {machine_name(results)}"
        label = f"time of {enough} features (error below a tenth) over laplex's, {place}"
        figures.append(figure(label, PAPER_RATIO, ratios[device], "x", "higher"))
        faster = [run for run in results.runs if (milliseconds(run, FEATURES) or 0) <= (milliseconds(run, LAPLEX) or 0)]
        if faster:
            count = float(max(run.settings["features"] for run in faster))
            label = f"most features that are no slower than laplex, {place}"
            figures.append(unjudged(label, float(PAPER_CROSSOVER), count, "features", "lower", "for comparison"))
    return figures


def _gradients(entry: Entry, archive: Archive) -> Outcome | None:
    source = archive.experiment("rff")
    ours = [] if source is None else source.matching(method=LAPLEX, dtype="float32")
    if source is None or not ours or len(_errors(source, VALUE)) < 2:
        return None
    falls = {key: _fall(_errors(source, key)) for key in TITLES}
    tails = {key: _tail(_errors(source, key)) for key in TITLES}
    exact = max(run.result[key] for run in ours for key in TITLES)
    label, verdict = "improvement of K x, least to most features", claim_verdict(exact < EXACT, False)
    less = falls[NEAR] < falls[VALUE]
    figures = [
        unjudged(label, PAPER_VALUE_FALL, falls[VALUE], "x", "higher", RIVAL),
        _claim("improvement of the gradient on the side of x", PAPER_GRADIENT_FALL, falls[NEAR], less),
        _claim("improvement of the other gradient", None, falls[FAR], falls[FAR] < 2),
        _claim("worst draw over the median, K x", 2.0, tails[VALUE], tails[VALUE] < 10),
        _claim("worst draw over the median, gradient on the side of x", 10.0, tails[NEAR], tails[NEAR] > 10),
        _claim("worst draw over the median, other gradient", 100.0, tails[FAR], tails[FAR] > 10),
        Figure("laplex's largest error, float32", None, exact, "relative error", "lower", verdict),
    ]
    reason = (
        f"From the least to the most features the gradient on the side of x improves {falls[NEAR]:.1f} times, the "
        f"other one {falls[FAR]:.1f} times, the value {falls[VALUE]:.0f} times; some draws are up to "
        f"{max(tails[NEAR], tails[FAR]):.0f} times worse than the median. laplex's gradients are off by {exact:.0e}."
    )
    return outcome(entry, reason, [source], figures=figures, plots=[_error_plot(source, list(TITLES))])


def _claim(label: str, theirs: float | None, ours: float, holds: bool) -> Figure:
    return Figure(label, theirs, ours, "x", "lower", claim_verdict(holds, False))


# --- Numbers ---------------------------------------------------------------------------------------------------------


def _errors(source: Results, key: str) -> dict[int, list[float]]:
    """Errors of all seeds by the number of features, at the largest size that was run."""
    runs: list[Run] = source.matching(method="rff")
    size = max((run.settings["size"] for run in runs), default=0)
    errors: dict[int, list[float]] = {}
    for run in runs:
        if run.settings["size"] == size:
            error = float(run.result[key])
            if not 0 < error < math.inf:
                raise ValueError(f"an error of {run.settings['features']} features is {error}")
            errors.setdefault(run.settings["features"], []).append(error)
    return dict(sorted(errors.items()))


def _slope(medians: dict[int, float]) -> float:
    """s where the error falls as D^-s, by least squares of logarithms."""
    pairs = [(math.log(count), math.log(error)) for count, error in medians.items()]
    return -statistics.linear_regression(*zip(*pairs, strict=True)).slope


def _fall(errors: dict[int, list[float]]) -> float:
    """How many times smaller the median is with the most features than with the least."""
    medians = [statistics.median(draws) for draws in errors.values()]
    return medians[0] / medians[-1]


def _tail(errors: dict[int, list[float]]) -> float:
    """The worst draw over the median of its number of features."""
    return max(max(draws) / statistics.median(draws) for draws in errors.values())


def _size(timed: Results) -> int:
    return max(int(run.settings["n"]) for run in timed.runs)


def _slower(timed: Results, features: int | None) -> float | None:
    """How many times as long as laplex that many features take."""
    run = timed.first(features=features)
    ours, theirs = milliseconds(run, LAPLEX), milliseconds(run, FEATURES)
    return theirs / ours if ours and theirs else None


# --- Plots -----------------------------------------------------------------------------------------------------------


def _error_plot(source: Results, keys: list[str]) -> Plot:
    drawn = []
    exact = source.first(method=LAPLEX, dtype="float32")
    for key in keys:
        errors = _errors(source, key)
        x = [float(count) for count in errors]
        drawn.append(Series(f"features, {TITLES[key]}", x, [statistics.median(draws) for draws in errors.values()]))
        if exact is not None:
            drawn.append(Series(f"laplex, {TITLES[key]}", x, [float(exact.result[key])] * len(x)))
    drawn.append(paper_series("features, K x", published.RFF_VALUES))
    return Plot("Errors of random features", "number of features D", "relative error", drawn, "log2", "log10")


def _time_plot(timed: Results) -> Plot:
    labels = {FEATURES: "random features", LAPLEX: "laplex, whole call"}
    drawn = method_series(timed.runs, "features", labels, FORWARD, "seconds", 1e3)
    counts = [run.settings["features"] for run in timed.runs]
    if _size(timed) == PAPER_SIZE:
        drawn.append(paper_series("LAPLEX", dict.fromkeys((min(counts), max(counts)), PAPER_LAPLEX_MS)))
    title = f"Times, n = {_size(timed):,}, {machine_name(timed)}"
    return Plot(title, "number of features D", "ms", drawn, "log2", "log10")


ERRORS = Experiments("rff", "rff", _options)
TIMES = Measurement("rff-times", _points, _times)
ENTRIES = (
    Entry(
        name="rff-value",
        title="Random Fourier features: error and time over their number",
        section="Random features",
        source="Figure 6",
        claim="The error of D random features falls as the root of D; where they take as long as LAPLEX (D = 16) it "
        "is 72 %, and below 10 % (D = 1024) they take 75 times as long.",
        criterion="Reproduced if the median error falls by the root of D (exponent 0.4 to 0.6), and features with an "
        "error below a tenth take 75 times as long as laplex, or at most a tenth less, on every device that was run; "
        "exceeded if more than a tenth longer than that on each.",
        minutes={"cuda": 1.0, "cpu": 2.0},
        measure=(
            ERRORS,
            TIMES,
        ),
        judge=_values,
    ),
    Entry(
        name="rff-gradient",
        title="Random Fourier features: gradients of anchors",
        section="Random features",
        source="Figure 18",
        claim="Their gradients improve less than their values: on the side of x 26 times from D = 1 to 2048 where "
        "values improve 57 times, on the other side not at all; some draws are 10 to 100 times worse than the median.",
        criterion="Reproduced if from the least to the most features the gradient on the side of x improves less than "
        "the value, the other one less than twice, and a draw is over ten times worse than its median for gradients, "
        "not for values; laplex's own gradients must be exact to 1e-6.",
        minutes={"cuda": 1.0, "cpu": 2.0},
        measure=(ERRORS,),
        judge=_gradients,
    ),
)
