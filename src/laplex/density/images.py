"""Reading images as rows of numbers: a folder, one image, an .npz file of packed images or arrays, or an .npy file.

    load("photographs", side=64)       a folder, searched with its subfolders; images of any size become squares
    load("photograph.jpg")             one image
    load("photographs.npz:train")      one part of an .npz file; ":train" may be left out if the file has only one
    load("pixels.npy")                 (N, height, width, channels), (N, height, width) or (N, n), mapped into memory
    bundled()                          a small set that comes with laplex

Packed images are one array of bytes, 1-dimensional and uint8, and one array of offsets: image i of `jpeg` and `off` is
jpeg[off[i]:off[i + 1]], a whole file of any format that Pillow opens. `webp_train` belongs to `off_train` and is the
part "train" of its file; `jpeg` belongs to `off` and is the part "jpeg". The part of an array of images has its name.

Images with transparent pixels are put on white: the colour that a file stores for a transparent pixel is arbitrary.
"""

from __future__ import annotations

import math
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from laplex import _progress
from laplex._checks.counts import integer
from laplex._images import SUFFIXES, Array, Header, Source, decoded, decoder, headers, tell_skipped

WHERE = "laplex.density.images.load"
SOURCES = "a folder of images, an image, an .npz or an .npy file"
DTYPES = tuple(map(np.dtype, (np.uint8, np.float16, np.float32, np.float64)))

Kind = tuple[tuple[int, ...], "np.dtype[Any]"]  # shape and dtype of an array that is not read yet
Shape = tuple[int, int, int]


@dataclass(frozen=True)
class Pictures:
    """Images as rows of numbers.

    Attributes:
        values (N, n): uint8, which counts in units of 1/255, or floating point. Those of an .npy file are read from it
            as they are used, and must not be written to.
        shape: (height, width, channels) of an image, whose n numbers are in this order; None if the file does not say.
        skipped: the names of images that could not be read.
    """

    values: Tensor
    shape: Shape | None
    skipped: tuple[str, ...] = ()


def load(
    source: str | Path,
    *,
    side: int | None = None,
    channels: int | None = None,
    count: int | None = None,
    progress: _progress.Progress | None = None,
) -> Pictures:
    """The images of a folder or a file.

    Images that cannot be read are skipped, with a warning that counts and names them.

    Args:
        source: a folder, an image, an .npz file with or without ":" and the name of a part, or an .npy file.
        side: the side of the squares; images are resized to cover it and cropped at the centre. Required for a folder.
            One image and packed images keep their size if it is left out. Arrays are not resized: for (N, n) it gives
            the shape.
        channels: 3 for RGB, 1 for grey; taken from the images if it is left out, and then they must all agree.
        count: how many images to read: the first that can be read; the others are not decoded. All if it is left out.
        progress: called with the number of images decoded so far and the total; None shows a bar.
    """
    side = None if side is None else integer(WHERE, "side", side)
    if channels not in (None, 1, 3):
        raise ValueError(f"{WHERE}: `channels` must be 1 or 3, got {channels!r}; use 1 for grey and 3 for RGB")
    count = None if count is None else integer(WHERE, "count", count)
    path, part = _named(source)
    content = _content(path, part, side)
    if not isinstance(content, list):
        pictures = _from_array(path, content, side, channels)
        return replace(pictures, values=pictures.values[:count])
    square = _decoder(path, content, side, channels)
    pixels, read = decoded(content, square, progress, count)
    skipped = tuple(one.name for one, good in zip(content, read) if not good)
    if skipped == (str(path),):
        raise ValueError(f"{WHERE}: `source` must be {SOURCES}, got {path}, which is not an image that Pillow can read")
    tell_skipped(WHERE, path, skipped, len(read))
    return Pictures(torch.from_numpy(pixels).flatten(1), (pixels.shape[1], pixels.shape[2], pixels.shape[3]), skipped)


def bundled() -> tuple[Pictures, Pictures]:
    """Photographs that come with laplex, 64 x 64 x 3: 414 to fit, and 64 of other photographs to evaluate.

    They are quarters of 126 photographs in the public domain (CC0), of 1024 x 1024 pixels each, from the wallpapers of
    two Linux distributions. Every quarter was reduced eightfold with the Lanczos filter. Nearly constant quarters, with
    a standard deviation below 0.05 (averaged over channels), were left out. The others were shuffled and saved as JPEG
    of quality 95, with colours at full resolution. No photograph has quarters in both parts.

    The file is photographs.npz next to this module. Its array `credits` names the photographs and their authors;
    image i of the part "train" comes from the photograph credits[credit_train[i]].
    """
    path = Path(__file__).with_name("photographs.npz")
    train, val = (load(f"{path}:{part}", progress=lambda done, total: None) for part in ("train", "val"))
    return train, val


