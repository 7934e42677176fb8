"""Running entries: every point that a file of results lacks is measured, and written as soon as it is.

Several entries may come from one measurement or experiment, which is then made once. A quick look goes to the folder
``quick`` below the one that is asked for, because its figures are no results.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch

from laplex import _progress
from paper.entry import Entry
from paper.experiments.data import features
from paper.experiments.record import Record
from paper.reproduce import _curves, _experiments
from paper.reproduce._measure import FULL, MEASUREMENTS, QUICK, Effort, Measurement
from paper.results import QUICK_LOOKS

CURVES = "heads-curves"
EXPERIMENTS = ("rff", "heads", "heads-recipe", "projection", "density", "density-adam", "photographs")
# What an entry is made from: names of MEASUREMENTS and EXPERIMENTS, and CURVES.
PARTS: dict[str, tuple[str, ...]] = {
    "runtime": ("sizes",),
    "batch8": ("batch8",),
    "batch8-against-dense": ("batch8",),
    "batch-scaling": ("batches",),
    "asymmetric": ("asymmetric",),
    "fft": ("sizes",),
    "cpu": ("sizes",),
    "cpu-fft": ("sizes",),
    "gram": ("gram",),
    "accuracy": ("accuracy",),
    "toeplitz-accuracy": ("grid-accuracy",),
    "rounding": ("rounding",),
    "differentiability": ("gradients",),
    "rff-value": ("rff", "rff-times"),
    "rff-gradient": ("rff",),
    "theorem-1": ("theorem",),
    "full-rank": ("rank",),
    "projection-frozen": ("projection",),
    "projection-trained": ("projection",),
    "heads": ("heads",),
    "heads-recipe": ("heads-recipe",),
    "heads-curves": (CURVES,),
    "density": ("density",),
    "density-adam": ("density-adam",),
    "density-samples": ("density",),
    "density-reconstructions": ("density",),
    "density-photographs": ("photographs",),
}


@dataclass(frozen=True)
class Order:
    """What was asked for."""

    out: Path
    effort: Effort
    data: Path | None = None
    fresh: bool = False

    @property
    def folder(self) -> Path:
        """Where results go."""
        return self.out / QUICK_LOOKS if self.effort.level == QUICK else self.out


def missing(entry: Entry, order: Order) -> str:
    """Why an entry cannot run; nothing where it can."""
    if order.effort.kind not in entry.devices:
        return f"it runs on {' and '.join(entry.devices)}, not on {order.effort.kind}"
    if not entry.data:
        return ""
    if order.data is None:
        return f"it needs {entry.data}: name their folder with --data"
    ready = all(_ready(part, order) for part in PARTS[entry.name])
    return "" if ready else f"{order.data} does not have what it needs: {entry.data}"


def run(entries: Iterable[Entry], order: Order) -> dict[str, int]:
    """Make all parts of these entries: the exit status of each part, 0 where it was made."""
    parts = dict.fromkeys(part for entry in entries for part in PARTS[entry.name])
    order.folder.mkdir(parents=True, exist_ok=True)
    # Events and peaks of memory are those of the current device.
    current = torch.cuda.device(order.effort.device) if order.effort.kind == "cuda" else nullcontext()
    with current:
        return {part: _make(part, order) for part in parts}


def failed(entry: Entry, statuses: dict[str, int]) -> str:
    """Which parts of an entry were not made; nothing where all were."""
    found = {part: statuses[part] for part in PARTS[entry.name] if statuses.get(part)}
    words = " and ".join(f"`{part}` ended with status {status}" for part, status in found.items())
    return f"its part {words}; the message above says why" if found else ""


def has_more(entry: Entry, device: str) -> bool:
    """Whether ``--full`` measures points of an entry that a usual run lacks."""
    found = [MEASUREMENTS[part].points for part in PARTS[entry.name] if part in MEASUREMENTS]
    return any(len(points(Effort(device, FULL))) > len(points(Effort(device))) for points in found)


def _ready(part: str, order: Order) -> bool:
    if part in MEASUREMENTS or part == "rff":
        return True
    if order.data is None:
        return False
    if part == CURVES:
        return bool(_experiments.features(order.data))
    return bool(_experiments.lines(part, order.data, order.effort))


def _make(part: str, order: Order) -> int:
    if part in MEASUREMENTS:
        _measure(part, MEASUREMENTS[part], order)
        return 0
    if part == CURVES:
        _measure(part, _curve_measurement(order), order)
        return 0
    return max(_experiment(line, order) for line in _experiments.lines(part, order.data, order.effort))


def _measure(name: str, measurement: Measurement, order: Order) -> None:
    """All points of a measurement, with progress."""
    effort = order.effort
    path = order.folder / f"{effort.kind}-{name}.json"
    record = Record(path, f"reproduce {name}", device=effort.device, fresh=order.fresh)
    points = measurement.points(effort)
    with _progress.timed_bar(name) as told:
        told(0, len(points), "")
        for done, settings in enumerate(points, 1):
            record.run(settings, lambda settings=settings: measurement.compute(settings, effort))  # type: ignore[misc]
            shown = ", ".join(f"{key} {value}" for key, value in settings.items() if key != "seed")
            told(done, len(points), shown)


def _curve_measurement(order: Order) -> Measurement:
    """Curves on the first file of features."""
    if order.data is None:
        raise ValueError("--data must name a folder with a file of features")
    path = _experiments.features(order.data)[0]
    data = features(path).standardised().to(order.effort.device)
    return Measurement(
        lambda effort: _curves.points(data, effort), lambda settings, effort: _curves.compute(data, settings)
    )


def _experiment(line: list[str], order: Order) -> int:
    """Run a command of `python -m paper experiment` here."""
    from paper.commands import experiment

    parser = argparse.ArgumentParser()
    experiment.add_to(parser.add_subparsers(dest="command"))
    common = ["--out", str(order.folder), "--device", order.effort.device, *(["--fresh"] if order.fresh else [])]
    print(f"python -m paper experiment {' '.join(line)}", file=sys.stderr, flush=True)
    status = experiment.run(parser.parse_args(["experiment", *line, *common]))
    if status == 130:  # it has told of the interruption, and the parts after it must not be begun
        raise KeyboardInterrupt
    return status
