"""`python -m paper list` and `run`: measures the paper's tables and figures, by name, and says what came of them."""

from __future__ import annotations

import argparse
import sys
import textwrap
from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch

from laplex.cli.machine import refuse_device, refuse_seed
from laplex.cli.parsing import add_device, did_you_mean
from laplex.cli.tables import Table, show
from laplex.testing import busy
from paper.entry import Entry
from paper.running import FULL, QUICK, USUAL, Request
from paper.sections import ENTRIES, NAMES, outcomes

LIST = "The tables and figures of the paper: source, device and time, data."
RUN = "Measure tables and figures of the paper; `python -m paper list` names them."
ABOUT = """Measure tables and figures of the paper, all of them or those that are named, and say what came of them.
Every figure is written to a JSON file as soon as it is measured: an interrupted command resumes when it is repeated.
An entry whose data or device is missing is not run, and is shown as not run."""
OUT = "reproduced"
QUICK_LOOK = "it works; the figures of a quick look are too rough for a verdict"
ON_CPU = "the paper's figures are of a GPU, an H100; those of a CPU are shown in the report, and not judged"


def add_to(commands: Any) -> None:
    """Add the commands."""
    commands.add_parser("list", help=LIST, description=LIST)
    parser = commands.add_parser("run", help=RUN, description=ABOUT)
    parser.add_argument("names", nargs="*", metavar="NAME", help="entries; all that can run here if none is given")
    add_device(parser)
    parser.add_argument("--out", default=OUT, metavar="DIR", help=f"for results, made if missing; {OUT} if not given")
    parser.add_argument("--data", metavar="DIR", help="a folder with the data sets; not needed by most entries")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of what is drawn; 0 if not given")
    parser.add_argument("--fresh", action="store_true", help="forget earlier results of the same name in DIR")
    level = parser.add_mutually_exclusive_group()
    level.add_argument("--quick", action="store_true", help="tiny sizes, seconds per entry: to see that it works")
    level.add_argument("--full", action="store_true", help="all sizes of the paper, on CUDA up to 2^29")


def show_entries(options: argparse.Namespace) -> int:
    """The command `python -m paper list`."""
    rows: list[tuple[str, ...]] = []
    for entry in ENTRIES:
        minutes = ", ".join(f"{device} {time:g} min" for device, time in entry.minutes.items())
        rows.append((entry.name, entry.source, minutes, entry.title))
    show(Table("Entries", ("name", "source in the paper", "device and time", "what"), rows))
    print("\nData that entries need, in the folder of --data; the others need none:")
    for entry in ENTRIES:
        if entry.data:
            print(f"  {entry.name}: {entry.data}")
    return 0


def run(options: argparse.Namespace) -> int:
    """The command: 2 where options are refused, 1 where a named entry was not run, 130 after Ctrl-C."""
    try:
        entries, request = _prepare(options)
        return _run(entries, request, named=bool(options.names))
    except ValueError as error:
        print(f"python -m paper run: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        message = "interrupted; what was measured is kept, and the same command resumes from there"
        print(f"\npython -m paper run: {message}", file=sys.stderr)
        return 130


def _prepare(options: argparse.Namespace) -> tuple[list[Entry], Request]:
    """The entries and how to run them; ValueError where something is wrong."""
    unknown = [name for name in options.names if name not in NAMES]
    if unknown:
        raise ValueError(f"NAME must be among {', '.join(NAMES)}, got {unknown[0]!r}{did_you_mean(unknown[0], NAMES)}")
    refuse_device(options.device)
    refuse_seed(options.seed)
    data = None if options.data is None else Path(options.data)
    if data is not None and not data.is_dir():
        raise ValueError(f"--data must be a folder with the data sets, got {data}")
    level = QUICK if options.quick else FULL if options.full else USUAL
    request = Request(options.device, level, options.seed, Path(options.out), data, options.fresh)
    _make_folder(request.folder)
    chosen = options.names or NAMES
    return [entry for name in dict.fromkeys(chosen) for entry in ENTRIES if entry.name == name], request


def _make_folder(folder: Path) -> None:
    """Make it; ValueError where results could not be written, before anything is measured."""
    trial = folder / ".laplex"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        trial.touch()
        trial.unlink()
    except OSError as error:
        raise ValueError(f"--out: cannot write into {folder} ({error.strerror or error})") from None


def _run(entries: list[Entry], request: Request, *, named: bool) -> int:
    """Measure, and print what came of it: of what this command can run, and of nothing else."""
    missing = {entry.name: missing_for(entry, request) for entry in entries}
    able = [entry for entry in entries if not missing[entry.name]]
    unjudged = [entry.name for entry in able if entry.gpu_figures and request.kind == "cpu"]
    if unjudged:  # before minutes are spent
        print(f"python -m paper run: {', '.join(unjudged)}: {ON_CPU}", file=sys.stderr, flush=True)
    noise = busy()
    statuses = _measure(able, request)
    ends = {name: ("not run", why) for name, why in missing.items() if why}
    ends |= {entry.name: ("failed", why) for entry in able if (why := _failure(entry, statuses))}
    complete = [entry.name for entry in able if entry.name not in ends]
    if request.quick:
        ends |= dict.fromkeys(complete, ("quick look only", QUICK_LOOK))
    else:
        ends |= {outcome.entry.name: (outcome.verdict, outcome.reason) for outcome in outcomes([request.out], complete)}
    for entry in entries:
        verdict, reason = ends[entry.name]
        print(f"{entry.name}: {verdict}", textwrap.indent(textwrap.fill(reason, 110), "    "), sep="\n")
    if statuses:
        print("", f"Results: {request.folder}", *filter(None, [noise]), sep="\n")
    return max(statuses.values(), default=0) or int(named and any(missing.values()))


def missing_for(entry: Entry, request: Request) -> str:
    """Why an entry cannot run; nothing where it can."""
    if request.kind not in entry.minutes:
        return f"it runs on {' and '.join(entry.minutes)}, not on {request.kind}"
    if all(part.ready(request) for part in entry.measure):
        return ""
    if request.data is None:
        return f"it needs {entry.data}: name their folder with --data"
    return f"{request.data} does not have what it needs: {entry.data}"


def _measure(entries: Iterable[Entry], request: Request) -> dict[str, int]:
    """Run what the entries measure, each part once: its exit status by its name, 0 where it was made."""
    parts = {part.name: part for entry in entries for part in entry.measure}
    # Events and peaks of memory are those of the current device.
    current = torch.cuda.device(request.device) if request.kind == "cuda" else nullcontext()
    with current:
        return {name: part.run(request) for name, part in parts.items()}


def _failure(entry: Entry, statuses: dict[str, int]) -> str:
    """Which parts of an entry failed; nothing where none did."""
    failed = {part.name: statuses[part.name] for part in entry.measure if statuses[part.name]}
    words = " and ".join(f"`{name}` ended with status {status}" for name, status in failed.items())
    return f"its part {words}; the message above says why" if failed else ""
