"""Fitting a dense weight by a sum of kernels: which starts are tried, and for how long.

Where a fit ends depends on the start, and on the order in which the kernels are first seated. So a few starts are
tried, each for a few sweeps, and the best is continued:

    kernels on grids, in the order of singular vectors   on short lines, best for most hidden layers, and on long ones,
                                                         best for heads, whose weights do not have a small rank
    kernels that are products, in two groups             best for weights that are nearly low-rank (``_simplices``)

If the metric is a matrix, starts of the first kind are tried with its diagonal, which is cheaper, and then the best two
of them and the products with the matrix itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from laplex import _autocast
from laplex._checks.counts import integer
from laplex._progress import bar
from laplex.nn import _checks as checks
from laplex.nn import _scales as scales
from laplex.nn import _start as starts
from laplex.nn._fitting import Fit, Snapshot, fixed_draws, shuffled
from laplex.nn._simplices import two_simplices

if TYPE_CHECKING:
    from laplex._progress import Progress
    from laplex.nn._linear import LaplexLinear

LENGTHS = (1.0, 4.0, 16.0)  # lengths of lines, in units of the shortest
ORDERS = 2  # orders of the kernels that are tried on each line
FIRST_SWEEPS = 5  # sweeps for each start
FINALISTS = 2  # how many of the starts tried with a metric's diagonal continue
SLIDES = 2  # after a sweep, if kernels cancel
LAST_SLIDES = 20
FEWEST_PRODUCTS = 4  # kernels: fewer do not make two groups

Start = Callable[[], None]  # moves the layer's anchors to where a fit may start


@torch.no_grad()
@_autocast.unaffected
def fit(
    layer: LaplexLinear, weight: Tensor, *, importance: Tensor | None, sweeps: int, progress: Progress | None = None
) -> None:
    """Fit a layer's anchors and weights to a dense weight (out_features, in_features)."""
    where = "laplex.nn.LaplexLinear.from_linear"
    checks.weight_like(where, "weight", weight, (layer.out_features, layer.in_features))
    integer(where, "sweeps", sweeps)
    checks.importances(where, importance, layer.in_features)
    metric, diagonal = _metrics(layer, importance)
    scale = float(weight.abs().max()) or 1.0  # squares of very large or small weights would leave float32
    target = (weight.double() / scale).to(layer.a)
    with bar("laplex: fitting", progress) as report:
        best = _Search(layer, target, sweeps, report).run(metric, diagonal)
    best._replace(mix=best.mix.double() * scale).write_to(layer)
    layer.fit_residual, layer.svd_residual = best.residual, _svd_residual(target, metric, layer.kernels)


