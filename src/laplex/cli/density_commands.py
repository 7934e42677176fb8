"""`laplex sample`, `reconstruct`, `inpaint` and `evaluate`: what a fitted density does, as pictures and numbers."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from laplex._writing import write_whole
from laplex.cli import packages
from laplex.cli.checkpoint import CHECKPOINT, MODEL
from laplex.cli.density_data import LoadedModel, for_model
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


def run(options: argparse.Namespace) -> int:
    """Run the command. Returns 2 if options, model or data are refused, 130 after Ctrl-C."""
    commands = {"sample": _sample, "reconstruct": _reconstruct, "inpaint": _inpaint, "evaluate": _evaluate}
    left = "nothing was replaced" if getattr(options, "files", None) is None else "files that are there are complete"
    try:
        packages.refuse(options.command, getattr(options, "data", None))  # `sample` has none
        refuse_device(options.device)
        refuse_seed(getattr(options, "seed", 0))  # not all commands draw
        commands[options.command](options)
    except (ValueError, TypeError, ImportError) as error:
        print(f"laplex {options.command}: {as_command(error)}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # no one reads the output any more
        raise
    except OSError as error:
        print(f"laplex {options.command}: cannot write ({error}); {left}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"\nlaplex {options.command}: interrupted; {left}", file=sys.stderr)
        return 130
    return 0


# --- the commands -----------------------------------------------------------------------------------------------------


def _sample(options: argparse.Namespace) -> None:
    loaded, shape = _for_picture(options)
    _write(options, samples(loaded.model, options.count, options.seed), shape)


def _reconstruct(options: argparse.Namespace) -> None:
    loaded, shape = _for_picture(options)
    x = _examples(options, loaded)
    _write(options, {"images": x, "reconstructions": loaded.model.reconstruct(x)}, shape)


def _inpaint(options: argparse.Namespace) -> None:
    if options.samples < 0:
        raise ValueError(f"--samples must be at least 0, got {options.samples}")
    loaded, shape = _for_picture(options)
    model = loaded.model
    known = mask(options.mask, shape, options.seed).to(model.mean.device)
    x = _examples(options, loaded)
    masked = torch.where(known, x, torch.full_like(x, 0.5))
    filled = model.inpaint(known, x)
    draws = fillings(model, known, filled, options.samples, options.seed) if options.samples else {}
    _write(options, {"images": x, "what is given": masked, "filled": filled} | draws, shape)


def _evaluate(options: argparse.Namespace) -> None:
    if options.json is not None:
        _refuse_file("--json", Path(options.json))
    loaded = _load(options)
    figures = evaluations(loaded.model, {options.data: for_model(options.command, options.data, loaded)})
    show(evaluation_table(f"{type(loaded.model).__name__} of {options.model}", figures))
    if options.json is not None:
        content = {"model": options.model, "evaluation": figures, "machine": describe(options.device)}
        write_whole(Path(options.json), json.dumps(content, indent=1) + "\n")


# --- what `laplex fit` shows, too -------------------------------------------------------------------------------------


def evaluations(model: Model, examples: Mapping[str, Examples | None]) -> dict[str, dict[str, Any]]:
    """How well the model describes each named set of examples; a single example has no standard error."""
    figures: dict[str, dict[str, Any]] = {}
    for name, values in examples.items():
        if values is not None:
            figures[name] = {"count": values.count} | evaluate(model, values)._asdict()
            if values.count == 1:
                figures[name]["standard_error"] = None
    return figures


def evaluation_table(title: str, figures: Mapping[str, Mapping[str, Any]]) -> Table:
    """A table with one line for each of :func:`evaluations`."""
    rows: list[tuple[str, ...]] = [
        (
            name,
            str(one["count"]),
            f"{one['log_likelihood']:,.1f}",
            "-" if one["standard_error"] is None else f"{one['standard_error']:,.1f}",
            f"{one['bits_per_dim']:.4f}",
            f"{one['rmse']:.4f}",
        )
        for name, one in figures.items()
    ]
    return Table(title, HEADER, rows)


def samples(model: Model, count: int, seed: int) -> dict[str, Tensor]:
    """Draws (count, n) from the model, with and without noise, determined by the seed."""
    drawn = {}
    for label, noise in (("samples", True), ("without noise", False)):
        with _seeded(model, seed):
            drawn[label] = model.sample(count, noise=noise)
    return drawn


@torch.no_grad()
def fillings(model: Model, known: Tensor, filled: Tensor, count: int, seed: int) -> dict[str, Tensor]:
    """Draws (m, n) of what is not ``known`` (n,), given the rest, with and without noise, determined by the seed.

    In the examples ``filled`` (m, n) the unknown numbers are conditional means, as from ``inpaint``.
    """
    rest = model.condition(known, filled[0][known])  # all examples have the same covariance
    drawn = {}
    for label, draw in (("", rest.rsample), (" without noise", rest.signal)):
        with _seeded(model, seed):
            apart = draw((count, len(filled))) - rest.mean
        for number, one in enumerate(apart, 1):
            drawn[number, label] = filled.clone()
            drawn[number, label][:, ~known] += one
    return {f"sample {number}{label}": one for (number, label), one in sorted(drawn.items(), key=lambda item: item[0])}


@contextmanager
def _seeded(model: Model, seed: int) -> Iterator[None]:
    """Seed torch's random numbers within the block, and restore the caller's generators after it."""
    device = model.mean.device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield


def in_rows(images: Mapping[str, Tensor]) -> list[tuple[str, Tensor]]:
    """Split rows of a grid that are too long; images of one column stay below each other."""
    split = {label: one.split(ACROSS) for label, one in images.items()}
    count = len(next(iter(split.values())))
    return [(label, parts[index]) for index in range(count) for label, parts in split.items()]


# --- models, examples, files ------------------------------------------------------------------------------------------


def _load(options: argparse.Namespace) -> LoadedModel:
    model, about = files.load(_model_file(options.model), options.device)
    return LoadedModel(model.requires_grad_(False), about["shape"], about.get("units"))


def _model_file(name: str) -> Path:
    """The file itself, or the model file in the folder of a fit."""
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


def _for_picture(options: argparse.Namespace) -> tuple[LoadedModel, Shape]:
    if options.count < 1:
        raise ValueError(f"--count must be at least 1, got {options.count}")
    if options.out is None and options.files is None:
        raise ValueError(
            "--out FILE.png or --files FOLDER must be given: one picture of all images, or a file for each"
        )
    if options.out is not None:
        if Path(options.out).suffix.lower() != ".png":
            raise ValueError(f"--out must end with .png, got {options.out}; --files takes a folder")
        _refuse_file("--out", Path(options.out))
    if options.files is not None:
        refuse_folder("--files", options.files)
    loaded = _load(options)
    if loaded.shape is None:
        raise ValueError(
            f"MODEL must be of images, got {options.model}, which was fitted to numbers without a height and a width; "
            "fit it again with --side"
        )
    return loaded, loaded.shape


def _examples(options: argparse.Namespace, loaded: LoadedModel) -> Tensor:
    """The first examples (count, n), in the model's units; no others are read."""
    return for_model(options.command, options.data, loaded, options.count).some(slice(None))


