"""The recursions of the chain in C++ (csrc/chain.cpp), and the likelihood of blocks (csrc/states*.cpp).

All arrays are float64, on the CPU.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy
import torch
from torch import Tensor

from laplex._compiled import core

MAX_STATES, MAX_CHAIN = (0, 0) if core is None else (core.MAX_STATES, core.MAX_CHAIN)  # for which there is room


def scan(steps: Tensor, source: Tensor, reverse: bool) -> Tensor:
    """f_n = T_n f_{n-1} + u_n, or in reverse f_n = T_{n+1}^T f_{n+1} + u_n; source and result (h, n, s, m)."""
    steps, source = steps.contiguous(), source.contiguous()
    result = torch.empty_like(source)
    h, n, s, m = source.shape
    core.chain_scan(*_addresses(steps, source, result), h, n, m, s, reverse, torch.get_num_threads())
    return result


def scan_matrices(steps: Tensor, source: Tensor, reverse: bool) -> Tensor:
    """Z_n = T_n Z_{n-1} T_n^T + X_n, or in reverse Z_n = T_{n+1}^T Z_{n+1} T_{n+1} + X_n; X (h, n, s, s) symmetric."""
    steps, source = steps.contiguous(), source.contiguous()
    result = torch.empty_like(source)
    h, n, s, _ = source.shape
    core.chain_matrices(*_addresses(steps, source, result), h, n, s, reverse, torch.get_num_threads())
    return result


def factor(steps: Tensor, p: Tensor, q: Tensor, diag: Tensor) -> tuple[Tensor, Tensor]:
    """S (h, n, s, s) before every point, and for every series the first point without a positive pivot, or -1."""
    steps, p, q, diag = (part.contiguous() for part in (steps, p, q, diag))
    states, failed = torch.empty_like(steps), steps.new_empty(steps.shape[0], dtype=torch.int64)
    h, n, s = p.shape
    core.chain_factor(*_addresses(steps, p, q, diag, states, failed), h, n, s, torch.get_num_threads())
    return states, failed


# --- The likelihood of blocks ----------------------------------------------------------------------------------------


def likelihood(
    tensors: list[Tensor], kinds: tuple[int, ...], order: Tensor | None, counts: Tensor | None, *, keep: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, list[Tensor]]:
    """quad, logdet, loss and failed, (h,) each, and if asked for what the pullback starts from.

    ``tensors`` are gaps (h, n), rates (h, B), squares (h, B), g (h, s), diag (h, n) and y (h, n), in one piece each;
    diag and y in the caller's order.
    """
    kernel = _kernel(tensors, kinds, order, counts)
    gaps, diag, y = tensors[0], tensors[4], tensors[5]
    h = gaps.shape[0]
    states = gaps.new_empty(h * kernel.kept_size() if keep else 0)
    sums, failed = gaps.new_zeros(3, h), gaps.new_empty(h, dtype=torch.int64)
    quad, logdet, loss = sums.unbind(0)
    core.state_likelihood(kernel, *_addresses(diag, y, quad, logdet, loss, states, failed))
    return quad, logdet, loss, failed, [states]


def pullback(
    tensors: list[Tensor],
    kinds: tuple[int, ...],
    order: Tensor | None,
    counts: Tensor | None,
    saved: list[Tensor],
    quad_bar: Tensor,
    logdet_bar: Tensor,
) -> list[Tensor]:
    """The gradients of all tensors."""
    kernel = _kernel(tensors, kinds, order, counts)
    fresh = torch.empty_like if counts is None else torch.zeros_like
    bars = [fresh(one) for one in tensors]
    given = tensors[4], tensors[5], *saved, quad_bar, logdet_bar, *bars
    if core.state_pullback(kernel, *_addresses(*given)):
        raise MemoryError("laplex.gp: no memory for the gradient of a likelihood")
    return bars


def _kernel(tensors: list[Tensor], kinds: tuple[int, ...], order: Tensor | None, counts: Tensor | None) -> Any:
    """What the core takes for a kernel."""
    gaps, rates, squares, g = tensors[:4]
    integers = [0 if one is None else one.data_ptr() for one in (counts, order)]
    addresses = gaps.data_ptr(), _codes(kinds).ctypes.data, *_addresses(rates, squares, g), *integers
    return core.state_kernel(*addresses, *gaps.shape, len(kinds), g.shape[-1], torch.get_num_threads())


@functools.cache
def _codes(kinds: tuple[int, ...]) -> numpy.ndarray:
    """The kinds as an array that is never freed; not a tensor, which would depend on modes of torch."""
    return numpy.array(kinds, dtype=numpy.int32)


def _addresses(*tensors: Tensor) -> list[int]:
    return [tensor.data_ptr() for tensor in tensors]
