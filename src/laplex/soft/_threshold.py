r"""The threshold above which a smoothed count of numbers has a given value: masks of the largest, and quantiles.

F is the Laplace distribution function: F(u) = e^u / 2 for u < 0, else 1 - e^-u / 2. The threshold is the b with

    S(b) = sum over j of w_j F((x_j - b) / tau) = k

S falls with b. Let x_m be the last number, in ascending order, at which it is at least k, so that b is between x_m and
x_{m+1}. There, with the sums

    W    the weight above b, that of x_j with j > m
    A    sum over j > m of w_j e^-((x_j - x_{m+1}) / tau)
    B    sum over j <= m of w_j e^-((x_m - x_j) / tau)

the equation is

    W - A q / (2 v) + B v / 2 = k,        v = e^-((b - x_m) / tau),   q = e^-((x_{m+1} - x_m) / tau)

and with c = k - W and root = sqrt(c^2 + A B q) its positive solution is

    v = (c + root) / B   for c >= 0,        v = A q / (root - c)   for c < 0

in which nothing cancels. It is computed in logarithms, and b is measured from x_m in the first case and from x_{m+1} in
the second: so nothing underflows for a tiny tau, and b - x_j keeps its digits however large x is. No exponent is
positive. Below all numbers S is W - A e^-((x_1 - b) / tau) / 2, above all of them B e^-((b - x_n) / tau) / 2.

    L. Struski, M. Bednarczyk, I. Podolak, J. Tabor, LapSum: one method to differentiate them all, ICML (2025),
        arXiv:2503.06242: ranks, top-k and sorting by such sums and their inverse.
"""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from laplex._checks.arguments import check_tensor
from laplex._checks.counts import flag, is_number
from laplex._checks.tau import expanded
from laplex._eager import readable
from laplex._running import cumulative
from laplex._scan.autograd import bars_through, scan
from laplex._shapes import number_per_row
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

# Of 2 tau, by which Newton's method may move b: the closed form is nearer than that. Where S is so flat that rounding
# errors of k ask for more, b stays where it is.
LONGEST_STEP = 0.05
LARGEST_EXPONENT = 700.0  # e^710 overflows


def topk_mask(x: Tensor, k: Any, dim: int = -1, *, tau: Any, hard: bool = False) -> Tensor:
    """A soft mask of the k largest numbers: between 0 and 1, with the shape of x, and its sum is k.

        p_i = F((x_i - b) / tau),    with the b for which the sum is k

    F is the Laplace distribution function: e^u / 2 for u < 0, else 1 - e^-u / 2.

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
    mask = mask_of_rows(where, rows_along(where, x, dim), k, tau, hard)
    return restored(mask, x, dim)


def mask_of_rows(where: str, rows: Tensor, k: Any, tau: Any, hard: Any = False) -> Tensor:
    """The mask (*batch, n) of rows (*batch, n), for arguments that are not checked yet."""
    tau = softness(where, tau, rows)
    count = _numbers(where, "k", k, rows, rows.shape[-1], ends=True)
    hard = flag(where, "hard", hard)
    module = fused_module(rows, tau, count)
    mask: Tensor
    if module is None:
        check_finite(where, rows)
        mask = _mask(rows, count, tau)
    else:
        mask = _FusedMask.apply(where, rows, count, tau, module)
    if hard:
        mask = _hard_mask(rows.detach(), count.detach()).to(mask.dtype) + (mask - mask.detach())
    return mask


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
    """The mask with a fused forward and a fused backward; backward of a backward uses scans."""

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
        if not can_fuse_backward(g):
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
        >>> x = torch.arange(100.0)
        >>> laplex.soft.quantile(x, 0.25, tau=0.1)
        tensor(24.5000)
        >>> laplex.soft.quantile(x.expand(3, -1), torch.tensor([0.1, 0.5, 0.9]), tau=0.1)  # several of the same numbers
        tensor([ 9.5000, 49.5000, 89.5000])
    """
    return _quantile("laplex.soft.quantile", x, q, dim, tau, weights)


def median(x: Tensor, dim: int = -1, *, tau: Any, weights: Tensor | None = None) -> Tensor:
    """The soft quantile at 1/2."""
    return _quantile("laplex.soft.median", x, 0.5, dim, tau, weights)


def _quantile(where: str, x: Tensor, q: Any, dim: int, tau: Any, weights: Tensor | None) -> Tensor:
    rows = rows_along(where, x, dim)
    check_finite(where, rows)
    flat_x, flat_tau = flat(rows, softness(where, tau, rows))
    level = _levels(where, q, x, rows).reshape(-1)
    mass = torch.ones_like(flat_x).double() if weights is None else _masses(where, weights, x, dim)
    total = mass.sum(-1)
    anchor, b = _threshold(flat_x.double(), mass, ((1 - level) * total, level * total), flat_tau)
    return (anchor + b).reshape(rows.shape[:-1]).to(x.dtype)


