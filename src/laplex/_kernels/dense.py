"""The product with K formed: exact too, and the fastest when the matrix is small."""

from __future__ import annotations

import torch
from torch import Tensor

from laplex import _checks
from laplex._kernels import triton_scan
from laplex._kernels.torch_scan import pullback_from
from laplex._shapes import flat, flat_rows


def scan(
    x: Tensor, target: Tensor, source: Tensor, tau: Tensor, _1: Tensor, _2: Tensor, _3: Tensor, _4: Tensor, *, odd: bool
) -> tuple[Tensor, Tensor]:
    """(E x, S x) for K(target, source): x (*X, k) -> (*X, n), and the second (*X, 0) unless ``odd``.

    The four arguments without a name are the plan's: no order is needed here. On CUDA K is not even formed.
    """
    if target.is_cuda and not triton_scan.MISSING:
        return triton_scan.direct(x, target, source, tau, odd=odd)
    for name, anchors in (("a", target), ("b", source)):
        if not bool(torch.isfinite(anchors).all()):
            raise ValueError(_checks.not_finite("laplex.linear", name))
    if not bool(_checks.is_length(tau).all()):
        raise ValueError(_checks.bad_tau("laplex.linear", tau.tolist()))
    gap = flat(source, 2).double()[:, None, :] - flat(target, 2).double()[:, :, None]  # (h, n, k)
    decay = torch.exp(-gap.abs() / tau.reshape(-1, 1, 1))
    rows = flat_rows(x, tau).double()
    even = (rows @ decay.mT).to(x.dtype).view(*x.shape[:-1], -1)
    if not odd:
        return even, x.new_empty((*x.shape[:-1], 0))
    return even, (rows @ (gap.sign() * decay).mT).to(x.dtype).view(even.shape)


def pullback(*arguments: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """x_bar, t_bar, s_bar for the cotangent g of E x, in one swapped scan; t_bar is (h, 0) without ``odd_x``."""
    return pullback_from(scan, *arguments)
