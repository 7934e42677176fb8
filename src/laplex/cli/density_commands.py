"""`laplex sample`, `reconstruct`, `inpaint` and `evaluate`: what a fitted density does, as pictures and numbers."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from laplex._writing import write_whole
from laplex.cli import density_data
from laplex.cli.checkpoint import CHECKPOINT, MODEL
from laplex.cli.machine import refuse_device, refuse_seed
from laplex.cli.masks import mask
from laplex.cli.parsing import as_command
from laplex.cli.tables import Table, show
from laplex.density import Examples, evaluate, files, pictures
from laplex.density.files import Model
from laplex.density.images import Shape
from laplex.testing import describe

HEADER = ("examples", "count", "log-likelihood", "standard error", "bits per dimension", "reconstruction RMSE")
ACROSS = 8  # images in a row of a grid


class Loaded(NamedTuple):
    """A model on its device, the shape of its images, if they are images, and what a step of 1 in its data was."""

    model: Model
    shape: Shape | None
    units: str | None


def run(given: argparse.Namespace) -> int:
    """The command: 2 where options, model or data are refused, 130 after Ctrl-C."""
    commands = {"sample": _sample, "reconstruct": _reconstruct, "inpaint": _inpaint, "evaluate": _evaluate}
    try:
        refuse_device(given.device)
        refuse_seed(getattr(given, "seed", 0))  # not all of them draw
        commands[given.command](given)
    except (ValueError, TypeError, ImportError) as error:
        print(f"laplex {given.command}: {as_command(error)}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # nobody reads the output any more
        raise
    except OSError as error:
        done = "nothing was replaced" if getattr(given, "files", None) is None else "what is there is complete"
        print(f"laplex {given.command}: cannot write ({error}); {done}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        done = "nothing was written" if getattr(given, "files", None) is None else "files that are there are complete"
        print(f"\nlaplex {given.command}: interrupted; {done}", file=sys.stderr)
        return 130
    return 0


# --- the commands -----------------------------------------------------------------------------------------------------


def _sample(given: argparse.Namespace) -> None:
    model, shape, _ = _for_picture(given)
    _write(given, samples(model, given.count, given.seed), shape)


def _reconstruct(given: argparse.Namespace) -> None:
    model, shape, units = _for_picture(given)
    x = _examples(given, model, shape, units)
    _write(given, {"images": x, "reconstructions": model.reconstruct(x)}, shape)


def _inpaint(given: argparse.Namespace) -> None:
    if given.samples < 0:
        raise ValueError(f"--samples must be at least 0, got {given.samples}")
    model, shape, units = _for_picture(given)
    known = mask(given.mask, shape, given.seed).to(model.mean.device)
    x = _examples(given, model, shape, units)
    seen = torch.where(known, x, torch.full_like(x, 0.5))
    filled = model.inpaint(known, x)
    drawn = fillings(model, known, filled, given.samples, given.seed) if given.samples else {}
    _write(given, {"images": x, "what is given": seen, "filled": filled} | drawn, shape)


def _evaluate(given: argparse.Namespace) -> None:
    if given.json is not None:
        _refuse_file("--json", Path(given.json))
    model, shape, units = _loaded(given)
    values = density_data.for_model(given.command, given.data, density_data.Wanted(model.dim, shape, units))
    examples = Examples(values, given.device, mean=model.mean)
    found = evaluations(model, {given.data: examples})
    show(evaluation_table(f"{type(model).__name__} of {given.model}", found))
    if given.json is not None:
        content = {"model": given.model, "evaluation": found, "machine": describe(given.device)}
        write_whole(Path(given.json), json.dumps(content, indent=1) + "\n")


# --- what `laplex fit` shows, too -------------------------------------------------------------------------------------


def evaluations(model: Model, examples: Mapping[str, Examples | None]) -> dict[str, dict[str, Any]]:
    """What the model is worth on examples that are there, under their names; one example has no standard error."""
    there = {name: one for name, one in examples.items() if one is not None}
    found = {name: {"count": len(one)} | evaluate(model, one)._asdict() for name, one in there.items()}
    return {name: one if one["count"] > 1 else one | {"standard_error": None} for name, one in found.items()}


def evaluation_table(title: str, found: Mapping[str, Mapping[str, Any]]) -> Table:
    """One line for each of :func:`evaluations`."""
    rows: list[tuple[str, ...]] = [
        (
            name,
            str(one["count"]),
            f"{one['log_likelihood']:,.1f}",
            "-" if one["standard_error"] is None else f"{one['standard_error']:,.1f}",
            f"{one['bits_per_dim']:.4f}",
            f"{one['rmse']:.4f}",
        )
        for name, one in found.items()
    ]
    return Table(title, HEADER, rows)


def samples(model: Model, count: int, seed: int) -> dict[str, Tensor]:
    """Draws (count, n) from the model, with and without noise; the seed decides them."""
    drawn = {}
    for label, noise in (("samples", True), ("without noise", False)):
        with _seeded(model, seed):
            drawn[label] = model.sample(count, noise=noise)
    return drawn


@torch.no_grad()
def fillings(model: Model, known: Tensor, filled: Tensor, count: int, seed: int) -> dict[str, Tensor]:
    """Draws of what is not ``known`` (n,), given the rest, each (m, n), with and without noise; the seed decides them.

    Examples ``filled`` (m, n) have their means there, as from ``inpaint``.
    """
    given = model.condition(known, filled[0][known])  # its covariance is that of every example
    drawn = {}
    for label, draw in (("", given.rsample), (" without noise", given.signal)):
        with _seeded(model, seed):
            apart = draw((count, len(filled))) - given.mean
        for number, one in enumerate(apart, 1):
            drawn[number, label] = filled.clone()
            drawn[number, label][:, ~known] += one
    return {f"sample {number}{label}": one for (number, label), one in sorted(drawn.items(), key=lambda item: item[0])}


@contextmanager
def _seeded(model: Model, seed: int) -> Iterator[None]:
    """Random numbers that the seed decides, and those of the caller as they were."""
    device = model.mean.device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


def in_rows(images: Mapping[str, Tensor]) -> list[tuple[str, Tensor]]:
    """Rows of a grid that are not too long; those of one column stay below each other."""
    split = {label: one.split(ACROSS) for label, one in images.items()}
    count = len(next(iter(split.values())))
    return [(label, parts[index]) for index in range(count) for label, parts in split.items()]


# --- models, examples, files ------------------------------------------------------------------------------------------


def _loaded(given: argparse.Namespace) -> Loaded:
    model, about = files.load(_model_file(given.model), given.device)
    return Loaded(model.requires_grad_(False), about["shape"], about.get("units"))


def _model_file(name: str) -> Path:
    """The file itself, or the one in the folder of a fit."""
    path = Path(name)
    if not path.is_dir():
        return path
    if (path / MODEL).exists():
        return path / MODEL
    begun = (path / CHECKPOINT).exists()
    hint = "its fit has not ended: run the same command again" if begun else "`laplex fit` writes it into its --out"
    raise ValueError(
        f"MODEL must be a model file, or a folder with a {MODEL}, got the folder {name} without one; {hint}"
    )


def _for_picture(given: argparse.Namespace) -> tuple[Model, Shape, str | None]:
    if given.count < 1:
        raise ValueError(f"--count must be at least 1, got {given.count}")
    if given.out is None and given.files is None:
        raise ValueError(
            "--out FILE.png or --files FOLDER must be given: one picture of all images, or a file for each"
        )
    if given.out is not None:
        if Path(given.out).suffix.lower() != ".png":
            raise ValueError(f"--out must end with .png, got {given.out}; --files takes a folder")
        _refuse_file("--out", Path(given.out))
    if given.files is not None:
        refuse_folder("--files", given.files)
    model, shape, units = _loaded(given)
    if shape is None:
        raise ValueError(
            f"MODEL must be of images, got {given.model}, which was fitted to numbers without a height and a width; "
            "fit it again with --side"
        )
    return model, shape, units


def _examples(given: argparse.Namespace, model: Model, shape: Shape, units: str | None) -> Tensor:
    """The first examples (count, n), in the units of the model; no others are read."""
    wanted = density_data.Wanted(model.dim, shape, units)
    values = density_data.for_model(given.command, given.data, wanted, given.count)
    return Examples(values, given.device, mean=model.mean).some(slice(None))


def _write(given: argparse.Namespace, images: Mapping[str, Tensor], shape: Shape) -> None:
    """Images (m, n) under their labels, as one picture, as files, or both."""
    if given.out is not None:
        pictures.grid(given.out, in_rows(images), shape)
        print(f"wrote {given.out}")
    if given.files is not None:
        Path(given.files).mkdir(parents=True, exist_ok=True)
        written = pictures.separate(given.files, images, shape)
        print(f"wrote {written[0]} to {written[-1].name}, {len(written)} files")


def _refuse_file(option: str, path: Path) -> None:
    """Raise ValueError where the file cannot be written, before anything is computed; nothing is made."""
    if path.is_dir():
        raise ValueError(f"{option}: cannot write {path} (it is a folder)")
    if not path.absolute().parent.is_dir():
        raise ValueError(f"{option}: cannot write {path} (there is no such folder)")


def refuse_folder(option: str, name: str) -> None:
    """Raise ValueError where nothing can be written into the folder, without making it."""
    if not name:
        raise ValueError(f"{option} must name a folder, got an empty name")
    path = Path(name)
    there = next(one for one in (path, *path.absolute().parents) if one.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        why = "is not a folder" if not there.is_dir() else "cannot be written to"
        raise ValueError(f"{option}: cannot write into {path}: {there} {why}; give another folder")
