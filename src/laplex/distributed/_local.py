"""One rank's part of a matrix: products with the sources it owns and with the ghosts (``_ends``), by any backend.

On both sides the positions of four ghosts follow the rank's own anchors. Operands and results have no entries for them:
the ghosts' values are passed separately, so that an operand need not be copied to make room.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from laplex._backends import Backend
from laplex._plan import Plan
from laplex._scan.autograd import ties as dense_ties
from laplex._scan.order import Matrix, Order, Side
from laplex.distributed._ends import GHOSTS


class LocalPart(NamedTuple):
    """This rank's anchors followed by the positions of ghosts, their order, and the backend that multiplies."""

    target: Tensor  # (h, n + GHOSTS)
    source: Tensor  # (h, k + GHOSTS)
    order: Order
    table: Backend

    @classmethod
    def planned(cls, target: Tensor, source: Tensor, plan: Plan) -> LocalPart:
        """For the anchors that the plan was made of. The plan's own copy of them is used if it has one."""
        order = plan._order
        return cls(_anchors(target, order.target), _anchors(source, order.source), order, plan._table)

    @property
    def mT(self) -> LocalPart:
        return LocalPart(self.source, self.target, self.order.mT, self.table)

    def matrix(self, tau: Tensor) -> Matrix:
        return Matrix(self.target, self.source, tau, self.order, self.table)

    @property
    def takes_tail(self) -> bool:
        """Whether the backend takes the ghosts' values as a separate argument."""
        return self.table.takes_tail and self.order.layout == "merged"


def _anchors(anchors: Tensor, side: Side) -> Tensor:
    if side.kind != "sorted":
        return anchors
    copy = side.values[:, 0]
    return copy if copy.is_contiguous() and copy.dtype == anchors.dtype else anchors


def scan(x: Tensor, tail: Tensor, local: LocalPart, tau: Tensor, *, odd: bool, degree: int) -> tuple[Tensor, Tensor]:
    """(A x, B x), (h, m, n) each, for this rank's x (h, m, k) and the ghosts' values, tail (h, m, GHOSTS)."""
    if local.takes_tail:
        return local.table.scan(x, local.matrix(tau), odd=odd, degree=degree, tail=tail)
    even, difference = local.table.scan(torch.cat([x, tail], -1), local.matrix(tau), odd=odd, degree=degree)
    return _without_ghosts(even), _without_ghosts(difference)


def pullback(
    g: Tensor, tail: Tensor, x: Tensor, odd_x: Tensor, local: LocalPart, tau: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x_bar, t_bar, s_bar and an empty tau_bar for the cotangent g (h, m, n) of A x; tail is the ghosts' cotangent."""
    if local.takes_tail:
        return local.table.pullback(g, x, odd_x, local.matrix(tau), to_tau=False, tail=tail)
    x, odd_x = (torch.nn.functional.pad(rows, (0, GHOSTS if rows.shape[-1] else 0)) for rows in (x, odd_x))
    bars = local.table.pullback(torch.cat([g, tail], -1), x, odd_x, local.matrix(tau), to_tau=False)
    return _without_ghosts(bars[0]), _without_ghosts(bars[1]), _without_ghosts(bars[2]), bars[3]


def ties(x: Tensor, tail: Tensor, local: LocalPart) -> Tensor:
    """T x: for each target, the sum over the sources equal to it."""
    return _without_ghosts(dense_ties(torch.cat([x, tail], -1), local.target, local.source))


def _without_ghosts(values: Tensor) -> Tensor:
    return values[..., :-GHOSTS].contiguous() if values.shape[-1] else values