# --- Where the images are --------------------------------------------------------------------------------------------


def _named(source: str | Path) -> tuple[Path, str | None]:
    """The path, and the part of the file after a colon."""
    stem, mark, part = str(source).rpartition(".npz:")
    path = Path(f"{stem}.npz" if mark else source)
    if not path.exists():
        raise ValueError(f"{WHERE}: `source` must be {SOURCES}, got {path}, which does not exist; check the path")
    return path, part if mark else None


def _content(path: Path, part: str | None, side: int | None) -> list[Source] | Array:
    """Images to decode, or an array."""
    if path.is_dir():
        return _in_folder(path, side)
    if path.suffix == ".npz":
        return _in_npz(path, part)
    if path.suffix == ".npy":
        with _translated(path):
            mapped: Array = np.load(path, mmap_mode="r")
        return mapped
    return [Source(str(path), path.read_bytes)]


def _in_folder(root: Path, side: int | None) -> list[Source]:
    paths = sorted(path for path in root.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())
    if not paths:
        raise ValueError(
            f"{WHERE}: `source` must be a folder with images ({', '.join(SUFFIXES)}), got {root}, where neither it nor "
            "its subfolders have any; check the path"
        )
    if side is None:
        raise ValueError(
            f"{WHERE}: `side` must be given for a folder, got none for the {len(paths)} images of {root}; give the "
            "pixels of a side, such as 64"
        )
    return [Source(str(path), path.read_bytes) for path in paths]


def _in_npz(path: Path, part: str | None) -> list[Source] | Array:
    with _translated(path), zipfile.ZipFile(path) as file:
        names = [name.removesuffix(".npy") for name in file.namelist() if name.endswith(".npy")]
        kinds = {name: _kind(file, name) for name in names}
    chosen = _chosen(path, part, kinds)
    with _translated(path), zipfile.ZipFile(path) as file:
        arrays = [_array(file, name) for name in chosen]
    return arrays[0] if len(arrays) == 1 else _unpacked(path, chosen, arrays[0], arrays[1])


def _chosen(path: Path, part: str | None, kinds: dict[str, Kind]) -> tuple[str, ...]:
    """The names of the arrays of a part: packed images and their offsets, or one array."""
    parts = _parts(kinds)
    if not parts:
        have = ", ".join(f"{name} {dtype} {shape}" for name, (shape, dtype) in kinds.items()) or "nothing"
        raise ValueError(
            f"{WHERE}: `source` must have packed images with their offsets, such as jpeg and off, or an array of "
            f"images, uint8 or floating point, got {path} with {have}; save it with numpy.savez"
        )
    if part is None and len(parts) == 1:
        return next(iter(parts.values()))
    if part not in parts:
        got = f"no part for {path}" if part is None else f"the part {part} of {path}"
        raise ValueError(
            f"{WHERE}: `source` must name one of the parts {', '.join(parts)}, got {got}; write {path.name}:"
            f"{next(iter(parts))}, for instance"
        )
    return parts[part]


def _parts(kinds: dict[str, Kind]) -> dict[str, tuple[str, ...]]:
    parts: dict[str, tuple[str, ...]] = {}
    for name, (shape, dtype) in kinds.items():
        ending = name.partition("_")[2]
        if len(shape) in (2, 3, 4) and dtype in DTYPES:
            parts[name] = (name,)
        elif len(shape) == 1 and dtype == np.uint8 and ending and f"off_{ending}" in kinds:
            parts[ending] = (name, f"off_{ending}")
        elif len(shape) == 1 and dtype == np.uint8 and "off" in kinds:
            parts[name] = (name, "off")
    return parts


def _unpacked(path: Path, names: Sequence[str], data: Array, ends: Array) -> list[Source]:
    good = ends.ndim == 1 and ends.dtype.kind in "iu" and len(ends) > 1
    if not good or ends[0] < 0 or ends[-1] > len(data) or (ends[1:] < ends[:-1]).any():
        raise ValueError(
            f"{WHERE}: `{names[1]}` must be at least two offsets that rise from 0 to at most the {len(data)} bytes of "
            f"`{names[0]}`, got {ends.dtype} {ends.shape} in {path}; image i is {names[0]}[{names[1]}[i]:"
            f"{names[1]}[i + 1]]"
        )
    pieces = zip(ends[:-1].tolist(), ends[1:].tolist(), strict=True)
    return [Source(f"{path}[{index}]", data[begin:end].tobytes) for index, (begin, end) in enumerate(pieces)]


