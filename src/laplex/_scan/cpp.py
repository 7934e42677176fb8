"""The ordered scan in C++ (csrc/), called with addresses: this file owns dtypes, contiguity and messages."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor

from laplex import _checks
from laplex._errors import StalePlanError
from laplex._scan import ops as _ops

try:
    _core: Any = importlib.import_module("laplex._core")
    MISSING = ""
except ImportError as error:
    _core = None
    MISSING = (
        f"the compiled core did not load ({error}); with a C++17 compiler at hand, reinstall laplex, in the folder of "
        "laplex's source: pip install --force-reinstall --no-deps ."
    )


def plan(a: Tensor, b: Tensor, layout: str) -> _ops.Planned:
    """The order of a (h, n) and b (h, k), as ``_ops`` describes it."""
    made = _ops.empty_plan(a, b, layout)
    _order(a, b, made, from_old=False)
    return made


def replan(a: Tensor, b: Tensor, layout: str, old: _ops.Planned) -> _ops.Planned:
    """The plan for anchors that moved, sorted from the old order on."""
    del layout  # the old plan tells
    made = old[0].clone(), old[1].clone(), old[2].clone(), old[3].clone()
    _order(a, b, made, from_old=True)
    return made


def scan(
    x: Tensor,
    target: Tensor,
    source: Tensor,
    tau: Tensor,
    target_index: Tensor,
    target_values: Tensor,
    source_index: Tensor,
    source_values: Tensor,
    *,
    odd: bool,
    degree: int = 0,
) -> tuple[Tensor, Tensor]:
    """(E x, S x) for K(target, source): x (*X, k) -> (*X, n), and the second (*X, 0) unless ``odd``."""
    order = target_index, target_values, source_index, source_values
    if x.dtype != target.dtype:  # one dtype in the kernels, the wider: nothing is lost
        even, odd_part = scan(*_widened(x, target, source, tau, *order), odd=odd, degree=degree)
        return even.to(x.dtype), odd_part.to(x.dtype)
    lead, n = x.shape[:-1], target.shape[-1]
    even, odd_part = x.new_empty((*lead, n)), x.new_empty((*lead, n if odd else 0))
    _run_scan(x, target, source, tau, order, even, odd_part, None, None, degree)
    return even, odd_part


def pullback(
    g: Tensor,
    x: Tensor,
    odd_x: Tensor,
    target: Tensor,
    source: Tensor,
    tau: Tensor,
    target_index: Tensor,
    target_values: Tensor,
    source_index: Tensor,
    source_values: Tensor,
    *,
    to_tau: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x_bar, t_bar, s_bar, tau_bar for the cotangent g of E x: a swapped scan, and for tau one of degree 1.

    t_bar is (*H, 0) without ``odd_x``, tau_bar (0,) without ``to_tau``.
    """
    order = source_index, source_values, target_index, target_values
    if g.dtype != target.dtype:
        bars = pullback(*_widened(g, x, odd_x, target, source, tau, *order[2:], *order[:2]), to_tau=to_tau)
        return bars[0].to(x.dtype), bars[1].to(target.dtype), bars[2].to(source.dtype), bars[3]
    g, x, odd_x, tau = g.contiguous(), x.contiguous(), odd_x.contiguous(), tau.contiguous()
    x_bar, s_bar = x.new_empty(x.shape), source.new_empty(source.shape)
    _run_scan(g, source, target, tau, order, x_bar, None, x, s_bar, 0)
    t_bar = target.new_empty((*target.shape[:-1], odd_x.shape[-1]))
    if odd_x.shape[-1] > 0:
        _row_dot(g, odd_x, tau, t_bar)
    tau_bar = _tau_bar(*_widened(g, x, target, source, tau, *order)) if to_tau else tau.new_empty(0)
    return x_bar, t_bar, s_bar, tau_bar


