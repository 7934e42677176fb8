"""The dense product on a GPU: pairs of anchors are formed in registers, in one launch and without an order."""

from __future__ import annotations

import torch
from torch import Tensor

from laplex._scan import results
from laplex._scan.order import Matrix
from laplex._scan.parts import scan_in_parts
from laplex._scan.results import even_like, sums_like
from laplex._scan.torch import pullback_by
from laplex._shapes import flat_rows
from laplex._triton import tuning
from laplex._triton.launch import launch, power
from laplex._triton.scan import direct as programs


def scan(x: Tensor, matrix: Matrix, *, odd: bool, degree: int = 0) -> tuple[Tensor, Tensor]:
    """(E x, S x): x (*X, k) -> (*X, n), and the second (*X, 0) unless ``odd``."""
    if matrix.tau.numel() > results.LAUNCH_AXIS:
        return scan_in_parts(scan, x, matrix, odd=odd, degree=degree)
    even, odd_part = sums_like(x, matrix, odd)
    rows, out, tau = flat_rows(x, matrix.tau), flat_rows(even, matrix.tau), matrix.tau.contiguous()
    (h, m, k), n = rows.shape, out.shape[-1]
    targets, sources, most_rows = tuning.DIRECT_TILE
    rows_each = min(most_rows, power(m))
    tensors = rows, matrix.target.contiguous(), matrix.source.contiguous(), tau, out, odd_part
    sizes = m, n, k, *rows.stride(), *out.stride()
    grid = -(-n // targets) * -(-m // rows_each), h, 1
    flags = x.dtype == torch.float64, odd, degree, targets, sources, rows_each
    launch(programs.direct_program, grid, tensors, sizes, flags, 4)
    return even, odd_part


def pullback(
    g: Tensor, x: Tensor, odd_x: Tensor, matrix: Matrix, *, to_tau: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x_bar, t_bar, s_bar, tau_bar for the cotangent g of E x, by transposed products."""
    x_bar, t_bar, s_bar, tau_bar = pullback_by(scan, g, x, odd_x, matrix, to_tau=to_tau)
    like_x = even_like(x, x.shape[-1], matrix)
    if x_bar.stride() != like_x.stride():  # it has the strides of g, and a compiled graph was promised those of x
        x_bar = like_x.copy_(x_bar)
    return x_bar, t_bar, s_bar, tau_bar
