"""The picture and the table of learning rates: which suit kernels, and which nn.Linear, from committed JSON."""

import math
from typing import Any

from matplotlib.figure import Figure

from benchmarks.committed import content
from benchmarks.rate_tables import RATES, rate_points

NAMES = {"AdamW": "AdamW", "SGD": "SGD, momentum 0.9"}
WORST = 8.0  # times the lowest loss: the darkest colour


def draw() -> Figure:
    """Over rates and kernels, a panel for each width and optimizer: the loss over the lowest of its row."""
    points, grids = rate_points(), content(RATES)["rates"]
    widths = sorted({point["width"] for point in points})
    figure = Figure(figsize=(3.4 * len(widths), 5.6), layout="constrained")
    grid = figure.subplots(len(NAMES), len(widths), squeeze=False)
    for line, optimizer in zip(grid, NAMES, strict=True):
        for axes, width in zip(line, widths, strict=True):
            rows = [point for point in points if (point["width"], point["optimizer"]) == (width, optimizer)]
            if not rows:
                axes.set_visible(False)  # not measured
                continue
            mesh = _panel(axes, rows, grids[optimizer])
            axes.set_title(f"{NAMES[optimizer]}, width {width}", fontsize=9)
        line[0].set_ylabel("kernels")
    for axes in grid[-1]:
        axes.set_xlabel("learning rate")
    bar = figure.colorbar(mesh, ax=grid, ticks=[0, 1, 2, 3], shrink=0.7)
    bar.ax.set_yticklabels(["lowest loss", "2 times", "4 times", "8 times or more"], fontsize=8)
    figure.suptitle(
        "Loss of digits at each learning rate, over the lowest of its row. Dots: the best rate.\n"
        "Dashed: the best rate of nn.Linear, half of it, and twice.",
        fontsize=9,
    )
    return figure


def _panel(axes: Any, rows: list[dict[str, Any]], rates: list[float]) -> Any:
    labels = ["nn.Linear" if row["kernels"] == 0 else str(row["kernels"]) for row in rows]
    values = [[math.log2(min(loss / min(row["losses"]), WORST)) for loss in row["losses"]] for row in rows]
    heights = range(len(rows))
    mesh = axes.pcolormesh(rates, heights, values, shading="nearest", cmap="YlGnBu", vmin=0, vmax=math.log2(WORST))
    axes.scatter([row["best"] for row in rows], heights, color="white", edgecolors="black", s=26, zorder=3)
    for factor in (0.5, 1, 2):
        axes.axvline(rows[0]["best"] * factor, color="black", linestyle="--", linewidth=0.6 if factor != 1 else 1.2)
    axes.set_xscale("log", base=2)
    axes.set_xticks(rates[::3], [f"{rate:g}" for rate in rates[::3]], fontsize=7)
    axes.set_yticks(heights, labels, fontsize=7)
    return mesh
