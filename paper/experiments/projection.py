"""`python -m paper experiment projection`: flattened images projected to m numbers, then a linear head.

Frozen projections are judged by the head that their features allow; trained ones are trained with the head. The
validation images choose nothing: the weight decay of a head on frozen features is chosen on train rows held out.
"""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from paper.experiments import jobs, projection_tables, record
from paper.experiments.images import FlatImages, Listing, decode, flatten, listings, split_paths
from paper.experiments.options import among, at_least_one, file_name, option, words
from paper.experiments.projection_maps import METHODS, PROJECTIONS, TRAINED, Maps, Projection, stored
from paper.experiments.projection_tables import ProjectionResult
from paper.experiments.projection_training import HeadRecipe, JointRecipe, frozen_run, joint_parameters, joint_run
from paper.experiments.record import Target

ABOUT = "Accuracy of flattened images after a projection to few numbers, frozen or trained with the head."
WIDTHS, QUICK_WIDTHS = (25, 50, 100, 250, 500, 750, 1000), (25, 100)
SEEDS, QUICK_SEEDS = 5, 1
SIDE = 224
QUICK_EPOCHS, QUICK_STEPS = 2, 50
# From a trial on ImageNette that held out one train image in ten; several rates and lengths were within its noise.
RECIPES = {
    "trained-laplex": JointRecipe(lr=3e-3, epochs=20),
    "trained-placed": JointRecipe(lr=1e-3, epochs=40),
    "trained-dense": JointRecipe(lr=1e-4, epochs=10),
}
FOLDER = "a folder with train and val, or with *train*.npz and *val*.npz; with --train, the validation images"


@dataclass(frozen=True, kw_only=True)
class Options:
    """What `projection` can be asked."""

    data: str = option(FOLDER, metavar="PATH")
    train: tuple[str, ...] = option("packed .npz files, or folders, of train images", (), metavar="FILE")
    name: str = option("of the data, for titles and file names; that of --data if not given", "")
    side: int = option("of the square images", SIDE, metavar="PIXELS")
    widths: tuple[int, ...] = option(f"of the projections; {words(WIDTHS)} if not given", (), metavar="M")
    seeds: int | None = option(f"runs of each projection; {SEEDS} if not given", None, metavar="N")
    methods: tuple[str, ...] = option("projections that are compared", METHODS, metavar="NAME")
    quick: bool = option("few widths, seeds and epochs: to see that it works", False)
    jobs: int = option("processes that share the device", 1, metavar="N")


Experiment = record.Experiment[Options, FlatImages]
Candidate = tuple[Projection, int]  # and its width m


def prepare(options: Options, target: Target) -> Experiment:
    """Check the options and read the images; ValueError where something is wrong, and nothing is written."""
    at_least_one(options, "widths", "seeds", "side", "jobs")
    among("methods", options.methods, METHODS)
    options = replace(
        options,
        name=file_name(options.name or Path(options.data).resolve().stem),
        widths=tuple(sorted(set(options.widths or (QUICK_WIDTHS if options.quick else WIDTHS)))),
        seeds=options.seeds or (QUICK_SEEDS if options.quick else SEEDS),
    )
    results = target.record("projection", f"projection-{options.name}" + ("-quick" if options.quick else ""))
    train, val = (decode(listing, options.side) for listing in _listings(options))
    data = flatten(train, val, target.device)
    if set(options.methods) == {"pca"} and min(options.widths) > data.most_components:
        raise ValueError(
            f"--widths must have one of at most {data.most_components}, the number of principal components, for pca "
            f"alone, got {words(options.widths)}"
        )
    return Experiment(options, data, results)


def _listings(options: Options) -> tuple[Listing, Listing]:
    """The train and the validation images that the options name."""
    path = Path(options.data)
    if options.train:
        return listings([Path(file) for file in options.train], [path])
    if not path.is_dir():
        raise ValueError(
            f"--data must be a folder with train and validation images, got {path}; for one file of validation images "
            "give the train files, too, with --train"
        )
    return listings(*split_paths(path))


# --- Runs ------------------------------------------------------------------------------------------------------------


def run(experiment: Experiment) -> int:
    """Every run that the record lacks; then the tables and the plot."""
    options = experiment.options
    maps = Maps(experiment.data, max(options.widths))
    candidates = list(_candidates(experiment))
    if min(options.jobs, len(candidates)) > 1:
        maps.prepare({projection.method for projection, _ in candidates})  # once for all jobs
    results = jobs.measure_all(experiment, partial(measure, maps), candidates, options.jobs)
    projection_tables.write(experiment.record.path, options.name, results, quick=options.quick)
    return 0


def _candidates(experiment: Experiment) -> Iterator[Candidate]:
    """What to measure."""
    most = experiment.data.most_components
    for projection in (one for one in PROJECTIONS if one.method in experiment.options.methods):
        for width in experiment.options.widths:
            if projection.method == "pca" and width > most:
                print(f"skipped: PCA, m = {width}: the images have {most} principal components", file=sys.stderr)
            else:
                yield projection, width


def measure(maps: Maps, experiment: Experiment, candidate: Candidate) -> ProjectionResult:
    """Run all seeds of a projection at one width."""
    (projection, width), data = candidate, experiment.data
    trained = projection.method in TRAINED
    reach = _joint if trained else _frozen
    results = [reach(experiment, maps, candidate, seed) for seed in range(experiment.options.seeds or SEEDS)]
    values = [result["val"] for result in results]
    numbers = stored(projection, data.width, width)
    return ProjectionResult(
        projection=projection,
        width=width,
        numbers=joint_parameters(numbers, width, data.classes) if trained else numbers,
        val=statistics.fmean(values),
        deviation=statistics.stdev(values) if len(values) > 1 else 0.0,
        seeds=len(values),
        held=None if trained else statistics.fmean(result["held"] for result in results),
        best=None if trained else statistics.fmean(result["best"] for result in results),
        diverged=sum(result["diverged"] for result in results) if trained else 0,
    )


def _frozen(experiment: Experiment, maps: Maps, candidate: Candidate, seed: int) -> dict[str, Any]:
    recipe = HeadRecipe(steps=QUICK_STEPS) if experiment.options.quick else HeadRecipe()

    def compute() -> dict[str, Any]:
        return frozen_run(experiment.data, *maps.features(*candidate, seed), recipe, seed)

    return experiment.record.run(_settings(experiment, candidate, seed) | asdict(recipe), compute)


def _joint(experiment: Experiment, maps: Maps, candidate: Candidate, seed: int) -> dict[str, Any]:
    projection, width = candidate
    recipe = RECIPES[projection.method]
    if experiment.options.quick:
        recipe = replace(recipe, epochs=QUICK_EPOCHS)

    def compute() -> dict[str, Any]:
        return joint_run(maps.trainable(projection, width, seed), width, experiment.data, recipe, seed)

    return experiment.record.run(_settings(experiment, candidate, seed) | asdict(recipe), compute)


def _settings(experiment: Experiment, candidate: Candidate, seed: int) -> dict[str, Any]:
    projection, width = candidate
    return {"data": experiment.data.digest, **asdict(projection), "width": width, "seed": seed}
