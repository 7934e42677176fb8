"""`python -m paper report`: all results and the paper's figures, on one HTML page that needs nothing else."""

from __future__ import annotations

import argparse
import sys
import webbrowser
from collections import Counter
from pathlib import Path
from typing import Any

from laplex._writing import write_whole
from paper.entry import VERDICTS, Outcome
from paper.report import to_html
from paper.results import PLACES, QUICK_LOOKS
from paper.sections import outcomes

ABOUT = "Write one HTML page of all results and the paper's figures."
COMMITTED, FRESH = Path("benchmarks/results"), Path("reproduced")  # what is taken if no folder is named
DEFAULT_OUT = "laplex-report.html"
WRITTEN = "that `python -m paper run` has written into"


def add_to(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser("report", help=ABOUT, description=ABOUT)
    folders = f"folders of results; {COMMITTED.as_posix()} and {FRESH.as_posix()} if not given, where they exist"
    parser.add_argument("--results", nargs="+", type=Path, metavar="DIR", help=folders)
    default = f"{DEFAULT_OUT} if not given"
    parser.add_argument("--out", type=Path, default=Path(DEFAULT_OUT), metavar="FILE", help=default)
    parser.add_argument("--open", action="store_true", help="show the page in your browser")


def run(options: argparse.Namespace) -> int:
    """The command: 2 where there are no results, or the page cannot be written."""
    try:
        results = outcomes(_folders(options.results))
        text = to_html(results)
        _write(options.out, text)
    except ValueError as error:
        print(f"python -m paper report: {error}", file=sys.stderr)
        return 2
    _report_damage(results)
    counts = Counter(outcome.verdict for outcome in results)
    verdicts = ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS)
    print(f"{options.out.absolute()}: {len(text.encode()) / 1e6:.1f} MB\n{verdicts}")
    if options.open:
        webbrowser.open(options.out.absolute().as_uri())
    return 0


def _report_damage(results: list[Outcome]) -> None:
    """A line for each damage, with the entries that it hits."""
    for damage in dict.fromkeys(outcome.damage for outcome in results if outcome.damage):
        damaged = [outcome for outcome in results if outcome.damage == damage]
        names = ", ".join(outcome.entry.name for outcome in damaged)
        files = dict.fromkeys(file for outcome in damaged for file in outcome.files)
        place = "" if ".json" in damage else f", in {', '.join(files)}"
        message = f"not run, because results cannot be read: {names}: {damage}{place}"
        print(f"python -m paper report: {message}", file=sys.stderr)


def _folders(named: list[Path] | None) -> list[Path]:
    """The folders that hold results; ValueError where one that was named holds none, or none is there."""
    for folder in named or ():
        if not folder.is_dir():
            raise ValueError(f"--results: {folder} is not a folder; name one {WRITTEN}")
        is_quick = folder.resolve().name == QUICK_LOOKS
        quick = folder if is_quick else folder / QUICK_LOOKS
        if is_quick or (_has_results(quick) and not _has_results(folder)):
            raise ValueError(
                f"--results: {quick} is a quick look, whose figures are too rough to be results; run "
                "`python -m paper run` without --quick"
            )
        if not _has_results(folder):
            raise ValueError(f"--results: {folder} holds no JSON of results; name a folder {WRITTEN}")
    folders = named or [folder for folder in (COMMITTED, FRESH) if _has_results(folder)]
    if not folders:
        raise ValueError(
            f"no results found: neither {COMMITTED.as_posix()} nor {FRESH.as_posix()} holds any here; run "
            "`python -m paper run` first, go to a checkout, or name a folder with --results"
        )
    return folders


def _has_results(folder: Path) -> bool:
    """Whether a file is where results are looked for; quick looks, which are not results, are elsewhere."""
    return any(any((folder / place).glob("*.json")) for place in PLACES)


def _write(out: Path, text: str) -> None:
    try:
        write_whole(out, text)
    except OSError as error:
        raise ValueError(f"--out: cannot write {out.absolute()} ({error.strerror or error})") from None
