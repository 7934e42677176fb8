"""The ordered scan in C++ (csrc/), called with addresses: this file owns dtypes, contiguity and messages."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from laplex import _checks, _ops
from laplex.errors import StalePlanError

_core: Any
try:
    from laplex import _core  # type: ignore[attr-defined, no-redef]

    MISSING = ""
except ImportError as error:
    _core = None
    MISSING = (
        f"the compiled core did not load ({error}); with a C++17 compiler at hand, reinstall laplex from source: "
        "pip install --force-reinstall --no-deps --no-binary laplex laplex"
    )


def plan(a: Tensor, b: Tensor, layout: str) -> _ops.Planned:
    """The order of a (h, n) and b (h, k), as ``_ops`` describes it."""
    made = _ops.empty_plan(a, b, layout)
    _order(a, b, made, from_old=False)
    return made


def replan(a: Tensor, b: Tensor, layout: str, old: _ops.Planned) -> _ops.Planned:
    """The plan for anchors that moved, sorted from the old order on."""
    del layout  # the old plan tells
    made = tuple(tensor.clone() for tensor in old)
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
    odd: bool,
) -> tuple[Tensor, Tensor]:
    """(E x, S x) for K(target, source): x (h, m, k) -> (h, m, n), and the second (h, m, 0) unless ``odd``."""
    order = target_index, target_values, source_index, source_values
    if x.dtype != target.dtype:  # one dtype in the kernels, the wider: nothing is lost
        wider = (tensor.double() if tensor.is_floating_point() else tensor for tensor in order)
        even, odd_part = scan(x.double(), target.double(), source.double(), tau, *wider, odd)
        return even.to(x.dtype), odd_part.to(x.dtype)
    x, target, source, tau = x.contiguous(), target.contiguous(), source.contiguous(), tau.contiguous()
    target_index, target_values, source_index, source_values = (tensor.contiguous() for tensor in order)
    (h, m, k), n = x.shape, target.shape[1]
    even = x.new_empty((h, m, n))
    odd_part = x.new_empty((h, m, n if odd else 0))
    status = _core.scan(
        x.data_ptr(),
        target.data_ptr(),
        source.data_ptr(),
        tau.data_ptr(),
        target_index.data_ptr(),
        source_index.data_ptr(),
        target_values.data_ptr(),  # 0 if there are none
        source_values.data_ptr(),
        even.data_ptr(),
        odd_part.data_ptr(),
        h,
        m,
        n,
        k,
        target_index.shape[1],
        source_index.shape[1],
        x.dtype == torch.float64,
        torch.get_num_threads(),
    )
    if status:
        _raise("laplex.linear", status, tau)
    return even, odd_part


def _order(a: Tensor, b: Tensor, made: _ops.Planned, from_old: bool) -> None:
    """Fill the plan's tensors in place."""
    row_index, row_values, col_index, col_values = made
    a, b = a.contiguous(), b.contiguous()
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
        _raise("laplex.Plan", status, None)


def _raise(where: str, status: int, tau: Tensor | None) -> None:
    if status == _core.STALE_PLAN:
        raise StalePlanError(_checks.stale_plan(where))
    if status == _core.BAD_TAU and tau is not None:
        raise ValueError(_checks.bad_tau(where, tau.tolist()))
    if status in (_core.NOT_FINITE_A, _core.NOT_FINITE_B):
        raise ValueError(_checks.not_finite(where, "a" if status == _core.NOT_FINITE_A else "b"))
    raise MemoryError(f"{where}: no memory for the compiled core's scratch arrays; use smaller batches")
