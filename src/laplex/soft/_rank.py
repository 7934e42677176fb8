r"""Soft ranks as sums of Laplace distribution functions, and the threshold at which such a sum has a given value.

With F(u) = e^u / 2 for u < 0 and 1 - e^-u / 2 for u >= 0,

    rank_i = 1/2 + sum over j of F((x_i - x_j) / tau)

which has the right total n (n + 1) / 2 for every tau, and at ties the mean of the ranks. By the sums of a scan,

    sum over j of F((x_i - x_j) / tau) = (number below x_i) + (number equal) / 2 + O_i / 2,        O_i = R_i - L_i

The threshold b with sum over j of w_j F((x_j - b) / tau) = k is found in closed form. Between two neighbours x_m and
x_{m+1} the sum is, with W the weight above b, A the sum over j > m of w_j e^-((x_j - x_{m+1}) / tau), and B likewise
that over j <= m,

    W - A q / (2 w) + B w / 2 = k,        w = e^-((b - x_m) / tau),   q = e^-((x_{m+1} - x_m) / tau)

a quadratic equation for w. No exponent is positive.

    L. Struski, M. Bednarczyk, I. Podolak, J. Tabor, LapSum: one method to differentiate them all, ICML (2025),
        arXiv:2503.06242: ranks, top-k and sorting by such sums and their inverse.
"""

from __future__ import annotations

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
    ranks: Tensor = _Ranks.apply(-flat if descending else flat, tau)
    return ranks.reshape(rows.shape).to(x.dtype).movedim(-1, dim)


