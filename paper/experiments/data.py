"""Data that the user brings: features of a frozen network, packed images, and folders of images.

    features(file)            x_train, y_train, x_test, y_test and, if there, x_val, y_val of an .npz file
    images(source, side)      an .npz file of packed JPEGs (keys jpeg, off, y, classes), or root/CLASS/*.jpg
    listed_splits(root)       the images of image_splits, not decoded: there may be more than memory holds
    image_splits(root, side)  root/train/CLASS/*.JPEG and root/val/CLASS/*.JPEG, as ImageNette is distributed, or packed
                              files *train*.npz and *val*.npz
    image_parts(train, val, side)  the same from sources that are named one by one

Features are float16 or float32 in the file and float32 here. Images are RGB, uint8, resized and cropped at the centre.
"""

from __future__ import annotations

import hashlib
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from laplex import _images, _progress
from laplex._images import NAMED, SUFFIXES, decoded
from laplex._images import Array as Array
from laplex._images import decoder as decoder
from laplex._images import tell_skipped as tell_skipped

HELD_OUT = 10  # one training row in so many serves as validation where the file has no validation split

Split = tuple[Tensor, Tensor]


# --- Features --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Features:
    """Labelled feature vectors in three splits, each x (rows, features) float32 and y (rows,) int64."""

    train: Split
    val: Split
    test: Split
    classes: int
    digest: str  # of the file: runs on other data are other runs

    @property
    def width(self) -> int:
        """Features of a row."""
        return self.train[0].shape[1]

    @property
    def importance(self) -> Tensor:
        """The mean square of each feature over the train rows (features,); a constant feature keeps a millionth."""
        squares = self.train[0].square().mean(0)
        return squares.clamp_min(1e-6 * float(squares.mean()))

    @property
    def moments(self) -> Tensor:
        """The mean of x x^T over the train rows (features, features)."""
        x = self.train[0]
        return x.T @ x / len(x)

    def to(self, device: str | torch.device) -> Features:
        """The same on another device."""
        splits = [(x.to(device), y.to(device)) for x, y in (self.train, self.val, self.test)]
        return Features(splits[0], splits[1], splits[2], self.classes, self.digest)

    def standardised(self) -> Features:
        """Centred by the mean of each feature and divided by one standard deviation, both of the train split.

        One divisor for all features keeps a feature that is constant in the train split finite.
        """
        x = self.train[0]
        mean = x.mean(0)
        scale = (x - mean).square().mean().sqrt().clamp_min(torch.finfo(x.dtype).tiny)
        splits = [((x - mean) / scale, y) for x, y in (self.train, self.val, self.test)]
        return Features(splits[0], splits[1], splits[2], self.classes, self.digest)


def features(path: str | Path) -> Features:
    """The features of an .npz file. Without x_val and y_val a tenth of the train rows of each class is held out."""
    where, path = "paper.experiments.data.features", Path(path)
    arrays = read_npz(where, path, ("x_train", "y_train", "x_test", "y_test"))
    train, test = (_split(where, arrays, name) for name in ("train", "test"))
    classes = _class_count(where, train[1])
    if "x_val" in arrays or "y_val" in arrays:
        _require(where, path, arrays, ("x_val", "y_val"))
        val = _split(where, arrays, "val")
    else:
        val, train = _held_out(where, train)
    for name, (x, y) in (("val", val), ("test", test)):
        if x.shape[1] != train[0].shape[1]:
            raise ValueError(
                f"{where}: `x_{name}` must have the {train[0].shape[1]} features of `x_train`, got {x.shape[1]}; "
                "use the same network for all splits"
            )
        if y.max() >= classes:
            raise ValueError(
                f"{where}: `y_{name}` must have classes of `y_train` only, got {y.max()}, which is not among them; "
                "drop those rows, or add that class to the train split"
            )
    return Features(train, val, test, classes, digest(path))


def _class_count(where: str, y: Tensor) -> int:
    counts = torch.bincount(y)
    if not counts.all():
        absent = int((counts == 0).nonzero()[0])
        raise ValueError(
            f"{where}: `y_train` must have rows of every class from 0 to {len(counts) - 1}, got none of class "
            f"{absent}; number the classes without gaps"
        )
    return len(counts)


def _held_out(where: str, train: Split) -> tuple[Split, Split]:
    """A validation split out of the train split, and the rest of it."""
    x, y = train
    held, rest = held_out_rows(y)
    if len(held) == 0:
        raise ValueError(
            f"{where}: `x_train` must have {HELD_OUT} rows of some class where there is no `x_val`, got fewer of every "
            "class; add x_val and y_val to the file"
        )
    return (x[held], y[held]), (x[rest], y[rest])


