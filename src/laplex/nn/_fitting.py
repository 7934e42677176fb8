"""A dense weight fitted by a sum of kernels, with anchors that jump: rows, columns and weights in turns.

The error  sum over i, j of h_j (W_ij - sum over r of w_r K_r[i, j])^2  falls with every step:

    one kernel at a time, the others held: the best places of all rows, then of all columns (``laplex.reseat``), then
    its weight; after each sweep over the kernels all weights together, by least squares.

Where it ends depends on the order in which the kernels are first seated (with 16 kernels on a head of 200 classes, 0.55
or 0.59 of the energy is left), so a few orders are tried, and the best is continued.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from laplex._progress import shown
from laplex._reseat import reseat
from laplex.nn import _checks as checks
from laplex.reference import kernel

if TYPE_CHECKING:
    from laplex._progress import Told
    from laplex.nn._linear import LaplexLinear

PLACES = 1024  # on the line, for each kernel
TRIES = 6  # orders of the kernels
FIRST_SWEEPS = 5  # of each
MARGIN = 1.0  # of the line beyond the outermost anchors, in units of tau


class Fit:
    """The state of a fit: anchors, weights, the kernels they form, and what is left of the weight."""

    def __init__(self, weight: Tensor, importance: Tensor, layer: LaplexLinear) -> None:
        self.a, self.b = layer.a.detach().clone(), layer.b.detach().clone()
        self.tau = layer.tau.detach()
        self.importance = importance
        self.energy = float((weight.square() * importance).sum())
        self.kernels = torch.stack([self.kernel(r) for r in range(len(self.a))])
        self.weight = torch.zeros_like(layer.weight)
        self.target = weight
        self.left = weight.clone()  # of the target, after all kernels
        self.solve_weights()

    def kernel(self, r: int) -> Tensor:
        """Kernel r (n, k), formed."""
        return kernel(self.a[r], self.b[r], self.tau[r])

    def residual(self) -> float:
        """The share of the energy that is left."""
        return float((self.left.square() * self.importance).sum()) / self.energy if self.energy else 0.0

    def solve_weights(self) -> None:
        """All weights by least squares, with a trace of a ridge: two kernels may be alike."""
        rows = (self.kernels * self.importance.sqrt()).flatten(1)
        normal = (rows @ rows.T).double()
        right = (rows @ (self.target * self.importance.sqrt()).flatten()).double()
        ridge = 1e-6 * normal.diagonal().mean() * torch.eye(len(normal), dtype=normal.dtype, device=normal.device)
        self.weight = torch.linalg.solve(normal + ridge, right).to(self.target.dtype)
        self.left = self.target - torch.tensordot(self.weight, self.kernels, 1)

    def seat(self, r: int) -> None:
        """The best places of kernel r's rows, then of its columns, then its weight."""
        weight = self.weight[r]
        rest = self.left + weight * self.kernels[r]
        line = self.line(r)
        h, tau = self.importance, self.tau[r]
        self.a[r] = reseat(rest * h, self.b[r], line, tau, weight=weight, moments=h).places
        self.b[r] = reseat(rest.T, self.a[r], line, tau, weight=weight).places
        formed = self.kernel(r)
        weighted = formed * h
        self.weight[r] = (weighted * rest).sum() / (weighted * formed).sum()
        self.kernels[r] = formed
        self.left = rest - self.weight[r] * formed

    def line(self, r: int) -> Tensor:
        """The places that kernel r's anchors may take."""
        both = torch.cat([self.a[r], self.b[r]])
        margin = MARGIN * float(self.tau[r])
        return torch.linspace(float(both.min()) - margin, float(both.max()) + margin, PLACES).to(both)


@torch.no_grad()
def fit(
    layer: LaplexLinear, weight: Tensor, *, importance: Tensor | None, sweeps: int, progress: Told | None = None
) -> None:
    """Fit a layer's anchors and weights to a dense weight (out_features, in_features)."""
    where = "laplex.nn.LaplexLinear.from_linear"
    checks.weight_like(where, "weight", weight, (layer.out_features, layer.in_features))
    checks.size(where, "sweeps", sweeps)
    checks.importance_of(where, importance, layer.in_features)
    h = torch.ones_like(layer.b[0]) if importance is None else importance.to(layer.b)
    weight = weight.to(layer.a)
    if layer.rank <= min(weight.shape):
        layer.init_from(weight * h.sqrt())
    orders = torch.Generator().manual_seed(0)  # so that a fit can be repeated
    tries, first = (TRIES, min(FIRST_SWEEPS, sweeps)) if layer.rank > 1 else (1, sweeps)
    total = tries * first + sweeps - first
    with shown("laplex: fitting", progress) as tell:
        count = itertools.count(1)
        tried = [Fit(weight, h / h.mean(), layer) for _ in range(tries)]
        for state in tried:
            _sweep(state, first, orders, lambda: tell(next(count), total))
        best = min(tried, key=Fit.residual)
        _sweep(best, sweeps - first, orders, lambda: tell(next(count), total))
    for parameter, found in ((layer.a, best.a), (layer.b, best.b), (layer.weight, best.weight)):
        parameter.copy_(found)
    layer.fit_residual = best.residual()


def _sweep(state: Fit, sweeps: int, orders: torch.Generator, tell: Callable[[], None]) -> None:
    for _ in range(sweeps):
        for r in torch.randperm(len(state.a), generator=orders).tolist():
            state.seat(r)
        state.solve_weights()
        tell()
