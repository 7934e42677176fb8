"""The picture of the three soft ranks: what each definition makes of the same numbers, from hard to soft."""

from collections.abc import Callable
from typing import Any

import numpy
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from sklearn.isotonic import isotonic_regression

import laplex

NUMBERS = numpy.array([0.0, 0.7, 1.0, 2.2, 2.5, 2.8, 4.5, 6.0])
SOFTNESS = numpy.logspace(-2, 1.3, 200)
LEVELS = {0.05: "#1f5f99", 0.3: "#2a9d5c", 1.0: "#c8501e"}  # of the lower row
Ranks = Callable[[NDArray[Any], float], NDArray[Any]]


def by_distribution(x: NDArray[Any], tau: float) -> NDArray[Any]:
    """Sums of distribution functions."""
    ranks: NDArray[Any] = laplex.soft.rank(torch.from_numpy(x), tau=tau).numpy()
    return ranks


def by_columns(x: NDArray[Any], tau: float) -> NDArray[Any]:
    """The mean place of every number, weighted by its column of SoftSort's matrix."""
    matrix = laplex.soft.sort(torch.from_numpy(x), tau=tau).permutation
    places = torch.arange(1.0, len(x) + 1, dtype=torch.float64)
    ranks: NDArray[Any] = ((matrix.mT @ places) / (matrix.mT @ torch.ones_like(places))).numpy()
    return ranks


def by_projection(x: NDArray[Any], strength: float) -> NDArray[Any]:
    """The point of the permutahedron that is nearest to x / strength, by an isotonic regression."""
    order = numpy.argsort(-x)
    falling = x[order] / strength
    ranks = numpy.empty(len(x))
    ranks[order] = falling - isotonic_regression(falling - numpy.arange(len(x), 0, -1), increasing=False)
    return ranks


DEFINITIONS: dict[str, tuple[Ranks, str]] = {
    "sums of distribution functions\n(laplex.soft.rank, LapSum)": (by_distribution, "tau"),
    "columns of SoftSort\n(SoftTorch)": (by_columns, "tau"),
    "projection on the permutahedron\n(fast-soft-sort, torchsort)": (by_projection, "strength"),
}


def draw() -> Figure:
    """A column for each definition: ranks of eight numbers over softness, and of one number as it moves past them."""
    figure = Figure(figsize=(10.2, 6.8), layout="constrained")
    grid = figure.subplots(2, len(DEFINITIONS), sharey="row")
    moving = numpy.linspace(-2, 8, 401)
    for column, (title, (ranks, name)) in zip(grid.T, DEFINITIONS.items(), strict=True):
        upper, lower = column
        curves = numpy.stack([ranks(NUMBERS, float(softness)) for softness in SOFTNESS])
        for i, curve in enumerate(curves.T):
            upper.plot(SOFTNESS, curve, color=_shade(i), linewidth=1.4)
        upper.set_xscale("log")
        upper.set_title(title, fontsize=9)
        upper.set_xlabel(f"{name}, in units of x", fontsize=8)
        hard = numpy.searchsorted(NUMBERS, moving) + 1
        lower.step(moving, hard, color="#bbbbbb", linewidth=1.0, label="hard")
        for level, colour in LEVELS.items():
            curve = [ranks(numpy.append(NUMBERS, t), level)[-1] for t in moving]
            lower.plot(moving, curve, color=colour, linewidth=1.3, label=f"{name} = {level:g}")
        lower.plot(NUMBERS, numpy.full(len(NUMBERS), 0.45), "|", color="black", markersize=7)
        lower.set_xlabel("x of a ninth number (ticks: the eight others)", fontsize=8)
        lower.legend(fontsize=7, frameon=False, loc="upper left")
    grid[0, 0].set_ylabel("soft ranks of eight numbers", fontsize=8.5)
    grid[1, 0].set_ylabel("soft rank of a ninth", fontsize=8.5)
    for axes in grid.flat:
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8)
    return figure


def _shade(i: int) -> tuple[float, float, float]:
    share = i / (len(NUMBERS) - 1)
    return 0.12 + 0.66 * share, 0.37 - 0.06 * share, 0.6 - 0.48 * share
