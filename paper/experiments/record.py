"""Results of an experiment as a JSON file that is written after every run.

    {"experiment": "heads",
     "machines": [{"torch": ..., "cpu": ..., "commit": ...}, ...],
     "runs": [{"settings": {..., "seed": 0}, "machine": 0, "date": ..., "seconds": ..., "result": {...}}, ...]}

The settings of a run are its key: a run whose settings are in the file is not repeated. An interruption therefore loses
the run in progress and no other. A run may come from another machine than the one before it, so each names its own.

Before a file is replaced it is read again, with its folder locked, and the runs that another command wrote meanwhile
are kept. The jobs of one command each write a part of their own, runs.part0.json and so on beside runs.json, and
``absorb`` moves the runs of all parts into the file. Parts that an interruption leaves behind are absorbed by the next
command, however many jobs that one has.
"""

from __future__ import annotations

import glob
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
        self.path, self.experiment, self._device, self._fresh = path, experiment, device, fresh
        self._machine = describe(device) | {"commit": commit()}
        self._machines: list[dict[str, Any]] = []
        self._runs: dict[str, dict[str, Any]] = {}
        self._known: dict[str, dict[str, Any]] = {}  # runs of another file, which are not written to this one
        self._replaces = fresh  # the next write drops what the file holds
        if path.exists() and not fresh:
            self._machines, self._runs = self._read()
            self._tell_other_code()

    def __len__(self) -> int:
        return len(self._runs)

    def get(self, settings: Settings) -> Result | None:
        """The result of the run with these settings, if the file has it."""
        key = _key(settings)
        run = self._runs.get(key) or self._known.get(key)
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

    def part(self, index: int) -> Record:
        """A record for one of several processes: it knows the runs of this one, and writes its own into a part."""
        path = self.path.with_name(f"{self.path.stem}.part{index}.json")
        part = Record(path, self.experiment, device=self._device, fresh=True)
        part._known = self._runs
        part._replaces = False  # earlier parts are absorbed by now: what is there is another command's
        return part

    def absorb(self) -> None:
        """Move the runs of all parts into the file; a record that is made fresh drops those of earlier commands."""
        with _alone_in(self.path.parent):  # else a part could get a run between its reading and its removal
            parts = sorted(self.path.parent.glob(f"{glob.escape(self.path.stem)}.part*.json"))
            for path in () if self._fresh else parts:
                part = Record(path, self.experiment, device=self._device)
                self._write(part._machines, part._runs)
            self._fresh = False
            for path in parts:  # only now are their runs safe elsewhere
                path.unlink()

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

    def _tell_other_code(self) -> None:
        """Settings are the key and the code is not: runs of other code are kept, and it is said."""
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
