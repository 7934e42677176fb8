"""Images in files: many are decoded at a time, and those that cannot be read are skipped and named."""

from __future__ import annotations

import io
import math
import os
import struct
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from laplex import _progress

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp")
NAMED = 5  # unreadable images that the warning names
THREADS = 8  # decoders release Python's lock; more threads wait for memory
LARGEST = 1 << 28  # numbers of an image: a slip in `side` would fill the memory
DEEP = ("I;16", "I;16B", "I;16L", "I;16N")  # Pillow's modes of 16 bits
WIDE = ("I", "F")  # of 32 bits, which have no alpha
GREY = ("1", "L", "LA", "La", *WIDE, *DEEP)
ORIENTATION = 0x0112  # the tag of EXIF that says how the camera was held; from 5 on height and width change places

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Source:
    """Where one image comes from: how errors name it, and what opens its bytes."""

    name: str
    read: Callable[[], bytes]


class Header(NamedTuple):
    """The size of an image that stands upright; ``channels`` is 1 for grey and 3 for colour."""

    height: int
    width: int
    channels: int


def decoded(
    sources: Sequence[Source],
    square: Callable[[Source], Array | None],
    progress: _progress.Progress | None,
    count: int | None = None,
) -> tuple[Array, Array]:
    """The pixels of the sources that can be read (any number, height, width, channels), and which ones those are.

    Args:
        sources: at least one.
        square: see :func:`decoder`.
        progress: called with the number of images that are decoded, and of all; None shows a bar.
        count: how many to read, the first that can be; None for all. What comes after them is not looked at.
    """
    most = len(sources) if count is None else min(count, len(sources))
    pixels, read, looked, good = np.zeros((0,), np.uint8), np.zeros(len(sources), bool), 0, 0
    with _progress.bar("laplex: decoding images", progress) as report, _pool() as pool:
        while good < most and looked < len(sources):
            for one in pool.map(square, sources[looked : looked + most - good]):
                if one is not None:
                    if good == 0:
                        pixels = np.empty((most, *one.shape), np.uint8)
                    pixels[good], read[looked] = one, True
                    good += 1
                looked += 1
                report(min(looked, most), most)
    return pixels[:good], read[:looked]


def headers(where: str, sources: Sequence[Source]) -> list[Header | None]:
    """Sizes and channels of the sources, None for one that cannot be read."""
    image_module, _ = pillow(where)

    def header(source: Source) -> Header | None:
        try:
            with image_module.open(io.BytesIO(source.read())) as image:
                lies = image.getexif().get(ORIENTATION, 1) >= 5  # the camera was held on its side
                height, width = (image.width, image.height) if lies else (image.height, image.width)
                return Header(height, width, 1 if image.mode in GREY else 3)
        except _failures(image_module):
            return None

    with _pool() as pool:
        return list(pool.map(header, sources))


def decoder(
    where: str,
    side: int,
    *,
    width: int | None = None,
    channels: int = 3,
    upright: bool = False,
    nearest: bool = False,
) -> Callable[[Source], Array | None]:
    """A function from a source to its pixels (side, width, channels) uint8, or None if it cannot be read.

    Transparent pixels are shown over white.

    Args:
        where: names the caller in errors.
        side, width: the image is resized to cover these, and cropped at the centre; a square if only ``side`` is given.
        channels: 3 for RGB, 1 for grey.
        upright: turn the image as its camera says it was held.
        nearest: take the nearest pixel instead of blending, as a mask needs.
    """
    image_module, operations = pillow(where)
    size, mode = (side if width is None else width, side), "RGB" if channels == 3 else "L"
    if math.prod(size) * channels > LARGEST:
        raise ValueError(
            f"{where}: `side` must make images of at most {LARGEST:,} numbers, got {side}; give the pixels of a side, "
            "such as 224"
        )
    method = image_module.Resampling.NEAREST if nearest else image_module.Resampling.BICUBIC

    def square(source: Source) -> Array | None:
        try:
            with image_module.open(io.BytesIO(source.read())) as image:
                turned = operations.exif_transpose(image) if upright else image
                fitted = operations.fit(_converted(turned, mode, image_module), size, method=method)
                return np.asarray(fitted).reshape(side, size[0], channels)
        except _failures(image_module):
            return None

    return square


def tell_skipped(where: str, path: Path, skipped: tuple[str, ...], count: int) -> None:
    """Warn about images that cannot be read; an error if there are no others."""
    if len(skipped) == count:
        raise ValueError(
            f"{where}: `source` must have images that can be read, got {path}, where all {count} fail; open one with "
            f"Pillow to see why, such as {skipped[0]}"
        )
    if skipped:
        named = ", ".join(skipped[:NAMED]) + (", ..." if len(skipped) > NAMED else "")
        warnings.warn(
            f"{where}: {len(skipped)} of {count} images cannot be read and are skipped: {named}", stacklevel=3
        )


def pillow(where: str) -> tuple[Any, Any]:
    """Pillow's modules Image and ImageOps."""
    try:
        from PIL import Image, ImageOps
    except ImportError:
        raise ImportError(f"{where}: images need Pillow, which is missing; pip install pillow") from None
    return Image, ImageOps


def _converted(image: Any, mode: str, image_module: Any) -> Any:
    """The image as RGB or L. Pillow would make every value of 16 bits above 255 white, and show what alpha hides."""
    if image.mode in DEEP:
        image = image_module.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode not in WIDE and image.has_transparency_data:
        white = image_module.new("RGBA", image.size, "white")
        image = image_module.alpha_composite(white, image.convert("RGBA"))
    return image.convert(mode)


def _failures(image_module: Any) -> tuple[type[BaseException], ...]:
    """Pillow raises SyntaxError for some broken headers, and its own error for images too large to be honest."""
    return OSError, ValueError, SyntaxError, struct.error, image_module.DecompressionBombError


def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(min(THREADS, os.cpu_count() or 1))
