"""The recursions of the chain in C++ (csrc/chain.cpp). All arrays are float64, on the CPU."""

from __future__ import annotations

import torch
from torch import Tensor

from laplex._compiled import core

MAX_CHAIN = 0 if core is None else core.MAX_CHAIN  # the most states that there is room for


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


def _addresses(*tensors: Tensor) -> list[int]:
    return [tensor.data_ptr() for tensor in tensors]
