"""Complete reads and writes at given places in a file."""

from __future__ import annotations

import os
from contextlib import suppress
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np

WHERE = "laplex.disk.linear"  # named in every error
MOST = 1 << 30  # bytes per system call; Linux takes less than 2^31


class Scratch:
    """A file that is written and read at places, which are counted in numbers of its dtype."""

    def __init__(self, path: Path, dtype: Any) -> None:
        self.path, self.dtype = path, np.dtype(dtype)
        path.touch()
        self._file = FileIO(path, "r+")

    def read(self, out: np.ndarray[Any, Any], place: int) -> None:
        """Fill an array with the numbers that begin at a place."""
        read_into(self._file, out, place * self.dtype.itemsize)

    def write(self, values: np.ndarray[Any, Any], place: int) -> None:
        """Write an array's numbers beginning at a place."""
        array = np.ascontiguousarray(values, self.dtype)
        write_from(self._file, array, place * self.dtype.itemsize)

    @property
    def bytes(self) -> int:
        """The size of the file."""
        return self.path.stat().st_size

    def sync(self) -> None:
        """Wait until what was written is on the disk."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def read_into(file: FileIO, out: np.ndarray[Any, Any], offset: int) -> None:
    """Fill a contiguous array from a file."""
    view = _bytes(out)
    done = 0
    file.seek(offset)
    while done < len(view):
        count = file.readinto(view[done : done + MOST])
        if not count:
            raise OSError(f"{WHERE}: {file.name!s} ends at byte {offset + done}, where numbers were expected")
        done += count


def write_from(file: FileIO, values: np.ndarray[Any, Any], offset: int) -> None:
    """Write a contiguous array into a file."""
    view = _bytes(values)
    done = 0
    file.seek(offset)
    while done < len(view):
        try:
            done += file.write(view[done : done + MOST])
        except OSError as error:
            raise not_written(file.name, error) from error


def not_written(name: object, error: OSError) -> OSError:
    """The error, with what to do about it."""
    return OSError(
        error.errno,
        f"{WHERE}: {name!s} cannot be written ({error.strerror}); complete work is kept: once the disk is in order, "
        "repeat the call to continue",
    )


def _bytes(values: np.ndarray[Any, Any]) -> memoryview:
    return values.reshape(-1).view(np.uint8).data if values.size else memoryview(b"")


def advise(file: FileIO, offset: int, length: int) -> None:
    """Ask the system to read a part of a file ahead, while something else is computed."""
    if length > 0 and hasattr(os, "posix_fadvise"):
        os.posix_fadvise(file.fileno(), offset, length, os.POSIX_FADV_WILLNEED)


def settle_time(file: FileIO) -> None:
    """Bring the time of a file up to date with what was written to it through memory maps.

    The system updates the time at the first write to a page of a map after the page went to the disk, and not at later
    writes before it goes there again.
    """
    with suppress(OSError):  # not every system can sync a file that is open for reading
        os.fsync(file.fileno())


def bytes_on_disk(path: Path) -> int:
    """The bytes that a file takes on the disk; one with holes takes less than its size."""
    if not path.exists():
        return 0
    status = path.stat()
    blocks = getattr(status, "st_blocks", None)  # not on Windows
    return status.st_size if blocks is None else blocks * 512
