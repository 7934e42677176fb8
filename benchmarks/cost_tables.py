"""Tables of what products over processes cost, and of faults, from the committed JSON."""

from collections.abc import Callable
from typing import Any

from benchmarks.committed import content, source, table
from benchmarks.tables import scaled

COSTS, FAULTS = "cost-model.json", "faults-cpu.json"
SHOWN = (1, 8, 64, 1024)  # GPUs


def fitted_costs() -> str:
    """How far the fitted times are from those that were measured."""
    fitted = content(COSTS)["fitted"]
    rows = [(name, *(f"{ratio:.2g}" for ratio in ratios)) for name, ratios in fitted["fitted over measured"].items()]
    return table(("", "least", "median", "largest"), rows, "Fitted time over measured time.", source(COSTS))


def assumed_links() -> str:
    """What the predictions take for granted."""
    links = content(COSTS)["assumed"]["links"]
    rows = [(name, scaled(one["seconds"], "s"), f"{one['bytes'] / 1e9:g} GB/s") for name, one in links.items()]
    return table(("", "a step", "of a GPU, in each direction"), rows, "Assumed, not measured.", source(COSTS))


def predicted_costs() -> str:
    """Times on some numbers of GPUs, and from which number on the exchange takes longer than the work."""
    rows = []
    for name, prediction in content(COSTS)["predicted"].items():
        by_count = {row["GPUs"]: row for row in prediction["rows"]}
        totals = [sum(by_count[count][part] for part in ("call", "work", "exchange")) for count in SHOWN]
        about = [scaled(float(f"{seconds:.2g}"), "s") for seconds in totals]  # a model has no more digits
        sent = by_count[64]
        first = prediction["exchange takes longer than the work from"]
        rows.append((name, *about, str(first or "-"), f"{scaled(sent['bytes'], 'bytes')}, {sent['messages']:.0f}"))
    header = (
        "",
        *(f"{count} GPU{'s' if count > 1 else ''}" for count in SHOWN),
        "exchange longer than work from",
        "sent by each of 64: bytes, messages",
    )
    return table(header, rows, "Predicted, not measured.", source(COSTS))


def faults() -> str:
    """What was left after faults of each kind."""
    report: dict[str, Any] = content(FAULTS)
    kinds = {"SIGKILL": report["SIGKILL"], "SIGTERM": report["SIGTERM"]}
    rows = [(name, *(str(one[name]) for one in kinds.values())) for name in report["SIGKILL"]]
    return table(("", *kinds), rows, source(FAULTS))


CONTENT: dict[str, Callable[[], str]] = {
    "fitted costs": fitted_costs,
    "assumed links": assumed_links,
    "predicted costs": predicted_costs,
    "faults of fits": faults,
}
