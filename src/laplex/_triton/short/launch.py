"""Launches for products of which one side is much longer than the other."""

from __future__ import annotations

import torch
from torch import Tensor

from laplex._scan.order import Matrix, padded
from laplex._triton import tuning
from laplex._triton.launch import launch, power, step
from laplex._triton.order.launch import joined, ranked
from laplex._triton.recording import call, from_anchors
from laplex._triton.short import programs


def reads_table(sources: int, targets: int, sums: int) -> bool:
    """Whether a table of the sums at few sources pays off, for ``sums`` sums at all targets and rows."""
    long = targets >= tuning.SHORT_AXIS_RATIO * sources
    return long and sources <= tuning.TABLE_SOURCES and sums >= tuning.TABLE_FROM


def spread(
    x: Tensor,
    matrix: Matrix,
    even: Tensor | None,
    *,
    odd: Tensor | None = None,
    weights: Tensor | None = None,
    pull: bool = False,
    to_tau: bool = False,
) -> tuple[Tensor, Tensor]:
    """Few sources, many targets: fill even and odd sums, (h, m, n) each; or reduce those of weights (h, m, n).

    Return what is pulled, (h, n), the sum over rows of weights times odd sums, and what adds up to tau_bar,
    (h, programs); they mean nothing unless they are asked for. No order is needed: the sources are sorted here, and
    every target finds its place among them.
    """
    (h, m, k), n = x.shape, matrix.target.shape[-1]
    target, position, order, ends = sources_of_anchors(matrix, h)
    exact = x.dtype == torch.float64
    degree = h * 2 * k * m  # sums in the table; as many weighted by distance follow them
    table = x.new_empty((degree * (2 if to_tau else 1),), dtype=torch.float64 if exact else torch.float32)
    tensors: tuple[Tensor, ...] = x, matrix.tau, position, order, ends, table
    sources = step(k, tuning.TABLE_SOURCES, 4, 32)
    sizes: tuple[int, ...] = m, k, m, degree, *places_of_ends(ends, n + k), *x.stride()
    launch(programs.table_program, (2 * m, h, 1), tensors, sizes, (exact, to_tau, sources), max(sources // 128, 1))
    few, many = tuning.SPREAD_TILE
    targets, rows = (many, tuning.SPREAD_ROWS) if 2 * m > tuning.SPREAD_ROWS else (few, power(m))
    grid = -(-n // targets), h, 1
    pulled = target.new_empty((h, n)) if pull else target
    stretch = target.new_empty((h, grid[0]), dtype=torch.float64) if to_tau else table
    outputs = [part.reshape(h, m, n) for part in (even, odd, weights) if part is not None]
    out, other = outputs[0], outputs[-1]  # one stands in for the other if that is not wanted; it is not touched then
    tensors = target, position, matrix.tau, table, out, other, pulled, stretch
    sizes = m, n, k, m, k.bit_length() + 1, degree, *out.stride(), *other.stride()
    flags = exact, even is not None, odd is not None or pull, pull, to_tau, targets, rows
    launch(programs.spread_program, grid, tensors, sizes, flags, 4)
    return pulled, stretch


def sources_of_anchors(matrix: Matrix, h: int) -> tuple[Tensor, ...]:
    """:func:`ranked_sources`, done once for the same anchors."""
    return from_anchors("ranked sources", joined(matrix.order).entry, lambda: ranked_sources(matrix, h))


def ranked_sources(matrix: Matrix, h: int) -> tuple[Tensor, ...]:
    """The targets, the sorted sources and their order, and ``ends`` (h, size). For every matrix, the first number of
    ``ends`` and the last that matters (see ``places_of_ends``) are finite only if all its targets are.

    The positions of an order that is known to be right have all anchors between them. Few sources are ranked by
    counting, in one launch.
    """
    target, source = matrix.target.reshape(h, -1).contiguous(), matrix.source.reshape(h, -1).contiguous()
    k, order = source.shape[1], joined(matrix.order)
    if h * k * k > tuning.COUNTED_PAIRS or order.is_checked:
        target, position, index, fault = _sorted_sources(matrix, h)
        return target, position, index, fault[:, None]
    position, index = ranked(source, source[:, :0], padded(k), k, tuning.RANK_TILE)
    return target, position, index, order.position.view(h, -1)


def places_of_ends(ends: Tensor, points: int) -> tuple[int, int]:
    """How many numbers ``ends`` of :func:`ranked_sources` has for a matrix, and which is the last that matters."""
    return ends.shape[1], points - 1 if ends.shape[1] > 1 else 0


def _sorted_sources(matrix: Matrix, h: int) -> tuple[Tensor, ...]:
    """The targets, the sorted sources and their order, and (h,) NaN where a target is not finite, else 0."""
    target, source = matrix.target.reshape(h, -1).contiguous(), matrix.source.reshape(h, -1).contiguous()
    position, order = torch.empty_like(source), source.new_empty(source.shape, dtype=torch.int64)
    call(torch.sort, source, out=(position, order), dim=-1)
    fault = target.new_empty((h,), dtype=torch.float64)
    call(_fault_of, target, out=(fault,))
    return target, position, order, fault


def _fault_of(target: Tensor, out: Tensor) -> None:
    torch.sum(target * 0, -1, dtype=torch.float64, out=out)


def unstage(merged_y: Tensor, of_targets: Tensor, even: Tensor) -> None:
    """Copy even (h, m, n) out of the merged order (h, m, padded)."""
    h, m, n = even.shape
    width = tuning.UNSTAGE_TILE
    sizes = m, n, merged_y.shape[-1], of_targets.stride(0), *even.stride()
    launch(programs.unstage_program, (-(-n // width), h, 1), (merged_y, of_targets, even), sizes, (width,), 4)


def stage(x: Tensor, place_of: Tensor, merged_x: Tensor, start: int) -> None:
    """Copy x (h, m, k) into the merged order, with adjacent rows: merged_x has (h, padded, m) numbers.

    The places of the sources begin at ``start`` of place_of (h, 1, n + k). (A slice would be a tensor that a replay
    does not know.)
    """
    h, m, k = x.shape
    rows = min(power(m), 32)
    sizes = m, k, merged_x.numel() // (h * m), m, place_of.stride(0), start, *x.stride()
    grid = -(-k // tuning.STAGE_TILE) * -(-m // rows), h, 1
    launch(programs.stage_program, grid, (x, place_of, merged_x), sizes, (tuning.STAGE_TILE, rows), 4)
