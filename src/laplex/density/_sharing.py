"""The work of a round of EM, shared by processes.

If all have the same examples:
Expectations are divided by examples, and work on features by features, in pieces that do not depend on how many
processes there are. Each process gathers the others' results, and what all would compute alike, such as factors of the
latent covariance, is taken from the first. So all processes have the same state after every round, to the bit, and it
is the state of a single process except for the order of a few sums in float64. (Jumps need that: if two places explain
a feature about equally well, the last bit of a float32 decides, and later rounds show it.)

If each has its own examples, their expectations stay with it. The sums for a feature are over all examples: every
process sums over its own, and sends each other process the sums of the features that the other one seats. So nothing
that grows with the number of examples is gathered. All processes have the same state here, too. It is the state of a
single process up to rounding, which in float32 may make a few features in many thousands jump differently.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from laplex.distributed._agreement import agree_if_spread, ranks_in
from laplex.distributed._ranks import Ranks


class Sharing(NamedTuple):
    """The processes that share the work; only this one if there are no ranks."""

    ranks: Ranks | None = None
    apart: bool = False  # whether each has its own examples

    def rows(self, count: int, piece: int) -> slice:
        """Which of the ``count`` examples held here this process works on."""
        return slice(0, count) if self.apart else self.part(count, piece)

    def part(self, count: int, piece: int = 1) -> slice:
        """Which of ``count`` examples or features belong to this process: whole pieces, if there are enough."""
        return slice(0, count) if self.ranks is None else self._parts(count, piece)[self.ranks.rank]

    def _parts(self, count: int, piece: int) -> list[slice]:
        size = 1 if self.ranks is None else self.ranks.size
        piece = piece if count >= piece * size else 1
        pieces = -(-count // piece)
        ends = [min(pieces * rank // size * piece, count) for rank in range(size + 1)]
        return [slice(first, last) for first, last in itertools.pairwise(ends)]

    def joined(self, own: Tensor, count: int, piece: int = 1) -> Tensor:
        """(count, ...): the parts (few, ...) of all processes, joined."""
        if self.ranks is None:
            return own
        sizes = [part.stop - part.start for part in self._parts(count, piece)]
        rows = own.reshape(len(own), math.prod(own.shape[1:]))
        everyone = self.ranks.gathered(pad(rows, (0, 0, 0, max(sizes) - len(own))))
        parts = [theirs[:few] for theirs, few in zip(everyone, sizes, strict=True)]
        return torch.cat(parts).reshape(count, *own.shape[1:])

    def sums(self, own: Tensor) -> Tensor:
        """The sum over processes if each has its own examples; unchanged if all have the same ones."""
        return self.ranks.total(own) if self.apart and self.ranks is not None else own

    def pieces(self, count: int, piece: int, few: int) -> list[list[slice]]:
        """The :meth:`part` of every process, (size, steps), cut into equally many steps of at most ``few``."""
        parts = self._parts(count, piece)
        steps = max(1, max(-(-(part.stop - part.start) // few) for part in parts))
        return [
            [slice(*(min(part.start + few * end, part.stop) for end in (step, step + 1))) for step in range(steps)]
            for part in parts
        ]

    def scattered(self, sums: Tensor, sizes: list[int]) -> Tensor:
        """Add up ``sums`` (sum(sizes), ...) over processes, and return this process's part (own, ...)."""
        if self.ranks is None:
            return sums
        own = sizes[self.ranks.rank]
        arrived = self.ranks.exchanged(sums, sizes, [own] * self.ranks.size)
        return arrived.reshape(self.ranks.size, own, *sums.shape[1:]).sum(0)

    def total(self, own: Tensor) -> Tensor:
        """The sum over all processes, the same bits on each."""
        return own if self.ranks is None else self.ranks.gathered(own).sum(0)

    def same(self, value: Tensor) -> Tensor:
        """The first process's value."""
        return value if self.ranks is None else self.ranks.from_first(value)


ALONE = Sharing()


def sharing(where: str, group: Any, check: Callable[[], dict[str, Any]], *, apart: bool = False) -> Sharing:
    """The processes of a group, if there is one, after agreeing that the check passes and on what it returns."""
    ranks = None if group is None else ranks_in(where, group)
    agree_if_spread(where, ranks, check)
    return ALONE if ranks is None else Sharing(ranks, apart)
