"""The ordered scan in C++ (csrc/), called with addresses: this file owns dtypes, contiguity and messages."""

from __future__ import annotations

import torch
from torch import Tensor

from laplex._checks.core import core_fault
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


def scan(x: Tensor, matrix: Matrix, *, odd: bool, degree: int = 0) -> tuple[Tensor, Tensor]:
    """(E x, S x): x (*X, k) -> (*X, n), and the second (*X, 0) unless ``odd``."""
    if x.dtype != matrix.target.dtype:  # the core takes one dtype: the wider, so that nothing is lost
        even, odd_part = scan(x.double(), matrix.widened(), odd=odd, degree=degree)
        return even.to(x.dtype), odd_part.to(x.dtype)
    lead, n = x.shape[:-1], matrix.target.shape[-1]
    even, odd_part = x.new_empty((*lead, n)), x.new_empty((*lead, n if odd else 0))
    _run(x, matrix, even, odd=odd_part, degree=degree)
    return even, odd_part


def pullback(
    g: Tensor, x: Tensor, odd_x: Tensor, matrix: Matrix, *, to_tau: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x_bar, t_bar, s_bar, tau_bar for the cotangent g of E x: a transposed scan, and for tau one of degree 1.

    t_bar is (*H, 0) without ``odd_x``, tau_bar (0,) without ``to_tau``.
    """
    if g.dtype != matrix.target.dtype:
        bars = pullback(g.double(), x.double(), odd_x.double(), matrix.widened(), to_tau=to_tau)
        return bars[0].to(x.dtype), bars[1].to(matrix.target.dtype), bars[2].to(matrix.source.dtype), bars[3]
    g, x, odd_x, tau = g.contiguous(), x.contiguous(), odd_x.contiguous(), matrix.tau.contiguous()
    x_bar, t_bar, s_bar, tau_bar = results.gradients_like(x, odd_x, matrix, to_tau)
    _run(g, matrix.mT, x_bar, weights=x, pull=s_bar)
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
    core.row_dot(*addresses, h, x.numel() // (h * n), n, x.dtype == torch.float64, torch.get_num_threads())
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
    addresses += [0 if array is None else array.data_ptr() for array in (even, odd, weights, pull)]
    h, n, k = tau.numel(), target.shape[-1], source.shape[-1]
    channels = target_side.indices.shape[-2], source_side.indices.shape[-2]
    sizes = h, x.numel() // (h * k), n, k, *channels, degree
    status = core.scan(*addresses, *sizes, x.dtype == torch.float64, torch.get_num_threads())
    if status:
        core_fault("laplex.linear", status, tau)


def _sort(a: Tensor, b: Tensor, order: Order, from_old: bool) -> None:
    """Fill the order's tensors in place."""
    one = a.data_ptr() == b.data_ptr() and a.shape == b.shape and a.stride() == b.stride()
    a = a.contiguous()
    b = a if one else b.contiguous()  # the core sorts one tensor once
    rows, cols = order.target, order.source
    arrays = a, b, rows.indices, cols.indices, rows.values, cols.values
    sizes = a.shape[0], a.shape[1], b.shape[1], rows.indices.shape[1], cols.indices.shape[1]
    threads = torch.get_num_threads()
    status = core.order(*(array.data_ptr() for array in arrays), *sizes, from_old, a.dtype == torch.float64, threads)
    if status:
        core_fault("laplex", status)
