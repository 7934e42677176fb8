"""The work of a round of EM, shared by processes that all have the same examples.

Expectations are shared by examples, and what belongs to one feature by features, in pieces that do not depend on how
many processes there are. What the others did is gathered, and what all compute alike, such as factors of the latent
covariance, is taken from the first. So all processes have the same state after every round, to the bit, and it is that
of one process but for the order of a few sums in float64. (Jumps need that: where two places explain a feature about
equally well, the last bit of a float32 decides, and later rounds show it.)
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from laplex.distributed._agreement import agree, ranks_in
from laplex.distributed._ranks import Ranks


class Sharing(NamedTuple):
    """The processes that share the work; one alone if there are no ranks."""

    ranks: Ranks | None = None

    def part(self, count: int, piece: int = 1) -> slice:
        """Which of so many examples or features are those of this process: whole pieces, if there are enough."""
        return slice(0, count) if self.ranks is None else self._parts(count, piece)[self.ranks.rank]

    def _parts(self, count: int, piece: int) -> list[slice]:
        size = 1 if self.ranks is None else self.ranks.size
        piece = piece if count >= piece * size else 1
        pieces = -(-count // piece)
        ends = [min(pieces * rank // size * piece, count) for rank in range(size + 1)]
        return [slice(first, last) for first, last in itertools.pairwise(ends)]

    def joined(self, own: Tensor, count: int, piece: int = 1) -> Tensor:
        """(count, ...): the parts (few, ...) of all processes."""
        if self.ranks is None:
            return own
        sizes = [part.stop - part.start for part in self._parts(count, piece)]
        rows = own.reshape(len(own), math.prod(own.shape[1:]))
        everyone = self.ranks.gathered(pad(rows, (0, 0, 0, max(sizes) - len(own))))
        parts = [theirs[:few] for theirs, few in zip(everyone, sizes, strict=True)]
        return torch.cat(parts).reshape(count, *own.shape[1:])

    def total(self, own: Tensor) -> Tensor:
        """The sum over all processes, the same bits on each."""
        return own if self.ranks is None else self.ranks.gathered(own).sum(0)

    def same(self, value: Tensor) -> Tensor:
        """That of the first process."""
        return value if self.ranks is None else self.ranks.from_first(value)


ALONE = Sharing()


def sharing(where: str, group: Any, check: Callable[[], dict[str, Any]]) -> Sharing:
    """The processes of a group, if there is one, which agree that the check is passed, and on what it returns."""
    if group is None:
        check()
        return ALONE
    ranks = ranks_in(where, group)
    agree(where, ranks, check)
    return Sharing(ranks)
