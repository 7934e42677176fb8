"""Markdown tables and plots of results."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from laplex._writing import COLORS, SIZE, write_whole


class Point(NamedTuple):
    """A place on a curve, with the standard deviation of y, or with how far y reaches below and above."""

    x: float
    y: float
    deviation: float = 0.0
    above: float | None = None  # as far as below, if not given


class Section(NamedTuple):
    """A table with one paragraph per note below it; a page of several sections gives each a heading."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str]
    heading: str = ""


class Panel(NamedTuple):
    """Curves over a logarithmic x, one per method; ``level`` is a horizontal line for comparison."""

    labels: tuple[str, str]  # of x and y
    curves: dict[str, list[Point]]
    level: Point | None = None
    title: str = ""
    log_y: bool = False
    ticks: Sequence[float] = ()  # of x; the points of the first curve if not given


def percent(mean: float, deviation: float, seeds: int, diverged: int) -> str:
    """A fraction in percent, with its standard deviation over seeds and how many of them diverged."""
    spread = f" ± {100 * deviation:.1f}" if seeds > 1 else ""
    lost = f" ({diverged} of {seeds} diverged)" if diverged else ""
    return f"{100 * mean:.1f}{spread}{lost}"


def page(title: str, sections: Sequence[Section]) -> str:
    """A page with one table per section."""
    parts = [f"# {title}"]
    for section in sections:
        lines = [list(section.header), ["---"] * len(section.header), *map(list, section.rows)]
        table = ["| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines]
        heading = [f"## {section.heading}"] if section.heading else []
        parts += [*heading, "\n".join(table), *section.notes]
    return "\n\n".join(parts) + "\n"


def write(results: Path, title: str, sections: Sequence[Section], panels: Sequence[Panel]) -> None:
    """Write the tables and the plot next to the file of results; without matplotlib only the tables, and say why."""
    text = results.with_name(f"{results.stem}.md")
    write_whole(text, page(title, sections))
    print(f"wrote {text}")
    picture = text.with_suffix(".png")
    try:
        draw(picture, title, panels)
    except ImportError as error:
        print(error, file=sys.stderr)
    else:
        print(f"wrote {picture}")


def draw(path: Path, title: str, panels: Sequence[Panel]) -> None:
    """Panels side by side as an image file, which is complete or not there."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ImportError(
            "paper.experiments.report.draw: plots need matplotlib, which is missing; pip install matplotlib "
            "and run the same command again: no finished run is repeated"
        ) from None
    figure = Figure(figsize=(SIZE[0] * len(panels), SIZE[1]), layout="constrained")
    for axes, panel in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        _fill(axes, panel)
    figure.suptitle(title)
    unfinished = path.with_name(f".{path.name}.tmp")
    figure.savefig(unfinished, format=path.suffix[1:], dpi=150)
    unfinished.replace(path)


def _fill(axes: Any, panel: Panel) -> None:
    for index, (label, points) in enumerate(panel.curves.items()):
        ordered = sorted(points)
        reach = [[one.deviation for one in ordered]]
        reach.append([one.deviation if one.above is None else one.above for one in ordered])
        x, y, color = [one.x for one in ordered], [one.y for one in ordered], COLORS[index % len(COLORS)]
        axes.errorbar(x, y, reach, label=label, color=color, marker="o", markersize=4, capsize=2)
    if panel.level is not None:
        axes.axhline(panel.level.y, color="#999999", linestyle="--", label=f"full, {panel.level.x:,.0f} parameters")
    axes.set_xscale("log")
    if panel.log_y:
        axes.set_yscale("log")
    # The powers of ten alone may all lie outside; the points of the first curve never do.
    places = sorted(panel.ticks or {point.x for point in next(iter(panel.curves.values()), [])})
    axes.set_xticks(places, [f"{place:,.0f}" if place >= 1 else f"{place:g}" for place in places])
    axes.set_xticks([], minor=True)
    axes.set(title=panel.title, xlabel=panel.labels[0], ylabel=panel.labels[1])
    axes.grid(color="#e4e4e4")
    axes.legend(fontsize=8)
