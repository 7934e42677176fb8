"""`python -m paper run`: measures the paper's tables and figures, by name, and says what came of them."""

from __future__ import annotations

import argparse
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from laplex.cli.machine import refuse_device, refuse_seed
from laplex.cli.parsing import add_device, did_you_mean
from laplex.cli.tables import Table, show
from laplex.testing import busy

if TYPE_CHECKING:
    from paper.entry import Entry
    from paper.reproduce._runs import Order

HELP = "Measure the tables and figures of the paper; `python -m paper list` names them."
LIST = "The entries: source, data, device, time."
ABOUT = """Measure tables and figures of the paper, all of them or those that are named, and say what came of them.
Every figure is written to a JSON file as soon as it is measured: an interrupted command goes on when it is repeated.
An entry whose data or device is missing is not run, and is shown as not run."""
OUT = "reproduced"
QUICK_LOOK = "it works; the figures of a quick look are too rough for a verdict"


def add_to(commands: Any) -> None:
    """Add the commands."""
    commands.add_parser("list", help=LIST, description=LIST)
    made = commands.add_parser("run", help=HELP, description=ABOUT)
    made.add_argument("names", nargs="*", metavar="NAME", help="entries; all that can run here if none is given")
    add_device(made)
    made.add_argument("--out", default=OUT, metavar="DIR", help=f"for results, made if missing; {OUT} if not given")
    made.add_argument("--data", metavar="DIR", help="a folder with the data sets; entries that need none if not given")
    made.add_argument("--seed", type=int, default=0, metavar="N", help="of what is drawn; 0 if not given")
    made.add_argument("--fresh", action="store_true", help="forget earlier results of the same name in DIR")
    level = made.add_mutually_exclusive_group()
    level.add_argument("--quick", action="store_true", help="tiny sizes, seconds an entry: to see that it works")
    level.add_argument("--full", action="store_true", help="all sizes of the paper, on CUDA up to 2^29")


def run(given: argparse.Namespace) -> int:
    """The command: 2 where options are refused, 1 where a named entry was not run, 130 after Ctrl-C."""
    try:
        entries, order = _prepare(given)
        return _run(entries, order, named=bool(given.names))
    except ValueError as error:
        print(f"python -m paper run: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        told = "interrupted; what was measured is kept, and the same command goes on from there"
        print(f"\npython -m paper run: {told}", file=sys.stderr)
        return 130


def _prepare(given: argparse.Namespace) -> tuple[list[Entry], Order]:
    """The entries and what to do with them; ValueError where something is wrong."""
    from paper.reproduce import NAMES, entry
    from paper.reproduce._measure import FULL, QUICK, USUAL, Effort
    from paper.reproduce._runs import Order

    unknown = [name for name in given.names if name not in NAMES]
    if unknown:
        raise ValueError(f"NAME must be among {', '.join(NAMES)}, got {unknown[0]!r}{did_you_mean(unknown[0], NAMES)}")
    refuse_device(given.device)
    refuse_seed(given.seed)
    data = None if given.data is None else Path(given.data)
    if data is not None and not data.is_dir():
        raise ValueError(f"--data must be a folder with the data sets, got {data}")
    level = QUICK if given.quick else FULL if given.full else USUAL
    order = Order(Path(given.out), Effort(given.device, level, given.seed), data, given.fresh)
    _refuse_folder(order.folder)
    return [entry(name) for name in dict.fromkeys(given.names or NAMES)], order


def _refuse_folder(folder: Path) -> None:
    """Raise ValueError where results could not be written, before anything is measured."""
    trial = folder / ".laplex"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        trial.touch()
        trial.unlink()
    except OSError as error:
        raise ValueError(f"--out: cannot write into {folder} ({error.strerror or error})") from None


def _run(entries: list[Entry], order: Order, *, named: bool) -> int:
    """Measure, and print what came of it: of what this command can run, and of nothing else."""
    from paper.reproduce import _runs, outcomes

    missing = {entry.name: _runs.missing(entry, order) for entry in entries}
    able = [entry for entry in entries if not missing[entry.name]]
    _tell_of_gpu([entry.name for entry in able if entry.of_gpu and order.effort.kind == "cpu"])
    noise = busy()
    statuses = _runs.run(able, order)
    told = {name: ("not run", why) for name, why in missing.items() if why}
    told |= {entry.name: ("failed", why) for entry in entries if (why := _runs.failed(entry, statuses))}
    made = [entry.name for entry in entries if entry.name not in told]
    if order.folder != order.out:
        told |= dict.fromkeys(made, ("quick look only", QUICK_LOOK))
    else:
        told |= {one.entry.name: (one.verdict, one.reason) for one in outcomes([order.out], made)}
    for entry in entries:
        verdict, reason = told[entry.name]
        print(f"{entry.name}: {verdict}", textwrap.indent(textwrap.fill(reason, 110), "    "), sep="\n")
    if statuses:
        print("", f"Results: {order.folder}", *filter(None, [noise]), sep="\n")
    return max(statuses.values(), default=0) or int(named and any(missing.values()))


def _tell_of_gpu(names: list[str]) -> None:
    """Say, before minutes are spent on a CPU, which figures will not be judged there."""
    if names:
        told = "the paper's figures are of a GPU, an H100; those of a CPU are shown in the report, and not judged"
        print(f"python -m paper run: {', '.join(names)}: {told}", file=sys.stderr, flush=True)


def show_entries(options: argparse.Namespace) -> int:
    """The command `python -m paper list`."""
    from paper.reproduce import ENTRIES

    rows: list[tuple[str, ...]] = [
        (one.name, one.source, ", ".join(f"{key} {value:g} min" for key, value in one.minutes.items()), one.title)
        for one in ENTRIES
    ]
    show(Table("Entries of the paper", ("name", "source in the paper", "device and time", "what"), rows))
    print("\nData that entries need, in the folder of --data; the others need none:")
    for one in ENTRIES:
        if one.data:
            print(f"  {one.name}: {one.data}")
    return 0
