"""The JSON behind every published figure: what was measured, on what machine, with what code."""

import json
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.result import FINISHED, Result, from_json, to_json
from laplex import testing

COMMITTED = Path("benchmarks/results")
SCRATCH = Path("laplex-bench")


@dataclass
class Report:
    """The results of a suite so far; saved after every one, so that an interrupted run loses nothing."""

    suite: str
    path: Path
    conditions: dict[str, Any]
    date: str = field(default_factory=lambda: datetime.now(UTC).isoformat(timespec="seconds"))
    results: list[Result] = field(default_factory=list)
    load: float | None = field(default_factory=testing.load)

    def add(self, result: Result) -> None:
        """Keep a result, in place of an earlier one of the same row and size, and save."""
        self.results = [old for old in self.results if old.key != result.key] + [result]
        self.save()

    def save(self) -> None:
        """Write the file completely or not at all."""
        results = [to_json(result) for result in self.results]
        head = {"suite": self.suite, "date": self.date, "load_at_start": self.load}
        content = {**head, **self.conditions, "results": results}
        partial = self.path.with_suffix(".partial")
        with _writing(self.path):
            partial.write_text(json.dumps(content, indent=1) + "\n")
            partial.replace(self.path)

    def finished(self) -> set[str]:
        """The keys of what need not be measured again."""
        return {result.key for result in self.results if result.status in FINISHED}


def open_report(suite: str, device: str, folder: Path, resume: bool) -> Report:
    """A new report, or with `resume` the one that is there, if it was made under the same conditions."""
    now = conditions(device)
    with _writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=folder).close()  # before anything is measured
    path = folder / f"{suite}-{slug(now['machine'])}.json"
    if not resume or not path.exists():
        return Report(suite, path, now)
    saved = _unfinished(path, suite, now)
    for name, value in now.items():
        if saved.conditions[name] != value:
            raise ValueError(
                f"benchmarks: --resume would mix two conditions in {path}: {name} was {saved.conditions[name]}, is "
                f"{value}; run without --resume to start over"
            )
    return saved


def _unfinished(path: Path, suite: str, conditions: dict[str, Any]) -> Report:
    """The saved report of a suite, under the conditions of then."""
    try:
        saved = json.loads(path.read_text())
        if saved["suite"] != suite:
            raise ValueError(f"of suite {saved['suite']!r}")
        then = {name: saved[name] for name in conditions}
        return Report(suite, path, then, saved["date"], [from_json(result) for result in saved["results"]])
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(
            f"benchmarks: --resume cannot resume from {path}: it holds no results of suite {suite!r} "
            f"({type(error).__name__}: {error}); move it away to keep it, or run without --resume to replace it"
        ) from None


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    """A file or folder that cannot be written is a mistake in the request, not in the program."""
    try:
        yield
    except OSError as error:
        why = error.strerror or error
        raise ValueError(
            f"benchmarks: cannot write {path.absolute()} ({why}); choose another folder with --out"
        ) from None


def load(path: Path) -> tuple[str, list[Result]]:
    """A saved report: a line on where it comes from, and its results."""
    saved = json.loads(path.read_text())
    host, used = saved["machine"], saved["versions"]
    where = host.get("gpu") or f"{host['cpu']}, {host['torch_threads']} threads"
    origin = f"{where}, torch {used['torch']}, {saved['date'][:10]}; from `{path.as_posix()}`."
    return origin, [from_json(result) for result in saved["results"]]


def default_folder(committed: bool) -> Path:
    """benchmarks/results/ for a whole suite in a checkout; a scratch folder that git ignores for all else."""
    if committed and COMMITTED.is_dir():
        return COMMITTED
    with _writing(SCRATCH):
        SCRATCH.mkdir(exist_ok=True)
        (SCRATCH / ".gitignore").write_text("*\n")
    return SCRATCH


def conditions(device: str) -> dict[str, Any]:
    """All that a figure depends on: the machine, the versions and the commit."""
    return {"machine": testing.machine(device), "versions": testing.versions(), "git": _git()}


def _git() -> dict[str, Any]:
    """The commit the code is from; None outside a checkout. Result files do not make a checkout dirty."""
    commit = testing.commit(":/", f":(top,exclude){COMMITTED}")
    if commit is None:
        return {"commit": None, "dirty": None}
    return {"commit": commit.removesuffix("+"), "dirty": commit.endswith("+")}


def slug(described: dict[str, Any]) -> str:
    """A file name's worth of the machine."""
    name = described.get("gpu") or f"{described['cpu']} {described['torch_threads']} threads"
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")
