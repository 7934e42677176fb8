"""`python -m benchmarks`: run a suite, print its tables, save its results."""

import argparse
import sys
from pathlib import Path

from benchmarks.report import Report
from benchmarks.result import Result
from benchmarks.run import choose_suite, run
from benchmarks.tables import outcome, plain, tables
from benchmarks.words import INTERRUPTED, closing_lines, exit_code, opening_line


class PlainProgress:
    """A line when a row starts, completed when it ends."""

    def start(self, report: Report, total: int) -> None:
        """Say what is to come."""
        print(opening_line(report, total), flush=True)

    def begin(self, what: str) -> None:
        """Say what is running, for slow rows."""
        print(f"{what} ... ", end="", flush=True)

    def done(self, result: Result) -> None:
        """How it went."""
        print(outcome(result), flush=True)


def main() -> int:
    """Parse, run, print."""
    parser = _parser()
    given = parser.parse_args()
    try:
        suite = choose_suite(given.suite, given.quick)
        options = {"out": given.out, "resume": given.resume, "only": given.only, "threads": given.threads}
        report = run(suite, PlainProgress(), **options)
    except ValueError as error:
        parser.error(str(error))
    except KeyboardInterrupt:
        print(f"\n{INTERRUPTED}", file=sys.stderr)
        return 130
    print("", *map(plain, tables(report.results)), sep="\n\n")
    print("", *closing_lines(report), sep="\n")
    return exit_code(report)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--suite", default="cpu", help="which rows to run")
    parser.add_argument("--quick", action="store_true", help="a look of under a minute instead of a suite")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where the results go")
    parser.add_argument("--resume", action="store_true", help="skip what the result file already holds")
    parser.add_argument("--only", metavar="PATTERN", help="only rows whose name contains this; * and ? are wild")
    parser.add_argument("--threads", type=int, metavar="N", help="torch's threads")
    return parser


if __name__ == "__main__":
    sys.exit(main())
