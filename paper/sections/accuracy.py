"""Errors against float64: for random anchors, on a uniform grid, and over the spread of anchors."""

from __future__ import annotations

from dataclasses import replace

from paper.entry import TENTH, Entry, Figure, Outcome, Plot
from paper.judging import (
    claim_verdict,
    condition,
    figure,
    machine_name,
    method_series,
    outcome,
    overall,
    power,
    ratio,
    unjudged,
    value,
)
from paper.measuring import (
    DENSE,
    FORWARD,
    LAPLEX,
    LOGS,
    SCANNED,
    TITLES,
    TOEPLITZ,
    draw,
    error_result,
    on_grid,
    sizes,
    squares,
)
from paper.results import Archive, Results, Run
from paper.running import Measurement, Request, Result, Settings

L2, LARGEST = "error", "largest_error"
NORMS = {L2: "Euclidean norm", LARGEST: "largest component"}
EPSILON = 2.0**-23
ROUNDINGS = 10
BY_REQUEST = "on request; by itself laplex forms a matrix where that is faster"
COMPARISON = "for comparison; not the paper's claim"

# Figure 9: relative errors against float64, n = k = 2^10 to 2^14, 8 vectors.
PAPER_ERRORS = {L2: 1.5e-7, LARGEST: 5e-7}
ACCURACY_SIZE, DENSE_FACTOR = 1 << 14, 2.0  # dense is 2 to 5 times worse there

# Figure 16: the largest relative error at n = 2^14 on a uniform grid.
GRID_SIZE = 1 << 14
GRID_LARGEST = {"laplex": 4.2e-7, "toeplitz": 4.4e-7, "dense": 1.1e-6}


# --- Measurements ----------------------------------------------------------------------------------------------------


def _points(request: Request) -> list[Settings]:
    return squares(sizes(request, 11, 14, 14), 8, request)


def _spans(request: Request) -> list[Settings]:
    n = 256 if request.quick else 4096
    return [{"n": n, "span": float(span), "seed": request.seed} for span in (1, 10, 100, 1000, 10_000)]


def _spread_errors(settings: Settings, request: Request) -> Result:
    problem, span = draw(settings, request), settings["span"]
    return error_result(replace(problem, a=span * problem.a, b=span * problem.b), (LAPLEX, LOGS))


ACCURACY = Measurement(
    "accuracy",
    _points,
    lambda settings, request: error_result(draw(settings, request), (LAPLEX, SCANNED, DENSE, LOGS)),
)
GRID = Measurement(
    "grid-accuracy",
    _points,
    lambda settings, request: error_result(on_grid(draw(settings, request)), (LAPLEX, SCANNED, DENSE, TOEPLITZ)),
)
ROUNDING = Measurement("rounding", _spans, _spread_errors)


# --- Random anchors --------------------------------------------------------------------------------------------------


def _accuracy(entry: Entry, archive: Archive) -> Outcome | None:
    by_device = archive.measurement(ACCURACY.name)
    if not by_device:
        return None
    figures = [row for results in by_device.values() for row in _accuracy_figures(results)]
    plots = [_errors_plot(results, "n", norm, "Errors") for results in by_device.values() for norm in NORMS]
    reason = " ".join(_errors_in_words(results) for results in by_device.values())
    if overall(figures) == "not run":
        reason += " Not all errors up to n = 2^14 are there; the same command resumes."
    return outcome(entry, reason, list(by_device.values()), figures=figures, plots=plots)


