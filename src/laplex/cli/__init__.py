"""The `laplex` command: its subcommands, by name. If rich is installed, tables have colours.

Nothing here imports torch before a command is known, so that help, completion and typing errors get an answer at once.
"""

import argparse
import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from laplex.cli import commands
from laplex.cli.parsing import load_laplex

CLOSED = 128 + 13  # what a shell reports for a command whose output no one reads any more: SIGPIPE is 13
OWN_MODULES = ("doctor", "bench", "completion", "fit")  # the other commands share one module


def main() -> NoReturn:
    """Run the command and end the process; the installed script calls this through ``_laplex_command``."""
    with _readers_may_leave():
        parser = commands.parser()
        options: argparse.Namespace = parser.parse_args()
        if options.command is None:
            parser.print_help()
            sys.exit(2)
    try:
        load_laplex()
        module = options.command if options.command in OWN_MODULES else "density_commands"
        with _readers_may_leave():
            _leave(importlib.import_module(f"laplex.cli.{module}").run(options))
    except KeyboardInterrupt:  # from a command that does not handle it itself
        print(f"\nlaplex {options.command}: interrupted", file=sys.stderr)
        sys.exit(130)


def _leave(status: int) -> NoReturn:
    """End the process: at once, if it is one of several that torchrun has started.

    The threads of torch.distributed outlive their process group (seen in torch 2.13). If one released a tensor while
    Python shuts down, it would abort the process, and torchrun would report that the command failed.
    """
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        os._exit(status)
    sys.exit(status)


@contextmanager
def _readers_may_leave() -> Iterator[None]:
    """End quietly, as other programs do, if the reader of the output, such as `head`, has gone."""
    try:
        try:
            yield
        finally:
            if sys.stdout is not None:  # None if it was closed from the start
                sys.stdout.flush()
    except BrokenPipeError:
        silence = os.open(os.devnull, os.O_WRONLY)
        for number in (1, 2):  # for anything that Python still writes as it ends
            os.dup2(silence, number)
        sys.exit(CLOSED)
