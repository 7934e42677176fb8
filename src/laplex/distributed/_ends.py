r"""What a rank has to know about the sources on all other ranks: a few numbers for every row.

Seen from rank r, all sources of lower ranks lie to its left, or at its smallest target; all sources of higher ranks
lie to its right, or at its largest target. So they contribute to a product just as four more sources, called ghosts:

    left             one at the largest source of lower ranks that is strictly left of all targets of this rank
    left, tied       one at the smallest target of this rank, if a source of a lower rank is tied with it
    right; right, tied       the same from the other side

A rank reduces its own sources to the same form. Let `first` and `last` be the smallest and the largest of its sources,
and `next` > first and `previous` < last their neighbours:

    ahead    sum over sources < last  of exp(-(previous - s_j) / tau) x_j         referred to `previous`
    top      sum over sources = last  of x_j
    behind   sum over sources > first of exp(-(s_j - next) / tau) x_j             referred to `next`
    bottom   sum over sources = first of x_j

One exchange gives every rank the numbers of all ranks, and the rank moves them to its ghosts: each state decays over
the difference of two positions, so no exponent is positive, no decay is a product, and nothing is subtracted. Ties are
kept separate throughout, because a tied source counts in the even sums and not in the odd ones, wherever it is.

In degree 1 a state also has p, the sum weighted by distance (``laplex._scan``), and moves by
(v, p) -> exp(-u) (v, p + u v). The scan takes the ghosts' v as operands; their p is added to its result.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from laplex import _compiled
from laplex._checks.core import core_fault, is_double
from laplex.distributed._ranks import Ranks

GHOSTS = 4  # left, left tied, right, right tied
BEYOND = 1e3  # for u >= 1e3, exp(-u) and u exp(-u) are 0 in float64
AHEAD, BEHIND = [0, 4], [2, 5]  # indices of v and p among a rank's numbers; top and bottom are 1 and 3
# Sources reduced at a time in plain torch: few enough for the cache of a CPU, or enough to keep a GPU busy.
BLOCK = {"cpu": 1 << 15, "cuda": 1 << 22}


class Run(NamedTuple):
    """Sources [begin, end) that are in order."""

    begin: int
    bottom: int  # just past the sources equal to the first source of all runs
    top: int  # the first source equal to the last source of all runs
    end: int


class Edges(NamedTuple):
    """The ends of one side's anchors on this rank, for each matrix."""

    runs: tuple[tuple[Run, ...], ...]  # for each matrix
    positions: Tensor  # (h, 4) float64: first, next, previous, last; NaN if there is none


class Ghosts(NamedTuple):
    """Where the ghosts of one side are, and how far the ends of the other ranks' sources are from them."""

    positions: Tensor  # (h, GHOSTS) float64
    gaps: Tensor  # (2, ranks, h, 2) float64: left, right; from ahead (behind) and top (bottom); inf if not included
    tied: Tensor  # (2, ranks, h) float64: 1 where top (bottom) is tied with this rank's first (last) target


def edges(values: Tensor, spans: Sequence[Sequence[tuple[int, int]]]) -> Edges:
    """The ends of anchors (h, width), which are in order within the spans (begin, end) of each matrix.

    With a stale plan they may be in any order; the ends are then useless, but every rank still reaches the check that
    raises.
    """
    positions = torch.full((len(spans), 4), torch.nan, dtype=torch.float64, device=values.device)
    for i, parts in enumerate(spans):
        pieces = [values[i, begin:end] for begin, end in parts if end > begin]
        if pieces:
            first = torch.stack([piece[0] for piece in pieces]).amin()
            last = torch.stack([piece[-1] for piece in pieces]).amax()
            following, previous = _neighbours(pieces, first, last)
            apart = bool(first < last)
            positions[i, 0], positions[i, 3] = first, last
            if apart:
                positions[i, 1], positions[i, 2] = following, previous
    runs = tuple(
        tuple(_run(values[i], part, positions[i]) for part in parts if part[1] > part[0])
        for i, parts in enumerate(spans)
    )
    return Edges(runs, positions)


def _neighbours(pieces: list[Tensor], first: Tensor, last: Tensor) -> tuple[Tensor, Tensor]:
    """The smallest anchor above the first, and the largest below the last; infinite where all are equal."""
    above, below = last.new_full((), torch.inf), last.new_full((), -torch.inf)
    for piece in pieces:
        bottom, top = _bounds(piece, first, last)
        above = torch.minimum(above, piece[bottom]) if bottom < piece.numel() else above
        below = torch.maximum(below, piece[top - 1]) if top > 0 else below
    return above, below


def _bounds(piece: Tensor, first: Tensor, last: Tensor) -> tuple[int, int]:
    """How many anchors of a sorted piece are equal to the first, and how many are below the last."""
    return int(torch.searchsorted(piece, first, right=True)), int(torch.searchsorted(piece, last))


def _run(values: Tensor, part: tuple[int, int], positions: Tensor) -> Run:
    begin, end = part
    piece = values[begin:end]
    bottom, top = _bounds(piece, *positions[::3].to(piece.dtype).unbind())
    return Run(begin, begin + bottom, begin + top, end)


def ghosts(targets: Tensor, sources: Tensor, rank: int) -> Ghosts:
    """The ghosts of this rank, given the positions (ranks, h, 4) of targets and of sources on all ranks."""
    number = torch.arange(sources.shape[0], device=sources.device)[:, None]
    first, last = targets[rank, :, 0], targets[rank, :, 3]
    left, *from_left = _one_side(first, sources[..., 2:], number < rank)
    right, *from_right = _one_side(-last, -sources[..., :2].flip(-1), number > rank)
    positions = torch.stack([left, first, -right, last], -1)
    positions = torch.where(positions.isnan(), sources[rank, :, :1], positions).nan_to_num(0.0)  # no targets: any
    gaps, tied = (torch.stack(pair) for pair in zip(from_left, from_right, strict=True))
    return Ghosts(positions, gaps, tied)


