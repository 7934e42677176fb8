"""Outcomes of the operator benchmarks: times and memory, from the measurements of `_measure`.

The paper's figures are those of a GPU, except for ``cpu`` and ``cpu-fft``; results of a CPU are shown and not judged.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from laplex.reproduce import _published as paper
from laplex.reproduce._judging import (
    curves,
    figure,
    held,
    judged,
    milliseconds,
    of_paper,
    place,
    ratio,
    series,
    value,
    worst,
)
from laplex.reproduce._judging import not_run as without
from laplex.reproduce._outcome import Entry, Figure, Outcome, Plot
from laplex.reproduce._rivals import BOTH, DENSE, FFT, FORWARD, KEPT, LAPLEX, LOGS, TITLES, TOEPLITZ
from laplex.reproduce._stored import Results, Run, Shelf

BUSY = 1.5  # load a core from which on others are at work, too
GPUS = "the paper's GPU is an H100"
PRODUCTS = (LAPLEX, KEPT, DENSE, LOGS)
BESIDE_FFT = (LAPLEX, KEPT, TOEPLITZ, FFT)

Judge = Callable[[Entry, Results], tuple[list[Figure], str]]


def _outcome(
    entry: Entry, found: dict[str, Results], judge: Judge, plots: Callable[[Results], list[Plot]], device: str = "cuda"
) -> Outcome:
    """Figures of one device; plots of all."""
    shown = [plot for one in found.values() for plot in plots(one)]
    sources = list(found.values())
    if device not in found:
        missing = (
            f"No measurement on a {'GPU' if device == 'cuda' else 'CPU'}: `laplex reproduce {entry.name} --device "
        )
        missing += f"{device}` makes one."
        return judged(entry, "not run", missing, sources, plots=shown) if found else without(entry, missing)
    figures, reason = judge(entry, found[device])
    verdict = worst(one for one in figures if not one.note)
    if verdict == "not run":
        reason = "The measurement lacks the sizes that the paper names; --full has them."
    elif device == "cpu":
        reason += _noise(found[device])
    return judged(entry, verdict, reason, sources, figures=figures, plots=shown)


def _over(
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
    scale, label = (1e3, "ms") if what == "seconds" else (1e-9, "GB")
    drawn = curves(series(runs, over, TITLES[method], method, way, what, scale) for method in methods)
    if not drawn:
        return None
    beside = [of_paper(name, points) for name, points in theirs.items()]
    return Plot(f"{title}, {place(results)}", over, label, [*drawn, *beside], "log2", "log10")


def _of_gpu(results: Results, theirs: Mapping[str, Mapping[int, float]]) -> Mapping[str, Mapping[int, float]]:
    """The paper's points of its GPU; they are not drawn beside those of a CPU."""
    return theirs if results.device == "cuda" else {}


def _noise(results: Results) -> str:
    """A warning where others used the CPU: the measurement itself makes a load of one a thread."""
    loads = [run.result["load"] for run in results.runs if run.result.get("load") is not None]
    cores = results.machines[-1].get("cores") or 1
    if not loads or max(loads) <= BUSY * cores:
        return ""
    return f" The machine was busy (load {max(loads):.1f} on {cores} cores): these times are noisy."


def _plots(*found: Plot | None) -> list[Plot]:
    return [one for one in found if one is not None]


def _gigabytes(points: Mapping[int, float]) -> dict[int, float]:
    return {n: held_bytes / paper.GB for n, held_bytes in points.items()}


def _peak(run: Run | None, method: str, way: str = FORWARD) -> float | None:
    found = value(run, method, way, "peak_bytes")
    return None if found is None else found / paper.GB


# --- One vector ------------------------------------------------------------------------------------------------------


def runtime(entry: Entry, shelf: Shelf) -> Outcome:
    """To n = 2^29."""
    return _outcome(entry, shelf.measured("sizes"), _runtime, _runtime_plots)


