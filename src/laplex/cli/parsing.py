"""The parser of all commands: help that states every default, and "did you mean" suggestions.

It imports neither torch nor the rest of laplex, so that help appears at once.
"""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn

NAMES = {"source": "DATA", "path": "MODEL", "side": "--side", "channels": "--channels", "count": "--count"}
MOVED = {
    "reproduce": "python -m paper run",
    "report": "python -m paper report",
    "experiment": "python -m paper experiment",
}
RENAMED = {"--start": "--places"}
AUTO = "auto"
DEVICE = f"cpu, cuda, cuda:INDEX, or {AUTO}, which is cuda where torch has one"


class Formatter(argparse.HelpFormatter):
    """A formatter that states the default of every option."""

    def _get_help_string(self, action: argparse.Action) -> str:
        text = (action.help or "").removesuffix(" (default: %(default)s)")  # what Python adds to --this and --no-this
        default = default_text(action)
        if not default or "if not given" in text:
            return text
        return f"{text}; {default} if not given"


class Parser(argparse.ArgumentParser):
    """A command."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{"formatter_class": Formatter} | options)
        self._words: list[str] = []  # the words to parse
        self.set_defaults(parser=self)  # the parser of the innermost command wins

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse does."""
        self._words = sys.argv[1:] if args is None else list(args)
        return super().parse_known_args(self._words, namespace)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse does, but unknown arguments are reported by the chosen command, with its own usage."""
        options, unknown = self.parse_known_args(args, namespace)
        if unknown:
            options.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
        if getattr(options, "device", None) == AUTO:
            options.device = _device()
        return options

    def print_help(self, file: Any = None) -> None:
        """As argparse does, but if the reader has gone the command ends, whether or not output is buffered."""
        output = file or sys.stdout
        if output is None:  # it was closed from the start
            super().print_help()
        else:
            output.write(self.format_help())

    def error(self, message: str) -> NoReturn:
        """End with a message; for an unknown option it suggests the one that may be meant."""
        known = [option for option in self._option_string_actions if option.startswith("--")]
        for option in (word.partition("=")[0] for word in self._words if word.startswith("--")):
            new = RENAMED.get(option)
            hint = f"; {option} is now called {new}" if new in known else did_you_mean(option, known, f" for {option}")
            refused = "invalid choice" in message or "did you mean" in message  # the message already says what is wrong
            if hint and not refused and not any(name.startswith(option) for name in known):
                message += hint
        super().error(message)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            moved = MOVED.get(str(value))
            hint = (
                f"; in a checkout, use {moved}" if moved else did_you_mean(str(value), map(str, action.choices or ()))
            )
            raise argparse.ArgumentError(action, f"{error.message}{hint}") from None


def did_you_mean(word: str, known: Iterable[str], instead: str = "") -> str:
    """The end of a message about an unknown word: the nearest known word, or nothing."""
    near = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {near[0]}{instead}?" if near else ""


def default_text(action: argparse.Action) -> str:
    """The default of an option; empty if it has none or must be given."""
    if action.required or not action.option_strings or action.default in (None, argparse.SUPPRESS):
        return ""
    if isinstance(action, argparse.BooleanOptionalAction):
        return action.option_strings[0 if action.default else 1]
    if action.nargs == 0:  # a flag
        return ""
    if isinstance(action.default, (list, tuple)):
        return ", ".join(map(str, action.default))
    return f"{action.default:g}" if isinstance(action.default, float) else str(action.default)


def add_device(parser: argparse.ArgumentParser) -> None:
    """Add --device. "auto" is resolved after all options are parsed, because that takes an import of torch."""
    parser.add_argument("--device", default=AUTO, help=DEVICE)


def _device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def load_laplex() -> None:
    """Run the package's ``__init__``: so far ``_laplex_command`` has imported only the modules of options."""
    package = sys.modules["laplex"]
    spec = package.__spec__
    if not hasattr(package, "__all__") and spec is not None and spec.loader is not None:
        spec.loader.exec_module(package)


def as_command(message: object, names: Mapping[str, str] = NAMES) -> str:
    """A function's message in the command's terms: --side and DATA in place of `side` and `source`."""
    text = re.sub(r"^laplex\.[\w.]+: ", "", str(message))
    for name, word in names.items():
        text = text.replace(f"`{name}`", word)
        text = re.sub(rf"\b{name}=None\b", f"no {word}", text)
        text = re.sub(rf"\b{name}=(?=\S)", f"{word} ", text)
    return text
