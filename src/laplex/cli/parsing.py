"""The parser of all commands: help that tells what is taken if an option is not given, and "did you mean".

It imports neither torch nor the rest of laplex, so that help is there at once.
"""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NoReturn

Fill = Callable[["Parser"], None]
NAMES = {"source": "DATA", "path": "MODEL", "side": "--side", "channels": "--channels", "count": "--count"}
AUTO = "auto"
DEVICE = f"cpu, cuda, cuda:INDEX, or {AUTO}, which is cuda where torch has one"


class Formatter(argparse.HelpFormatter):
    """Every option says what is taken if it is not given."""

    def _get_help_string(self, action: argparse.Action) -> str:
        text = (action.help or "").removesuffix(" (default: %(default)s)")  # what Python adds to --this and --no-this
        default = default_text(action)
        if not default or "if not given" in text:
            return text
        return f"{text}; {default} if not given"


class Parser(argparse.ArgumentParser):
    """A command, whose options may be added when it is chosen."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{"formatter_class": Formatter} | options)
        self._fill: Fill | None = None
        self._words: list[str] = []  # that are parsed
        self.set_defaults(parser=self)  # of the parsers on the way to a command the last one stays

    def fill_later(self, fill: Fill) -> None:
        """Let ``fill`` add the options when they are needed."""
        self._fill = fill

    def filled(self) -> Parser:
        """The parser with all its options."""
        fill, self._fill = self._fill, None
        if fill is not None:
            fill(self)
        return self

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse does it, with all options."""
        self._words = sys.argv[1:] if args is None else list(args)
        return super(Parser, self.filled()).parse_known_args(self._words, namespace)

    def parse_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse does it; of what is not known the command tells that was chosen, with its own usage."""
        given, unknown = self.parse_known_args(args, namespace)
        if unknown:
            given.parser.error(f"unrecognized arguments: {' '.join(unknown)}")
        if getattr(given, "device", None) == AUTO:
            given.device = _device()
        return given

    def error(self, message: str) -> NoReturn:
        """End with a message; if an option is not known, with what it may be misspelt for."""
        options = [word.partition("=")[0] for word in self._words if word.startswith("--")]
        for one in options:
            known = [each for each in self._option_string_actions if each.startswith("--")]
            hint = did_you_mean(one, known, f" for {one}")
            if hint and "did you mean" not in message and not any(each.startswith(one) for each in known):
                message += hint
        super().error(message)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            hint = did_you_mean(str(value), map(str, action.choices or ()))
            raise argparse.ArgumentError(action, f"{error.message}{hint}") from None


def did_you_mean(word: str, known: Iterable[str], instead: str = "") -> str:
    """The end of a message about a word that is not known: what is nearest to it, or nothing."""
    near = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {near[0]}{instead}?" if near else ""


def default_text(action: argparse.Action) -> str:
    """What is taken if an option is not given; nothing where that is nothing, or where it must be given."""
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
    """Add --device. What auto is, is asked when all options are known to be right: it takes an import of torch."""
    parser.add_argument("--device", default=AUTO, help=DEVICE)


def _device() -> str:
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def load_laplex() -> None:
    """Run the package laplex where so far only its modules of options were imported, as ``_laplex_command`` does it."""
    package = sys.modules["laplex"]
    spec = package.__spec__
    if not hasattr(package, "__all__") and spec is not None and spec.loader is not None:
        spec.loader.exec_module(package)


def as_command(message: object, names: Mapping[str, str] = NAMES) -> str:
    """A message of a function, said of the command: of --side and DATA where it speaks of `side` and `source`."""
    text = re.sub(r"^laplex\.[\w.]+: ", "", str(message))
    for name, word in names.items():
        text = text.replace(f"`{name}`", word)
        text = re.sub(rf"\b{name}=None\b", f"no {word}", text)
        text = re.sub(rf"\b{name}=(?=\S)", f"{word} ", text)
    return text
