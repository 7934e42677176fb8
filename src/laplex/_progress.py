"""Progress of what takes long, on stderr: rich's bar in a terminal where rich is installed, else a few lines."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Told = Callable[[int, int], None]  # how many are done, and of how many
Measured = Callable[[int, int, str], None]  # the same, and what was found
LINES = 10  # at most so many, beside the first


@contextmanager
def shown(what: str, told: Told | None) -> Iterator[Told]:
    """What to tell about progress: ``told`` if it is given, else a function that shows it."""
    if told is not None:
        yield told
    elif sys.stderr.isatty() and importlib.util.find_spec("rich") is not None:
        with _bar(what) as bar:
            yield bar
    else:
        yield lambda done, of: _line(what, done, of)


@contextmanager
def measured(what: str) -> Iterator[Measured]:
    """What to tell about rounds that find something, as a function that shows it and the time left.

    Its first call says where the rounds begin: those of an earlier process took no time in this one.
    """
    begun: list[tuple[float, int]] = []

    def with_time(done: int, of: int, found: str) -> str:
        if not begun:
            begun.append((time.monotonic(), done))
        at, first = begun[0]
        left = f"{duration((time.monotonic() - at) / (done - first) * (of - done))} left" if first < done < of else ""
        return ", ".join(part for part in (found, left) if part)

    if sys.stderr.isatty() and importlib.util.find_spec("rich") is not None:
        with _bar(what) as bar:
            yield lambda done, of, found: bar(done, of, with_time(done, of, found))
    else:
        yield lambda done, of, found: _line(what, done, of, with_time(done, of, found))


def duration(seconds: float) -> str:
    """Seconds in words, for a person who waits."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    return f"{whole // 60} min {whole % 60} s" if whole < 3600 else f"{whole // 3600} h {whole % 3600 // 60} min"


def _line(what: str, done: int, of: int, note: str = "") -> None:
    if done == of or done % max(-(-of // LINES), 1) == 0:
        print(f"{what}: {done} of {of}{note and ', '}{note}", file=sys.stderr, flush=True)


@contextmanager
def _bar(what: str) -> Iterator[Callable[..., None]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, TextColumn("{task.fields[note]}"), console=Console(stderr=True)) as progress:
        task = progress.add_task(what, total=None, note="")
        yield lambda done, of, note="": progress.update(task, completed=done, total=of, note=note)
