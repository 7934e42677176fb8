"""The documentation's tables of accuracies, from the committed runs of the experiments on heads and projections."""

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from benchmarks.committed import EXPERIMENTS, content, source, table
from paper.methods import heads as budgets

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
    """Test accuracies of heads under learning rates tuned for each method: a line per method."""
    names = [f"{title}, r = {rank}" for title, _, _ in DATA.values() for rank in RANKS]
    files = {name: f"{EXPERIMENTS}/heads-{name}-tuned.json" for name in DATA}
    runs = {name: content(file)["runs"] for name, file in files.items()}
    rows = [
        [title, *(_tuned(runs[name], method, _size(method, name, rank)) for name in DATA for rank in RANKS)]
        for method, title in HEADS.items()
    ]
    dense = [_tuned(runs[name], "full", 0) for name in DATA]
    rows.append(["`torch.nn.Linear`", *(one if rank == RANKS[0] else "" for one in dense for rank in RANKS)])
    return table(["head", *names], rows, source(*files.values()))


def projections() -> str:
    """Validation accuracies of projections: a line per projection."""
    names = [f"{images} images, m = {width}" for images in IMAGES for width in WIDTHS]
    files = [f"{EXPERIMENTS}/projection-imagenette224-{images}.json" for images in IMAGES]
    runs = [content(file)["runs"] for file in files]
    rows = [
        [title, *(_last(one, method, tau, width) for one in runs for width in WIDTHS)]
        for (method, tau), title in PROJECTIONS.items()
    ]
    return table(["projection", *names], rows, source(*files))


def _size(method: str, name: str, rank: int) -> int:
    """The size that the budget of LAPLEX^(rank) allows."""
    _, width, classes = DATA[name]
    return budgets.size_for_budget(method, width, classes, budgets.count("laplex", width, classes, rank).trained)


def _tuned(runs: list[Run], method: str, size: int) -> str:
    """The test accuracy at the learning rate and the start that are best on validation rows."""
    groups = defaultdict(list)
    for run in runs:
        settings = run["settings"]
        if (settings["method"], settings["size"]) == (method, size):
            groups[settings["start"], settings["lr"]].append(run)
    first = {
        key: next(run["result"]["val"] for run in same if run["settings"]["seed"] == 0) for key, same in groups.items()
    }
    rates = {
        start: max((lr for other, lr in first if other == start), key=lambda lr: first[start, lr]) for start, _ in first
    }
    best = max(rates.items(), key=lambda key: statistics.fmean(run["result"]["val"] for run in groups[key]))
    return _percent(run["result"]["test"] for run in groups[best])


def _last(runs: list[Run], method: str, tau: float | None, width: int) -> str:
    """The validation accuracy under the recipe that was run last, which is the one in use."""
    groups = defaultdict(list)
    for run in runs:
        settings = run["settings"]
        if (settings["method"], settings["tau"], settings["width"]) == (method, tau, width):
            groups[settings["lr"], settings.get("epochs")].append(run)
    newest = max(groups.values(), key=lambda same: max(run["date"] for run in same))
    return _percent(run["result"]["val"] for run in newest)


def _percent(values: Iterable[float]) -> str:
    values = list(values)
    return f"{100 * statistics.fmean(values):.1f}"


CONTENT: dict[str, Callable[[], str]] = {"heads": heads, "projections": projections}