def _threshold(x: Tensor, mass: Tensor, sides: tuple[Tensor, Tensor], tau: Tensor) -> tuple[Tensor, Tensor]:
    """The b with S(b) = k, as one of the x and a distance from it, (h,) each.

    x and mass, the weights, are (h, n) in float64, and sides are k, the weight above b, and the weight below it.

    The closed form has no derivatives; two steps of Newton's method give those of the first and the second order, and
    remove its rounding errors.
    """
    anchor, b = _closed_form(x.detach(), mass.detach(), (sides[0].detach(), sides[1].detach()), tau.detach())
    moved = x - anchor[:, None]
    for _ in range(2):
        b = _newton_step(b, moved, mass, sides, tau)
    return anchor, b


def _newton_step(b: Tensor, x: Tensor, mass: Tensor, sides: tuple[Tensor, Tensor], tau: Tensor) -> Tensor:
    """b (h,) after a step, with x (h, n) measured from the same number as b.

    The step is 2 tau times the excess S(b) - k over the density, the sum of w_j e^-(|x_j - b| / tau). Both have the
    factor e^nearest, with the distance to the nearest x over tau, so that they do not underflow.
    """
    u = (x - b[:, None]) / tau[:, None]
    nearest = u.detach().abs().masked_fill(mass.detach() == 0, math.inf).amin(-1)
    exponent = nearest[:, None] + _minus_distance(u)  # 0 for the nearest x; above 0 only where the mass is 0
    densities = mass * torch.exp(torch.where(exponent > 0, 0.0, exponent))  # clamp may have no derivative at its bound
    density, scale = densities.sum(-1), nearest.clamp(max=LARGEST_EXPONENT).exp()
    excess = _excess(u, mass, sides, densities, scale)
    noise = torch.where(excess.abs() < LONGEST_STEP * density, 0.0, excess).detach()
    return b + 2 * tau * (excess - noise) / density


def _excess(u: Tensor, mass: Tensor, sides: tuple[Tensor, Tensor], densities: Tensor, scale: Tensor) -> Tensor:
    """(S(b) - k) scale, (h,), for u = (x - b) / tau and densities w_j e^-|u_j| scale, (h, n).

    Weights are compared on the side of b that has less of them: on the other side a k near 0 or the total would lose
    its digits. Where all x are within tau of b, F is measured from 1/2, which sums of F lose: for a huge tau the median
    is the mean.
    """
    k, rest = sides
    below, above = torch.where(u < 0, mass, 0.0).sum(-1), torch.where(u < 0, 0.0, mass).sum(-1)
    excess = torch.where(below < above, rest - below, above - k) * scale
    excess = excess + torch.where(u < 0, densities, -densities).sum(-1) / 2
    from_half = torch.expm1(_minus_distance(u))
    odd = (mass * torch.where(u < 0, from_half, -from_half)).sum(-1)
    is_near = u.detach().abs().amax(-1) < 1
    return torch.where(is_near, ((rest - k) + odd) / 2 * scale, excess)


def _closed_form(x: Tensor, mass: Tensor, sides: tuple[Tensor, Tensor], tau: Tensor) -> tuple[Tensor, Tensor]:
    """The same as ``_threshold``, without derivatives and with the rounding errors of sums."""
    x, order = x.sort(-1)
    sums = _sums_at_numbers(x, mass.gather(-1, order), tau)
    tau, (k, rest), n = tau[:, None], (side[:, None] for side in sides), x.shape[-1]
    m = _bracket(sums.smoothed, k)
    index, between = _between_neighbours(x, sums, m, k, tau)
    below_all = (2 * rest).log() - sums.log_right[:, :1]
    above_all = sums.log_left[:, -1:] - (2 * k).log()
    b = tau * torch.where(m < 0, below_all, torch.where(m >= n - 1, above_all, between))
    return x.gather(-1, index)[:, 0], b[:, 0]


class _Sums(NamedTuple):
    """Sums at every x_i, (h, n) each. Left and right ones have the numbers equal to x_i."""

    weight_after: Tensor  # of x_j with j > i: W for i = m
    log_right: Tensor  # log sum over x_j >= x_i of w_j e^-((x_j - x_i) / tau): that of A for i = m + 1
    log_left: Tensor  # log sum over x_j <= x_i of w_j e^-((x_i - x_j) / tau): that of B for i = m
    smoothed: Tensor  # S(x_i)


def _sums_at_numbers(x: Tensor, mass: Tensor, tau: Tensor) -> _Sums:
    """The sums for x (h, n) in order, mass (h, n) and tau (h,)."""
    even, odd = (part[:, 0] for part in scan(mass[:, None], symmetric(x, tau), odd=True))
    up_to = cumulative(mass[..., None])[..., 0]
    last = torch.searchsorted(x, x, right=True) - 1  # of the numbers that are equal
    first = torch.searchsorted(x, x)
    ties = up_to.gather(-1, last) - up_to.gather(-1, first) + mass.gather(-1, first)
    tiny = torch.finfo(torch.float64).tiny
    log_right, log_left = (((even + ties + sign * odd) / 2).clamp(min=tiny).log() for sign in (1, -1))
    total = up_to[:, -1:]
    smoothed = total - up_to.gather(-1, last) + ties / 2 - odd / 2
    return _Sums(total - up_to, log_right, log_left, smoothed)


