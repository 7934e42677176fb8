"""One copy of the input: a yardstick for memory traffic. It computes nothing."""

from collections.abc import Callable

import torch
from torch import Tensor


def prepare(a: Tensor, b: Tensor, tau: float) -> Callable[[Tensor], Tensor]:
    """A copy into memory that is fetched in every call, as any function that returns a new tensor must."""
    del a, b, tau
    return Tensor.clone


def prepare_into(a: Tensor, b: Tensor, tau: float) -> Callable[[Tensor], Tensor]:
    """A copy into memory that is at hand: a large block from the system can cost several times the copy itself."""
    del b, tau
    kept = torch.empty(0, dtype=a.dtype, device=a.device)

    def apply(x: Tensor) -> Tensor:
        return kept.resize_(x.shape).copy_(x)

    return apply
