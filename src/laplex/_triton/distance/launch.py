"""Launches for sums weighted by distance, from which tau's gradient is made."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from laplex._scan import ops as _ops
from laplex._triton.launch import call, empty, launch, power
from laplex._triton.order.launch import held, refreshed

TILE = 512  # points of a program
ROWS = 4  # of x that share what depends on the points
CARRIED_AT_ONCE = 512  # tiles
WARPS = 4


def _programs() -> Any:
    from laplex._triton.distance import programs as triton_distance  # imports triton: not before it is needed

    return triton_distance


def distance_sums(
    x: Tensor, target: Tensor, source: Tensor, tau: Tensor, order: _ops.Planned, even: Tensor, odd: Tensor | None
) -> None:
    """Fill even and odd (h, m, n) with the sums of degree 1 of x (h, m, k)."""
    beside = even if odd is None else odd
    _scan(x, target, source, tau, order, even, beside, odd=odd is not None, pull=None)


def tau_bar_of(x: Tensor, target: Tensor, source: Tensor, tau: Tensor, order: _ops.Planned, weights: Tensor) -> Tensor:
    """1/tau times the sum of weights (h, m, n) * A_1 x, in parts, (h, programs)."""
    h, m, k = x.shape
    programs = -(-(target.shape[-1] + k) // TILE) * -(-m // ROWS)
    parts = empty(x, (h, programs), torch.float64)
    _scan(x, target, source, tau, order, weights, weights, odd=False, pull=parts)
    return parts


def added(parts: Tensor, tau: Tensor) -> Tensor:
    """(h, programs) as tau."""
    total = empty(parts, tuple(tau.shape), torch.float64)
    call(torch.sum, parts, out=(total.view(-1),), dim=1)
    return total


def _scan(
    x: Tensor,
    target: Tensor,
    source: Tensor,
    tau: Tensor,
    order: _ops.Planned,
    even: Tensor,
    other: Tensor,
    *,
    odd: bool,
    pull: Tensor | None,
) -> None:
    """The three launches. ``other`` is the odd sums, or with ``pull`` the weights."""
    programs = _programs()
    (h, m, k), n = x.shape, other.shape[-1]
    merged, padded = n + k, _ops.padded(n + k)
    plan = held(order, merged)
    far = padded + TILE >= 2**31
    position, checked = plan.position, plan.position.shape[-1] == 0
    if checked:
        position = refreshed(plan, target, source, far, TILE, WARPS)
    tiles, row_blocks, exact = -(-merged // TILE), -(-m // ROWS), x.dtype == torch.float64
    scratch = empty(x, (2 * h * tiles + 2 * programs.STATES.value * h * m * tiles,), torch.float64)
    grid, sizes = (tiles, row_blocks, h), (m, merged, padded, tiles)
    how = plan.first, plan.in_order
    tensors: tuple[Tensor, ...] = x, tau, plan.entry, position, scratch
    flags: tuple[Any, ...] = exact, *how, checked, far, TILE, ROWS
    launch(programs.distance_reduce_program, grid, tensors, (*sizes, *x.stride()), flags, WARPS)
    group = min(max(power(tiles), 2), CARRIED_AT_ONCE)
    launch(
        programs.distance_carry_program, (2 * m, h, 1), (scratch, tau), (m, tiles), (exact, group), max(group // 128, 1)
    )
    tensors = *tensors, even, other, scratch if pull is None else pull
    flags = exact, odd, pull is not None, *how, far, TILE, ROWS
    strides = *x.stride(), *even.stride(), *other.stride()
    launch(programs.distance_scan_program, grid, tensors, (*sizes, *strides), flags, WARPS)
