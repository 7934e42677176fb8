"""The state of a fit of a dense weight by a sum of kernels, and its steps: anchors that jump, and that slide.

With E = W - sum over r of w_r K_r and a metric C of the columns, the error is  trace(E C E^T).  The steps are

    sweep    one kernel at a time, the others held fixed: the best places of all rows, then of all columns
             (``laplex.reseat``), then its weight; finally all weights together, by least squares
    slide    all kernels together: the places of each row, then of each column (``_descent``), then all weights

If C is the mean of x x^T over the layer's inputs, this is the squared error of the layer's results. Using only its
diagonal is cheaper, since then columns do not affect each other and all move at once.

Jumps go to places on a grid. Next to an optimum they raise the error a little, and that is useful: it shakes loose
anchors that hold one another in place. So a fit takes snapshots, and returns to the best of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from laplex._reseat import best_places, reseat
from laplex.nn import _descent as descent
from laplex.reference import kernel

if TYPE_CHECKING:
    from laplex.nn._linear import LaplexLinear

PLACES = 1024  # on the line, for each kernel
COLUMNS_AT_ONCE = 8  # with a metric that is not diagonal
CANCELLING = 10.0  # if the kernels' energies add up to this many times that of W, no kernel can move alone
MARGIN = 1.0  # how far the line extends beyond the outermost anchors, in units of tau


class Snapshot(NamedTuple):
    """What a fit has reached."""

    residual: float  # the fraction of the energy that is left
    a: Tensor
    b: Tensor
    mix: Tensor

    @torch.no_grad()
    def write_to(self, layer: LaplexLinear) -> None:
        """Give a layer these anchors and weights."""
        for parameter, value in ((layer.a, self.a), (layer.b, self.b), (layer.mix, self.mix)):
            parameter.copy_(value)


class Fit:
    """The state of a fit: anchors, the kernels they form, their weights, and the residual of the target."""

    def __init__(self, target: Tensor, metric: Tensor, layer: LaplexLinear) -> None:
        """Start from a layer's anchors; ``metric`` is (k,) or (k, k)."""
        self.a, self.b = layer.a.detach().clone(), layer.b.detach().clone()
        self.tau = layer.tau.detach()
        self.target = target
        self.draws = fixed_draws()
        self.damping = [target.new_full((size,), descent.FIRST) for size in target.shape]
        self.kernels = kernel(self.a, self.b, self.tau)  # (r, n, k)
        self.measure_by(metric)

    def measure_by(self, metric: Tensor) -> None:
        """Continue with another metric."""
        self.metric = metric
        self.energy = float((self.times_metric(self.target) * self.target).sum())
        self.solve_mix()

    def times_metric(self, rows: Tensor) -> Tensor:
        """Rows (..., k) times the metric."""
        return descent.times_metric(rows, self.metric)

    def residual(self) -> float:
        """The fraction of the energy that is left."""
        return float((self.times_metric(self.left) * self.left).sum()) / self.energy if self.energy else 0.0

    def solve_mix(self) -> None:
        """Solve for all weights by least squares, with a tiny ridge, as two kernels may be equal."""
        rows, weighted = self.kernels.flatten(1), self.times_metric(self.kernels).flatten(1)
        normal, right = (weighted @ rows.T).double(), (weighted @ self.target.flatten()).double()
        ridge = 1e-6 * normal.diagonal().mean() * torch.eye(len(normal), dtype=normal.dtype, device=normal.device)
        self.mix = torch.linalg.solve(normal + ridge, right).to(self.target.dtype)
        self.left = self.target - torch.tensordot(self.mix, self.kernels, 1)

    def sweep(self, order: Iterable[int]) -> None:
        """Re-seat the kernels in this order, then solve for all weights."""
        for r in order:
            self.seat(r)
        self.solve_mix()

    def seat(self, r: int) -> None:
        """Find the best places of kernel r's rows, then of its columns, then its weight."""
        rest = self.left + self.mix[r] * self.kernels[r]
        line, tau = self.line(r), self.tau[r]
        target = self.times_metric(rest)
        self.a[r] = reseat(target, self.b[r], line, tau, weight=self.mix[r], moments=self.metric).places
        if self.metric.dim() == 1:
            self.b[r] = reseat(rest.T, self.a[r], line, tau, weight=self.mix[r]).places
        else:
            self.seat_columns(r, rest, line)
        self.kernels[r] = kernel(self.a[r], self.b[r], tau)
        weighted = self.times_metric(self.kernels[r])
        self.mix[r] = (weighted * rest).sum() / (weighted * self.kernels[r]).sum()
        self.left = rest - self.mix[r] * self.kernels[r]

    def seat_columns(self, r: int, rest: Tensor, line: Tensor) -> None:
        """Seat the columns of kernel r, a few at a time, as the metric couples them.

        With E the residual and d_j the sum of |C_jl| over the columns l that move together, the error is at most that
        of independent columns with targets  w K_j + (E C)_j / d_j  and importances d_j; so it falls.
        """
        weight, candidates = self.mix[r], kernel(self.a[r], line, self.tau[r])  # (n, places)
        mass = candidates.square().sum(0)
        formed = kernel(self.a[r], self.b[r], self.tau[r])
        pull = self.times_metric(rest - weight * formed)  # E C
        for columns, importance in self.groups_of_columns():
            target = weight * formed[:, columns] + pull[:, columns] / importance
            index, _, _ = best_places(target.T @ candidates, mass, weight)
            change = candidates[:, index] - formed[:, columns]
            formed[:, columns] += change
            pull -= weight * change @ self.metric[columns]
            self.b[r, columns] = line[index]

    def groups_of_columns(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Columns that move together, in random order, and their importances d_j."""
        tiny = torch.finfo(self.metric.dtype).tiny
        for columns in shuffled(self.b.shape[1], self.draws).to(self.b.device).split(COLUMNS_AT_ONCE):
            yield columns, self.metric[columns][:, columns].abs().sum(1).clamp_min(tiny)

    def cancels(self) -> bool:
        """Whether the kernels are much larger than their sum."""
        parts = (self.mix.square() * (self.times_metric(self.kernels) * self.kernels).sum((1, 2))).sum()
        return float(parts) > CANCELLING * self.energy

    def slide(self) -> None:
        """Improve all kernels together: the places of rows, then of columns, then all weights."""
        columns = descent.Side(self.b, self.tau, self.mix)
        self.a, self.left, self.damping[0] = descent.slide(self.left, self.a, columns, self.metric, self.damping[0])
        rows, ones = descent.Side(self.a, self.tau, self.mix), torch.ones_like(self.left[:, 0])
        if self.metric.dim() == 1:
            self.b, _, self.damping[1] = descent.slide(self.left.T, self.b, rows, ones, self.damping[1])
        else:
            self.slide_columns(rows, ones)
        self.kernels = kernel(self.a, self.b, self.tau)
        self.solve_mix()

    def slide_columns(self, rows: descent.Side, ones: Tensor) -> None:
        """Slide the columns, a few at a time, as in :meth:`seat_columns`."""
        pull = self.times_metric(self.left)  # E C
        for columns, importance in self.groups_of_columns():
            left = (pull[:, columns] / importance).T
            places, after, damping = descent.slide(left, self.b[:, columns], rows, ones, self.damping[1][columns])
            self.b[:, columns], self.damping[1][columns] = places, damping
            pull -= (left - after).T @ self.metric[columns]

    def snapshot(self) -> Snapshot:
        """The current state."""
        return Snapshot(self.residual(), self.a.clone(), self.b.clone(), self.mix.clone())

    def return_to(self, snapshot: Snapshot) -> None:
        """Restore an earlier state."""
        _, self.a, self.b, self.mix = snapshot
        self.kernels = kernel(self.a, self.b, self.tau)
        self.left = self.target - torch.tensordot(self.mix, self.kernels, 1)

    def line(self, r: int) -> Tensor:
        """The places that kernel r's anchors may take."""
        anchors = torch.cat([self.a[r], self.b[r]])
        margin = MARGIN * float(self.tau[r])
        low, high = float(anchors.min()) - margin, float(anchors.max()) + margin
        return torch.linspace(low, high, PLACES, dtype=anchors.dtype, device=anchors.device)


def fixed_draws() -> torch.Generator:
    """A generator that gives the same numbers every time, so that a fit can be repeated."""
    return torch.Generator().manual_seed(0)


def shuffled(count: int, draws: torch.Generator) -> Tensor:
    """The numbers 0 to count - 1 in random order, on the CPU."""
    return torch.randperm(count, generator=draws, device="cpu")
