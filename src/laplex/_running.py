"""Running sums over points in order, with the same bits every time on every device."""

from __future__ import annotations

import torch
from torch import Tensor

from laplex._eager import plainly_eager
from laplex._states import chain


def running(decay: Tensor, v: Tensor) -> Tensor:
    """f_j = decay_j f_{j-1} + v_j, for decay (h, n) and v (h, n, c). Differentiable to any order."""
    return chain.scan(decay[..., None, None], v[..., None, :])[..., 0, :]


def cumulative(v: Tensor) -> Tensor:
    """The running sums of v (h, n, c) over n.

    On a GPU ``cumsum`` has different rounding errors every time. In graphs and transforms it is used all the same:
    there, a running sum is many operations, whose number depends on n.
    """
    return running(torch.ones_like(v[..., 0]), v) if v.is_cuda and plainly_eager() else v.cumsum(1)
