"""The sorted order of two sets of anchors, and the matrix it belongs to, as backends see them.

An order has two sides, one for the targets (the matrix's rows) and one for the sources (its columns). A side is an
integer index and, for some kinds, values:

    kind        indices (h, c, size), int32          values (h, v, size)
    "sorted"    order, rank, below, upto             anchors as given, anchors sorted
    "short"     order                                -
    "long"      below, upto                          -
    "entries"   one order of both sides, see below   positions in that order
    "bits"      the same, one bit per point          positions in that order
    "places"    where rows and columns lie in it     -
    "nothing"   -                                    -

``order`` sorts the side and ``rank`` is the inverse permutation. ``below`` and ``upto`` count the anchors of the other
side that are < and <= each anchor; a tie is ``below < upto``. A sorted side has them in sorted order, a long side in
the caller's order.

CPU backends sort the sides apart: both of them ("merged"), or only one that is much shorter ("short_rows",
"short_cols"). The GPU sorts both sides into one sequence of n + k points ("joined"). It is held with the rows: an entry
is a row's index i, or -1 - j for column j, and rows come before columns where they tie. If both sides were sorted to
begin with ("in_order"), one bit per point is enough. The sequence is padded to whole words of 32 points. Positions of
size 0 are those of anchors that may have moved: programs then gather them again and check the order. A large order that
is kept in a plan has, with the columns, the place of every row and column in the sequence (or size 0).

h is the number of matrices in a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from laplex._eager import always

if TYPE_CHECKING:
    from laplex._backends import Backend

# From this ratio of sizes on only the shorter side is sorted. benchmarks/studies/crossover.py: short -> long gains from
# 16 on, long -> short loses a little where everything fits the cache; the plan, which sorts only the short side, always
# gains.
SHORT_AXIS_RATIO = 16
WORD = 32  # points; the GPU's order is padded to multiples of it

_KINDS = {  # of targets, of sources, and the layout of the transpose
    "merged": ("sorted", "sorted", "merged"),
    "short_rows": ("short", "long", "short_cols"),
    "short_cols": ("long", "short", "short_rows"),
    "joined": ("entries", "places", "joined_transposed"),
    "joined_transposed": ("places", "entries", "joined"),
    "in_order": ("bits", "places", "in_order_transposed"),
    "in_order_transposed": ("places", "bits", "in_order"),
    "none": ("nothing", "nothing", "none"),
}
_CHANNELS = {"sorted": (4, 2), "short": (1, 0), "long": (2, 0), "nothing": (0, 0)}  # c and v of the table above
JOINED = frozenset(("joined", "joined_transposed", "in_order", "in_order_transposed"))  # layouts of the GPU
Tensors = tuple[Tensor, Tensor, Tensor, Tensor]  # index and values of the targets, then of the sources


class Side(NamedTuple):
    """The part of an order that belongs to the targets, or to the sources."""

    kind: str
    indices: Tensor
    values: Tensor


class Order(NamedTuple):
    """The order of targets and sources."""

    layout: str
    target: Side
    source: Side

    @classmethod
    def from_tensors(cls, tensors: Sequence[Tensor], layout: str) -> Order:
        """The inverse of :attr:`tensors`."""
        kinds = _KINDS[layout]
        return cls(layout, Side(kinds[0], tensors[0], tensors[1]), Side(kinds[1], tensors[2], tensors[3]))

    @classmethod
    def none(cls, target: Tensor, source: Tensor) -> Order:
        """In place of an order, for backends that need none."""
        target_empty, source_empty = (
            side.new_empty((*(side.shape[:-1] or (1,)), 0, side.shape[-1])) for side in (target, source)
        )
        return cls.from_tensors((target_empty, target_empty, source_empty, source_empty), "none")

    @property
    def tensors(self) -> Tensors:
        """What operators take in place of the order; the layout says what they are."""
        return self.target.indices, self.target.values, self.source.indices, self.source.values

    @property
    def mT(self) -> Order:
        """The order for the transposed matrix: targets and sources swapped. Nothing is copied."""
        return Order(_KINDS[self.layout][2], self.source, self.target)

    @property
    def joined(self) -> bool:
        """Whether both sides are in one sequence, as on the GPU."""
        return self.layout in JOINED

    @property
    def kept_as(self) -> str:
        """The layout as a user sees it, whichever side holds the order."""
        return self.layout.removesuffix("_transposed")

    def to(self, device: torch.device | str) -> Order:
        return Order.from_tensors([tensor.to(device=device) for tensor in self.tensors], self.layout)

    def unchecked(self) -> Order:
        """The order without positions, so that the GPU checks it against the anchors; the CPU always does."""
        if not self.joined:
            return self
        target, source = (side._replace(values=side.values[..., :0]) for side in (self.target, self.source))
        return Order(self.layout, target, source)


class Matrix(NamedTuple):
    """K(target, source) as ``scan`` multiplies by it: the anchors, their order and the backend that multiplies."""

    target: Tensor  # (*H, n)
    source: Tensor  # (*H, k)
    tau: Tensor  # H
    order: Order
    backend: Backend

    @property
    def flat(self) -> tuple[Any, ...]:
        """As arguments of an operator: seven tensors, the layout and the backend's name."""
        return *self.tensors, self.order.layout, self.backend.name

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return self.target, self.source, self.tau, *self.order.tensors

    @property
    def mT(self) -> Matrix:
        """The transpose K(source, target)."""
        return Matrix(self.source, self.target, self.tau, self.order.mT, self.backend)

    def widened(self) -> Matrix:
        """The same numbers in float64."""
        target, source, tau, *tensors = [
            tensor.double() if tensor.is_floating_point() else tensor for tensor in self.tensors
        ]
        return Matrix(target, source, tau, Order.from_tensors(tensors, self.order.layout), self.backend)


def layout_of_sides(n: int, k: int) -> str:
    """The layout of an order of n rows and k columns whose sides are sorted apart."""
    if always(k >= SHORT_AXIS_RATIO * n):
        return "short_rows"
    return "short_cols" if always(n >= SHORT_AXIS_RATIO * k) else "merged"


def padded(points: int) -> int:
    """The next multiple of :data:`WORD`, so that vector loads need no mask."""
    return -(-points // WORD) * WORD


def empty_order(a: Tensor, b: Tensor, layout: str) -> Order:
    """An order of a (h, n) and b (h, k), yet to be filled."""
    kinds = _KINDS[layout][:2]
    if layout in JOINED:
        h, points = a.shape[0], padded(a.shape[1] + b.shape[1])
        length = points if layout == "joined" else points // WORD * 2
        entries = a.new_empty((h, 1, length), dtype=torch.int32)
        nothing = a.new_empty((h, 1, 0))
        return Order.from_tensors((entries, a.new_empty((h, 1, points)), nothing.to(torch.int32), nothing), layout)
    tensors = []
    for side, kind in zip((a, b), kinds, strict=True):
        index, values = _CHANNELS[kind]
        tensors.append(side.new_empty((side.shape[0], index, side.shape[1]), dtype=torch.int32))
        tensors.append(side.new_empty((side.shape[0], values, side.shape[1])))
    return Order.from_tensors(tensors, layout)
