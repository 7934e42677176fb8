"""Soft ranks, sorts and masks in C++ (csrc/soft.cpp, soft_mask.cpp), called with addresses.

``where`` names the public function in messages: the core finds numbers that are not finite.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from laplex._checks.core import core_fault, is_double
from laplex._checks.messages import not_finite
from laplex._compiled import core


def ranks(where: str, x: Tensor, tau: Tensor, descending: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The ranks of x (*batch, n), x in order, and the order."""
    sorted_x, order, result = torch.empty_like(x), torch.empty_like(x, dtype=torch.int32), torch.empty_like(x)
    _run(where, core.soft_rank, (x, tau, sorted_x, order, result), x, tau, descending)
    return result, sorted_x, order


def pull_ranks(g: Tensor, sorted_x: Tensor, order: Tensor, tau: Tensor, descending: bool) -> tuple[Tensor]:
    """x_bar for the cotangent g (*batch, n) of ranks."""
    x_bar = torch.empty_like(sorted_x)
    _run("laplex.soft", core.pull_rank, (g, sorted_x, order, tau, x_bar), sorted_x, tau, descending)
    return (x_bar,)


def values(where: str, x: Tensor, tau: Tensor, descending: bool, wanted: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The first ``wanted`` of the softly sorted x (*batch, n), x in ascending order, the order, and what
    ``pull_values`` needs."""
    sorted_x, order, result = torch.empty_like(x), torch.empty_like(x, dtype=torch.int32), torch.empty_like(x)
    factors = x.new_empty((tau.numel(), 3, x.shape[-1]))
    _run(where, core.soft_sort, (x, tau, sorted_x, order, result, factors), x, tau, descending)
    return result if wanted == x.shape[-1] else result[..., :wanted].clone(), sorted_x, order, factors


def pull_values(
    g: Tensor, sorted_x: Tensor, order: Tensor, factors: Tensor, tau: Tensor, descending: bool
) -> tuple[Tensor]:
    """x_bar for the cotangent g (*batch, wanted) of values."""
    x_bar = torch.empty_like(sorted_x)
    if g.shape != x_bar.shape:
        g = torch.nn.functional.pad(g, (0, x_bar.shape[-1] - g.shape[-1]))
    _run("laplex.soft", core.pull_sort, (g, sorted_x, order, tau, factors, x_bar), sorted_x, tau, descending)
    return (x_bar,)


def mask(where: str, x: Tensor, k: Tensor, tau: Tensor) -> tuple[Tensor, Tensor]:
    """The mask of the k (*batch) largest of x (*batch, n), and its threshold for ``pull_mask``."""
    result, threshold = torch.empty_like(x), tau.new_empty((tau.numel(), 3))
    _run(where, core.soft_mask, (x, tau, k, result, threshold), x, tau)
    return result, threshold


def pull_mask(g: Tensor, x: Tensor, k: Tensor, tau: Tensor, threshold: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """x_bar, k_bar and tau_bar for the cotangent g (*batch, n) of a mask."""
    x_bar, k_bar, tau_bar = torch.empty_like(x), torch.empty_like(k), torch.empty_like(tau)
    _run("laplex.soft", core.pull_mask, (g, x, tau, k, threshold, x_bar, k_bar, tau_bar), x, tau)
    return x_bar, k_bar, tau_bar


def _run(where: str, function: Any, arrays: tuple[Tensor, ...], x: Tensor, tau: Tensor, *flags: bool) -> None:
    n = x.shape[-1]
    addresses = [array.data_ptr() for array in arrays]
    status = function(*addresses, x.numel() // n, n, *flags, is_double(where, x), torch.get_num_threads())
    if status == core.NOT_FINITE_A:
        raise ValueError(not_finite(where, "x"))
    if status:
        core_fault(where, status, tau)
