"""Options that several experiments have, and what is refused of them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from laplex.cli.parsing import did_you_mean


def at_least_one(option: str, values: Sequence[int]) -> None:
    """Raise ValueError where a number is below 1."""
    if min(values) < 1:
        raise ValueError(f"--{option} must be at least 1, got {min(values)}")


def among(option: str, given: Sequence[str], known: Sequence[str]) -> None:
    """Raise ValueError where a word is not known."""
    unknown = [one for one in given if one not in known]
    if unknown:
        hint = did_you_mean(unknown[0], known)
        raise ValueError(f"--{option} must be among {words(known)}, got {unknown[0]!r}{hint}")


def file_name(name: str) -> str:
    """The name of the data as part of file names; ValueError where it is none."""
    if not re.fullmatch(r"[\w.-]+", name) or name.startswith("."):
        raise ValueError(f"--name must consist of letters, digits, '-', '_' and '.', got {name!r}")
    return name


def words(values: Sequence[object]) -> str:
    """The values in a sentence."""
    return ", ".join(map(str, values))
