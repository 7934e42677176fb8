"""The plots of a fit, drawn with matplotlib. A file is replaced in one step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from laplex._writing import COLORS, SIZE, replaced
from laplex.density.images import Shape

CROWD = 20  # if the longest curve is more than this many times as long as the shortest, seconds are logarithmic
MARKS = ("#f3d9a4", "#d5e3d0")  # light enough to stand behind a curve
DASHES = ("--", ":")


def places(path: Path, before: Tensor, after: Tensor, shape: Shape) -> None:
    """Plot the places (n,) of pixels on the line, before and after the jumps, as colours at their image positions.

    If there are several channels, the first is drawn.
    """
    images = [one.detach().float().cpu().reshape(shape)[..., 0].numpy() for one in (before, after)]
    low, high = min(float(one.min()) for one in images), max(float(one.max()) for one in images)
    figure = _figure((2 * SIZE[1], SIZE[1] * min(max(shape[0] / shape[1], 0.4), 2.5)))
    panels = figure.subplots(1, 2)
    for axes, image, name in zip(panels, images, ("before the jumps", "after the jumps"), strict=True):
        colors = axes.imshow(image, cmap="viridis", vmin=low, vmax=high)
        axes.set(title=name, xlabel="column of the image", ylabel="row of the image")
    figure.colorbar(colors, ax=list(panels), label="place on the line", shrink=0.85)
    channel = ", the red channel" if shape[2] == 3 else ""
    figure.suptitle(f"Places of pixels{channel}: similar colours are close on the line")
    _save(path, figure)


def spectrum(path: Path, curves: Mapping[str, Tensor]) -> None:
    """Plot labelled eigenvalues (any number,) against their index, without those that are not positive."""
    figure = _figure(SIZE)
    axes = figure.subplots()
    for (label, values), color in zip(curves.items(), COLORS):
        ordered = values.detach().double().cpu().sort(descending=True).values
        ordered = ordered[ordered > 0]
        marker = "o" if len(ordered) == 1 else ""
        axes.plot(torch.arange(1, len(ordered) + 1).numpy(), ordered.numpy(), label=label, color=color, marker=marker)
    axes.set(xscale="log", yscale="log", xlabel="index of the eigenvalue", ylabel="eigenvalue (variance)")
    axes.set(title="Spectrum of the covariance")
    _finish(axes)
    _save(path, figure)


def likelihoods(
    path: Path,
    curves: Mapping[str, Sequence[tuple[float, float]]],
    levels: Mapping[str, float],
    marks: Mapping[str, Sequence[float]],
) -> None:
    """Plot likelihood against seconds.

    Args:
        path: the file.
        curves: (seconds, value) pairs by label.
        levels: values by label, drawn as horizontal lines.
        marks: seconds by label at which something changed, drawn as light vertical lines.
    """
    figure = _figure(SIZE)
    axes = figure.subplots()
    for (label, points), color in zip(curves.items(), COLORS):
        seconds, values = zip(*sorted(points), strict=True)
        axes.plot(seconds, values, label=label, color=color, marker="o", markersize=3)
    for (label, value), dash in zip(levels.items(), cycle(DASHES)):
        axes.axhline(value, label=label, color="#777777", linestyle=dash)
    for (label, moments), color in zip(marks.items(), cycle(MARKS)):
        for number, moment in enumerate(moments):
            axes.axvline(moment, label=None if number else label, color=color, linewidth=3, zorder=0)
    ends = [max(points)[0] for points in curves.values()]
    if max(ends) > CROWD * min(ends) > 0:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter("{x:,g}")
    axes.set(xlabel="seconds", ylabel="log-likelihood (nats per image)", title="Likelihood against time")
    _cut(axes, [max(points)[1] for points in curves.values()] + list(levels.values()))
    axes.yaxis.set_major_formatter("{x:,.6g}")
    _finish(axes)
    _save(path, figure)


def _cut(axes: Any, reached: list[float]) -> None:
    """Limit the axis to what was reached; a curve that starts far below comes in from the lower edge."""
    lowest, highest = axes.dataLim.intervaly
    bottom = min(reached) - 2 * (max(reached) - min(reached))
    if lowest < bottom < min(reached):
        axes.set_ylim(bottom, highest + 0.05 * (highest - bottom))


def _figure(size: tuple[float, float]) -> Any:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError("plots need matplotlib, which is missing; pip install matplotlib") from None
    return Figure(figsize=size, layout="constrained")


def _finish(axes: Any) -> None:
    axes.grid(color="#e4e4e4")
    axes.legend(fontsize=8)


def _save(path: Path, figure: Any) -> None:
    with replaced(path) as file:
        figure.savefig(file, format="png", dpi=150)
