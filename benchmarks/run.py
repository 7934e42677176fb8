"""Run a suite: every row at every size, saved as it goes."""

from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Protocol

import torch

from benchmarks.measures import measure
from benchmarks.problems import Row, Size, Suite
from benchmarks.report import Report, default_folder, open_report
from benchmarks.result import Result, key
from benchmarks.suites import CPU, QUICK
from benchmarks.suites_gpu import GPU

SUITES = {suite.name: suite for suite in (CPU, GPU)}


class Progress(Protocol):
    """What is told while a suite runs; the plain and the rich front end each have one."""

    def start(self, report: Report, total: int) -> None:
        """Before the first row; `total` rows and sizes are to be measured."""

    def begin(self, what: str) -> None:
        """Before a row at one size."""

    def done(self, result: Result) -> None:
        """After it."""


def choose_suite(name: str, quick: bool) -> Suite:
    """The suite of that name, or the quick look."""
    if quick:
        return QUICK
    if name not in SUITES:
        raise ValueError(f"benchmarks: no suite {name!r}; there are: {', '.join(sorted(SUITES))}")
    suite = SUITES[name]
    if suite.device == "cuda" and not torch.cuda.is_available():
        raise ValueError(f"benchmarks: suite {name!r} needs a CUDA device, and torch sees none")
    return suite


def run(
    suite: Suite,
    progress: Progress,
    *,
    out: Path | None = None,
    resume: bool = False,
    only: str | None = None,
    threads: int | None = None,
) -> Report:
    """Measure what is asked for and not yet finished. Ctrl-C leaves in the file what was finished."""
    jobs = list(_jobs(suite, only))
    if threads is not None:
        if threads < 1:
            raise ValueError(f"benchmarks: --threads must be at least 1, got {threads}")
        torch.set_num_threads(threads)
    # A part of a suite must not take the place of the whole among the committed results.
    folder = out if out is not None else default_folder(suite.committed and only is None)
    report = open_report(suite.name, suite.device, folder, resume)
    finished = report.finished()
    jobs = [(row, size) for row, size in jobs if key(row.name, size) not in finished]
    progress.start(report, len(jobs))
    for row, size in jobs:
        progress.begin(key(row.name, size))
        result = measure(suite, row, size)
        report.add(result)
        progress.done(result)
    return report


def _jobs(suite: Suite, only: str | None) -> Iterator[tuple[Row, Size | None]]:
    """Every row at every size, where the row's name matches."""
    rows = [row for row in suite.rows if only is None or fnmatch(row.name, f"*{only}*")]
    if not rows:
        names = ", ".join(row.name for row in suite.rows)
        raise ValueError(f"benchmarks: --only {only!r} matches no row of suite {suite.name!r}; its rows: {names}")
    for row in rows:
        for size in row.sizes or (None,):
            yield row, size
