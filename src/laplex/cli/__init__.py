"""The `laplex` command. Without its extra it still starts, and says what to install."""

import importlib.util
import sys

NEEDS = ("typer", "rich")


def main() -> None:
    """The entry point."""
    missing = [name for name in NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        print(f'laplex: the command needs {" and ".join(missing)}: pip install "laplex[cli]"', file=sys.stderr)
        sys.exit(2)
    from laplex.cli.app import app  # needs typer

    app()
