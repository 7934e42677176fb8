"""Arguments that had a different name in an earlier version."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Answer = TypeVar("Answer")


def renamed(where: str, **names: str) -> Callable[[Callable[Arguments, Answer]], Callable[Arguments, Answer]]:
    """A decorator that tells callers who pass an old name, a key of ``names``, the new one."""

    def decorate(function: Callable[Arguments, Answer]) -> Callable[Arguments, Answer]:
        @functools.wraps(function)
        def checked(*args: Arguments.args, **options: Arguments.kwargs) -> Answer:
            for old, new in names.items():
                if old in options:
                    raise TypeError(f"{where}: `{old}` is now called `{new}`, got {old}=; use {new}=")
            return function(*args, **options)

        return checked

    return decorate
