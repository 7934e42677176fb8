"""Products with a matrix whose rows and columns are spread over ranks, as a backend for ``laplex._scan.autograd``.

Each rank runs an ordinary scan (``_local``) over its own sources and four ghosts, which stand for all sources elsewhere
(``_ends``). So derivatives of every order are computed as on one device, with the exchange inside each product.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from laplex._backends.tables import TORCH
from laplex._scan.order import Matrix
from laplex._shapes import flat_rows
from laplex.distributed import _local
from laplex.distributed._ends import BEYOND, Edges, Ghosts, exchanged
from laplex.distributed._local import LocalPart
from laplex.distributed._ranks import Ranks


class Half(NamedTuple):
    """One side of a spread matrix on this rank."""

    counts: tuple[int, ...]  # how many anchors each matrix has
    own: Edges
    others: Ghosts  # the sources of this side on other ranks, as the targets of the other side see them


class SpreadOrder(NamedTuple):
    """The order of a matrix over ranks: that of this rank's part, and what it needs from the other ranks."""

    local: LocalPart
    target: Half
    source: Half
    middle: Tensor  # (h, 1) float64: a point among all anchors
    ranks: Ranks

    @property
    def mT(self) -> SpreadOrder:
        """The order for the transposed matrix."""
        return self._replace(local=self.local.mT, target=self.source, source=self.target)


def scan(x: Tensor, matrix: Matrix, *, odd: bool, degree: int = 0) -> tuple[Tensor, Tensor]:
    """(A x, B x) in the given degree: x (h, m, width of the sources) -> (h, m, width of the targets) twice."""
    order: Any = matrix.order
    tail, slopes = _from_others(x, matrix, degree)
    even, difference = _local.scan(x, tail, order.local, matrix.tau, odd=odd, degree=degree)
    if degree:
        left, right = _slopes_at_targets(slopes, matrix)
        even = (even + left + right).to(even.dtype)
        difference = (difference + right - left).to(difference.dtype) if odd else difference
    return _blank(even, order.target), _blank(difference, order.target) if odd else difference


def pullback(
    g: Tensor, x: Tensor, odd_x: Tensor, matrix: Matrix, *, to_tau: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """This rank's part of x_bar, t_bar, s_bar and tau_bar for the cotangent g of A x, given odd_x = B x."""
    order: Any = matrix.order
    tail, _ = _from_others(g, matrix.mT, 0)
    x_bar, t_bar, s_bar, tau_bar = _local.pullback(g, tail, x, odd_x, order.local, matrix.tau)
    if to_tau:
        stretch, _ = scan(g.double(), matrix.mT, odd=False, degree=1)
        tau_bar = flat_rows(x.double() * stretch, matrix.tau).sum((1, 2)) / matrix.tau
    return _blank(x_bar, order.source), _blank(t_bar, order.target), _blank(s_bar, order.source), tau_bar


def ties(x: Tensor, matrix: Matrix) -> Tensor:
    """T x: for each target, the sum over the sources equal to it, on all ranks. Differentiable."""
    return _Ties.apply(x, *matrix)  # type: ignore[no-any-return]


class _Ties(torch.autograd.Function):
    """T is constant as long as no anchors pass one another, and its transpose is the T of the transposed matrix."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, *fields: Any) -> Tensor:
        ctx.matrix = Matrix(*fields)
        tail, _ = _from_others(x, ctx.matrix, 0)
        order: Any = ctx.matrix.order
        return _blank(_local.ties(x, tail, order.local), order.target)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        return ties(g, ctx.matrix.mT), None, None, None, None, None

    @staticmethod
    def jvp(ctx: Any, dx: Tensor, *others: Any) -> Tensor:
        return ties(dx, ctx.matrix)


def centre(matrix: Matrix) -> Tensor:
    order: Any = matrix.order
    middle: Tensor = order.middle
    return middle


BACKEND = TORCH._replace(
    name="distributed", scan=scan, pullback=pullback, ties=ties, centre=centre, order=None, solver=None
)


def _from_others(x: Tensor, matrix: Matrix, degree: int) -> tuple[Tensor, Tensor]:
    """The ghosts' values for x (h, m, width): (h, m, GHOSTS), and in degree 1 also their p, (h, m, 2) in float64."""
    order: Any = matrix.order
    _, own, others = order.source
    values, slopes = exchanged(x, matrix.source, matrix.tau, own, others, order.ranks, degree)
    return values.to(x.dtype), slopes


def _slopes_at_targets(slopes: Tensor, matrix: Matrix) -> tuple[Tensor, Tensor]:
    """The p of the left and the right ghost (h, m, 2), each decayed up to every target: (h, m, width) twice."""
    order: Any = matrix.order
    t, positions = matrix.target.double(), order.source.others.positions
    from_left, from_right = (
        torch.exp(-((t - positions[:, i, None]).abs() / matrix.tau[:, None]).clamp(max=BEYOND))[:, None] for i in (0, 2)
    )
    return slopes[..., 0, None] * from_left, slopes[..., 1, None] * from_right


def _blank(values: Tensor, half: Half) -> Tensor:
    """Zero the padding of values (h, ..., width), in place."""
    width = values.shape[-1]
    for i, count in enumerate(half.counts):
        if count < width:
            values[i, ..., count:] = 0
    return values
