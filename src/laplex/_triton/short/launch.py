"""Launches for products of which one side is much longer than the other."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from laplex._scan import ops as _ops
from laplex._triton.launch import empty, launch, once, power

if TYPE_CHECKING:
    from laplex._triton.scan.launch import Schedule


PLACED_AT_ONCE = 512


def _programs() -> Any:
    from laplex._triton.short import programs as triton_short  # imports triton: not before it is needed

    return triton_short


def spread(
    x: Tensor,
    target: Tensor,
    source: Tensor,
    tau: Tensor,
    even: Tensor | None,
    beside: Tensor | None,
    *,
    pull: bool,
    to_tau: bool,
) -> tuple[Tensor, Tensor]:
    """Few sources, many targets: fill even (h, m, n), and odd, which is ``beside``.

    With ``pull`` or ``to_tau`` ``beside`` is the weights instead. Returned are what is pulled, (h, n), and what adds up
    to tau_bar, (h, programs).

    Needs no order: it sorts the sources itself, and every target finds its place among them.
    """
    (h, m, k), n = x.shape, target.shape[-1]
    exact, odd = x.dtype == torch.float64, pull or not (to_tau or beside is None)
    flat_target = target.reshape(h, n).contiguous()

    def of_anchors() -> tuple[Tensor, ...]:
        position, order = source.reshape(h, k).sort(dim=-1)
        fault = (flat_target * 0).sum(-1, dtype=torch.float64)  # NaN if a target is not finite
        return flat_target, position, order, fault

    target, position, order, fault = once("sources and fault", of_anchors)
    degree = h * 2 * k * m  # sums; as many weighted by distance come behind them
    table = empty(x, (degree * (2 if to_tau else 1),), torch.float64 if exact else torch.float32)
    tensors: tuple[Tensor, ...] = x, tau, position, order, fault, table
    sources = max(power(k), 16)
    grid = 2 * m, h, 1
    warps = max(sources // 128, 1)
    launch(_programs().table_program, grid, tensors, (m, k, m, degree, *x.stride()), (exact, to_tau, sources), warps)
    targets, rows = (64, 32) if m > 16 else (128, power(m))
    grid = -(-n // targets), h, 1
    pulled = target.new_empty((h, n)) if pull else fault
    stretch = empty(target, (h, grid[0]), torch.float64) if to_tau else fault
    given = [part.reshape(h, m, n) for part in (even, beside) if part is not None]
    out, other = given[0], given[-1]  # one stands for the other that is not there, which the kernel does not touch
    tensors = target, position, tau, table, out, other, pulled, stretch
    sizes = m, n, k, m, k.bit_length() + 1, degree, *out.stride(), *other.stride()
    flags = exact, even is not None, odd, pull, to_tau, targets, rows
    launch(_programs().spread_program, grid, tensors, sizes, flags, 4)
    return pulled, stretch


def places(entry: Tensor, sizes: tuple[int, int]) -> Tensor:
    """Where in the merged order rows and columns lie, (h, 1, n + k), or one more."""
    n, merged = sizes[0], sum(sizes)
    h, padded = entry.shape[0], _ops.padded(merged)
    place_of = entry.new_empty((h, 1, merged | 1))
    how = entry.shape[-1] < padded, padded >= 2**31 - PLACED_AT_ONCE, PLACED_AT_ONCE
    grid = -(-merged // PLACED_AT_ONCE), h, 1
    launch(_programs().place_program, grid, (entry, place_of), (merged, padded, n, merged | 1), how, 4)
    return place_of


def unstage(merged_y: Tensor, of_targets: Tensor, even: Tensor) -> None:
    """even (h, m, n) out of the merged order (h, m, padded)."""
    h, m, n = even.shape
    sizes = m, n, merged_y.shape[-1], of_targets.stride(0), *even.stride()
    launch(_programs().unstage_program, (-(-n // 512), h, 1), (merged_y, of_targets, even), sizes, (512,), 4)


def reduce_by_rows(
    x: Tensor,
    merged_x: Tensor,
    tau: Tensor,
    entry: Tensor,
    position: Tensor,
    scratch: Tensor,
    place_of: Tensor | None,
    plan: Schedule,
) -> None:
    """What ``reduce_program`` gives, for many sources and several rows, and x with its rows side by side."""
    from laplex._triton.scan import programs as triton_merged

    h, m, k = x.shape
    sizes, flags = plan.reduce
    (_, merged, padded, tiles, *_), (exact, odd, first, in_order, *_) = sizes, flags
    none = x, merged_x, tau, entry, position, scratch
    launch(triton_merged.reduce_program, (tiles, 1, h), none, (0, *sizes[1:]), flags, plan.warps)  # the ends alone
    if place_of is None:
        sizes_of_sides = (merged - k, k) if first else (k, merged - k)
        (place_of,) = once("places", lambda: (places(entry, sizes_of_sides),))
    of_sources = place_of.view(h, -1)[:, merged - k if first else 0 :]
    side_by_side = min(power(m), 32)
    row_blocks = -(-m // side_by_side)
    sizes = m, k, padded, m, of_sources.stride(0), *x.stride()
    grid = -(-k // 64) * row_blocks, h, 1
    launch(_programs().stage_program, grid, (x, of_sources, merged_x), sizes, (64, side_by_side), 4)
    tensors = merged_x, tau, entry, position, scratch
    flags = exact, odd, first, in_order, plan.far, plan.tile, 32, side_by_side
    launch(
        _programs().reduce_rows_program, (tiles * row_blocks, h, 1), tensors, (m, merged, padded, tiles, m), flags, 4
    )
