"""The ways of a product: by the scan, by the scan summed over matrices, and with the matrix formed."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from laplex import _backends
from laplex._formed.autograd import product as formed_product
from laplex._formed.kernels import Kernels
from laplex._phase.autograd import fused_for
from laplex._phase.composition import composed, stack, unstack
from laplex._scan.autograd import scan
from laplex._scan.order import Matrix
from laplex._scan.weighted import mixed, parts_of, weighted
from laplex._shapes import flat_anchors, flat_tau, fold, unfold


def kernels_of(
    anchors: tuple[Tensor, Tensor],
    tau: Tensor,
    batch: tuple[int, ...],
    weight: Tensor | None,
    phase: tuple[Tensor, ...],
) -> Kernels:
    """The matrices to be formed: summed to one if there is a weight. tau is as the caller gave it, or (h,)."""
    a, b = (flat_anchors(side, batch) for side in anchors)
    phi, psi = (flat_anchors(side, batch) for side in phase) if phase else (None, None)
    if tau.shape in (batch, a.shape[:-1]):
        length = tau.reshape(a.shape[:-1])  # as it is: a conversion would be a launch
    else:
        length = flat_tau(tau, batch, a.device)
    over = None if weight is None else weight.expand(batch).reshape(a.shape[:-1])
    return Kernels(a, b, length, over, phi, psi, 1 if weight is None else length.numel())


def formed(x: Tensor, kernels: Kernels, batch: tuple[int, ...], backend: str, kept: dict[Any, Any]) -> Tensor:
    """x (..., k), or (*H, m, k) for a batch of results, to (..., n), with the matrix formed and multiplied by torch."""
    if x.is_complex():
        rows = x if x.dim() > 1 else x[None]
        both = formed(torch.cat([rows.real, rows.imag], -2), kernels, batch, backend, kept)
        y = torch.complex(*both.tensor_split(2, -2))
        return y if x.dim() > 1 else y[0]
    if x.dtype.itemsize < 4 and not _backends.load(backend, x.device.type).reads_half:
        return formed(x.to(torch.float32), kernels, batch, backend, kept).to(x.dtype)
    if not batch:
        return formed_product(x, kernels, backend, kept)
    folded, folding = fold(x, batch)
    return unfold(formed_product(folded, kernels, backend, kept), folding)


def weighted_sum(x: Tensor, matrix: Matrix, phase: tuple[Tensor, ...], weight: Tensor) -> Tensor:
    """sum over h of weight_h x K_h^T by the scan: x (..., k) to (..., n)."""
    if x.dtype.itemsize < 4:  # sums are rounded once, at the end
        return weighted_sum(x.to(torch.float32), matrix, phase, weight).to(x.dtype)
    rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
    if weight.numel() == 1:  # a factor of the shorter side, so that no long one is read for it
        factor = weight.to(x.dtype)
        if matrix.target.shape[-1] <= x.shape[-1]:
            summed = product(rows[None], matrix, phase)[0] * factor
        else:
            summed = product((rows * factor)[None], matrix, phase)[0]
    elif phase or x.is_complex():
        summed = rows.new_zeros(())
        # How many parts there are depends on the number of rows, and a graph must not: it takes all matrices at once.
        parts = [(slice(None), matrix)] if torch.compiler.is_compiling() else parts_of(rows, matrix)
        for part, of_part in parts:  # autograd, if it watches, keeps the results of all
            alike = rows.expand(of_part.tau.numel(), *rows.shape)
            made = product(alike, of_part, tuple(side[part] for side in phase))
            summed = summed + mixed(made, weight[part])
    else:
        summed = weighted(rows, matrix, weight)
    return summed.view(*x.shape[:-1], summed.shape[-1])


def product(x: Tensor, matrix: Matrix, phase: tuple[Tensor, ...]) -> Tensor:
    """x (h, m, k), or (..., k) without a batch, to (..., n) in the dtype of x, by the scan; phases (h, n) and (h, k).

    The parts of a complex x, and the two channels of phases (``laplex._phase``), are stacked as more rows of one scan.
    """
    a = matrix.target
    if x.is_complex():
        parts = stack(x.real, x.imag, a)
        return torch.complex(*unstack(product(parts, matrix, phase), a))
    fused = fused_for(x, phase, matrix) if phase else None
    if fused is not None:
        return fused(x, *phase, *matrix)
    if phase:
        phi, psi = phase
        return composed(x, phi, psi, matrix)
    narrow = x.dtype.itemsize < 4 and not _backends.load(matrix.backend, x.device.type).reads_half
    # The odd sums give the gradient of a. Here they cost little; without them backward would need one more scan.
    odd = torch.is_grad_enabled() and a.requires_grad
    y, _ = scan(x.to(torch.float32) if narrow else x, matrix, odd=odd)
    return y if y.dtype == x.dtype else y.to(x.dtype)
