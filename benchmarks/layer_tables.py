"""Tables of layers inside networks, from the committed JSON: training steps, and learning rates that suit them."""

from collections.abc import Callable
from typing import Any

from benchmarks.committed import content, source, table
from benchmarks.docs_tables import ratio

STEPS = "steps-nvidia-h200.json"
RATES = "learning-rates-cpu.json", "learning-rates-cuda.json"  # of small and of large widths


def steps() -> str:
    """Eager, captured and compiled training steps of LaplexLinear, compared with nn.Linear."""
    rows = []
    for one in content(STEPS)["layers"]:
        modes = {"eager": one["eager"], "captured": one["captured"]} | one.get("compiled", {})
        dtype = "bfloat16" if one["bfloat16"] else "float32"
        layer = f"{one['features']} -> {one['results']}", str(one["kernels"]), str(one["rows"]), dtype
        for mode, times in modes.items():
            dense, ours = times["nn.Linear"], times["LaplexLinear"]
            rows.append((*layer, NAMES[mode], f"{dense:.3g} ms", f"{ours:.3g} ms", ratio(ours / dense)))
    header = "layer", "r", "rows", "dtype", "step", "nn.Linear", "LaplexLinear", "ratio"
    return table(header, rows, source(STEPS))


NAMES = {
    "eager": "eager",
    "captured": "as a CUDA graph",
    "default": "torch.compile",
    "reduce-overhead": 'torch.compile, mode="reduce-overhead"',
}


def learning_rates() -> str:
    """The best rates, over widths and kernels."""
    points = [point for name in RATES for point in content(name)["points"]]
    kernels = sorted({point["kernels"] for point in points} - {0})
    rows = []
    for width in sorted({point["width"] for point in points}):
        for optimizer in ("AdamW", "SGD"):
            best = {p["kernels"]: p["best"] for p in points if (p["width"], p["optimizer"]) == (width, optimizer)}
            cells = [f"{best[r]:.2g}" if r in best else "" for r in (0, *kernels)]
            rows.append((str(width), optimizer, *cells))
    header = "width", "optimizer", "nn.Linear", *(f"r = {r}" for r in kernels)
    ratios = [point["ratio"] for point in points if point["kernels"]]
    near = sum(0.49 < one < 2.01 for one in ratios)
    summary = f"{near} of {len(ratios)} rates of kernels are within a factor of 2 of nn.Linear's."
    return table(header, rows, summary, source(*RATES))


def digits() -> str:
    """Accuracies of digits at rates that people use."""
    reached: dict[str, Any] = content(RATES[0])["defaults"]
    rules = list(next(iter(reached.values())))
    rows = [
        (name, *(f"{100 * sum(each[rule]) / len(each[rule]):.1f}" for rule in rules)) for name, each in reached.items()
    ]
    return table(("hidden layers", *rules), rows, source(RATES[0]))


CONTENT: dict[str, Callable[[], str]] = {"steps": steps, "learning rates": learning_rates, "digits": digits}
