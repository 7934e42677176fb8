"""`python -m paper experiment features`: what enters the head of a frozen image network, for `heads` and `compress`.

The result is an .npz file:

    x_train, x_test (rows, width) float16      y_train, y_test (rows,) int64      the folder's val is the test split
    classes, skipped                           names of classes; images that could not be read
    W (classes, in), b (classes,)              the last layer of the network's own head; b if it has one
    W1 (in, width), b1 (in,)                   the layer before it, where the head has two: W tanh(W1 x + b1)
    importance (in,)                           the mean square of each input of W over the train rows
    key                                        of the images, the weights and the size of images

Until it is complete there is a folder of shards next to it, each of ``SHARD`` images, written one after the other. A
command that was stopped resumes with the first shard that is missing.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import sys
import zipfile
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from laplex import _progress
from laplex._images import Array, decoder, tell_skipped
from laplex._writing import replaced
from paper.experiments.images import Listing, Source, listings, split_paths
from paper.experiments.options import at_least_one, option
from paper.experiments.record import Target
from paper.experiments.training import ROWS, accuracy
from paper.experiments.trunks import DEFAULT, MODELS, WHERE, Network, load

ABOUT = "What enters the head of a frozen image network of torchvision, written for `heads` and `compress`."
SIDE, BATCH = 224, 128
WINDOWS = 224  # MaxViT's images have a multiple of this side
SHARD = 8192  # images; an interruption loses at most this many
AHEAD = 4  # batches decoded while the network computes; more would only take memory


@dataclass(frozen=True, kw_only=True)
class Options:
    """What `features` can be asked."""

    model: str = option(" or ".join(MODELS))
    data: str = option("folders train and val, with one folder per class", metavar="DIR")
    weights: str = option("state dict of the network; those of torchvision if not given", DEFAULT, metavar="FILE.pth")
    batch: int = option("images at once", BATCH, metavar="B")
    side: int = option("of the images", SIDE, metavar="S")


@dataclass(frozen=True)
class Extraction:
    """A network, the images, and where their features go."""

    network: Network
    splits: dict[str, Listing]
    square: Callable[[Source], Array | None]
    path: Path
    key: str
    batch: int
    target: Target

    @property
    def shards(self) -> Path:
        """The folder of what is finished before all is."""
        return self.path.with_suffix(".shards")


def prepare(options: Options, target: Target) -> Extraction:
    """Check the options, list the images and load the network; ValueError or ImportError, and nothing is written."""
    if options.model not in MODELS:
        raise ValueError(f"--model must be one of {', '.join(MODELS)}, got {options.model!r}")
    at_least_one(options, "batch", "side")
    if options.model == "maxvit_t" and options.side % WINDOWS:
        raise ValueError(f"--side must be a multiple of {WINDOWS} for maxvit_t, got {options.side}")
    root = Path(options.data)
    train, test = listings(*split_paths(root))
    network = load(options.model, options.weights, options.side)
    splits = {"train": train, "test": test}
    key = _key(options.model, network, root, splits)
    path = target.out / f"{options.model}-{root.resolve().name}.npz"
    if path.exists() and _stored_key(path) != key and not target.fresh:
        raise ValueError(
            f"--out: {path} holds features of other images, weights or sides; move it away, or replace it with --fresh"
        )
    square = decoder(WHERE, network.covered)
    return Extraction(network, splits, square, path, key, options.batch, target)


def _key(model: str, network: Network, root: Path, splits: dict[str, Listing]) -> str:
    """What decides the features. Images count by name: their bytes would have to be read."""
    names = {
        split: [(one.name.removeprefix(str(root)), one.label) for one in listing.sources]
        for split, listing in splits.items()
    }
    content = [model, network.weights, network.side, splits["train"].classes, names]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()[:16]


def _stored_key(path: Path) -> str | None:
    """The key of a finished file or shard; None where there is none."""
    try:
        with np.load(path) as file:
            return str(file["key"])
    except (OSError, ValueError, LookupError, EOFError, zipfile.BadZipFile):
        return None


# --- Runs ------------------------------------------------------------------------------------------------------------


def run(extraction: Extraction) -> int:
    """Every shard that is missing; then one file of all."""
    if extraction.target.fresh:
        shutil.rmtree(extraction.shards, ignore_errors=True)
    elif _stored_key(extraction.path) == extraction.key:
        print(f"{extraction.path} is complete; --fresh makes it again")
        return 0
    extraction.shards.mkdir(exist_ok=True)
    extraction.network.to(extraction.target.device)
    try:
        parts = {split: _shards(extraction, split) for split in extraction.splits}
        arrays = _join(extraction, parts)
    except ValueError as error:
        print(f"python -m paper experiment features: {error}", file=sys.stderr)
        return 1
    with replaced(extraction.path) as file:
        np.savez(file, **arrays)
    shutil.rmtree(extraction.shards)
    print(f"wrote {extraction.path}")
    return 0


def _shards(extraction: Extraction, split: str) -> list[Path]:
    """The shards of a split, all of them finished."""
    sources = extraction.splits[split].sources
    starts = range(0, len(sources), SHARD)
    paths = [extraction.shards / f"{split}-{first:09}.npz" for first in starts]
    pool = ThreadPoolExecutor()
    try:
        with _progress.bar(f"laplex: {split} images", None) as progress:
            for path, first in zip(paths, starts, strict=True):
                if _stored_key(path) == extraction.key:
                    progress(min(first + SHARD, len(sources)), len(sources))
                    continue
                arrays = _shard(extraction, pool, sources, first, progress)
                with replaced(path) as file:
                    np.savez(file, **arrays)
    finally:
        pool.shutdown(cancel_futures=True)
    return paths


def _shard(
    extraction: Extraction,
    pool: ThreadPoolExecutor,
    sources: list[Source],
    first: int,
    progress: _progress.Progress,
) -> dict[str, Any]:
    """The features x (rows, width) and labels y (rows,) of the images that can be read, and the names of the others."""
    total, sources = len(sources), sources[first : first + SHARD]
    width = extraction.network.layers[0].in_features
    rows: list[Array] = [np.zeros((0, width), np.float16)]
    good: list[bool] = []
    for squares in _squares(extraction, pool, sources):
        readable = [square for square in squares if square is not None]
        if readable:
            rows.append(_rows(extraction, np.stack(readable)))
        for square in squares:
            good.append(square is not None)
            progress(first + len(good), total)
    labels = [source.label for source, is_good in zip(sources, good, strict=True) if is_good]
    skipped = [source.name for source, is_good in zip(sources, good, strict=True) if not is_good]
    arrays = {"x": np.concatenate(rows), "y": np.array(labels, np.int64), "skipped": np.array(skipped, np.str_)}
    return arrays | {"key": extraction.key}


def _squares(extraction: Extraction, pool: ThreadPoolExecutor, sources: list[Source]) -> Iterator[list[Array | None]]:
    """Batches of squares, None for an image that cannot be read; threads decode the next batches meanwhile."""
    queue: deque[list[Any]] = deque()
    for first in range(0, len(sources), extraction.batch):
        queue.append([pool.submit(extraction.square, one) for one in sources[first : first + extraction.batch]])
        if len(queue) > AHEAD:
            yield [one.result() for one in queue.popleft()]
    for batch in queue:
        yield [one.result() for one in batch]


@torch.no_grad()
def _rows(extraction: Extraction, squares: Array) -> Array:
    """The features of a batch (rows, width) float16."""
    features = extraction.network.features(torch.from_numpy(squares).to(extraction.target.device)).half()
    if not features.isfinite().all():
        raise ValueError(
            f"{WHERE}: `--weights` must give features that float16 can hold, got NaN or infinity; check the weights"
        )
    rows: Array = features.cpu().numpy()
    return rows


# --- The file --------------------------------------------------------------------------------------------------------


def _join(extraction: Extraction, parts: dict[str, list[Path]]) -> dict[str, Any]:
    """The arrays of the file; warnings name images that could not be read."""
    arrays: dict[str, Any] = {"key": extraction.key, "classes": np.array(extraction.splits["train"].classes)}
    skipped: list[str] = []
    for split, paths in parts.items():
        shards = []
        for path in paths:
            with np.load(path) as file:
                shards.append({name: file[name] for name in ("x", "y", "skipped")})
        arrays |= {f"{name}_{split}": np.concatenate([shard[name] for shard in shards]) for name in ("x", "y")}
        missing = tuple(str(name) for shard in shards for name in shard["skipped"])
        tell_skipped(WHERE, extraction.splits[split].path, missing, len(extraction.splits[split].sources))
        skipped += missing
    arrays |= {"skipped": np.array(skipped, np.str_)} | _head(extraction.network)
    arrays["importance"] = _importance(extraction, torch.from_numpy(arrays["x_train"]))
    _print_own(extraction, torch.from_numpy(arrays["x_test"]), torch.from_numpy(arrays["y_test"]))
    return arrays


def _head(network: Network) -> dict[str, Array]:
    """The layers of the network's own head: the last one W, b, and the one before it, if there is one, W1, b1."""
    arrays: dict[str, Array] = {}
    for suffix, layer in zip(("", "1"), reversed(network.layers), strict=False):
        arrays[f"W{suffix}"] = layer.weight.cpu().numpy()
        if layer.bias is not None:
            arrays[f"b{suffix}"] = layer.bias.cpu().numpy()
    return arrays


@torch.no_grad()
def _importance(extraction: Extraction, x: Tensor) -> Array:
    """The mean square of what enters the last layer (in,), for features x (rows, width); at least a millionth of it."""
    before = extraction.network.head[:-1]
    squares = sum(before(part.to(extraction.target.device).float()).double().square().sum(0) for part in x.split(ROWS))
    mean = squares / len(x)
    least: Array = mean.clamp_min(1e-6 * float(mean.mean())).float().cpu().numpy()
    return least


def _print_own(extraction: Extraction, x: Tensor, y: Tensor) -> None:
    """How good the network's own head is, where the folders are the classes that it was trained on."""
    if extraction.network.layers[-1].out_features == len(extraction.splits["test"].classes):
        reached = accuracy(
            extraction.network.head, x.to(extraction.target.device).float(), y.to(extraction.target.device)
        )
        print(f"the network's own head: {100 * reached:.2f} % of {len(y):,} test images")
