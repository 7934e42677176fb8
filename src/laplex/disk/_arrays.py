"""The arguments, wherever they are: files of numbers, which are read in blocks, or arrays that are in memory anyway.

The numbers of a memory map are read from its file, not through the map, because pages that have been read through a
map count as memory of the process.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import struct
import tokenize
import zlib
from collections.abc import Iterable, Iterator
from io import FileIO
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from laplex.disk._files import WHERE, advise, read_into, settle_time

DTYPES = {np.dtype("float32"), np.dtype("float64")}
SAFETENSORS = {"F32": "float32", "F64": "float64"}
MOST_HEADER = 100 << 20  # bytes of a safetensors header: the limit of the format
PROBES, PROBE = 16, 1024  # places in a file, and numbers read at each, to tell files apart
MAPS = Path("/proc/self/maps")  # lists what is mapped into this process, on Linux
DIGESTED = 1 << 20  # numbers in memory that are hashed at a time


class Region(NamedTuple):
    """Numbers in a file, in C order."""

    path: Path
    offset: int  # of the first number, in bytes
    dtype: np.dtype[Any]
    shape: tuple[int, ...]


class Stored:
    """One argument as rows (m, size), read in blocks of columns.

    Args:
        shape: the shape of the argument, (..., size).
        region: the numbers, if they are in a file.
        array: the numbers (m, size), if they are in memory.
    """

    def __init__(self, shape: tuple[int, ...], region: Region | None, array: Any) -> None:
        self.shape, self.size, self.m = shape, shape[-1], math.prod(shape[:-1])
        self.region, self._numbers = region, array
        self.dtype: np.dtype[Any] = array.dtype if region is None else region.dtype
        self._file = None if region is None else FileIO(region.path)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def read(self, first: int, last: int, *, ahead: int = 0) -> np.ndarray[Any, Any]:
        """Columns [first, last) of all rows, (m, last - first). The system may prefetch the ``ahead`` columns after."""
        if self._file is None:
            return np.array(self._numbers[:, first:last])
        block = np.empty((self.m, last - first), self.dtype)
        for row in range(self.m):
            read_into(self._file, block[row], self._place(row, first))
        for row in range(self.m if ahead else 0):
            advise(self._file, self._place(row, last), min(ahead, self.size - last) * self.dtype.itemsize)
        return block

    def _place(self, row: int, column: int) -> int:
        assert self.region is not None
        return self.region.offset + (row * self.size + column) * self.dtype.itemsize

    def identity(self) -> dict[str, Any]:
        """Properties that tell this argument from another of the same name; most of a file is not read for this."""
        known: dict[str, Any] = {"shape": list(self.shape), "dtype": self.dtype.name, "digest": self._digest()}
        if self._file is not None:
            settle_time(self._file)
            status = os.fstat(self._file.fileno())
            known |= {"file size": status.st_size, "file time": status.st_mtime_ns}
        return known

    def _digest(self) -> int:
        """A checksum of some of a file's numbers (its time covers the rest), or of all numbers if in memory."""
        digest = 0
        if self._file is None:
            for row in self._numbers:
                for first in range(0, self.size, DIGESTED):
                    digest = zlib.crc32(np.ascontiguousarray(row[first : first + DIGESTED]).view(np.uint8).data, digest)
            return digest
        for first, last in _probes(self.size) if self.m else ():
            digest = zlib.crc32(self.read(first, last).tobytes(), digest)
        return digest


def _probes(size: int) -> Iterator[tuple[int, int]]:
    """The spans to compare when not all ``size`` numbers are: the first, the last, and some in between."""
    for start in np.linspace(0, max(size - PROBE, 0), PROBES).astype(np.int64).tolist():
        yield start, min(start + PROBE, size)


