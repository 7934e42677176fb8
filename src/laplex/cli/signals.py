"""Signals that ask a command to end: Ctrl-C, `kill`, and a terminal that is closed."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

NAMES = ("SIGINT", "SIGTERM", "SIGHUP")
NUMBERS = tuple(getattr(signal, name) for name in NAMES if hasattr(signal, name))  # Windows has no SIGHUP


class Interrupted(KeyboardInterrupt):
    """Raised when a signal arrives; ``status`` is what a shell reports for a command ended by that signal."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.status = 128 + number


@contextmanager
def raised() -> Iterator[None]:
    """Within the block each such signal raises :class:`Interrupted`; ignored ones stay ignored, as under nohup."""
    before = {}
    if threading.current_thread() is threading.main_thread():  # no other thread may change handlers
        for number in NUMBERS:
            if signal.getsignal(number) not in (signal.SIG_IGN, None):
                before[number] = signal.signal(number, _raise)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def end_at_once() -> None:
    """From here to the end of the block a signal ends the process, even within a long call into compiled code."""
    _replace(_raise, signal.SIG_DFL)


def ignore() -> None:
    """From here to the end of the block signals are ignored."""
    _replace(_raise, signal.SIG_IGN)


@contextmanager
def ending_at_once() -> Iterator[None]:
    """Within the block a signal ends the process, even within a long call into compiled code."""
    changed = _replace(_raise, signal.SIG_DFL)
    try:
        yield
    finally:
        for number in changed:
            signal.signal(number, _raise)


def _replace(handler: Any, other: Any) -> list[int]:
    """Replace one handler by another, and return the signals that had it."""
    numbers = [number for number in NUMBERS if signal.getsignal(number) is handler]
    for number in numbers:
        signal.signal(number, other)
    return numbers


def _raise(number: int, frame: FrameType | None) -> None:
    raise Interrupted(number)
