"""The work of a round of EM, shared by processes that all have the same examples.

Expectations are shared by examples, and what belongs to one feature by features. What the others did is gathered, and
what all compute alike, such as factors of the latent covariance, is taken from the first. So all processes have the
same state after every round, to the bit.
"""

from __future__ import annotations

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

    def part(self, count: int) -> slice:
        """Which of so many examples or features are those of this process."""
        if self.ranks is None:
            return slice(0, count)
        rank, size = self.ranks.rank, self.ranks.size
        return slice(count * rank // size, count * (rank + 1) // size)

    def joined(self, own: Tensor, count: int) -> Tensor:
        """(count, ...): the parts (few, ...) of all processes."""
        if self.ranks is None:
            return own
        most = -(-count // self.ranks.size)
        rows = own.reshape(len(own), math.prod(own.shape[1:]))
        everyone = self.ranks.gathered(pad(rows, (0, 0, 0, most - len(own))))
        sizes = [self._replace(ranks=self.ranks._replace(rank=rank)).part(count) for rank in range(self.ranks.size)]
        parts = [theirs[: part.stop - part.start] for theirs, part in zip(everyone, sizes, strict=True)]
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
