"""`python -m paper experiment heads`: test accuracy of heads with few parameters, on features of a frozen network.

For every rank r each method gets the parameters of LAPLEX^(r), r (classes + features) + r + classes, or the most below
that it can use. With --head mlp a head has two layers, Linear(f, f) - tanh - Linear(f, classes) for f features, both of
the method and of the same rank, and the budget is that of two LAPLEX layers. Under the recipe "tuned" the learning rate
of each method, start and rank is the one of ``GRID`` with the best validation accuracy at seed 0; then all seeds are
run with it. Test rows choose nothing. The recipe "paper" tunes nothing; its rates are scaled so that steps times rate
is that of the paper, whose epochs have many more steps.

A training step is a few tiny launches, which leave a GPU idle most of the time: --jobs N shares it between N processes.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from paper.methods.heads import METHODS, count, size_for_budget
from paper.experiments import head_tables, jobs
from paper.experiments.data import Features, features
from paper.experiments.head_tables import Row
from paper.experiments.methods import VARIANTS, Heads, Variant
from paper.experiments.options import among, at_least_one, file_name, words
from paper.experiments.record import Record
from paper.experiments.training import GRID, PAPER, PAPER_FULL, TUNED, Recipe, scaled, train

ABOUT = "Accuracy of classification heads with few parameters, on features of a frozen network."
RANKS, QUICK_RANKS = (2, 4, 8, 16), (2, 4)
SEEDS, QUICK_SEEDS = 5, 1
QUICK_EPOCHS, QUICK_GRID = 3, (1e-3, 1e-2, 1e-1)
RECIPES = ("tuned", "paper")
SHAPES = ("linear", "mlp")

Cell = tuple[Variant, int | None, int]  # the variant, the rank r that sets its budget, the size that the budget allows


@dataclass(frozen=True)
class Study:
    """Everything that decides which runs there are."""

    name: str
    data: Features  # standardised, on the device
    record: Record
    ranks: tuple[int, ...]
    seeds: int
    methods: tuple[str, ...]
    recipe: str
    quick: bool = False
    shape: str = "linear"
    jobs: int = 1

    @property
    def hidden(self) -> int | None:
        """The width of the hidden layer; None where heads have one layer."""
        return self.data.width if self.shape == "mlp" else None

    @property
    def grid(self) -> tuple[float, ...]:
        """The learning rates to choose from; none under the paper's recipe."""
        if self.recipe == "paper":
            return ()
        return QUICK_GRID if self.quick else GRID


