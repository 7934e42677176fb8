"""`python -m paper experiment`: runs the experiments of ``paper.experiments`` by name.

To add one, write its module and add its name to ``EXPERIMENTS``.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path
from typing import Any, Protocol, cast

from laplex.cli import packages
from laplex.cli.machine import refuse_device
from laplex.cli.parsing import Parser, add_device, as_command, load_laplex

EXPERIMENTS = ("heads", "compress", "projection", "density", "rff", "features")  # modules of paper.experiments
NAMES = {"side": "--side", "channels": "--channels"}  # arguments of functions that are options of all that have them
HELP = "Run an experiment on your data; --list names them."


class Experiment(Protocol):
    """What a module of an experiment has."""

    ABOUT: str

    def add_options(self, parser: argparse.ArgumentParser) -> None:
        """Add the options that only this experiment has."""

    def prepare(self, given: argparse.Namespace) -> Any:
        """Check the options and read the data; ValueError or ImportError where something is wrong. Writes nothing."""

    def run(self, study: Any) -> int:
        """Run what ``prepare`` returned; the exit status. An interruption must keep all finished runs."""


def add_to(commands: Any) -> None:
    """Add the command. The commands below it are known when it is chosen: experiments import torch."""
    parser = commands.add_parser("experiment", help=HELP, description=HELP)
    if isinstance(parser, Parser):
        parser.fill_later(_fill)
    else:
        _fill(parser)


def _fill(parser: argparse.ArgumentParser) -> None:
    """Add one command for each experiment."""
    load_laplex()
    parser.add_argument("--list", action="store_true", help="the experiments, one a line")
    names = parser.add_subparsers(dest="experiment", metavar="NAME")
    for name in EXPERIMENTS:
        about = _module(name).ABOUT
        one = names.add_parser(name, help=about, description=about)
        _module(name).add_options(one)
        one.add_argument("--out", required=True, metavar="DIR", help="for results, table and plot; made if missing")
        add_device(one)
        one.add_argument("--fresh", action="store_true", help="forget earlier results of the same name in DIR")


def run(given: argparse.Namespace) -> int:
    """The command: 2 where the options or the data are refused, 1 where a job fails, 130 after Ctrl-C."""
    from paper.experiments.jobs import JobError

    if given.list:
        print("\n".join(f"{name:12}{_module(name).ABOUT}" for name in EXPERIMENTS))
        return 0
    if given.experiment is None:
        given.parser.print_help()
        return 2
    module = _module(given.experiment)
    try:
        refuse_device(given.device)
        packages.refuse(f"experiment {given.experiment}")
        study = module.prepare(given)
        _make_folder(Path(given.out))
    except (ValueError, ImportError) as error:
        print(f"python -m paper experiment {given.experiment}: {as_command(error, NAMES)}", file=sys.stderr)
        return 2
    try:
        return module.run(study)
    except KeyboardInterrupt:
        told = "interrupted; finished runs are kept, and the same command goes on from there"
        print(f"\npython -m paper experiment {given.experiment}: {told}", file=sys.stderr)
        return 130
    except JobError as error:
        print(f"python -m paper experiment {given.experiment}: {error}", file=sys.stderr)
        return 1


def _make_folder(path: Path) -> None:
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"--out: cannot write into {path} ({error.strerror or error})") from None


def _module(name: str) -> Experiment:
    return cast(Experiment, importlib.import_module(f"paper.experiments.{name}"))
