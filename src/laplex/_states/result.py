"""What a likelihood returns, from C++ or from a GPU, and how it is read: with one synchronisation of the device."""

from __future__ import annotations

from array import array
from typing import Any, NamedTuple

import torch
from torch import Tensor

from laplex._states.numbers import Real


class LikelihoodResult(NamedTuple):
    """The likelihood of each of h series."""

    value: Tensor  # (*batch): the logarithm of the density
    loss: Tensor | array[float]  # (h,): the sum of k(0) / d, to which rounding errors are proportional
    failed: Tensor | array[int]  # (h,): the first point without a positive pivot, or -1; as in Result
    variance: Real | Tensor  # k(0), a number or (h,)

    def read(self) -> list[Any]:
        """The values, losses, failures and k(0) as lists; k(0) stays as it is if it is not a tensor."""
        value, loss, failed, variance = self
        if isinstance(failed, Tensor) and isinstance(loss, Tensor):
            if isinstance(variance, Tensor):
                return list(read(value.reshape(-1), loss, failed, variance))
            return [*read(value.reshape(-1), loss, failed), variance]
        values = [value.item()] if value.numel() == 1 else value.reshape(-1).tolist()
        return [values, loss.tolist(), list(failed), variance]


def read(*values: Tensor) -> list[list[float]]:
    """Read tensors of one shape, (h,) each; on a GPU with one synchronisation for all of them."""
    if values[0].device.type == "cpu":
        return [value.tolist() for value in values]
    lists: list[list[float]] = torch.stack([value.detach().double() for value in values]).tolist()
    return lists
