"""Examples for the commands of densities: read, split, checked, and put where the work is done."""

from __future__ import annotations

import argparse
import hashlib
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from laplex.cli.parsing import NAMES, as_command
from laplex.density import Examples, images
from laplex.density.images import Pictures, Shape

BUNDLED = "bundled:"  # and "train" or "val": the set that comes with laplex
DIGESTED = 1 << 26  # bytes that a thread hashes at a time


@dataclass(frozen=True)
class Data:
    """What a fit reads."""

    train: Examples
    validation: Examples | None
    shape: Shape | None
    digest: str  # of the train examples: a checkpoint of others is refused
    skipped: int

    @property
    def units(self) -> str:
        """What a step of 1 in the file is to the model."""
        return units_of(self.train.values)

    def bits_per_dim(self, log_likelihood: float) -> float:
        """As :class:`laplex.density.Evaluation` counts them."""
        return self.train.bits_per_dim(log_likelihood)


def for_fit(given: argparse.Namespace, device: torch.device, *, quiet: bool = False) -> Data:
    """The examples of DATA, and those that the fit does not see; ``quiet`` shows no progress."""
    asked: dict[str, Any] = {"side": given.side, "channels": given.channels}
    if quiet:
        asked["progress"] = lambda done, total: None
    found = _loaded("fit", given.data, asked)
    train, held_out = found.values, None
    if given.validation is not None:
        others = _loaded("fit", given.validation, asked, name="--validation")
        _refuse_unlike(f"--validation: {given.validation}", others, given.data, found)
        held_out = others.values
    elif given.hold_out is not None:
        train, held_out = _split(train, given.hold_out, given.seed)
    examples = Examples(_near(train, device), device)
    validation = None if held_out is None else Examples(_near(held_out, device), device, mean=examples.mean)
    return Data(examples, validation, found.shape, digest(train), len(found.skipped))


def _refuse_unlike(what: str, others: Pictures, data: str, found: Pictures) -> None:
    """Raise ValueError where the validation examples are not such as those that are fitted."""
    if others.values.shape[1] != found.values.shape[1] or _differ(others.shape, found.shape):
        sizes = [_size(one.values.shape[1], one.shape) for one in (others, found)]
        raise ValueError(
            f"{what} has examples of {sizes[0]} numbers, and {data} such of {sizes[1]}; give images of the same size "
            "and channels"
        )
    if units_of(others.values) != units_of(found.values):
        raise ValueError(
            f"{what} holds {others.values.dtype}, and {data} {found.values.dtype}; bytes count in 1/255, others in 1: "
            "give both alike"
        )


def _differ(one: Shape | None, other: Shape | None) -> bool:
    """Whether two shapes are known and not the same."""
    return one is not None and other is not None and tuple(one) != tuple(other)


def _size(dim: int, shape: Shape | None) -> str:
    return f"{dim} ({' x '.join(map(str, shape))})" if shape is not None else str(dim)


class Wanted(NamedTuple):
    """What a model was fitted to."""

    dim: int
    shape: Shape | None
    units: str | None  # what a step of 1 in the file is to the model, if it is known


def for_model(command: str, source: str, wanted: Wanted, count: int | None = None) -> Tensor:
    """Examples (N, dim) for a model, the first ``count`` if it is given; images in files are made to fit."""
    dim, shape, units = wanted
    if shape is not None and shape[0] != shape[1] and Path(source).is_dir():
        raise ValueError(
            f"DATA must be an array for a model of images of {shape[0]} x {shape[1]} pixels, got the folder {source}, "
            "whose images are made squares; give an .npy or .npz file"
        )
    asked: dict[str, Any] = {}
    if shape is not None:
        asked = {"channels": shape[2]} | ({"side": shape[0]} if shape[0] == shape[1] else {})
    try:
        found = _loaded(command, source, asked | {"count": count})
    except ValueError:
        if not asked or _is_resized(Path(source)):
            raise
        found = _loaded(command, source, {"count": count})  # not resized: the check below says what is wrong with it
    if found.values.shape[1] != dim or _differ(found.shape, shape):
        raise ValueError(
            f"DATA must have {_size(dim, shape)} numbers an example, as the model has, got "
            f"{_size(found.values.shape[1], found.shape)} in {source}; give the data that the model was fitted to, or "
            "such of the same size and channels"
        )
    if units is not None and units_of(found.values) != units:
        fitted = "bytes, which count in 1/255" if units == "1/255" else "floating-point numbers"
        raise ValueError(f"DATA must be {fitted}, as the model was fitted to, got {found.values.dtype} in {source}")
    return found.values


def _is_resized(path: Path) -> bool:
    """Whether it is a folder of images or an image, and no file of arrays."""
    return path.is_dir() or (path.is_file() and path.suffix not in (".npy", ".npz"))


def units_of(values: Tensor) -> str:
    """What a step of 1 in values is to a model."""
    return "1/255" if values.dtype == torch.uint8 else "1"


def digest(values: Tensor) -> str:
    """A hash of examples (N, n)."""
    rows = max(1, DIGESTED // max(1, values[:1].nbytes))
    with ThreadPoolExecutor() as pool:  # hashing releases Python's lock
        parts = pool.map(lambda part: hashlib.sha256(part.contiguous().numpy()).digest(), values.split(rows))
        whole = hashlib.sha256(b"".join(parts))
    whole.update(f"{values.dtype} {tuple(values.shape)}".encode())
    return whole.hexdigest()[:32]


def _loaded(command: str, source: str, asked: dict[str, Any], *, name: str = "DATA") -> Pictures:
    """What ``images.load`` finds in what the command calls ``name``; images that it skips are told as one line."""
    if source.startswith(BUNDLED):
        if source.removeprefix(BUNDLED) not in ("train", "val"):
            raise ValueError(f"images that come with laplex are {BUNDLED}train and {BUNDLED}val, got {source}")
        source = f"{Path(images.__file__).with_name('photographs.npz')}:{source.removeprefix(BUNDLED)}"
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            found = images.load(source, **asked)
        except ValueError as error:
            raise ValueError(as_command(error, NAMES | {"source": name})) from None
    for warning in told:
        print(f"laplex {command}: {as_command(warning.message)}", file=sys.stderr)
    return found


def _split(values: Tensor, fraction: float, seed: int) -> tuple[Tensor, Tensor]:
    """The examples, less a random part of them, and that part."""
    count = round(fraction * len(values))
    if not 0 < count < len(values):
        raise ValueError(f"--hold-out must leave and take at least one of the {len(values)} examples, got {fraction:g}")
    order = torch.randperm(len(values), generator=torch.Generator().manual_seed(seed))
    return values[order[count:].sort().values], values[order[:count].sort().values]


def _near(values: Tensor, device: torch.device) -> Tensor:
    """On the device, if it has room for them and as much again; else where they are, and read from there."""
    if device.type != "cuda" or 2 * values.nbytes > torch.cuda.mem_get_info(device)[0]:
        return values
    return values.to(device)
