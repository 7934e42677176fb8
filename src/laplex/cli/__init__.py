"""The `laplex` command: its subcommands, by name. With rich its tables have colours.

Nothing here imports torch before a command is known: help, completion and mistakes are there at once.
"""

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from laplex.cli import completion, density, options, packages
from laplex.cli.parsing import load_laplex

CLOSED = 128 + 13  # the status of a command that nobody reads any more, as a shell tells it: SIGPIPE is 13


def main() -> NoReturn:
    """The command; ``_laplex_command`` is what its script starts."""
    run(parsed())


def parsed() -> argparse.Namespace:
    """The options; ends the process where there is nothing to run."""
    with _readers_may_leave():
        parser = options.parser()
        given: argparse.Namespace = parser.parse_args()
        if given.command is None:
            parser.print_help()
            sys.exit(2)
        return given


def run(given: argparse.Namespace) -> NoReturn:
    """Run a command and end the process."""
    try:
        load_laplex()
        with _readers_may_leave():
            sys.exit(_run(given))
    except KeyboardInterrupt:  # where a command has nothing to add
        print(f"\nlaplex {given.command}: interrupted", file=sys.stderr)
        sys.exit(130)


@contextmanager
def _readers_may_leave() -> Iterator[None]:
    """End quietly, as other programs do, where the reader of the output has gone, such as `head`."""
    try:
        try:
            yield
        finally:
            if sys.stdout is not None:  # else it was closed from the start
                sys.stdout.flush()
    except BrokenPipeError:
        silence = os.open(os.devnull, os.O_WRONLY)
        for number in (1, 2):  # for what Python still writes at its end
            os.dup2(silence, number)
        sys.exit(CLOSED)


def _run(given: argparse.Namespace) -> int:
    commands = {
        "doctor": lambda given: _doctor(),
        "bench": _bench,
        "completion": completion.run,
    }
    return commands.get(given.command, _density)(given)


def _doctor() -> int:
    from laplex.cli.doctor import examine
    from laplex.cli.tables import show

    findings = examine()
    for table in findings.tables:
        show(table)
        print()
    return 0 if findings.healthy else 1


def _bench(given: argparse.Namespace) -> int:
    from laplex.cli import bench

    try:
        options.refuse(given)
    except ValueError as error:
        print(f"laplex bench: {error}", file=sys.stderr)
        return 2
    return bench.run(given)


def _density(given: argparse.Namespace) -> int:
    sources = [source for source in (getattr(given, "data", None), getattr(given, "validation", None)) if source]
    try:
        packages.refuse(given.command, sources)
    except ImportError as error:
        print(f"laplex {given.command}: {error}", file=sys.stderr)
        return 2
    return density.run(given)
