"""The .npy file of the result, which has its name only when it is complete."""

from __future__ import annotations

import io
import math
import os
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np

from laplex.disk._files import Traffic, write_from


class Output:
    """A .npy file of shape (*lead, n), written in blocks of columns under another name next to its own.

    Args:
        path: its name when it is complete.
        shape, dtype: those of the array.
        traffic: counts the bytes that are written.
    """

    def __init__(self, path: Path, shape: tuple[int, ...], dtype: np.dtype[Any], traffic: Traffic) -> None:
        self.path, self.unfinished = path, path.with_name(f".{path.name}.unfinished")
        self.m, self.n, self.dtype = math.prod(shape[:-1]), shape[-1], dtype
        self._traffic = traffic
        self._file: FileIO | None = None
        header = io.BytesIO()
        about = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(header, about)
        self._header = header.getvalue()

    @property
    def bytes(self) -> int:
        """The size of the complete file."""
        return len(self._header) + self.m * self.n * self.dtype.itemsize

    def open(self, *, resumed: bool, where: str) -> None:
        """Make the unfinished file, or open that of an earlier run."""
        if resumed and not (self.unfinished.exists() and self.unfinished.stat().st_size == self.bytes):
            raise ValueError(
                f"{where}: the unfinished result {self.unfinished} is missing or was changed; delete the workspace to "
                "start over"
            )
        self.unfinished.touch()
        self._file = FileIO(self.unfinished, "r+")
        self._file.truncate(self.bytes)
        self._file.write(self._header)

    def write(self, block: np.ndarray[Any, Any], first: int) -> None:
        """Write columns (m, count) that begin with ``first``."""
        assert self._file is not None
        for row in range(self.m):
            offset = len(self._header) + (row * self.n + first) * self.dtype.itemsize
            write_from(self._file, np.ascontiguousarray(block[row]), offset, self._traffic)

    def sync(self) -> None:
        if self._file is not None:
            os.fsync(self._file.fileno())

    def finish(self) -> None:
        """Give the complete file its name; again, if that was done before."""
        self.sync()
        self.close()
        if self.unfinished.exists():
            os.replace(self.unfinished, self.path)
            _sync_folder(self.path.parent)

    def discard(self) -> None:
        """Delete the unfinished file."""
        self.close()
        self.unfinished.unlink(missing_ok=True)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _sync_folder(folder: Path) -> None:
    """Wait until the disk has the names of a folder's files; not every system can."""
    if os.name == "posix":
        opened = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)
