"""The documentation's tables of accuracies, from the committed runs of the experiments on heads and projections."""

import statistics
from collections.abc import Callable, Iterable

from benchmarks.committed import EXPERIMENTS, results, source, table
from paper.methods import heads as budgets
from paper.results import Results, latest_recipe, tuned_head

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


def heads() -> str:
    """Test accuracies of heads under learning rates tuned for each method: a line per method."""
    names = [f"{title}, r = {rank}" for title, _, _ in DATA.values() for rank in RANKS]
    files = {name: f"{EXPERIMENTS}/heads-{name}-tuned.json" for name in DATA}
    runs = {name: results(file) for name, file in files.items()}
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
    runs = [results(file) for file in files]
    rows = [
        [title, *(_last(one, method, tau, width) for one in runs for width in WIDTHS)]
        for (method, tau), title in PROJECTIONS.items()
    ]
    return table(["projection", *names], rows, source(*files))


def _size(method: str, name: str, rank: int) -> int:
    """The size that the budget of LAPLEX^(rank) allows."""
    _, width, classes = DATA[name]
    return budgets.size_for_budget(method, width, classes, budgets.count("laplex", width, classes, rank).trained)


def _tuned(runs: Results, method: str, size: int) -> str:
    """The test accuracy at the learning rate and the start that are best on validation rows."""
    chosen = tuned_head(runs.matching(method=method, size=size))
    return _percent(run.result["test"] for run in chosen)


def _last(runs: Results, method: str, tau: float | None, width: int) -> str:
    """The validation accuracy under the recipe that was run last."""
    chosen = latest_recipe(runs.matching(method=method, tau=tau, width=width))
    return _percent(run.result["val"] for run in chosen)


def _percent(values: Iterable[float]) -> str:
    return f"{100 * statistics.fmean(values):.1f}"


CONTENT: dict[str, Callable[[], str]] = {"heads": heads, "projections": projections}