def stored(name: str, value: Any) -> Stored:
    """The argument ``name``, from any of the forms that :func:`laplex.disk.linear` accepts."""
    region, array = _located(name, value)
    shape = region.shape if region is not None else array.shape
    dtype = region.dtype if region is not None else array.dtype
    if dtype not in DTYPES:
        raise TypeError(f"{WHERE}: `{name}` must be float32 or float64 of this machine's byte order, got {dtype}")
    if not shape:
        raise ValueError(f"{WHERE}: `{name}` must have at least one dimension, got a scalar; use a shape of (1,)")
    if region is None:
        array = _rows(name, array)
    return Stored(shape, region, array)


def _located(name: str, value: Any) -> tuple[Region | None, Any]:
    """Where the numbers are: a region of a file, or an array in memory."""
    if isinstance(value, tuple) and len(value) == 2 and all(isinstance(part, str | os.PathLike) for part in value):
        return _safetensors_region(name, Path(value[0]), str(value[1])), None
    if isinstance(value, str | os.PathLike):
        return _npy_region(name, Path(value)), None
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided or value.device.type != "cpu":
            raise TypeError(
                f"{WHERE}: `{name}` must be a dense tensor on the CPU, got {value.layout} on {value.device}"
            )
        if value.dtype not in (torch.float32, torch.float64):
            raise TypeError(f"{WHERE}: `{name}` must be float32 or float64, got {value.dtype}; call .float()")
        plain = value.detach().resolve_neg()
        region = _tensor_region(plain)
        return region, None if region is not None else plain.numpy()
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"{WHERE}: `{name}` must not have a mask; use {name}.filled() or {name}.compressed()")
    if isinstance(value, np.ndarray):
        region = _memmap_region(value)
        return region, None if region is not None else np.asarray(value)
    raise TypeError(
        f"{WHERE}: `{name}` must be the path of a .npy file, a pair (path of a .safetensors file, name of a tensor), a "
        f"NumPy array or memory map, or a torch.Tensor, got {type(value).__name__}"
    )


def _rows(name: str, array: Any) -> Any:
    """An array in memory, viewed as (m, size)."""
    if array.ndim > 2 and not array.flags.c_contiguous:
        raise ValueError(
            f"{WHERE}: `{name}` with more than two dimensions must be contiguous, got strides {array.strides}"
        )
    return array.reshape(math.prod(array.shape[:-1]), array.shape[-1])


# --- files ------------------------------------------------------------------------------------------------------------


def _npy_region(name: str, path: Path) -> Region:
    required = f"{WHERE}: `{name}` must be a .npy file, got {path}"
    try:
        with path.open("rb") as file:
            version = np.lib.format.read_magic(file)
            read_header = (
                np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            )
            shape, fortran, dtype = read_header(file)
            region = Region(path, file.tell(), dtype, shape)
    except OSError as error:
        raise ValueError(f"{required}, which cannot be read ({error.strerror or error})") from None
    except (ValueError, SyntaxError, tokenize.TokenError) as error:
        hint = "; for a tensor of a safetensors file pass (path, name)" if path.suffix == ".safetensors" else ""
        raise ValueError(f"{required}, which is not one ({error}){hint}") from None
    if fortran and sum(size > 1 for size in shape) > 1:
        raise ValueError(f"{required}, which is in Fortran order; save numpy.ascontiguousarray of it")
    return _complete(required, region)


def _safetensors_region(name: str, path: Path, tensor: str) -> Region:
    """A tensor in a safetensors file: eight bytes with the length of a JSON header, the header, then the numbers."""
    required = f"{WHERE}: `{name}` must be a tensor of a .safetensors file, got {path}"
    try:
        with path.open("rb") as file:
            (length,) = struct.unpack("<Q", file.read(8))
            header = json.loads(file.read(min(length, MOST_HEADER)))
            entries = {key: entry for key, entry in header.items() if key != "__metadata__"}
            places = {key: (one["dtype"], one["shape"], one["data_offsets"]) for key, one in entries.items()}
    except OSError as error:
        raise ValueError(f"{required}, which cannot be read ({error.strerror or error})") from None
    except (ValueError, AttributeError, LookupError, TypeError, struct.error):
        raise ValueError(f"{required}, which is not a safetensors file, or is damaged") from None
    if tensor not in places:
        raise ValueError(f"{required}, which has no tensor {tensor!r}; it has {', '.join(sorted(places)) or 'none'}")
    kind, shape, extent = places[tensor]
    if not isinstance(kind, str) or kind not in SAFETENSORS:
        raise TypeError(f"{WHERE}: `{name}` must be float32 or float64, got {kind} in {path}")
    dtype = np.dtype(SAFETENSORS[kind])
    sizes = all(isinstance(part, list) and _are_sizes(part) for part in (shape, extent)) and len(extent) == 2
    if not sizes or extent[1] - extent[0] != math.prod(shape) * dtype.itemsize:
        got = f"a shape of {shape} in {dtype} and offsets of {extent}"
        raise ValueError(f"{required}, which is damaged: its header has {got}")
    return _complete(required, Region(path, 8 + length + extent[0], dtype, tuple(shape)))


