"""Pictures out: grids of images, and plots of what a density learned.

    grid(path, rows, shape)                   images in labelled rows, such as inputs, reconstructions and samples
    separate(folder, images, shape)           each image as a file of its own
    places(path, before, after, shape)        where the pixels lie on the line, drawn where they lie in the image
    spectrum(path, curves)                    eigenvalues of covariances
    likelihoods(path, curves, levels)         likelihood against seconds

A file is replaced in one step. Grids need Pillow, plots need matplotlib.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from laplex._images import pillow
from laplex._writing import COLORS, SIZE, replaced

MODULE = "laplex.density.pictures"
SMALLEST, LARGEST = 96, 256  # pixels of an image in a grid, on its longer side
GAP, MARGIN = 4, 12  # pixels between images, and around all of them
FONT, LINE, LABEL = 16, 22, 150  # pixels: the size of letters, of a line, and of the widest label
CROWD = 20  # the longest curve is so many times as long as the shortest: the axis of seconds is logarithmic
MARKS = ("#f3d9a4", "#d5e3d0", "#dcd6ee")  # light enough to stand behind a curve
DASHES = ("--", ":", "-.", (0, (6, 2, 1, 2, 1, 2)))

Rows = Sequence[tuple[str, Tensor]]
Shape = tuple[int, int, int]


# --- Grids of images -------------------------------------------------------------------------------------------------


def grid(path: str | Path, rows: Rows, shape: Shape, titles: Sequence[str] | None = None) -> None:
    """Images in rows, as a PNG file. Tiny images are magnified, large ones are reduced.

    Args:
        path: the file.
        rows: a label and images (m, n) for each row, floating point from 0 to 1 or uint8; what lies beyond is cut off.
        shape: (height, width, channels) of an image, with n numbers; 1 channel or 3.
        titles: one for each column, above it.
    """
    where = f"{MODULE}.grid"
    pillow(where)  # an error before anything is done
    _check_rows(where, rows, shape, titles)
    tiles = [[_tile(one, shape) for one in images] for _, images in rows]
    labels = [_written(label, LABEL) for label, _ in rows]
    heads = [_written(title, tiles[0][0].width) for title in titles or ()]
    with replaced(Path(path)) as file:
        _sheet(labels, heads, tiles).save(file, format="PNG")


def separate(folder: str | Path, images: Mapping[str, Tensor], shape: Shape) -> list[Path]:
    """Each image as a PNG file of its own size, such as samples-0001.png; their paths.

    Args:
        folder: where they are put; it must exist.
        images: images (m, n) under a label, which begins the names of their files; else as the rows of :func:`grid`.
        shape: see :func:`grid`.
    """
    where = f"{MODULE}.separate"
    image_module, _ = pillow(where)
    _check_rows(where, list(images.items()), shape, None)
    written = []
    for label, some in images.items():
        for number, image in enumerate(some, 1):
            path = Path(folder) / f"{label.replace(' ', '-')}-{number:04}.png"
            pixels = _pixels(image, shape).numpy()
            with replaced(path) as file:
                image_module.fromarray(pixels[..., 0] if shape[2] == 1 else pixels).save(file, format="PNG")
            written.append(path)
    return written


def _check_rows(where: str, rows: Rows, shape: Shape, titles: Sequence[str] | None) -> None:
    _check_shape(where, shape)
    height, width, channels = shape
    n = height * width * channels
    if not rows:
        raise ValueError(f"{where}: `rows` must have at least one row, got none; give a label and images (m, n)")
    for label, images in rows:
        if images.dim() != 2 or images.shape[0] == 0 or images.shape[1] != n:
            raise ValueError(
                f"{where}: `rows` must have images (m, {n}) of {height} x {width} x {channels}, one or more a row, "
                f"got shape {tuple(images.shape)} in {label!r}; use .flatten(1)"
            )
        if not images.isfinite().all():
            raise ValueError(f"{where}: `rows` must be finite, got NaN or infinity in {label!r}; look at the fit")
    columns = max(len(images) for _, images in rows)
    if titles is not None and len(titles) != columns:
        raise ValueError(
            f"{where}: `titles` must be one for each of the {columns} columns, got {len(titles)}; leave them out"
        )


def _check_shape(where: str, shape: Shape) -> None:
    if len(shape) != 3 or min(shape) < 1 or shape[2] not in (1, 3):
        raise ValueError(
            f"{where}: `shape` must be (height, width, channels) with 1 or 3 channels, got {tuple(shape)}; use that of "
            "the images"
        )


def _tile(image: Tensor, shape: Shape) -> Any:
    """One image (n,) at the size it is shown."""
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


def _written(text: str, widest: int) -> Any:
    """A text as an image just large enough, in lines that are no wider than this if words allow it."""
    from PIL import Image, ImageDraw, ImageFont

    font = ImageFont.load_default(FONT)
    lines: list[str] = []
    for word in text.split():
        longer = f"{lines[-1]} {word}" if lines else word
        if lines and font.getlength(longer) <= widest:
            lines[-1] = longer
        else:
            lines.append(word)
    width = max((int(font.getlength(line)) + 1 for line in lines), default=0)
    image = Image.new("RGB", (width, LINE * len(lines)), "white")
    for index, line in enumerate(lines):
        place = (width / 2, LINE * (index + 0.5))
        ImageDraw.Draw(image).text(place, line, fill="black", font=font, anchor="mm")
    return image


def _sheet(labels: list[Any], heads: list[Any], tiles: list[list[Any]]) -> Any:
    """Everything in its place: heads above the columns, labels at the left of the rows."""
    from PIL import Image

    width, height = tiles[0][0].size
    left = 2 * MARGIN + max(one.width for one in labels)
    top = MARGIN + max((one.height + GAP for one in heads), default=0)
    columns, rows = max(map(len, tiles)), len(tiles)
    size = left + columns * (width + GAP) - GAP + MARGIN, top + rows * (height + GAP) - GAP + MARGIN
    sheet = Image.new("RGB", size, "white")
    for column, head in enumerate(heads):
        sheet.paste(head, (left + column * (width + GAP) + (width - head.width) // 2, top - GAP - head.height))
    for row, (label, images) in enumerate(zip(labels, tiles, strict=True)):
        y = top + row * (height + GAP)
        sheet.paste(label, (left - MARGIN - label.width, y + (height - label.height) // 2))
        for column, image in enumerate(images):
            sheet.paste(image, (left + column * (width + GAP), y))
    return sheet


# --- Plots -----------------------------------------------------------------------------------------------------------


def places(path: str | Path, before: Tensor, after: Tensor, shape: Shape) -> None:
    """The places of pixels on the line, as colours over their positions in the image, before and after the jumps.

    Args:
        path: the file.
        before, after (n,): places, from 0 to 1 for instance. Of several channels the first is drawn.
        shape: (height, width, channels) of an image, with n numbers.
    """
    where = f"{MODULE}.places"
    _check_shape(where, shape)
    n = shape[0] * shape[1] * shape[2]
    for name, value in (("before", before), ("after", after)):
        if value.shape != (n,):
            raise ValueError(
                f"{where}: `{name}` must be one place for each of the {n} numbers of an image of shape {tuple(shape)}, "
                f"got shape {tuple(value.shape)}; give the row anchors"
            )
    drawn = [one.detach().float().cpu().reshape(shape)[..., 0].numpy() for one in (before, after)]
    low, high = min(float(one.min()) for one in drawn), max(float(one.max()) for one in drawn)
    figure = _figure(where, (2 * SIZE[1], SIZE[1] * min(max(shape[0] / shape[1], 0.4), 2.5)))
    panels = figure.subplots(1, 2)
    for axes, one, name in zip(panels, drawn, ("before the jumps", "after the jumps"), strict=True):
        shown = axes.imshow(one, cmap="viridis", vmin=low, vmax=high)
        axes.set(title=name, xlabel="column of the image", ylabel="row of the image")
    figure.colorbar(shown, ax=list(panels), label="place on the line", shrink=0.85)
    first = ", the red channel" if shape[2] == 3 else ""
    figure.suptitle(f"Places of pixels{first}: a like colour means close on the line")
    _save(path, figure)


def spectrum(path: str | Path, curves: Mapping[str, Tensor], title: str = "Spectrum of the covariance") -> None:
    """Eigenvalues against their index, the largest first, both logarithmic.

    Args:
        path: the file.
        curves: eigenvalues (any number,) under a label, in any order; those that are not positive are left out.
        title: above the plot.
    """
    where = f"{MODULE}.spectrum"
    _check_curves(where, curves)
    figure = _figure(where, SIZE)
    axes = figure.subplots()
    for (label, values), color in zip(curves.items(), cycle(COLORS), strict=False):
        ordered = values.detach().double().cpu().sort(descending=True).values
        ordered = ordered[ordered > 0]
        marker = "o" if len(ordered) == 1 else ""
        axes.plot(torch.arange(1, len(ordered) + 1).numpy(), ordered.numpy(), label=label, color=color, marker=marker)
    axes.set(xscale="log", yscale="log", xlabel="index of the eigenvalue", ylabel="eigenvalue (variance)", title=title)
    _finish(axes)
    _save(path, figure)


def likelihoods(
    path: str | Path,
    curves: Mapping[str, Sequence[tuple[float, float]]],
    levels: Mapping[str, float] | None = None,
    *,
    marks: Mapping[str, Sequence[float]] | None = None,
    label: str = "log-likelihood (nats an image)",
    title: str = "Likelihood against time",
) -> None:
    """Likelihood against seconds.

    Args:
        path: the file.
        curves: (seconds, value) pairs under a label.
        levels: values under a label, drawn as horizontal lines: what a baseline reaches, for instance.
        marks: seconds under a label, drawn as light vertical lines: where something was changed, for instance.
        label: of the values.
        title: above the plot.
    """
    where, levels = f"{MODULE}.likelihoods", levels or {}
    _check_curves(where, curves)
    figure = _figure(where, SIZE)
    axes = figure.subplots()
    for (name, points), color in zip(curves.items(), cycle(COLORS), strict=False):
        seconds, values = zip(*sorted(points), strict=True)
        axes.plot(seconds, values, label=name, color=color, marker="o", markersize=3)
    for (name, value), dash in zip(levels.items(), cycle(DASHES), strict=False):
        axes.axhline(value, label=name, color="#777777", linestyle=dash)
    for (name, moments), color in zip((marks or {}).items(), cycle(MARKS), strict=False):
        for number, moment in enumerate(moments):
            axes.axvline(moment, label=None if number else name, color=color, linewidth=3, zorder=0)
    ends = [max(points)[0] for points in curves.values()]
    if max(ends) > CROWD * min(ends) > 0:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:,g}")
    axes.set(xlabel="seconds", ylabel=label, title=title)
    _cut(axes, [max(points)[1] for points in curves.values()] + list(levels.values()))
    axes.yaxis.set_major_formatter("{x:,.6g}")
    _finish(axes)
    _save(path, figure)


def _cut(axes: Any, reached: list[float]) -> None:
    """Show what was reached; a curve that starts far below it comes in from the lower edge."""
    lowest, highest = axes.dataLim.intervaly
    bottom = min(reached) - 2 * (max(reached) - min(reached))
    if lowest < bottom < min(reached):
        axes.set_ylim(bottom, highest + 0.05 * (highest - bottom))


def _check_curves(where: str, curves: Mapping[str, Any]) -> None:
    empty = [label for label, points in curves.items() if len(points) == 0]
    if empty or not curves:
        raise ValueError(
            f"{where}: `curves` must have at least one curve, and each at least one point, got "
            f"{f'none in {empty[0]!r}' if empty else 'none'}; leave out what was not measured"
        )


def _figure(where: str, size: tuple[float, float]) -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError(f"{where}: plots need matplotlib, which is missing; pip install matplotlib") from None
    return Figure(figsize=size, layout="constrained")


def _finish(axes: Any) -> None:
    axes.grid(color="#e4e4e4")
    axes.legend(fontsize=8)


def _save(path: str | Path, figure: Any) -> None:
    with replaced(Path(path)) as file:
        figure.savefig(file, format="png", dpi=150)
