"""Markdown tables and plots of results."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from laplex.experiments.record import write_whole

COLORS = ("#1f5fbf", "#c8382c", "#2a9d5c", "#e07b00", "#b8408f", "#555555", "#0a9396", "#9b6a2f", "#7b5ea7")
SIZE = (7.0, 4.6)


class Point(NamedTuple):
    """A place on a curve, with the standard deviation of y."""

    x: float
    y: float
    deviation: float = 0.0


def markdown(title: str, header: Sequence[str], rows: Sequence[Sequence[str]], notes: Sequence[str]) -> str:
    """A page: the title, the table, and one paragraph a note."""
    lines = [list(header), ["---"] * len(header), *map(list, rows)]
    table = ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]
    return "\n".join([f"# {title}", "", *table, *(part for note in notes for part in ("", note))]) + "\n"


def write(
    results: Path,
    title: str,
    page: tuple[Sequence[str], Sequence[Sequence[str]], Sequence[str]],
    labels: tuple[str, str],
    curves: dict[str, list[Point]],
    level: Point | None,
) -> None:
    """The table and the plot beside the file of results; without matplotlib the table alone, and it is said why.

    Args:
        results: the JSON file; the others have its name with .md and .png.
        title: of both.
        page: the header, the rows and the notes of the table.
        labels, curves, level: of the plot, see :func:`draw`.
    """
    text = results.with_name(f"{results.stem}.md")
    write_whole(text, markdown(title, *page))
    print(f"wrote {text}")
    picture = text.with_suffix(".png")
    try:
        draw(picture, title, labels, curves, level)
    except ImportError as error:
        print(error, file=sys.stderr)
    else:
        print(f"wrote {picture}")


def draw(path: Path, title: str, labels: tuple[str, str], curves: dict[str, list[Point]], level: Point | None) -> None:
    """Curves over a logarithmic x, one a method, as an image file; ``level`` is a horizontal line for comparison.

    ``labels`` are those of x and y. The file is complete or not there.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError(
            "laplex.experiments.report.draw: plots need matplotlib, which is missing; pip install laplex[experiments] "
            "and run the same command again: no finished run is repeated"
        ) from None
    figure = Figure(figsize=SIZE, layout="constrained")
    axes = figure.subplots()
    for index, (label, points) in enumerate(curves.items()):
        x, y, deviation = zip(*sorted(points), strict=True)
        color = COLORS[index % len(COLORS)]
        axes.errorbar(x, y, deviation, label=label, color=color, marker="o", markersize=4, capsize=2)
    if level is not None:
        axes.axhline(level.y, color="#999999", linestyle="--", label=f"full, {level.x:,.0f} parameters")
    axes.set_xscale("log")
    # The powers of ten alone may all lie outside; the points of the first curve never do.
    places = sorted({point.x for point in next(iter(curves.values()), [])})
    axes.set_xticks(places, [f"{place:,.0f}" for place in places])
    axes.set_xticks([], minor=True)
    axes.set(title=title, xlabel=labels[0], ylabel=labels[1])
    axes.grid(color="#e4e4e4")
    axes.legend(fontsize=8)
    unfinished = path.with_name(f".{path.name}.tmp")
    figure.savefig(unfinished, format=path.suffix[1:], dpi=150)
    unfinished.replace(path)