def held_out_rows(y: Tensor) -> tuple[Tensor, Tensor]:
    """Row numbers of every tenth row of each class, the same at every call, and those of all others.

    Args:
        y (rows,): classes. A class of fewer than ten rows keeps all of them.
    """
    shuffled = torch.randperm(len(y), generator=torch.Generator().manual_seed(0))
    order = shuffled[y[shuffled].argsort(stable=True)]  # by class, and shuffled within each
    first = torch.bincount(y).cumsum(0) - torch.bincount(y)
    place = torch.arange(len(y)) - first[y[order]]
    last = place % HELD_OUT == HELD_OUT - 1
    return order[last], order[~last]


def _split(where: str, arrays: dict[str, Array], name: str) -> Split:
    x, y = arrays[f"x_{name}"], arrays[f"y_{name}"]
    if x.ndim != 2 or x.size == 0 or x.dtype.kind != "f":
        raise ValueError(
            f"{where}: `x_{name}` must be floating point, of the shape (rows, features) and not empty, got {x.dtype} "
            f"{x.shape}; flatten each row"
        )
    if y.shape != x.shape[:1] or y.dtype.kind not in "iu":
        raise ValueError(
            f"{where}: `y_{name}` must be one integer for each of the {len(x)} rows of `x_{name}`, got {y.dtype} "
            f"{y.shape}; number the classes from 0"
        )
    if y.min() < 0:
        raise ValueError(f"{where}: `y_{name}` must not be negative, got {y.min()}; number the classes from 0")
    if not np.isfinite(x).all():
        raise ValueError(f"{where}: `x_{name}` must be finite, got NaN or infinity; find it with numpy.isfinite")
    return torch.from_numpy(x.astype(np.float32)), torch.from_numpy(y.astype(np.int64))


# --- Files -----------------------------------------------------------------------------------------------------------


def read_npz(where: str, path: Path, needed: Sequence[str]) -> dict[str, Array]:
    """Every array of an .npz file, each read once; an error that names the file, or the key that is missing."""
    try:
        with np.load(path) as file:
            if not isinstance(file, np.lib.npyio.NpzFile):
                raise ValueError("it holds a single array")
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, AttributeError, TypeError, zipfile.BadZipFile) as error:
        reason = getattr(error, "strerror", None) or error
        raise ValueError(
            f"{where}: `path` must be a readable .npz file, got {path} ({reason}); check the file"
        ) from None
    _require(where, path, arrays, needed)
    return arrays


def _require(where: str, path: Path, arrays: dict[str, Array], needed: Sequence[str]) -> None:
    missing = [name for name in needed if name not in arrays]
    if missing:
        raise ValueError(
            f"{where}: `path` must have the keys {', '.join(needed)}, got {path}, which lacks {', '.join(missing)} and "
            f"has {', '.join(arrays) or 'none'}; save it with numpy.savez under these keys"
        )