class _Ranks(torch.autograd.Function):
    """d rank_i = sum over j of K_ij (dx_i - dx_j) / (2 tau) - sum over j of K_ij (x_i - x_j) dtau / (2 tau^2)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, tau: Tensor) -> Tensor:
        ctx.save_for_backward(x, tau)
        ordered = x.sort(-1).values
        below = torch.searchsorted(ordered, x)
        ties = torch.searchsorted(ordered, x, right=True) - below
        _, odd = scan(torch.ones_like(x)[:, None], _symmetric(x, tau), odd=True)
        return 0.5 + below + ties / 2 + odd[:, 0].double() / 2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor | None]:
        x, tau = ctx.saved_tensors
        matrix = _symmetric(x, tau)
        rows = torch.stack([torch.ones_like(g), g], 1)
        ones, weighted = scan(rows, matrix, odd=False)[0].unbind(1)
        x_bar = (g * ones - weighted) / (2 * tau[:, None])
        tau_bar = None
        if ctx.needs_input_grad[1]:
            _, odd = scan(torch.ones_like(g)[:, None], matrix, odd=True, degree=1)
            tau_bar = (g * odd[:, 0]).sum(-1) / (2 * tau)
        return x_bar.to(x.dtype), tau_bar


def topk_mask(x: Tensor, k: Any, dim: int = -1, *, tau: Any) -> Tensor:
    """A soft mask of the k largest numbers: between 0 and 1, with the shape of x, and its sum is k.

        p_i = F((x_i - b) / tau),    with the b for which the sum is k

    Args:
        x: numbers, of any shape.
        k: from 0 to n; a number or a tensor with the shape of x without ``dim``. It may be fractional, and trained.
        dim: the dimension.
        tau: how soft, in the units of x, as in :func:`laplex.soft.sort`.

    Example:
        >>> laplex.soft.topk_mask(torch.tensor([3.0, 1.0, 2.0, 0.0]), 2, tau=0.01)
        tensor([1., 0., 1., 0.])
    """
    where = "laplex.soft.topk_mask"
    rows = rows_along(where, x, dim)
    flat, tau = _flat(rows, softness(where, tau, rows))
    count = _counts(where, "k", k, rows, rows.shape[-1])
    flat = flat.double()
    inside = (count > 0) & (count < rows.shape[-1])
    b = _threshold(flat, torch.ones_like(flat), torch.where(inside, count, rows.shape[-1] / 2), tau)
    mask = _distribution((flat - b[:, None]) / tau[:, None])
    mask = torch.where(inside[:, None], mask, (count > 0)[:, None].double())
    return mask.reshape(rows.shape).to(x.dtype).movedim(-1, dim)


def quantile(x: Tensor, q: Any, dim: int = -1, *, tau: Any, weights: Tensor | None = None) -> Tensor:
    """A soft quantile: the b at which the smoothed distribution function of the numbers is q.

    Args:
        x: numbers, of any shape.
        q: between 0 and 1, both excluded; a number or a tensor with the shape of x without ``dim``.
        dim: the dimension, which the result does not have.
        tau: how soft, in the units of x, as in :func:`laplex.soft.sort`.
        weights: positive, with the shape of x; None for equal ones.

    Example:
        >>> laplex.soft.quantile(torch.arange(101.0), 0.25, tau=0.1)
        tensor(25.)
    """
    where = "laplex.soft.quantile"
    rows = rows_along(where, x, dim)
    flat, tau = _flat(rows, softness(where, tau, rows))
    level = _counts(where, "q", q, rows, 1)
    if readable(level) and not bool(((level > 0) & (level < 1)).all()):
        raise ValueError(f"{where}: `q` must be between 0 and 1, both excluded, got {float(level.detach().min()):g}")
    if weights is None:
        mass = torch.ones_like(flat).double()
    else:
        if not isinstance(weights, Tensor) or weights.shape != x.shape:
            got = tuple(weights.shape) if isinstance(weights, Tensor) else type(weights).__name__
            raise ValueError(f"{where}: `weights` must have the shape {tuple(x.shape)} of `x`, got {got}")
        mass = weights.movedim(dim, -1).reshape(flat.shape).double()
    b = _threshold(flat.double(), mass, (1 - level) * mass.sum(-1), tau)
    return b.reshape(rows.shape[:-1]).to(x.dtype)


def median(x: Tensor, dim: int = -1, *, tau: Any, weights: Tensor | None = None) -> Tensor:
    """The soft quantile at 1/2."""
    return quantile(x, 0.5, dim, tau=tau, weights=weights)


def _threshold(x: Tensor, mass: Tensor, k: Tensor, tau: Tensor) -> Tensor:
    """b (h,) with sum over j of mass_j F((x_j - b) / tau) = k, for x and mass (h, n) in float64.

    The closed form has no derivatives; two steps of Newton's method give the first and the second ones, and remove its
    rounding errors.
    """
    b = _closed_form(x.detach(), mass.detach(), k.detach(), tau.detach())
    for _ in range(2):
        u = (x - b[:, None]) / tau[:, None]
        excess = (mass * _distribution(u)).sum(-1) - k
        b = b + excess * 2 * tau / (mass * torch.exp(-u.abs())).sum(-1)
    return b


def _closed_form(x: Tensor, mass: Tensor, k: Tensor, tau: Tensor) -> Tensor:
    x, order = x.sort(-1)
    mass = mass.gather(-1, order)
    even, odd = (part[:, 0] for part in scan(mass[:, None], _symmetric(x, tau), odd=True))
    up_to = mass.cumsum(-1)
    last = torch.searchsorted(x, x, right=True) - 1  # of the numbers that are equal
    first = torch.searchsorted(x, x)
    ties = up_to.gather(-1, last) - up_to.gather(-1, first) + mass.gather(-1, first)
    below, above = (even + ties - odd) / 2, (even + ties + odd) / 2  # B and A, with the number itself
    total = up_to[:, -1:]
    sums = total - up_to.gather(-1, last) + ties / 2 - odd / 2  # of the smoothed weight above every number
    m = torch.searchsorted(-sums, -k[:, None], right=True) - 1  # the last number above which there is at least k
    n = x.shape[-1]
    low, high = m.clamp(min=0), (m + 1).clamp(max=n - 1)
    q = torch.exp(-(x.gather(-1, high) - x.gather(-1, low)) / tau[:, None])
    c = k[:, None] - (total - up_to.gather(-1, low))
    big_a, big_b = above.gather(-1, high), below.gather(-1, low)
    root = (c * c + big_a * big_b * q).sqrt()
    w = torch.where(c >= 0, (c + root) / big_b, big_a * q / (root - c))
    inner = x.gather(-1, low) - tau[:, None] * w.log()
    left = x[:, :1] + tau[:, None] * (2 * (total - k[:, None]) / above[:, :1]).log()
    right = x[:, -1:] - tau[:, None] * (2 * k[:, None] / below[:, -1:]).log()
    return torch.where(m < 0, left, torch.where(m >= n - 1, right, inner))[:, 0]


def _distribution(u: Tensor) -> Tensor:
    """F(u), the distribution function of the Laplace distribution."""
    tail = torch.exp(-u.abs()) / 2
    return torch.where(u < 0, tail, 1 - tail)


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
    if readable(numbers) and not bool(((numbers >= 0) & (numbers <= most)).all()):
        raise ValueError(f"{where}: `{name}` must be between 0 and {most}, got {float(numbers.detach().min()):g}")
    return numbers
