"""The `laplex` command. With the base install, without typer and rich, the doctor is there in plain text."""

import argparse
import importlib.util
import sys

import laplex

ABOUT = "Exact, trainable Laplace-kernel matrices for PyTorch."
DOCTOR = "Say what can run here, and check that it is right."
NEEDS = ("typer", "rich")


def main() -> None:
    """The entry point."""
    missing = [name for name in NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        sys.exit(_plain(f'needs {" and ".join(missing)}: pip install "laplex[cli]"'))
    from laplex.cli.app import app  # needs typer

    app()


def _plain(needs: str) -> int:
    """The command of the base install."""
    parser = argparse.ArgumentParser(prog="laplex", description=ABOUT)
    parser.add_argument("--version", action="version", version=laplex.__version__)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    commands.add_parser("doctor", help=DOCTOR, description=DOCTOR)
    commands.add_parser("bench", help=needs, add_help=False)
    given, others = parser.parse_known_args()
    if given.command == "bench":
        print(f"laplex bench: {needs}; or use python -m laplex.bench, which is the same in plain text", file=sys.stderr)
        return 2
    if others:
        parser.error(f"no such option: {' '.join(others)}")
    if given.command == "doctor":
        return _doctor()
    parser.print_help()
    return 2


def _doctor() -> int:
    from laplex.bench.tables import plain
    from laplex.cli.doctor import examine  # takes a second to import

    findings = examine()
    print(*map(plain, findings.tables), sep="\n\n")
    return 0 if findings.healthy else 1
