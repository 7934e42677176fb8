"""What a fit leaves behind: the model, its numbers as JSON and as a table, and pictures."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from laplex._writing import write_whole
from laplex.cli import fit_plots
from laplex.cli.checkpoint import MODEL, PICTURES, SUMMARY
from laplex.cli.density_commands import ACROSS, evaluation_table, in_rows, samples
from laplex.cli.fitting import FitResult, Job
from laplex.cli.tables import show
from laplex.density import files, pictures
from laplex.testing import commit, describe


def report(job: Job, result: FitResult) -> None:
    """Write everything, and only then print where: the output may have no reader any more."""
    folder, data = job.keeper.folder, job.data
    files.save(
        folder / MODEL, result.model, data.shape, units=data.units, settings=asdict(job.settings), data=data.digest
    )
    summary = _summary(job, result)
    write_whole(folder / SUMMARY, json.dumps(summary, indent=1) + "\n")
    written = (MODEL, SUMMARY, *_draw(job, result))
    show(evaluation_table(f"Fitted in {summary['seconds']:.1f} s", summary["evaluation"]))
    for name in written:
        print(f"wrote {folder / name}")


def _summary(job: Job, result: FitResult) -> dict[str, Any]:
    data, last = job.data, job.keeper.log[-1]
    return {
        "settings": asdict(job.settings),
        "data": {"examples": data.train.count, "dim": data.train.dim, "shape": data.shape, "skipped": data.skipped},
        "model": type(result.model).__name__,
        "parameters": sum(one.numel() for one in result.model.parameters()),
        "seconds": last["seconds"],
        "evaluation": {name: last[name] for name in ("train", "validation") if name in last},
        "machine": describe(str(data.train.device)) | {"commit": commit()},
    }


# --- Pictures ---------------------------------------------------------------------------------------------------------


def _draw(job: Job, result: FitResult) -> list[str]:
    """Draw the pictures that the data and the installed packages allow, and return their names."""
    folder, shape = job.keeper.folder, job.data.shape
    drawings: list[Callable[[Path], None]] = [
        lambda path: _likelihoods(job, path),
        lambda path: _spectrum(result, path),
    ]
    if shape is not None:
        drawings += [
            lambda path: pictures.grid(path, in_rows(samples(result.model, 16, job.settings.seed)), shape),
            lambda path: _reconstructions(job, result, path),
            lambda path: fit_plots.places(path, result.start, result.model.a, shape),
        ]
    drawn = []
    for name, draw in zip(PICTURES, drawings):
        try:
            draw(folder / name)
        except ImportError as error:
            print(f"laplex fit: {name} is not drawn: {error}", file=sys.stderr)
        else:
            drawn.append(name)
    return drawn


def _reconstructions(job: Job, result: FitResult, path: Path) -> None:
    """Draw some examples, held-out ones if there are any, above what the model makes of them."""
    examples = job.data.validation or job.data.train
    x = examples.some(slice(0, ACROSS))
    part = "validation" if job.data.validation is not None else "train"
    rows = [(f"{part} images", x), ("reconstructions", result.model.reconstruct(x))]
    pictures.grid(path, rows, job.data.shape)  # type: ignore[arg-type]  # only called for images


@torch.no_grad()
def _spectrum(result: FitResult, path: Path) -> None:
    """Plot the spectrum of the covariance without the noise, and the mean variance of the noise."""
    gaussian = result.model.distribution()
    spread = gaussian.spectrum()
    noise = gaussian.noise.double().square().mean().expand_as(spread)
    fit_plots.spectrum(path, {"F F^T, fitted": spread, "noise of a feature, mean": noise})


def _likelihoods(job: Job, path: Path) -> None:
    """Plot likelihoods over the seconds of the fit: a curve per stage, ending in the stage's final evaluation."""
    curves: dict[str, list[tuple[float, float]]] = {}
    levels = {}
    for entry in job.keeper.log:
        name = {"em": "EM", "adam": "Adam"}[entry["stage"]]
        value = entry["train"]["log_likelihood"] if "finished" in entry else entry["log_likelihood"]
        curves.setdefault(f"{name}, train", []).append((entry["seconds"], value))
        if "validation" in entry:
            levels[f"validation, after {name}"] = entry["validation"]["log_likelihood"]
    fit_plots.likelihoods(path, curves, levels, _dips(job.keeper.log))


def _dips(log: list[dict[str, Any]]) -> dict[str, list[float]]:
    """The seconds at which annealing lowered the likelihood, by what it did."""
    dips: dict[str, list[float]] = {}
    rounds = [entry for entry in log if "round" in entry]
    for before, entry in pairwise(rounds):
        levelled, shortened = "levelled" in entry, entry.get("tau") != before.get("tau")
        if entry["log_likelihood"] < before["log_likelihood"] and (levelled or shortened):
            change = "annealing: places levelled" if levelled else "annealing: tau shortened"
            dips.setdefault(change, []).append(entry["seconds"])
    return dips