# --- Options ---------------------------------------------------------------------------------------------------------


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options that this experiment has beside the common ones."""
    keys = "x_train, y_train, x_test, y_test and, if there, x_val, y_val"
    parser.add_argument("--data", required=True, metavar="FILE.npz", help=keys)
    parser.add_argument("--name", help="of the data, for titles and file names; that of the file if not given")
    parser.add_argument(
        "--ranks", type=int, nargs="+", metavar="R", help=f"kernels of LAPLEX; {words(RANKS)} if not given"
    )
    parser.add_argument("--seeds", type=int, metavar="N", help=f"runs of each head; {SEEDS} if not given")
    parser.add_argument(
        "--recipe", default="tuned", help="tuned (rates chosen on validation rows) or paper (rates scaled)"
    )
    parser.add_argument("--methods", nargs="+", default=METHODS, metavar="M", help="heads that are compared")
    parser.add_argument("--quick", action="store_true", help="few epochs, ranks, seeds and rates: to see that it works")
    parser.add_argument("--head", default="linear", metavar="SHAPE", help="linear, or mlp: two layers and a tanh")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes that share the device")


def prepare(given: argparse.Namespace) -> Study:
    """Check the options and read the data; ValueError where something is wrong, and nothing is written."""
    if given.head not in SHAPES:
        raise ValueError(f"--head must be one of {', '.join(SHAPES)}, got {given.head!r}")
    at_least_one("jobs", [given.jobs])
    ranks = given.ranks or (QUICK_RANKS if given.quick else RANKS)
    seeds = (QUICK_SEEDS if given.quick else SEEDS) if given.seeds is None else given.seeds
    at_least_one("ranks", ranks)
    at_least_one("seeds", [seeds])
    if given.recipe not in RECIPES:
        raise ValueError(f"--recipe must be one of {words(RECIPES)}, got {given.recipe!r}")
    among("methods", given.methods, METHODS)
    name = file_name(given.name or Path(given.data).stem)
    data = features(given.data).standardised().to(given.device)
    stem = f"heads-{name}-{given.recipe}" + ("-quick" if given.quick else "")
    stem += "-mlp" if given.head == "mlp" else ""
    record = Record(Path(given.out) / f"{stem}.json", "heads", device=given.device, fresh=given.fresh)
    ordered = tuple(sorted(set(ranks)))
    study = Study(name, data, record, ordered, seeds, tuple(given.methods), given.recipe, given.quick)
    return replace(study, shape=given.head, jobs=given.jobs)


# --- Runs ------------------------------------------------------------------------------------------------------------


def run(study: Study) -> int:
    """Every run that the record lacks; then the table and the plot."""
    cells = list(_cells(study))
    jobs.into_record(study.record, partial(_share, study, cells), min(study.jobs, len(cells)))
    rows = _measured(study, list(enumerate(cells, 1)), len(cells))
    title = study.name + (", two layers" if study.shape == "mlp" else "")
    head_tables.write(study.record.path, title, study.recipe, rows, quick=study.quick)
    return 0


def _share(study: Study, cells: list[Cell], job: int, of: int) -> None:
    """What one of so many jobs measures; its runs go into a file of its own."""
    numbered = list(enumerate(cells, 1))[job::of]
    _measured(replace(study, record=study.record.part(job)), numbered, len(cells))


def _measured(study: Study, cells: list[tuple[int, Cell]], of: int) -> list[Row]:
    """The rows of these cells, with a line for each that is new."""
    heads = Heads(study.data, study.hidden)
    rows = []
    for number, (variant, rank, size) in cells:
        before = len(study.record)
        row = measure(study, heads, variant, rank, size)
        rows.append(row)
        at = "" if rank is None else f", r = {rank}"
        if len(study.record) > before:
            print(f"[{number}/{of}] {variant}{at}: lr {row.lr:g}, test {row.shown}", file=sys.stderr, flush=True)
    return rows


def _cells(study: Study) -> Iterator[Cell]:
    """What to measure, in the order of the table; what cannot be is named."""
    for variant in (one for one in VARIANTS if one.method in study.methods):
        if study.hidden is not None and not variant.deep:
            print(f"skipped: {variant}: there is no head of two layers of this kind", file=sys.stderr)
            continue
        if variant.method == "full":
            yield variant, None, 0
            continue
        for rank in study.ranks:
            try:
                yield variant, rank, _size(study, variant, rank)
            except ValueError as error:
                print(f"skipped: {variant}, r = {rank}: {error}", file=sys.stderr)


def _size(study: Study, variant: Variant, rank: int) -> int:
    """The size within the budget of LAPLEX^(rank); ValueError where the variant has none."""
    data, hidden = study.data, study.hidden
    shape = data.width, data.classes
    budget = count("laplex", *shape, rank, hidden=hidden).trained
    size = size_for_budget(variant.method, *shape, budget, hidden=hidden)
    if variant.start == "singular" and size > min(shape):
        raise ValueError(f"a weight {data.classes} x {data.width} has {min(shape)} singular vectors")
    # More directions than features, or than rows to find them from, do not exist.
    return min(size, *data.train[0].shape) if variant.method.startswith("pca") else size


def measure(study: Study, heads: Heads, variant: Variant, rank: int | None, size: int) -> Row:
    """Choose the learning rate, if the recipe says so, and run all seeds."""

    def reached(recipe: Recipe, seed: int) -> dict[str, Any]:
        settings = {"data": study.data.digest, "method": variant.method, "start": variant.start, "size": size}
        settings |= {"seed": seed, **asdict(recipe)}
        # Results files from before there was a choice hold heads of one layer, and stay valid.
        settings |= {} if study.shape == "linear" else {"head": study.shape}
        return study.record.run(settings, lambda: train(heads.make(variant, size, seed), study.data, recipe, seed))

    recipe = _recipe(study, variant)
    if study.grid:
        # The first of equally good rates is the lowest one.
        recipe = max((replace(recipe, lr=lr) for lr in study.grid), key=lambda tried: reached(tried, 0)["val"])
    results = [reached(recipe, seed) for seed in range(study.seeds)]
    tests = [result["test"] for result in results]
    return Row(
        method=variant.method,
        start=variant.start,
        rank=rank,
        size=size,
        parameters=count(variant.method, study.data.width, study.data.classes, size, hidden=study.hidden),
        lr=recipe.lr,
        at_end=bool(study.grid) and recipe.lr in (study.grid[0], study.grid[-1]),
        val=statistics.fmean(result["val"] for result in results),
        test=statistics.fmean(tests),
        deviation=statistics.stdev(tests) if len(tests) > 1 else 0.0,
        seeds=len(tests),
        diverged=sum(result["diverged"] for result in results),
    )


def _recipe(study: Study, variant: Variant) -> Recipe:
    if study.recipe == "paper":
        recipe = scaled(PAPER_FULL if variant.method == "full" else PAPER, len(study.data.train[1]))
    else:
        recipe = TUNED
    return replace(recipe, epochs=QUICK_EPOCHS) if study.quick else recipe
