"""The blocks of a state-space kernel."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Blocks(NamedTuple):
    """A kernel that is a sum of B blocks with s states in all, for each of h series; the package has the formulas."""

    kinds: tuple[int, ...]  # (B,): the number of states of every block, 1, 2 or 3; the same for all series
    rates: Tensor  # (h, B): a
    squares: Tensor  # (h, B): b; read for kind 2 only
    g: Tensor  # (h, s)

    @property
    def firsts(self) -> list[int]:
        """The first state of every block."""
        return [sum(self.kinds[:i]) for i in range(len(self.kinds))]

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        """The fields that have derivatives."""
        return self.rates, self.squares, self.g

    def double(self) -> Blocks:
        """The same in float64."""
        return Blocks(self.kinds, *(part.double() for part in self.tensors))

    def readout(self) -> Tensor:
        """h, (s,): 1 at the first state of every block, and 0 elsewhere."""
        firsts = torch.tensor([float(i == 0) for kind in self.kinds for i in range(kind)], dtype=self.g.dtype)
        return firsts.to(self.g.device)
