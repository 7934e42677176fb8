r"""Soft ranks: sums of Laplace distribution functions, or SoftSort's.

With F(u) = e^u / 2 for u < 0 and 1 - e^-u / 2 for u >= 0,

    rank_i = 1/2 + sum over j of F((x_i - x_j) / tau)

which has the right total n (n + 1) / 2 for every tau, and at ties the mean of the ranks. By the sums of a scan,

    sum over j of F((x_i - x_j) / tau) = (number below x_i) + (number equal) / 2 + O_i / 2,        O_i = R_i - L_i

    L. Struski, M. Bednarczyk, I. Podolak, J. Tabor, LapSum: one method to differentiate them all, ICML (2025),
        arXiv:2503.06242: ranks, top-k and sorting by such sums and their inverse.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from laplex._checks.counts import flag
from laplex._eager import forward_mode_again
from laplex._scan.autograd import scan
from laplex.soft._permutation import SoftPermutation
from laplex.soft._rows import (
    can_fuse_backward,
    check_finite,
    flat,
    fused_module,
    restored,
    rows_along,
    softness,
    symmetric,
)

METHODS = "cdf", "softsort"
FLOAT16_ENDS = 65504


def rank(
    x: Tensor, dim: int = -1, *, tau: Any, descending: bool = False, method: str = "cdf", hard: bool = False
) -> Tensor:
    """Soft ranks along a dimension: 1 for the smallest number, n for the largest, with the shape of x.

    Their sum is n (n + 1) / 2 for every tau. As tau goes to 0 they become ``scipy.stats.rankdata``, ties averaged. They
    have the dtype of x: bfloat16 keeps three of their digits, and float16 ends at 65504.

    Args:
        x: numbers, of any shape.
        dim: the dimension to rank along.
        tau: how soft, in the units of x, as in :func:`laplex.soft.sort`.
        descending: give rank 1 to the largest.
        method: "cdf", sums of Laplace distribution functions; or "softsort", means of the places 1, ..., n with
            SoftSort's weights exp(-distance / tau) from the number to the one at each place. These draw the ends
            towards the middle, and their sum is not exactly n (n + 1) / 2.
        hard: ranks as scipy gives them, with the gradients of the soft ones (straight-through).

    Example:
        >>> laplex.soft.rank(torch.tensor([30.0, 10.0, 20.0]), tau=0.1)
        tensor([3., 1., 2.])
    """
    where = "laplex.soft.rank"
    rows = rows_along(where, x, dim)
    if method not in METHODS:
        raise ValueError(f"{where}: `method` must be one of {', '.join(METHODS)}, got {method!r}")
    descending, hard = flag(where, "descending", descending), flag(where, "hard", hard)
    if x.shape[dim] > FLOAT16_ENDS and x.dtype == torch.float16:
        raise ValueError(
            f"{where}: ranks of `x` are in its dtype, and float16 ends at {FLOAT16_ENDS}, got {x.shape[dim]} numbers "
            "along `dim`; use x.float()"
        )
    ranks = ranks_of_rows(where, rows, tau, descending, method)
    if hard:
        ranks = average_ranks(-rows if descending else rows).to(ranks.dtype) + (ranks - ranks.detach())
    return restored(ranks, x, dim)


def ranks_of_rows(where: str, rows: Tensor, tau: Any, descending: bool = False, method: str = "cdf") -> Tensor:
    """Ranks (*batch, n) for rows (*batch, n) and a tau that is not checked yet."""
    tau = softness(where, tau, rows)
    module = fused_module(rows, tau) if method == "cdf" else None
    ranks: Tensor
    if module is not None:
        ranks = _FusedRanks.apply(where, rows, tau, descending, module)
        return ranks
    check_finite(where, rows)
    ranks = (_ranks if method == "cdf" else _softsort_ranks)(*flat(rows, tau), descending)
    return ranks.reshape(rows.shape)


def average_ranks(y: Tensor) -> Tensor:
    """Ranks from 1 along the last dimension, ties averaged, in float64."""
    y = y.detach().to(torch.promote_types(y.dtype, torch.uint8)).contiguous()  # booleans cannot be searched
    ordered = y.sort(-1).values
    below, up_to = torch.searchsorted(ordered, y), torch.searchsorted(ordered, y, right=True)
    return (below + up_to + 1).double() / 2


def _softsort_ranks(x: Tensor, tau: Tensor, descending: bool) -> Tensor:
    """(P @ places) in the order of x: row i of P has the weights of the i-th smallest number."""
    n, order = x.shape[-1], x.detach().argsort(-1)
    middle = (n + 1) / 2  # places around 0 lose fewer digits in sums
    places = torch.arange(1, n + 1, device=x.device, dtype=x.dtype).expand(order.shape) - middle
    place = torch.zeros_like(x).scatter(-1, order, places)
    permutation = SoftPermutation(x, order, tau)
    sorted_ranks = permutation.__matmul__(place)  # torch.compile cannot trace this class's operator @
    ranks = torch.zeros_like(sorted_ranks).scatter(-1, order, sorted_ranks)
    return middle - ranks if descending else middle + ranks


def _ranks(x: Tensor, tau: Tensor, descending: bool) -> Tensor:
    function = _Ranks if torch.compiler.is_compiling() else _TransformableRanks
    ranks: Tensor = function.apply(-x if descending else x, tau)
    return ranks


class _FusedRanks(torch.autograd.Function):
    """Ranks with a fused forward and a fused backward; backward of a backward, and tau's gradient, use scans."""

    @staticmethod
    def forward(ctx: Any, where: str, rows: Tensor, tau: Tensor, descending: bool, module: ModuleType) -> Tensor:
        ranks: Tensor
        ranks, sorted_x, order = module.ranks(where, rows.contiguous(), tau.contiguous(), descending)
        ctx.save_for_backward(rows, tau, sorted_x, order)
        ctx.descending, ctx.module = descending, module
        return ranks

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        rows, tau, sorted_x, order = ctx.saved_tensors
        _, need_x, need_tau = ctx.needs_input_grad[:3]
        x_bar = tau_bar = None
        g = g.resolve_neg()
        if need_x and can_fuse_backward(g):
            (x_bar,) = ctx.module.pull_ranks(g.contiguous(), sorted_x, order, tau.contiguous(), ctx.descending)
        elif need_x:
            x_bar = _signed(_differences(flat(g.double(), tau)[0], *flat(rows, tau)), ctx.descending)
            x_bar = x_bar.to(rows.dtype).reshape(rows.shape)
        if need_tau:
            stretches = _signed(_stretches(*flat(rows, tau)), ctx.descending)
            tau_bar = (g * stretches.reshape(rows.shape)).sum(-1)
        return None, x_bar, tau_bar, None, None


