"""Features of a frozen network, in an .npz file that the user brings: x_train, y_train, x_test, y_test, x_val, y_val.

They are float16 or float32 in the file and float32 here. The validation split may be missing.
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

from laplex._images import Array

HELD_OUT = 10  # one training row in this many serves as validation where the file has no validation split

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
