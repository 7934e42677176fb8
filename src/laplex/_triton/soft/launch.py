"""Launches for soft ranks, sorts and masks of rows x (*batch, n).

Short rows are one launch each for forward and backward, a program a row. Long ones are sorted by torch, reduced in
tiles, carried, and scanned. No launch waits for the device, none uses atomics, and what is not finite gives NaN.

All of a forward is one recording, and all of a backward another (``replay``): for rows of up to some 10^6 numbers the
device would otherwise wait for Python.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from laplex._triton import tuning
from laplex._triton.launch import launch, power, step
from laplex._triton.recording import call
from laplex._triton.replay import replayed
from laplex._triton.soft import programs_mask, programs_rank, programs_sort
from laplex._triton.soft.tiles import ROOM, carry_soft_program


@replayed(lambda where, x, tau, descending: ((x, tau), descending))
def ranks(where: str, x: Tensor, tau: Tensor, descending: bool) -> tuple[Tensor, Tensor, Tensor]:
    """The ranks of x (*batch, n), x in order, and the order."""
    cut, result = _Cut(x, tau), torch.empty_like(x)
    position, order = cut.in_order(x)
    tensors: tuple[Tensor, ...]
    if not cut.alone:
        tensors = position, order, tau, x, x, cut.scratch
        cut.launch(programs_rank.reduce_ranks_program, tensors, False, cut.exact)
        cut.carry(tau)
    tensors = x, position, order, tau, cut.scratch, result
    cut.scan(programs_rank.ranks_program, tensors, descending, cut.exact, cut.alone, cut.sorts)
    return result, position, order


@replayed(lambda g, position, order, tau, descending: ((g, position, order, tau), descending))
def pull_ranks(g: Tensor, position: Tensor, order: Tensor, tau: Tensor, descending: bool) -> tuple[Tensor]:
    """x_bar for the cotangent g (*batch, n) of ranks."""
    cut, x_bar = _Cut(position, tau), torch.empty_like(position)
    if not cut.alone:
        ordered_g = torch.empty_like(g)
        cut.launch(
            programs_rank.reduce_ranks_program, (position, order, tau, g, ordered_g, cut.scratch), True, cut.exact
        )
        cut.carry(tau, second=True)
        g = ordered_g
    tensors = position, order, tau, g, cut.scratch, x_bar
    cut.scan(programs_rank.pull_ranks_program, tensors, descending, cut.exact, cut.alone)
    return (x_bar,)


@replayed(lambda where, x, tau, descending, wanted: ((x, tau), (descending, wanted)))
def values(where: str, x: Tensor, tau: Tensor, descending: bool, wanted: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The first ``wanted`` of the softly sorted x (*batch, n), x in ascending order, the order, and what
    ``pull_values`` needs. Every ``wanted`` is a form of its own, which is recorded forward and backward."""
    cut = _Cut(x, tau)
    result, factors = x.new_empty((*x.shape[:-1], wanted)), x.new_empty((cut.h, 3, cut.n))
    position, order = cut.in_order(x)
    tensors: tuple[Tensor, ...]
    if not cut.alone:
        tensors = position, tau, x, x, cut.scratch
        cut.launch(programs_sort.reduce_sort_program, tensors, False, descending, cut.exact, more=(wanted,))
        cut.carry(tau, degree=True, ties=True)
    tensors = x, position, order, tau, cut.scratch, result, factors
    flags = descending, cut.exact, cut.alone, cut.sorts
    cut.scan(programs_sort.values_program, tensors, *flags, more=(wanted,))
    return result, position, order, factors


@replayed(lambda g, position, order, factors, tau, descending: ((g, position, order, factors, tau), descending))
def pull_values(
    g: Tensor, position: Tensor, order: Tensor, factors: Tensor, tau: Tensor, descending: bool
) -> tuple[Tensor]:
    """x_bar for the cotangent g (*batch, wanted) of values."""
    cut, x_bar, more = _Cut(position, tau), torch.empty_like(position), (g.shape[-1],)
    tensors: tuple[Tensor, ...]
    if not cut.alone:
        tensors = position, tau, g, factors, cut.scratch
        cut.launch(programs_sort.reduce_sort_program, tensors, True, descending, cut.exact, more=more)
        cut.carry(tau, degree=True, second=True, ties=True)
    tensors = position, order, tau, g, factors, cut.scratch, x_bar
    cut.scan(programs_sort.pull_sort_program, tensors, descending, cut.exact, cut.alone, more=more)
    return (x_bar,)


