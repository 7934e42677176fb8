"""`python -m paper experiment projection`: flattened images projected to m numbers, then a linear head.

Frozen projections are judged by the head that their features allow; trained ones are trained with the head. The
validation images choose nothing: the weight decay of a head on frozen features is chosen on train rows held out.
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

from paper.experiments import jobs, projection_tables
from paper.experiments.data import Images, image_parts, image_splits
from paper.experiments.flat_images import FlatImages, flattened
from paper.experiments.options import among, at_least_one, file_name, words
from paper.experiments.projection_maps import METHODS, TRAINED, VARIANTS, Maps, Variant, stored
from paper.experiments.projection_tables import Cell
from paper.experiments.projection_training import HeadRecipe, JointRecipe, frozen_run, joint_parameters, joint_run
from paper.experiments.record import Record

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


@dataclass(frozen=True)
class Study:
    """Everything that decides which runs there are."""

    name: str
    data: FlatImages
    record: Record
    widths: tuple[int, ...]
    seeds: int
    methods: tuple[str, ...]
    quick: bool = False
    jobs: int = 1


# --- Options ---------------------------------------------------------------------------------------------------------


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options that this experiment has beside the common ones."""
    folder = "a folder with train and val, or with *train*.npz and *val*.npz; with --train, the validation images"
    parser.add_argument("--data", required=True, metavar="PATH", help=folder)
    parser.add_argument("--train", nargs="+", metavar="FILE", help="packed .npz files, or folders, of train images")
    parser.add_argument("--name", help="of the data, for titles and file names; that of --data if not given")
    parser.add_argument("--side", type=int, default=SIDE, metavar="PIXELS", help="of the square images")
    widths = f"of the projections; {words(WIDTHS)} if not given"
    parser.add_argument("--widths", type=int, nargs="+", metavar="M", help=widths)
    parser.add_argument("--seeds", type=int, metavar="N", help=f"runs of each projection; {SEEDS} if not given")
    parser.add_argument("--methods", nargs="+", default=METHODS, metavar="NAME", help="projections that are compared")
    parser.add_argument("--quick", action="store_true", help="few widths, seeds and epochs: to see that it works")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="processes that share the device")


def prepare(given: argparse.Namespace) -> Study:
    """Check the options and read the images; ValueError where something is wrong, and nothing is written."""
    widths = given.widths or (QUICK_WIDTHS if given.quick else WIDTHS)
    seeds = (QUICK_SEEDS if given.quick else SEEDS) if given.seeds is None else given.seeds
    for option, values in (("widths", widths), ("seeds", [seeds]), ("side", [given.side]), ("jobs", [given.jobs])):
        at_least_one(option, values)
    among("methods", given.methods, METHODS)
    name = file_name(given.name or Path(given.data).resolve().stem)
    stem = f"projection-{name}" + ("-quick" if given.quick else "")
    record = Record(Path(given.out) / f"{stem}.json", "projection", device=given.device, fresh=given.fresh)
    data = flattened(*_images(given), given.device)
    if set(given.methods) == {"pca"} and min(widths) > data.most_components:
        raise ValueError(
            f"--widths must have one of at most {data.most_components}, the number of principal components, for pca "
            f"alone, got {words(widths)}"
        )
    study = Study(name, data, record, tuple(sorted(set(widths))), seeds, tuple(given.methods), given.quick)
    return replace(study, jobs=given.jobs)


def _images(given: argparse.Namespace) -> tuple[Images, Images]:
    """The train and the validation images that the options name."""
    path = Path(given.data)
    if given.train is not None:
        return image_parts([Path(file) for file in given.train], [path], given.side)
    if not path.is_dir():
        raise ValueError(
            f"--data must be a folder with train and validation images, got {path}; for one file of validation images "
            "give the train files, too, with --train"
        )
    return image_splits(path, given.side)


# --- Runs ------------------------------------------------------------------------------------------------------------


