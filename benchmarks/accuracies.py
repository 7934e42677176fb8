"""The README's tables of accuracies, from the committed runs of `python -m paper experiment heads` and `projection`."""

import json
import statistics
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.report import COMMITTED
from paper.methods import heads as budgets

FOLDER = COMMITTED / "experiments"
RANKS = (4, 8, 16)
DATA = {"clinc150": ("CLINC150", 384, 150), "tinyimagenet200": ("Tiny-ImageNet", 1280, 200)}
HEADS = {
    "laplex": "LAPLEX, r kernels",
    "laplex-phased": "the same with phases, r / 2 kernels",
    "low-rank": "low rank",
    "kronecker": "sum of Kronecker products",
    "seeded": "random projection, dense head",
    "pca": "PCA, dense head; its directions are not counted",
    "pca-stored": "PCA, dense head; its directions are counted",
}
WIDTHS = (25, 100, 500, 1000)
PROJECTIONS = {
    ("countsketch", None): "CountSketch",
    ("pca", None): "PCA",
    ("placed", 0.002): "LAPLEX, pixels placed by `laplex.seriate`",
    ("trained-placed", 0.01): "LAPLEX, trained with the head",
    ("trained-dense", None): "`torch.nn.Linear`, trained with the head",
}
IMAGES = (3000, 6000)

Run = dict[str, Any]


def heads() -> str:
    """Test accuracies of heads under learning rates tuned for each method: a line a method."""
    names = [f"{title}, r = {rank}" for title, _, _ in DATA.values() for rank in RANKS]
    lines = [f"| head | {' | '.join(names)} |", "| --- |" + " --- |" * len(names)]
    runs = {name: _runs(FOLDER / f"heads-{name}-tuned.json") for name in DATA}
    for method, title in HEADS.items():
        cells = [_tuned(runs[name], method, _size(method, name, rank)) for name in DATA for rank in RANKS]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    full = [_tuned(runs[name], "full", 0) for name in DATA]
    lines.append(
        "| `torch.nn.Linear` | " + " | ".join(one if rank == 4 else "" for one in full for rank in RANKS) + " |"
    )
    return "\n".join([*lines, "", _origin(FOLDER / f"heads-{name}-tuned.json" for name in DATA)])


def projections() -> str:
    """Validation accuracies of projections: a line a projection."""
    names = [f"{images} images, m = {width}" for images in IMAGES for width in WIDTHS]
    lines = [f"| projection | {' | '.join(names)} |", "| --- |" + " --- |" * len(names)]
    files = [FOLDER / f"projection-imagenette224-{images}.json" for images in IMAGES]
    runs = [_runs(path) for path in files]
    for (method, tau), title in PROJECTIONS.items():
        cells = [_last(one, method, tau, width) for one in runs for width in WIDTHS]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join([*lines, "", _origin(files)])


def _runs(path: Path) -> list[Run]:
    return json.loads(path.read_text())["runs"]  # type: ignore[no-any-return]


def _origin(paths: Iterable[Path]) -> str:
    return "From " + ", ".join(f"`benchmarks/results/experiments/{path.name}`" for path in paths) + "."


def _size(method: str, name: str, rank: int) -> int:
    """The size that the budget of LAPLEX^(rank) allows."""
    _, width, classes = DATA[name]
    return budgets.size_for_budget(method, width, classes, budgets.count("laplex", width, classes, rank).trained)


def _tuned(runs: list[Run], method: str, size: int) -> str:
    """The test accuracy at the learning rate and the start that are best on validation rows."""
    found = defaultdict(list)
    for run in runs:
        settings = run["settings"]
        if (settings["method"], settings["size"]) == (method, size):
            found[settings["start"], settings["lr"]].append(run)
    first = {
        key: next(run["result"]["val"] for run in same if run["settings"]["seed"] == 0) for key, same in found.items()
    }
    rates = {
        start: max((lr for other, lr in first if other == start), key=lambda lr: first[start, lr]) for start, _ in first
    }
    best = max(rates.items(), key=lambda key: statistics.fmean(run["result"]["val"] for run in found[key]))
    return _percent(run["result"]["test"] for run in found[best])


def _last(runs: list[Run], method: str, tau: float | None, width: int) -> str:
    """The validation accuracy under the recipe that was run last, which is the one in use."""
    found = defaultdict(list)
    for run in runs:
        settings = run["settings"]
        if (settings["method"], settings["tau"], settings["width"]) == (method, tau, width):
            found[settings["lr"], settings.get("epochs")].append(run)
    newest = max(found.values(), key=lambda same: max(run["date"] for run in same))
    return _percent(run["result"]["val"] for run in newest)


def _percent(values: Iterable[float]) -> str:
    values = list(values)
    return f"{100 * statistics.fmean(values):.1f}"
