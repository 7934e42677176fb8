r"""The threshold above which a smoothed count of numbers has a given value: masks of the largest, and quantiles.

With F(u) = e^u / 2 for u < 0 and 1 - e^-u / 2 for u >= 0, the threshold b with sum over j of w_j F((x_j - b) / tau) = k
is found in closed form. Between two neighbours x_m and x_{m+1} the sum is, with W the weight above b, A the sum over
j > m of w_j e^-((x_j - x_{m+1}) / tau), and B likewise that over j <= m,

    W - A q / (2 w) + B w / 2 = k,        w = e^-((b - x_m) / tau),   q = e^-((x_{m+1} - x_m) / tau)

a quadratic equation for w, solved in logarithms, and measured from x_m or from x_{m+1}, whichever b follows: so nothing
underflows for a tiny tau, and b - x_j keeps its digits however large x is. No exponent is positive.

    L. Struski, M. Bednarczyk, I. Podolak, J. Tabor, LapSum: one method to differentiate them all, ICML (2025),
        arXiv:2503.06242: ranks, top-k and sorting by such sums and their inverse.
"""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from laplex._checks.counts import flag, is_number
from laplex._checks.tau import expanded
from laplex._eager import readable
from laplex._scan.autograd import bars_through, scan
from laplex._shapes import number_per_row
from laplex.soft._rows import (
    check_finite,
    flat,
    fused,
    pulled_in_one_piece,
    restored,
    rows_along,
    softness,
    symmetric,
)


def topk_mask(x: Tensor, k: Any, dim: int = -1, *, tau: Any, hard: bool = False) -> Tensor:
    """A soft mask of the k largest numbers: between 0 and 1, with the shape of x, and its sum is k.

        p_i = F((x_i - b) / tau),    with the b for which the sum is k

    Args:
        x: numbers, of any shape.
        k: from 0 to n; a number or a tensor with the shape of x without ``dim``. It may be fractional, and trained.
        dim: the dimension along which the largest are taken.
        tau: how soft, in the units of x, as in :func:`laplex.soft.sort`.
        hard: ones for the k largest (k is rounded; of equal numbers the first count) and zeros for the others, with
            the gradients of the soft mask (straight-through).

    Example:
        >>> laplex.soft.topk_mask(torch.tensor([3.0, 1.0, 2.0, 0.0]), 2, tau=0.001)
        tensor([1., 0., 1., 0.])
    """
    where = "laplex.soft.topk_mask"
    rows = rows_along(where, x, dim)
    tau = softness(where, tau, rows)
    count = _counts(where, "k", k, rows, rows.shape[-1])
    hard = flag(where, "hard", hard)
    module = fused(rows, tau, count)
    mask: Tensor
    if module is None:
        check_finite(where, rows)
        mask = _mask(rows, count, tau)
    else:
        mask = _FusedMask.apply(where, rows, count, tau, module)
    if hard:
        mask = _hard_mask(rows.detach(), count.detach()).to(mask.dtype) + (mask - mask.detach())
    return restored(mask, x, dim)


def _mask(rows: Tensor, count: Tensor, tau: Tensor) -> Tensor:
    """The mask of rows (*batch, n) for counts and tau (*batch), in float64, by functions that have all derivatives."""
    (x, tau), k, n = flat(rows.double(), tau), count.reshape(-1), rows.shape[-1]
    inside = (k > 0) & (k < n)
    safe = torch.where(inside, k, n / 2)
    anchor, b = _threshold(x, torch.ones_like(x), (safe, n - safe), tau)
    mask = _distribution((x - anchor[:, None] - b[:, None]) / tau[:, None])
    return torch.where(inside[:, None], mask, (k > 0)[:, None].double()).reshape(rows.shape)


def _hard_mask(rows: Tensor, count: Tensor) -> Tensor:
    places: Tensor = rows.sort(dim=-1, descending=True, stable=True).indices.argsort(-1)
    return (places < count.round()[..., None]).double()


