"""Tables of the learning rates that suit layers, from the committed JSON."""

from collections.abc import Callable
from typing import Any

from benchmarks.committed import content, source, table

RATES, WIDE = "learning-rates-cpu.json", "learning-rates-cuda.json"  # widths up to 256, and from 1024 on


def rate_points() -> list[dict[str, Any]]:
    """The points of both studies."""
    return [*content(RATES)["points"], *content(WIDE)["points"]]


def learning_rates() -> str:
    """The best rates, over widths and kernels."""
    points = rate_points()
    kernels = sorted({point["kernels"] for point in points} - {0})
    rows = []
    for width in sorted({point["width"] for point in points}):
        for optimizer in ("AdamW", "SGD"):
            best = {p["kernels"]: p["best"] for p in points if (p["width"], p["optimizer"]) == (width, optimizer)}
            cells = [f"{best[r]:.2g}" if r in best else "" for r in (0, *kernels)]
            if best:
                rows.append((str(width), optimizer, *cells))
    header = "width", "optimizer", "nn.Linear", *(f"r = {r}" for r in kernels)
    ratios = [point["ratio"] for point in points if point["kernels"]]
    near = sum(0.49 < one < 2.01 for one in ratios)
    summary = f"{near} of {len(ratios)} rates of kernels are within a factor of 2 of nn.Linear's."
    return table(header, rows, summary, source(RATES, WIDE))


def digits() -> str:
    """Accuracies of digits at rates that people use."""
    reached: dict[str, Any] = content(RATES)["defaults"]
    rules = list(next(iter(reached.values())))
    rows = [
        (name, *(f"{100 * sum(each[rule]) / len(each[rule]):.1f}" for rule in rules)) for name, each in reached.items()
    ]
    return table(("hidden layers", *rules), rows, source(RATES))


CONTENT: dict[str, Callable[[], str]] = {"learning rates": learning_rates, "digits": digits}
