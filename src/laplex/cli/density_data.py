"""Examples for the density commands: read, split, checked, and moved to where the work is done."""

from __future__ import annotations

import argparse
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from laplex.cli.parsing import NAMES, as_command
from laplex.cli.team import Team
from laplex.density import Examples, images
from laplex.density._examples import digest
from laplex.density.files import Model
from laplex.density.images import Pictures, Shape
from laplex.distributed._ranks import Ranks, ranks_of

FEW = 16  # examples that all processes compare if each reads only its part
BUNDLED = "bundled:"  # followed by "train" or "val": the images that come with laplex


@dataclass(frozen=True)
class FitData:
    """What a fit reads."""

    train: Examples
    validation: Examples | None
    shape: Shape | None
    digest: str  # of the training examples: a checkpoint of a fit to others is refused
    skipped: int

    @property
    def units(self) -> str:
        """What a step of 1 in the file means to the model."""
        return units_of(self.train.values)


def for_fit(options: argparse.Namespace, team: Team) -> FitData:
    """The examples of DATA, and those held out from the fit. All processes must read the same ones."""
    pictures, train, held_out = team.attempt(lambda: _for_fit(options, team))
    device, group = team.device, team.group if options.apart else None
    ranks = None if group is None else ranks_of(group)
    requirement = "DATA must give the same examples to all processes"
    team.agree_on(requirement, _described(train))
    known = digest(train, ranks)
    team.agree_on(requirement, f"some with the digest {known}")
    if ranks is not None:
        train = _own(train, ranks)
    examples = Examples(_near(train, device), device, group=group)
    validation = None if held_out is None else Examples(_near(held_out, device), device, mean=examples.mean)
    return FitData(examples, validation, pictures.shape, known, len(pictures.skipped))


def _for_fit(options: argparse.Namespace, team: Team) -> tuple[Pictures, Tensor, Tensor | None]:
    """All images of DATA, the examples to fit, and those held out, if any; one process shows progress."""
    size: dict[str, Any] = {"side": options.side, "channels": options.channels}
    if not team.leads:
        size["progress"] = lambda done, total: None
    pictures = _load("fit", options.data, size)
    train, held_out = pictures.values, None
    if options.validation is not None:
        others = _load("fit", options.validation, size, name="--validation")
        _refuse_unlike(f"--validation: {options.validation}", others, options.data, pictures)
        held_out = others.values
    elif options.hold_out is not None:
        train, held_out = _split(train, options.hold_out, options.seed)
    return pictures, train, held_out


