"""Soft sorting: values, and the matrix that sorts (``_permutation``)."""

from __future__ import annotations

from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from laplex._checks.counts import flag
from laplex._scan.autograd import bars_through
from laplex.soft._permutation import SoftPermutation
from laplex.soft._rows import (
    can_fuse_backward,
    check_finite,
    fused_module,
    place_count,
    restored,
    rows_along,
    softness,
    unshared,
)


class Sorted(NamedTuple):
    """Softly sorted numbers, and the matrix that sorts."""

    values: Tensor
    permutation: SoftPermutation


def sort(x: Tensor, dim: int = -1, *, tau: Any, descending: bool = False, hard: bool = False) -> Sorted:
    """Sort softly: every value is a mean of all numbers, with weights exp(-d / tau) at distance d from the sorted one.

    Args:
        x: numbers, of any shape.
        dim: the dimension along which they are sorted.
        tau: how soft, in the units of x: a positive number, a tensor with the shape of x without ``dim``, or "auto",
            the spread of the numbers over the cube root of n. As tau goes to 0 the result is ``torch.sort``.
        descending: put the largest first.
        hard: values as ``torch.sort`` gives them, with the gradients of the soft ones (straight-through).

    Returns:
        ``(values, permutation)``: values with the shape of x, and the matrix P (*batch, n, n) as a lazy
        :class:`SoftPermutation` of the last dimension; ``P @ v`` permutes other values the same way.

    Example:
        >>> x = torch.tensor([3.0, 1.0, 2.0])
        >>> laplex.soft.sort(x, tau=0.01).values
        tensor([1., 2., 3.])
    """
    where = "laplex.soft.sort"
    rows = rows_along(where, x, dim)
    tau, descending, hard = softness(where, tau, rows), flag(where, "descending", descending), flag(where, "hard", hard)
    values, permutation = _sorted_rows(where, rows, tau, rows.shape[-1], descending=descending, hard=hard)
    return Sorted(restored(values, x, dim), permutation)


def argsort(x: Tensor, dim: int = -1, *, tau: Any, descending: bool = False) -> SoftPermutation:
    """The soft argsort: the matrix P of :func:`sort`, lazily, without the values.

    ``P.order`` is the hard argsort.

    Example:
        >>> P = laplex.soft.argsort(torch.tensor([3.0, 1.0, 2.0]), tau=0.01)
        >>> P @ torch.tensor([30.0, 10.0, 20.0])
        tensor([10., 20., 30.])
    """
    where = "laplex.soft.argsort"
    rows = rows_along(where, x, dim)
    return permutation_of_rows(where, rows, tau, flag(where, "descending", descending))


def permutation_of_rows(where: str, rows: Tensor, tau: Any, descending: bool) -> SoftPermutation:
    """P for rows (*batch, n) and a tau that is not checked yet."""
    check_finite(where, rows)
    tau = softness(where, tau, rows)
    return SoftPermutation(unshared(rows), rows.detach().argsort(-1), tau, descending=descending)


def topk(x: Tensor, k: int, dim: int = -1, *, tau: Any, largest: bool = True, hard: bool = False) -> Sorted:
    """The k largest numbers, softly, the largest first: the first k rows of a soft sort.

    Arguments and results are those of :func:`sort`; ``largest=False`` takes the k smallest, the smallest first.
    """
    where = "laplex.soft.topk"
    rows = rows_along(where, x, dim)
    k = place_count(where, k, rows.shape[-1])
    tau, largest, hard = softness(where, tau, rows), flag(where, "largest", largest), flag(where, "hard", hard)
    values, permutation = _sorted_rows(where, rows, tau, k, descending=largest, hard=hard)
    return Sorted(restored(values, x, dim), permutation)


def _sorted_rows(where: str, rows: Tensor, tau: Tensor, k: int, *, descending: bool, hard: bool) -> Sorted:
    """The first k places of rows (*batch, n), for tau (*batch); ``where`` is for messages about numbers."""
    module = fused_module(rows, tau)
    if module is None:
        check_finite(where, rows)
        order = rows.detach().argsort(-1)
        permutation = SoftPermutation(unshared(rows), order, tau, descending=descending, rows=k)
        values = _mean(permutation)
    else:
        values, order, factors = _FusedSort.apply(where, rows, tau, descending, k, module)
        permutation = SoftPermutation(unshared(rows), order, tau, descending=descending, rows=k, factors=factors)
    if hard:
        values = permutation.targets.detach() + (values - values.detach())
    return Sorted(values, permutation)


def _mean(permutation: SoftPermutation) -> Tensor:
    """Return P x, by products that have all derivatives."""
    rows = permutation.scores
    center = rows.detach().mean(-1, keepdim=True)  # numbers around 0 lose fewer digits in sums
    return center + permutation.__matmul__(rows - center)  # torch.compile cannot trace this class's operator @


class _FusedSort(torch.autograd.Function):
    """Values with a fused forward and a fused backward; backward of a backward, and tau's gradient, use products."""

    @staticmethod
    def forward(
        ctx: Any, where: str, rows: Tensor, tau: Tensor, descending: bool, k: int, module: ModuleType
    ) -> tuple[Tensor, Tensor, Tensor]:
        values, sorted_x, order, factors = module.values(where, rows.contiguous(), tau.contiguous(), descending, k)
        ctx.save_for_backward(rows, tau, sorted_x, order, factors)
        ctx.mark_non_differentiable(order, factors)
        ctx.set_materialize_grads(False)  # those of the order would be zeros, written and never read
        ctx.descending, ctx.k, ctx.module = descending, k, module
        return values, order, factors

    @staticmethod
    def backward(ctx: Any, g: Tensor | None, *_others: None) -> tuple[Tensor | None, ...]:
        rows, tau, sorted_x, order, factors = ctx.saved_tensors
        _, need_x, need_tau = ctx.needs_input_grad[:3]
        if g is None:
            return (None,) * 6
        g = g.resolve_neg()
        by_products = need_x and not can_fuse_backward(g), need_tau

        def mean(rows: Tensor, tau: Tensor) -> Tensor:
            return _mean(SoftPermutation(rows, order, tau, descending=ctx.descending, rows=ctx.k))

        x_bar, tau_bar = bars_through(mean, (rows, tau), g, by_products) if any(by_products) else (None, None)
        if need_x and not by_products[0]:
            each_tau = tau.contiguous()
            (x_bar,) = ctx.module.pull_values(g.contiguous(), sorted_x, order, factors, each_tau, ctx.descending)
        return None, x_bar, tau_bar, None, None, None
