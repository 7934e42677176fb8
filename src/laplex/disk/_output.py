"""The .npy file of the result, which gets its name only when it is complete.

Its name before that depends on the product, so that two products with the same ``out`` do not write into one file.
"""

from __future__ import annotations

import io
import json
import math
import os
from hashlib import blake2b
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np

from laplex._writing import locked
from laplex.disk._files import WHERE, write_from


class Output:
    """A .npy file of shape (*lead, n), written in blocks of columns under another name next to its own.

    Args:
        path: its name when it is complete.
        identity: what the product is, as a dictionary for JSON; its "out" is the path.
        shape, dtype: the shape and dtype of the array.
    """

    def __init__(self, path: Path, identity: dict[str, Any], shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self.path, self.unfinished = path, unfinished_path(identity)
        self.m, self.n, self.dtype = math.prod(shape[:-1]), shape[-1], dtype
        self._file: FileIO | None = None
        self._lock: int | None = None
        header = io.BytesIO()
        about = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(header, about)
        self._header = header.getvalue()

    @property
    def bytes(self) -> int:
        """The size of the complete file."""
        return len(self._header) + self.m * self.n * self.dtype.itemsize

    def open(self, *, resumed: bool) -> None:
        """Make the unfinished file, or open that of an earlier run; a lock keeps other processes out."""
        if resumed and not (self.unfinished.exists() and self.unfinished.stat().st_size == self.bytes):
            raise ValueError(
                f"{WHERE}: the unfinished result {self.unfinished} is missing or was changed; delete the "
                "workspace to start over"
            )
        self.unfinished.touch()
        try:
            self._lock = locked(self.unfinished, wait=False)
        except BlockingIOError:
            raise ValueError(
                f"{WHERE}: `out` {self.path} is being written by another process; wait for it, or give another path"
            ) from None
        self._file = FileIO(self.unfinished, "r+")
        self._file.truncate(self.bytes)
        self._file.write(self._header)

    def write(self, block: np.ndarray[Any, Any], first: int) -> None:
        """Write columns (m, count), beginning with column ``first``."""
        assert self._file is not None
        for row in range(self.m):
            offset = len(self._header) + (row * self.n + first) * self.dtype.itemsize
            write_from(self._file, np.ascontiguousarray(block[row]), offset)

    def sync(self) -> None:
        if self._file is not None:
            os.fsync(self._file.fileno())

    def mark(self) -> dict[str, int]:
        """A mark that tells the unfinished file from all others, even under its final name."""
        self.sync()
        return _mark(self.unfinished)

    def is_complete(self, mark: dict[str, int]) -> bool:
        """Whether the file with this mark is still there, under either name."""
        return any(path.is_file() and _mark(path) == mark for path in (self.unfinished, self.path))

    def finish(self, mark: dict[str, int]) -> None:
        """Give the complete file, which has this mark, its final name, unless it has it already."""
        if self._file is not None:
            self._file.close()  # but keep the lock, so that no process opens the file being renamed
            self._file = None
        if self.unfinished.exists() and _mark(self.unfinished) == mark:
            os.replace(self.unfinished, self.path)
            _sync_folder(self.path.parent)
        self.close()

    def discard(self) -> None:
        """Delete the unfinished file."""
        self.unfinished.unlink(missing_ok=True)
        self.close()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


def unfinished_path(identity: dict[str, Any]) -> Path:
    """Where the result of this product is before it is complete."""
    digest = blake2b(json.dumps(identity, sort_keys=True).encode(), digest_size=8).hexdigest()
    path = Path(identity["out"])
    return path.with_name(f".{path.name}.{digest}.unfinished")


def _mark(path: Path) -> dict[str, int]:
    """Two properties of the file that renaming does not change."""
    status = path.stat()
    return {"inode": status.st_ino, "file time": status.st_mtime_ns}


def _sync_folder(folder: Path) -> None:
    """Wait until the names of a folder's files are on the disk; not every system can."""
    if os.name == "posix":
        opened = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)
