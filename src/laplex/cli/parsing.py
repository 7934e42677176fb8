"""The parser of all commands: help that tells what is taken if an option is not given, and "did you mean".

It imports neither torch nor the rest of laplex, so that help is there at once.
"""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NoReturn

Fill = Callable[["Parser"], None]
DEVICE = "cpu, cuda, cuda:INDEX, or auto, which is cuda where torch has one"


class Formatter(argparse.HelpFormatter):
    """Every option says what is taken if it is not given."""

    def _get_help_string(self, action: argparse.Action) -> str:
        text = (action.help or "").removesuffix(" (default: %(default)s)")  # what Python adds to --this and --no-this
        default = default_text(action)
        if not default or "if not given" in text:
            return text
        return f"{text.removesuffix(default).removesuffix('; ')}; {default} if not given"


class Parser(argparse.ArgumentParser):
    """A command, whose options are added when they are needed if ``fill`` adds them."""

    def __init__(self, *args: Any, fill: Fill | None = None, **options: Any) -> None:
        super().__init__(*args, **{"formatter_class": Formatter} | options)
        self._fill = fill
        self.set_defaults(parser=self)  # of the parsers on the way to a command the last one stays

    def filled(self) -> Parser:
        """The parser with all its options."""
        fill, self._fill = self._fill, None
        if fill is not None:
            fill(self)
        return self

    def parse_known_args(self, *args: Any, **options: Any) -> Any:
        """As argparse does it, with all options."""
        return super(Parser, self.filled()).parse_known_args(*args, **options)

    def parse_args(self, *args: Any, **options: Any) -> Any:
        """As argparse does it; of what is not known the command tells that was meant, with its own usage."""
        given, unknown = self.parse_known_args(*args, **options)
        if unknown:
            given.parser.refuse_unknown(unknown)
        return given

    def refuse_unknown(self, words: Sequence[str]) -> NoReturn:
        """End with what these words may be misspelt for."""
        first = next((word for word in words if word.startswith("-")), "")
        hint = did_you_mean(first.partition("=")[0], self._option_string_actions)
        self.error(f"unrecognized arguments: {' '.join(words)}{hint}")

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            hint = did_you_mean(str(value), map(str, action.choices or ()))
            raise argparse.ArgumentError(action, f"{error.message}{hint}") from None


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """The end of a message about a word that is not known: what is nearest to it, or nothing."""
    near = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""


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
    """Add --device. argparse converts a default as it does what is given, when the command is chosen."""
    parser.add_argument("--device", type=_device, default="auto", help=DEVICE)


def _device(name: str) -> str:
    if name != "auto":
        return name
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"
