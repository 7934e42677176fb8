"""The product with K formed: exact too, and the fastest when the matrix is small."""

from __future__ import annotations

import torch
from torch import Tensor

from laplex import _checks


def scan(
    x: Tensor, target: Tensor, source: Tensor, tau: Tensor, target_index: Tensor, source_index: Tensor, odd: bool
) -> tuple[Tensor, Tensor]:
    """(E x, S x) for K(target, source): x (h, m, k) -> (h, m, n), and the second (h, m, 0) unless ``odd``."""
    del target_index, source_index  # no order is needed
    gap = source[:, None, :] - target[:, :, None]  # (h, n, k)
    if not bool(torch.isfinite(gap).all()):
        name = "a" if not bool(torch.isfinite(target).all()) else "b"
        raise ValueError(_checks.not_finite("laplex.linear", name))
    if not bool(((tau > 0) & (tau < torch.inf)).all()):
        raise ValueError(_checks.bad_tau("laplex.linear", tau.tolist()))
    decay = torch.exp(-gap.abs() / tau[:, None, None].to(gap.dtype)).to(x.dtype)
    even = x @ decay.mT
    return even, x @ (gap.sign() * decay).mT.to(x.dtype) if odd else even.new_empty((*even.shape[:2], 0))