class _FusedMask(torch.autograd.Function):
    """The mask with forward and backward in one piece each; backward of a backward uses scans."""

    @staticmethod
    def forward(ctx: Any, where: str, rows: Tensor, count: Tensor, tau: Tensor, module: ModuleType) -> Tensor:
        mask: Tensor
        mask, threshold = module.mask(where, rows.contiguous(), count.contiguous(), tau.contiguous())
        ctx.save_for_backward(rows, count, tau, threshold)
        ctx.module = module
        return mask

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        rows, count, tau, threshold = ctx.saved_tensors
        g = g.resolve_neg()
        if not pulled_in_one_piece(g):
            bars = bars_through(_mask, (rows, count, tau), g.double(), ctx.needs_input_grad[1:4])
            return None, *bars, None
        each = (part.contiguous() for part in (g, rows, count, tau))
        return None, *ctx.module.pull_mask(*each, threshold), None


def quantile(x: Tensor, q: Any, dim: int = -1, *, tau: Any, weights: Tensor | None = None) -> Tensor:
    """A soft quantile: the b at which the smoothed distribution function of the numbers is q.

    As tau goes to 0 it becomes the number at which their distribution function passes q or, where that is flat at q,
    the middle between two numbers. (``torch.quantile`` interpolates.)

    Args:
        x: numbers, of any shape.
        q: between 0 and 1, both excluded; a number or a tensor with the shape of x without ``dim``.
        dim: the dimension along which it is taken, which the result does not have.
        tau: how soft, in the units of x, as in :func:`laplex.soft.sort`.
        weights: not negative, with the shape of x; None for equal ones.

    Example:
        >>> laplex.soft.quantile(torch.arange(100.0), 0.25, tau=0.1)
        tensor(24.5000)
    """
    where = "laplex.soft.quantile"
    rows = rows_along(where, x, dim)
    check_finite(where, rows)
    flat_x, flat_tau = flat(rows, softness(where, tau, rows))
    level = _counts(where, "q", q, rows, 1).reshape(-1)
    _within(where, "q", level, (level > 0) & (level < 1), "between 0 and 1, both excluded")
    mass = torch.ones_like(flat_x).double() if weights is None else _masses(where, weights, x, dim)
    total = mass.sum(-1)
    anchor, b = _threshold(flat_x.double(), mass, ((1 - level) * total, level * total), flat_tau)
    return (anchor + b).reshape(rows.shape[:-1]).to(x.dtype)


def median(x: Tensor, dim: int = -1, *, tau: Any, weights: Tensor | None = None) -> Tensor:
    """The soft quantile at 1/2."""
    return quantile(x, 0.5, dim, tau=tau, weights=weights)


def _threshold(x: Tensor, mass: Tensor, sides: tuple[Tensor, Tensor], tau: Tensor) -> tuple[Tensor, Tensor]:
    """The b with sum over j of mass_j F((x_j - b) / tau) = k, as one of the x and a distance from it, (h,) each.

    x and mass are (h, n) in float64, and sides are k, the weight above b, and the weight below it.

    The closed form has no derivatives; two steps of Newton's method give those of the first and the second order, and
    remove its rounding errors. Both terms of a step have the factor e^(distance to the nearest x). Where that makes
    rounding errors of k large, the sum is flat, and b stays where it is. Weights are compared on the side of b that has
    less of them: on the other side a k near 0 or the total would lose its digits. Where all x are within tau of b, F is
    measured from 1/2, which sums of F lose: for a huge tau the median is the mean.
    """
    anchor, b = _closed_form(x.detach(), mass.detach(), (sides[0].detach(), sides[1].detach()), tau.detach())
    moved, (k, rest) = x - anchor[:, None], sides
    for _ in range(2):
        u = (moved - b[:, None]) / tau[:, None]
        nearest = u.detach().abs().masked_fill(mass.detach() == 0, math.inf).amin(-1)
        density = mass * torch.exp(torch.clamp(nearest[:, None] + _minus_distance(u), max=0.0))
        below, above = torch.where(u < 0, mass, 0.0).sum(-1), torch.where(u < 0, 0.0, mass).sum(-1)
        scale = nearest.clamp(max=700.0).exp()
        excess = torch.where(below < above, rest - below, above - k) * scale
        excess = excess + torch.where(u < 0, density, -density).sum(-1) / 2
        from_half = torch.expm1(_minus_distance(u))
        odd = (mass * torch.where(u < 0, from_half, -from_half)).sum(-1)
        is_near = u.detach().abs().amax(-1) < 1
        excess = torch.where(is_near, ((rest - k) + odd) / 2 * scale, excess)
        noise = torch.where(excess.abs() < 0.05 * density.sum(-1), 0.0, excess).detach()
        b = b + 2 * tau * (excess - noise) / density.sum(-1)
    return anchor, b


