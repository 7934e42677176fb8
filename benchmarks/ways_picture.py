"""The picture of where forming the matrix is faster than scanning, from committed JSON."""

import json
import math
from typing import Any

from matplotlib.figure import Figure

from benchmarks.report import COMMITTED
from laplex._backends import cost

SWEEPS = {"cuda": COMMITTED / "ways-nvidia-h200.json", "cpu": COMMITTED / "ways-amd-epyc-2-threads.json"}
NAMES = {"cuda": "H200", "cpu": "CPU, 2 threads"}
SIZES = [2 ** (step / 2) for step in range(12, 33)]
ROWS = [2 ** (step / 2) for step in range(25)]


def draw() -> Figure:
    """Over n = k and rows: how many times faster forming W is than scanning, estimated, with the measured points."""
    figure = Figure(figsize=(11, 6.2), layout="constrained")
    axes = figure.subplots(2, 3, sharex=True, sharey=True)
    for line, (device, path) in zip(axes, SWEEPS.items(), strict=True):
        points = json.loads(path.read_text())["points"]
        for place, r in zip(line, (1, 4, 16), strict=True):
            mesh = _panel(place, device, r, points)
            place.set_title(f"{NAMES[device]}, r = {r}", fontsize=9)
    for place in axes[-1]:
        place.set_xlabel("n = k")
    for line in axes:
        line[0].set_ylabel("rows of x")
    bar = figure.colorbar(mesh, ax=axes, ticks=range(-4, 5, 2), shrink=0.8)
    bar.ax.set_yticklabels(["scan 16x faster", "scan 4x", "equal", "formed 4x", "formed 16x faster"], fontsize=8)
    figure.suptitle(
        "A training step: is it faster to form the matrix, or to scan? Colours: the cost model by which it chooses.\n"
        "Dots: points of the sweep with n and k within a factor of 16, in the colour of the measured ratio.",
        fontsize=9,
    )
    return figure


def _panel(axes: Any, device: str, r: int, points: list[dict[str, Any]]) -> Any:
    def gain(size: float, rows: float) -> float:
        work = cost.Work(1, r, round(rows), round(size), round(size), True)
        formed, scan = (cost.microseconds(way, work, device) for way in ("formed", "scan"))
        return -4.0 if size * size > cost.MOST_FORMED else math.log2(scan / formed)

    colours = {"cmap": "RdBu_r", "vmin": -4, "vmax": 4}
    values = [[gain(size, rows) for size in SIZES] for rows in ROWS]
    mesh = axes.pcolormesh(SIZES, ROWS, values, shading="nearest", **colours)
    known = [row for row in points if row["gradients"] and row["matrices"] == r]
    known = [row for row in known if {"formed", "scan"} <= row["milliseconds"].keys()]
    known = [row for row in known if max(row["n"], row["k"]) <= 16 * min(row["n"], row["k"])]
    measured = [math.log2(row["milliseconds"]["scan"] / row["milliseconds"]["formed"]) for row in known]
    middle = [math.sqrt(row["n"] * row["k"]) for row in known]
    rows = [row["rows"] for row in known]
    axes.scatter(middle, rows, c=measured, edgecolors="black", linewidths=0.6, s=26, **colours)
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    return mesh
