"""The one reader of results: of committed ones and of those of `python -m paper run`, of which the last folder wins.

A measurement NAME on a device is the file DEVICE-NAME.json; `python -m paper experiment` names its files itself. Files
are looked for in a folder itself, and in its folders ``reproduce`` and ``experiments``, as the committed results have
them. Quick looks are not results: they are in a folder ``quick``, or their names end in ``-quick``.
"""

from __future__ import annotations

import json
import statistics
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PLACES = ("", "experiments", "reproduce")  # of files of the same name the last one wins
QUICK_LOOKS = "quick"  # the folder below --out into which `python -m paper run --quick` writes
ROOT = Path(__file__).parents[1]
COMMITTED = ROOT / "benchmarks" / "results"
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
        dates: dict[str, str] = {}
        machines = {}
        for run in self.runs:
            key = json.dumps(run.machine, sort_keys=True)
            machines[key], dates[key] = run.machine, max(run.date, dates.get(key, ""))
        return [machine | {"date": dates[key]} for key, machine in machines.items()]

    @property
    def device(self) -> str:
        """Where the last run was."""
        return str(self.machines[-1].get("device", "cpu")).partition(":")[0] if self.machines else "cpu"

    def first(self, **settings: Any) -> Run | None:
        """The first run with these settings, among others."""
        return next(iter(self.matching(**settings)), None)

    def matching(self, **settings: Any) -> list[Run]:
        """All runs with these settings, among others."""
        return [run for run in self.runs if settings.items() <= run.settings.items()]

    def like_last(self, *names: str) -> Results:
        """The runs that have these settings as the last run has them: a mean or a curve of others is of two things."""
        last = {name: self.runs[-1].settings.get(name) for name in names}
        return Results(
            self.path, [run for run in self.runs if last == {name: run.settings.get(name) for name in names}]
        )


def shown_path(path: Path) -> str:
    """A path, within the checkout relative to it."""
    try:
        return str(path.resolve().relative_to(ROOT))
    except ValueError:
        return str(path)


class Archive:
    """The results in some folders.

    Args:
        folders: later ones win. A folder that does not exist has no results.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        self._folders = [folder / place for folder in folders for place in PLACES]
        self.opened: list[Path] = []

    def measurement(self, name: str, *, every_seed: bool = False) -> dict[str, Results]:
        """A measurement by device, the GPU first: the runs of the seed that the last run of a file has, and no others.

        With ``every_seed`` all runs, for what is averaged over seeds.
        """
        by_device = {device: self.experiment(f"{device}-{name}") for device in DEVICES}
        present = {device: results for device, results in by_device.items() if results is not None}
        return present if every_seed else {device: results.like_last("seed") for device, results in present.items()}

    def experiment(self, stem: str) -> Results | None:
        """The results in the file of this name."""
        return next(iter(self.experiments(stem)), None)

    def experiments(self, pattern: str) -> list[Results]:
        """The results in files whose names, without their ending, have this pattern; each name once."""
        paths = {path.name: path for folder in self._folders for path in sorted(folder.glob(f"{pattern}.json"))}
        finished = [path for path in paths.values() if not path.stem.endswith("-quick")]
        self.opened += finished
        return [results for results in map(read, finished) if results.runs]

    def picture(self, name: str) -> Path | None:
        """A picture of densities, the newest one."""
        paths = [folder / "density" / name for folder in self._folders]
        return next((path for path in reversed(paths) if path.is_file()), None)


def read(path: Path) -> Results:
    """The runs in a file; ValueError, which names it, where it is not a record."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        machines = [dict(machine) for machine in content["machines"]]
        runs = [
            Run(dict(run["settings"]), dict(run["result"]), str(run.get("date", "")), machines[run["machine"]])
            for run in content["runs"]
        ]
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{path} must be a file of results with machines and runs, but cannot be read "
            f"({type(error).__name__}: {error}); move it away, and measure again"
        ) from None
    return Results(path, runs)


# --- Which of several runs counts -----------------------------------------------------------------------------------


def tuned_head(runs: Iterable[Run]) -> list[Run]:
    """The runs of one head, all seeds, with the start and the learning rate that validation rows choose.

    For each start the rate is the one that is best at the first seed, the lowest of equals: `python -m paper experiment
    heads` runs the other seeds with it alone. Of the starts the one with the best mean over seeds is chosen. Test rows
    choose nothing.
    """
    rates: dict[str, dict[float, list[Run]]] = defaultdict(lambda: defaultdict(list))
    for run in runs:
        rates[run.settings["start"]][run.settings["lr"]].append(run)
    best = [max(sorted(tried.items()), key=lambda item: _first_seed(item[1]))[1] for tried in rates.values()]
    return max(best, key=lambda seeds: statistics.fmean(run.result["val"] for run in seeds))


def _first_seed(runs: list[Run]) -> float:
    return float(min(runs, key=lambda run: run.settings["seed"]).result["val"])


def latest_recipe(runs: Iterable[Run]) -> list[Run]:
    """The runs, all seeds, under the recipe that was run last, which is the one in use."""
    recipes: dict[tuple[Any, Any], list[Run]] = defaultdict(list)
    for run in runs:
        recipes[run.settings["lr"], run.settings.get("epochs")].append(run)
    return max(recipes.values(), key=lambda same: max(run.date for run in same))