def _accuracy_figures(results: Results) -> list[Figure]:
    """Largest errors over all sizes, as laplex chooses; where it was measured, also with every product scanned."""
    machine, unit = machine_name(results), "relative error"
    figures = [
        figure(f"{NORMS[norm]}, {machine}", theirs, _largest(results, LAPLEX, norm), unit, "lower")
        for norm, theirs in PAPER_ERRORS.items()
    ]
    times = ratio(results.first(n=ACCURACY_SIZE), LAPLEX, DENSE, FORWARD, L2)
    figures.append(figure(f"dense over laplex, n = 2^14, {machine}", DENSE_FACTOR, times, "x", "higher"))
    for norm, theirs in PAPER_ERRORS.items():
        error = _largest(results, SCANNED, norm)
        if error is not None:
            label = f"{NORMS[norm]}, {TITLES[SCANNED]}, {machine}"
            figures.append(unjudged(label, theirs, error, unit, "lower", BY_REQUEST))
    return figures


def _errors_in_words(results: Results) -> str:
    """The largest errors of one device, and where they are."""
    ours, scanned = (_method_in_words(results, method) for method in (LAPLEX, SCANNED))
    if not ours:
        return f"{machine_name(results)}: not all sizes."
    scan_words = f"; asked to scan, it errs by at most {scanned}" if scanned else ""
    times = ratio(results.first(n=ACCURACY_SIZE), LAPLEX, DENSE, FORWARD, L2)
    dense = "" if times is None else f"; at n = {power(ACCURACY_SIZE)} dense errs {times:.2g} times as much"
    return f"{machine_name(results)}: laplex errs by at most {ours}{scan_words}{dense}."


def _method_in_words(results: Results, method: str) -> str:
    """The largest errors of a method; nothing where one is missing."""
    euclidean, component = (_largest(results, method, norm) for norm in NORMS)
    if euclidean is None or component is None:
        return ""
    size = next(power(run.settings["n"]) for run in results.runs if value(run, method, FORWARD, L2) == euclidean)
    return f"{euclidean:.2g} in the Euclidean norm, at n = {size}, and {component:.2g} in the largest component"


def _largest(results: Results, method: str, norm: str) -> float | None:
    """The largest error over all sizes; None where one is missing, which may have been the largest."""
    errors = [value(run, method, FORWARD, norm) for run in results.runs]
    known = [error for error in errors if error is not None]
    return max(known) if known and len(known) == len(errors) else None


# --- Uniform grid ----------------------------------------------------------------------------------------------------


def _grid(entry: Entry, archive: Archive) -> Outcome | None:
    by_device = archive.measurement(GRID.name)
    if not by_device:
        return None
    figures, words = [], []
    for results in by_device.values():
        machine, smallest = machine_name(results), [_is_smallest(run) for run in results.runs]
        ours = value(results.first(n=GRID_SIZE), LAPLEX, FORWARD, LARGEST)
        label = f"largest component, n = 2^14, {machine}"
        figures.append(figure(label, GRID_LARGEST["laplex"], ours, "relative error", "lower"))
        label, count = f"sizes at which its error is the smallest, {machine}", float(len(smallest))
        figures.append(condition(label, count, float(sum(smallest)), "sizes", "higher", all(smallest)))
        where = "at every size" if all(smallest) else f"at {sum(smallest)} of {len(smallest)} sizes"
        error = "not measured" if ours is None else f"{ours:.2g}"
        words.append(f"{machine}: {error}, the smallest {where}")
    reason = f"Largest relative error at n = 2^14, compared with FFT and dense: {'; '.join(words)}. The paper has "
    plots = [
        _errors_plot(results, "n", norm, "Errors on a uniform grid") for results in by_device.values() for norm in NORMS
    ]
    return outcome(entry, reason + "4.2e-7.", list(by_device.values()), figures=figures, plots=plots)


def _is_smallest(run: Run) -> bool:
    """Whether laplex, as it chooses, has the smallest error."""
    errors = {method: value(run, method, FORWARD, L2) for method in run.result["measured"] if method != SCANNED}
    least = min(error for error in errors.values() if error is not None)
    if errors[LAPLEX] is None:
        raise ValueError(f"no error of laplex at n = {run.settings['n']}")
    return errors[LAPLEX] == least


# --- Spread of anchors -----------------------------------------------------------------------------------------------


