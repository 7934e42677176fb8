"""The n x n part of a Gram matrix in C++ (csrc/), called with addresses."""

from __future__ import annotations

import torch
from torch import Tensor

from laplex._checks.core import core_fault, is_double
from laplex._compiled import core
from laplex._gram.sums import pulls


def assemble(sums: Tensor, direction: Tensor, target: Tensor, tau: Tensor, dtype: torch.dtype) -> Tensor:
    """M (h, m, n, n), symmetric to the bit."""
    h, m, _, _, n = sums.shape
    matrix = sums.new_empty((h, m, n, n), dtype=dtype)
    _run(sums, direction, target, tau, matrix, None)
    return matrix


def pull(g: Tensor, sums: Tensor, direction: Tensor, target: Tensor, tau: Tensor) -> Tensor:
    """(h, m, pulls, n): the contributions ("pulls") of the cotangent g (h, m, n, n) of M at every row anchor."""
    h, m, channels, _, n = sums.shape
    pulled = sums.new_empty((h, m, sum(pulls(channels)), n))
    _run(sums, direction, target, tau, g.contiguous(), pulled)
    return pulled


def _run(sums: Tensor, direction: Tensor, target: Tensor, tau: Tensor, matrix: Tensor, pulled: Tensor | None) -> None:
    """Fill ``matrix`` with M; or, if ``pulled`` is given, fill it from ``matrix``, the cotangent of M."""
    h, m, channels, _, n = sums.shape
    arrays = [array.contiguous() for array in (sums, direction, target, tau, matrix)]  # alive until the core returns
    addresses = [array.data_ptr() for array in arrays]
    addresses.append(0 if pulled is None else pulled.data_ptr())
    double = is_double("laplex.gram", matrix)  # the others are in float64
    status = core.gram(*addresses, h, m, n, channels, double, torch.get_num_threads())
    if status:
        core_fault("laplex.gram", status)
