"""M = K diag(w) K^T from sums over the columns, and back: what all backends have in common. ``laplex._gram`` has the
formulas."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor

from laplex import _checks
from laplex._errors import StalePlanError
from laplex._scan.order import Matrix

ENDLESS = 1e308  # a tau at which nothing decays; near the largest number, because anchors may be as large
HUGE = 2.0**512  # larger weights are divided by it first, so that nothing overflows


class Columns(NamedTuple):
    """What a Gram matrix is made of besides the anchors, in float64."""

    weight: Tensor  # (h, m, channels, k)
    direction: Tensor  # (h, 2, n), or (h, 0, n) without phases


class Pulled(NamedTuple):
    """What the cotangent of M pulls with at every row anchor, split; see :func:`pulls`."""

    at_left: Tensor  # (h, m, channels, n), at U
    at_right: Tensor  # (h, m, channels, n), at V
    at_anchor: Tensor  # (h, m, 1, n)
    at_decay: Tensor  # (h, m, 1, n)
    at_direction: Tensor  # (h, m, 2 or 0, n)


def gram(columns: Columns, matrix: Matrix, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """M (h, m, n, n) in a dtype, and the sums it is made of."""
    tau, smallest = matrix.tau, _checks.SMALLEST_TAU_OF_SQUARES
    table = matrix.backend
    if not tau.is_cuda and table.raises and not bool(_checks.is_length(tau, smallest).all()):
        raise ValueError(_checks.bad_tau("laplex.gram", tau, smallest))
    with _as_gram():
        sums = _sums(columns.weight, matrix)
    return table.gram.assemble(sums, columns.direction, matrix.target.double(), tau, dtype), sums


def pullback(
    g: Tensor, sums: Tensor, columns: Columns, matrix: Matrix, *, to_source: bool, to_tau: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """weight_bar, direction_bar, t_bar, s_bar, tau_bar in float64; empty where not requested."""
    (weight, direction), tau = columns, matrix.tau
    parts = matrix.backend.gram.pull(g, sums, direction, matrix.target.double(), tau)
    pulled = Pulled(*parts.split_with_sizes(pulls(sums.shape[2]), 2))
    t_bar, direction_bar = pulled.at_anchor[:, :, 0].sum(1) / tau[:, None], pulled.at_direction.sum(1)
    weight_bar, s_bar, tau_bar = weight.new_empty(0), weight.new_empty(0), weight.new_empty(0)
    if to_source:
        weight_bar, s_bar = _to_source(pulled, weight, matrix)
    if to_tau:
        with _as_gram():
            left, right = _sides(weight, matrix, 1).unbind(3)
        tau_bar = (pulled.at_left * left + pulled.at_right * right).sum((1, 2, 3)) + pulled.at_decay.sum((1, 2, 3))
        tau_bar = tau_bar / tau
    return weight_bar, direction_bar, t_bar, s_bar, tau_bar


def _to_source(pulled: Pulled, weight: Tensor, matrix: Matrix) -> tuple[Tensor, Tensor]:
    """weight_bar and s_bar."""
    h, m, channels, _ = weight.shape
    both, apart = pulled.at_left + pulled.at_right, pulled.at_left - pulled.at_right
    transposed, tau = matrix.mT, matrix.tau
    with _as_gram():
        rows = torch.stack([both, apart], 1).flatten(1, 3)
        even, odd = _scan(rows, transposed._replace(tau=tau / 2))
        _, endless = _scan(apart.flatten(1, 2), transposed._replace(tau=_endless(tau)))
    (even_both, even_apart), (odd_both, odd_apart) = (
        part.view(h, 2, m, channels, -1).unbind(1) for part in (even, odd)
    )
    weight_bar = (even_both + odd_apart - _inside(endless.view(weight.shape), matrix.target, matrix.source)) / 2
    return weight_bar, (weight * (even_apart + odd_both)).sum((1, 2)) / tau[:, None]


def pulls(channels: int) -> list[int]:
    """How many numbers a cotangent pulls with at each anchor: at U and V of every channel, at a, at D, at cos and sin.

    A backend divides those at D among the two anchors of a pair as it likes: only their sum has a meaning.
    """
    return [channels, channels, 1, 1, 0 if channels == 1 else 2]


def exact_parts(weight: Tensor) -> Tensor:
    """(..., k) -> (..., 2, k): a high and a low part. Sums of up to k parts of one kind are exact in float64."""
    if weight.numel() == 0:
        return weight.new_zeros((*weight.shape[:-1], 2, weight.shape[-1]))
    room = 4 * weight.shape[-1]
    largest = weight.detach().abs().amax(-1, keepdim=True)
    unit = torch.ones_like(largest).masked_fill(largest > HUGE, HUGE)  # without it ``coarse`` may overflow
    weight, coarse = weight / unit, room * (largest / unit)
    high = (weight + coarse) - coarse  # multiples of half an ulp of ``coarse``, whose sums stay below 2^53 of them
    fine = coarse * (room * 2.0**-52)
    return torch.stack([high, (weight - high + fine) - fine], -2) * unit[..., None]


def _sums(weight: Tensor, matrix: Matrix) -> Tensor:
    h, k = weight.shape[0], weight.shape[-1]
    sides = _sides(weight, matrix, 0)
    parts = exact_parts(weight).view(h, -1, k)
    _, endless = _scan(parts, matrix._replace(tau=_endless(matrix.tau)))
    return torch.cat([sides, -endless.view(sides.shape) / 2], 3)


def _sides(weight: Tensor, matrix: Matrix, degree: int) -> Tensor:
    """U and V, or of degree 1 U_1 and V_1, (h, m, channels, 2, n)."""
    h, m, channels, k = weight.shape
    even, odd = _scan(weight.view(h, -1, k), matrix._replace(tau=matrix.tau / 2), degree)
    return torch.stack([even - odd, even + odd], 2).view(h, m, channels, 2, -1) / 2


def _scan(x: Tensor, matrix: Matrix, degree: int = 0) -> tuple[Tensor, Tensor]:
    """Even and odd sums, by the backend; autograd does not look in here."""
    return matrix.backend.scan(x, matrix, odd=True, degree=degree)


def _endless(tau: Tensor) -> Tensor:
    return torch.full_like(tau, ENDLESS)


def _inside(sums: Tensor, target: Tensor, source: Tensor) -> Tensor:
    """The sums of sources between the outermost targets, and 0 for the others."""
    inside = (source >= target.amin(-1, keepdim=True)) & (source <= target.amax(-1, keepdim=True))
    return torch.where(inside[:, None, None], sums, 0.0)


@contextmanager
def _as_gram() -> Iterator[None]:
    """Faults that the scan finds are reported under the name of the function that the user called."""
    try:
        yield
    except (ValueError, StalePlanError) as error:
        raise type(error)(str(error).replace("laplex.linear", "laplex.gram")) from None
