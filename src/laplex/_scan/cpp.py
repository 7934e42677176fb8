"""The ordered scan in C++ (csrc/), called with addresses: this file owns dtypes, contiguity and messages."""

from __future__ import annotations

import torch
from torch import Tensor

from laplex._checks.core import core_fault, is_double
from laplex._compiled import core
from laplex._scan import results
from laplex._scan.order import Matrix, Order, empty_order
from laplex._shapes import flat


def order(a: Tensor, b: Tensor, layout: str) -> Order:
    """The order of a (*H, n) and b (*H, k)."""
    a, b = flat(a, 2), flat(b, 2)
    order = empty_order(a, b, layout)
    _sort(a, b, order, from_old=False)
    return order


def update(a: Tensor, b: Tensor, old: Order) -> Order:
    """The order of anchors that moved, sorted from the old order on."""
    order = Order.from_tensors([tensor.clone() for tensor in old.tensors], old.layout)
    _sort(a, b, order, from_old=True)
    return order


def scan(x: Tensor, matrix: Matrix, *, odd: bool, degree: int = 0, tail: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """(E x, S x): x (*X, k) -> (*X, n), and the second (*X, 0) unless ``odd``.

    With a tail (*X, p) the last p targets and sources are pads: x is (*X, k - p), and the tail is the rest of it; the
    results are (*X, n - p). For merged orders.
    """
    if x.dtype != matrix.target.dtype:  # the core takes one dtype: the wider, so that nothing is lost
        wide = None if tail is None else tail.double()
        even, odd_part = scan(x.double(), matrix.widened(), odd=odd, degree=degree, tail=wide)
        return even.to(x.dtype), odd_part.to(x.dtype)
    lead, n = x.shape[:-1], matrix.target.shape[-1] - _pads(tail)
    even, odd_part = x.new_empty((*lead, n)), x.new_empty((*lead, n if odd else 0))
    _run(x, matrix, even, odd=odd_part, degree=degree, tail=tail)
    return even, odd_part


def pullback(
    g: Tensor, x: Tensor, odd_x: Tensor, matrix: Matrix, *, to_tau: bool, tail: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x_bar, t_bar, s_bar, tau_bar for the cotangent g of E x: a transposed scan, and for tau one of degree 1.

    t_bar is (*H, 0) without ``odd_x``, tau_bar (0,) without ``to_tau``. A tail is the rest of g, as in ``scan``; then
    nothing has pads, and there is no tau_bar.
    """
    if g.dtype != matrix.target.dtype:
        wide = None if tail is None else tail.double()
        bars = pullback(g.double(), x.double(), odd_x.double(), matrix.widened(), to_tau=to_tau, tail=wide)
        return bars[0].to(x.dtype), bars[1].to(matrix.target.dtype), bars[2].to(matrix.source.dtype), bars[3]
    g, x, odd_x, tau = g.contiguous(), x.contiguous(), odd_x.contiguous(), matrix.tau.contiguous()
    x_bar, t_bar, s_bar, tau_bar = results.gradients_like(x, odd_x, matrix, to_tau)
    s_bar = s_bar[..., : s_bar.shape[-1] - _pads(tail)].contiguous()
    _run(g, matrix.mT, x_bar, weights=x, pull=s_bar, tail=tail)
    if odd_x.shape[-1] > 0:
        _row_dot(g, odd_x, tau, t_bar)
    return x_bar, t_bar, s_bar, _tau_bar(g.double(), x.double(), matrix.widened()) if to_tau else tau_bar


def _tau_bar(g: Tensor, x: Tensor, matrix: Matrix) -> Tensor:
    """1/tau of g . A_1 x, or of x . A_1^T g, in float64, whichever forms the shorter vector."""
    if g.shape[-1] > x.shape[-1]:
        g, x, matrix = x, g, matrix.mT
    stretch, _ = scan(x, matrix, odd=False, degree=1)
    return _row_dot(g.contiguous(), stretch, matrix.tau.contiguous(), g.new_empty(matrix.target.shape)).sum(-1)


def _row_dot(x: Tensor, y: Tensor, tau: Tensor, out: Tensor) -> Tensor:
    """Fill out (*H, n) with the sum over rows of x * y, over tau."""
    h, n = tau.numel(), x.shape[-1]
    addresses = x.data_ptr(), y.data_ptr(), tau.data_ptr(), out.data_ptr()
    double = is_double("laplex.linear", x, y, out)
    core.row_dot(*addresses, h, x.numel() // (h * n), n, double, torch.get_num_threads())
    return out


def _run(
    x: Tensor,
    matrix: Matrix,
    even: Tensor,
    *,
    odd: Tensor | None = None,
    weights: Tensor | None = None,
    pull: Tensor | None = None,
    degree: int = 0,
    tail: Tensor | None = None,
) -> None:
    """Fill even, odd and pull. The core takes addresses: 0 for what is not needed, as for a tensor without elements."""
    target, source, tau, (_, target_side, source_side), _ = matrix
    if target_side.indices.dtype != torch.int32 or source_side.indices.dtype != torch.int32:
        raise TypeError(
            f"laplex.linear: a plan's index is int32, got {target_side.indices.dtype}; build a new laplex.Plan(a, b)"
        )
    order_arrays = target_side.indices, source_side.indices, target_side.values, source_side.values
    arrays = [array.contiguous() for array in (x, target, source, tau, *order_arrays)]  # held until the core is done
    addresses = [array.data_ptr() for array in arrays]
    if target_side.values.dtype != target.dtype:  # the order of anchors in another dtype: its values are not these
        addresses[-2:] = 0, 0
    tail = None if tail is None else tail.contiguous()
    addresses += [0 if array is None else array.data_ptr() for array in (even, odd, weights, pull, tail)]
    h, n, k = tau.numel(), target.shape[-1], source.shape[-1]
    channels = target_side.indices.shape[-2], source_side.indices.shape[-2]
    sizes = h, x.numel() // (h * x.shape[-1]), n, k, _pads(tail), *channels, degree
    double = is_double("laplex.linear", x, target, source)
    status = core.scan(*addresses, *sizes, double, torch.get_num_threads())
    if status:
        core_fault("laplex.linear", status, tau)


def _pads(tail: Tensor | None) -> int:
    return 0 if tail is None else tail.shape[-1]


def _sort(a: Tensor, b: Tensor, order: Order, from_old: bool) -> None:
    """Fill the order's tensors in place."""
    one = a.data_ptr() == b.data_ptr() and a.shape == b.shape and a.stride() == b.stride()
    a = a.contiguous()
    b = a if one else b.contiguous()  # the core sorts one tensor once
    rows, cols = order.target, order.source
    arrays = a, b, rows.indices, cols.indices, rows.values, cols.values
    sizes = a.shape[0], a.shape[1], b.shape[1], rows.indices.shape[1], cols.indices.shape[1]
    addresses, double = [array.data_ptr() for array in arrays], is_double("laplex", a, b)
    status = core.order(*addresses, *sizes, from_old, double, torch.get_num_threads())
    if status:
        core_fault("laplex", status)
