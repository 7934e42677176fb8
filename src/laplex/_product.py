"""The ways of a product: by the scan, by the scan summed over matrices, and with the matrix formed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from laplex import _backends
from laplex._formed.autograd import product as formed_product
from laplex._formed.kernels import Kernels
from laplex._scan.autograd import scan
from laplex._scan.order import Matrix
from laplex._scan.weighted import weighted
from laplex._shapes import flat_anchors, flat_tau, fold, unfold


def kernels_of(
    anchors: tuple[Tensor, Tensor],
    tau: float | Tensor,
    batch: tuple[int, ...],
    weight: Tensor | None,
    phase: tuple[Tensor, ...],
) -> Kernels:
    """The matrices to be formed: summed to one if there is a weight."""
    a, b = (flat_anchors(side, batch) for side in anchors)
    phi, psi = (flat_anchors(side, batch) for side in phase) if phase else (None, None)
    as_given = isinstance(tau, Tensor) and tau.shape == batch  # a conversion would be a launch
    length = tau if as_given and isinstance(tau, Tensor) else flat_tau(tau, batch, a.device)
    over = weight if weight is None or weight.shape == batch else weight.expand(batch)
    return Kernels(a, b, length, over, phi, psi, 1 if weight is None else length.numel())


def formed(x: Tensor, kernels: Kernels, batch: tuple[int, ...], backend: str, kept: dict[Any, Any]) -> Tensor:
    """x (..., k), or (*H, m, k) for a batch of results, to (..., n), with the matrix formed and multiplied by torch."""
    if x.is_complex():
        both = formed(torch.stack([x.real, x.imag]), kernels, batch, backend, kept)
        return torch.complex(both[0], both[1])
    if x.dtype.itemsize < 4 and not _backends.load(backend, x.device.type).reads_half:
        return formed(x.to(torch.float32), kernels, batch, backend, kept).to(x.dtype)
    if not batch:
        return formed_product(x, kernels, backend, kept)
    folded, folding = fold(x, batch)
    return unfold(formed_product(folded, kernels, backend, kept), folding)


def weighted_sum(x: Tensor, matrix: Matrix, phase: tuple[Tensor, ...], weight: Tensor) -> Tensor:
    """sum over h of weight_h x K_h^T by the scan: x (..., k) to (..., n)."""
    rows = x.reshape(-1, x.shape[-1])
    if phase or x.is_complex() or x.dtype.itemsize < 4:
        alike = rows.expand(weight.numel(), *rows.shape)
        summed = torch.tensordot(weight.to(x.dtype), product(alike, matrix, phase), 1)
    else:
        summed = weighted(rows, matrix, weight)
    return summed.view(*x.shape[:-1], summed.shape[-1])


def product(x: Tensor, matrix: Matrix, phase: tuple[Tensor, ...]) -> Tensor:
    """x (h, m, k), or (..., k) without a batch, to (..., n) in the dtype of x, by the scan; phases (h, n) and (h, k), or none.

    The parts of a complex x, and the cosine and sine of phases, are stacked as more rows of one scan.
    """
    a = matrix.target
    if x.is_complex():
        parts = _stack(x.real, x.imag, a)
        return torch.complex(*_unstack(product(parts, matrix, phase), a))
    narrow = x.dtype.itemsize < 4 and not (not phase and _backends.load(matrix.backend, x.device.type).reads_half)
    wide = x.to(torch.float32) if narrow else x
    if phase:  # cos(phi - psi) = cos phi cos psi + sin phi sin psi
        phi, psi = (_angle(part, a, wide) for part in phase)
        wide = _stack(wide * psi.cos().to(wide.dtype), wide * psi.sin().to(wide.dtype), a)
    # The odd sums give the gradient of a. Here they cost little; without them backward would need one more scan.
    odd = torch.is_grad_enabled() and a.requires_grad
    y, _ = scan(wide, matrix, odd=odd)
    if phase:
        of_cos, of_sin = _unstack(y, a)
        y = of_cos * phi.cos().to(y.dtype) + of_sin * phi.sin().to(y.dtype)
    return y if y.dtype == x.dtype else y.to(x.dtype)


def _angle(phase: Tensor, a: Tensor, x: Tensor) -> Tensor:
    """Phases as factors of the rows of x, (..., k) or (h, ..., k), at least as precise as x."""
    angle = phase.to(torch.promote_types(phase.dtype, x.dtype))
    return angle if a.dim() == 1 else angle.reshape(a.shape[0], *[1] * (x.dim() - 2), phase.shape[-1])


def _stack(one: Tensor, two: Tensor, a: Tensor) -> Tensor:
    """Two operands as one with twice the rows: (2, ..., k) without a batch, (h, 2, m, k) with one."""
    return torch.stack([one, two], a.dim() - 1)


def _unstack(y: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
    one, two = y.unbind(a.dim() - 1)
    return one, two