# --- Files of NumPy --------------------------------------------------------------------------------------------------


@contextmanager
def _translated(path: Path) -> Iterator[None]:
    """Turn what NumPy and zipfile raise into an error that names the file."""
    try:
        yield
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        reason = getattr(error, "strerror", None) or error
        raise ValueError(
            f"{WHERE}: `source` must be a readable {path.suffix} file, got {path} ({reason}); check the file"
        ) from None


def _kind(file: zipfile.ZipFile, name: str) -> Kind:
    """Shape and dtype, read from the header: the rest of a file may be gigabytes."""
    with file.open(f"{name}.npy") as stream:
        old = np.lib.format.read_magic(stream) == (1, 0)
        read = np.lib.format.read_array_header_1_0 if old else np.lib.format.read_array_header_2_0
        shape, _, dtype = read(stream)
    return shape, dtype


def _array(file: zipfile.ZipFile, name: str) -> Array:
    with file.open(f"{name}.npy") as stream:
        array: Array = np.lib.format.read_array(stream, allow_pickle=False)
    return array


# --- Rows of numbers -------------------------------------------------------------------------------------------------


def _decoder(
    path: Path, sources: list[Source], side: int | None, channels: int | None
) -> Callable[[Source], Array | None]:
    """A function that decodes sources into images of one size and number of channels."""
    size = None if side is None else (side, side)
    if size is None or channels is None:
        known = [header for header in headers(WHERE, sources) if header is not None]
        known = known or [Header(1, 1, 1)]  # none can be read, which is reported later
        size = size or _common_size(path, known)
        channels = channels or _common_channels(path, known)
    return decoder(WHERE, size[0], width=size[1], channels=channels, upright=True)


def _common_size(path: Path, known: list[Header]) -> tuple[int, int]:
    sizes = sorted({(one.height, one.width) for one in known})
    if len(sizes) > 1:
        raise ValueError(
            f"{WHERE}: `side` must be given where images differ in size, got none for {path} with images of "
            f"{len(sizes)} sizes, such as {sizes[0]} and {sizes[-1]}; give the pixels of a side, such as 64"
        )
    return sizes[0]


def _common_channels(path: Path, known: list[Header]) -> int:
    grey = sum(one.channels == 1 for one in known)
    if 0 < grey < len(known):
        raise ValueError(
            f"{WHERE}: `channels` must be given where grey images are among coloured ones, got none for {path} with "
            f"{grey} grey and {len(known) - grey} coloured images; pass channels=3, or 1 to make all of them grey"
        )
    return 1 if grey else 3


def _from_array(path: Path, array: Array, side: int | None, channels: int | None) -> Pictures:
    if array.dtype not in DTYPES:
        raise TypeError(
            f"{WHERE}: `source` must be uint8 or floating point, of this machine's byte order, got {array.dtype} in "
            f"{path}; convert it with .astype"
        )
    if array.ndim not in (2, 3, 4) or array.size == 0 or (array.ndim == 4 and array.shape[3] not in (1, 3)):
        raise ValueError(
            f"{WHERE}: `source` must be (N, n), (N, height, width) or (N, height, width, 1 or 3), and not empty, "
            f"got {array.shape} in {path}; move channels to the end with numpy.moveaxis"
        )
    if array.ndim > 2 and not array.flags.c_contiguous:
        raise ValueError(
            f"{WHERE}: `source` must be in C order, got Fortran order in {path}; save numpy.ascontiguousarray of it"
        )
    shape = _array_shape(path, array, side, channels)
    return Pictures(_shared(array.reshape(len(array), -1)), shape)


def _array_shape(path: Path, array: Array, side: int | None, channels: int | None) -> Shape | None:
    """(height, width, channels), which must be as requested; an array (N, n) does not say, but n must fit."""
    if array.ndim == 2:
        if side is None and channels is None:
            return None
        rows = side or 0  # no n fits if only channels is given
        shape = rows, rows, channels or array.shape[1] // max(rows**2, 1)
    else:
        shape = array.shape[1], array.shape[2], array.shape[3] if array.ndim == 4 else 1
    request = (side or shape[0], side or shape[1], channels or shape[2])
    if shape != request or math.prod(shape) != array[0].size or shape[2] not in (1, 3):
        raise ValueError(
            f"{WHERE}: `side` and `channels` must fit an array, which is not resized, got side={side} and "
            f"channels={channels} for {array.shape} in {path}; leave them out"
        )
    return shape


def _shared(array: Array) -> Tensor:
    """A tensor that shares the memory. A copy-on-write map would be refused for a file larger than memory."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)
