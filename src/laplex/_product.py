"""The ways of a product: by the scan, by the scan summed over matrices, and with the matrix formed."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from laplex._backends import Backend
from laplex._formed.autograd import product as matrix_product
from laplex._formed.autograd import trained_product
from laplex._formed.kernels import Kernels
from laplex._phase.autograd import product as phased_product
from laplex._phase.composition import stack, unstack
from laplex._plan import planned_matrix
from laplex._route import Arguments, Route
from laplex._scan.autograd import scan
from laplex._scan.order import Matrix
from laplex._scan.weighted import mixed, parts_of, weighted
from laplex._shapes import flat_anchors, flat_tau, fold, unfold


def formed_product(arguments: Arguments, route: Route) -> Tensor:
    """The product of ``laplex.linear`` with the matrix formed."""
    x, a, b, tau, weight, phi, psi, _, _ = arguments
    batch, table, direct = route
    length = tau if isinstance(tau, Tensor) else flat_tau(tau, batch, a.device)
    if direct:
        return trained_product(x, Kernels(a, b, length, weight, phi, psi, math.prod(batch)), table)
    a, b = flat_anchors(a, batch), flat_anchors(b, batch)
    phi, psi = (None if side is None else flat_anchors(side, batch) for side in (phi, psi))
    if length.shape in (batch, a.shape[:-1]):
        length = length.reshape(a.shape[:-1])  # as it is: a conversion would be a launch
    else:
        length = flat_tau(length, batch, a.device)
    if weight is None:
        return _formed(x, Kernels(a, b, length, None, phi, psi, 1), batch, table)
    return _formed(
        x, Kernels(a, b, length, weight.expand(batch).reshape(a.shape[:-1]), phi, psi, length.numel()), (), table
    )


def _formed(x: Tensor, kernels: Kernels, batch: tuple[int, ...], table: Backend) -> Tensor:
    """x (..., k), or (*H, m, k) for a batch of results, to (..., n), with the matrix formed and multiplied by torch."""
    if x.is_complex():
        rows = x if x.dim() > 1 else x[None]
        both = _formed(torch.cat([rows.real, rows.imag], -2), kernels, batch, table)
        y = torch.complex(*both.tensor_split(2, -2))
        return y if x.dim() > 1 else y[0]
    if x.dtype.itemsize < 4 and not table.reads_half:
        return _formed(x.to(torch.float32), kernels, batch, table).to(x.dtype)
    if not batch:
        return matrix_product(x, kernels, table)
    folded, folding = fold(x, batch)
    return unfold(matrix_product(folded, kernels, table), folding)


def scanned_product(arguments: Arguments, route: Route) -> Tensor:
    """The product of ``laplex.linear`` by the scan."""
    x, a, b, tau, weight, phi, psi, plan, backend = arguments
    batch = route.batch
    matrix = planned_matrix(
        "laplex.linear", (a, b), flat_tau(tau, batch, a.device), batch, plan, (route.backend, backend)
    )
    phase = tuple(flat_anchors(side, batch) for side in (phi, psi) if side is not None)  # both or neither
    if weight is not None:
        return weighted_sum(x, matrix, phase, weight.expand(batch).reshape(-1))
    if not batch:
        return product(x, matrix, phase)
    folded, folding = fold(x, batch)
    return unfold(product(folded, matrix, phase), folding)


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
        for part, matrices in parts:  # autograd, if it watches, keeps the results of all
            operands = rows.expand(matrices.tau.numel(), *rows.shape)
            products = product(operands, matrices, tuple(side[part] for side in phase))
            summed = summed + mixed(products, weight[part])
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
    if phase:
        phi, psi = phase
        return phased_product(x, phi, psi, matrix)
    narrow = x.dtype.itemsize < 4 and not matrix.backend.reads_half
    # The odd sums give the gradient of a. Here they cost little; without them backward would need one more scan.
    odd = torch.is_grad_enabled() and a.requires_grad
    y, _ = scan(x.to(torch.float32) if narrow else x, matrix, odd=odd)
    return y if y.dtype == x.dtype else y.to(x.dtype)
