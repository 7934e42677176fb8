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

import statistics
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from paper.experiments import head_tables, jobs, record
from paper.experiments.data import Features, features
from paper.experiments.head_methods import HEAD_METHODS, HeadMethod, Heads
from paper.experiments.head_tables import HeadResult
from paper.experiments.options import among, at_least_one, file_name, option, words
from paper.experiments.record import Target
from paper.experiments.training import GRID, PAPER, PAPER_FULL, TUNED, Recipe, scaled, train
from paper.methods.heads import METHODS, count, size_for_budget

ABOUT = "Accuracy of classification heads with few parameters, on features of a frozen network."
RANKS, QUICK_RANKS = (2, 4, 8, 16), (2, 4)
SEEDS, QUICK_SEEDS = 5, 1
QUICK_EPOCHS, QUICK_GRID = 3, (1e-3, 1e-2, 1e-1)
RECIPES = ("tuned", "paper")
SHAPES = ("linear", "mlp")

Candidate = tuple[HeadMethod, int | None, int]  # a method, the rank r that sets its budget, the size that this allows


@dataclass(frozen=True, kw_only=True)
class Options:
    """What `heads` can be asked."""

    data: str = option("x_train, y_train, x_test, y_test and, if there, x_val, y_val", metavar="FILE.npz")
    name: str = option("of the data, for titles and file names; that of the file if not given", "")
    ranks: tuple[int, ...] = option(f"kernels of LAPLEX; {words(RANKS)} if not given", (), metavar="R")
    seeds: int | None = option(f"runs of each head; {SEEDS} if not given", None, metavar="N")
    recipe: str = option("tuned (rates chosen on validation rows) or paper (rates scaled)", "tuned")
    methods: tuple[str, ...] = option("heads that are compared", METHODS, metavar="M")
    quick: bool = option("few epochs, ranks, seeds and rates: to see that it works", False)
    head: str = option("linear, or mlp: two layers and a tanh", "linear", metavar="SHAPE")
    jobs: int = option("processes that share the device", 1, metavar="N")

    @property
    def grid(self) -> tuple[float, ...]:
        """The learning rates to choose from; none under the paper's recipe."""
        if self.recipe == "paper":
            return ()
        return QUICK_GRID if self.quick else GRID


Experiment = record.Experiment[Options, Features]


def prepare(options: Options, target: Target) -> Experiment:
    """Check the options and read the data; ValueError where something is wrong, and nothing is written."""
    for name, known in (("head", SHAPES), ("recipe", RECIPES)):
        if getattr(options, name) not in known:
            raise ValueError(f"--{name} must be one of {words(known)}, got {getattr(options, name)!r}")
    at_least_one(options, "jobs", "ranks", "seeds")
    among("methods", options.methods, METHODS)
    options = replace(
        options,
        name=file_name(options.name or Path(options.data).stem),
        ranks=tuple(sorted(set(options.ranks or (QUICK_RANKS if options.quick else RANKS)))),
        seeds=options.seeds or (QUICK_SEEDS if options.quick else SEEDS),
    )
    data = features(options.data).standardised().to(target.device)
    stem = f"heads-{options.name}-{options.recipe}" + ("-quick" if options.quick else "")
    stem += "-mlp" if options.head == "mlp" else ""
    return Experiment(options, data, target.record("heads", stem))


# --- Runs ------------------------------------------------------------------------------------------------------------


def run(experiment: Experiment) -> int:
    """Every run that the record lacks; then the table and the plot."""
    options = experiment.options
    heads = Heads(experiment.data, _hidden(experiment))
    results = jobs.measure_all(experiment, partial(measure, heads), list(_candidates(experiment)), options.jobs)
    title = options.name + (", two layers" if options.head == "mlp" else "")
    head_tables.write(experiment.record.path, title, options.recipe, results, quick=options.quick)
    return 0


def _hidden(experiment: Experiment) -> int | None:
    """The width of the hidden layer; None where heads have one layer."""
    return experiment.data.width if experiment.options.head == "mlp" else None


def _candidates(experiment: Experiment) -> Iterator[Candidate]:
    """What to measure, in the order of the table; what cannot be measured is named."""
    for method in (one for one in HEAD_METHODS if one.method in experiment.options.methods):
        if _hidden(experiment) is not None and not method.deep:
            print(f"skipped: {method}: there is no head of two layers of this kind", file=sys.stderr)
            continue
        if method.method == "full":
            yield method, None, 0
            continue
        for rank in experiment.options.ranks:
            try:
                yield method, rank, _size(experiment, method, rank)
            except ValueError as error:
                print(f"skipped: {method}, r = {rank}: {error}", file=sys.stderr)


def _size(experiment: Experiment, method: HeadMethod, rank: int) -> int:
    """The size within the budget of LAPLEX^(rank); ValueError where the method has none."""
    data, hidden = experiment.data, _hidden(experiment)
    shape = data.width, data.classes
    budget = count("laplex", *shape, rank, hidden=hidden).trained
    size = size_for_budget(method.method, *shape, budget, hidden=hidden)
    if method.start == "singular" and size > min(shape):
        raise ValueError(f"a weight {data.classes} x {data.width} has {min(shape)} singular vectors")
    # More directions than features, or than rows to find them from, do not exist.
    return min(size, *data.train[0].shape) if method.method.startswith("pca") else size


def measure(heads: Heads, experiment: Experiment, candidate: Candidate) -> HeadResult:
    """Choose the learning rate, if the recipe says so, and run all seeds."""
    options, data, (method, rank, size) = experiment.options, experiment.data, candidate

    def reach(recipe: Recipe, seed: int) -> dict[str, Any]:
        settings = {"data": data.digest, "method": method.method, "start": method.start, "size": size}
        settings |= {"seed": seed, **asdict(recipe)}
        # Results files from before there was a choice hold heads of one layer, and stay valid.
        settings |= {} if options.head == "linear" else {"head": options.head}
        return experiment.record.run(settings, lambda: train(heads.make(method, size, seed), data, recipe, seed))

    recipe = _recipe(experiment, method)
    if options.grid:
        # The first of equally good rates is the lowest one.
        recipe = max((replace(recipe, lr=lr) for lr in options.grid), key=lambda one: reach(one, 0)["val"])
    results = [reach(recipe, seed) for seed in range(options.seeds or SEEDS)]
    tests = [result["test"] for result in results]
    return HeadResult(
        method=method.method,
        start=method.start,
        rank=rank,
        size=size,
        parameters=count(method.method, data.width, data.classes, size, hidden=_hidden(experiment)),
        lr=recipe.lr,
        at_end=bool(options.grid) and recipe.lr in (options.grid[0], options.grid[-1]),
        val=statistics.fmean(result["val"] for result in results),
        test=statistics.fmean(tests),
        deviation=statistics.stdev(tests) if len(tests) > 1 else 0.0,
        seeds=len(tests),
        diverged=sum(result["diverged"] for result in results),
    )


def _recipe(experiment: Experiment, method: HeadMethod) -> Recipe:
    if experiment.options.recipe == "paper":
        recipe = scaled(PAPER_FULL if method.method == "full" else PAPER, len(experiment.data.train[1]))
    else:
        recipe = TUNED
    return replace(recipe, epochs=QUICK_EPOCHS) if experiment.options.quick else recipe
