"""`python -m paper experiment density`: Gaussians over flattened images, LAPLEX beside dense ones of as many parameters.

EM fits q functions of a rank, given as words: q2 is two functions at rank 1000 (or --rank), q2@2000 at rank 2000, and
q3 at 999, since a rank is a multiple of q. All words are fitted from the tree, with jumps; one of them, --studied, from
all starts, with and without jumps, on pixels as they are and permuted. Adam trains the paper's model with 1, 2 and 3
components and, with one, a diagonal latent covariance, whose rank can be far higher. Dense models, trained or PPCA, get
the ranks whose parameters come nearest to those of all of these. The empirical Gaussian, with a ridge chosen on the
validation images, is the ceiling that likelihoods are divided by.
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from laplex.cli.machine import refuse_seed
from laplex.density._starts import NAMED_PLACES
from paper.experiments import density_tables
from paper.experiments.density_data import Data, Split, held_out, read
from paper.experiments.density_runs import CEILING, METHODS, OF_METHOD, Recipe, Variant, budget, measured, settings
from paper.experiments.density_tables import Cell, Page
from paper.experiments.options import among, at_least_one, file_name, words
from paper.experiments.record import Record
from paper.methods.gaussian import matched_rank

ABOUT = "Likelihoods of Gaussians over flattened images: LAPLEX by EM and by Adam, low rank, PPCA, the ceiling."
RANK = 1000
FITS, STUDIED = ("q1", "q2", "q3", "q4", "q2@2000"), "q2"
COMPONENTS = (1, 2, 3)
QUICK = {"rounds": 3, "epochs": 1, "after_epochs": 1}


@dataclass(frozen=True)
class Study:
    """Everything that decides which runs there are."""

    name: str
    data: Data
    record: Record
    rank: int
    fits: tuple[Variant, ...]  # EM from the tree, with jumps
    studied: Variant | None  # from all starts
    starts: tuple[str, ...]
    components: tuple[int, ...]
    adam_starts: tuple[str, ...]
    diagonal_ranks: tuple[int, ...]
    dense_ranks: tuple[int, ...]
    methods: tuple[str, ...]
    recipe: Recipe
    quick: bool = False


# --- Options ---------------------------------------------------------------------------------------------------------


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options that this experiment has beside the common ones."""
    add, default = parser.add_argument, Recipe()
    source = "folders of images, .npz files of packed images or of an array (FILE:PART), or .npy files"
    add("--data", required=True, nargs="+", metavar="SOURCE", help=f"images to fit: {source}")
    add("--train-count", type=int, metavar="N", help="only the first N of the images to fit")
    add("--val", nargs="+", metavar="SOURCE", help="validation images")
    add("--val-count", type=int, metavar="N", help="only the first N of --val; the others are test images")
    add("--hold-out", type=int, metavar="N", help="instead of --val: N of the images, drawn once")
    add("--name", help="of the data, for titles and file names; that of --data if not given")
    add("--side", type=int, metavar="PIXELS", help="images become squares of this side")
    add("--channels", type=int, choices=(1, 3), help="3 for colour, 1 for grey")
    add("--rank", type=int, default=RANK, metavar="K", help="of EM and Adam")
    add("--fits", nargs="+", default=FITS, metavar="qN[@RANK]", help="functions of EM")
    add("--studied", default=STUDIED, metavar="qN[@RANK]", help="fitted from all starts, or none")
    add("--starts", nargs="+", metavar="NAME", help=f"those starts; {words(NAMED_PLACES)} if not given")
    add("--components", type=int, nargs="+", default=COMPONENTS, metavar="I", help="of Adam")
    add("--adam-starts", nargs="+", default=("raster",), metavar="NAME", help="where the pixels of Adam start")
    add(
        "--diagonal-ranks", type=int, nargs="+", metavar="K", help="of diagonal latent covariances; --rank if not given"
    )
    add("--dense-ranks", type=int, nargs="+", metavar="R", help="of dense models; matched to the others if not given")
    add("--methods", nargs="+", default=METHODS, metavar="NAME", help="what is compared with the ceiling")
    add("--rounds", type=int, default=default.rounds, metavar="N", help="of EM")
    add("--epochs", type=int, default=default.epochs, metavar="N", help="of Adam")
    add("--lr", type=float, default=default.lr, metavar="RATE", help="of Adam")
    add("--batch", type=int, default=default.batch, metavar="N", help="images of a step")
    add("--after-epochs", type=int, default=default.after_epochs, metavar="N", help="of Adam after EM")
    add("--after-lr", type=float, default=default.after_lr, metavar="RATE", help="of Adam after EM")
    add("--seed", type=int, default=default.seed, metavar="N", help="of starts and of batches")
    add("--quick", action="store_true", help="few rounds and epochs: to see that it works")


