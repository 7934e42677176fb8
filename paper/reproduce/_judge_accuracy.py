"""Outcomes of accuracy, gradients and theory: what is right, and by how much."""

from __future__ import annotations

from typing import Literal

from paper.entry import Entry, Figure, Outcome, Plot, Table
from paper.judging import (
    condition,
    curves,
    figure,
    held,
    judged,
    not_run,
    overall,
    place,
    power,
    ratio,
    series,
    unjudged,
    value,
)
from paper.reproduce import _published as paper
from paper.reproduce._rivals import DENSE, FORWARD, LAPLEX, LOGS, SCANNED, TITLES, TOEPLITZ
from paper.reproduce._trials import RIGHT
from paper.results import Results, Run, Shelf

L2, LARGEST = "error", "largest_error"
NORMS = {L2: "Euclidean norm", LARGEST: "largest component"}
EPSILON = 2.0**-23
ROUNDINGS = 10
YES, NO = "yes", "no"
EXACT = 1e-12
BESIDE = "asked for; by itself laplex forms a matrix where that is faster"
COMPARED = "for comparison; not the paper's claim"


def accuracy(entry: Entry, shelf: Shelf) -> Outcome:
    """Against float64, random anchors."""
    found = shelf.measured("accuracy")
    if not found:
        return not_run(entry, _missing(entry))
    figures = [one for results in found.values() for one in _accuracy(results)]
    plots = [_errors(results, "n", norm, "Errors") for results in found.values() for norm in NORMS]
    reason = " ".join(_in_words(results) for results in found.values())
    if overall(figures) == "not run":
        reason += " Not all errors up to n = 2^14 are there; the same command goes on."
    return judged(entry, reason, list(found.values()), figures=figures, plots=plots)


def _accuracy(results: Results) -> list[Figure]:
    """Largest errors over all sizes, as laplex chooses; where it was measured, also with every product scanned."""
    where, of_paper = place(results), {L2: paper.ACCURACY_L2, LARGEST: paper.ACCURACY_LARGEST}
    figures = []
    for norm, stated in of_paper.items():
        largest = _largest(results, LAPLEX, norm)
        figures.append(figure(f"{NORMS[norm]}, {where}", stated, largest, "relative error", "lower"))
    times = ratio(results.at(n=paper.ACCURACY_SIZE), LAPLEX, DENSE, FORWARD, L2)
    figures.append(figure(f"dense over laplex, n = 2^14, {where}", paper.ACCURACY_DENSE_FACTOR, times, "x", "higher"))
    for norm, stated in of_paper.items():
        scanned = _largest(results, SCANNED, norm)
        if scanned is not None:
            label = f"{NORMS[norm]}, {TITLES[SCANNED]}, {where}"
            figures.append(unjudged(label, stated, scanned, "relative error", "lower", BESIDE))
    return figures


def _in_words(results: Results) -> str:
    """The largest errors of one device, and where they are."""
    ours, scanned = (_at_most(results, method) for method in (LAPLEX, SCANNED))
    if not ours:
        return f"{place(results)}: not all sizes."
    asked = f"; asked to scan, it errs by at most {scanned}" if scanned else ""
    times = ratio(results.at(n=paper.ACCURACY_SIZE), LAPLEX, DENSE, FORWARD, L2)
    dense = "" if times is None else f"; at n = {power(paper.ACCURACY_SIZE)} dense errs {times:.2g} times as much"
    return f"{place(results)}: laplex errs by at most {ours}{asked}{dense}."


def _at_most(results: Results, method: str) -> str:
    """The largest errors of a method; nothing where one is missing."""
    overall, largest = (_largest(results, method, norm) for norm in NORMS)
    if overall is None or largest is None:
        return ""
    where = next(power(run.settings["n"]) for run in results.runs if value(run, method, FORWARD, L2) == overall)
    return f"{overall:.2g} in the Euclidean norm, at n = {where}, and {largest:.2g} in the largest component"


def _largest(results: Results, method: str, norm: str) -> float | None:
    """The largest error over all sizes; None where one is missing, which may have been the largest."""
    errors = [value(run, method, FORWARD, norm) for run in results.runs]
    found = [one for one in errors if one is not None]
    return max(found) if found and len(found) == len(errors) else None