def _closed_form(x: Tensor, mass: Tensor, sides: tuple[Tensor, Tensor], tau: Tensor) -> tuple[Tensor, Tensor]:
    x, order = x.sort(-1)
    mass, tau, (k, rest) = mass.gather(-1, order), tau[:, None], (side[:, None] for side in sides)
    even, odd = (part[:, 0] for part in scan(mass[:, None], symmetric(x, tau[:, 0]), odd=True))
    up_to = mass.cumsum(-1)
    last = torch.searchsorted(x, x, right=True) - 1  # of the numbers that are equal
    first = torch.searchsorted(x, x)
    ties = up_to.gather(-1, last) - up_to.gather(-1, first) + mass.gather(-1, first)
    tiny = torch.finfo(torch.float64).tiny
    log_above, log_below = (((even + ties + s * odd) / 2).clamp(min=tiny).log() for s in (1, -1))  # A and B, with x_j
    total = up_to[:, -1:]
    sums = total - up_to.gather(-1, last) + ties / 2 - odd / 2  # of the smoothed weight above every number
    wanted = torch.zeros_like(total) - k  # in one piece under vmap, too, where k may be one number for all rows
    m = torch.searchsorted(-sums, wanted, right=True) - 1  # the last number above which there is at least k
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


def _counts(where: str, name: str, value: Any, rows: Tensor, most: int) -> Tensor:
    """Return k or q as (*batch), in float64."""
    batch = rows.shape[:-1]
    if not (is_number(value) or isinstance(value, Tensor)):
        raise TypeError(f"{where}: `{name}` must be a number or a tensor, got {type(value).__name__}")
    if not isinstance(value, Tensor):
        if not 0 <= value <= most:
            raise ValueError(f"{where}: `{name}` must be between 0 and {most}, got {value:g}")
        return number_per_row(float(value), batch, rows.device)
    numbers = value.to(dtype=torch.float64, device=rows.device)
    numbers = expanded(where, name, numbers, batch, "the shape of `x` without `dim`")
    _within(where, name, numbers, (numbers >= 0) & (numbers <= most), f"between 0 and {most}")
    return numbers


def _within(where: str, name: str, numbers: Tensor, right: Tensor, what: str) -> None:
    if readable(numbers) and not bool(right.all()):
        raise ValueError(f"{where}: `{name}` must be {what}, got {float(numbers.detach()[~right][0]):g}")


def _masses(where: str, weights: Any, x: Tensor, dim: int) -> Tensor:
    """Return weights as (h, n), in float64."""
    if not isinstance(weights, Tensor) or weights.shape != x.shape:
        got = tuple(weights.shape) if isinstance(weights, Tensor) else type(weights).__name__
        raise ValueError(f"{where}: `weights` must have the shape {tuple(x.shape)} of `x`, got {got}")
    mass = weights.movedim(dim, -1).reshape(-1, x.shape[dim]).double()
    _within(where, "weights", mass, (mass >= 0) & mass.isfinite(), "finite and not negative")
    _within(where, "weights", mass.sum(-1), mass.sum(-1) > 0, "positive somewhere along `dim`")
    return mass
