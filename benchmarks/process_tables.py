"""Tables of Gaussian processes over time, compared with celerite2 and tinygp, from the committed JSON."""

from collections.abc import Callable
from typing import Any

from benchmarks.committed import content, rival_cell, source, table

TIMES, OLDER, GPU_TIMES = "time-series-cpu-later.json", "time-series-cpu.json", "time-series-nvidia-h200.json"
NAMES = {
    "likelihood": "likelihood",
    "gradient": "likelihood and gradients",
    "whole": "likelihood, from unsorted times",
    "predict": "mean and variance at n new times",
    "samples": "a draw at n new times",
}


def _older_cell(row: dict[str, Any] | None) -> str:
    return "" if row is None else rival_cell(row, "tinygp")


NOTE = "tinygp was measured in an earlier run, beside an older and slower laplex."


def process_times() -> str:
    """Milliseconds, and ratios. tinygp's are those of an earlier run, in which it took part."""
    older = {(row["what"], row["kernel"], row["n"]): row for row in content(OLDER)["rows"]}
    rows = [
        (
            NAMES[row["what"]], row["kernel"], f"{row['n']:,}".replace(",", " "), f"{row['ms']['laplex']:.3g}",
            rival_cell(row, "celerite2"), _older_cell(older.get((row["what"], row["kernel"], row["n"]))),
        )
        for row in content(TIMES)["rows"]
    ]  # fmt: skip
    return table(
        ("what", "kernel", "n", "laplex, ms", "celerite2, ms: ratio", "tinygp, ms: ratio"),
        rows,
        NOTE,
        source(TIMES, OLDER),
    )


GPU_NAMES = NAMES | {"condition": "mean and variance at the data", "unsorted": "likelihood, from unsorted times"}


def process_times_gpu() -> str:
    """Milliseconds on a GPU."""
    rows = [
        (
            GPU_NAMES[row["what"]], row["kernel"], f"{row['series']:,} x {row['n']:,}".replace(",", " "),
            f"{row['ms']:.3g}",
        )
        for row in content(GPU_TIMES)["rows"]
    ]  # fmt: skip
    return table(("what", "kernel", "series x points", "ms"), rows, source(GPU_TIMES))


CONTENT: dict[str, Callable[[], str]] = {
    "process times": process_times,
    "process times on a GPU": process_times_gpu,
}