def run(study: Study) -> int:
    """Every run that the record lacks; then the tables and the plot."""
    maps = Maps(study.data, max(study.widths))
    wanted = list(_wanted(study))
    count = min(study.jobs, len(wanted))
    if count > 1:
        maps.prepare({variant.method for variant, _ in wanted})  # once for all jobs
    jobs.into_record(study.record, partial(_share, study, maps, wanted), count)
    cells = _measured(study, maps, list(enumerate(wanted, 1)), len(wanted))
    projection_tables.write(study.record.path, study.name, cells, quick=study.quick)
    return 0


def _share(study: Study, maps: Maps, wanted: list[tuple[Variant, int]], job: int, of: int) -> None:
    """What one of so many jobs measures; its runs go into a file of its own."""
    numbered = list(enumerate(wanted, 1))[job::of]
    _measured(replace(study, record=study.record.part(job)), maps, numbered, len(wanted))


def _measured(study: Study, maps: Maps, wanted: list[tuple[int, tuple[Variant, int]]], of: int) -> list[Cell]:
    """The cells that are wanted, with a line for each that is new."""
    cells = []
    for number, (variant, width) in wanted:
        before = len(study.record)
        cell = measure(study, maps, variant, width)
        cells.append(cell)
        regime = "trained" if variant.method in TRAINED else "frozen"
        if len(study.record) > before:
            told = f"[{number}/{of}] {regime} {variant}, m = {width}: {cell.shown} %"
            print(told, file=sys.stderr, flush=True)
    return cells


def _wanted(study: Study) -> Iterator[tuple[Variant, int]]:
    """What to measure."""
    for variant in (one for one in VARIANTS if one.method in study.methods):
        for width in study.widths:
            if variant.method == "pca" and width > study.data.most_components:
                told = f"skipped: PCA, m = {width}: the images have {study.data.most_components} principal components"
                print(told, file=sys.stderr)
            else:
                yield variant, width


def measure(study: Study, maps: Maps, variant: Variant, width: int) -> Cell:
    """Run all seeds of a projection at one width."""
    data, trained = study.data, variant.method in TRAINED
    results = [(_joint if trained else _frozen)(study, maps, variant, width, seed) for seed in range(study.seeds)]
    values = [result["val"] for result in results]
    numbers = stored(variant, data.width, width)
    return Cell(
        variant=variant,
        width=width,
        numbers=joint_parameters(numbers, width, data.classes) if trained else numbers,
        val=statistics.fmean(values),
        deviation=statistics.stdev(values) if len(values) > 1 else 0.0,
        seeds=len(values),
        held=None if trained else statistics.fmean(result["held"] for result in results),
        best=None if trained else statistics.fmean(result["best"] for result in results),
        diverged=sum(result["diverged"] for result in results) if trained else 0,
    )


def _frozen(study: Study, maps: Maps, variant: Variant, width: int, seed: int) -> dict[str, Any]:
    recipe = HeadRecipe(steps=QUICK_STEPS) if study.quick else HeadRecipe()

    def compute() -> dict[str, Any]:
        return frozen_run(study.data, *maps.features(variant, width, seed), recipe, seed)

    return study.record.run(_settings(study, variant, width, seed) | asdict(recipe), compute)


def _joint(study: Study, maps: Maps, variant: Variant, width: int, seed: int) -> dict[str, Any]:
    recipe = RECIPES[variant.method]
    if study.quick:
        recipe = replace(recipe, epochs=QUICK_EPOCHS)

    def compute() -> dict[str, Any]:
        return joint_run(maps.trainable(variant, width, seed), width, study.data, recipe, seed)

    return study.record.run(_settings(study, variant, width, seed) | asdict(recipe), compute)


def _settings(study: Study, variant: Variant, width: int, seed: int) -> dict[str, Any]:
    return {"data": study.data.digest, **asdict(variant), "width": width, "seed": seed}
