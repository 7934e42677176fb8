"""`python -m paper report`: all results beside the paper's figures, on one HTML page that needs nothing else."""

from __future__ import annotations

import argparse
import sys
import webbrowser
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from paper.entry import Outcome

ABOUT = "Write one HTML page of all results beside the paper's figures."
COMMITTED, FRESH = Path("benchmarks/results"), Path("reproduced")  # what is taken if no folder is named
DEFAULT_OUT = "laplex-report.html"


def add_to(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser("report", help=ABOUT, description=ABOUT)
    folders = f"folders of results; {COMMITTED.as_posix()} and {FRESH.as_posix()} if not given, where they exist"
    parser.add_argument("--results", nargs="+", type=Path, metavar="DIR", help=folders)
    parser.add_argument(
        "--out", type=Path, default=Path(DEFAULT_OUT), metavar="FILE", help=f"{DEFAULT_OUT} if not given"
    )
    parser.add_argument("--open", action="store_true", help="show the page in your browser")


def run(given: argparse.Namespace) -> int:
    """The command: 2 where there are no results, or the page cannot be written."""
    from paper.reproduce import VERDICTS

    try:
        size, found = _write(_folders(given.results), given.out)
    except ValueError as error:
        print(f"python -m paper report: {error}", file=sys.stderr)
        return 2
    for damage in dict.fromkeys(outcome.damage for outcome in found if outcome.damage):
        lost = [outcome for outcome in found if outcome.damage == damage]
        names = ", ".join(one.entry.name for one in lost)
        files = dict.fromkeys(file for one in lost for file in one.files)
        where = "" if ".json" in damage else f", in {', '.join(files)}"
        print(
            f"python -m paper report: not run, because results cannot be read: {names}: {damage}{where}",
            file=sys.stderr,
        )
    counts = Counter(outcome.verdict for outcome in found)
    verdicts = ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS)
    print(f"{given.out.absolute()}: {size / 1e6:.1f} MB\n{verdicts}")
    if given.open:
        webbrowser.open(given.out.absolute().as_uri())
    return 0


def _folders(named: list[Path] | None) -> list[Path]:
    """The folders that hold results; ValueError where one that was named holds none, or none is there."""
    from paper.results import QUICK_LOOKS

    for folder in named or ():
        if not folder.is_dir():
            raise ValueError(f"--results: {folder} is no folder; name one that `python -m paper run` has written into")
        is_quick = folder.resolve().name == QUICK_LOOKS
        quick = folder if is_quick else folder / QUICK_LOOKS
        if is_quick or (_has_results(quick) and not _has_results(folder)):
            raise ValueError(
                f"--results: {quick} is a quick look, whose figures are too rough to be results; run `python -m "
                "paper run` without --quick"
            )
        if not _has_results(folder):
            raise ValueError(
                f"--results: {folder} holds no JSON of results; name a folder that `python -m paper run` has written into"
            )
    found = named or [folder for folder in (COMMITTED, FRESH) if _has_results(folder)]
    if not found:
        raise ValueError(
            f"no results found: neither {COMMITTED.as_posix()} nor {FRESH.as_posix()} holds any here; run `python -m "
            "paper run` first, go to a checkout, or name a folder with --results"
        )
    return found


def _has_results(folder: Path) -> bool:
    """Whether a file is where results are looked for; quick looks, which are no results, are elsewhere."""
    from paper.results import PLACES

    return any(any((folder / place).glob("*.json")) for place in PLACES)


def _write(folders: list[Path], out: Path) -> tuple[int, list[Outcome]]:
    """Write the page: how many bytes it has, and what is on it."""
    from laplex._writing import write_whole
    from paper.report import to_html
    from paper.reproduce import outcomes

    found = outcomes(folders)
    text = to_html(found)
    try:
        write_whole(out, text)
    except OSError as error:
        raise ValueError(f"--out: cannot write {out.absolute()} ({error.strerror or error})") from None
    return len(text.encode()), found