def _rounding(entry: Entry, archive: Archive) -> Outcome | None:
    by_device = archive.measurement(ROUNDING.name)
    if not by_device:
        return None
    figures, words = [], []
    for results in by_device.values():
        for method in (LOGS, LAPLEX):
            largest, lost = _over_spans(results, method)
            numbers = f"largest error of {TITLES[method]}, {machine_name(results)}", EPSILON, largest, "relative error"
            if method == LOGS:
                verdict = claim_verdict(largest <= ROUNDINGS * EPSILON and not lost, False)
                figures.append(Figure(*numbers, "lower", verdict))
            else:
                figures.append(unjudged(*numbers, "lower", COMPARISON))
            words.append(f"{largest:.1e}" + "".join(f" (at {span:,g} tau it is not a number)" for span in lost))
    reason = "Over anchors that spread over 1 to 10 000 tau, the float32 error of the logcumsumexp path rises to "
    reason += f"{words[0]}, laplex's to {words[1]}; one rounding is {EPSILON:.1e}."
    title = "Errors over the spread of anchors, in tau"
    plots = [_errors_plot(results, "span", L2, title) for results in by_device.values()]
    return outcome(entry, reason, list(by_device.values()), figures=figures, plots=plots)


def _over_spans(results: Results, method: str) -> tuple[float, list[float]]:
    """The largest error of a method, and the spreads at which its answer is not a number."""
    errors = {run.settings["span"]: value(run, method, FORWARD, L2) for run in results.runs}
    lost = [span for span, error in errors.items() if error is None]
    return max(error for error in errors.values() if error is not None), lost


def _errors_plot(results: Results, over: str, norm: str, title: str) -> Plot:
    labels = {method: TITLES[method] for method in (LAPLEX, SCANNED, DENSE, TOEPLITZ, LOGS)}
    drawn = method_series(results.runs, over, labels, FORWARD, norm)
    words = f"{title}, {NORMS[norm]}, {machine_name(results)}"
    return Plot(words, over, "relative error", drawn, "log2" if over == "n" else "log10", "log10")


ENTRIES = (
    Entry(
        name="accuracy",
        title="Errors against float64",
        section="Accuracy",
        source="Figure 9",
        claim="In float32 the relative error is about 1.5e-7 in the Euclidean norm and below 5e-7 at its largest, for "
        "n = 2^10 to 2^14; the dense product is at least twice as wrong at 2^14.",
        criterion="Our largest errors over these sizes, and the ratio to the dense error at 2^14. " + TENTH,
        minutes={"cuda": 0.3, "cpu": 1.0},
        measure=(ACCURACY,),
        judge=_accuracy,
    ),
    Entry(
        name="toeplitz-accuracy",
        title="Errors on a uniform grid, compared with the Toeplitz product by FFT",
        section="Accuracy",
        source="Figure 16, Figure 14",
        claim="On a uniform grid LAPLEX has the smallest float32 error at every size: 4.2e-7 at its largest at "
        "n = 2^14, where the FFT has 4.4e-7 and dense 1.1e-6.",
        criterion="Reproduced if our error is the smallest at every size, and at most a tenth above the paper's at "
        "2^14; exceeded if it is more than a tenth below the paper's.",
        minutes={"cuda": 0.3, "cpu": 1.0},
        measure=(GRID,),
        judge=_grid,
    ),
    Entry(
        name="rounding",
        title="Does the error of the portable path stay at one rounding?",
        section="Accuracy",
        source="Appendix D.2, Appendix D.6",
        claim="A scan adds about one rounding per element, whatever n is: so the paper says of its CUDA program. "
        "Its portable path, by logcumsumexp, it calls numerically stable; that one it describes in full.",
        criterion="Reproduced if the float32 error of that path stays below ten roundings (1.2e-6) for anchors that "
        "spread over 1 to 10 000 tau; laplex is measured, too.",
        minutes={"cuda": 0.2, "cpu": 0.5},
        measure=(ROUNDING,),
        judge=_rounding,
    ),
)
