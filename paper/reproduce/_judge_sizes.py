"""Outcomes of products of one vector: over n, beside FFTs, and on a CPU."""

from __future__ import annotations

from itertools import takewhile

from paper.entry import Entry, Figure, Outcome, Plot
from paper.judging import figure, milliseconds, place, power, ratio, unjudged
from paper.reproduce import _published as paper
from paper.reproduce._judge_timed import (
    BESIDE_FFT,
    MEMORY,
    gigabytes,
    of_gpu,
    over_sizes,
    peak,
    present,
    timed_outcome,
    told,
)
from paper.reproduce._rivals import DENSE, FFT, FORWARD, KEPT, LAPLEX, LOGS, TOEPLITZ
from paper.results import Results, Shelf


def runtime(entry: Entry, shelf: Shelf) -> Outcome:
    """To n = 2^29."""
    return timed_outcome(entry, shelf.measured("sizes"), _runtime, _runtime_plots)


def _runtime(results: Results) -> tuple[list[Figure], str]:
    middle, largest = results.at(n=1 << 19), results.at(n=1 << 29)
    figures = [
        figure("time at n = 2^19", paper.RUNTIME_MS[1 << 19], milliseconds(middle, LAPLEX), "ms", "lower"),
        figure("time at n = 2^29", paper.RUNTIME_MS[1 << 29], milliseconds(largest, LAPLEX), "ms", "lower"),
        figure(
            "peak memory at n = 2^29",
            paper.RUNTIME_BYTES[1 << 29] / paper.GB,
            peak(largest, LAPLEX),
            "GB",
            "lower",
            MEMORY,
        ),
    ]
    slower = [run for run in results.runs if (ratio(run, FFT, LAPLEX) or 2.0) < 1]
    words = "One FFT is not faster at every n." if slower else "One FFT is faster at every n, as the paper says."
    return figures, f"{told(results, figures)} {words}"


def _runtime_plots(results: Results) -> list[Plot]:
    times = {"LAPLEX": paper.RUNTIME_MS, "dense": paper.DENSE_RUNTIME_MS}
    memory = {"LAPLEX": gigabytes(paper.RUNTIME_BYTES), "dense": gigabytes(paper.DENSE_RUNTIME_BYTES)}
    methods = (LAPLEX, KEPT, DENSE, FFT)
    return present(
        over_sizes(
            results,
            results.runs,
            "n",
            "Time of a product of one vector",
            FORWARD,
            "seconds",
            of_gpu(results, times),
            methods,
        ),
        over_sizes(
            results,
            results.runs,
            "n",
            "Peak memory of a product of one vector",
            FORWARD,
            "peak_bytes",
            of_gpu(results, memory),
            methods,
        ),
    )


def fft(entry: Entry, shelf: Shelf) -> Outcome:
    """Against Toeplitz products on a uniform grid."""
    return timed_outcome(entry, shelf.measured("sizes"), _fft, _fft_plots)


def _fft(results: Results) -> tuple[list[Figure], str]:
    run = results.at(n=paper.FFT_SIZE)
    figures = [
        figure("laplex over Toeplitz-FFT, n = 2^20", paper.FFT_RATIO, ratio(run, TOEPLITZ, LAPLEX), "x", "lower"),
        unjudged(
            "laplex with its plan kept over Toeplitz-FFT, n = 2^20",
            None,
            ratio(run, TOEPLITZ, KEPT),
            "x",
            "lower",
            "for anchors that stay; the paper has no such figure",
        ),
    ]
    kept = figures[1].ours
    reason = told(results, figures[:1])
    if kept is not None:
        reason += f" With its plan kept laplex takes {kept:.2g} times as long."
    return figures, reason + _slower_from(results)


