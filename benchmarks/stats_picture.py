"""The picture of a two-sample test, in the guide to statistics.

python -m benchmarks.stats_picture    writes benchmarks/results/two-samples.png
"""

import torch
from matplotlib.figure import Figure
from torch import Tensor

from benchmarks.report import COMMITTED
from laplex import stats

BLUE, ORANGE, GREY = "#1f5f99", "#c8501e", "#999999"
TAU = 0.5  # of the test, half a standard deviation


def samples() -> tuple[Tensor, Tensor]:
    """A normal sample, and one from two humps with the same mean and variance."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(400, generator=generator)
    side = torch.randint(0, 2, (300,), generator=generator) * 1.6 - 0.8
    return x, side + 0.6 * torch.randn(300, generator=generator)


def draw() -> Figure:
    """Both densities with their samples; and the MMD of permuted samples next to that of the samples."""
    x, y = samples()
    test = stats.permutation_test(x, y, tau=TAU, generator=torch.Generator().manual_seed(0))
    figure = Figure(figsize=(8.6, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2)
    places = torch.linspace(-5, 5, 1001)
    for sample, colour, label, row in ((x, BLUE, "one hump", -0.015), (y, ORANGE, "two humps", -0.035)):
        tau = stats.bandwidth(sample)
        density = stats.kde(sample, places, tau=tau).exp()
        left.plot(places, density, color=colour, linewidth=1.2, label=f"{label}, n = {len(sample)}, tau = {tau:.2f}")
        left.scatter(sample, torch.full_like(sample, row), s=14, marker="|", color=colour, linewidths=0.4)
    left.set_xlabel("x")
    left.set_ylabel("density")
    left.set_ylim(-0.05, 0.52)
    left.legend(loc="upper left", fontsize=7.5, frameon=False)
    left.set_title("Two distributions with the same mean and variance", fontsize=9)
    right.hist(1e3 * test.null, bins=40, color=GREY, label=f"{len(test.null)} permutations")
    right.axvline(
        1e3 * float(test.statistic), color=ORANGE, linewidth=1.5, label=f"the samples: p = {test.p_value:.3f}"
    )
    right.set_xlabel(f"MMD$^2$ / 10$^{{-3}}$, tau = {TAU}")
    right.set_ylabel("permutations")
    right.legend(loc="upper left", bbox_to_anchor=(0.6, 0.95), handlelength=1.2, fontsize=7.5, frameon=False)
    right.set_title("Do they have one distribution?", fontsize=9)
    for axes in (left, right):
        axes.spines[["top", "right"]].set_visible(False)
        axes.tick_params(labelsize=8)
    return figure


if __name__ == "__main__":
    draw().savefig(COMMITTED / "two-samples.png", dpi=110)
