"""Fold leading dimensions into (h, rows, size), for a batch of h matrices, and unfold the results."""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import torch
from torch import Tensor

from laplex._eager import normal_mode, plainly_eager


class Folding(NamedTuple):
    """How x (*F, m, k) was folded: F was broadcast with H, and the dimensions of the batch were moved to the front."""

    lead: tuple[int, ...]  # broadcast of F and H
    front: tuple[int, ...]  # permutation of lead: first dimensions of the batch, then those that all matrices share
    rows: int  # m


def fold(x: Tensor, batch: tuple[int, ...]) -> tuple[Tensor, Folding]:
    """x (*F, m, k) -> (h, rows, k), h = prod(H). A dimension in which the matrices do not differ becomes rows."""
    lead = tuple(torch.broadcast_shapes(x.shape[:-2], batch))
    batch_sizes = (1,) * (len(lead) - len(batch)) + batch
    axes = range(len(lead))
    front = (*[d for d in axes if batch_sizes[d] != 1], *[d for d in axes if batch_sizes[d] == 1])
    last = len(lead)
    rows = x.shape[-2] * math.prod([size for size, matrices in zip(lead, batch_sizes, strict=True) if matrices == 1])
    folded = x.expand(*lead, *x.shape[-2:]).permute(*front, last, last + 1)
    return folded.reshape(math.prod(batch), rows, x.shape[-1]), Folding(lead, front, x.shape[-2])


def unfold(y: Tensor, folding: Folding) -> Tensor:
    """(h, rows, n) -> (*F, m, n): the inverse of :func:`fold`, for another last size."""
    lead, front, m = folding
    back = [front.index(d) for d in range(len(front))]
    last = len(front)
    return y.reshape(*[lead[d] for d in front], m, y.shape[-1]).permute(*back, last, last + 1)


def flat_anchors(values: Tensor, batch: tuple[int, ...]) -> Tensor:
    """(*H', n) -> (h, n), where H' broadcasts to H; without a batch they stay (n,)."""
    if not batch or (len(batch) == 1 and values.shape[:-1] == batch):
        return values
    n = values.shape[-1]
    return values.expand(*batch, n).reshape(math.prod(batch), n)


def flat_tau(tau: float | Tensor, batch: tuple[int, ...], device: torch.device) -> Tensor:
    """tau as (h,), or () without a batch, in float64, which holds float32 values and Python floats exactly."""
    shape = (math.prod(batch),) if batch else ()
    if isinstance(tau, Tensor):
        return spread_tau(tau, 0).to(torch.float64).expand(batch).reshape(shape)
    if device.type == "cuda" and plainly_eager() and not torch.cuda.is_current_stream_capturing():
        stream = torch._C._cuda_getCurrentRawStream(-1 if device.index is None else device.index)
        return _number_on(float(tau), shape, device, stream)
    return torch.full(shape, float(tau), dtype=torch.float64, device=device)


def number_per_row(number: float, batch: tuple[int, ...], device: torch.device) -> Tensor:
    """A number for each row of a batch, (*batch), in float64; on a GPU one tensor for all calls: never write to it."""
    with normal_mode():  # what is made of it may be used in another mode, and differentiated
        numbers = flat_tau(number, batch, device)
    return numbers if len(batch) < 2 else numbers.view(batch)


def spread_tau(tau: Tensor, dims: int) -> Tensor:
    """tau, reshaped to divide a tensor (*H, ...) with ``dims`` dimensions after H; one element counts as a number."""
    return tau.reshape((1,) * dims) if tau.numel() == 1 else tau[(..., *[None] * dims)]


@functools.lru_cache(maxsize=64)
def _number_on(value: float, shape: tuple[int, ...], device: torch.device, stream: int) -> Tensor:
    """A number as a tensor, cached per device and stream: without the cache every call would have one more launch."""
    with torch.inference_mode(False):  # later calls may differentiate
        return torch.full(shape, value, dtype=torch.float64, device=device)


def flat(tensor: Tensor, dims: int) -> Tensor:
    """(*H, ...) -> (h, ...), a tensor with ``dims`` dimensions in total."""
    if tensor.dim() == dims:
        return tensor
    keep = tensor.dim() - dims + 1
    return tensor.reshape(math.prod(tensor.shape[:keep]), *tensor.shape[keep:])


def flat_rows(x: Tensor, tau: Tensor) -> Tensor:
    """x (*X, k) -> (h, m, k) for tau of h elements."""
    return x.reshape(tau.numel(), x.numel() // max(tau.numel() * x.shape[-1], 1), x.shape[-1])
