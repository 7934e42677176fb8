"""The product with K formed: exact too, and the fastest when the matrix is small."""

from __future__ import annotations

import torch
from torch import Tensor

from laplex import _checks
from laplex._kernels.torch_scan import pullback_from


def scan(
    x: Tensor, target: Tensor, source: Tensor, tau: Tensor, _1: Tensor, _2: Tensor, _3: Tensor, _4: Tensor, odd: bool
) -> tuple[Tensor, Tensor]:
    """(E x, S x) for K(target, source): x (h, m, k) -> (h, m, n), and the second (h, m, 0) unless ``odd``.

    The four arguments without a name are the plan's: no order is needed here.
    """
    gap = source[:, None, :] - target[:, :, None]  # (h, n, k)
    if not bool(torch.isfinite(gap).all()):
        name = "a" if not bool(torch.isfinite(target).all()) else "b"
        raise ValueError(_checks.not_finite("laplex.linear", name))
    if not bool(((tau > 0) & (tau < torch.inf)).all()):
        raise ValueError(_checks.bad_tau("laplex.linear", tau.tolist()))
    decay = torch.exp(-gap.abs() / tau[:, None, None].to(gap.dtype)).to(x.dtype)
    with torch.autocast(x.device.type, enabled=False):  # precision is ours to choose
        even = x @ decay.mT
        odd_part = x @ (gap.sign().to(x.dtype) * decay).mT if odd else even.new_empty((*even.shape[:2], 0))
    return even, odd_part


def pullback(*arguments: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """x_bar, t_bar, s_bar for the cotangent g of E x, in one swapped scan; t_bar is (h, 0) without ``odd_x``."""
    return pullback_from(scan, *arguments)
