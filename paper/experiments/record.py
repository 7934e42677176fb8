"""Results of an experiment as a JSON file that is written after every run.

    {"experiment": "heads",
     "machines": [{"torch": ..., "cpu": ..., "commit": ...}, ...],
     "runs": [{"settings": {..., "seed": 0}, "machine": 0, "date": ..., "seconds": ..., "result": {...}}, ...]}

The settings of a run are its key: a run whose settings are in the file is not repeated. An interruption therefore loses
the run in progress and no other. A run may come from another machine than the one before it, so each names its own.

Before a file is replaced it is read again, with its folder locked, and the runs that another process wrote meanwhile
are kept. The jobs of one command all write into the same file.
"""

from __future__ import annotations

import json
import os
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Generic, NamedTuple, TypeVar

from laplex._writing import locked, write_whole
from laplex.testing import commit, describe

Settings = dict[str, Any]
Result = dict[str, Any]
Options = TypeVar("Options")
Data = TypeVar("Data")


class Record:
    """The runs of one experiment, in the file ``path``.

    Args:
        path: the JSON file. It is made at the first run; its folder must exist.
        experiment: the name of the experiment. A file of another one is refused.
        device: where the runs are computed, for the description of the machine.
        fresh: forget what the file holds. It is replaced when the first run is finished.
    """

    def __init__(self, path: Path, experiment: str, *, device: str = "cpu", fresh: bool = False) -> None:
        self.path, self.experiment, self._device = path, experiment, device
        self.describe_machine()
        self._machines: list[dict[str, Any]] = []
        self._runs: dict[str, dict[str, Any]] = {}
        self._replaces = fresh  # the next write drops what the file holds
        if path.exists() and not fresh:
            self._machines, self._runs = self._read()
            self._warn_of_other_code()

    def __len__(self) -> int:
        return len(self._runs)

    def get(self, settings: Settings) -> Result | None:
        """The result of the run with these settings, if the file has it."""
        run = self._runs.get(_key(settings))
        return None if run is None else run["result"]

    def run(self, settings: Settings, compute: Callable[[], Result]) -> Result:
        """The result of the run with these settings: from the file, or computed and written to it."""
        known = self.get(settings)
        if known is not None:
            return known
        start = time.perf_counter()
        result = compute()
        run = {
            "settings": settings,
            "machine": 0,  # its number depends on what the file holds by now
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "seconds": round(time.perf_counter() - start, 3),
            "result": result,
        }
        with _alone_in(self.path.parent):
            self._write([self._machine], {_key(settings): run})
        return result

    def refresh(self) -> None:
        """Take over the runs that other processes have written; a fresh record drops those from before it, once."""
        with _alone_in(self.path.parent):
            self._write([], {})

    def describe_machine(self) -> None:
        """Look again at what computes the next runs: a job has fewer threads than the process that started it."""
        self._machine = describe(self._device) | {"commit": commit()}

    def _write(self, machines: list[dict[str, Any]], runs: dict[str, dict[str, Any]]) -> None:
        """Add runs, and those that another command has written into the file since it was read; replace the file."""
        if self.path.exists() and not self._replaces:
            theirs, stored = self._read()
            self._add(theirs, {key: run for key, run in stored.items() if key not in self._runs})
        self._add(machines, runs)
        content = {"experiment": self.experiment, "machines": self._machines, "runs": list(self._runs.values())}
        write_whole(self.path, json.dumps(content, indent=1) + "\n")
        self._replaces = False

    def _add(self, machines: list[dict[str, Any]], runs: dict[str, dict[str, Any]]) -> None:
        """Add runs, whose machines have other numbers here."""
        for key, run in runs.items():
            machine = machines[run["machine"]]
            if machine not in self._machines:
                self._machines.append(machine)
            self._runs[key] = run | {"machine": self._machines.index(machine)}

    def _read(self) -> tuple[list[dict[str, Any]], dict[str, dict[str, Any]]]:
        """The machines and runs in the file."""
        try:
            content = json.loads(self.path.read_text(encoding="utf-8"))
            experiment, machines = content["experiment"], list(content["machines"])
            runs = {_key(run["settings"]): run for run in content["runs"]}
            complete = all(
                isinstance(run["settings"], dict) and "result" in run and run["machine"] < len(machines)
                for run in runs.values()
            )
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise ValueError(self._unreadable(f"which cannot be read ({type(error).__name__}: {error})")) from None
        if not complete:
            raise ValueError(self._unreadable("in which runs lack their settings, result or machine"))
        if experiment != self.experiment:
            raise ValueError(self._unreadable(f"which is of the experiment {experiment!r}"))
        return machines, runs

    def _warn_of_other_code(self) -> None:
        """Settings are the key and the code is not: runs of other code are kept, with a warning."""
        ours = [self._machine[name] for name in ("laplex", "commit")]
        theirs = [[machine.get(name) for name in ("laplex", "commit")] for machine in self._machines]
        count = sum(theirs[run["machine"]] != ours for run in self._runs.values())
        if count:
            warnings.warn(
                f"paper.experiments.Record: {count} of {len(self)} runs in {self.path} are of another version or "
                "commit of laplex and are not repeated; start over with --fresh if the code that matters has changed",
                stacklevel=4,
            )

    def _unreadable(self, why: str) -> str:
        return (
            f"paper.experiments.Record: `path` must be a results file of the experiment {self.experiment!r}, got "
            f"{self.path}, {why}; nothing was changed: move the file away, or start over with --fresh"
        )


@dataclass(frozen=True)
class Experiment(Generic[Options, Data]):
    """Everything that decides which runs there are, and where they are kept."""

    options: Options  # checked, with a value for each that was left out
    data: Data  # on the device
    record: Record


class Target(NamedTuple):
    """The folder for results, the device that computes them, and whether earlier results are forgotten."""

    out: Path
    device: str = "cpu"
    fresh: bool = False

    def record(self, experiment: str, stem: str) -> Record:
        """The record of an experiment in the file ``stem``.json."""
        return Record(self.out / f"{stem}.json", experiment, device=self.device, fresh=self.fresh)


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Nobody else writes a record in the folder meanwhile; a process that ends, however it ends, lets go of it."""
    held = locked(folder, wait=True)
    try:
        yield
    finally:
        if held is not None:
            os.close(held)


def _key(settings: Settings) -> str:
    return json.dumps(settings, sort_keys=True)
