"""`python -m paper experiment`: runs the experiments of ``paper.experiments`` by name."""

from __future__ import annotations

import argparse
from typing import Any

from laplex.cli.parsing import add_device
from paper import experiments

HELP = "Run an experiment on your data; --list names them."


def add_to(commands: Any) -> None:
    """Add the command, and below it one for each experiment."""
    parser = commands.add_parser("experiment", help=HELP, description=HELP)
    parser.add_argument("--list", action="store_true", help="the experiments, one per line")
    names = parser.add_subparsers(dest="experiment", metavar="NAME")
    for name in experiments.NAMES:
        about = experiments.module(name).ABOUT
        one = names.add_parser(name, help=about, description=about)
        experiments.add_to(one, name)
        one.add_argument("--out", required=True, metavar="DIR", help="for results, table and plot; made if missing")
        add_device(one)
        one.add_argument("--fresh", action="store_true", help="forget earlier results of the same name in DIR")


def run(options: argparse.Namespace) -> int:
    """The command; its exit status is that of :func:`paper.experiments.run`."""
    if options.list:
        print("\n".join(f"{name:12}{experiments.module(name).ABOUT}" for name in experiments.NAMES))
        return 0
    if options.experiment is None:
        options.parser.print_help()
        return 2
    return experiments.run_parsed(options.experiment, options)
