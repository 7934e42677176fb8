"""The ordered scan in C++ (csrc/), called with addresses: this file owns dtypes, contiguity and messages."""

from __future__ import annotations

from types import ModuleType

import torch
from torch import Tensor

from laplex import _checks
from laplex.errors import StalePlanError

_core: ModuleType | None
try:
    from laplex import _core  # type: ignore[attr-defined, no-redef]

    MISSING = ""
except ImportError as error:
    _core = None
    MISSING = (
        f"the compiled core did not load ({error}); with a C++17 compiler at hand, reinstall laplex from source: "
        "pip install --force-reinstall --no-deps --no-binary laplex laplex"
    )

_CHANNELS = {"merged": (3, 3), "short_rows": (1, 2), "short_cols": (2, 1)}


def plan(a: Tensor, b: Tensor, layout: str) -> tuple[Tensor, Tensor]:
    """The order of a (h, n) and b (h, k), as ``_ops`` describes it."""
    rows, cols = _CHANNELS[layout]
    row_index = torch.empty((a.shape[0], rows, a.shape[1]), dtype=torch.int32)
    col_index = torch.empty((b.shape[0], cols, b.shape[1]), dtype=torch.int32)
    _order(a, b, row_index, col_index, from_old=False)
    return row_index, col_index


def replan(a: Tensor, b: Tensor, layout: str, row_index: Tensor, col_index: Tensor) -> tuple[Tensor, Tensor]:
    """The plan for anchors that moved: the old index tensors themselves if their order still stands."""
    del layout  # the old indices tell
    rows, cols = row_index.clone(), col_index.clone()
    _order(a, b, rows, cols, from_old=True)
    if torch.equal(rows, row_index) and torch.equal(cols, col_index):
        return row_index, col_index
    return rows, cols


def scan(
    x: Tensor, target: Tensor, source: Tensor, tau: Tensor, target_index: Tensor, source_index: Tensor, odd: bool
) -> tuple[Tensor, Tensor]:
    """(E x, S x) for K(target, source): x (h, m, k) -> (h, m, n), and the second (h, m, 0) unless ``odd``."""
    if x.dtype != target.dtype:  # one dtype in the kernels, the wider: nothing is lost
        even, odd_part = scan(
            x.double(), target.double(), source.double(), tau, target_index, source_index, odd
        )
        return even.to(x.dtype), odd_part.to(x.dtype)
    x, target, source, tau = x.contiguous(), target.contiguous(), source.contiguous(), tau.contiguous()
    target_index, source_index = target_index.contiguous(), source_index.contiguous()
    (h, m, k), n = x.shape, target.shape[1]
    even = torch.empty((h, m, n), dtype=x.dtype)
    odd_part = torch.empty((h, m, n if odd else 0), dtype=x.dtype)
    status = _core.scan(  # type: ignore[union-attr]
        x.data_ptr(),
        target.data_ptr(),
        source.data_ptr(),
        tau.data_ptr(),
        target_index.data_ptr(),
        source_index.data_ptr(),
        even.data_ptr(),
        odd_part.data_ptr() if odd else 0,
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


def _order(a: Tensor, b: Tensor, row_index: Tensor, col_index: Tensor, from_old: bool) -> None:
    """Fill the index tensors in place."""
    a, b = a.contiguous(), b.contiguous()
    status = _core.order(  # type: ignore[union-attr]
        a.data_ptr(),
        b.data_ptr(),
        row_index.data_ptr(),
        col_index.data_ptr(),
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
    if status == _core.STALE_PLAN:  # type: ignore[union-attr]
        raise StalePlanError(_checks.stale_plan(where))
    if status == _core.BAD_TAU and tau is not None:  # type: ignore[union-attr]
        raise ValueError(_checks.bad_tau(where, tau.tolist()))
    if status in (_core.NOT_FINITE_A, _core.NOT_FINITE_B):  # type: ignore[union-attr]
        raise ValueError(_checks.not_finite(where, "a" if status == _core.NOT_FINITE_A else "b"))  # type: ignore[union-attr]
    raise MemoryError(f"{where}: no memory for the compiled core's scratch arrays; use smaller batches")
