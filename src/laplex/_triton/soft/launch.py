"""Launches for soft ranks, sorts and masks of rows x (h, n).

Short rows are one launch each for forward and backward, a program a row. Long ones are sorted by torch, reduced in
tiles, carried, and scanned. No launch waits for the device, none uses atomics, and what is not finite gives NaN.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from laplex._triton import tuning
from laplex._triton.launch import launch, power, step
from laplex._triton.soft import programs_mask, programs_rank, programs_sort
from laplex._triton.soft.tiles import ROOM, carry_soft_program


def ranks(where: str, x: Tensor, tau: Tensor, descending: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The ranks of x (h, n), x in order, and the order."""
    cut, result = _Cut(x), torch.empty_like(x)
    position, order = cut.in_order(x)
    tensors: tuple[Tensor, ...]
    if not cut.alone:
        tensors = position, order, tau, x, x, cut.scratch
        cut.launch(programs_rank.reduce_ranks_program, tensors, False, cut.exact)
        cut.carry(tau)
    tensors = x, position, order, tau, cut.scratch, result
    cut.scan(programs_rank.ranks_program, tensors, descending, cut.exact, cut.alone, cut.sorts)
    return result, position, order


def pull_ranks(g: Tensor, position: Tensor, order: Tensor, tau: Tensor, descending: bool) -> Tensor:
    """x_bar for the cotangent g (h, n) of ranks."""
    cut, x_bar = _Cut(position), torch.empty_like(position)
    if not cut.alone:
        ordered_g = torch.empty_like(g)
        cut.launch(
            programs_rank.reduce_ranks_program, (position, order, tau, g, ordered_g, cut.scratch), True, cut.exact
        )
        cut.carry(tau, second=True)
        g = ordered_g
    tensors = position, order, tau, g, cut.scratch, x_bar
    cut.scan(programs_rank.pull_ranks_program, tensors, descending, cut.exact, cut.alone)
    return x_bar


