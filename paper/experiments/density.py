"""`python -m paper experiment density`: Gaussians over flattened images, LAPLEX and dense ones of as many parameters.

EM fits q functions of a rank, given as words: q2 is two functions at rank 1000 (or --rank), q2@2000 at rank 2000, and
q3 at 999, since a rank is a multiple of q. All words are fitted from the tree, with jumps; one of them, --studied, from
all starts, with and without jumps, on pixels as they are and permuted. Adam trains the paper's model with 1, 2 and 3
components and, with one, a diagonal latent covariance, whose rank can be far higher. Dense models, trained or PPCA, get
the ranks whose parameters come nearest to those of all of these. The empirical Gaussian, with a ridge chosen on the
validation images, is the ceiling that likelihoods are divided by.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from laplex.cli.machine import refuse_seed
from laplex.density._starts import NAMED_PLACES
from paper.experiments import density_tables, record
from paper.experiments.density_data import Data, held_out, read
from paper.experiments.density_runs import CEILING, METHODS, DensitySpec, FitRecipe, budget, measure, settings
from paper.experiments.density_tables import DensityResult
from paper.experiments.options import among, at_least_one, file_name, option, words
from paper.experiments.record import Target
from paper.methods.gaussian import matched_rank

ABOUT = "Likelihoods of Gaussians over flattened images: LAPLEX by EM and by Adam, low rank, PPCA, the ceiling."
RANK = 1000
SOURCES = "images to fit: folders of images, .npz files of packed images or of an array (FILE:PART), or .npy files"


@dataclass(frozen=True, kw_only=True)
class Options(FitRecipe):
    """What `density` can be asked."""

    data: tuple[str, ...] = option(SOURCES, metavar="SOURCE")
    train_count: int | None = option("only the first N of the images to fit", None, metavar="N")
    val: tuple[str, ...] = option("validation images", (), metavar="SOURCE")
    val_count: int | None = option("only the first N of --val; the others are test images", None, metavar="N")
    hold_out: int | None = option("instead of --val: N of the images, drawn once", None, metavar="N")
    name: str = option("of the data, for titles and file names; that of --data if not given", "")
    side: int | None = option("images become squares of this side", None, metavar="PIXELS")
    channels: int | None = option("3 for colour, 1 for grey", None)
    rank: int = option("of EM and Adam", RANK, metavar="K")
    fits: tuple[str, ...] = option("functions of EM", ("q1", "q2", "q3", "q4", "q2@2000"), metavar="qN[@RANK]")
    studied: str = option("fitted from all starts, or none", "q2", metavar="qN[@RANK]")
    starts: tuple[str, ...] = option(f"those starts; {words(NAMED_PLACES)} if not given", (), metavar="NAME")
    components: tuple[int, ...] = option("of Adam", (1, 2, 3), metavar="I")
    adam_starts: tuple[str, ...] = option("where the pixels of Adam start", ("raster",), metavar="NAME")
    diagonal_ranks: tuple[int, ...] = option("of diagonal latent covariances; --rank if not given", (), metavar="K")
    dense_ranks: tuple[int, ...] = option("of dense models; matched to the others if not given", (), metavar="R")
    methods: tuple[str, ...] = option("what is compared with the ceiling", METHODS, metavar="NAME")
    quick: bool = option("few rounds and epochs: to see that it works", False)


Experiment = record.Experiment[Options, Data]


def prepare(options: Options, target: Target) -> Experiment:
    """Check the options and read the images; ValueError where something is wrong, and nothing is written."""
    _refuse(options)
    name = file_name(options.name or _stem(options.data[0]))
    results = target.record("density", f"density-{name}" + ("-quick" if options.quick else ""))
    data = _data(options, target.device)
    options = replace(
        options,
        name=name,
        starts=_starts(options.starts, data),
        components=tuple(sorted(set(options.components))),
        diagonal_ranks=tuple(sorted(set(options.diagonal_ranks or (options.rank,)))),
        dense_ranks=tuple(sorted(set(options.dense_ranks))),
    )
    if options.quick:
        options = replace(options, rounds=3, epochs=1, after_epochs=1)
    return Experiment(options, data, results)


def _refuse(options: Options) -> None:
    """Raise ValueError where an option cannot be."""
    refuse_seed(options.seed)
    at_least_one(options, "rank", "rounds", "epochs", "batch", "after_epochs", "components", "diagonal_ranks")
    at_least_one(options, "dense_ranks", "train_count", "val_count", "side")
    for name in ("lr", "after_lr"):
        if not 0 < getattr(options, name) < float("inf"):
            raise ValueError(f"--{name.replace('_', '-')} must be positive and finite, got {getattr(options, name)}")
    among("methods", options.methods, METHODS)
    among("starts", options.starts, NAMED_PLACES)
    among("adam-starts", options.adam_starts, NAMED_PLACES)
    if bool(options.val) == (options.hold_out is not None):
        raise ValueError("--val or --hold-out must be given, and not both: the ridge is chosen on those images")
    for word in (*options.fits, *_studied_words(options)):
        _spec(word, options.rank)


def _studied_words(options: Options) -> tuple[str, ...]:
    """The word of --studied, if there is one."""
    return () if options.studied == "none" else (options.studied,)


def _spec(word: str, rank: int) -> DensitySpec:
    """The fit that a word such as q2 or q2@2000 names."""
    match = re.fullmatch(r"q([1-9]\d*)(?:@([1-9]\d*))?", word)
    if match is None:
        raise ValueError(f"--fits and --studied must be words such as q2 or q2@2000, got {word!r}")
    functions = int(match[1])
    own = int(match[2]) if match[2] else max(rank // functions, 1) * functions
    if own % functions or own < 2 * functions:
        raise ValueError(
            f"--fits and --studied: the rank of {word} must be a multiple of its {functions} functions, and at least "
            f"twice as large, got {own}; write q{functions}@{max(own // functions, 2) * functions}"
        )
    return DensitySpec("em", own, functions=functions, start="tree", jump=True)


def _stem(source: str) -> str:
    """The name of a source, without the ending of a file and the part in it."""
    return Path(re.sub(r"\.np[zy](:.*)?$", "", source)).resolve().name


def _data(options: Options, device: str) -> Data:
    """The images that the options name."""
    start_time = time.perf_counter()
    pictures = read("data", options.data, options.side, options.channels)
    if options.hold_out is not None:
        train, val = held_out(pictures.values, options.hold_out)
    else:
        train, val = pictures.values, read("val", options.val, options.side, options.channels).values
    if val.shape[1] != train.shape[1]:
        raise ValueError(
            f"--val must have images of {train.shape[1]} values, as --data, got {val.shape[1]}; use --side"
        )
    if options.train_count is not None and not 2 <= options.train_count <= len(train):
        raise ValueError(f"--train-count must be from 2 to {len(train)}, the images to fit, got {options.train_count}")
    few = options.val_count or len(val)
    data = Data((train[: options.train_count], val[:few], val[few:]), pictures.shape, device)
    data.read_seconds = round(time.perf_counter() - start_time, 3)
    return data


def _starts(starts: tuple[str, ...], data: Data) -> tuple[str, ...]:
    """The starts to study; a curve needs images of a known shape."""
    if data.shape is not None:
        return starts or NAMED_PLACES
    if "curve" in starts:
        raise ValueError("--starts must not have curve where the shape of images is not known, got it; use --side")
    return tuple(start for start in starts or NAMED_PLACES if start != "curve")


# --- Runs ------------------------------------------------------------------------------------------------------------


def run(experiment: Experiment) -> int:
    """Every run that the record lacks; then the tables and the plot."""
    options, data = experiment.options, experiment.data
    if experiment.record.get(settings(data, CEILING, options)) is None:
        print(f"the empirical Gaussian of {len(data.train)} images, the ceiling", file=sys.stderr, flush=True)
    ceiling = _result(experiment, CEILING, None)
    models, starts = list(_models(experiment)), list(_studied(options))
    specs = list(dict.fromkeys([*models, *starts]))
    results = {CEILING: DensityResult(CEILING, ceiling)}
    for number, spec in enumerate(specs, 1):
        before = len(experiment.record)
        results[spec] = one = DensityResult(spec, _result(experiment, spec, ceiling))
        if len(experiment.record) > before:
            line = f"[{number}/{len(specs)}] {one.title}, rank {spec.rank}: {one.text}"
            print(line, file=sys.stderr, flush=True)
    table = [results[spec] for spec in (*models, CEILING)]
    density_tables.write(experiment, table, [results[spec] for spec in starts])
    return 0


def _result(experiment: Experiment, spec: DensitySpec, ceiling: dict[str, Any] | None) -> dict[str, Any]:
    """The result of a fit, from the record or new."""
    options, data = experiment.options, experiment.data
    return experiment.record.run(settings(data, spec, options), lambda: measure(data, spec, options, ceiling))


def _models(experiment: Experiment) -> Iterator[DensitySpec]:
    """What the table of models compares."""
    options, dim = experiment.options, experiment.data.dim
    fits = list(dict.fromkeys(_spec(word, options.rank) for word in options.fits))
    adam = [
        DensitySpec("adam", options.rank, components=number, start=start)
        for number in options.components
        for start in options.adam_starts
    ]
    matched = {matched_rank(budget(dim, one), dim) for one in (*fits, *adam)}
    most = min(len(experiment.data.train) - 2, dim - 1)
    ranks = options.dense_ranks or sorted({max(1, min(rank, most)) for rank in matched})
    models = {
        "em": fits,
        "em-adam": [replace(one, method="em-adam") for one in fits],
        "adam": adam,
        "diagonal": [DensitySpec("diagonal", rank, components=1, start="raster") for rank in options.diagonal_ranks],
        "low-rank": [DensitySpec("low-rank", rank) for rank in ranks],
        "ppca": [DensitySpec("ppca", rank) for rank in ranks],
    }
    for method in METHODS:
        if method in options.methods:
            yield from models[method]


def _studied(options: Options) -> Iterator[DensitySpec]:
    """EM from all starts, with and without jumps, on pixels as they are and permuted."""
    if "em" not in options.methods:
        return
    for word in _studied_words(options):
        for permuted in (False, True):
            for start in options.starts:
                for jump in (True, False):
                    yield replace(_spec(word, options.rank), start=start, jump=jump, permuted=permuted)
