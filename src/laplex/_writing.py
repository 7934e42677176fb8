"""Files that are replaced in one step, folders that are locked, and what plots have in common."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

COLORS = (
    "#1f5fbf",
    "#c8382c",
    "#2a9d5c",
    "#e07b00",
    "#b8408f",
    "#555555",
    "#0a9396",
    "#9b6a2f",
    "#7b5ea7",
)  # of curves
SIZE = (7.0, 4.6)  # of a panel, in inches


def write_whole(path: Path, text: str) -> None:
    """Replace the file in one step, by a text."""
    with replaced(path) as file:
        file.write(text.encode())


@contextmanager
def replaced(path: Path) -> Iterator[IO[bytes]]:
    """A file to write into. It replaces ``path`` in one step: a reader, or an interruption, sees the old or the new.

    A link stays, and its target is replaced. A device or a pipe is written to.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        with path.open("wb") as file:
            yield file
        return
    target = Path(os.path.realpath(path))
    unfinished = target.with_name(f".{target.name}.{os.getpid()}.tmp")  # os.replace needs the same file system
    try:
        with unfinished.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())  # else a power cut may leave the new name with no content
        os.replace(unfinished, target)
    except BaseException as error:
        unfinished.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename == str(unfinished):
            error.filename = str(path)  # the user knows no other
        raise


def locked(folder: Path, *, wait: bool) -> int | None:
    """Keep others that lock the folder out of it, until the descriptor that is returned is closed.

    A process that ends, however it ends, lets go of its folders. None where there are no locks: on Windows, and on some
    file systems. BlockingIOError where another process has the folder and ``wait`` is False.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        return None
    held = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        os.close(held)
        raise
    except OSError:  # a file system without locks
        os.close(held)
        return None
    return held
