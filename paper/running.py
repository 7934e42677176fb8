"""What entries run: measurements, point by point, and experiments of ``paper.experiments``.

Every point that a file of results lacks is measured, and written as soon as it is, so that an interrupted command can
be repeated. Several entries may share a measurement or an experiment, which is then made once. A quick look goes to
the folder ``quick`` below the one of --out, because its figures are not results.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from laplex import _progress
from paper import experiments
from paper.experiments.record import Record
from paper.results import QUICK_LOOKS

QUICK, USUAL, FULL = "quick", "usual", "full"

Settings = dict[str, Any]
Result = dict[str, Any]
Options = dict[str, Any]  # of an experiment, by name


@dataclass(frozen=True)
class Request:
    """What to run: where, how much, from which seed, with which data."""

    device: str  # "cpu", "cuda" or "cuda:INDEX"
    level: str = USUAL
    seed: int = 0
    out: Path = Path("reproduced")
    data: Path | None = None
    fresh: bool = False

    @property
    def kind(self) -> str:
        """ "cpu" or "cuda"."""
        return torch.device(self.device).type

    @property
    def quick(self) -> bool:
        """Whether this is a quick look."""
        return self.level == QUICK

    @property
    def folder(self) -> Path:
        """Where results go."""
        return self.out / QUICK_LOOKS if self.quick else self.out


def always(request: Request) -> bool:
    """What needs no data can run."""
    return True


@dataclass(frozen=True)
class Measurement:
    """Points, and what is computed at each. The settings of a point are its key in the file DEVICE-NAME.json."""

    name: str
    points: Callable[[Request], list[Settings]]
    compute: Callable[[Settings, Request], Result]
    ready: Callable[[Request], bool] = always  # whether the data are there

    def run(self, request: Request) -> int:
        """Measure all points that the file lacks, with progress; 0, the exit status."""
        path = request.folder / f"{request.kind}-{self.name}.json"
        record = Record(path, f"reproduce {self.name}", device=request.device, fresh=request.fresh)
        points = self.points(request)
        with _progress.timed_bar(self.name) as progress:
            progress(0, len(points), "")
            for done, settings in enumerate(points, 1):
                record.run(settings, lambda settings=settings: self.compute(settings, request))  # type: ignore[misc]
                shown = ", ".join(f"{key} {value}" for key, value in settings.items() if key != "seed")
                progress(done, len(points), shown)
        return 0


@dataclass(frozen=True)
class Experiments:
    """Runs of one experiment, each with its options; it names its files itself."""

    name: str
    experiment: str  # a module of paper.experiments
    options: Callable[[Request], list[Options]]  # none where the data are missing

    def ready(self, request: Request) -> bool:
        """Whether the data are there."""
        return bool(self.options(request))

    def run(self, request: Request) -> int:
        """Run all; the worst exit status."""
        return max(self._run(options, request) for options in self.options(request))

    def _run(self, options: Options, request: Request) -> int:
        words = ", ".join(f"{name} {value}" for name, value in options.items())
        print(f"python -m paper run: experiment {self.experiment}: {words}", file=sys.stderr, flush=True)
        status = experiments.run(self.experiment, options, request.folder, request.device, request.fresh)
        if status == 130:  # the interruption has been reported, and nothing else may begin
            raise KeyboardInterrupt
        return status
