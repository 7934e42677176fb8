"""The documentation's tables of accuracies, from the committed runs of the experiments on heads and projections."""

import statistics
from collections.abc import Callable

from benchmarks.committed import experiments, source, table
from paper.methods import heads as budgets
from paper.results import Results, Run, latest_recipe, tuned_head

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
    results = {name: experiments(f"heads-{name}-tuned") for name in DATA}
    columns = [(name, rank) for name in DATA for rank in RANKS]
    rows = [
        [title, *(_tuned(results[name], method, _size(method, name, rank)) for name, rank in columns)]
        for method, title in HEADS.items()
    ]
    dense = (_tuned(results[name], "full", 0) if rank == RANKS[0] else "" for name, rank in columns)
    rows.append(["`torch.nn.Linear`", *dense])
    header = ["head", *(f"{DATA[name][0]}, r = {rank}" for name, rank in columns)]
    return table(header, rows, source(*(one.path for one in results.values())))


def projections() -> str:
    """Validation accuracies of projections: a line per projection."""
    results = {images: experiments(f"projection-imagenette224-{images}") for images in IMAGES}
    columns = [(images, width) for images in IMAGES for width in WIDTHS]
    rows = []
    for (method, tau), title in PROJECTIONS.items():
        runs = (results[images].matching(method=method, tau=tau, width=width) for images, width in columns)
        rows.append([title, *(_percent(latest_recipe(same), "val") for same in runs)])
    header = ["projection", *(f"{images} images, m = {width}" for images, width in columns)]
    return table(header, rows, source(*(one.path for one in results.values())))


def _size(method: str, name: str, rank: int) -> int:
    """The size that the budget of LAPLEX^(rank) allows."""
    _, width, classes = DATA[name]
    return budgets.size_for_budget(method, width, classes, budgets.count("laplex", width, classes, rank).trained)


def _tuned(results: Results, method: str, size: int) -> str:
    return _percent(tuned_head(results.matching(method=method, size=size)), "test")


def _percent(runs: list[Run], rows: str) -> str:
    return f"{100 * statistics.fmean(run.result[rows] for run in runs):.1f}"


CONTENT: dict[str, Callable[[], str]] = {"heads": heads, "projections": projections}