@replayed(lambda where, x, k, tau: ((x, k, tau), None))
def mask(where: str, x: Tensor, k: Tensor, tau: Tensor) -> tuple[Tensor, Tensor]:
    """The mask of the k (*batch) largest of x (*batch, n), and its threshold for ``pull_mask``."""
    cut, result = _Cut(x, tau), torch.empty_like(x)
    threshold = tau.new_empty((cut.h, 3))
    position = x if cut.sorts else cut.in_order(x)[0]
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
        _polish(x.reshape(cut.h, cut.n), k.reshape(-1), tau.reshape(-1), threshold)
    tile = min(power(cut.n), tuning.SOFT_ELEMENTS)
    tiles = -(-cut.n // tile)
    tensors = x, position, tau, k, threshold, result
    grid, sizes = (cut.h * tiles, 1, 1), (cut.n, tiles)
    launch(programs_mask.mask_program, grid, tensors, sizes, (cut.exact, tile), _warps(tile))
    return result, threshold


@replayed(lambda g, x, k, tau, threshold: ((g, x, k, tau, threshold), None))
def pull_mask(g: Tensor, x: Tensor, k: Tensor, tau: Tensor, threshold: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """x_bar, k_bar and tau_bar for the cotangent g (*batch, n) of a mask."""
    exact, n = x.dtype == torch.float64, x.shape[-1]
    bars = torch.empty_like(x), torch.empty_like(k), torch.empty_like(tau)
    tile, h = min(power(n), tuning.SOFT_ELEMENTS), x.numel() // n
    tiles = -(-n // tile)
    steps = -(-tiles // tuning.SOFT_PARTS)  # tiles of a program
    count = -(-tiles // steps)
    grid, sizes, warps = (h * count, 1, 1), (n, count, steps), _warps(tile)
    parts = tau
    if tiles > 1:
        parts = tau.new_empty((h, 4, count))
        launch(programs_mask.reduce_mask_program, grid, (g, x, tau, k, threshold, parts), sizes, (exact, tile), warps)
    flags = exact, tiles == 1, step(count, tuning.SOFT_PARTS, 4, 16), tile
    launch(programs_mask.pull_mask_program, grid, (g, x, tau, k, threshold, parts, *bars), sizes, flags, warps)
    return bars


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
    """How rows (*batch, n) are cut into tiles, and the scratch memory of their sums."""

    def __init__(self, x: Tensor, tau: Tensor) -> None:
        self.n = x.shape[-1]
        self.h = x.numel() // self.n
        self.exact = x.dtype == torch.float64
        self.alone = self.n <= tuning.SOFT_ALONE
        self.sorts = self.alone and self.n <= tuning.SOFT_SORTED and not self.exact
        self.tile = max(power(self.n), 16) if self.alone else tuning.SOFT_TILE
        self.tiles = -(-self.n // self.tile)
        self.warps = _warps(self.tile)
        self.group = step(self.tiles, tuning.SOFT_CARRIED, 4, 16)
        self.scratch = tau  # a row of one tile needs none, except a mask's in float64
        if not self.alone or self.exact:
            self.scratch = x.new_empty((self.h, ROOM.value, self.tiles), dtype=torch.float64)

    def in_order(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x in order, and the order; yet to be written if the program sorts."""
        position = torch.empty_like(x)
        order = torch.empty_like(x, dtype=torch.int32 if self.sorts else torch.int64)
        if not self.sorts:
            call(torch.sort, x, out=(position, order), dim=-1, stable=True)
        return position, order

    def launch(self, program: Any, tensors: tuple[Tensor, ...], *flags: Any, more: tuple[int, ...] = ()) -> None:
        """Launch a program for every tile of every row."""
        grid, sizes = (self.h * self.tiles, 1, 1), (self.n, self.tiles, *more)
        launch(program, grid, tensors, sizes, (*flags, self.tile), self.warps)

    def scan(self, program: Any, tensors: tuple[Tensor, ...], *flags: Any, more: tuple[int, ...] = ()) -> None:
        """Launch a program that scans tiles: for near and for wide ones together or, if there are many, apart."""
        split = self.h * self.tiles >= tuning.SOFT_SPANS_APART and not self.alone and not self.exact
        for spans in ("near", "wide") if split else ("wide" if self.exact else "all",):
            self.launch(program, tensors, *flags, spans, more=more)

    def carry(self, tau: Tensor, *, degree: bool = False, second: bool = False, ties: bool = False) -> None:
        flags, warps = (degree, second, ties, self.group), max(self.group // 32, 1)
        launch(carry_soft_program, (2 * self.h, 1, 1), (self.scratch, tau), (self.tiles,), flags, warps)
