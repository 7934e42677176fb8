"""`torch.nn.Linear` with the weight K: the dense layer that a `laplex.linear` takes the place of."""

from collections.abc import Callable

import torch
from torch import Tensor

from benchmarks.baselines import dense


def make(a: Tensor, b: Tensor, tau: float) -> torch.nn.Linear:
    """A layer without bias, whose weight is K(a, b)."""
    layer = torch.nn.Linear(len(b), len(a), bias=False, device="meta", dtype=a.dtype)
    layer.weight = torch.nn.Parameter(dense.form(a, b, tau))
    return layer


def prepare(a: Tensor, b: Tensor, tau: float) -> Callable[[Tensor], Tensor]:
    """Form the weight, which inference keeps."""
    return make(a, b, tau).requires_grad_(False)
