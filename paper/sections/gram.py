"""Gram matrices K diag(w) K^T."""

from __future__ import annotations

from dataclasses import replace

from paper.entry import TENTH, Entry, Figure, Plot
from paper.judging import figure, milliseconds, ratio
from paper.judging_times import MEMORY, in_words, judge_times, peak, times_plot
from paper.measuring import DENSE, FORWARD, GRAM, LAPLEX, PLANNED, compare, draw, sizes
from paper.results import Results
from paper.running import Measurement, Request, Result, Settings

# Figure 12: n = 1024, over k.
GRAM_SIZE = 1 << 17
GRAM_MS, GRAM_DENSE_MS = {GRAM_SIZE: 1.45}, {GRAM_SIZE: 216.0}
GRAM_GB, GRAM_DENSE_GB = {GRAM_SIZE: 0.033}, {GRAM_SIZE: 1.0}
GRAM_RATIO = 149.0


def _points(request: Request) -> list[Settings]:
    n = 64 if request.quick else 1024
    return [{"n": n, "k": k, "batch": 1, "seed": request.seed} for k in sizes(request, 11, 20, 20)]


def _compute(settings: Settings, request: Request) -> Result:
    problem = draw(settings, request)
    result = compare(
        replace(problem, x=problem.x.abs()), [(method, GRAM) for method in (LAPLEX, PLANNED, DENSE)], request
    )
    return result | {"measured": {method: {FORWARD: ways[GRAM]} for method, ways in result["measured"].items()}}


def _figures(results: Results) -> tuple[list[Figure], str]:
    run = results.first(k=GRAM_SIZE)
    figures = [
        figure("time at k = 2^17", GRAM_MS[GRAM_SIZE], milliseconds(run, LAPLEX), "ms", "lower"),
        figure("peak memory at k = 2^17", GRAM_GB[GRAM_SIZE], peak(run, LAPLEX), "GB", "lower", MEMORY),
        figure("dense over laplex, k = 2^17", GRAM_RATIO, ratio(run, LAPLEX, DENSE), "x", "higher"),
    ]
    reason = in_words(results, figures)
    dense = milliseconds(run, DENSE)
    if dense is not None and dense < GRAM_DENSE_MS[GRAM_SIZE] / 2:
        reason += f" The dense product takes {dense:.3g} ms here, where the paper has 216 ms."
    return figures, reason


def _plots(results: Results) -> list[Plot | None]:
    times = {"LAPLEX": GRAM_MS, "dense": GRAM_DENSE_MS}
    memory = {"LAPLEX": GRAM_GB, "dense": GRAM_DENSE_GB}
    title = "Gram matrix of 1024 rows"
    return [
        times_plot(results, f"{title}, time", over="k", gpu_points=times),
        times_plot(results, f"{title}, peak memory", over="k", quantity="peak_bytes", gpu_points=memory),
    ]


MEASUREMENT = Measurement("gram", _points, _compute)
ENTRIES = (
    Entry(
        name="gram",
        title="Weighted Gram matrix over the inner dimension",
        section="Gram",
        source="Figure 12",
        claim="With n = 1024 and k = 2^17 the Gram matrix takes 1.45 ms and 33 MB, the dense one 216 ms and 1 GB: "
        "149 times more time.",
        criterion="Our whole call, its peak memory, and its ratio to the dense one. " + TENTH,
        minutes={"cuda": 0.5, "cpu": 2.0},
        measure=(MEASUREMENT,),
        judge=judge_times(MEASUREMENT, _figures, _plots),
        gpu_figures=True,
    ),
)
