"""The operators of products that PyTorch sees: schemas, fakes and registrations.

    laplex::plan(a, b, layout, backend)             -> the four tensors of an order
    laplex::scan(x, matrix, odd, degree)            -> E x, S x          with u^degree exp(-u), u = |t - s| / tau
    laplex::pullback(g, x, odd_x, matrix, to_tau)   -> x_bar, t_bar, s_bar, tau_bar: the first backward, fused

``matrix`` stands for the nine arguments of ``Matrix.flat``. Anchors are (*H, n), tau is H, and x is (*X, k), which
counts as (h, m, k) with h = prod(H): backends fold the leading dimensions, so that autograd sees no reshaping. Autograd
does not look into the operators; ``autograd`` makes derivatives out of the same operators.

Where nothing traces or transforms a call, the dispatcher is not asked: that takes as long as a launch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from laplex import _backends
from laplex._backends import Backend
from laplex._eager import plain, plainly_eager
from laplex._scan import results
from laplex._scan.order import Matrix, Order, Tensors, empty_order
from laplex._shapes import flat

MATRIX = (
    "Tensor target, Tensor source, Tensor tau, Tensor target_index, Tensor target_values, Tensor source_index, "
    "Tensor source_values, str layout, str backend"
)
_library = torch.library.Library("laplex", "DEF")
for _schema in (
    "plan(Tensor a, Tensor b, str layout, str backend) -> (Tensor, Tensor, Tensor, Tensor)",
    f"scan(Tensor x, {MATRIX}, bool odd, int degree) -> (Tensor, Tensor)",
    f"pullback(Tensor g, Tensor x, Tensor odd_x, {MATRIX}, bool to_tau) -> (Tensor, Tensor, Tensor, Tensor)",
):
    _library.define(_schema, tags=(torch.Tag.pt2_compliant_tag,))

plan = torch.ops.laplex.plan.default
scan = torch.ops.laplex.scan.default
pullback = torch.ops.laplex.pullback.default
Sums = tuple[Tensor, Tensor]
Gradients = tuple[Tensor, Tensor, Tensor, Tensor]


def matrix_from(flat: Sequence[Any]) -> Matrix:
    """The inverse of ``Matrix.flat``."""
    target, source, tau, *tensors, layout, backend = flat
    table = _backends.load(backend, target.device.type)
    return Matrix(target, source, tau, Order.from_tensors(tensors, layout), table)


def order(a: Tensor, b: Tensor, layout: str, backend: Backend) -> Order:
    """The order of a (h, n) and b (h, k), or of a (n,) and b (k,)."""
    if plainly_eager() and plain(a) and plain(b):
        return _order(a, b, layout, backend)
    return Order.from_tensors(plan(a, b, layout, backend.name), layout)


def _order(a: Tensor, b: Tensor, layout: str, backend: Backend) -> Order:
    if backend.order is None:
        raise NotImplementedError(f"laplex::plan: backend '{backend.name}' sorts nothing")
    return backend.order(a, b, layout)


def run_scan(x: Tensor, matrix: Matrix, *, odd: bool, degree: int = 0) -> Sums:
    """The scan by the matrix's backend, or by the operator where something watches the call."""
    operands = x, matrix.target, matrix.source, matrix.tau  # the order's tensors are our own
    if plainly_eager() and all(map(plain, operands)):
        return _scan(x, matrix, odd, degree)
    sums: Sums = scan(x, *matrix.flat, odd, degree)
    return sums


def _scan(x: Tensor, matrix: Matrix, odd: bool, degree: int) -> Sums:
    if x.numel() > 0 and matrix.target.numel() > 0:
        return matrix.backend.scan(x, matrix, odd=odd, degree=degree)
    even, difference = results.sums_like(x, matrix, odd)
    return even.zero_(), difference.zero_()


def run_pullback(g: Tensor, x: Tensor, odd_x: Tensor, matrix: Matrix, *, to_tau: bool) -> Gradients:
    """The gradients by the matrix's backend, or by the operator where something watches the call."""
    if plainly_eager() and all(map(plain, (g, x, matrix.target, matrix.source, matrix.tau))):
        return _pullback(g, x, odd_x, matrix, to_tau)
    bars: Gradients = pullback(g, x, odd_x, *matrix.flat, to_tau)
    return bars


def _pullback(g: Tensor, x: Tensor, odd_x: Tensor, matrix: Matrix, to_tau: bool) -> Gradients:
    if g.numel() > 0 and x.numel() > 0:
        return matrix.backend.pullback(g, x, odd_x, matrix, to_tau=to_tau)
    x_bar, t_bar, s_bar, tau_bar = results.gradients_like(x, odd_x, matrix, to_tau)
    return x_bar.zero_(), t_bar.zero_(), s_bar.zero_(), tau_bar.zero_()


@torch.library.impl(_library, "plan", "CompositeExplicitAutograd")
def _plan_impl(a: Tensor, b: Tensor, layout: str, backend: str) -> Tensors:
    return _order(a, b, layout, _backends.load(backend, a.device.type)).tensors


@torch.library.register_fake("laplex::plan", lib=_library)
def _plan_fake(a: Tensor, b: Tensor, layout: str, backend: str) -> Tensors:
    return empty_order(flat(a, 2), flat(b, 2), layout).tensors


@torch.library.register_vmap("laplex::plan", lib=_library)
def _plan_vmap(
    info: Any, in_dims: tuple[int | None, ...], a: Tensor, b: Tensor, layout: str, backend: str
) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    size = info.batch_size
    sides = [
        side.movedim(dim, 0) if dim is not None else side.expand(size, *side.shape)
        for side, dim in zip((a, b), in_dims, strict=False)
    ]
    tensors = plan(*(flat(side, 2) for side in sides), layout, backend)
    batch = math.prod(sides[0].shape[1:-1])
    return tuple(tensor.unflatten(0, (size, batch)) for tensor in tensors), (0, 0, 0, 0)


@torch.library.impl(_library, "scan", "CompositeExplicitAutograd")
def _scan_impl(x: Tensor, *inputs: Any) -> Sums:
    *flat_matrix, odd, degree = inputs
    return _scan(x, matrix_from(flat_matrix), odd, degree)


@torch.library.register_fake("laplex::scan", lib=_library)
def _scan_fake(x: Tensor, *inputs: Any) -> Sums:
    *flat_matrix, odd, _degree = inputs
    return results.sums_like(x, matrix_from(flat_matrix), odd)


@torch.library.impl(_library, "pullback", "CompositeExplicitAutograd")
def _pullback_impl(g: Tensor, x: Tensor, odd_x: Tensor, *inputs: Any) -> Gradients:
    *flat_matrix, to_tau = inputs
    return _pullback(g, x, odd_x, matrix_from(flat_matrix), to_tau)


@torch.library.register_fake("laplex::pullback", lib=_library)
def _pullback_fake(g: Tensor, x: Tensor, odd_x: Tensor, *inputs: Any) -> Gradients:
    *flat_matrix, to_tau = inputs
    return results.gradients_like(x, odd_x, matrix_from(flat_matrix), to_tau)
