"""`python -m paper`: measure the tables and figures of the paper, and report what came of them."""

from __future__ import annotations

import sys

from laplex.cli.parsing import Parser
from paper.commands import experiment, report, reproduce

COMMANDS = {"experiment": experiment, "reproduce": reproduce, "report": report}


def main(arguments: list[str] | None = None) -> int:
    """The command; its exit status."""
    parser = Parser(prog="python -m paper", description=__doc__)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for module in COMMANDS.values():
        module.add_to(commands)
    given = parser.parse_args(arguments)
    return COMMANDS[given.command].run(given)


if __name__ == "__main__":
    sys.exit(main())