class _Search:
    """One fit. A start is written to the layer, from which the fit reads it."""

    def __init__(self, layer: LaplexLinear, target: Tensor, sweeps: int, report: Progress) -> None:
        self.layer, self.target, self.sweeps, self.report = layer, target, sweeps, report
        self.draws, self.count, self.total = fixed_draws(), itertools.count(1), 0

    def run(self, metric: Tensor, diagonal: Tensor) -> Snapshot:
        """The best fit from all starts."""
        singular, products = self.singular(diagonal), self.products(metric)
        first = min(FIRST_SWEEPS, self.sweeps)
        if metric.dim() == 1:
            self.total = (len(singular) + len(products)) * first + self.sweeps - first
            best = self.best_fit(singular + products, metric, first)
            self.improve(best, self.sweeps - first)
        else:
            last = -(-self.sweeps // 4)
            self.total = len(singular) * first + (min(FINALISTS, len(singular)) + len(products) + 1) * last
            reached = sorted(
                (self.fit_in_diagonal(start, metric, diagonal, first) for start in singular), key=_residual
            )
            finalists: list[Start] = [partial(snapshot.write_to, self.layer) for snapshot in reached[:FINALISTS]]
            best = self.best_fit(finalists + products, metric, last)
            self.improve(best, last)
        self.descend(best)
        return best.snapshot()

    def fit_in_diagonal(self, start: Start, metric: Tensor, diagonal: Tensor, sweeps: int) -> Snapshot:
        """Sweep with the diagonal of a metric; the result is measured by the metric itself."""
        state = self.fit_from(start, diagonal, sweeps)
        state.measure_by(metric)
        return state.snapshot()

    def fit_from(self, start: Start, metric: Tensor, sweeps: int) -> Fit:
        start()
        return self.improve(Fit(self.target, metric, self.layer), sweeps)

    def best_fit(self, candidates: Iterable[Start], metric: Tensor, sweeps: int) -> Fit:
        return min((self.fit_from(start, metric, sweeps) for start in candidates), key=Fit.residual)

    def improve(self, state: Fit, sweeps: int) -> Fit:
        """Do sweeps, and return to the best state among them."""
        best = state.snapshot()
        for _ in range(sweeps):
            state.sweep(shuffled(self.layer.kernels, self.draws).tolist())
            for _ in range(SLIDES if state.metric.dim() == 2 or state.cancels() else 0):
                state.slide()
            best = min(best, state.snapshot(), key=_residual)
            self.report(next(self.count), self.total)
        state.return_to(best)
        return state

    def descend(self, state: Fit) -> None:
        """Do the last slides, as long as they lower the error."""
        best = state.snapshot()
        for _ in range(LAST_SLIDES):
            state.slide()
            if state.residual() >= best.residual:
                break
            best = state.snapshot()
        state.return_to(best)

    def singular(self, diagonal: Tensor) -> list[Start]:
        """Starts at singular vectors, if there are enough of them."""
        layer, kernels = self.layer, self.layer.kernels
        if kernels > min(self.target.shape):
            return [partial(starts.interlace, layer, self.draws)] * ORDERS
        left, _, right = torch.linalg.svd((self.target * diagonal.sqrt()).double(), full_matrices=False)
        vectors, lengths = (left.T[:kernels], right[:kernels]), [scales.SHORTEST * length for length in LENGTHS]
        grids: list[Start] = [partial(starts.place_on_grids, layer, *vectors, length) for length in lengths]
        return grids * (ORDERS if kernels > 1 else 1)

    def products(self, metric: Tensor) -> list[Start]:
        """A start with kernels that are products, if there are enough kernels."""
        layer, target = self.layer, self.target
        if not FEWEST_PRODUCTS <= layer.kernels <= min(target.shape):
            return []

        def start() -> None:
            a, b = two_simplices(target.double(), metric.double(), layer.kernels, self.draws)
            layer.a.copy_(a * layer.tau[:, None])
            layer.b.copy_(b * layer.tau[:, None])

        return [start]


def _residual(snapshot: Snapshot) -> float:
    return snapshot.residual


def _metrics(layer: LaplexLinear, importance: Tensor | None) -> tuple[Tensor, Tensor]:
    """The metric of the columns, (k,) or (k, k), and its diagonal (k,), whose mean is 1."""
    if importance is None:
        return torch.ones_like(layer.b[0]), torch.ones_like(layer.b[0])
    metric = importance.double() / importance.max()  # first, because the mean of very large ones would overflow
    diagonal = metric if metric.dim() == 1 else metric.diagonal()
    mean = diagonal.mean()
    return (metric / mean).to(layer.b), (diagonal / mean).to(layer.b)


def _svd_residual(weight: Tensor, metric: Tensor, rank: int) -> float:
    """The fraction of the energy that the best matrix of this rank leaves."""
    weight, metric = weight.double(), metric.double()
    if metric.dim() == 1:
        weighted = weight * metric.sqrt()
    else:
        sizes, vectors = torch.linalg.eigh(metric)
        weighted = weight @ (vectors * sizes.clamp_min(0).sqrt())
    energies = torch.linalg.svdvals(weighted).square()
    return float(energies[rank:].sum() / energies.sum().clamp_min(torch.finfo(energies.dtype).tiny))