def digest(path: Path) -> str:
    """The first 16 hexadecimal digits of a file's SHA-256."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


# --- Images ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Images:
    """Labelled images: pixels (count, side, side, 3) uint8, y (count,) int64 into ``classes``."""

    pixels: Tensor
    y: Tensor
    classes: tuple[str, ...]
    skipped: tuple[str, ...]  # the images that could not be read


@dataclass(frozen=True)
class Source(_images.Source):
    """Where one image comes from, and its label."""

    label: int


@dataclass(frozen=True)
class Listing:
    """Labelled images that are not decoded; labels are into ``classes``."""

    sources: list[Source]
    classes: tuple[str, ...]


def images(source: str | Path, side: int, *, progress: _progress.Progress | None = None) -> Images:
    """All images of a packed .npz file, or of a folder with one folder a class.

    Args:
        source: the file or the folder.
        side: the side of the squares; images are resized to cover it and cropped at the centre.
        progress: told how many are decoded, and of how many; None shows a bar.
    """
    where, source = "paper.experiments.data.images", Path(source)
    if side < 1:
        raise ValueError(f"{where}: `side` must be at least 1, got {side}; give the pixels of a side, such as 224")
    sources, classes = _listed(where, source)
    pixels, read = decoded(sources, decoder(where, side), progress)
    skipped = tuple(one.name for one, good in zip(sources, read, strict=True) if not good)
    tell_skipped(where, source, skipped, len(sources))
    labels = np.array([one.label for one in sources], np.int64)
    return Images(torch.from_numpy(pixels), torch.from_numpy(labels[read]), classes, skipped)


def image_splits(root: str | Path, side: int, *, progress: _progress.Progress | None = None) -> tuple[Images, Images]:
    """The train and the validation images under a folder, of the same classes."""
    where, root = "paper.experiments.data.image_splits", Path(root)
    train, val = (_parts(where, root, name) for name in ("train", "val"))
    return image_parts(train, val, side, progress=progress)


def image_parts(
    train: Sequence[Path], val: Sequence[Path], side: int, *, progress: _progress.Progress | None = None
) -> tuple[Images, Images]:
    """The train and the validation images, each out of one or several sources for :func:`images`, of the same classes.

    Args:
        train, val: files or folders.
        side, progress: see :func:`images`.
    """
    paths = [*train, *val]
    loaded = [images(path, side, progress=progress) for path in paths]
    for path, one in zip(paths[1:], loaded[1:], strict=True):
        _same_classes("paper.experiments.data.image_parts", path, one, loaded[0])
    return _joined(loaded[: len(train)]), _joined(loaded[len(train) :])


def _joined(loaded: list[Images]) -> Images:
    """Sources of one split as one."""
    if len(loaded) == 1:
        return loaded[0]  # no second copy of what may be gigabytes
    pixels, y = (torch.cat([getattr(one, name) for one in loaded]) for name in ("pixels", "y"))
    return Images(pixels, y, loaded[0].classes, tuple(name for one in loaded for name in one.skipped))


def _same_classes(where: str, path: Path, got: Images | Listing, want: Images | Listing) -> None:
    if got.classes != want.classes:
        odd = sorted(set(got.classes) ^ set(want.classes)) or ["the same ones in another order"]
        raise ValueError(
            f"{where}: `train` and `val` must have the same classes in every part, got {len(got.classes)} in {path} "
            f"and {len(want.classes)} in the first part (they differ in: {', '.join(odd[:NAMED])}); make them alike"
        )


def _in_folder(where: str, root: Path) -> tuple[list[Source], tuple[str, ...]]:
    folders = sorted(path for path in root.iterdir() if path.is_dir())
    sources = [
        Source(str(path), path.read_bytes, label)
        for label, folder in enumerate(folders)
        for path in sorted(folder.iterdir())
        if path.suffix.lower() in SUFFIXES
    ]
    if not sources:
        raise ValueError(
            f"{where}: `source` must be a folder with one folder of images a class, got {root}, which has none; "
            f"put images ({', '.join(SUFFIXES)}) into folders named by class"
        )
    return sources, tuple(folder.name for folder in folders)


def _packed(where: str, path: Path) -> tuple[list[Source], tuple[str, ...]]:
    arrays = read_npz(where, path, ("jpeg", "off", "y", "classes"))
    data, ends, labels, classes = (arrays[name] for name in ("jpeg", "off", "y", "classes"))
    if len(ends) != len(labels) + 1 or len(labels) == 0:
        raise ValueError(
            f"{where}: `off` must have one entry more than the {len(labels)} of `y`, got {len(ends)}; image i is "
            "jpeg[off[i]:off[i + 1]]"
        )
    if labels.min() < 0 or labels.max() >= len(classes):
        raise ValueError(
            f"{where}: `y` must be from 0 to {len(classes) - 1}, an index into `classes`, got {labels.min()} to "
            f"{labels.max()}; name every class"
        )
    pieces = zip(ends[:-1].tolist(), ends[1:].tolist(), labels.tolist(), strict=True)
    sources = [
        Source(f"{path}[{index}]", data[begin:end].tobytes, label) for index, (begin, end, label) in enumerate(pieces)
    ]
    return sources, tuple(str(name) for name in classes)


def _listed(where: str, source: Path) -> tuple[list[Source], tuple[str, ...]]:
    return _in_folder(where, source) if source.is_dir() else _packed(where, source)


def listed_splits(root: str | Path) -> tuple[Listing, Listing]:
    """The train and the validation images under a folder, of the same classes: as :func:`image_splits` finds them."""
    where, root = "paper.experiments.data.listed_splits", Path(root)
    parts = {name: _parts(where, root, name) for name in ("train", "val")}
    listings = {part: Listing(*_listed(where, part)) for some in parts.values() for part in some}
    first = listings[parts["train"][0]]
    for part, listing in listings.items():
        _same_classes(where, part, listing, first)
    train, val = ([one for part in some for one in listings[part].sources] for some in parts.values())
    return Listing(train, first.classes), Listing(val, first.classes)


def _parts(where: str, root: Path, name: str) -> list[Path]:
    """The folder, or the packed files, of a split."""
    parts = [root / name] if (root / name).is_dir() else sorted(root.glob(f"*{name}*.npz"))
    if not parts:
        raise ValueError(
            f"{where}: `root` must hold folders train and val, or files *train*.npz and *val*.npz, got {root}, "
            f"which has no {name}; for a folder without splits use paper.experiments.data.images"
        )
    return parts