def prepare(given: argparse.Namespace) -> Study:
    """Check the options and read the images; ValueError where something is wrong, and nothing is written."""
    _refuse(given)
    names = ("rounds", "epochs", "lr", "batch", "after_epochs", "after_lr", "seed")
    recipe = Recipe(**{name: getattr(given, name) for name in names})
    if given.quick:
        recipe = replace(recipe, **QUICK)
    fits = tuple(dict.fromkeys(_fit(word, given.rank) for word in given.fits))
    studied = None if given.studied == "none" else _fit(given.studied, given.rank)
    name = file_name(given.name or _stem(given.data[0]))
    stem = f"density-{name}" + ("-quick" if given.quick else "")
    record = Record(Path(given.out) / f"{stem}.json", "density", device=given.device, fresh=given.fresh)
    data = _data(given)
    return Study(
        name=name,
        data=data,
        record=record,
        rank=given.rank,
        fits=fits,
        studied=studied,
        starts=_starts(given.starts, data),
        components=tuple(sorted(set(given.components))),
        adam_starts=tuple(given.adam_starts),
        diagonal_ranks=tuple(sorted(set(given.diagonal_ranks or (given.rank,)))),
        dense_ranks=tuple(sorted(set(given.dense_ranks or ()))),
        methods=tuple(given.methods),
        recipe=recipe,
        quick=given.quick,
    )


def _refuse(given: argparse.Namespace) -> None:
    """Raise ValueError where an option cannot be."""
    refuse_seed(given.seed)
    counts = ("rank", "rounds", "epochs", "batch", "after_epochs")
    for name in counts:
        at_least_one(name.replace("_", "-"), [getattr(given, name)])
    for name in ("components", "diagonal_ranks", "dense_ranks", "train_count", "val_count", "side"):
        value = getattr(given, name)
        if value is not None:
            at_least_one(name.replace("_", "-"), value if isinstance(value, list | tuple) else [value])
    for name in ("lr", "after_lr"):
        if not 0 < getattr(given, name) < float("inf"):
            raise ValueError(f"--{name.replace('_', '-')} must be positive and finite, got {getattr(given, name)}")
    among("methods", given.methods, METHODS)
    among("starts", given.starts or (), NAMED_PLACES)
    among("adam-starts", given.adam_starts, NAMED_PLACES)
    if (given.val is None) == (given.hold_out is None):
        raise ValueError("--val or --hold-out must be given, and not both: the ridge is chosen on those images")


