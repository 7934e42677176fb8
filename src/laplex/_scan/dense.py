"""The product with K formed: exact too, and the fastest when the matrix is small. On CUDA ``_triton`` has its own."""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from laplex import _checks
from laplex._scan.order import Matrix
from laplex._scan.torch import BEYOND, pullback_by
from laplex._shapes import flat, flat_rows


def scan(x: Tensor, matrix: Matrix, *, odd: bool, degree: int = 0) -> tuple[Tensor, Tensor]:
    """(E x, S x): x (*X, k) -> (*X, n), and the second (*X, 0) unless ``odd``. The order is not used."""
    target, source, tau = matrix[:3]
    _checks.values("laplex.linear", target, source, tau)
    gap = flat(source, 2).double()[:, None, :] - flat(target, 2).double()[:, :, None]  # (h, n, k)
    u = gap.abs() / tau.reshape(-1, 1, 1)
    entries = torch.exp(-u)
    if degree:
        entries = u.clamp(max=BEYOND) * entries
    rows = flat_rows(x, tau).double()
    even = (rows @ entries.mT).to(x.dtype).view(*x.shape[:-1], -1)
    if not odd:
        return even, x.new_empty((*x.shape[:-1], 0))
    return even, (rows @ (gap.sign() * entries).mT).to(x.dtype).view(even.shape)


pullback = functools.partial(pullback_by, scan)
