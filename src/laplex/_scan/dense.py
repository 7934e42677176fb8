"""The product with K formed: exact too, and the fastest when the matrix is small."""

from __future__ import annotations

import torch
from torch import Tensor

from laplex import _checks
from laplex._scan.torch import BEYOND, pullback_from
from laplex._shapes import flat, flat_rows
from laplex._triton.scan import launch as triton_scan


def scan(
    x: Tensor,
    target: Tensor,
    source: Tensor,
    tau: Tensor,
    *_order: Tensor,
    odd: bool,
    degree: int = 0,
) -> tuple[Tensor, Tensor]:
    """(E x, S x) for K(target, source): x (*X, k) -> (*X, n), and the second (*X, 0) unless ``odd``.

    No order is needed here. On CUDA K is not even formed.
    """
    if target.is_cuda and not triton_scan.MISSING:
        return triton_scan.direct(x, target, source, tau, odd=odd, degree=degree)
    for name, anchors in (("a", target), ("b", source)):
        if not bool(torch.isfinite(anchors).all()):
            raise ValueError(_checks.not_finite("laplex.linear", name))
    if not bool(_checks.is_length(tau).all()):
        raise ValueError(_checks.bad_tau("laplex.linear", tau))
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


def pullback(*arguments: Tensor, to_tau: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x_bar, t_bar, s_bar, tau_bar for the cotangent g of E x, by swapped scans."""
    return pullback_from(scan, *arguments, to_tau=to_tau)
