"""Losses on orders and ranks, from soft ranks and soft permutations, in O(n log n): one number for every row.

ndcg has the form of the approximate measures of

    T. Qin, T. Liu, H. Li, A general approximation framework for direct optimization of information retrieval measures,
        Information Retrieval 13 (2010),

with the Laplace distribution function where they have the logistic one.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from laplex._checks.arguments import check_tensor
from laplex._checks.counts import flag
from laplex._eager import readable
from laplex.soft._rank import average_ranks, ranks_of_rows
from laplex.soft._rows import check_finite, place_count, rows_along
from laplex.soft._sort import permutation_of_rows
from laplex.soft._threshold import mask_of_rows


def spearman(x: Tensor, y: Tensor, dim: int = -1, *, tau: Any) -> Tensor:
    """1 - the correlation of the soft ranks of x with the ranks of y: 0 for the same order, 2 for the opposite one.

    As tau goes to 0 it becomes 1 - ``scipy.stats.spearmanr``, ties averaged. Where all of x, or all of y, are equal, it
    is 1 and has no gradient. There are no gradients for y.

    Args:
        x: numbers, of any shape.
        y: numbers in the wanted order, with the shape of x.
        dim: the dimension to rank along, which the result does not have.
        tau: how soft, in the units of x, as in :func:`laplex.soft.sort`.

    Example:
        >>> x, y = torch.tensor([3.0, 1.0, 2.0]), torch.tensor([30.0, 10.0, 20.0])
        >>> laplex.soft.spearman(x, y, tau=0.01)
        tensor(0.)
    """
    where = "laplex.soft.spearman"
    rows = rows_along(where, x, dim)
    _check_fits(where, "y", y, "x", x)
    check_finite(where, y, "y")
    middle = (x.shape[dim] + 1) / 2
    # For a large tau all ranks are near the middle: rounded to float32, their distances from it would have no digits.
    a = ranks_of_rows(where, rows.double(), tau) - middle
    b = average_ranks(y.movedim(dim, -1)).to(a) - middle
    squares = a.square().sum(-1) * b.square().sum(-1)
    varied = squares > 0
    correlation = (a * b).sum(-1) / torch.where(varied, squares, 1.0).sqrt()
    return (1 - torch.where(varied, correlation, 0.0)).to(x.dtype)


def ndcg(scores: Tensor, relevance: Tensor, dim: int = -1, *, tau: Any, k: int | None = None) -> Tensor:
    """1 - NDCG, a loss: 0 where the most relevant have the largest scores.

        DCG = sum over i of (2^relevance_i - 1) / log2(1 + rank_i)

    with soft ranks, 1 for the largest score; NDCG is DCG over that of the best order. With k every term is multiplied
    by ``topk_mask(scores, k)``, and the best order counts its first k terms. Where nothing is relevant the loss is 1.

    Args:
        scores: numbers, of any shape.
        relevance: not negative, with the shape of the scores.
        dim: the dimension to rank along, which the result does not have.
        tau: how soft, in the units of the scores, as in :func:`laplex.soft.sort`.
        k: count only the first k places.

    Example:
        >>> scores, relevance = torch.tensor([0.2, 3.0, 1.0]), torch.tensor([0.0, 2.0, 1.0])
        >>> laplex.soft.ndcg(scores, relevance, tau=0.01)
        tensor(0.)
    """
    where = "laplex.soft.ndcg"
    rows = rows_along(where, scores, dim, "scores")
    n = rows.shape[-1]
    _check_fits(where, "relevance", relevance, "scores", scores)
    check_finite(where, relevance, "relevance")
    if readable(relevance) and bool((relevance < 0).any()):
        raise ValueError(f"{where}: `relevance` must not be negative, got {float(relevance.min()):g}")
    k = None if k is None else place_count(where, k, n)
    ranks = ranks_of_rows(where, rows, tau, descending=True).to(rows.dtype)
    grades = relevance.movedim(dim, -1).to(ranks)
    most = grades.detach().amax(-1, keepdim=True)  # all gains are divided by 2^most, so that none overflows
    gains = -torch.exp2(grades - most) * torch.expm1(-grades * math.log(2))  # 1 - 2^-grade keeps small grades' digits
    discounts = 1 / torch.log2(1 + ranks)
    if k is not None:
        discounts = discounts * mask_of_rows(where, rows, k, tau).to(rows.dtype)
    places = torch.arange(1, (k or n) + 1, device=ranks.device, dtype=ranks.dtype)
    best = (gains.topk(k or n, -1).values / torch.log2(1 + places)).sum(-1)
    relevant = best > 0
    share = (gains * discounts).sum(-1) / torch.where(relevant, best, 1.0)
    return (1 - torch.where(relevant, share, 0.0)).to(scores.dtype)


def cross_entropy(x: Tensor, order: Tensor, dim: int = -1, *, tau: Any, descending: bool = False) -> Tensor:
    """Minus the mean over i of log P[i, order_i], with the soft permutation P of ``sort``; only n entries are needed.

    Args:
        x: numbers, of any shape.
        order: the index of the number that should be at place i, as ``torch.argsort`` returns it, with the shape of x.
        dim: the dimension to sort along, which the result does not have.
        tau: how soft, in the units of x, as in :func:`laplex.soft.sort`.
        descending: put the largest first.

    Example:
        >>> x = torch.tensor([3.0, 1.0, 2.0])
        >>> laplex.soft.cross_entropy(x, torch.tensor([1, 2, 0]), tau=0.01)
        tensor(0.)
    """
    where = "laplex.soft.cross_entropy"
    rows = rows_along(where, x, dim)
    n = rows.shape[-1]
    _check_fits(where, "order", order, "x", x)
    if order.dtype != torch.int64:
        raise TypeError(f"{where}: `order` must have indices of torch.int64, got {order.dtype}; use order.long()")
    if readable(order) and not bool(((order >= 0) & (order < n)).all()):
        got = f"{int(order.min())} to {int(order.max())}"
        raise ValueError(f"{where}: `order` must have indices from 0 to {n - 1}, got {got}")
    permutation = permutation_of_rows(where, rows, tau, flag(where, "descending", descending))
    wanted = permutation.scores.gather(-1, order.movedim(dim, -1))
    distance = (permutation.targets - wanted).abs() / permutation.tau[..., None]
    return (distance + permutation.row_sums.log()).sum(-1).div(n).to(x.dtype)


def quantile_normalize(x: Tensor, target: Tensor, dim: int = -1, *, tau: Any) -> Tensor:
    """Give x the distribution of a target: every number becomes the target's quantile at its soft rank.

    The number of rank r among n becomes the sorted target at position (r - 1/2) m / n + 1/2 of m, by linear
    interpolation: for m = n the target of the same rank. Both x and the target have gradients.

    Args:
        x: numbers, of any shape.
        target: m numbers, or a tensor with the shape of x except for the size m of ``dim``.
        dim: the dimension to normalise along.
        tau: how soft, in the units of x, as in :func:`laplex.soft.sort`.

    Example:
        >>> laplex.soft.quantile_normalize(torch.tensor([3.0, 1.0, 2.0]), torch.tensor([0.0, 10.0, 30.0]), tau=0.01)
        tensor([30.,  0., 10.])
    """
    where = "laplex.soft.quantile_normalize"
    rows = rows_along(where, x, dim)
    goal_dim = -1 if isinstance(target, Tensor) and target.dim() == 1 else dim
    goal = rows_along(where, target, goal_dim, "target", one_each=True)
    check_finite(where, goal, "target")
    if goal.dim() > 1 and goal.shape[:-1] != rows.shape[:-1]:
        raise ValueError(f"{where}: `target` must have one dimension, or the shape {tuple(x.shape)} of `x` except for "
                         f"`dim`, got {tuple(target.shape)}")  # fmt: skip
    m = goal.shape[-1]
    goal = goal.sort(-1).values.expand(*rows.shape[:-1], m)
    # In float32 the rank of a large number among many has no digits left to say where it is between two targets.
    position = (ranks_of_rows(where, rows.double(), tau) - 0.5) * (m / rows.shape[-1]) - 0.5
    position = position.clamp(0, m - 1)
    low = position.detach().floor().clamp(max=max(m - 2, 0)).long()
    below, above = goal.gather(-1, low), goal.gather(-1, (low + 1).clamp(max=m - 1))
    return (below + (position - low) * (above - below)).to(x.dtype).movedim(-1, dim)


def _check_fits(where: str, name: str, value: Any, first: str, x: Tensor) -> None:
    """Raise unless a value is a dense tensor of real numbers with the shape of x, which is the argument ``first``."""
    if not isinstance(value, Tensor) or value.shape != x.shape:
        got = tuple(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise ValueError(f"{where}: `{name}` must be a tensor with the shape {tuple(x.shape)} of `{first}`, got {got}")
    check_tensor(where, name, value)
    if value.is_complex():
        raise TypeError(f"{where}: `{name}` must have real numbers, got {value.dtype}; use {name}.real")