def _fit(word: str, rank: int) -> Variant:
    """The fit that a word such as q2 or q2@2000 names."""
    found = re.fullmatch(r"q([1-9]\d*)(?:@([1-9]\d*))?", word)
    if found is None:
        raise ValueError(f"--fits and --studied must be words such as q2 or q2@2000, got {word!r}")
    functions = int(found[1])
    own = int(found[2]) if found[2] else max(rank // functions, 1) * functions
    if own % functions or own < 2 * functions:
        raise ValueError(
            f"--fits and --studied: the rank of {word} must be a multiple of its {functions} functions, and at least "
            f"twice as large, got {own}; write q{functions}@{max(own // functions, 2) * functions}"
        )
    return Variant("em", own, functions=functions, start="tree", jump=True)


def _stem(source: str) -> str:
    """The name of a source, without the ending of a file and the part in it."""
    return Path(re.sub(r"\.np[zy](:.*)?$", "", source)).resolve().name


def _data(given: argparse.Namespace) -> Data:
    """The images that the options name."""
    begun = time.perf_counter()
    found = read("data", given.data, given.side, given.channels)
    if given.val is None:
        train, val = held_out(found.values, given.hold_out)
    else:
        train, val = found.values, read("val", given.val, given.side, given.channels).values
    if val.shape[1] != train.shape[1]:
        raise ValueError(
            f"--val must have images of {train.shape[1]} values, as --data, got {val.shape[1]}; use --side"
        )
    if given.train_count is not None and not 2 <= given.train_count <= len(train):
        raise ValueError(f"--train-count must be from 2 to {len(train)}, the images to fit, got {given.train_count}")
    few = given.val_count or len(val)
    data = Data(Split(train[: given.train_count], val[:few], val[few:]), found.shape, given.device)
    data.read_seconds = round(time.perf_counter() - begun, 3)
    return data


def _starts(given: list[str] | None, data: Data) -> tuple[str, ...]:
    """The starts to study; a curve needs images of a known shape."""
    if data.shape is not None:
        return tuple(given or NAMED_PLACES)
    if given is not None and "curve" in given:
        raise ValueError("--starts must not have curve where the shape of images is not known, got it; use --side")
    return tuple(start for start in given or NAMED_PLACES if start != "curve")


# --- Runs ------------------------------------------------------------------------------------------------------------


def run(study: Study) -> int:
    """Every run that the record lacks; then the tables and the plot."""
    if study.record.get(settings(study.data, CEILING, study.recipe)) is None:
        print(f"the empirical Gaussian of {len(study.data.train)} images, the ceiling", file=sys.stderr, flush=True)
    ceiling = _run(study, CEILING, None)
    models, starts = list(_models(study)), list(_studied(study))
    wanted = list(dict.fromkeys([*models, *starts]))
    cells = {CEILING: Cell(CEILING, ceiling)}
    for number, variant in enumerate(wanted, 1):
        before = len(study.record)
        cells[variant] = cell = Cell(variant, _run(study, variant, ceiling))
        if len(study.record) > before:
            told = f"[{number}/{len(wanted)}] {cell.title}, rank {variant.rank}: {cell.shown}"
            print(told, file=sys.stderr, flush=True)
    counts = [0 if one is None else len(one) for one in (study.data.train, study.data.val, study.data.test)]
    page = Page(
        name=study.name,
        dim=study.data.dim,
        counts=(counts[0], counts[1], counts[2]),
        rounds=study.recipe.rounds if any("rounds" in OF_METHOD[one.method] for one in models) else 0,
        rank=study.rank,
        device=study.data.device.type,
        quick=study.quick,
    )
    shown = [cells[variant] for variant in (*models, CEILING)]
    density_tables.write(study.record.path, page, shown, [cells[variant] for variant in starts])
    return 0


def _run(study: Study, variant: Variant, ceiling: dict[str, Any] | None) -> dict[str, Any]:
    """The result of a variant, from the record or new."""
    key = settings(study.data, variant, study.recipe)
    return study.record.run(key, lambda: measured(study.data, variant, study.recipe, ceiling))


def _models(study: Study) -> Iterator[Variant]:
    """What the table of models compares."""
    structured = [*study.fits, *_with_components(study)]
    if "em" in study.methods:
        yield from study.fits
    if "em-adam" in study.methods:
        yield from (replace(one, method="em-adam") for one in study.fits)
    if "adam" in study.methods:
        yield from _with_components(study)
    if "diagonal" in study.methods:
        yield from (Variant("diagonal", rank, components=1, start="raster") for rank in study.diagonal_ranks)
    matched = {matched_rank(budget(study.data.dim, one), study.data.dim) for one in structured}
    most = min(len(study.data.train) - 2, study.data.dim - 1)
    ranks = study.dense_ranks or sorted({max(1, min(rank, most)) for rank in matched})
    for method in ("low-rank", "ppca"):
        if method in study.methods:
            yield from (Variant(method, rank) for rank in ranks)


def _with_components(study: Study) -> Iterator[Variant]:
    for number in study.components:
        for start in study.adam_starts:
            yield Variant("adam", study.rank, components=number, start=start)


def _studied(study: Study) -> Iterator[Variant]:
    """EM from all starts, with and without jumps, on pixels as they are and permuted."""
    if study.studied is None or "em" not in study.methods:
        return
    for permuted in (False, True):
        for start in study.starts:
            for jump in (True, False):
                yield replace(study.studied, start=start, jump=jump, permuted=permuted)
