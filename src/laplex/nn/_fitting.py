"""A dense weight fitted by a sum of kernels, with anchors that jump: rows, columns and weights in turns.

With E = W - sum over r of w_r K_r and a metric C of the columns, the error  trace(E C E^T)  falls with every step:

    one kernel at a time, the others held: the best places of all rows, then of all columns (``laplex.reseat``), then
    its weight; after each sweep over the kernels all weights together, by least squares.

If C is the mean of x x^T over the layer's inputs, this is the squared error of the layer's results. Its diagonal alone
is cheaper, since then columns do not act on each other and move all at once.

Where it ends depends on the order in which the kernels are first seated. So a few orders are tried, each for a few
sweeps, and the best is continued.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from laplex import _autocast
from laplex._checks.counts import whole
from laplex._progress import shown
from laplex._reseat import best_of, reseat
from laplex.nn import _checks as checks
from laplex.nn import _start as start
from laplex.reference import kernel

if TYPE_CHECKING:
    from laplex._progress import Told
    from laplex.nn._linear import LaplexLinear

PLACES = 1024  # on the line, for each kernel
TRIES = 6  # orders of the kernels
FIRST_SWEEPS = 5  # of each
COLUMNS_AT_ONCE = 8  # in a metric that is no diagonal
MARGIN = 1.0  # of the line beyond the outermost anchors, in units of tau


class Fit:
    """The state of a fit: anchors, weights, the kernels they form, and what is left of the weight."""

    def __init__(self, weight: Tensor, metric: Tensor, layer: LaplexLinear) -> None:
        """``metric`` is (k,) or (k, k)."""
        self.a, self.b = layer.a.detach().clone(), layer.b.detach().clone()
        self.tau = layer.tau.detach()
        self.kernels = torch.stack([self.kernel(r) for r in range(len(self.a))])
        self.target = weight
        self.draws = _draws()
        self.measure_by(metric)

    def measure_by(self, metric: Tensor) -> None:
        """Go on with another metric."""
        self.metric = metric
        self.energy = float((self.times_metric(self.target) * self.target).sum())
        self.solve_weights()

    def kernel(self, r: int) -> Tensor:
        """Kernel r (n, k), formed."""
        return kernel(self.a[r], self.b[r], self.tau[r])

    def times_metric(self, rows: Tensor) -> Tensor:
        """Rows (..., k) times the metric."""
        return rows * self.metric if self.metric.dim() == 1 else rows @ self.metric

    def residual(self) -> float:
        """The share of the energy that is left."""
        return float((self.times_metric(self.left) * self.left).sum()) / self.energy if self.energy else 0.0

    def solve_weights(self) -> None:
        """All weights by least squares, with a trace of a ridge: two kernels may be alike."""
        rows, weighted = self.kernels.flatten(1), self.times_metric(self.kernels).flatten(1)
        normal, right = (weighted @ rows.T).double(), (weighted @ self.target.flatten()).double()
        ridge = 1e-6 * normal.diagonal().mean() * torch.eye(len(normal), dtype=normal.dtype, device=normal.device)
        self.weight = torch.linalg.solve(normal + ridge, right).to(self.target.dtype)
        self.left = self.target - torch.tensordot(self.weight, self.kernels, 1)

    def sweep(self, order: Iterable[int]) -> None:
        """Seat the kernels in this order, then find all weights."""
        for r in order:
            self.seat(r)
        self.solve_weights()

    def seat(self, r: int) -> None:
        """The best places of kernel r's rows, then of its columns, then its weight."""
        rest = self.left + self.weight[r] * self.kernels[r]
        line, tau = self.line(r), self.tau[r]
        target = self.times_metric(rest)
        self.a[r] = reseat(target, self.b[r], line, tau, weight=self.weight[r], moments=self.metric).places
        if self.metric.dim() == 1:
            self.b[r] = reseat(rest.T, self.a[r], line, tau, weight=self.weight[r]).places
        else:
            self.seat_columns(r, rest, line)
        self.kernels[r] = self.kernel(r)
        weighted = self.times_metric(self.kernels[r])
        self.weight[r] = (weighted * rest).sum() / (weighted * self.kernels[r]).sum()
        self.left = rest - self.weight[r] * self.kernels[r]

    def seat_columns(self, r: int, rest: Tensor, line: Tensor) -> None:
        """The columns of kernel r, a few at a time, where the metric ties them to each other.

        With E what is left and d_j the sum of |C_jl| over the columns l that move together, the error is at most that
        of columns that are free of each other, with targets  w K_j + (E C)_j / d_j  and importances d_j; so it falls.
        """
        weight, at = self.weight[r], kernel(self.a[r], line, self.tau[r])  # (n, places)
        mass = at.square().sum(0)
        formed = self.kernel(r)
        pull = self.times_metric(rest - weight * formed)  # E C
        for few in _shuffled(len(self.b[r]), self.draws).to(self.b.device).split(COLUMNS_AT_ONCE):
            together = self.metric[few][:, few].abs().sum(1).clamp_min(torch.finfo(mass.dtype).tiny)
            target = weight * formed[:, few] + pull[:, few] / together
            index, _, _ = best_of(target.T @ at, mass, weight)
            change = at[:, index] - formed[:, few]
            formed[:, few] += change
            pull -= weight * change @ self.metric[few]
            self.b[r, few] = line[index]

    def line(self, r: int) -> Tensor:
        """The places that kernel r's anchors may take."""
        both = torch.cat([self.a[r], self.b[r]])
        margin = MARGIN * float(self.tau[r])
        low, high = float(both.min()) - margin, float(both.max()) + margin
        return torch.linspace(low, high, PLACES, dtype=both.dtype, device=both.device)