def _write(options: argparse.Namespace, images: Mapping[str, Tensor], shape: Shape) -> None:
    """Write labelled images (m, n) as one picture, as files, or both."""
    if options.out is not None:
        pictures.grid(options.out, in_rows(images), shape)
        print(f"wrote {options.out}")
    if options.files is not None:
        Path(options.files).mkdir(parents=True, exist_ok=True)
        written = pictures.separate(options.files, images, shape)
        print(f"wrote {written[0]} to {written[-1].name}, {len(written)} files")


def _refuse_file(option: str, path: Path) -> None:
    """Raise ValueError if the file cannot be written, before anything is computed; nothing is created."""
    if path.is_dir():
        raise ValueError(f"{option}: cannot write {path} (it is a folder)")
    if not path.absolute().parent.is_dir():
        raise ValueError(f"{option}: cannot write {path} (there is no such folder)")


def refuse_folder(option: str, name: str) -> None:
    """Raise ValueError if nothing can be written into the folder, without creating it."""
    if not name:
        raise ValueError(f"{option} must name a folder, got an empty name")
    path = Path(name)
    there = next(one for one in (path, *path.absolute().parents) if one.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        why = "is not a folder" if not there.is_dir() else "cannot be written to"
        raise ValueError(f"{option}: cannot write into {path}: {there} {why}; give another folder")
