r"""Re-seating: the best place of every anchor of one side, all places of a line at once.

Gradient descent cannot carry an anchor past others. A search can. With the other side's anchors b held, a row at place
s is the vector K(s, b), and what it explains of its target is found from a product of K(s, b) with something known. For
all rows and all places together that is one call of :func:`laplex.linear`, whose row anchors are the places.

    row i, of weight w, at place s lowers  |t_i - w K(s, b)|^2  by    gain_i(s) = 2 w c_i(s) - w^2 m(s)
    with the best weight for that place,   w = c_i(s) / m(s),   by    gain_i(s) = c_i(s)^2 / m(s)

        c_i(s) = sum over j of t_ij K(s, b_j)            m(s) = sum over j, l of K(s, b_j) M_jl K(s, b_l)
"""

from __future__ import annotations

import numbers
from typing import NamedTuple

import torch
from torch import Tensor

from laplex import _autocast, _checks
from laplex._checks.arguments import anchors
from laplex._functional import linear
from laplex.reference import kernel

MOST_AT_ONCE = 1 << 24  # scores, rows x places


class Seats(NamedTuple):
    """The result of :func:`reseat`, for each row."""

    places: Tensor  # (n,)
    weights: Tensor  # (n,)
    gains: Tensor  # (n,)


Seats.__module__ = "laplex"  # the name that users import and that saved files hold


@torch.no_grad()
@_autocast.unaffected
def reseat(
    target: Tensor,
    b: Tensor,
    places: Tensor,
    tau: float | Tensor = 1.0,
    *,
    weight: float | Tensor | None = None,
    moments: Tensor | None = None,
) -> Seats:
    """The best of the given places for every row of a kernel matrix, with its columns held.

    Args:
        target (n, k): t, what each row should be; with moments M, that times M: the products of the rows with the
            columns in the metric M.
        b (k,): the columns' anchors.
        places (s,): where a row may go.
        tau: the length scale.
        weight: w, a number or (n,), that multiplies the row; None for the best weight at each place.
        moments: M, the metric of the columns: (k,) for a diagonal one, or (k, k), symmetric, positive; None for ones.

    Returns:
        Seats: each row's best place, its weight there, and the gain: by how much the squared error is below that
        without the row.

    Example:
        >>> b = torch.linspace(0, 3, 50)
        >>> row = laplex.reference.kernel(torch.tensor([1.0]), b)
        >>> laplex.reseat(2 * row, b, torch.linspace(0, 3, 301)).places
        tensor([1.])
    """
    _check(target, b, places, tau)
    _check_weights(target, b, weight, moments)
    target = target.to(torch.promote_types(target.dtype, b.dtype))
    mass = _moments_at(places, b, tau, moments)
    rows = max(1, MOST_AT_ONCE // len(places))
    blocks = []
    for first in range(0, max(len(target), 1), rows):  # at least one block, even if it is empty
        block = target[first : first + rows]
        w = weight[first : first + rows, None] if isinstance(weight, Tensor) and weight.dim() else weight
        blocks.append(best_places(linear(block, places, b, tau), mass, w))
    index, weights, gains = (torch.cat(parts) for parts in zip(*blocks, strict=True))
    return Seats(places[index], weights, gains)


def best_places(score: Tensor, mass: Tensor, weight: float | Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Index, weight and gain of the best of the columns of ``score`` (rows, s)."""
    if weight is None:
        size, index = (score.abs() * mass.rsqrt()).max(1)  # its square, the gain, may overflow or be lost
        return index, score.gather(1, index[:, None])[:, 0] / mass[index], size.square()
    gains, index = (weight * (2 * score - weight * mass)).max(1)
    return index, torch.as_tensor(weight, dtype=score.dtype, device=score.device).expand(len(score), 1)[:, 0], gains


def _moments_at(places: Tensor, b: Tensor, tau: float | Tensor, moments: Tensor | None) -> Tensor:
    """m(s) for every place. (The square of a kernel is the kernel of half the length scale.)"""
    if moments is None or moments.dim() == 1:
        ones = torch.ones_like(b) if moments is None else moments.to(b.dtype)
        mass = linear(ones, places, b, tau / 2)
    else:
        rows = kernel(places, b, tau)
        mass = (rows @ moments.to(b.dtype) * rows).sum(1)
    return mass.clamp_min(torch.finfo(b.dtype).tiny)  # a place far from all columns explains nothing


def _check(target: Tensor, b: Tensor, places: Tensor, tau: float | Tensor) -> None:
    where = "laplex.reseat"
    for name, value, count in (("b", b, "(k,)"), ("places", places, "(s,) with at least one place")):
        anchors(where, name, value)
        if value.dim() != 1 or (value is places and len(value) == 0):
            raise ValueError(f"{where}: `{name}` must be {count}, got {tuple(value.shape)}; use .reshape(-1)")
    if places.dtype != b.dtype:
        raise TypeError(
            f"{where}: `places` must have the dtype of `b`, {b.dtype}, got {places.dtype}; use .to(b.dtype)"
        )
    _real(where, "target", target)
    if target.dim() != 2 or target.shape[1] != len(b):
        raise ValueError(f"{where}: `target` must be (n, {len(b)}) for {len(b)} columns, got {tuple(target.shape)}")
    _checks.length_scale(where, tau, b, _checks.SMALLEST_TAU_OF_SQUARES)
    _checks.batch_shape(where, places, b, tau)


def _check_weights(target: Tensor, b: Tensor, weight: object, moments: object) -> None:
    where, n, k = "laplex.reseat", len(target), len(b)
    if isinstance(weight, Tensor):
        _real(where, "weight", weight)
    elif weight is not None and (isinstance(weight, bool) or not isinstance(weight, numbers.Real)):
        raise TypeError(f"{where}: `weight` must be a number, a tensor or None, got {weight!r}; use torch.as_tensor")
    if isinstance(weight, Tensor) and tuple(weight.shape) not in ((), (n,)):
        raise ValueError(
            f"{where}: `weight` must be a number or ({n},), one for each row, got {tuple(weight.shape)}; use .reshape"
        )
    if moments is None:
        return
    _real(where, "moments", moments)
    if isinstance(moments, Tensor) and tuple(moments.shape) not in ((k,), (k, k)):
        raise ValueError(f"{where}: `moments` must be ({k},) or ({k}, {k}), got {tuple(moments.shape)}")


def _real(where: str, name: str, value: object) -> None:
    _checks.check_tensor(where, name, value)
    if isinstance(value, Tensor) and not value.is_floating_point():
        raise TypeError(f"{where}: `{name}` must be real and floating point, got {value.dtype}; call .float()")
