"""A start for weights that are nearly low-rank: kernels that are products, in two groups of opposite sign.

If all rows of a kernel lie to the right of all columns, it is a product of positive numbers:

    K[i, j] = p_i q_j,    p_i = exp(-a_i / tau),  q_j = exp(b_j / tau)

With x_1 ... x_s the corners of a regular simplex around 0 in s - 1 dimensions, sum x_g = 0 and sum x_g x_g^T = 1, and
for any matrix A B^T of rank s - 1,

    sum over g of c (1 + A x_g) (1 + B x_g)^T = c A B^T + c s 1 1^T

so s kernels hold a matrix of rank s - 1, and a constant, if no entry of A x_g and B x_g is below -1. To ensure that, A
and B are divided by numbers whose product is c. Two groups of opposite sign, each with every second singular direction,
hold W - m and two constants, the smaller of which is raised until their difference is m, the mean of W. So r kernels
hold the mean and a matrix of rank r - 2. From there the descent improves the fit.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

MARGIN = 0.9  # the largest entry of A x_g and of B x_g, safely within 1
TURNS = 100  # rotations of the simplex that are tried; the one with the smallest constant is taken
RIDGE = 1e-6  # of the mean variance of the inputs, so that the metric can be inverted
GAP = 0.01  # between rows and columns, in units of tau


def directions(weight: Tensor, metric: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """A (n, count) and B (k, count) with A B^T near W - mean(W) in the metric (k,) or (k, k); all in float64."""
    full = torch.diag(metric) if metric.dim() == 1 else metric
    full = full + RIDGE * full.diagonal().mean() * torch.eye(len(full), dtype=full.dtype, device=full.device)
    root = torch.linalg.cholesky(full)
    left, sizes, right = torch.linalg.svd((weight - weight.mean()) @ root, full_matrices=False)
    scale = sizes[:count].sqrt()
    columns = torch.linalg.solve_triangular(root.mT, right[:count].mT * scale, upper=True)
    return left[:, :count] * scale, columns


def two_simplices(weight: Tensor, metric: Tensor, count: int, draws: torch.Generator) -> tuple[Tensor, Tensor]:
    """Places a (count, n) and b (count, k) for count >= 4 kernels, in units of tau; all in float64."""
    rows, columns = directions(weight, metric, count - 2)
    # The second group has negative weights: -(1 - A x) (1 + B x)^T also adds up to A B^T.
    turned = [_turned(side[:, g::2], columns[:, g::2], draws) for g, side in enumerate((rows, -rows))]
    first, second = (_constant(*sides) for sides in turned)
    mean = float(weight.mean())
    constants = max(first, second + mean), max(second, first - mean)
    parts = [_places(*sides, constant) for sides, constant in zip(turned, constants, strict=True)]
    a, b = (torch.cat(side) for side in zip(*parts, strict=True))
    return a + (b.amax(1, keepdim=True) - a.amin(1, keepdim=True) + GAP), b


def _turned(rows: Tensor, columns: Tensor, draws: torch.Generator) -> tuple[Tensor, Tensor]:
    """A x_g (s, n) and B x_g (s, k), rotated so that their largest entries are small."""
    tried = [_corners(rows.shape[1] + 1, draws).to(rows.device) for _ in range(TURNS)]
    sides = [(corners @ rows.mT, corners @ columns.mT) for corners in tried]
    return min(sides, key=lambda pair: _constant(*pair))


def _constant(rows: Tensor, columns: Tensor) -> float:
    """The constant c s for which the largest entries are :data:`MARGIN`."""
    return len(rows) * float(rows.abs().max() * columns.abs().max()) / MARGIN**2


def _places(rows: Tensor, columns: Tensor, constant: float) -> tuple[Tensor, Tensor]:
    """Places (s, n) and (s, k) of a group's kernels with this constant, which is at least the smallest possible."""
    largest = MARGIN * math.sqrt(_constant(rows, columns) / constant) if constant > 0 else 0.0
    tiny = torch.finfo(rows.dtype).tiny
    p, q = (1 + largest * side / side.abs().max().clamp_min(tiny) for side in (rows, columns))
    return -p.log(), q.log()


def _corners(size: int, draws: torch.Generator) -> Tensor:
    """The corners (s, s - 1) of a regular simplex, rotated at random."""
    drawn = torch.randn(size, size, generator=draws, dtype=torch.float64, device=draws.device)
    drawn[:, 0] = 1.0
    turned: Tensor = torch.linalg.qr(drawn).Q
    return turned[:, 1:]
