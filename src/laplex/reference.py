"""The dense definitions: short, slow, in O(n k) memory. All tests compare with them, and with nothing else."""

from __future__ import annotations

import torch
from torch import Tensor

from laplex import _checks
from laplex._shapes import spread_tau

__all__ = ["gram", "kernel", "linear"]


def __dir__() -> list[str]:
    return __all__


def kernel(
    a: Tensor, b: Tensor, tau: float | Tensor = 1.0, *, phi: Tensor | None = None, psi: Tensor | None = None
) -> Tensor:
    """The matrix itself: K[i, j] = exp(-|a_i - b_j| / tau) cos(phi_i - psi_j).

    Args:
        a (*H, n): row anchors.
        b (*H, k): column anchors.
        tau: positive length scale: a number, a tensor of one element, or a tensor that broadcasts to H.
        phi (*H, n), psi (*H, k): phases, both or neither.

    Returns:
        K (*H, n, k), by differentiable torch operations; autograd through them defines every derivative.
    """
    if (phi is None) != (psi is None):
        raise ValueError("laplex.reference.kernel: `phi` and `psi` go together, got one without the other; pass zeros")
    _checks.batch_shape("laplex.reference.kernel", a, b, tau)
    scale = spread_tau(tau, 2) if isinstance(tau, Tensor) else tau
    dense = torch.exp(-(a[..., :, None] - b[..., None, :]).abs() / scale)
    if phi is not None and psi is not None:
        dense = dense * torch.cos(phi[..., :, None] - psi[..., None, :])
    return dense


def linear(
    x: Tensor,
    a: Tensor,
    b: Tensor,
    tau: float | Tensor = 1.0,
    *,
    weight: Tensor | None = None,
    phi: Tensor | None = None,
    psi: Tensor | None = None,
) -> Tensor:
    """y = x K^T with K formed: x (..., k) -> (..., n); the definition of :func:`laplex.linear`.

    With a weight (H) the matrices are summed first: K = sum over h of weight_h K_h.
    """
    dense = kernel(a, b, tau, phi=phi, psi=psi)
    if weight is not None:
        dense = (dense * weight[..., None, None]).flatten(0, -3).sum(0) if dense.dim() > 2 else dense * weight
    return x @ dense.mT.to(x.dtype)


def gram(
    a: Tensor,
    b: Tensor,
    weight: Tensor | None = None,
    tau: float | Tensor = 1.0,
    *,
    phi: Tensor | None = None,
    psi: Tensor | None = None,
) -> Tensor:
    """M = K diag(weight) K^T with K formed: weight (k,) -> (*H, n, n), weight (*H, m, k) -> (*H, m, n, n)."""
    dense = kernel(a, b, tau, phi=phi, psi=psi)
    if weight is not None and weight.dim() > 1:
        dense = dense[..., None, :, :]
    weighted = dense if weight is None else dense * weight[..., None, :]
    return weighted @ dense.mT
