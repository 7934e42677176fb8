"""Anchors that slide: damped Gauss-Newton steps, in which all kernels of a row move together.

A search moves one kernel at a time. Where kernels with large weights of both signs nearly cancel, as those of a matrix
of low rank do, none of them can move alone. Here the places of row i in all kernels, r numbers, are moved by

    (J C J^T + damping) step = J C e_i,    J[q] = d(row i of W) / d(place in kernel q),    C the metric of the columns

with e_i what is left of the row. Rows do not act on each other, so each has its own damping and keeps a step only if
its error falls. For columns rows and columns change their parts.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from laplex.reference import kernel

STEPS = 3  # at a time
MOST_AT_ONCE = 1 << 24  # numbers, kernels x rows x columns
FIRST = 1e-2  # damping, relative to the diagonal
EASIER, HARDER = 1 / 3, 4.0
SMALLEST, LARGEST = 1e-8, 1e4
TRACE = 1e-9  # of the largest diagonal entry, where a row does not depend on the place in some kernel


class Kernels(NamedTuple):
    """The columns' side, which is held: anchors b (r, k), tau (r,) and mixing weights (r,)."""

    b: Tensor
    tau: Tensor
    mix: Tensor


def slide(left: Tensor, a: Tensor, held: Kernels, metric: Tensor, damping: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Move the places of rows.

    Args:
        left (n, k): what is left of each row.
        a (r, n): the rows' places.
        held: the other side.
        metric: (k,) or (k, k).
        damping (n,): of each row.

    Returns:
        The places, what is then left, and the damping to go on with.
    """
    rows = max(1, MOST_AT_ONCE // max(held.b.numel(), 1))
    parts = zip(left.split(rows), a.split(rows, 1), damping.split(rows), strict=True)
    found = [_slide(*part, held, metric) for part in parts]
    places, rest, dampings = zip(*found, strict=True)
    return torch.cat(places, 1), torch.cat(rest), torch.cat(dampings)


def _slide(left: Tensor, a: Tensor, damping: Tensor, held: Kernels, metric: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    formed, error = kernel(a, held.b, held.tau), _errors(left, metric)
    for _ in range(STEPS):
        moved = a + _step(left, a, formed, held, metric, damping).T
        new = kernel(moved, held.b, held.tau)
        rest = left - torch.tensordot(held.mix, new - formed, 1)
        after = _errors(rest, metric)
        better = after < error
        a, formed = torch.where(better, moved, a), torch.where(better[:, None], new, formed)
        left, error = torch.where(better[:, None], rest, left), torch.where(better, after, error)
        damping = torch.where(better, damping * EASIER, damping * HARDER).clamp(SMALLEST, LARGEST)
    return a, left, damping


def _step(left: Tensor, a: Tensor, formed: Tensor, held: Kernels, metric: Tensor, damping: Tensor) -> Tensor:
    """The steps of the rows (n, r), at most tau each."""
    toward = (held.b[:, None, :] - a[:, :, None]).sign()
    slope = ((held.mix / held.tau)[:, None, None] * toward * formed).transpose(0, 1)  # J (n, r, k)
    weighted = _times(slope, metric)
    normal, right = (weighted @ slope.mT).double(), (weighted @ left[:, :, None]).double()
    diagonal = normal.diagonal(dim1=1, dim2=2)
    trace = TRACE * diagonal.amax(1, keepdim=True) + torch.finfo(left.dtype).tiny
    normal = normal + torch.diag_embed(damping[:, None] * diagonal + trace)
    step: Tensor = torch.linalg.solve(normal, right)[..., 0].to(a.dtype)
    return step.nan_to_num(0.0, 0.0, 0.0).clamp(-held.tau, held.tau)


def _times(rows: Tensor, metric: Tensor) -> Tensor:
    return rows * metric if metric.dim() == 1 else rows @ metric


def _errors(rows: Tensor, metric: Tensor) -> Tensor:
    """The squared length of each row (n,)."""
    return (_times(rows, metric) * rows).sum(1)
