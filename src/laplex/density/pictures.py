"""Writing pictures, as PNG files with Pillow.

    grid(path, rows, shape)            images in labelled rows, such as inputs, reconstructions and samples
    separate(folder, images, shape)    each image as a file of its own

A file is replaced in one step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from laplex._images import pillow
from laplex._writing import replaced

MODULE = "laplex.density.pictures"
SMALLEST, LARGEST = 96, 256  # pixels of an image in a grid, on its longer side
GAP, MARGIN = 4, 12  # pixels between images, and around all of them
FONT, LINE, LABEL = 16, 22, 150  # pixels: the size of letters, of a line, and of the widest label

Rows = Sequence[tuple[str, Tensor]]
Shape = tuple[int, int, int]


def grid(path: str | Path, rows: Rows, shape: Shape) -> None:
    """Write rows of images to one PNG file. Tiny images are magnified, large ones are reduced.

    Args:
        path: the file.
        rows: a label and images (m, n) for each row, floating point from 0 to 1 or uint8; values beyond are clamped.
        shape: (height, width, channels) of an image, with n numbers; 1 channel or 3.
    """
    where = f"{MODULE}.grid"
    pillow(where)  # raises before anything is done
    _check_rows(where, rows, shape)
    tiles = [[_tile(one, shape) for one in images] for _, images in rows]
    with replaced(Path(path)) as file:
        _sheet([_text(label) for label, _ in rows], tiles).save(file, format="PNG")


def separate(folder: str | Path, images: Mapping[str, Tensor], shape: Shape) -> list[Path]:
    """Write each image to a PNG file of its own size, such as samples-0001.png, and return the paths.

    Args:
        folder: where the files go; it must exist.
        images: images (m, n) by label, which begins their file names; otherwise like the rows of :func:`grid`.
        shape: see :func:`grid`.
    """
    where = f"{MODULE}.separate"
    image_module, _ = pillow(where)
    _check_rows(where, list(images.items()), shape)
    written = []
    for label, some in images.items():
        for number, image in enumerate(some, 1):
            path = Path(folder) / f"{label.replace(' ', '-')}-{number:04}.png"
            pixels = _pixels(image, shape).numpy()
            with replaced(path) as file:
                image_module.fromarray(pixels[..., 0] if shape[2] == 1 else pixels).save(file, format="PNG")
            written.append(path)
    return written


def _check_rows(where: str, rows: Rows, shape: Shape) -> None:
    if len(shape) != 3 or min(shape) < 1 or shape[2] not in (1, 3):
        raise ValueError(
            f"{where}: `shape` must be (height, width, channels) with 1 or 3 channels, got {tuple(shape)}; use that of "
            "the images"
        )
    height, width, channels = shape
    n = height * width * channels
    if not rows:
        raise ValueError(f"{where}: `rows` must have at least one row, got none; give a label and images (m, n)")
    for label, images in rows:
        if images.dim() != 2 or images.shape[0] == 0 or images.shape[1] != n:
            raise ValueError(
                f"{where}: `rows` must have images (m, {n}) of {height} x {width} x {channels}, one or more per row, "
                f"got shape {tuple(images.shape)} in {label!r}; use .flatten(1)"
            )
        if not images.isfinite().all():
            raise ValueError(f"{where}: `rows` must be finite, got NaN or infinity in {label!r}; look at the fit")


def _tile(image: Tensor, shape: Shape) -> Any:
    """One image (n,) at the size at which it is shown."""
    from PIL import Image

    picture, side = Image.fromarray(_pixels(image, shape).expand(*shape[:2], 3).numpy()), max(shape[:2])
    if side < SMALLEST:
        times = -(-SMALLEST // side)
        return picture.resize((shape[1] * times, shape[0] * times), Image.Resampling.NEAREST)
    if side > LARGEST:
        size = max(round(shape[1] * LARGEST / side), 1), max(round(shape[0] * LARGEST / side), 1)
        return picture.resize(size, Image.Resampling.LANCZOS)
    return picture


def _pixels(image: Tensor, shape: Shape) -> Tensor:
    """The bytes (height, width, channels) of an image (n,)."""
    values = image.detach().cpu().reshape(shape)
    return values if values.dtype == torch.uint8 else (values.float().clamp(0, 1) * 255).round().to(torch.uint8)


def _text(text: str) -> Any:
    """A label as an image just large enough, in lines no wider than ``LABEL`` if its words allow."""
    from PIL import Image, ImageDraw, ImageFont

    font = ImageFont.load_default(FONT)
    lines: list[str] = []
    for word in text.split():
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and font.getlength(longer) <= LABEL:
            lines[-1] = longer
        else:
            lines.append(word)
    width = max((int(font.getlength(line)) + 1 for line in lines), default=0)
    image = Image.new("RGB", (width, LINE * len(lines)), "white")
    for index, line in enumerate(lines):
        place = (width / 2, LINE * (index + 0.5))
        ImageDraw.Draw(image).text(place, line, fill="black", font=font, anchor="mm")
    return image


def _sheet(labels: list[Any], tiles: list[list[Any]]) -> Any:
    """The whole picture, with a label to the left of each row."""
    from PIL import Image

    width, height = tiles[0][0].size
    left = 2 * MARGIN + max(one.width for one in labels)
    columns, rows = max(map(len, tiles)), len(tiles)
    size = left + columns * (width + GAP) - GAP + MARGIN, 2 * MARGIN + rows * (height + GAP) - GAP
    sheet = Image.new("RGB", size, "white")
    for row, (label, images) in enumerate(zip(labels, tiles, strict=True)):
        y = MARGIN + row * (height + GAP)
        sheet.paste(label, (left - MARGIN - label.width, y + (height - label.height) // 2))
        for column, image in enumerate(images):
            sheet.paste(image, (left + column * (width + GAP), y))
    return sheet
