"""The n x n part of a Gram matrix in plain torch, on any device: the readable algorithm.

``laplex._gram`` has the formulas. The code works on blocks of rows, so that M is the only tensor of size n x n.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from laplex._gram.sums import pulls
from laplex._scan.torch import BEYOND

BLOCK = 1 << 18  # entries of M in a block of rows, over the whole batch and all weights


def assemble(sums: Tensor, direction: Tensor, target: Tensor, tau: Tensor, dtype: torch.dtype) -> Tensor:
    """M (h, m, n, n), symmetric to the bit: each pair of rows is computed once and written to both of its entries."""
    h, m, _, _, n = sums.shape
    matrix = sums.new_empty((h, m, n, n), dtype=dtype)
    for rows in _blocks(h * m, n):
        begin, cols = rows.start, slice(0, rows.stop)
        pairs = _pairs(sums, target, tau, rows, cols)
        mass = (pairs.left + pairs.between + pairs.right) * _turns(direction, rows, cols)
        values = (pairs.decay * mass.sum(2)).to(dtype)  # (h, m, rows, cols)
        matrix[:, :, rows, :begin] = values[..., :begin]
        matrix[:, :, :begin, rows] = values[..., :begin].mT
        lower = values[..., begin:].tril()
        matrix[:, :, rows, rows] = lower + lower.tril(-1).mT
    return matrix


def pull(g: Tensor, sums: Tensor, direction: Tensor, target: Tensor, tau: Tensor) -> Tensor:
    """(h, m, pulls, n): the contributions ("pulls") of the cotangent g (h, m, n, n) of M at every row anchor."""
    h, m, channels, _, n = sums.shape
    pulled = sums.new_empty((h, m, sum(pulls(channels)), n))
    cols = slice(0, n)
    for rows in _blocks(h * m, n):
        pairs = _pairs(sums, target, tau, rows, cols)
        both = (g[:, :, rows].double() + g[..., rows].mT.double()) * pairs.decay  # (h, m, rows, n)
        turned = both[:, :, None] * _turns(direction, rows, cols)
        is_right = (pairs.gap.sign() + 1) / 2  # is the row's anchor the right one of the two? 1/2 if they tie
        pulled[:, :, :channels, rows] = (turned * (1 - is_right)).sum(-1)
        pulled[:, :, channels : 2 * channels, rows] = (turned * is_right).sum(-1)
        lever = pairs.right - pairs.left - pairs.gap.sign() * pairs.between
        pulled[:, :, 2 * channels, rows] = (turned * lever).sum((2, -1))
        mass = pairs.left + pairs.between + pairs.right
        pulled[:, :, 2 * channels + 1, rows] = (turned * pairs.u * mass).sum((2, -1)) / 2  # a pair appears twice
        if channels == 3:
            plain, of_cos, of_sin = mass.unbind(2)
            cos, sin = direction[:, None, :, None, :].unbind(2)  # (h, 1, 1, n)
            pulled[:, :, -2, rows] = (both * (cos * (plain + of_cos) + sin * of_sin)).sum(-1) / 2
            pulled[:, :, -1, rows] = (both * (sin * (plain - of_cos) + cos * of_sin)).sum(-1) / 2
    return pulled


class Pairs(NamedTuple):
    """What M_ij is made of, for i in ``rows`` and j in ``cols``: (h, m, channels, rows, cols), or broadcast to it."""

    gap: Tensor  # a_i - a_j
    u: Tensor  # |gap| / tau
    decay: Tensor  # exp(-u), (h, 1, rows, cols)
    left: Tensor  # U at the left one of the two anchors
    between: Tensor  # the weight between them
    right: Tensor  # V at the right one


def _pairs(sums: Tensor, target: Tensor, tau: Tensor, rows: slice, cols: slice) -> Pairs:
    gap = target[:, rows, None] - target[:, None, cols]  # (h, rows, cols)
    u = (gap.abs() * (1 / tau)[:, None, None]).clamp(max=BEYOND)
    decay = torch.exp(-u)
    left, right, high, low = (sums[:, :, :, place, :] for place in range(4))
    gap = gap[:, None, None]
    between = (high[..., rows, None] - high[..., None, cols]) + (low[..., rows, None] - low[..., None, cols])
    return Pairs(
        gap,
        u[:, None, None],
        decay[:, None],
        torch.where(gap >= 0, left[..., None, cols], left[..., rows, None]),
        torch.where(gap >= 0, between, -between),
        torch.where(gap >= 0, right[..., rows, None], right[..., None, cols]),
    )


def _turns(direction: Tensor, rows: slice, cols: slice) -> Tensor:
    """(h, 1, channels, rows, cols): cos(phi_i - phi_j) / 2, cos(phi_i + phi_j) / 2, sin(phi_i + phi_j) / 2; or 1."""
    if direction.shape[1] == 0:
        return direction.new_ones(())
    cos, sin = direction.unbind(1)
    cos_row, sin_row, cos_col, sin_col = cos[:, rows, None], sin[:, rows, None], cos[:, None, cols], sin[:, None, cols]
    cos_cos, sin_sin = cos_row * cos_col, sin_row * sin_col
    turns = [cos_cos + sin_sin, cos_cos - sin_sin, sin_row * cos_col + cos_row * sin_col]
    return torch.stack(turns, 1)[:, None] / 2


def _blocks(matrices: int, n: int) -> Iterator[slice]:
    """Blocks of rows with about BLOCK entries each, over all matrices."""
    rows = max(1, BLOCK // max(matrices * n, 1))
    for begin in range(0, n, rows):
        yield slice(begin, min(begin + rows, n))
