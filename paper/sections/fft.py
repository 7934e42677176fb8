"""Products of one vector compared with FFTs, and on a CPU."""

from __future__ import annotations

from itertools import takewhile

from paper.entry import TENTH, Entry, Figure, Plot
from paper.judging import figure, machine_name, milliseconds, power, ratio, unjudged
from paper.judging_times import in_words, judge_times, times_plot
from paper.measuring import DENSE, FFT, LAPLEX, LOGS, PLANNED, TOEPLITZ
from paper.results import Results
from paper.sections.operator import SIZES

# Figure 14: LAPLEX takes 4 times as long as a Toeplitz product by FFT at 2^20.
FFT_SIZE, FFT_RATIO = 1 << 20, 4.0

# Figure 13: one vector, n = k = 2^10 to 2^14.
CPU_SIZE = 1 << 14
CPU_MS, CPU_DENSE_MS = {CPU_SIZE: 6.0}, {1 << 10: 0.7, CPU_SIZE: 662.0}
CPU_RATIO = 108.0

# Figure 17: one thread, at n = 2^18.
CPU_FFT_SIZE = 1 << 18
CPU_FFT_MS = {"LAPLEX": 64.0, "Toeplitz-FFT": 6.0, "one FFT": 0.65}

RIVALS = (LAPLEX, PLANNED, TOEPLITZ, FFT)


def _fft(results: Results) -> tuple[list[Figure], str]:
    run = results.first(n=FFT_SIZE)
    planned, note = ratio(run, TOEPLITZ, PLANNED), "for anchors that stay; the paper has no such figure"
    label = "laplex with its plan kept over Toeplitz-FFT, n = 2^20"
    judged = figure("laplex over Toeplitz-FFT, n = 2^20", FFT_RATIO, ratio(run, TOEPLITZ, LAPLEX), "x", "lower")
    reason = in_words(results, [judged])
    if planned is not None:
        reason += f" With its plan kept laplex takes {planned:.2g} times as long."
    return [judged, unjudged(label, None, planned, "x", "lower", note)], reason + _slower_from(results)


def _slower_from(results: Results) -> str:
    """From which size on our whole call takes longer than the Toeplitz product, in words."""
    ratios = {run.settings["n"]: ratio(run, TOEPLITZ, LAPLEX) for run in results.runs}
    known = sorted((n, times) for n, times in ratios.items() if times is not None)
    slower = list(takewhile(lambda pair: pair[1] > 1, reversed(known)))
    if not slower:
        return ""
    (first, least), (last, most) = slower[-1], slower[0]
    if first == last:
        return f" At {power(last)} the whole call takes {most:.2g} times as long as the Toeplitz product."
    words = f"{least:.2g} times as long, and {most:.2g} times at {power(last)}"
    return f" From n = {power(first)} on the whole call is slower than the Toeplitz product: {words}."


def _fft_plots(results: Results) -> list[Plot | None]:
    return [times_plot(results, "Time compared with FFTs", methods=RIVALS)]


def _cpu(results: Results) -> tuple[list[Figure], str]:
    run = results.first(n=CPU_SIZE)
    ours, times, logs = milliseconds(run, LAPLEX), ratio(run, LAPLEX, DENSE), ratio(run, LOGS, DENSE)
    label = "dense over the paper's portable path, n = 2^14"
    note = "its logcumsumexp path as we wrote it, for comparison"
    figures = [
        figure("time at n = 2^14", CPU_MS[CPU_SIZE], ours, "ms", "lower"),
        figure("dense over laplex, n = 2^14", CPU_RATIO, times, "x", "higher"),
        unjudged(label, CPU_RATIO, logs, "x", "higher", note),
    ]
    return figures, (
        f"{machine_name(results)}: {ours or 0:.2g} ms, {times or 0:.0f} times less than dense; the paper, on a CPU "
        "that it does not name, has 6 ms and 108 times."
    )


def _cpu_plots(results: Results) -> list[Plot | None]:
    runs = [run for run in results.runs if run.settings["n"] <= CPU_SIZE]
    return [times_plot(results, "Time on a CPU", runs=runs, points={"LAPLEX": CPU_MS, "dense": CPU_DENSE_MS})]


def _cpu_fft(results: Results) -> tuple[list[Figure], str]:
    run = results.first(n=CPU_FFT_SIZE)
    ours, times = milliseconds(run, LAPLEX), ratio(run, TOEPLITZ, LAPLEX)
    theirs, quotient = CPU_FFT_MS["LAPLEX"], CPU_FFT_MS["LAPLEX"] / CPU_FFT_MS["Toeplitz-FFT"]
    figures = [
        figure("time at n = 2^18", theirs, ours, "ms", "lower"),
        figure("laplex over Toeplitz-FFT, n = 2^18", quotient, times, "x", "lower"),
    ]
    return figures, (
        f"{machine_name(results)}: {ours or 0:.2g} ms, {times or 0:.2g} times a Toeplitz product; the paper, on one "
        f"thread, has {theirs:g} ms and {quotient:.0f} times."
    )


def _cpu_fft_plots(results: Results) -> list[Plot | None]:
    runs = [run for run in results.runs if run.settings["n"] <= CPU_FFT_SIZE]
    points = {label: {CPU_FFT_SIZE: time} for label, time in CPU_FFT_MS.items()}
    title = "Time on a CPU, compared with FFTs"
    return [times_plot(results, title, runs=runs, points=points, methods=(*RIVALS, LOGS))]


ENTRIES = (
    Entry(
        name="fft",
        title="Arbitrary anchors against a Toeplitz product by FFT",
        section="Operator",
        source="Figure 5, Figure 14",
        claim="LAPLEX on irregular anchors takes 4 times as long as a Toeplitz product by FFT on a uniform grid at "
        "n = 2^20, and all curves rise in the same way.",
        criterion="The ratio of our whole call, sorting included, to a whole Toeplitz product. " + TENTH,
        minutes={"cuda": 2.0, "cpu": 2.0},
        measure=(SIZES,),
        judge=judge_times(SIZES, _fft, _fft_plots),
        gpu_figures=True,
    ),
    Entry(
        name="cpu",
        title="On the CPU, against the dense matrix",
        section="Operator",
        source="Figure 13",
        claim="At n = 2^14 on a CPU a product takes about 6 ms, 108 times less than the dense one.",
        criterion="Our whole call, and its ratio to the dense one in the same run. " + TENTH,
        minutes={"cpu": 2.0},
        measure=(SIZES,),
        judge=judge_times(SIZES, _cpu, _cpu_plots),
    ),
    Entry(
        name="cpu-fft",
        title="On the CPU, against FFTs",
        section="Operator",
        source="Figure 17",
        claim="At n = 2^18 on one CPU thread LAPLEX takes 64 ms, a Toeplitz product by FFT 6 ms, one FFT 0.65 ms.",
        criterion="Our whole call at 2^18, and its ratio to the Toeplitz product in the same run, with the threads "
        "that the verdict names. " + TENTH,
        minutes={"cpu": 2.0},
        measure=(SIZES,),
        judge=judge_times(SIZES, _cpu_fft, _cpu_fft_plots),
    ),
)
