"""Images with classes: listed, decoded, and flattened for projections.

    split_paths(root)             the sources of the train and of the validation images under a folder
    listings(train, val)          what these sources hold, not decoded: there may be more than memory holds
    decode(listing, side)         RGB, uint8, resized and cropped at the centre
    flatten(train, val, device)   uint8 on the device, normalised batch by batch

A source is a folder with one folder of images per class, or a packed .npz file with the keys jpeg, off, y and classes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from laplex import _images, _progress
from laplex._images import NAMED, SUFFIXES, decoded, decoder, tell_skipped
from paper.experiments.data import HELD_OUT, held_out_rows, read_npz

WHERE = "paper.experiments.images"
ROWS = 256  # images that are float32 at a time


@dataclass(frozen=True)
class Source(_images.Source):
    """Where one image comes from, and its label."""

    label: int


@dataclass(frozen=True)
class Listing:
    """Labelled images that are not decoded; labels are into ``classes``."""

    path: Path  # of the first of them, for messages
    sources: list[Source]
    classes: tuple[str, ...]


@dataclass(frozen=True)
class Images:
    """Labelled images: pixels (count, side, side, 3) uint8, y (count,) int64 into ``classes``."""

    pixels: Tensor
    y: Tensor
    classes: tuple[str, ...]


# --- Listed ----------------------------------------------------------------------------------------------------------


def split_paths(root: Path) -> tuple[list[Path], list[Path]]:
    """Sources of train and of validation images: folders train and val, or files *train*.npz and *val*.npz."""
    splits = []
    for name in ("train", "val"):
        splits.append([root / name] if (root / name).is_dir() else sorted(root.glob(f"*{name}*.npz")))
        if not splits[-1]:
            raise ValueError(
                f"{WHERE}: `root` must hold folders train and val, or files *train*.npz and *val*.npz, got {root}, "
                f"which has no {name}; check the path"
            )
    return splits[0], splits[1]


def listings(train: Sequence[Path], val: Sequence[Path]) -> tuple[Listing, Listing]:
    """The images of each split, out of one or several sources; ValueError unless all have the same classes."""
    parts = [_in_folder(path) if path.is_dir() else _packed(path) for path in (*train, *val)]
    classes = parts[0].classes
    for part in parts:
        if part.classes != classes:
            odd = sorted(set(part.classes) ^ set(classes)) or ["the same ones in another order"]
            raise ValueError(
                f"{WHERE}: `train` and `val` must have the same classes in every part, got {len(part.classes)} in "
                f"{part.path} and {len(classes)} in the first part (they differ in: {', '.join(odd[:NAMED])}); use the "
                "same ones"
            )
    splits = parts[: len(train)], parts[len(train) :]
    first, second = (
        Listing(split[0].path, [one for part in split for one in part.sources], classes) for split in splits
    )
    return first, second


def _in_folder(root: Path) -> Listing:
    folders = sorted(path for path in root.iterdir() if path.is_dir())
    sources = [
        Source(str(path), path.read_bytes, label)
        for label, folder in enumerate(folders)
        for path in sorted(folder.iterdir())
        if path.suffix.lower() in SUFFIXES
    ]
    if not sources:
        raise ValueError(
            f"{WHERE}: `source` must be a folder with one folder of images per class, got {root}, which has none; "
            f"put images ({', '.join(SUFFIXES)}) into folders named by class"
        )
    return Listing(root, sources, tuple(folder.name for folder in folders))


def _packed(path: Path) -> Listing:
    arrays = read_npz(WHERE, path, ("jpeg", "off", "y", "classes"))
    data, ends, labels, classes = (arrays[name] for name in ("jpeg", "off", "y", "classes"))
    if len(ends) != len(labels) + 1 or len(labels) == 0:
        raise ValueError(
            f"{WHERE}: `off` must have one entry more than the {len(labels)} of `y`, got {len(ends)}; image i is "
            "jpeg[off[i]:off[i + 1]]"
        )
    if labels.min() < 0 or labels.max() >= len(classes):
        raise ValueError(
            f"{WHERE}: `y` must be from 0 to {len(classes) - 1}, an index into `classes`, got {labels.min()} to "
            f"{labels.max()}; name every class"
        )
    pieces = zip(ends[:-1].tolist(), ends[1:].tolist(), labels.tolist(), strict=True)
    sources = [
        Source(f"{path}[{index}]", data[begin:end].tobytes, label) for index, (begin, end, label) in enumerate(pieces)
    ]
    return Listing(path, sources, tuple(str(name) for name in classes))


# --- Decoded ---------------------------------------------------------------------------------------------------------


def decode(listing: Listing, side: int, *, progress: _progress.Progress | None = None) -> Images:
    """The images of a listing as squares: each is resized to cover ``side`` and cropped at the centre.

    Those that cannot be read are skipped, with a warning. ``progress`` is as for ``laplex.density.images.load``.
    """
    sources = listing.sources
    pixels, good = decoded(sources, decoder(WHERE, side), progress)
    skipped = tuple(source.name for source, is_good in zip(sources, good, strict=True) if not is_good)
    tell_skipped(WHERE, listing.path, skipped, len(sources))
    labels = np.array([source.label for source in sources], np.int64)
    return Images(torch.from_numpy(pixels), torch.from_numpy(labels[good]), listing.classes)


# --- Flattened -------------------------------------------------------------------------------------------------------


class FlatSplit(NamedTuple):
    """Images and their classes."""

    pixels: Tensor  # (rows, d) uint8
    y: Tensor  # (rows,) int64


@dataclass(frozen=True)
class FlatImages:
    """Train and validation images of d pixel values each, on one device."""

    train: FlatSplit
    val: FlatSplit
    held: Tensor  # numbers of the train rows that are held out
    rest: Tensor  # numbers of the others
    mean: Tensor  # (d,) float32, over the train rows
    deviation: float
    classes: int
    digest: str  # of all pixels and classes: runs on other data are other runs

    @property
    def width(self) -> int:
        """The number d of pixel values of an image."""
        return len(self.mean)

    @property
    def most_components(self) -> int:
        """The number of principal components of the train rows that are not held out."""
        return min(len(self.rest) - 1, self.width)

    @property
    def device(self) -> torch.device:
        """Where the images are."""
        return self.mean.device

    def normalised(self, pixels: Tensor, columns: slice = slice(None)) -> Tensor:
        """Pixels (rows, columns) uint8, which may be some columns of the images, as float32 of mean 0."""
        return pixels.float().sub_(self.mean[columns]).div_(self.deviation)


def flatten(train: Images, val: Images, device: str) -> FlatImages:
    """The images on a device, less their mean by pixel, and divided by one standard deviation of all pixels.

    A tenth of the train images of each class is held out to choose by; the validation images choose nothing. ValueError
    where no class has enough train images to hold one out.
    """
    held, rest = held_out_rows(train.y)
    if len(held) == 0:
        raise ValueError(
            f"{WHERE}: `train` must have {HELD_OUT} images of some class, got fewer of every "
            "class; one in ten is held out to choose the weight decay, so add images"
        )
    seen, other = (FlatSplit(one.pixels.flatten(1).to(device), one.y.to(device)) for one in (train, val))
    mean, deviation = _moments(seen.pixels)
    if deviation == 0:
        raise ValueError(f"{WHERE}: `train` must have images that differ, got equal ones; check the files")
    held, rest = held.to(device), rest.to(device)
    return FlatImages(seen, other, held, rest, mean, deviation, len(train.classes), images_digest(train, val))


def _moments(pixels: Tensor) -> tuple[Tensor, float]:
    """The mean of each pixel, and the root of the mean square around it over all pixels, by exact sums of integers."""
    total = torch.zeros(pixels.shape[1], dtype=torch.int64, device=pixels.device)
    squares = torch.zeros_like(total)
    for rows in pixels.split(ROWS):
        integers = rows.int()  # a square is below 2^16, so ROWS of them are far below 2^31
        total += integers.sum(0)
        squares += integers.square_().sum(0)
    # N sum x^2 - (sum x)^2 is N^2 times the variance: an integer, and 0 where a pixel is constant.
    variances = (len(pixels) * squares - total.square()).double() / len(pixels) ** 2
    return (total.double() / len(pixels)).float(), float(variances.mean().sqrt())


def images_digest(*splits: Images) -> str:
    """The first 16 hexadecimal digits of the SHA-256 of pixels and classes."""
    content = hashlib.sha256()
    for split in splits:
        content.update(repr((tuple(split.pixels.shape), split.classes)).encode())
        content.update(np.ascontiguousarray(split.pixels.numpy()).data)
        content.update(split.y.numpy().astype("<i8").data)
    return content.hexdigest()[:16]
