"""Progress of what takes long, on stderr: rich's bar in a terminal where rich is installed, else a few lines."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Told = Callable[[int, int], None]  # how many are done, and of how many
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


def _line(what: str, done: int, of: int) -> None:
    if done == of or done % max(-(-of // LINES), 1) == 0:
        print(f"{what}: {done} of {of}", file=sys.stderr, flush=True)


@contextmanager
def _bar(what: str) -> Iterator[Told]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task(what, total=None)
        yield lambda done, of: progress.update(task, completed=done, total=of)
