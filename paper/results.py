"""Results in folders: committed ones, and those of `python -m paper run`, of which the last folder wins.

A measurement NAME on a device is the file DEVICE-NAME.json. Experiments have the names that `python -m paper experiment` gives
them. Files are looked for in a folder itself, and in its folders ``reproduce`` and ``experiments``, as the committed
results have them. Quick looks are no results: they are in a folder ``quick``, or their names end in ``-quick``.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PLACES = ("", "experiments", "reproduce")  # of files of the same name the last one wins
QUICK_LOOKS = "quick"  # the folder below the asked one into which `python -m paper run --quick` writes
ROOT = Path(__file__).parents[1]  # of a checkout; elsewhere it holds no results
DEVICES = ("cuda", "cpu")


@dataclass(frozen=True)
class Run:
    """One run of a record."""

    settings: dict[str, Any]
    result: dict[str, Any]
    date: str
    machine: dict[str, Any]


@dataclass(frozen=True)
class Results:
    """The runs of one file."""

    path: Path
    runs: list[Run]

    @property
    def machines(self) -> list[dict[str, Any]]:
        """Where the runs were, each with the date of its last run."""
        found: list[dict[str, Any]] = []
        for run in self.runs:
            if run.machine not in found:
                found.append(run.machine)
        return [one | {"date": max(run.date for run in self.runs if run.machine == one)} for one in found]

    @property
    def shown(self) -> str:
        """The path, within a checkout relative to it."""
        return shown(self.path)

    @property
    def device(self) -> str:
        """Where the last run was."""
        return str(self.machines[-1].get("device", "cpu")).partition(":")[0] if self.machines else "cpu"

    def at(self, **settings: Any) -> Run | None:
        """The first run with these settings, among others."""
        return next((run for run in self.runs if settings.items() <= run.settings.items()), None)

    def where(self, **settings: Any) -> list[Run]:
        """All runs with these settings, among others."""
        return [run for run in self.runs if settings.items() <= run.settings.items()]

    def of_last(self, *names: str) -> Results:
        """The runs that have these settings as the last run has them: a mean or a curve of others is of two things."""
        last = {name: self.runs[-1].settings.get(name) for name in names}
        return Results(
            self.path, [run for run in self.runs if last == {name: run.settings.get(name) for name in names}]
        )


def shown(path: Path) -> str:
    """A path, within a checkout relative to it."""
    try:
        return str(path.resolve().relative_to(ROOT))
    except ValueError:
        return str(path)


def committed() -> Path | None:
    """The folder of committed results, where laplex is imported from a checkout."""
    folder = ROOT / "benchmarks" / "results"
    return folder if folder.is_dir() else None


class Shelf:
    """The results in some folders.

    Args:
        folders: later ones win. A folder that does not exist has no results.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = [folder / place for folder in folders for place in PLACES]
        self.opened: list[Path] = []

    def measured(self, name: str, *, every_seed: bool = False) -> dict[str, Results]:
        """A measurement by device, the GPU first: the runs of the seed that the last run of a file has, and no others.

        With ``every_seed`` all runs, for what is averaged over seeds.
        """
        found = {device: self.experiment(f"{device}-{name}") for device in DEVICES}
        present = {device: one for device, one in found.items() if one is not None}
        return present if every_seed else {device: one.of_last("seed") for device, one in present.items()}

    def experiment(self, stem: str) -> Results | None:
        """The results in the file of this name."""
        found = self.experiments(stem)
        return found[0] if found else None

    def experiments(self, pattern: str) -> list[Results]:
        """The results in files whose names, without their ending, have this pattern; each name once."""
        paths = {path.name: path for folder in self._folders for path in sorted(folder.glob(f"{pattern}.json"))}
        finished = [path for path in paths.values() if not path.stem.endswith("-quick") and ".part" not in path.stem]
        self.opened += finished
        return [one for one in map(read, finished) if one.runs]

    def picture(self, name: str) -> Path | None:
        """A picture of densities, the newest one."""
        paths = [folder / "density" / name for folder in self._folders]
        return next((path for path in reversed(paths) if path.is_file()), None)


def read(path: Path) -> Results:
    """The runs in a file; ValueError, which names it, where it is no record."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        machines = [dict(one) for one in content["machines"]]
        runs = [
            Run(dict(one["settings"]), dict(one["result"]), str(one.get("date", "")), machines[one["machine"]])
            for one in content["runs"]
        ]
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} must be a file of results with machines and runs, but cannot be read "
            f"({type(error).__name__}: {error}); move it away, and measure again"
        ) from None
    return Results(path, runs)