@torch.no_grad()
@_autocast.unaffected
def fit(
    layer: LaplexLinear, weight: Tensor, *, importance: Tensor | None, sweeps: int, progress: Told | None = None
) -> None:
    """Fit a layer's anchors and weights to a dense weight (out_features, in_features)."""
    where = "laplex.nn.LaplexLinear.from_linear"
    checks.weight_like(where, "weight", weight, (layer.out_features, layer.in_features))
    whole(where, "sweeps", sweeps)
    checks.importance_of(where, importance, layer.in_features)
    metric, diagonal = _metrics(layer, importance)
    scale = float(weight.abs().max()) or 1.0  # squares of very large or small weights would leave float32
    target = (weight.double() / scale).to(layer.a)
    draws = _draws()
    if layer.rank <= min(target.shape):
        start.along_singular_vectors(layer, (target * diagonal.sqrt()).double(), start.SHORTEST)
    else:
        start.interlaced(layer, draws)
    tries, first = (TRIES, min(FIRST_SWEEPS, sweeps)) if layer.rank > 1 else (1, sweeps)
    last = 0 if metric.dim() == 1 else -(-sweeps // 4)  # in the whole metric, from where its diagonal led
    count = itertools.count(1)
    with shown("laplex: fitting", progress) as tell:

        def swept(state: Fit, times: int) -> Fit:
            for _ in range(times):
                state.sweep(_shuffled(layer.rank, draws).tolist())
                tell(next(count), tries * first + sweeps - first + last)
            return state

        best = min((swept(Fit(target, diagonal, layer), first) for _ in range(tries)), key=Fit.residual)
        swept(best, sweeps - first)
        if last:
            best.measure_by(metric)
            swept(best, last)
    for parameter, found in ((layer.a, best.a), (layer.b, best.b), (layer.weight, best.weight.double() * scale)):
        parameter.copy_(found)
    layer.fit_residual = best.residual()


def _metrics(layer: LaplexLinear, importance: Tensor | None) -> tuple[Tensor, Tensor]:
    """The metric of the columns, (k,) or (k, k), and its diagonal (k,), whose mean is 1."""
    if importance is None:
        return torch.ones_like(layer.b[0]), torch.ones_like(layer.b[0])
    metric = importance.double() / importance.max()  # first, or the mean of very large ones would overflow
    diagonal = metric if metric.dim() == 1 else metric.diagonal()
    mean = diagonal.mean()
    return (metric / mean).to(layer.b), (diagonal / mean).to(layer.b)


def _draws() -> torch.Generator:
    """Random numbers that are the same every time, so that a fit can be repeated."""
    return torch.Generator().manual_seed(0)


def _shuffled(count: int, draws: torch.Generator) -> Tensor:
    """The numbers 0 to count - 1 in random order, on the CPU."""
    return torch.randperm(count, generator=draws, device="cpu")
