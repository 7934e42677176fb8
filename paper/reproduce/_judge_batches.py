"""Outcomes of products of several vectors, with one short side, and of Gram matrices."""

from __future__ import annotations

from paper.entry import Entry, Figure, Outcome, Plot
from paper.judging import condition, figure, held, milliseconds, place, power, ratio
from paper.reproduce import _published as paper
from paper.reproduce._judge_timed import MEMORY, gigabytes, of_gpu, over_sizes, peak, present, timed_outcome, told
from paper.reproduce._rivals import BOTH, DENSE, FORWARD, LAPLEX
from paper.results import Results, Run, Shelf


def batch8(entry: Entry, shelf: Shelf) -> Outcome:
    """Eight vectors over n."""
    return timed_outcome(entry, shelf.measured("batch8"), _batch8, _batch8_plots)


def _batch8(results: Results) -> tuple[list[Figure], str]:
    small, large = results.at(n=1 << 16), results.at(n=1 << 20)
    memory = paper.BATCH8_BYTES[1 << 20] / paper.GB
    figures = [
        figure("forward, n = 2^16", paper.BATCH8_FORWARD_MS[1 << 16], milliseconds(small, LAPLEX), "ms", "lower"),
        figure("both ways, n = 2^20", paper.BATCH8_BOTH_MS[1 << 20], milliseconds(large, LAPLEX, BOTH), "ms", "lower"),
        figure("peak memory forward, n = 2^20", memory, peak(large, LAPLEX), "GB", "lower", MEMORY),
    ]
    return figures, told(results, figures)


def _batch8_plots(results: Results) -> list[Plot]:
    forward = {"LAPLEX": paper.BATCH8_FORWARD_MS}
    both, memory = {"LAPLEX": paper.BATCH8_BOTH_MS}, {"LAPLEX": gigabytes(paper.BATCH8_BYTES)}
    return present(
        over_sizes(results, results.runs, "n", "Eight vectors, forward", FORWARD, "seconds", of_gpu(results, forward)),
        over_sizes(
            results, results.runs, "n", "Eight vectors, forward and backward", BOTH, "seconds", of_gpu(results, both)
        ),
        over_sizes(
            results,
            results.runs,
            "n",
            "Eight vectors, peak memory forward",
            FORWARD,
            "peak_bytes",
            of_gpu(results, memory),
        ),
    )


def batch8_against_dense(entry: Entry, shelf: Shelf) -> Outcome:
    """The three ratios at n = 2^14."""
    return timed_outcome(entry, shelf.measured("batch8"), _against_dense, lambda results: [])


def _against_dense(results: Results) -> tuple[list[Figure], str]:
    run, theirs = results.at(n=paper.BATCH8_SIZE), paper.BATCH8_RATIOS
    ours = {
        "forward": ratio(run, LAPLEX, DENSE),
        "forward and backward": ratio(run, LAPLEX, DENSE, BOTH),
        "peak memory": ratio(run, LAPLEX, DENSE, FORWARD, "peak_bytes"),
    }
    figures = [
        figure(
            f"dense over laplex, {name}", theirs[name], ours[name], "x", "higher", MEMORY if "memory" in name else ""
        )
        for name in theirs
    ]
    reason = told(results, figures)
    dense = milliseconds(run, DENSE, BOTH)
    if dense is not None and dense < paper.BATCHES_DENSE_BOTH_MS / 10:
        reason += (
            f" The dense product, both ways, takes {dense:.3g} ms here, where the paper has about 1400 ms: the ratio "
        )
        reason += f"is that of a slow rival. laplex takes {milliseconds(run, LAPLEX, BOTH) or 0:.2g} ms."
    return figures, reason


def batches(entry: Entry, shelf: Shelf) -> Outcome:
    """Over the number of vectors."""
    return timed_outcome(entry, shelf.measured("batches"), _batches, _batches_plots)


def _batches(results: Results) -> tuple[list[Figure], str]:
    runs = results.where(n=paper.BATCHES_SIZE)
    wanted = {1 << exponent for exponent in range(paper.BATCHES_MOST.bit_length())}
    ratios = {way: _ratios(runs, way) for way in (FORWARD, BOTH)}
    few, many = results.at(n=paper.BATCHES_SIZE, batch=8), results.at(n=paper.BATCHES_SIZE, batch=paper.BATCHES_MOST)
    times = [milliseconds(run, LAPLEX) for run in (few, many)]
    growth = times[1] / times[0] if times[0] and times[1] else None
    linear = paper.BATCHES_MOST / 8
    figures = []
    for way, found in ratios.items():
        least = min(found.values()) if wanted <= set(found) else None  # of a part of them it would say nothing
        label = f"least ratio of dense over laplex, {way}, 1 to {paper.BATCHES_MOST} vectors"
        figures.append(condition(label, None, least, "x", "higher", (least or 0.0) > 1))
    verdict = "not run" if growth is None else held(True, growth < linear)
    label, note = "time of 256 vectors over that of 8, forward", "the paper: it grows with their number from 8 on"
    figures.append(Figure(label, linear, growth, "x", "lower", verdict, note))
    spans = [(way, min(found.values()), max(found.values())) for way, found in ratios.items() if found]
    words = ", ".join(f"{least:.1f} to {most:.0f} times faster ({way})" for way, least, most in spans)
    reason = f"{place(results)}: at n = 2^14 laplex is {words} than dense over all numbers of vectors"
    return figures, reason + (f"; 256 vectors take {growth:.1f} times as long as 8." if growth is not None else ".")