def _bracket(smoothed: Tensor, k: Tensor) -> Tensor:
    """m (h, 1): the last number at which S, which is ``smoothed`` (h, n), is at least k (h, 1); -1 if there is none."""
    wanted = torch.zeros_like(smoothed[:, :1]) - k  # contiguous under vmap, too, where k may be one number for all rows
    return torch.searchsorted(-smoothed, wanted, right=True) - 1


def _between_neighbours(x: Tensor, sums: _Sums, m: Tensor, k: Tensor, tau: Tensor) -> tuple[Tensor, Tensor]:
    """The solution between x_m and x_{m+1}: the index of one of them, and the distance of b from it over tau, (h, 1).

    Where m has no neighbour the index is that of the end, and the distance has no meaning.
    """
    low, high = m.clamp(min=0), (m + 1).clamp(max=x.shape[-1] - 1)
    c = k - sums.weight_after.gather(-1, low)
    log_a, log_b, log_c = sums.log_right.gather(-1, high), sums.log_left.gather(-1, low), c.abs().log()
    gap = (x.gather(-1, high) - x.gather(-1, low)) / tau  # -log q
    log_sum = torch.logaddexp(log_c, torch.logaddexp(2 * log_c, log_a + log_b - gap) / 2)  # of |c| and the root
    return torch.where(c >= 0, low, high), torch.where(c >= 0, log_b - log_sum, log_sum - log_a)


def _distribution(u: Tensor) -> Tensor:
    """F(u), the distribution function of the Laplace distribution."""
    tail = torch.exp(_minus_distance(u)) / 2
    return torch.where(u < 0, tail, 1 - tail)


def _minus_distance(u: Tensor) -> Tensor:
    """-|u| with the derivative -1 at 0, so that F has its own there, 1/2: that of abs() is 0."""
    return torch.where(u < 0, u, -u)


def _levels(where: str, q: Any, x: Tensor, rows: Tensor) -> Tensor:
    """Return q as (*batch), in float64."""
    if isinstance(q, Tensor) and q.dim() == x.dim() == 1 and len(q) > 1:
        raise ValueError(
            f"{where}: `q` must be one number, as `x` is one row, got shape {tuple(q.shape)}; for several quantiles of "
            f"the same numbers use x.expand({len(q)}, -1)"
        )
    return _numbers(where, "q", q, rows, 1, ends=False)


def _numbers(where: str, name: str, value: Any, rows: Tensor, most: int, *, ends: bool) -> Tensor:
    """Return k or q as (*batch), in float64: between 0 and the most, which are allowed with ``ends``."""
    batch, what = rows.shape[:-1], f"between 0 and {most}" + ("" if ends else ", both excluded")
    if not (is_number(value) or isinstance(value, Tensor)):
        raise TypeError(f"{where}: `{name}` must be a number or a tensor, got {type(value).__name__}")
    if not isinstance(value, Tensor):
        if not _inside(value, most, ends):
            raise ValueError(f"{where}: `{name}` must be {what}, got {value:g}")
        return number_per_row(float(value), batch, rows.device)
    check_tensor(where, name, value)
    numbers = value.to(dtype=torch.float64, device=rows.device)
    numbers = expanded(where, name, numbers, batch, "the shape of `x` without `dim`")
    _within(where, name, numbers, _inside(numbers, most, ends), what)
    return numbers


def _inside(value: Any, most: int, ends: bool) -> Any:
    return (value >= 0) & (value <= most) if ends else (value > 0) & (value < most)


def _within(where: str, name: str, numbers: Tensor, right: Tensor, what: str) -> None:
    if readable(numbers) and not bool(right.all()):
        raise ValueError(f"{where}: `{name}` must be {what}, got {float(numbers.detach()[~right][0]):g}")


def _masses(where: str, weights: Any, x: Tensor, dim: int) -> Tensor:
    """Return weights as (h, n), in float64, scaled to a largest from 1 to 2, so that no sum of them overflows.

    The scale is a power of 2, so that weights that were equal, or added up to one another, still do. It cancels in
    every result; in the graph it is a constant, by which derivatives are divided, too.
    """
    if not isinstance(weights, Tensor) or weights.shape != x.shape:
        got = tuple(weights.shape) if isinstance(weights, Tensor) else type(weights).__name__
        raise ValueError(f"{where}: `weights` must have the shape {tuple(x.shape)} of `x`, got {got}")
    check_tensor(where, "weights", weights)
    mass = weights.movedim(dim, -1).reshape(-1, x.shape[dim]).double()
    _within(where, "weights", mass, (mass >= 0) & mass.isfinite(), "finite and not negative")
    largest = mass.detach().amax(-1, keepdim=True)
    _within(where, "weights", largest[:, 0], largest[:, 0] > 0, "positive somewhere along `dim`")
    scale = largest / (2 * largest.frexp().mantissa)
    return mass / scale