def _signed(change: Tensor, descending: bool) -> Tensor:
    """The change of descending ranks is the opposite of that of ascending ones."""
    return -change if descending else change


class _Ranks(torch.autograd.Function):
    """d rank_i = sum over j of K_ij (dx_i - dx_j) / (2 tau) - sum over j of K_ij (x_i - x_j) dtau / (2 tau^2)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, tau: Tensor) -> Tensor:
        ordered = x.sort(-1).values
        below = torch.searchsorted(ordered, x)
        ties = torch.searchsorted(ordered, x, right=True) - below
        _, odd = scan(torch.ones_like(x)[:, None], symmetric(x, tau), odd=True)
        return 0.5 + below + ties / 2 + odd[:, 0].double() / 2

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor | None]:
        x, tau = ctx.saved_tensors
        x_bar = _differences(g, x, tau).to(x.dtype)
        if not ctx.needs_input_grad[1]:
            return x_bar, None
        return x_bar, (g * _stretches(x, tau)).sum(-1)


class _TransformableRanks(_Ranks):
    """The same with forward mode, which torch.compile does not trace."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        _Ranks.setup_context(ctx, inputs, output)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def jvp(ctx: Any, dx: Tensor | None, dtau: Tensor | None) -> Tensor:
        with forward_mode_again(ctx.saved_tensors) as (x, tau):
            change = torch.zeros_like(x, dtype=torch.float64)
            if dx is not None:
                change = change + _differences(dx.double(), x, tau)
            if dtau is not None:
                change = change + _stretches(x, tau) * dtau[:, None]
            return change


def _differences(v: Tensor, x: Tensor, tau: Tensor) -> Tensor:
    """sum over j of K_ij (v_i - v_j) / (2 tau), (h, n): the derivative in x, which is symmetric."""
    ones, weighted = scan(torch.stack([torch.ones_like(v), v], 1), symmetric(x, tau), odd=False)[0].unbind(1)
    return (v * ones - weighted) / (2 * tau[:, None])


def _stretches(x: Tensor, tau: Tensor) -> Tensor:
    """The derivative of every rank in tau, (h, n)."""
    ones = torch.ones_like(x, dtype=torch.float64)[:, None]
    _, odd = scan(ones, symmetric(x, tau), odd=True, degree=1)
    return odd[:, 0] / (2 * tau[:, None])