def values(where: str, x: Tensor, tau: Tensor, descending: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The softly sorted x (h, n), x in ascending order, the order, and what ``pull_values`` needs."""
    cut, result = _Cut(x), torch.empty_like(x)
    factors = x.new_empty((x.shape[0], 3, x.shape[1]))
    position, order = cut.in_order(x)
    tensors: tuple[Tensor, ...]
    if not cut.alone:
        tensors = position, tau, x, x, cut.scratch
        cut.launch(programs_sort.reduce_sort_program, tensors, False, descending, cut.exact)
        cut.carry(tau, degree=True, ties=True)
    tensors = x, position, order, tau, cut.scratch, result, factors
    cut.scan(programs_sort.values_program, tensors, descending, cut.exact, cut.alone, cut.sorts)
    return result, position, order, factors


def pull_values(g: Tensor, position: Tensor, order: Tensor, factors: Tensor, tau: Tensor, descending: bool) -> Tensor:
    """x_bar for the cotangent g (h, n) of values."""
    cut, x_bar = _Cut(position), torch.empty_like(position)
    tensors: tuple[Tensor, ...]
    if not cut.alone:
        tensors = position, tau, g, factors, cut.scratch
        cut.launch(programs_sort.reduce_sort_program, tensors, True, descending, cut.exact)
        cut.carry(tau, degree=True, second=True, ties=True)
    tensors = position, order, tau, g, factors, cut.scratch, x_bar
    cut.scan(programs_sort.pull_sort_program, tensors, descending, cut.exact, cut.alone)
    return x_bar


def mask(where: str, x: Tensor, k: Tensor, tau: Tensor) -> tuple[Tensor, Tensor]:
    """The mask of the k (h,) largest of x (h, n), and its threshold for ``pull_mask``."""
    cut, result, threshold = _Cut(x), torch.empty_like(x), tau.new_empty((x.shape[0], 3))
    position = x if cut.sorts else x.sort(-1).values
    grid, tensors = (cut.h, 1, 1), (x, position, tau, k, result, threshold)
    if cut.alone and not cut.exact:
        flags = False, cut.sorts, cut.tile
        launch(programs_mask.mask_row_program, grid, tensors, (cut.n,), flags, cut.warps)
        return result, threshold
    cut.launch(programs_rank.reduce_ranks_program, (position, position, tau, x, x, cut.scratch), False, cut.exact)
    cut.carry(tau)
    sizes, settings = (cut.n, cut.tiles), (cut.exact, cut.group, cut.tile)
    sums = position, tau, k, cut.scratch, threshold
    launch(programs_mask.threshold_program, grid, sums, sizes, settings, cut.warps)
    if cut.exact:
        _polish(x, k, tau, threshold)
    _by_elements(programs_mask.mask_program, (x, position, tau, k, threshold, result), x, cut.exact)
    return result, threshold


def pull_mask(g: Tensor, x: Tensor, k: Tensor, tau: Tensor, threshold: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """x_bar, k_bar and tau_bar for the cotangent g (h, n) of a mask."""
    exact, (h, n) = x.dtype == torch.float64, x.shape
    bars = torch.empty_like(x), torch.empty_like(k), torch.empty_like(tau)
    alone = n <= tuning.SOFT_ELEMENTS
    sums = tau
    if not alone:
        parts = tau.new_empty((h, 4, -(-n // tuning.SOFT_ELEMENTS)))
        _by_elements(programs_mask.reduce_mask_program, (g, x, tau, k, threshold, parts), x, exact)
        sums = parts.sum(-1)
    _by_elements(programs_mask.pull_mask_program, (g, x, tau, k, threshold, sums, *bars), x, exact, alone)
    return bars


def _by_elements(program: Any, tensors: tuple[Tensor, ...], x: Tensor, *flags: Any) -> None:
    """Launch a program over tiles of x in the caller's order."""
    h, n = x.shape
    tile = min(power(n), tuning.SOFT_ELEMENTS)
    tiles = -(-n // tile)
    launch(program, (h * tiles, 1, 1), tensors, (n, tiles), (*flags, tile), _warps(tile))


def _polish(x: Tensor, k: Tensor, tau: Tensor, threshold: Tensor) -> None:
    """One step of Newton's method, as in csrc/soft_mask.cpp: it removes the rounding errors of sums, for float64 x."""
    anchor, offset, nearest = (column[:, None] for column in threshold.unbind(-1))
    u = (x - anchor - offset) / tau[:, None]
    density = torch.exp(torch.clamp(nearest - u.abs(), max=0.0))
    below = u < 0
    excess = ((~below).sum(-1) - k) * nearest[:, 0].clamp(max=700.0).exp()
    excess = excess + torch.where(below, density, -density).sum(-1) / 2
    total = density.sum(-1)
    step_size = torch.where(excess.abs() < 0.05 * total, 2 * tau * excess / total, 0.0)
    threshold[:, 1] += step_size


def _warps(tile: int) -> int:
    return min(max(tile // tuning.SOFT_WARP, 1), 16)


class _Cut:
    """How rows (h, n) are cut into tiles, and the scratch memory of their sums."""

    def __init__(self, x: Tensor) -> None:
        self.h, self.n = x.shape
        self.exact = x.dtype == torch.float64
        self.alone = self.n <= tuning.SOFT_ALONE
        self.sorts = self.alone and self.n <= tuning.SOFT_SORTED and not self.exact
        self.tile = max(power(self.n), 16) if self.alone else tuning.SOFT_TILE
        self.tiles = -(-self.n // self.tile)
        self.warps = _warps(self.tile)
        self.group = step(self.tiles, tuning.SOFT_CARRIED, 4, 16)
        self.scratch = x.new_empty((self.h, ROOM.value, self.tiles), dtype=torch.float64)

    def in_order(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x in order, and the order; yet to be written if the program sorts."""
        if self.sorts:
            return torch.empty_like(x), torch.empty_like(x, dtype=torch.int32)
        position, order = x.sort(dim=-1, stable=True)
        return position, order

    def launch(self, program: Any, tensors: tuple[Tensor, ...], *flags: Any) -> None:
        """Launch a program for every tile of every row."""
        grid, sizes = (self.h * self.tiles, 1, 1), (self.n, self.tiles)
        launch(program, grid, tensors, sizes, (*flags, self.tile), self.warps)

    def scan(self, program: Any, tensors: tuple[Tensor, ...], *flags: Any) -> None:
        """Launch a program that scans tiles: for near and for wide ones together or, if there are many, apart."""
        split = self.h * self.tiles >= tuning.SOFT_SPANS_APART and not self.alone and not self.exact
        for spans in ("near", "wide") if split else ("wide" if self.exact else "all",):
            self.launch(program, tensors, *flags, spans)

    def carry(self, tau: Tensor, *, degree: bool = False, second: bool = False, ties: bool = False) -> None:
        flags, warps = (degree, second, ties, self.group), max(self.group // 32, 1)
        launch(carry_soft_program, (2 * self.h, 1, 1), (self.scratch, tau), (self.tiles,), flags, warps)
