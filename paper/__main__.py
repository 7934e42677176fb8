"""`python -m paper`: measure the tables and figures of the paper, and report what came of them."""

from __future__ import annotations

import sys

from laplex.cli.parsing import Parser
from paper.commands import experiment, report, run

COMMANDS = {"list": run.show_entries, "run": run.run, "report": report.run, "experiment": experiment.run}


def main(arguments: list[str] | None = None) -> int:
    """The command; its exit status."""
    parser = Parser(prog="python -m paper", description=__doc__)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for module in (run, report, experiment):
        module.add_to(commands)
    options = parser.parse_args(arguments)
    return COMMANDS[options.command](options)


if __name__ == "__main__":
    sys.exit(main())
