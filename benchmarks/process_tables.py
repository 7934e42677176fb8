"""Tables of Gaussian processes over time, compared with celerite2 and tinygp, from the committed JSON."""

from collections.abc import Callable
from typing import Any

from benchmarks.committed import content, rival_cell, source, table

TIMES, GPU_TIMES = "time-series-cpu.json", "time-series-nvidia-h200.json"
NAMES = {
    "likelihood": "likelihood",
    "gradient": "likelihood and gradients",
    "whole": "likelihood, from unsorted times",
    "predict": "mean and variance at n new times",
    "samples": "a draw at n new times",
}


def process_times() -> str:
    """Milliseconds, and ratios."""
    rows = [
        (
            NAMES[row["what"]], row["kernel"], f"{row['n']:,}".replace(",", " "), f"{row['ms']['laplex']:.3g}",
            *(rival_cell(row, rival) for rival in ("celerite2", "tinygp")),
        )
        for row in content(TIMES)["rows"]
    ]  # fmt: skip
    header = "what", "kernel", "n", "laplex, ms", "celerite2, ms: ratio", "tinygp, ms: ratio"
    return table(header, rows, source(TIMES))


GPU_NAMES = NAMES | {"condition": "mean and variance at the data", "unsorted": "likelihood, from unsorted times"}


def process_times_gpu() -> str:
    """Milliseconds on a GPU."""
    rows = [
        (
            GPU_NAMES[row["what"]], row["kernel"], f"{row['series']:,} x {row['n']:,}".replace(",", " "),
            f"{row['ms']:.3g}",
        )
        for row in sorted(content(GPU_TIMES)["rows"], key=_place)
    ]  # fmt: skip
    return table(("what", "kernel", "series x points", "ms"), rows, source(GPU_TIMES))


def _place(row: dict[str, Any]) -> tuple[Any, ...]:
    """The rows were measured with the most important ones first."""
    return list(GPU_NAMES).index(row["what"]), row["kernel"], row["series"], row["n"]


CONTENT: dict[str, Callable[[], str]] = {
    "process times": process_times,
    "process times on a GPU": process_times_gpu,
}