def _runtime(entry: Entry, results: Results) -> tuple[list[Figure], str]:
    middle, largest = results.at(n=1 << 19), results.at(n=1 << 29)
    figures = [
        figure("time at n = 2^19", paper.RUNTIME_MS[1 << 19], milliseconds(middle, LAPLEX), "ms", "lower"),
        figure("time at n = 2^29", paper.RUNTIME_MS[1 << 29], milliseconds(largest, LAPLEX), "ms", "lower"),
        figure(
            "peak memory at n = 2^29", paper.RUNTIME_BYTES[1 << 29] / paper.GB, _peak(largest, LAPLEX), "GB", "lower"
        ),
    ]
    times = [figures[0].ours, figures[1].ours, figures[2].ours]
    reason = f"{place(results)} ({GPUS}): " + ", ".join(
        f"{found:.3g} {one.unit} ({one.label}; paper {one.paper:g})"
        for found, one in zip(times, figures, strict=True)
        if found is not None
    )
    faster = [run.settings["n"] for run in results.runs if (ratio(run, FFT, LAPLEX) or 2) < 1]
    reason += (
        ". One FFT is faster at every n, as the paper says." if not faster else ". One FFT is not faster everywhere."
    )
    return figures, reason


def _runtime_plots(results: Results) -> list[Plot]:
    times = {"LAPLEX": paper.RUNTIME_MS, "dense": paper.DENSE_RUNTIME_MS}
    memory = {"LAPLEX": _gigabytes(paper.RUNTIME_BYTES), "dense": _gigabytes(paper.DENSE_RUNTIME_BYTES)}
    methods = (LAPLEX, KEPT, DENSE, FFT)
    return _plots(
        _over(
            results,
            results.runs,
            "n",
            "Time of a product of one vector",
            FORWARD,
            "seconds",
            _of_gpu(results, times),
            methods,
        ),
        _over(
            results,
            results.runs,
            "n",
            "Peak memory of a product of one vector",
            FORWARD,
            "peak_bytes",
            _of_gpu(results, memory),
            methods,
        ),
    )


def fft(entry: Entry, shelf: Shelf) -> Outcome:
    """Against Toeplitz products on a uniform grid."""
    return _outcome(entry, shelf.measured("sizes"), _fft, _fft_plots)


def _fft(entry: Entry, results: Results) -> tuple[list[Figure], str]:
    run = results.at(n=paper.FFT_SIZE)
    figures = [
        figure("laplex over Toeplitz-FFT, n = 2^20", paper.FFT_RATIO, ratio(run, TOEPLITZ, LAPLEX), "x", "lower"),
        figure(
            "laplex with its plan kept over Toeplitz-FFT, n = 2^20",
            None,
            ratio(run, TOEPLITZ, KEPT),
            "x",
            "lower",
            "anchors that stay; the paper has no such figure",
        ),
    ]
    found = [one.ours for one in figures if one.ours is not None]
    reason = f"{place(results)} ({GPUS}): sorting included, laplex takes {found[0]:.2g} times as long" if found else ""
    reason += (
        f" as a Toeplitz product, and {found[1]:.2g} times with its plan kept; the paper takes 4 times as long."
        if found[1:]
        else ""
    )
    return figures, reason


def _fft_plots(results: Results) -> list[Plot]:
    runs = [run for run in results.runs if run.settings["n"] <= paper.FFT_SIZE]
    return _plots(_over(results, runs, "n", "Time beside FFTs", FORWARD, "seconds", {}, BESIDE_FFT))


def cpu(entry: Entry, shelf: Shelf) -> Outcome:
    """The dense product on a CPU."""
    found = {device: one for device, one in shelf.measured("sizes").items() if device == "cpu"}
    return _outcome(entry, found, _cpu, _cpu_plots, "cpu")