def grid(entry: Entry, shelf: Shelf) -> Outcome:
    """On a uniform grid, beside the Toeplitz product by FFT."""
    found = shelf.measured("grid-accuracy")
    if not found:
        return not_run(entry, _missing(entry))
    figures, words = [], []
    for results in found.values():
        smallest = [_smallest(run) for run in results.runs]
        last = results.at(n=paper.GRID_SIZE)
        ours, theirs = value(last, LAPLEX, FORWARD, LARGEST), paper.GRID_LARGEST["laplex"]
        figures.append(
            figure(f"largest component, n = 2^14, {place(results)}", theirs, ours, "relative error", "lower")
        )
        label = f"sizes at which its error is the smallest, {place(results)}"
        count = len(smallest)
        figures.append(condition(label, float(count), float(sum(smallest)), "sizes", "higher", all(smallest)))
        which = "at every size" if all(smallest) else f"at {sum(smallest)} of {len(smallest)} sizes"
        error = "not measured" if ours is None else f"{ours:.2g}"
        words.append(f"{place(results)}: {error}, the smallest {which}")
    reason = f"Largest relative error at n = 2^14, beside FFT and dense: {'; '.join(words)}. The paper has 4.2e-7."
    plots = [_errors(results, "n", norm, "Errors on a uniform grid") for results in found.values() for norm in NORMS]
    return judged(entry, reason, list(found.values()), figures=figures, plots=plots)


def _smallest(run: Run) -> bool:
    """Whether laplex, as it chooses, has the smallest error."""
    errors = {method: value(run, method, FORWARD, L2) for method in run.result["measured"] if method != SCANNED}
    least = min(one for one in errors.values() if one is not None)
    if errors[LAPLEX] is None:
        raise ValueError(f"no error of laplex at n = {run.settings['n']}")
    return errors[LAPLEX] == least


def rounding(entry: Entry, shelf: Shelf) -> Outcome:
    """The portable path over the spread of anchors."""
    found = shelf.measured("rounding")
    if not found:
        return not_run(entry, _missing(entry))
    bound = ROUNDINGS * EPSILON
    figures, words = [], []
    for results in found.values():
        for method in (LOGS, LAPLEX):
            largest, lost = _over_spans(results, method)
            label = f"largest error of {TITLES[method]}, {place(results)}"
            numbers = label, EPSILON, largest, "relative error"
            if method == LOGS:
                figures.append(Figure(*numbers, "lower", held(largest <= bound and not lost, False)))
            else:
                figures.append(unjudged(*numbers, "lower", COMPARED))
            words.append(f"{largest:.1e}" + "".join(f" (at {span:,g} tau it is no number)" for span in lost))
    reason = "Over anchors that spread over 1 to 10 000 tau, the float32 error of the logcumsumexp path rises to "
    reason += f"{words[0]}, laplex's to {words[1]}; one rounding is {EPSILON:.1e}."
    plots = [_errors(results, "span", L2, "Errors over the spread of anchors, in tau") for results in found.values()]
    return judged(entry, reason, list(found.values()), figures=figures, plots=plots)


def _over_spans(results: Results, method: str) -> tuple[float, list[float]]:
    """The largest error of a method, and the spreads at which its answer is no number."""
    errors = {run.settings["span"]: value(run, method, FORWARD, L2) for run in results.runs}
    return max(one for one in errors.values() if one is not None), [key for key, one in errors.items() if one is None]


def _errors(results: Results, over: str, norm: str, title: str) -> Plot:
    methods = (LAPLEX, SCANNED, DENSE, TOEPLITZ, LOGS)
    drawn = curves(series(results.runs, over, TITLES[method], method, FORWARD, norm, 1.0) for method in methods)
    words = f"{title}, {NORMS[norm]}, {place(results)}"
    return Plot(words, over, "relative error", drawn, "log2" if over == "n" else "log10", "log10")


# --- Gradients -------------------------------------------------------------------------------------------------------


