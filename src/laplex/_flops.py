"""FLOPs of the operators, for ``torch.utils.flop_counter``. As there, a multiply-add counts as two, a function as none.

torch copies its table of formulas into each counter. To import it at once, for the few who count, would take as long as
laplex itself; so a counter gets these formulas when it sees the first call.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from laplex import _backends
from laplex._formed import ops as formed_ops
from laplex._formed.kernels import Kernels, Needs
from laplex._scan import ops as scan_ops


def tell_counters() -> None:
    """Give the formulas to torch's counters that watch this thread."""
    if torch.compiler.is_compiling() or "torch.utils.flop_counter" not in sys.modules:
        return
    for mode in _get_current_dispatch_mode_stack():
        counter = getattr(mode, "counter", None)
        if isinstance(counter, torch.utils.flop_counter.FlopCounterMode):
            counter.flop_registry = {**FORMULAS, **counter.flop_registry}  # a user's own formulas are kept


def _matmul(left: Tensor, right: Tensor, *_rest: Any, out_val: Any = None) -> int:
    return 2 * left.numel() * right.shape[-1]


def _form(*inputs: Any, out_val: Any = None) -> int:
    """Every entry of every kernel is weighted and added; with phases it is multiplied by c c' + s s' before."""
    kernels = Kernels(*inputs[:7])
    return 2 * _entries(kernels) * (1 if kernels.phi is None else 3)


def _form_pullback(g: Tensor, *inputs: Any, out_val: Any = None) -> int:
    """Every entry of every kernel is multiplied by the gradient of W, and added to each sum that is needed."""
    kernels, needs = Kernels(*inputs[:7]), Needs(*inputs[7])
    return 2 * _entries(kernels) * (1 + sum(needs.flags))


def _entries(kernels: Kernels) -> int:
    h, n, k = kernels.shape
    return h * kernels.summed * n * k


def _scan(x: Tensor, *inputs: Any, out_val: Any = None) -> int:
    """Of each row of x: every source is added to two running sums, and every target reads both."""
    *matrix, odd, degree = inputs
    return _sums(x, matrix, odd) * (1 + int(degree))


def _pullback(g: Tensor, x: Tensor, odd_x: Tensor, *inputs: Any, out_val: Any = None) -> int:
    """A transposed scan, and for tau one of degree 1; then products with x, and with what forward left for targets."""
    *matrix, to_tau = inputs
    products = x.numel() + odd_x.numel() + (g.numel() if to_tau else 0)
    return _sums(x, matrix, True) * (3 if to_tau else 1) + 2 * products


def _sums(x: Tensor, matrix: Sequence[Any], odd: bool) -> int:
    target, source, *_, backend = matrix
    n, k = int(target.shape[-1]), int(source.shape[-1])
    rows = x.numel() // max(k, 1)
    if _backends.load(backend, target.device.type).order is None:  # it sums pairs
        return 2 * rows * n * k * (1 + odd)
    return 4 * rows * (n + k)


FORMULAS: dict[Any, Callable[..., int]] = {
    formed_ops.matmul.overloadpacket: _matmul,
    formed_ops.form.overloadpacket: _form,
    formed_ops.form_pullback.overloadpacket: _form_pullback,
    scan_ops.scan.overloadpacket: _scan,
    scan_ops.pullback.overloadpacket: _pullback,
}
