r"""Soft ranks as sums of Laplace distribution functions, and the threshold at which such a sum has a given value.

With F(u) = e^u / 2 for u < 0 and 1 - e^-u / 2 for u >= 0,

    rank_i = 1/2 + sum over j of F((x_i - x_j) / tau)

which has the right total n (n + 1) / 2 for every tau, and at ties the mean of the ranks. By the sums of a scan,

    sum over j of F((x_i - x_j) / tau) = (number below x_i) + (number equal) / 2 + O_i / 2,        O_i = R_i - L_i

The threshold b with sum over j of w_j F((x_j - b) / tau) = k is found in closed form. Between two neighbours x_m and
x_{m+1} the sum is, with W the weight above b, A the sum over j > m of w_j e^-((x_j - x_{m+1}) / tau), and B likewise
that over j <= m,

    W - A q / (2 w) + B w / 2 = k,        w = e^-((b - x_m) / tau),   q = e^-((x_{m+1} - x_m) / tau)

a quadratic equation for w, solved in logarithms, and measured from x_m or from x_{m+1}, whichever b follows: so nothing
underflows for a tiny tau, and b - x_j keeps its digits however large x is. No exponent is positive.

    L. Struski, M. Bednarczyk, I. Podolak, J. Tabor, LapSum: one method to differentiate them all, ICML (2025),
        arXiv:2503.06242: ranks, top-k and sorting by such sums and their inverse.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from laplex import _backends
from laplex._plan import planned_matrix
from laplex._scan.autograd import scan
from laplex._scan.order import Matrix
from laplex.soft._rows import readable, rows_along, softness


def rank(x: Tensor, dim: int = -1, *, tau: Any, descending: bool = False) -> Tensor:
    """Soft ranks along a dimension: 1 for the smallest number, n for the largest, with the shape of x.

    Their sum is n (n + 1) / 2 for every tau. As tau goes to 0 they are ``scipy.stats.rankdata``, ties averaged.

    Args:
        x: numbers, of any shape.
        dim: the dimension.
        tau: how soft, in the units of x, as in :func:`laplex.soft.sort`.
        descending: 1 for the largest.

    Example:
        >>> laplex.soft.rank(torch.tensor([30.0, 10.0, 20.0]), tau=0.1)
        tensor([3., 1., 2.])
    """
    where = "laplex.soft.rank"
    rows = rows_along(where, x, dim)
    flat, tau = _flat(rows, softness(where, tau, rows))
    function = _Ranks if torch.compiler.is_compiling() else _TransformableRanks
    ranks: Tensor = function.apply(-flat if descending else flat, tau)
    return ranks.reshape(rows.shape).to(x.dtype).movedim(-1, dim)


class _Ranks(torch.autograd.Function):
    """d rank_i = sum over j of K_ij (dx_i - dx_j) / (2 tau) - sum over j of K_ij (x_i - x_j) dtau / (2 tau^2)."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, tau: Tensor) -> Tensor:
        ordered = x.sort(-1).values
        below = torch.searchsorted(ordered, x)
        ties = torch.searchsorted(ordered, x, right=True) - below
        _, odd = scan(torch.ones_like(x)[:, None], _symmetric(x, tau), odd=True)
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
        x, tau = ctx.saved_tensors
        change = torch.zeros_like(x, dtype=torch.float64)
        if dx is not None:
            change = change + _differences(dx.double(), x, tau)
        if dtau is not None:
            change = change + _stretches(x, tau) * dtau[:, None]
        return change


def _differences(v: Tensor, x: Tensor, tau: Tensor) -> Tensor:
    """sum over j of K_ij (v_i - v_j) / (2 tau), (h, n): the derivative in x, which is symmetric."""
    ones, weighted = scan(torch.stack([torch.ones_like(v), v], 1), _symmetric(x, tau), odd=False)[0].unbind(1)
    return (v * ones - weighted) / (2 * tau[:, None])


def _stretches(x: Tensor, tau: Tensor) -> Tensor:
    """The derivative of every rank in tau, (h, n)."""
    ones = torch.ones_like(x, dtype=torch.float64)[:, None]
    _, odd = scan(ones, _symmetric(x, tau), odd=True, degree=1)
    return odd[:, 0] / (2 * tau[:, None])


