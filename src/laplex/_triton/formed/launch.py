"""Launches that form the matrix, and pull its gradient back."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from laplex._formed.kernels import Gradients, Kernels, Needs, gradients_like
from laplex._triton import tuning
from laplex._triton.formed import programs
from laplex._triton.formed.multiply import entries_dtype as entries_dtype
from laplex._triton.formed.multiply import matmul as matmul
from laplex._triton.formed.multiply import multiply as multiply
from laplex._triton.launch import launch
from laplex._triton.replay import replayed

Scales = tuple[float, float, float, float, float]
ONES: Scales = (1.0,) * 5


def form(kernels: Kernels, dtype: torch.dtype, written: torch.dtype | None = None) -> Tensor:
    """W (h, n, k), or (n, k) if all matrices are summed, for an x of this dtype: in float32 unless x is float64.

    It is ``written`` in this dtype, or in that of x.
    """
    matrix: Tensor = _form(kernels, exact=dtype == torch.float64, written=written or dtype)[0]
    return matrix


def _flat(kernels: Kernels) -> tuple[tuple[Tensor, ...], Any]:
    """The tensors that are there, and what else the launches depend on: which these are, and how many are summed."""
    given = tuple([tensor for tensor in kernels[:6] if tensor is not None])
    return given, (kernels.weight is None, kernels.phi is None, kernels.summed)


@replayed(_flat)
def _form(kernels: Kernels, *, exact: bool, written: torch.dtype) -> tuple[Tensor]:
    target, source, tau, weight, phi, psi = _in_memory(kernels)
    (h, n, k), r = kernels.shape, kernels.summed
    out = target.new_empty(kernels.shape_of_results, dtype=written)
    size, parts = r * n, 0
    faults = out
    if size > tuning.TARGETS_CHECKED:
        parts = min(-(-size // tuning.FAULT_TILE), 64)
        faults = out.new_empty((h, parts), dtype=torch.float32)
        launch(programs.fault_program, (parts * h, 1, 1), (target, faults), (size, parts), (tuning.FAULT_TILE,), 4)
    (targets, sources), (few, many) = tuning.FORM_TILE, tuning.FORM_WARPS
    tensors = target, source, tau, _or(weight, tau), _or(phi, target), _or(psi, source), faults, out
    flags = exact, weight is not None, phi is not None, parts > 0, targets, sources
    grid = h * -(-n // targets) * -(-k // sources), 1, 1
    warps = few if grid[0] < tuning.FORM_MANY else many
    launch(programs.form_program, grid, tensors, (r, n, k, parts), flags, warps)
    return (out,)


def pull(
    g: Tensor, kernels: Kernels, needs: Needs, dtype: torch.dtype | None = None, scales: Scales = ONES
) -> Gradients:
    """The gradients of sum(g * W), in the order of ``Kernels.tensors``; None where they are not wanted.

    ``dtype`` is that of x, by default that of g: for float32 programs compute in float32, though g may be float64.
    The gradients of targets, sources, tau, weight and phases are multiplied by their ``scales``.
    """
    exact = (g.dtype if dtype is None else dtype) == torch.float64
    bars = iter(_pull(g.contiguous(), kernels, needs=needs, exact=exact, scales=scales))
    anchors, tau, weight, phase = needs
    t_bar, s_bar, tau_bar, weight_bar, phi_bar, psi_bar = (
        next(bars) if needed else None for needed in (anchors, anchors, tau, weight, phase, phase)
    )
    return t_bar, s_bar, tau_bar, weight_bar, phi_bar, psi_bar


def _flat_with(g: Tensor, kernels: Kernels) -> tuple[tuple[Tensor, ...], Any]:
    given, others = _flat(kernels)
    return (g, *given), others


@replayed(_flat_with)
def _pull(g: Tensor, kernels: Kernels, *, needs: Needs, exact: bool, scales: Scales) -> tuple[Tensor, ...]:
    """The gradients that are wanted. Many large matrices are pulled in groups, so that parts are no more than g."""
    h, n, k = kernels.shape
    small, large = tuning.PULL_TILES
    targets, sources = small if h * n * k < tuning.FORM_MANY * large[0] * large[1] else large
    down, across = -(-n // targets), -(-k // sources)
    channels = needs.anchors + needs.phase
    of_each = channels * (across * n + down * k) + 2 * down * across  # parts of one matrix
    most = max(min(max(n * k, tuning.PULL_PARTS) // of_each, kernels.summed), 1)
    bars = gradients_like(kernels, needs)
    parts = g.new_empty((h * most * of_each,), dtype=torch.float64 if exact else torch.float32)
    for begin in range(0, kernels.summed, most):
        group = begin, min(most, kernels.summed - begin)
        _pull_group(g, kernels, needs, (parts, bars), (targets, sources), group, scales)
    return tuple(bar for bar in bars if bar is not None)


def _pull_group(
    g: Tensor,
    kernels: Kernels,
    needs: Needs,
    into: tuple[Tensor, Gradients],
    tile: tuple[int, int],
    group: tuple[int, int],
    scales: Scales,
) -> None:
    """Fill the gradients of a ``group`` of matrices, which is the first of them and how many there are."""
    target, source, tau, weight, phi, psi = _in_memory(kernels)
    (h, n, k), (parts, bars), (begin, count) = kernels.shape, into, group
    down, across = -(-n // tile[0]), -(-k // tile[1])
    sources_at = h * count * (needs.anchors + needs.phase) * across * n
    all_at = sources_at + h * count * (needs.anchors + needs.phase) * down * k
    of_group = kernels.summed, begin, count
    tensors: tuple[Tensor, ...] = g, target, source, tau, _or(phi, target), _or(psi, source), parts
    flags = parts.dtype == torch.float64, needs.anchors, needs.tau, needs.weight, phi is not None, needs.phase, *tile
    grid = h * down * across, 1, 1
    launch(programs.pull_program, grid, tensors, (sources_at, all_at, *of_group, n, k), flags, 1)
    width, chunk = tuning.FINISH_TILE
    tensors = parts, tau, _or(weight, tau), *[_or(bar, parts) for bar in bars]
    flags_of_finish = needs.anchors, needs.tau, needs.weight, weight is not None, needs.phase, width, chunk
    grid = h * count * (-(-n // width) + -(-k // width) + 1), 1, 1
    numbers = sources_at, all_at, *of_group, n, k, across, down, *scales
    launch(programs.finish_program, grid, tensors, numbers, flags_of_finish, 4)


def _in_memory(kernels: Kernels) -> tuple[Any, ...]:
    """The tensors as contiguous ones."""
    return tuple([None if tensor is None else tensor.contiguous() for tensor in kernels[:6]])


def _or(tensor: Tensor | None, other: Tensor) -> Tensor:
    """The tensor, or one that stands in for it and is not touched."""
    return other if tensor is None else tensor