def _described(values: Tensor) -> str:
    """A description that tells sets of examples apart by reading a few, as a process may read only its part."""
    few = digest(values[:: max(1, len(values) // FEW)])
    return f"{len(values)} of {values.shape[1]} numbers in {values.dtype}, of some of which the digest is {few}"


def _own(values: Tensor, ranks: Ranks) -> Tensor:
    """This process's part of the examples; nothing else is read from a .npy file."""
    if len(values) < ranks.size:
        raise ValueError(f"DATA must have an example for each of the {ranks.size} processes, got {len(values)}")
    first, last = (len(values) * end // ranks.size for end in (ranks.rank, ranks.rank + 1))
    return values[first:last]


def _refuse_unlike(name: str, others: Pictures, data: str, pictures: Pictures) -> None:
    """Raise ValueError if validation examples differ in kind from those that are fitted."""
    if others.values.shape[1] != pictures.values.shape[1] or _differ(others.shape, pictures.shape):
        sizes = [_size(one.values.shape[1], one.shape) for one in (others, pictures)]
        raise ValueError(
            f"{name} has examples of {sizes[0]} numbers, and {data} of {sizes[1]}; give images of the same size and "
            "channels"
        )
    if units_of(others.values) != units_of(pictures.values):
        raise ValueError(
            f"{name} holds {others.values.dtype}, and {data} {pictures.values.dtype}; bytes count in 1/255, others in "
            "1: give both in the same units"
        )


def _differ(one: Shape | None, other: Shape | None) -> bool:
    """Whether two shapes are both known, and differ."""
    return one is not None and other is not None and tuple(one) != tuple(other)


def _size(dim: int, shape: Shape | None) -> str:
    return f"{dim} ({' x '.join(map(str, shape))})" if shape is not None else str(dim)


class LoadedModel(NamedTuple):
    """A model on its device, and what it was fitted to."""

    model: Model
    shape: Shape | None  # of its images, if it was fitted to images
    units: str | None  # what a step of 1 in the file means to the model, if that is known


def for_model(command: str, source: str, loaded: LoadedModel, count: int | None = None) -> Examples:
    """Examples for a model, only the first ``count`` if it is given; images in files are resized to fit."""
    (model, shape, units), dim = loaded, loaded.model.dim
    if shape is not None and shape[0] != shape[1] and Path(source).is_dir():
        raise ValueError(
            f"DATA must be an array for a model of images of {shape[0]} x {shape[1]} pixels, got the folder {source}, "
            "whose images become squares; give an .npy or .npz file"
        )
    size: dict[str, Any] = {}
    if shape is not None:
        size = {"channels": shape[2]} | ({"side": shape[0]} if shape[0] == shape[1] else {})
    try:
        images = _load(command, source, size | {"count": count})
    except ValueError:
        if not size or _is_resized(Path(source)):
            raise
        images = _load(command, source, {"count": count})  # not resized: the check below says what is wrong
    if images.values.shape[1] != dim or _differ(images.shape, shape):
        raise ValueError(
            f"DATA must have {_size(dim, shape)} numbers per example, as the model has, got "
            f"{_size(images.values.shape[1], images.shape)} in {source}; give the data that the model was fitted to, "
            "or data of the same size and channels"
        )
    if units is not None and units_of(images.values) != units:
        fitted = "bytes, which count in 1/255" if units == "1/255" else "floating-point numbers"
        raise ValueError(f"DATA must be {fitted}, as the model was fitted to, got {images.values.dtype} in {source}")
    return Examples(images.values, model.mean.device, mean=model.mean)


def _is_resized(path: Path) -> bool:
    """Whether the path is an image or a folder of images, not a file of arrays."""
    return path.is_dir() or (path.is_file() and path.suffix not in (".npy", ".npz"))


def units_of(values: Tensor) -> str:
    """What a step of 1 in values means to a model."""
    return "1/255" if values.dtype == torch.uint8 else "1"


def _load(command: str, source: str, options: dict[str, Any], *, name: str = "DATA") -> Pictures:
    """The images at ``source``, which the command calls ``name``; one line reports those that are skipped."""
    if source.startswith(BUNDLED):
        if source.removeprefix(BUNDLED) not in ("train", "val"):
            raise ValueError(f"images that come with laplex are {BUNDLED}train and {BUNDLED}val, got {source}")
        source = f"{Path(images.__file__).with_name('photographs.npz')}:{source.removeprefix(BUNDLED)}"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            pictures = images.load(source, **options)
        except ValueError as error:
            raise ValueError(as_command(error, NAMES | {"source": name})) from None
    for warning in caught:
        print(f"laplex {command}: {as_command(warning.message)}", file=sys.stderr)
    return pictures


def _split(values: Tensor, fraction: float, seed: int) -> tuple[Tensor, Tensor]:
    """The examples without a random part of them, and that part."""
    count = round(fraction * len(values))
    if not 0 < count < len(values):
        raise ValueError(f"--hold-out must leave and take at least one of the {len(values)} examples, got {fraction:g}")
    order = torch.randperm(len(values), generator=torch.Generator().manual_seed(seed))
    return values[order[count:].sort().values], values[order[:count].sort().values]


def _near(values: Tensor, device: torch.device) -> Tensor:
    """Values on the device, if it has room for twice their size; else where they are, to be read from there."""
    if device.type != "cuda" or 2 * values.nbytes > torch.cuda.mem_get_info(device)[0]:
        return values
    return values.to(device)
