"""Options of experiments: each experiment lists its own in one frozen dataclass, and the command line is made from it.

@dataclass(frozen=True, kw_only=True)
class Options:
    data: str = option("features of a network", metavar="FILE.npz")      required: it has no default
    ranks: tuple[int, ...] = option("kernels of LAPLEX", (4, 8, 16), metavar="R")
    quick: bool = option("few epochs: to see that it works", False)
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import MISSING, field, fields
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

from laplex.cli.parsing import did_you_mean


def option(text: str, default: Any = MISSING, *, metavar: str | None = None) -> Any:
    """A field of the options of an experiment; ``text`` is its help."""
    return field(default=default, metadata={"help": text, "metavar": metavar})


def add_options(parser: argparse.ArgumentParser, options: type) -> None:
    """Add one option for each field: ``after_lr`` is --after-lr, a tuple takes several words, and a bool is a flag."""
    hints = get_type_hints(options)
    for one in fields(options):
        flag, required = f"--{one.name.replace('_', '-')}", one.default is MISSING
        settings = {"required": required, "default": None if required else one.default, "help": one.metadata["help"]}
        kind, several = _kind(hints[one.name])
        if kind is bool:
            parser.add_argument(flag, action="store_true", **settings)
        else:
            nargs = "+" if several else None
            parser.add_argument(flag, type=kind, nargs=nargs, metavar=one.metadata["metavar"], **settings)


def parsed_values(options: type, arguments: argparse.Namespace) -> dict[str, Any]:
    """What a command line says about the options of an experiment, by name; several words are a tuple."""
    values = {one.name: getattr(arguments, one.name) for one in fields(options)}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


def _kind(hint: Any) -> tuple[Any, bool]:
    """The type of a value, and whether there may be several: of ``tuple[int, ...] | None`` it is int, and True."""
    if NoneType in get_args(hint):
        (hint,) = (one for one in get_args(hint) if one is not NoneType)
    return (get_args(hint)[0], True) if get_origin(hint) is tuple else (hint, False)


# --- What is refused -------------------------------------------------------------------------------------------------


def at_least_one(options: Any, *names: str) -> None:
    """Raise ValueError where an option that is set has a number below 1."""
    for name in names:
        value = getattr(options, name)
        numbers = value if isinstance(value, tuple) else () if value is None else (value,)
        if min(numbers, default=1) < 1:
            raise ValueError(f"--{name.replace('_', '-')} must be at least 1, got {min(numbers)}")


def among(option: str, values: Sequence[str], known: Sequence[str]) -> None:
    """Raise ValueError where a word is not known."""
    unknown = [one for one in values if one not in known]
    if unknown:
        hint = did_you_mean(unknown[0], known)
        raise ValueError(f"--{option} must be among {words(known)}, got {unknown[0]!r}{hint}")


def file_name(name: str) -> str:
    """The name of the data as part of file names; ValueError where it cannot be one."""
    if not re.fullmatch(r"[\w.-]+", name) or name.startswith("."):
        raise ValueError(f"--name must consist of letters, digits, '-', '_' and '.', got {name!r}")
    return name


def words(values: Sequence[object]) -> str:
    """The values in a sentence."""
    return ", ".join(map(str, values))
