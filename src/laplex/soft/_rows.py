"""What all functions of ``laplex.soft`` do first: rows along a dimension, tau, and the backend."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from laplex import _backends
from laplex._checks.arguments import check_tensor
from laplex._checks.counts import integer, is_integer
from laplex._checks.messages import not_finite
from laplex._checks.rows import not_floating, warn_of_column
from laplex._checks.tau import SMALLEST_TAU, row_lengths
from laplex._eager import plain, plainly_eager, readable, savable
from laplex._plan import planned_matrix
from laplex._scan.autograd import builds_graph
from laplex._scan.order import Matrix

QUARTILES_APART = 1.349  # of the normal distribution, in units of its standard deviation


def rows_along(where: str, x: Any, dim: int, name: str = "x", *, one_each: bool = False) -> Tensor:
    """x with ``dim`` moved to the end, in float32 or float64. Whether it is finite is left to ``check_finite``.

    ``one_each``: whether rows of one number are nothing to warn of.
    """
    if not isinstance(x, Tensor) or not x.is_floating_point():
        raise not_floating(where, name, x)
    check_tensor(where, name, x)
    if x.dim() == 0:
        raise ValueError(f"{where}: `{name}` must have at least one dimension, got a single number")
    if not is_integer(dim):
        raise TypeError(f"{where}: `dim` must be an integer, got {type(dim).__name__}")
    if not -x.dim() <= dim < x.dim():
        raise ValueError(f"{where}: `dim` must be between {-x.dim()} and {x.dim() - 1}, got {dim}")
    moved = x if dim in (-1, x.dim() - 1) else x.movedim(dim, -1)
    if moved.shape[-1] == 0:
        raise ValueError(f"{where}: `{name}` must have at least one number along `dim`, got shape {tuple(x.shape)}")
    if moved is x and not one_each:
        warn_of_column(where, name, x, takes_dim=True)
    return moved if x.dtype in (torch.float32, torch.float64) else moved.float()


def place_count(where: str, k: Any, n: int) -> int:
    """k, a number of places among n."""
    count = integer(where, "k", k)
    if count > n:
        raise ValueError(f"{where}: `k` must be at most {n}, the size of `dim`, got {k}; use a smaller one")
    return count


def unshared(x: Tensor) -> Tensor:
    """Return x, or a copy if writes to it cannot be told from others or not at all.

    A view without a graph shares its version counter with its base, so a write elsewhere in the base would look like a
    write to these numbers; a tensor that inference mode made has no counter.
    """
    return savable(x.clone() if plainly_eager() and x._is_view() and not x.requires_grad else x)


def check_finite(where: str, x: Tensor, name: str = "x") -> None:
    """Raise if x is not finite. Fused functions check this themselves, and on a GPU give NaN."""
    if readable(x) and not bool(x.isfinite().all()):
        raise ValueError(not_finite(where, name))


def restored(result: Tensor, x: Tensor, dim: int) -> Tensor:
    """Return a result along the last dimension in the form of x: in its dtype, with that dimension back at ``dim``."""
    if result.dtype != x.dtype:
        result = result.to(x.dtype)
    return result if dim in (-1, x.dim() - 1) else result.movedim(-1, dim)


def softness(where: str, tau: Any, rows: Tensor) -> Tensor:
    """Return tau as (*batch), in float64, for rows (*batch, n)."""
    if isinstance(tau, str):
        if tau != "auto":
            raise ValueError(f'{where}: `tau` must be a positive number, a tensor or "auto", got {tau!r}')
        return automatic_softness(rows.detach())
    if isinstance(tau, Tensor):
        check_tensor(where, "tau", tau)
        tau = unshared(tau)
    return row_lengths(where, "tau", tau, rows.shape[:-1], rows, instead='"auto"')


def automatic_softness(rows: Tensor) -> Tensor:
    """tau = "auto" for rows (*batch, n): their spread over the cube root of n, in float64.

    The spread is the distance of the quartiles over 1.349: the standard deviation of normal numbers, and insensitive to
    outliers. Where the quartiles are equal it is half of the range; where all numbers are equal, 1.

    Soft ranks are n times an estimate of the distribution function by a kernel. Such an estimate is best with a width
    that falls as n^(-1/3) (A. Azzalini, A note on the estimation of a distribution function and quantiles by a kernel
    method, Biometrika 68, 1981): softness then changes a rank by less than another sample of the same distribution
    would. About n^(2/3) neighbours are mixed; a multiple of the median gap would mix the same few for all n.
    """
    n = rows.shape[-1]
    low, high = ((n - 1) // 4, -(-3 * (n - 1) // 4))
    rows = rows.double()
    quartiles = (rows.kthvalue(high + 1, -1).values - rows.kthvalue(low + 1, -1).values) / QUARTILES_APART
    half = (rows.amax(-1) - rows.amin(-1)) / 2
    spread = torch.where(quartiles > 0, quartiles, torch.where(half > 0, half, 1.0))
    return (spread * float(n ** (-1 / 3))).clamp(min=SMALLEST_TAU)


def flat(rows: Tensor, tau: Tensor) -> tuple[Tensor, Tensor]:
    """Return rows (*batch, n) as (h, n) and tau (*batch) as (h,), both contiguous.

    What has that form already is left alone: for a short row a conversion would take as long as the sums.
    """
    if rows.dim() != 2 or not rows.is_contiguous():
        rows = rows.reshape(-1, rows.shape[-1]).contiguous()
    if tau.dim() != 1 or not tau.is_contiguous():
        tau = tau.reshape(-1).contiguous()
    return rows, tau


def fused_module(x: Tensor, *others: Tensor) -> ModuleType | None:
    """The backend's module of fused functions (``laplex._sorted``) for rows x; None if it has none, or if something
    traces or transforms the call, or differentiates it in forward mode: scans support all of these."""
    if not plainly_eager() or forward_ad._current_level >= 0 or not all(map(plain, (x, *others))):
        return None
    if x.shape[-1] >= 2**31 or x.numel() == 0:
        return None
    return _backends.load(_backends.planner(x.device), x.device.type).sorted


def can_fuse_backward(g: Tensor) -> bool:
    """Whether a backward for the cotangent g may be fused: nobody differentiates it, and g has memory, which
    batches of cotangents (``is_grads_batched``) do not have."""
    return plain(g) and not builds_graph()


def symmetric(x: Tensor, tau: Tensor) -> Matrix:
    """K(x, x) for x (h, n) and tau (h,)."""
    table = _backends.choose(x.device, x.shape[-1], x.shape[-1], None)
    return planned_matrix("laplex.soft", (x, x), tau, tuple(x.shape[:1]), None, (table, None))
