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
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from laplex import _backends
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


def order(a: Tensor, b: Tensor, layout: str, backend: str) -> Order:
    """The order of a (h, n) and b (h, k), or of a (n,) and b (k,)."""
    if plainly_eager() and plain(a) and plain(b):
        return _order(a, b, layout, backend)
    return Order.from_tensors(plan(a, b, layout, backend), layout)


def _order(a: Tensor, b: Tensor, layout: str, backend: str) -> Order:
    sort = _backends.load(backend, a.device.type).order
    if sort is None:
        raise NotImplementedError(f"laplex::plan: backend '{backend}' sorts nothing")
    return sort(a, b, layout)


def scan_for(x: Tensor, matrix: Matrix) -> Callable[..., Sums]:
    """What computes ``scan(x, matrix, odd=, degree=)``: the backend, or the operator where something watches the call.

    A function that returns a function, so that the way from a public call to the backend stays short.
    """
    given = x, matrix.target, matrix.source, matrix.tau  # the order's tensors are our own
    if not plainly_eager() or not all(map(plain, given)):
        return _registered_scan
    return _scan_by_backend(x, matrix)


def _scan_by_backend(x: Tensor, matrix: Matrix) -> Callable[..., Sums]:
    if x.numel() == 0 or matrix.target.numel() == 0:
        return _no_sums
    return _backends.load(matrix.backend, x.device.type).scan


def _registered_scan(x: Tensor, matrix: Matrix, *, odd: bool, degree: int = 0) -> Sums:
    made: Sums = scan(x, *matrix.flat, odd, degree)
    return made


def _no_sums(x: Tensor, matrix: Matrix, *, odd: bool, degree: int = 0) -> Sums:
    even, difference = results.sums_like(x, matrix, odd)
    return even.zero_(), difference.zero_()


def pullback_for(g: Tensor, x: Tensor, matrix: Matrix) -> Callable[..., Gradients]:
    """What computes ``pullback(g, x, odd_x, matrix, to_tau=)``, as :func:`scan_for`."""
    given = g, x, matrix.target, matrix.source, matrix.tau
    if not plainly_eager() or not all(map(plain, given)):
        return _registered_pullback
    return _pullback_by_backend(g, x, matrix)


def _pullback_by_backend(g: Tensor, x: Tensor, matrix: Matrix) -> Callable[..., Gradients]:
    if g.numel() == 0 or x.numel() == 0:
        return _no_gradients
    return _backends.load(matrix.backend, x.device.type).pullback


def _registered_pullback(g: Tensor, x: Tensor, odd_x: Tensor, matrix: Matrix, *, to_tau: bool) -> Gradients:
    made: Gradients = pullback(g, x, odd_x, *matrix.flat, to_tau)
    return made


def _no_gradients(g: Tensor, x: Tensor, odd_x: Tensor, matrix: Matrix, *, to_tau: bool) -> Gradients:
    x_bar, t_bar, s_bar, tau_bar = results.gradients_like(x, odd_x, matrix, to_tau)
    return x_bar.zero_(), t_bar.zero_(), s_bar.zero_(), tau_bar.zero_()


@torch.library.impl(_library, "plan", "CompositeExplicitAutograd")
def _plan_impl(a: Tensor, b: Tensor, layout: str, backend: str) -> Tensors:
    return _order(a, b, layout, backend).tensors


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
    made = plan(*(flat(side, 2) for side in sides), layout, backend)
    batch = math.prod(sides[0].shape[1:-1])
    return tuple(tensor.unflatten(0, (size, batch)) for tensor in made), (0, 0, 0, 0)


@torch.library.impl(_library, "scan", "CompositeExplicitAutograd")
def _scan_impl(x: Tensor, *inputs: Any) -> Sums:
    *flat_matrix, odd, degree = inputs
    matrix = Matrix.from_flat(flat_matrix)
    return _scan_by_backend(x, matrix)(x, matrix, odd=odd, degree=degree)


@torch.library.register_fake("laplex::scan", lib=_library)
def _scan_fake(x: Tensor, *inputs: Any) -> Sums:
    *flat_matrix, odd, _degree = inputs
    return results.sums_like(x, Matrix.from_flat(flat_matrix), odd)


@torch.library.impl(_library, "pullback", "CompositeExplicitAutograd")
def _pullback_impl(g: Tensor, x: Tensor, odd_x: Tensor, *inputs: Any) -> Gradients:
    *flat_matrix, to_tau = inputs
    matrix = Matrix.from_flat(flat_matrix)
    return _pullback_by_backend(g, x, matrix)(g, x, odd_x, matrix, to_tau=to_tau)


@torch.library.register_fake("laplex::pullback", lib=_library)
def _pullback_fake(g: Tensor, x: Tensor, odd_x: Tensor, *inputs: Any) -> Gradients:
    *flat_matrix, to_tau = inputs
    return results.gradients_like(x, odd_x, Matrix.from_flat(flat_matrix), to_tau)