def _tau_bar(g: Tensor, x: Tensor, target: Tensor, source: Tensor, tau: Tensor, *swapped: Tensor) -> Tensor:
    """1/tau of g . A_1 x, or of x . A_1^T g, in float64: the shorter result is formed."""
    if target.shape[-1] <= source.shape[-1]:
        stretch, _ = scan(x, target, source, tau, *swapped[2:], *swapped[:2], odd=False, degree=1)
        return _row_dot(g, stretch, tau, target.new_empty(target.shape)).sum(-1)
    stretch, _ = scan(g, source, target, tau, *swapped, odd=False, degree=1)
    return _row_dot(x, stretch, tau, source.new_empty(source.shape)).sum(-1)


def _row_dot(x: Tensor, y: Tensor, tau: Tensor, out: Tensor) -> Tensor:
    """Fill out (*H, n) with the sum over rows of x * y, over tau."""
    h, n = tau.numel(), x.shape[-1]
    addresses = x.data_ptr(), y.data_ptr(), tau.data_ptr(), out.data_ptr()
    _core.row_dot(*addresses, h, x.numel() // (h * n), n, x.dtype == torch.float64, torch.get_num_threads())
    return out


def _widened(*tensors: Tensor) -> list[Tensor]:
    return [tensor.double() if tensor.is_floating_point() else tensor for tensor in tensors]


def _run_scan(
    x: Tensor,
    target: Tensor,
    source: Tensor,
    tau: Tensor,
    order: _ops.Planned,
    even: Tensor,
    odd: Tensor | None,
    weights: Tensor | None,
    pull: Tensor | None,
    degree: int,
) -> None:
    """Fill even, odd and pull. The core takes addresses: 0 for what is not there, as for a tensor without elements."""
    target_index, target_values, source_index, source_values = order
    if target_index.dtype != torch.int32 or source_index.dtype != torch.int32:
        raise TypeError(
            f"laplex.linear: a plan's index is int32, got {target_index.dtype}; build a new laplex.Plan(a, b)"
        )
    given = x, target, source, tau, target_index, source_index, target_values, source_values
    arrays = [array.contiguous() for array in given]  # held until the core is done
    addresses = [array.data_ptr() for array in arrays]
    if target_values.dtype != target.dtype:  # a plan of anchors in another dtype: its order may stand, its values not
        addresses[-2:] = 0, 0
    addresses += [0 if array is None else array.data_ptr() for array in (even, odd, weights, pull)]
    h, n, k = tau.numel(), target.shape[-1], source.shape[-1]
    m = x.numel() // (h * k)
    channels = target_index.shape[-2], source_index.shape[-2]
    sizes = h, m, n, k, *channels, degree
    status = _core.scan(*addresses, *sizes, x.dtype == torch.float64, torch.get_num_threads())
    if status:
        _raise("laplex.linear", status, tau)


def _order(a: Tensor, b: Tensor, made: _ops.Planned, from_old: bool) -> None:
    """Fill the plan's tensors in place."""
    row_index, row_values, col_index, col_values = made
    one = a.data_ptr() == b.data_ptr() and a.shape == b.shape and a.stride() == b.stride()
    a = a.contiguous()
    b = a if one else b.contiguous()  # the core sorts what is one tensor once
    status = _core.order(
        a.data_ptr(),
        b.data_ptr(),
        row_index.data_ptr(),
        col_index.data_ptr(),
        row_values.data_ptr(),
        col_values.data_ptr(),
        a.shape[0],
        a.shape[1],
        b.shape[1],
        row_index.shape[1],
        col_index.shape[1],
        from_old,
        a.dtype == torch.float64,
        torch.get_num_threads(),
    )
    if status:
        _raise("laplex", status, None)


def _raise(where: str, status: int, tau: Tensor | None) -> None:
    if status == _core.STALE_PLAN:
        raise StalePlanError(_checks.stale_plan(where))
    if status == _core.BAD_TAU and tau is not None:
        raise ValueError(_checks.bad_tau(where, tau))
    if status in (_core.NOT_FINITE_A, _core.NOT_FINITE_B):
        raise ValueError(_checks.not_finite(where, "a" if status == _core.NOT_FINITE_A else "b"))
    raise MemoryError(f"{where}: no memory for the compiled core's scratch arrays; use smaller batches")
