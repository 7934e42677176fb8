"""Anchors that slide: damped Gauss-Newton steps, in which all kernels of a row move together.

A search moves one kernel at a time. If kernels with large weights of both signs nearly cancel, as those of a low-rank
matrix do, none of them can move alone. Here the places of row i in all kernels, r numbers, are moved by

    (J C J^T + damping) step = J C e_i,    J[q] = d(row i of W) / d(place in kernel q),    C the metric of the columns

with e_i the residual of the row. Rows do not affect each other, so each has its own damping and keeps a step only if
its error falls. For columns, rows and columns swap roles.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from laplex.reference import kernel

STEPS = 3  # in each call
LARGEST_BLOCK = 1 << 24  # numbers, kernels x rows x columns
FIRST = 1e-2  # damping, relative to the diagonal
EASIER, HARDER = 1 / 3, 4.0
SMALLEST, LARGEST = 1e-8, 1e4
TRACE = 1e-9  # of the largest diagonal entry, for rows that do not depend on their place in some kernel


class Side(NamedTuple):
    """The side that stays fixed: anchors b (r, k), tau (r,) and the kernels' weights mix (r,)."""

    b: Tensor
    tau: Tensor
    mix: Tensor


def slide(left: Tensor, a: Tensor, fixed: Side, metric: Tensor, damping: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Move the places of rows.

    Args:
        left (n, k): the residual of each row.
        a (r, n): the rows' places.
        fixed: the columns.
        metric: (k,) or (k, k).
        damping (n,): the damping of each row.

    Returns:
        The places, the new residual, and the damping for the next call.
    """
    rows = max(1, LARGEST_BLOCK // max(fixed.b.numel(), 1))
    blocks = zip(left.split(rows), a.split(rows, 1), damping.split(rows), strict=True)
    places, rest, dampings = zip(*(_slide_block(*block, fixed, metric) for block in blocks), strict=True)
    return torch.cat(places, 1), torch.cat(rest), torch.cat(dampings)


def _slide_block(left: Tensor, a: Tensor, damping: Tensor, fixed: Side, metric: Tensor) -> tuple[Tensor, ...]:
    formed, error = kernel(a, fixed.b, fixed.tau), _errors(left, metric)
    for _ in range(STEPS):
        moved = a + _step(left, a, formed, fixed, metric, damping).T
        new = kernel(moved, fixed.b, fixed.tau)
        rest = left - torch.tensordot(fixed.mix, new - formed, 1)
        after = _errors(rest, metric)
        better = after < error
        a, formed = torch.where(better, moved, a), torch.where(better[:, None], new, formed)
        left, error = torch.where(better[:, None], rest, left), torch.where(better, after, error)
        damping = torch.where(better, damping * EASIER, damping * HARDER).clamp(SMALLEST, LARGEST)
    return a, left, damping


def _step(left: Tensor, a: Tensor, formed: Tensor, fixed: Side, metric: Tensor, damping: Tensor) -> Tensor:
    """The steps of the rows (n, r), at most tau each."""
    toward = (fixed.b[:, None, :] - a[:, :, None]).sign()
    slope = ((fixed.mix / fixed.tau)[:, None, None] * toward * formed).transpose(0, 1)  # J (n, r, k)
    weighted = times_metric(slope, metric)
    normal, right = (weighted @ slope.mT).double(), (weighted @ left[:, :, None]).double()
    diagonal = normal.diagonal(dim1=1, dim2=2)
    trace = TRACE * diagonal.amax(1, keepdim=True) + torch.finfo(left.dtype).tiny
    normal = normal + torch.diag_embed(damping[:, None] * diagonal + trace)
    step: Tensor = torch.linalg.solve(normal, right)[..., 0].to(a.dtype)
    return step.nan_to_num(0.0, 0.0, 0.0).clamp(-fixed.tau, fixed.tau)


def times_metric(rows: Tensor, metric: Tensor) -> Tensor:
    """Rows (..., k) times a metric (k,), which is diagonal, or (k, k)."""
    return rows * metric if metric.dim() == 1 else rows @ metric


def _errors(rows: Tensor, metric: Tensor) -> Tensor:
    """The squared length of each row (n,)."""
    return (times_metric(rows, metric) * rows).sum(1)