def _slower_from(results: Results) -> str:
    """From which size on our whole call takes longer than the Toeplitz product, in words."""
    ratios = {run.settings["n"]: ratio(run, TOEPLITZ, LAPLEX) for run in results.runs}
    known = sorted((n, one) for n, one in ratios.items() if one is not None)
    slower = list(takewhile(lambda pair: pair[1] > 1, reversed(known)))
    if not slower:
        return ""
    (first, least), (last, most) = slower[-1], slower[0]
    if first == last:
        return f" At {power(last)} the whole call takes {most:.2g} times as long as the Toeplitz product."
    ratio_words = f"{least:.2g} times as long, and {most:.2g} times at {power(last)}"
    return f" From n = {power(first)} on the whole call is slower than the Toeplitz product: {ratio_words}."


def _fft_plots(results: Results) -> list[Plot]:
    return present(over_sizes(results, results.runs, "n", "Time beside FFTs", FORWARD, "seconds", {}, BESIDE_FFT))


def cpu(entry: Entry, shelf: Shelf) -> Outcome:
    """The dense product on a CPU."""
    found = {device: one for device, one in shelf.measured("sizes").items() if device == "cpu"}
    return timed_outcome(entry, found, _cpu, _cpu_plots)


def _cpu(results: Results) -> tuple[list[Figure], str]:
    run, n = results.at(n=paper.CPU_SIZE), paper.CPU_SIZE
    figures = [
        figure("time at n = 2^14", paper.CPU_MS[n], milliseconds(run, LAPLEX), "ms", "lower"),
        figure("dense over laplex, n = 2^14", paper.CPU_RATIO, ratio(run, LAPLEX, DENSE), "x", "higher"),
        unjudged(
            "dense over the paper's portable path, n = 2^14",
            paper.CPU_RATIO,
            ratio(run, LOGS, DENSE),
            "x",
            "higher",
            "its logcumsumexp path as we wrote it, for comparison",
        ),
    ]
    ours, times = figures[0].ours, figures[1].ours
    reason = (
        f"{place(results)}: {ours or 0:.2g} ms, {times or 0:.0f} times less than dense; the paper, on a CPU that it "
    )
    return figures, reason + "does not name, has 6 ms and 108 times."


def _cpu_plots(results: Results) -> list[Plot]:
    runs = [run for run in results.runs if run.settings["n"] <= paper.CPU_SIZE]
    theirs = {"LAPLEX": paper.CPU_MS, "dense": paper.CPU_DENSE_MS}
    return present(over_sizes(results, runs, "n", "Time on a CPU", FORWARD, "seconds", theirs))


def cpu_fft(entry: Entry, shelf: Shelf) -> Outcome:
    """FFTs on a CPU."""
    found = {device: one for device, one in shelf.measured("sizes").items() if device == "cpu"}
    return timed_outcome(entry, found, _cpu_fft, _cpu_fft_plots)


def _cpu_fft(results: Results) -> tuple[list[Figure], str]:
    run, theirs = results.at(n=paper.CPU_FFT_SIZE), paper.CPU_FFT_MS
    quotient = theirs["laplex"] / theirs["toeplitz"]
    figures = [
        figure("time at n = 2^18", theirs["laplex"], milliseconds(run, LAPLEX), "ms", "lower"),
        figure("laplex over Toeplitz-FFT, n = 2^18", quotient, ratio(run, TOEPLITZ, LAPLEX), "x", "lower"),
    ]
    ours, times = figures[0].ours, figures[1].ours
    reason = (
        f"{place(results)}: {ours or 0:.2g} ms, {times or 0:.2g} times a Toeplitz product; the paper, on one thread, "
    )
    return figures, reason + f"has {theirs['laplex']:g} ms and {quotient:.0f} times."


def _cpu_fft_plots(results: Results) -> list[Plot]:
    n, theirs = paper.CPU_FFT_SIZE, paper.CPU_FFT_MS
    runs = [run for run in results.runs if run.settings["n"] <= n]
    names = {"laplex": "LAPLEX", "toeplitz": "Toeplitz-FFT", "fft": "one FFT"}
    points = {title: {n: theirs[key]} for key, title in names.items()}
    methods = (*BESIDE_FFT, LOGS)
    return present(over_sizes(results, runs, "n", "Time on a CPU, beside FFTs", FORWARD, "seconds", points, methods))
