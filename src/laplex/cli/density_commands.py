"""`laplex sample`, `reconstruct`, `inpaint` and `evaluate`: what a fitted density does, as pictures and numbers."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from laplex._writing import write_whole
from laplex.cli import density_data
from laplex.cli.machine import describe, refuse_device, refuse_seed
from laplex.cli.tables import Table, show
from laplex.density import Examples, evaluate, files, pictures
from laplex.density.files import Model
from laplex.density.images import Shape

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
        print(f"laplex {given.command}: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"laplex {given.command}: cannot write ({error}); nothing was replaced", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(f"\nlaplex {given.command}: interrupted; nothing was written", file=sys.stderr)
        return 130
    return 0


# --- the commands -----------------------------------------------------------------------------------------------------


def _sample(given: argparse.Namespace) -> None:
    model, shape, _ = _for_picture(given)
    rows = sample_rows(model, given.count, given.seed)
    _written(given, rows, shape)


def _reconstruct(given: argparse.Namespace) -> None:
    model, shape, units = _for_picture(given)
    x = _examples(given, model, shape, units)
    _written(given, _in_rows({"images": x, "reconstructions": model.reconstruct(x)}), shape)


def _inpaint(given: argparse.Namespace) -> None:
    model, shape, units = _for_picture(given)
    known = mask(given.mask, shape, given.seed).to(model.mean.device)
    x = _examples(given, model, shape, units)
    seen = torch.where(known, x, torch.full_like(x, 0.5))
    _written(given, _in_rows({"images": x, "what is given": seen, "filled": model.inpaint(known, x)}), shape)


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


def sample_rows(model: Model, count: int, seed: int) -> list[tuple[str, Tensor]]:
    """Draws from the model as rows of a grid; the seed decides them."""
    device, drawn = model.mean.device, {}
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        for label, noise in (("samples", True), ("without noise", False)):
            torch.manual_seed(seed)
            drawn[label] = model.sample(count, noise=noise)
    return _in_rows(drawn)


def _in_rows(images: Mapping[str, Tensor]) -> list[tuple[str, Tensor]]:
    """Rows of a grid that are not too long; those of one column stay below each other."""
    split = {label: one.split(ACROSS) for label, one in images.items()}
    count = len(next(iter(split.values())))
    return [(label, parts[index]) for index in range(count) for label, parts in split.items()]


# --- models, masks, files ---------------------------------------------------------------------------------------------


def mask(name: str, shape: Shape, seed: int) -> Tensor:
    """Which numbers (n,) of an image are known; a pixel is known or hidden with all its channels."""
    height, width, _ = shape
    known = torch.ones(height, width, dtype=torch.bool)
    kind, _, fraction = name.partition(":")
    if name == "half":
        known[height // 2 :] = False
    elif name == "centre":
        known[height // 4 : height - height // 4, width // 4 : width - width // 4] = False
    elif kind == "random" and 0 < _number(fraction) < 1:
        hidden = torch.randperm(height * width, generator=torch.Generator().manual_seed(seed))
        known.view(-1)[hidden[: round(_number(fraction) * height * width)]] = False
    else:
        raise ValueError(f"--mask must be half, centre, or random: and a fraction such as random:0.5, got {name!r}")
    return known[..., None].expand(shape).flatten()


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return -1.0


def _loaded(given: argparse.Namespace) -> Loaded:
    model, about = files.load(given.model, given.device)
    return Loaded(model.requires_grad_(False), about["shape"], about.get("units"))


def _for_picture(given: argparse.Namespace) -> tuple[Model, Shape, str | None]:
    if given.count < 1:
        raise ValueError(f"--count must be at least 1, got {given.count}")
    path = Path(given.out)
    if path.suffix.lower() != ".png":
        raise ValueError(f"--out must end with .png, got {given.out}")
    _refuse_file("--out", path)
    model, shape, units = _loaded(given)
    if shape is None:
        raise ValueError(
            f"MODEL must be of images, got {given.model}, which was fitted to numbers without a height and a width; "
            "fit it again with --side"
        )
    return model, shape, units


def _examples(given: argparse.Namespace, model: Model, shape: Shape, units: str | None) -> Tensor:
    """The first examples (count, n), in the units of the model."""
    values = density_data.for_model(given.command, given.data, density_data.Wanted(model.dim, shape, units))
    examples = Examples(values[: given.count], given.device, mean=model.mean)
    return examples.some(slice(None))


def _written(given: argparse.Namespace, rows: list[tuple[str, Tensor]], shape: Shape) -> None:
    pictures.grid(given.out, rows, shape)
    print(f"wrote {given.out}")


def _refuse_file(option: str, path: Path) -> None:
    """Raise ValueError where the file cannot be written, before anything is computed; nothing is made."""
    if path.is_dir():
        raise ValueError(f"{option}: cannot write {path} (it is a folder)")
    if not path.absolute().parent.is_dir():
        raise ValueError(f"{option}: cannot write {path} (there is no such folder)")