def topk_mask(x: Tensor, k: Any, dim: int = -1, *, tau: Any) -> Tensor:
    """A soft mask of the k largest numbers: between 0 and 1, with the shape of x, and its sum is k.

        p_i = F((x_i - b) / tau),    with the b for which the sum is k

    Args:
        x: numbers, of any shape.
        k: from 0 to n; a number or a tensor with the shape of x without ``dim``. It may be fractional, and trained.
        dim: the dimension.
        tau: how soft, in the units of x, as in :func:`laplex.soft.sort`.

    Example:
        >>> laplex.soft.topk_mask(torch.tensor([3.0, 1.0, 2.0, 0.0]), 2, tau=0.001)
        tensor([1., 0., 1., 0.])
    """
    where = "laplex.soft.topk_mask"
    rows = rows_along(where, x, dim)
    flat, tau = _flat(rows, softness(where, tau, rows))
    count = _counts(where, "k", k, rows, rows.shape[-1])
    n, flat = rows.shape[-1], flat.double()
    inside = (count > 0) & (count < n)
    safe = torch.where(inside, count, n / 2)
    anchor, b = _threshold(flat, torch.ones_like(flat), (safe, n - safe), tau)
    mask = _distribution((flat - anchor[:, None] - b[:, None]) / tau[:, None])
    mask = torch.where(inside[:, None], mask, (count > 0)[:, None].double())
    return mask.reshape(rows.shape).to(x.dtype).movedim(-1, dim)


def quantile(x: Tensor, q: Any, dim: int = -1, *, tau: Any, weights: Tensor | None = None) -> Tensor:
    """A soft quantile: the b at which the smoothed distribution function of the numbers is q.

    As tau goes to 0 it is the number at which their distribution function passes q; where that is flat at q, the middle
    between two numbers. (``torch.quantile`` interpolates.)

    Args:
        x: numbers, of any shape.
        q: between 0 and 1, both excluded; a number or a tensor with the shape of x without ``dim``.
        dim: the dimension, which the result does not have.
        tau: how soft, in the units of x, as in :func:`laplex.soft.sort`.
        weights: not negative, with the shape of x; None for equal ones.

    Example:
        >>> laplex.soft.quantile(torch.arange(100.0), 0.25, tau=0.1)
        tensor(24.5000)
    """
    where = "laplex.soft.quantile"
    rows = rows_along(where, x, dim)
    flat, tau = _flat(rows, softness(where, tau, rows))
    level = _counts(where, "q", q, rows, 1)
    _within(where, "q", level, (level > 0) & (level < 1), "between 0 and 1, both excluded")
    mass = torch.ones_like(flat).double() if weights is None else _masses(where, weights, x, dim)
    total = mass.sum(-1)
    anchor, b = _threshold(flat.double(), mass, ((1 - level) * total, level * total), tau)
    return (anchor + b).reshape(rows.shape[:-1]).to(x.dtype)


def median(x: Tensor, dim: int = -1, *, tau: Any, weights: Tensor | None = None) -> Tensor:
    """The soft quantile at 1/2."""
    return quantile(x, 0.5, dim, tau=tau, weights=weights)


def _threshold(x: Tensor, mass: Tensor, sides: tuple[Tensor, Tensor], tau: Tensor) -> tuple[Tensor, Tensor]:
    """The b with sum over j of mass_j F((x_j - b) / tau) = k, as one of the x and a distance from it, (h,) each.

    x and mass are (h, n) in float64, and sides are k, the weight above b, and the weight below it.

    The closed form has no derivatives; two steps of Newton's method give those of the first and the second order, and
    remove its rounding errors. Both terms of a step have the factor e^(distance to the nearest x). Where that makes
    rounding errors of k large, the sum is flat, and b stays where it is.
    """
    anchor, b = _closed_form(x.detach(), mass.detach(), (sides[0].detach(), sides[1].detach()), tau.detach())
    moved, k = x - anchor[:, None], sides[0]
    for _ in range(2):
        u = (moved - b[:, None]) / tau[:, None]
        nearest = u.detach().abs().masked_fill(mass.detach() == 0, math.inf).amin(-1)
        density = mass * torch.exp(torch.clamp(nearest[:, None] + _minus_distance(u), max=0.0))
        above = torch.where(u < 0, 0.0, mass).sum(-1)
        excess = (above - k) * nearest.clamp(max=700.0).exp() + torch.where(u < 0, density, -density).sum(-1) / 2
        noise = torch.where(excess.abs() < 0.05 * density.sum(-1), 0.0, excess).detach()
        b = b + 2 * tau * (excess - noise) / density.sum(-1)
    return anchor, b