def differentiability(entry: Entry, shelf: Shelf) -> Outcome:
    """Every cell of the table, as it was tried."""
    found = shelf.measured("gradients")
    if not found:
        return not_run(entry, _missing(entry))
    rows: list[list[str]] = []
    agree: list[bool] = []
    more: list[bool] = []
    for results in found.values():
        for run in results.runs:
            method, asked = run.settings["method"], run.settings["asked"]
            got, theirs = _has(run), run.settings["paper"]
            cells = [place(results), TITLES[method], asked, "" if theirs is None else _word(theirs), _word(got)]
            rows.append(
                [*cells, "" if run.result["error"] is None else f"{run.result['error']:.1e}", run.result["words"]]
            )
            (more if theirs is None else agree).append(got if theirs is None else got == theirs)
    cells_of_paper = "cells that come out as in the paper", float(len(agree)), float(sum(agree))
    figures = [condition(*cells_of_paper, "cells", "higher", all(agree))]
    if more:
        label = "exact beyond the paper: gradients for tau and phases, second derivatives"
        figures.append(Figure(label, None, float(sum(more)), "cells", "higher", held(True, all(more))))
    reason = f"{sum(agree)} of {len(agree)} cells came out as in the paper"
    reason += "; laplex also has exact gradients for tau and phases, and second derivatives." if all(more) else "."
    columns = ["machine", "method", "asked", "paper", "here", "relative error", "what was found"]
    tables = [Table("What was tried, against float64", columns, rows)]
    return judged(entry, reason, list(found.values()), figures=figures, tables=tables)


def _has(run: Run) -> bool:
    """Whether what was asked for is there and right: a file that says so must have the error that shows it."""
    error = run.result["error"]
    return bool(run.result["has"]) and error is not None and 0 <= error <= RIGHT


def _word(yes: bool) -> str:
    return YES if yes else NO


# --- Theory ----------------------------------------------------------------------------------------------------------


def theorem(entry: Entry, shelf: Shelf) -> Outcome:
    """The printed formulas beside the definition."""
    results = shelf.measured("theorem").get("cpu")
    if results is None:
        return not_run(entry, _missing(entry))
    found = results.runs[-1].result
    draws = len(found["strict"])
    right = {name: sum(error < EXACT for error in errors) for name, errors in found.items()}
    strict = "right with the strict upper triangle of the appendix"
    figures = [
        Figure(strict, *_draws(draws, right["strict"]), held(right["strict"] == draws, False)),
        unjudged("right as the text prints it", *_draws(draws, right["printed"]), "its triangle has a diagonal"),
        unjudged("right with a last interval, too", *_draws(draws, right["mended"]), COMPARED),
        unjudged("laplex right", *_draws(draws, right["laplex"]), COMPARED),
    ]
    size, lost = results.runs[-1].settings["n"], max(found["strict"])
    reason = (
        f"As the text prints them the formulas are right in {right['printed']} of {draws} draws of {size} anchors, "
    )
    reason += (
        f"and with the strict upper triangle of the appendix in {right['strict']}: they lose every column beyond the "
    )
    reason += f"last row anchor (errors to {lost:.0%}). With an interval for those they are right in {right['mended']}."
    return judged(entry, reason, [results], figures=figures)


def _draws(draws: int, right: int) -> tuple[float, float, str, Literal["higher"]]:
    """The numbers of a row: how many draws there are, and how many are right."""
    return float(draws), float(right), "draws", "higher"


def full_rank(entry: Entry, shelf: Shelf) -> Outcome:
    """Ranks of random K."""
    results = shelf.measured("rank").get("cpu")
    if results is None:
        return not_run(entry, _missing(entry))
    figures, words = [], []
    for run in results.runs:
        n, found, numerical = run.settings["n"], run.result["rank"], run.result["numerical"]
        full = sum(one == n for one in found)
        verdict = held(2 * full > len(found), False)
        figures.append(
            Figure(f"draws of full rank, n = {n}", float(len(found)), float(full), "draws", "higher", verdict)
        )
        words.append(f"n = {n}: {full} of {len(found)} draws, ranks {min(found) / n:.2f} n to {max(found) / n:.2f} n")
        if numerical:
            same = sum(one == other for one, other in zip(found, numerical, strict=True))
            words[-1] += f" (the same numerically in {same})"
    reason = f"Full rank at {'; '.join(words)}. Anchors that alternate have full rank, and laplex.nn starts with such."
    return judged(entry, reason, [results], figures=figures)


def _missing(entry: Entry) -> str:
    return f"No measurement: `python -m paper run {entry.name}` makes one."