def _are_sizes(values: Iterable[object]) -> bool:
    return all(type(value) is int and value >= 0 for value in values)


def _complete(required: str, region: Region) -> Region:
    if not _are_sizes(region.shape):
        raise ValueError(f"{required}, which is damaged: its header has a shape of {region.shape}")
    size = math.prod(region.shape) * region.dtype.itemsize
    if region.path.stat().st_size < region.offset + size:
        raise ValueError(f"{required}, which is cut short: {region.shape} of {region.dtype} do not fit into its size")
    return region


# --- memory maps ------------------------------------------------------------------------------------------------------


def _memmap_region(array: np.ndarray[Any, Any]) -> Region | None:
    """The file behind a memory map or a part of one; None if the numbers may differ from those of the file."""
    mapped = getattr(array, "_mmap", None)
    path = getattr(array, "filename", None)
    if not isinstance(array, np.memmap) or mapped is None or path is None or array.mode == "c":
        return None
    if not array.flags.c_contiguous or array.size == 0:
        return None
    if array.mode in ("r+", "w+"):
        array.flush()
    begin = np.frombuffer(mapped, np.uint8).ctypes.data
    start = array.offset - array.offset % mmap.ALLOCATIONGRANULARITY  # where in the file the map starts
    return _still_there(Region(Path(path), start + array.ctypes.data - begin, array.dtype, array.shape), array)


def _tensor_region(value: torch.Tensor) -> Region | None:
    """The file behind a tensor of ``torch.from_file(..., shared=True)`` or a part of one."""
    path = value.untyped_storage().filename
    if path is None or not value.is_contiguous() or value.numel() == 0:
        return None
    offset = int(value.storage_offset()) * value.element_size()
    array = value.numpy()
    return _still_there(Region(Path(path), offset, array.dtype, tuple(value.shape)), array)


def _still_there(region: Region, array: np.ndarray[Any, Any]) -> Region | None:
    """The region, or None if its path now names a different file from the one mapped: files get replaced."""
    if not region.path.is_file() or region.path.stat().st_size < region.offset + array.nbytes:
        return None
    same = _is_mapped_at(region.path, array.ctypes.data) if MAPS.exists() else _has_numbers(region, array)
    return region if same else None


def _is_mapped_at(path: Path, address: int) -> bool:
    """Whether the memory at an address is a map of the file that has this path now.

    A line of MAPS is: first-last permissions offset device inode path. If a file was moved, it shows the new path.
    """
    with MAPS.open(encoding="utf-8", errors="surrogateescape") as lines:
        for line in lines:
            span, *_, name = line.rstrip("\n").split(maxsplit=5)
            first, last = (int(end, 16) for end in span.split("-"))
            if first <= address < last:
                return name == os.path.realpath(path)
    return False


def _has_numbers(region: Region, array: np.ndarray[Any, Any]) -> bool:
    """Whether some of an array's numbers are still in the file, where the array was mapped from."""
    mapped = array.reshape(-1)
    for first, last in _probes(array.size):
        offset = region.offset + first * array.itemsize
        on_disk = np.fromfile(region.path, region.dtype, last - first, offset=offset)
        if on_disk.tobytes() != mapped[first:last].tobytes():
            return False
    return True