def _ratios(runs: list[Run], way: str) -> dict[int, float]:
    """How many times longer dense takes, by the number of vectors."""
    pairs = [(run.settings["batch"], ratio(run, LAPLEX, DENSE, way)) for run in runs]
    return {batch: one for batch, one in pairs if one is not None}


def _batches_plots(results: Results) -> list[Plot]:
    return present(
        over_sizes(results, results.runs, "batch", "Time over the number of vectors, forward", FORWARD, "seconds", {}),
        over_sizes(results, results.runs, "batch", "Time over the number of vectors, both ways", BOTH, "seconds", {}),
    )


def asymmetric(entry: Entry, shelf: Shelf) -> Outcome:
    """One short side."""
    return timed_outcome(entry, shelf.measured("asymmetric"), _asymmetric, _asymmetric_plots)


def _asymmetric(results: Results) -> tuple[list[Figure], str]:
    size, short = paper.ASYMMETRIC_SIZE, 1024
    at = {k: results.at(n=short, k=k) for k in paper.ASYMMETRIC_MS}
    pair = [ratio(results.at(n=n, k=k), LAPLEX, DENSE) for n, k in ((short, size), (size, short))]
    both = [one for one in pair if one is not None]
    figures = [
        figure(f"n = 1024, k = {power(k)}", paper.ASYMMETRIC_MS[k], milliseconds(run, LAPLEX), "ms", "lower")
        for k, run in at.items()
        if k > short
    ]
    ratios = min(both) if len(both) == 2 else None
    figures.append(figure("dense over laplex, long side 2^18", paper.ASYMMETRIC_RATIO, ratios, "x", "higher"))
    return figures, told(results, figures)


def _asymmetric_plots(results: Results) -> list[Plot]:
    wide, tall = results.where(n=1024), results.where(k=1024)
    theirs = {"LAPLEX": paper.ASYMMETRIC_MS, "dense": paper.ASYMMETRIC_DENSE_MS}
    return present(
        over_sizes(results, wide, "k", "1024 rows, time over the columns", FORWARD, "seconds", of_gpu(results, theirs)),
        over_sizes(results, tall, "n", "1024 columns, time over the rows", FORWARD, "seconds", {}),
    )


def gram(entry: Entry, shelf: Shelf) -> Outcome:
    """K diag(w) K^T."""
    return timed_outcome(entry, shelf.measured("gram"), _gram, _gram_plots)


def _gram(results: Results) -> tuple[list[Figure], str]:
    run, k = results.at(k=paper.GRAM_SIZE), paper.GRAM_SIZE
    memory = paper.GRAM_BYTES[k] / paper.GB
    figures = [
        figure("time at k = 2^17", paper.GRAM_MS[k], milliseconds(run, LAPLEX), "ms", "lower"),
        figure("peak memory at k = 2^17", memory, peak(run, LAPLEX), "GB", "lower", MEMORY),
        figure("dense over laplex, k = 2^17", paper.GRAM_RATIO, ratio(run, LAPLEX, DENSE), "x", "higher"),
    ]
    reason = told(results, figures)
    dense = milliseconds(run, DENSE)
    if dense is not None and dense < paper.GRAM_DENSE_MS[k] / 2:
        reason += f" The dense product takes {dense:.3g} ms here, where the paper has 216 ms."
    return figures, reason


def _gram_plots(results: Results) -> list[Plot]:
    times = {"LAPLEX": paper.GRAM_MS, "dense": paper.GRAM_DENSE_MS}
    memory = {"LAPLEX": gigabytes(paper.GRAM_BYTES), "dense": gigabytes(paper.GRAM_DENSE_BYTES)}
    return present(
        over_sizes(
            results, results.runs, "k", "Gram matrix of 1024 rows, time", FORWARD, "seconds", of_gpu(results, times)
        ),
        over_sizes(
            results,
            results.runs,
            "k",
            "Gram matrix of 1024 rows, peak memory",
            FORWARD,
            "peak_bytes",
            of_gpu(results, memory),
        ),
    )
