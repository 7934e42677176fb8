"""The `laplex` command, as its script starts it.

An import of anything in laplex imports all of it, and with it torch, which takes seconds. Help, completion and mistakes
need neither. So here the package is put into ``sys.modules`` without being run: by its path the modules of options are
found, which import nothing else of it. ``laplex.cli.parsing.load_laplex`` runs it when a command is known.
"""

import sys
from importlib.util import find_spec, module_from_spec
from typing import NoReturn


def main() -> NoReturn:
    """The command."""
    spec = find_spec("laplex")
    if spec is None:
        sys.exit("laplex: the package is not there, only its command; install it again")
    sys.modules["laplex"] = module_from_spec(spec)
    from laplex.cli import main

    main()