def _cpu(entry: Entry, results: Results) -> tuple[list[Figure], str]:
    run, n = results.at(n=paper.CPU_SIZE), paper.CPU_SIZE
    figures = [
        figure("time at n = 2^14", paper.CPU_MS[n], milliseconds(run, LAPLEX), "ms", "lower"),
        figure("dense over laplex, n = 2^14", paper.CPU_RATIO, ratio(run, LAPLEX, DENSE), "x", "higher"),
        figure(
            "dense over the paper's portable path, n = 2^14",
            paper.CPU_RATIO,
            ratio(run, LOGS, DENSE),
            "x",
            "higher",
            "our writing of its logcumsumexp path",
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
    return _plots(_over(results, runs, "n", "Time on a CPU", FORWARD, "seconds", theirs))


def cpu_fft(entry: Entry, shelf: Shelf) -> Outcome:
    """FFTs on a CPU."""
    found = {device: one for device, one in shelf.measured("sizes").items() if device == "cpu"}
    return _outcome(entry, found, _cpu_fft, _cpu_fft_plots, "cpu")


def _cpu_fft(entry: Entry, results: Results) -> tuple[list[Figure], str]:
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
    return _plots(_over(results, runs, "n", "Time on a CPU, beside FFTs", FORWARD, "seconds", points, methods))


# --- Several vectors -------------------------------------------------------------------------------------------------


def batch8(entry: Entry, shelf: Shelf) -> Outcome:
    """Eight vectors over n."""
    return _outcome(entry, shelf.measured("batch8"), _batch8, _batch8_plots)


def _batch8(entry: Entry, results: Results) -> tuple[list[Figure], str]:
    small, large = results.at(n=1 << 16), results.at(n=1 << 20)
    memory = paper.BATCH8_BYTES[1 << 20] / paper.GB
    figures = [
        figure("forward, n = 2^16", paper.BATCH8_FORWARD_MS[1 << 16], milliseconds(small, LAPLEX), "ms", "lower"),
        figure("both ways, n = 2^20", paper.BATCH8_BOTH_MS[1 << 20], milliseconds(large, LAPLEX, BOTH), "ms", "lower"),
        figure("peak memory forward, n = 2^20", memory, _peak(large, LAPLEX), "GB", "lower"),
    ]
    told = [f"{one.label}: {one.ours:.3g} {one.unit} (paper {one.paper:g})" for one in figures if one.ours is not None]
    return figures, f"{place(results)} ({GPUS}): {'; '.join(told)}."


def _batch8_plots(results: Results) -> list[Plot]:
    forward = {"LAPLEX": paper.BATCH8_FORWARD_MS}
    both, memory = {"LAPLEX": paper.BATCH8_BOTH_MS}, {"LAPLEX": _gigabytes(paper.BATCH8_BYTES)}
    return _plots(
        _over(results, results.runs, "n", "Eight vectors, forward", FORWARD, "seconds", _of_gpu(results, forward)),
        _over(
            results, results.runs, "n", "Eight vectors, forward and backward", BOTH, "seconds", _of_gpu(results, both)
        ),
        _over(
            results,
            results.runs,
            "n",
            "Eight vectors, peak memory forward",
            FORWARD,
            "peak_bytes",
            _of_gpu(results, memory),
        ),
    )


def batch8_against_dense(entry: Entry, shelf: Shelf) -> Outcome:
    """The three ratios at n = 2^14."""
    return _outcome(entry, shelf.measured("batch8"), _against_dense, lambda results: [])


def _against_dense(entry: Entry, results: Results) -> tuple[list[Figure], str]:
    run, theirs = results.at(n=paper.BATCH8_SIZE), paper.BATCH8_RATIOS
    ours = {
        "forward": ratio(run, LAPLEX, DENSE),
        "forward and backward": ratio(run, LAPLEX, DENSE, BOTH),
        "peak memory": ratio(run, LAPLEX, DENSE, FORWARD, "peak_bytes"),
    }
    figures = [figure(f"dense over laplex, {name}", theirs[name], ours[name], "x", "higher") for name in theirs]
    told = [f"{name} {found:.0f} (paper {theirs[name]:.0f})" for name, found in ours.items() if found is not None]
    reason = f"{place(results)} ({GPUS}), times less than dense: {', '.join(told)}."
    dense = milliseconds(run, DENSE, BOTH)
    if dense is not None and dense < paper.BATCHES_DENSE_BOTH_MS / 10:
        reason += (
            f" The dense product, both ways, takes {dense:.3g} ms here, where the paper has about 1400 ms: the ratio "
        )
        reason += f"is that of a slow rival. laplex takes {milliseconds(run, LAPLEX, BOTH) or 0:.2g} ms."
    return figures, reason


def batches(entry: Entry, shelf: Shelf) -> Outcome:
    """Over the number of vectors."""
    return _outcome(entry, shelf.measured("batches"), _batches, _batches_plots)


def _batches(entry: Entry, results: Results) -> tuple[list[Figure], str]:
    runs = results.where(n=paper.BATCHES_SIZE)
    pairs = [
        (way, [one for run in runs if (one := ratio(run, LAPLEX, DENSE, way)) is not None]) for way in (FORWARD, BOTH)
    ]
    few, many = results.at(n=paper.BATCHES_SIZE, batch=8), results.at(n=paper.BATCHES_SIZE, batch=paper.BATCHES_MOST)
    times = [milliseconds(run, LAPLEX) for run in (few, many)]
    growth = times[1] / times[0] if times[0] and times[1] else None
    less = growth is not None and growth < paper.BATCHES_MOST / 8
    figures = [
        Figure(f"least ratio of dense over laplex, {way}", None, min(found), "x", "higher", held(min(found) > 1, less))
        for way, found in pairs
        if found
    ]
    told = ", ".join(f"{min(found):.1f} to {max(found):.0f} times faster ({way})" for way, found in pairs if found)
    reason = f"{place(results)}: at n = 2^14 laplex is {told} than dense over all numbers of vectors"
    return figures, reason + (f"; 256 vectors take {growth:.1f} times as long as 8." if growth is not None else ".")


def _batches_plots(results: Results) -> list[Plot]:
    return _plots(
        _over(results, results.runs, "batch", "Time over the number of vectors, forward", FORWARD, "seconds", {}),
        _over(results, results.runs, "batch", "Time over the number of vectors, both ways", BOTH, "seconds", {}),
    )


def asymmetric(entry: Entry, shelf: Shelf) -> Outcome:
    """One short side."""
    return _outcome(entry, shelf.measured("asymmetric"), _asymmetric, _asymmetric_plots)


def _asymmetric(entry: Entry, results: Results) -> tuple[list[Figure], str]:
    size, short = paper.ASYMMETRIC_SIZE, 1024
    at = {k: results.at(n=short, k=k) for k in paper.ASYMMETRIC_MS}
    pair = [ratio(results.at(n=n, k=k), LAPLEX, DENSE) for n, k in ((short, size), (size, short))]
    both = [one for one in pair if one is not None]
    figures = [
        figure(
            f"n = 1024, k = 2^{k.bit_length() - 1}", paper.ASYMMETRIC_MS[k], milliseconds(run, LAPLEX), "ms", "lower"
        )
        for k, run in at.items()
        if k > short
    ]
    ratios = min(both) if len(both) == 2 else None
    figures.append(figure("dense over laplex, long side 2^18", paper.ASYMMETRIC_RATIO, ratios, "x", "higher"))
    told = [f"{one.label}: {one.ours:.3g} {one.unit} (paper {one.paper:g})" for one in figures if one.ours is not None]
    return figures, f"{place(results)} ({GPUS}): {'; '.join(told)}."


def _asymmetric_plots(results: Results) -> list[Plot]:
    wide, tall = results.where(n=1024), results.where(k=1024)
    theirs = {"LAPLEX": paper.ASYMMETRIC_MS, "dense": paper.ASYMMETRIC_DENSE_MS}
    return _plots(
        _over(results, wide, "k", "1024 rows, time over the columns", FORWARD, "seconds", _of_gpu(results, theirs)),
        _over(results, tall, "n", "1024 columns, time over the rows", FORWARD, "seconds", {}),
    )


def gram(entry: Entry, shelf: Shelf) -> Outcome:
    """K diag(w) K^T."""
    return _outcome(entry, shelf.measured("gram"), _gram, _gram_plots)


def _gram(entry: Entry, results: Results) -> tuple[list[Figure], str]:
    run, k = results.at(k=paper.GRAM_SIZE), paper.GRAM_SIZE
    memory = paper.GRAM_BYTES[k] / paper.GB
    figures = [
        figure("time at k = 2^17", paper.GRAM_MS[k], milliseconds(run, LAPLEX), "ms", "lower"),
        figure("peak memory at k = 2^17", memory, _peak(run, LAPLEX), "GB", "lower"),
        figure("dense over laplex, k = 2^17", paper.GRAM_RATIO, ratio(run, LAPLEX, DENSE), "x", "higher"),
    ]
    told = [f"{one.label}: {one.ours:.3g} {one.unit} (paper {one.paper:g})" for one in figures if one.ours is not None]
    reason = f"{place(results)} ({GPUS}): {'; '.join(told)}."
    dense = milliseconds(run, DENSE)
    if dense is not None and dense < paper.GRAM_DENSE_MS[k] / 2:
        reason += f" The dense product takes {dense:.3g} ms here, where the paper has 216 ms."
    return figures, reason


def _gram_plots(results: Results) -> list[Plot]:
    times = {"LAPLEX": paper.GRAM_MS, "dense": paper.GRAM_DENSE_MS}
    memory = {"LAPLEX": _gigabytes(paper.GRAM_BYTES), "dense": _gigabytes(paper.GRAM_DENSE_BYTES)}
    return _plots(
        _over(
            results, results.runs, "k", "Gram matrix of 1024 rows, time", FORWARD, "seconds", _of_gpu(results, times)
        ),
        _over(
            results,
            results.runs,
            "k",
            "Gram matrix of 1024 rows, peak memory",
            FORWARD,
            "peak_bytes",
            _of_gpu(results, memory),
        ),
    )