def _one_side(border: Tensor, ends: Tensor, is_on_this_side: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The position of the ghost left of a border (h,), the gaps (ranks, h, 2) to it, and the ties (ranks, h) with it.

    `ends` (ranks, h, 2) are the second-to-last and the last source; `is_on_this_side` (ranks, 1) says which ranks are
    on the left. An end that does not exist is NaN, so comparisons with it are false.
    """
    strict = (ends < border[:, None]) & is_on_this_side[..., None]
    nearest = torch.where(strict, ends, -torch.inf).amax((0, 2))
    position = torch.where(nearest.isinf(), border, nearest)
    gaps = torch.where(strict, position[:, None] - ends, torch.inf)
    return position, gaps, ((ends[..., 1] == border) & is_on_this_side).to(ends.dtype)


def reduced(x: Tensor, sources: Tensor, tau: Tensor, own: Edges, ranks: Ranks, degree: int) -> Tensor:
    """This rank's numbers for x (h, m, width) at sources (h, width): (h, m, 4), or (h, m, 6) in degree 1.

    They are ahead, top, behind, bottom, and in degree 1 the p of ahead and of behind. No rank is left of the first or
    right of the last, so the first rank's `behind` and `bottom` and the last rank's `ahead` and `top` are not needed.
    """
    numbers = x.new_zeros((*x.shape[:2], 4 + 2 * degree), dtype=torch.float64)
    for i, runs in enumerate(own.runs):
        rows, s = x[i], sources[i]
        _, following, previous, _ = own.positions[i]
        for begin, bottom, top, end in runs:
            if ranks.rank < ranks.size - 1:
                ahead = _decayed(rows[:, begin:top], s[begin:top], previous, tau[i], degree)
                numbers[i, :, AHEAD[: degree + 1]] += ahead
                numbers[i, :, 1] += rows[:, top:end].sum(-1, dtype=torch.float64)
            if ranks.rank > 0:
                behind = _decayed(rows[:, bottom:end], s[bottom:end], following, tau[i], degree)
                numbers[i, :, BEHIND[: degree + 1]] += behind
                numbers[i, :, 3] += rows[:, begin:bottom].sum(-1, dtype=torch.float64)
    return numbers


def _decayed(x: Tensor, s: Tensor, end: Tensor, tau: Tensor, degree: int) -> Tensor:
    """(m, degree + 1): the sum of x (m, count) at s (count,), referred to one end of s: v, and p in degree 1."""
    if s.device.type == "cpu" and not _compiled.MISSING and x.dtype == s.dtype and x.numel() > 0 and x.stride(-1) == 1:
        return _decayed_by_core(x, s.contiguous(), float(end), float(tau), degree)
    total = x.new_zeros((x.shape[0], degree + 1), dtype=torch.float64)
    block = BLOCK["cpu" if s.device.type == "cpu" else "cuda"]
    for first in range(0, s.shape[0], block):
        part = slice(first, first + block)
        u = ((s[part].double() - end).abs_() / tau).clamp_(max=BEYOND)
        decay = torch.exp(-u)
        factors = torch.stack([decay, u * decay], -1) if degree else decay[:, None]
        total += x[:, part].double() @ factors
    return total


def _decayed_by_core(x: Tensor, s: Tensor, end: float, tau: float, degree: int) -> Tensor:
    out = x.new_empty((degree + 1, x.shape[0]), dtype=torch.float64)
    sizes = x.shape[0], x.shape[1], x.stride(0) if x.shape[0] > 1 else 0, degree
    addresses, double = (x.data_ptr(), s.data_ptr()), is_double("laplex.distributed", x, s)
    status = _compiled.core.reduce(*addresses, end, tau, out.data_ptr(), *sizes, double, torch.get_num_threads())
    if status:
        core_fault("laplex.distributed", status)
    return out.mT


def carried(numbers: Tensor, to: Ghosts, tau: Tensor, degree: int) -> tuple[Tensor, Tensor]:
    """The ghosts' v (h, m, GHOSTS), and the p of the left and the right ghost (h, m, 2), from all ranks' numbers.

    In degree 0 the second is (h, m, 0).
    """
    values, slopes = [], []
    for side in range(2):
        u = (to.gaps[side] / tau[:, None]).clamp(max=BEYOND)[:, :, None]  # (ranks, h, 1, 2)
        decay = torch.exp(-u)
        v = numbers[..., 2 * side : 2 * side + 2]  # (ranks, h, m, 2)
        values += [(decay * v).sum((0, -1)), (to.tied[side, ..., None] * v[..., 1]).sum(0)]
        if degree:
            p = torch.nn.functional.pad(numbers[..., 4 + side, None], (0, 1))
            slopes.append((decay * (p + u * v)).sum((0, -1)))
    v = torch.stack(values, -1)
    return v, torch.stack(slopes, -1) if degree else v[..., :0]


def exchanged(
    x: Tensor, sources: Tensor, tau: Tensor, own: Edges, to: Ghosts, ranks: Ranks, degree: int
) -> tuple[Tensor, Tensor]:
    """The ghosts' values for x: reduce, exchange once, move."""
    return carried(ranks.gathered(reduced(x, sources, tau, own, ranks, degree)), to, tau, degree)