def _closed_form(x: Tensor, mass: Tensor, sides: tuple[Tensor, Tensor], tau: Tensor) -> tuple[Tensor, Tensor]:
    x, order = x.sort(-1)
    mass, tau, (k, rest) = mass.gather(-1, order), tau[:, None], (side[:, None] for side in sides)
    even, odd = (part[:, 0] for part in scan(mass[:, None], _symmetric(x, tau[:, 0]), odd=True))
    up_to = mass.cumsum(-1)
    last = torch.searchsorted(x, x, right=True) - 1  # of the numbers that are equal
    first = torch.searchsorted(x, x)
    ties = up_to.gather(-1, last) - up_to.gather(-1, first) + mass.gather(-1, first)
    tiny = torch.finfo(torch.float64).tiny
    log_above, log_below = (((even + ties + s * odd) / 2).clamp(min=tiny).log() for s in (1, -1))  # A and B, with x_j
    total = up_to[:, -1:]
    sums = total - up_to.gather(-1, last) + ties / 2 - odd / 2  # of the smoothed weight above every number
    m = torch.searchsorted(-sums, -k, right=True) - 1  # the last number above which there is at least k
    n = x.shape[-1]
    low, high = m.clamp(min=0), (m + 1).clamp(max=n - 1)
    c = k - (total - up_to.gather(-1, low))
    log_a, log_b, log_c = log_above.gather(-1, high), log_below.gather(-1, low), c.abs().log()
    gap = (x.gather(-1, high) - x.gather(-1, low)) / tau
    log_sum = torch.logaddexp(log_c, torch.logaddexp(2 * log_c, log_a + log_b - gap) / 2)  # of |c| and the root
    left = (2 * rest).log() - log_above[:, :1]
    right = log_below[:, -1:] - (2 * k).log()
    inner = torch.where(c >= 0, log_b - log_sum, log_sum - log_a)
    index = torch.where((m >= 0) & (m < n - 1) & (c < 0), high, m.clamp(0, n - 1))
    b = tau * torch.where(m < 0, left, torch.where(m >= n - 1, right, inner))
    return x.gather(-1, index)[:, 0], b[:, 0]


def _distribution(u: Tensor) -> Tensor:
    """F(u), the distribution function of the Laplace distribution."""
    tail = torch.exp(_minus_distance(u)) / 2
    return torch.where(u < 0, tail, 1 - tail)


def _minus_distance(u: Tensor) -> Tensor:
    """-|u| with the derivative -1 at 0, so that F has its own there, 1/2: that of abs() is 0."""
    return torch.where(u < 0, u, -u)


def _symmetric(x: Tensor, tau: Tensor) -> Matrix:
    """K(x, x) for x (h, n) and tau (h,)."""
    table = _backends.choose(x.device, x.shape[-1], x.shape[-1], None)
    return planned_matrix("laplex.soft", (x, x), tau, tuple(x.shape[:1]), None, (table, None))


def _flat(rows: Tensor, tau: Tensor) -> tuple[Tensor, Tensor]:
    """Rows (*batch, n) as (h, n), in one piece, and tau (*batch) as (h,)."""
    return rows.reshape(-1, rows.shape[-1]).contiguous(), tau.reshape(-1)


def _counts(where: str, name: str, value: Any, rows: Tensor, most: int) -> Tensor:
    """k or q as (h,), in float64."""
    batch = rows.shape[:-1]
    if isinstance(value, bool) or not isinstance(value, int | float | Tensor):
        raise TypeError(f"{where}: `{name}` must be a number or a tensor, got {type(value).__name__}")
    numbers = torch.as_tensor(value, dtype=torch.float64, device=rows.device)
    try:
        numbers = numbers.expand(batch).reshape(-1)
    except RuntimeError:
        raise ValueError(
            f"{where}: `{name}` must be a number, or broadcast to {tuple(batch)}, the shape of `x` without `dim`, got "
            f"{tuple(numbers.shape)}"
        ) from None
    _within(where, name, numbers, (numbers >= 0) & (numbers <= most), f"between 0 and {most}")
    return numbers


def _within(where: str, name: str, numbers: Tensor, right: Tensor, what: str) -> None:
    if readable(numbers) and not bool(right.all()):
        raise ValueError(f"{where}: `{name}` must be {what}, got {float(numbers.detach()[~right][0]):g}")


def _masses(where: str, weights: Any, x: Tensor, dim: int) -> Tensor:
    """Weights as (h, n), in float64."""
    if not isinstance(weights, Tensor) or weights.shape != x.shape:
        got = tuple(weights.shape) if isinstance(weights, Tensor) else type(weights).__name__
        raise ValueError(f"{where}: `weights` must have the shape {tuple(x.shape)} of `x`, got {got}")
    mass = weights.movedim(dim, -1).reshape(-1, x.shape[dim]).double()
    _within(where, "weights", mass, (mass >= 0) & mass.isfinite(), "finite and not negative")
    _within(where, "weights", mass.sum(-1), mass.sum(-1) > 0, "positive somewhere along `dim`")
    return mass
