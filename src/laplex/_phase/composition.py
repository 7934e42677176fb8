"""A product with phases as pointwise torch around one scan: differentiable to every order, on every backend."""

from __future__ import annotations

import torch
from torch import Tensor

from laplex._scan.autograd import scan
from laplex._scan.order import Matrix


def composed(x: Tensor, phi: Tensor, psi: Tensor, matrix: Matrix) -> Tensor:
    """x (h, m, k), or (..., k) without a batch, to (..., n) in the dtype of x; phases (h, n) and (h, k)."""
    a = matrix.target
    wide = x.to(torch.float32) if x.dtype.itemsize < 4 else x
    y, _ = scan(channels(wide, psi, a), matrix, odd=torch.is_grad_enabled() and a.requires_grad)
    return joined_channels(y, phi, a).to(x.dtype)


def channels(x: Tensor, psi: Tensor, a: Tensor) -> Tensor:
    """x cos psi and x sin psi, stacked."""
    angle = _angle(psi, a, x)
    return stack(x * angle.cos().to(x.dtype), x * angle.sin().to(x.dtype), a)


def joined_channels(y: Tensor, phi: Tensor, a: Tensor) -> Tensor:
    """cos phi times the first channel plus sin phi times the second."""
    of_cos, of_sin = unstack(y, a)
    angle = _angle(phi, a, of_cos)
    return of_cos * angle.cos().to(y.dtype) + of_sin * angle.sin().to(y.dtype)


def stack(one: Tensor, two: Tensor, a: Tensor) -> Tensor:
    """Two operands as one with twice the rows: (2, ..., k) without a batch, (h, 2, m, k) with one."""
    return torch.stack([one, two], a.dim() - 1)


def unstack(y: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
    one, two = y.unbind(a.dim() - 1)
    return one, two


def _angle(phase: Tensor, a: Tensor, x: Tensor) -> Tensor:
    """Phases as factors of the rows of x, (..., k) or (h, ..., k), at least as precise as x."""
    angle = phase.to(torch.promote_types(phase.dtype, x.dtype))
    return angle if a.dim() == 1 else angle.reshape(a.shape[0], *[1] * (x.dim() - 2), phase.shape[-1])
