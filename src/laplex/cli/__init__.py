"""The `laplex` command: its subcommands, by name. With rich its tables have colours."""

import argparse
import sys

from laplex.cli import density, experiment, options, report, reproduce


def main() -> None:
    """The entry point."""
    parser = options.parser()
    given = parser.parse_args()
    if given.command is None:
        parser.print_help()
        sys.exit(2)
    commands = {
        "doctor": lambda given: _doctor(),
        "bench": _bench,
        "experiment": experiment.run,
        "reproduce": reproduce.run,
        "report": report.run,
    }
    sys.exit(commands.get(given.command, density.run)(given))


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
