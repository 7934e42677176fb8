"""Fold any broadcast of batch and kernels into (kernels, rows, size) and back."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor


class Folding(NamedTuple):
    """How x (*F, m, k) was folded: F broadcast with H, then the kernel dimensions brought to the front."""

    lead: tuple[int, ...]  # broadcast of F and H
    front: tuple[int, ...]  # permutation of lead: kernel dimensions first, then dimensions all kernels share
    rows: int  # m


def fold(x: Tensor, batch: tuple[int, ...]) -> tuple[Tensor, Folding]:
    """x (*F, m, k) -> (h, rows, k), h = prod(H). A dimension in which the kernels do not differ becomes rows."""
    k = x.shape[-1]
    if not batch:
        return x.reshape(1, math.prod(x.shape[:-1]), k), Folding(tuple(x.shape[:-1]), (), 0)
    lead = tuple(torch.broadcast_shapes(x.shape[:-2], batch))
    kernels = (1,) * (len(lead) - len(batch)) + batch
    front = tuple(sorted(range(len(lead)), key=lambda d: kernels[d] == 1))
    last = len(lead)
    rows = x.shape[-2] * math.prod(size for size, of in zip(lead, kernels, strict=True) if of == 1)
    folded = x.expand(*lead, *x.shape[-2:]).permute(*front, last, last + 1)
    return folded.reshape(math.prod(batch), rows, k), Folding(lead, front, x.shape[-2])


def unfold(y: Tensor, folding: Folding) -> Tensor:
    """(h, rows, n) -> (*F, m, n): the inverse of :func:`fold`, for another last size."""
    lead, front, m = folding
    n = y.shape[-1]
    if not front:
        return y.reshape(*lead, n)
    back = sorted(range(len(front)), key=front.__getitem__)
    last = len(front)
    return y.reshape(*(lead[d] for d in front), m, n).permute(*back, last, last + 1)


def flat_anchors(values: Tensor, batch: tuple[int, ...]) -> Tensor:
    """(*H', n) -> (h, n), where H' broadcasts to H."""
    n = values.shape[-1]
    if not batch:
        return values.reshape(1, n)
    return values.expand(*batch, n).reshape(math.prod(batch), n)


def flat_tau(tau: float | Tensor, batch: tuple[int, ...], device: torch.device) -> Tensor:
    """(h,) in float64: a float32 tau is exact there, and a Python number loses nothing."""
    if isinstance(tau, Tensor):
        return tau.to(torch.float64).expand(batch).reshape(math.prod(batch))
    return torch.full((math.prod(batch),), float(tau), dtype=torch.float64, device=device)
