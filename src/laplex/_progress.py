"""Progress of what takes long, on stderr: rich's bar in a terminal where rich is installed, else a few lines."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Progress = Callable[[int, int], None]  # how many are done, and how many there are
NotedProgress = Callable[[int, int, str], None]  # the same, and a note
LINES = 10  # at most this many, besides the first


def check_progress(where: str, progress: object) -> None:
    """Raise TypeError unless ``progress`` can be called, or is None."""
    if progress is not None and not callable(progress):
        raise TypeError(
            f"{where}: `progress` must be a function of (done, total) or None, got {type(progress).__name__}"
        )


@contextmanager
def bar(title: str, progress: Progress | None) -> Iterator[Progress]:
    """The function to call as work is done: ``progress`` if it is given, else one that shows a bar."""
    if progress is not None:
        yield progress
    else:
        with _display(title) as display:
            yield lambda done, total: display(done, total, "")


@contextmanager
def timed_bar(title: str) -> Iterator[NotedProgress]:
    """A function to call after each round, which shows a note and the time left.

    Its first call says where the rounds begin: those of an earlier process took no time in this one.
    """
    begun: list[tuple[float, int]] = []

    def note_and_time(done: int, total: int, note: str) -> str:
        if not begun:
            begun.append((time.monotonic(), done))
        moment, first = begun[0]
        each = (time.monotonic() - moment) / max(done - first, 1)
        left = f"{duration(each * (total - done))} left" if first < done < total else ""
        return ", ".join(filter(None, (note, left)))

    with _display(title) as display:
        yield lambda done, total, note: display(done, total, note_and_time(done, total, note))


def duration(seconds: float) -> str:
    """Seconds in words, for a person who waits."""
    rounded = round(seconds)
    if rounded < 60:
        return f"{rounded} s"
    minutes = rounded // 60
    return f"{minutes} min {rounded % 60} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


@contextmanager
def _display(title: str) -> Iterator[NotedProgress]:
    if not sys.stderr.isatty() or importlib.util.find_spec("rich") is None:
        yield lambda done, total, note: _line(title, done, total, note)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, TextColumn("{task.fields[note]}"), console=Console(stderr=True)) as progress:
        task = progress.add_task(title, total=None, note="")
        yield lambda done, total, note: progress.update(task, completed=done, total=total, note=note)


def _line(title: str, done: int, total: int, note: str) -> None:
    if done == total or done % max(-(-total // LINES), 1) == 0:
        print(f"{title}: {done} of {total}{note and ', '}{note}", file=sys.stderr, flush=True)
