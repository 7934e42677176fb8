"""Tables of soft sorts and ranks, and of kernel statistics on the line, from the committed JSON."""

import math
import statistics
from collections.abc import Callable
from typing import Any

from benchmarks.committed import content, rival_cell, source, table

SOFT, SOFT_GPU, STATS, DIGITS = "soft-cpu.json", "soft-nvidia-h200.json", "stats-cpu.json", "digits-sorted.json"
RIVALS = {
    "torchsort": "torchsort, ms: ratio",
    "lapsum": "LapSum's formulas, ms: ratio",
    "softsort": "SoftSort's matrix, ms: ratio",
    "torch.sort": "`torch.sort`, ms: ratio",
}


def _sizes(row: dict[str, Any]) -> str:
    return f"{row['rows']:,} x {row['n']:,}".replace(",", " ")


def soft_times() -> str:
    """Forward and backward on the CPU, by function and size."""
    rows = [
        (f"`{row['what']}`", _sizes(row), f"{row['ms']['laplex']:.3g}", *(rival_cell(row, name) for name in RIVALS))
        for row in content(SOFT)["rows"]
    ]
    note = "Forward and backward on two cores; `torch.sort` forward alone. Bold: laplex takes longer."
    return table(("function", "rows x numbers", "laplex, ms", *RIVALS.values()), rows, note, source(SOFT))


def soft_times_gpu() -> str:
    """Forward and backward on a GPU, compared with torch.sort."""
    rows = [
        (f"`{row['what']}`", _sizes(row), f"{row['ms']['laplex']:.3g}", rival_cell(row, "torch.sort"))
        for row in content(SOFT_GPU)["rows"]
    ]
    return table(("function", "rows x numbers", "laplex, ms", RIVALS["torch.sort"]), rows, source(SOFT_GPU))


def soft_steps() -> str:
    """Steps of training on short lists, with n entries of the permutation and with its matrix."""
    runs = content(DIGITS)["runs"]
    rows = []
    for n in sorted({run["n"] for run in runs}):
        ours, formed = (
            statistics.median(run["ms_per_step"] for run in runs if run["n"] == n and run["form"] == form)
            for form in ("laplex.soft", "SoftSort, dense")
        )
        ratio = ours / formed
        rows.append((str(n), f"{ours:.3g}", f"{formed:.3g}", f"{ratio:.2g}" if ratio <= 1 else f"**{ratio:.2g}**"))
    header = "numbers of a list", "`laplex.soft.cross_entropy`, ms", "SoftSort, matrix formed, ms", "ratio"
    return table(header, rows, "A training step of 20 lists on one thread, the network included.", source(DIGITS))


def statistics_times() -> str:
    """Densities and MMD, compared with their rivals."""
    rows = []
    for row in content(STATS)["rows"]:
        if "rival seconds" not in row:
            continue
        part = f"{row['rival points']} points" if "rival points" in row else f"n = {row['rival n']}"
        rival = f"{row['rival']}, {part}: {row['rival seconds']:.3g}"
        ratio = f"< {rounded_up(row['ratio'])}" if row["bound"] else f"{row['ratio']:.1g}"
        rows.append((row["what"], f"{row['n']:,}".replace(",", " "), f"{row['seconds']:.3g}", rival, ratio))
    note = (
        "A rival that would need more than two minutes gets the part that is named; its time for all is longer, so "
        "that the ratio is a bound."
    )
    return table(("what", "n", "laplex, s", "rival, s", "ratio"), rows, note, source(STATS))


def rounded_up(bound: float) -> str:
    """A positive number to one digit, and not below the number itself."""
    unit = 10.0 ** math.floor(math.log10(bound))
    return f"{math.ceil(bound / unit - 1e-9) * unit:.1g}"


CONTENT: dict[str, Callable[[], str]] = {
    "soft times": soft_times,
    "soft times on a GPU": soft_times_gpu,
    "soft steps": soft_steps,
    "statistics times": statistics_times,
}
