"""Reads and writes at places of a file: complete ones, counted."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

MOST = 1 << 30  # bytes of one system call; Linux takes less than 2^31


@dataclass
class Traffic:
    """Bytes that were read and written."""

    read: int = 0
    written: int = 0


class Scratch:
    """A file of the workspace that is written and read at places, in numbers of one type."""

    def __init__(self, path: Path, dtype: Any, traffic: Traffic) -> None:
        self.path, self.dtype, self._traffic = path, np.dtype(dtype), traffic
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)

    def read(self, out: np.ndarray[Any, Any], place: int) -> None:
        """Fill an array with the numbers that begin at a place."""
        read_into(self._file, out, place * self.dtype.itemsize, self._traffic)

    def advise(self, place: int, count: int) -> None:
        """Say that these numbers are read next."""
        advise(self._file, place * self.dtype.itemsize, count * self.dtype.itemsize)

    def write(self, values: np.ndarray[Any, Any], place: int) -> None:
        """Write an array, whose numbers then begin at a place."""
        array = np.ascontiguousarray(values, self.dtype)
        write_from(self._file, array, place * self.dtype.itemsize, self._traffic)

    @property
    def size(self) -> int:
        """How many numbers the file has."""
        return os.fstat(self._file).st_size // self.dtype.itemsize

    def sync(self) -> None:
        """Wait until the disk has what was written."""
        os.fsync(self._file)

    def close(self) -> None:
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def read_into(file: int, out: np.ndarray[Any, Any], offset: int, traffic: Traffic) -> None:
    """Fill a contiguous array from a file."""
    view = memoryview(out.reshape(-1)).cast("B") if out.size else memoryview(b"")
    done = 0
    while done < len(view):
        count = os.preadv(file, [view[done : done + MOST]], offset + done)
        if count == 0:
            raise OSError(f"laplex.disk: a file ends at byte {offset + done}, where numbers were expected")
        done += count
    traffic.read += done


def write_from(file: int, values: np.ndarray[Any, Any], offset: int, traffic: Traffic) -> None:
    """Write a contiguous array into a file."""
    view = memoryview(values.reshape(-1)).cast("B") if values.size else memoryview(b"")
    done = 0
    while done < len(view):
        done += os.pwrite(file, view[done : done + MOST], offset + done)
    traffic.written += done


def advise(file: int, offset: int, length: int) -> None:
    """Let the system read a part of a file while something else is computed."""
    if length > 0 and hasattr(os, "posix_fadvise"):
        os.posix_fadvise(file, offset, length, os.POSIX_FADV_WILLNEED)
