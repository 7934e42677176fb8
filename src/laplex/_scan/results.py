"""Memory for the results of ``scan`` and ``pullback``: shapes, dtypes and strides, for backends and for tracing."""

from __future__ import annotations

import torch
from torch import Tensor

from laplex._scan.order import Matrix

LAUNCH_AXIS = 65535  # programs along the second or third axis of a launch on a GPU; larger batches run in parts


def even_like(x: Tensor, size: int, matrix: Matrix) -> Tensor:
    """(*X, size) for E x. Where x (m, k) or (h, m, k) is the transpose of contiguous memory, a GPU's result is, too."""
    tau = matrix.tau
    columns = x.dim() == tau.dim() + 2 <= 3 and x.shape[-2] > 1 and x.stride(-2) == 1 and x.stride(-1) != 1
    if columns and tau.numel() <= LAUNCH_AXIS and matrix.backend.writes_columns:
        return x.new_empty((*x.shape[:-2], size, x.shape[-2])).mT
    return x.new_empty((*x.shape[:-1], size))


def odd_like(x: Tensor, size: int) -> Tensor:
    """(*X, size) for S x, at least float32: it is saved for gradients of anchors, which are."""
    return x.new_empty((*x.shape[:-1], size), dtype=torch.promote_types(x.dtype, torch.float32))


def sums_like(x: Tensor, matrix: Matrix, odd: bool) -> tuple[Tensor, Tensor]:
    """E x and S x, yet to be filled; the second (*X, 0) unless requested."""
    n = matrix.target.shape[-1]
    return even_like(x, n, matrix), odd_like(x, n if odd else 0)


def gradients_like(x: Tensor, odd_x: Tensor, matrix: Matrix, to_tau: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x_bar, t_bar, s_bar and tau_bar, yet to be filled; t_bar (*H, 0) without odd_x, tau_bar (0,) unless requested."""
    target, source, tau = matrix.target, matrix.source, matrix.tau
    t_bar = target.new_empty((*target.shape[:-1], odd_x.shape[-1]))
    tau_bar = tau.new_empty(tau.shape if to_tau else (0,))
    return even_like(x, x.shape[-1], matrix), t_bar, source.new_empty(source.shape), tau_bar
