"""Tables of training steps on a GPU, eager, captured and compiled, from the committed JSON."""

from collections.abc import Callable
from typing import Any

from benchmarks.committed import content, source, table

STEPS, OTHER = "steps-nvidia-h200.json", "steps-nvidia-h200-first.json"  # the same study on two machines of a kind
COMPILED = "default", "reduce-overhead"  # modes of torch.compile


def _both(row: dict[str, Any], key: str) -> str:
    """The times of nn.Linear and of LaplexLinear, and their ratio, bold where laplex is slower."""
    dense, ours = row[key]["nn.Linear"], row[key]["LaplexLinear"]
    ratio = f"{ours / dense:.2f}"
    return f"{dense:.3g} / {ours:.3g}: {ratio if ours < dense else f'**{ratio}**'}"


def layer_steps() -> str:
    """Eager and captured steps."""
    rows = [
        (
            f"{row['features']} -> {row['results']}", str(row["kernels"]), str(row["rows"]),
            "bf16" if row["bfloat16"] else "float32", _both(row, "eager"), _both(row, "captured"),
        )
        for row in content(STEPS)["layers"]
    ]  # fmt: skip
    elsewhere = [f"{row['eager']['LaplexLinear'] / row['eager']['nn.Linear']:.2f}" for row in content(OTHER)["layers"]]
    ratios = f"Ratios of eager steps on another machine with an H200, row by row: {', '.join(elsewhere)}."
    header = "layer", "r", "rows", "precision", "eager, ms", "captured, ms"
    return table(header, rows, ratios, source(STEPS, OTHER))


def compiled_steps() -> str:
    """Compiled steps of layers and of a network."""
    report = content(STEPS)
    network = report["network"]
    named = [(f"{row['features']} -> {row['results']}, r = {row['kernels']}", row) for row in report["layers"]]
    named.append((f"{network['blocks']} blocks of {network['features']} -> {network['results']} and back", network))
    rows = [
        (name, _both(row, "eager"), *(_both(row["compiled"], mode) for mode in COMPILED), _both(row, "captured"))
        for name, row in named
        if "compiled" in row
    ]
    return table(
        ("network", "eager, ms", *(f"compiled, {mode}, ms" for mode in COMPILED), "captured, ms"), rows, source(STEPS)
    )


CONTENT: dict[str, Callable[[], str]] = {"layer steps": layer_steps, "compiled steps": compiled_steps}
