"""Parallel scans in plain torch: the compositions of all maps up to every point, in about 2 log2(n) rounds.

Every function here is made of differentiable operations without writes in place, so autograd, forward mode, vmap and
torch.compile see through it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from laplex._small import product

Maps = tuple[Tensor, ...]  # each (h, n, ...): one map per point
Compose = Callable[[Maps, Maps], Maps]  # (first, second) -> the map that applies first, then second


def prefixes(compose: Compose, maps: Maps) -> Maps:
    """For every point i, the composition of maps 0 .. i.

    Neighbours are composed to pairs, and the prefixes of the pairs, found in the same way, are those of the odd points.
    One more composition gives those of the even points.
    """
    n = maps[0].shape[1]
    if n < 2:
        return maps
    even, odd = tuple(part[:, 0::2] for part in maps), tuple(part[:, 1::2] for part in maps)
    up_to_odd = prefixes(compose, compose(tuple(_first(n // 2, part) for part in even), odd))
    earlier = tuple(_first((n - 1) // 2, part) for part in up_to_odd)
    up_to_even = compose(earlier, tuple(part[:, 1:] for part in even))
    return tuple(
        _interleaved(torch.cat([_first(1, part), evens], 1), odds)
        for part, evens, odds in zip(even, up_to_even, up_to_odd, strict=True)
    )


def compose_states(one: Maps, two: Maps) -> Maps:
    """Of maps S -> X + F S (I - G S)^-1 F^T, each given as (F, G, X)."""
    (f1, g1, x1), (f2, g2, x2) = one, two
    unit = torch.eye(x1.shape[-1], dtype=x1.dtype, device=x1.device)
    between = _inverse(unit - product(x1, g2))
    through = product(f2, between)
    return (
        product(through, f1),
        g1 + product(product(f1.mT, product(g2, between)), f1),
        x2 + product(product(through, x1), f2.mT),
    )


def compose_vectors(one: Maps, two: Maps) -> Maps:
    """Of maps f -> F f + u, each given as (F, u)."""
    return product(two[0], one[0]), product(two[0], one[1]) + two[1]


def compose_matrices(one: Maps, two: Maps) -> Maps:
    """Of maps Z -> F Z F^T + X, each given as (F, X)."""
    return product(two[0], one[0]), product(product(two[0], one[1]), two[0].mT) + two[1]


def previous(states: Tensor) -> Tensor:
    """States (h, n, ...) of the point before every point; 0 for the first."""
    return torch.cat([torch.zeros_like(states[:, :1]), states[:, :-1]], 1)


def following(states: Tensor) -> Tensor:
    """States (h, n, ...) of the point after every point; 0 for the last."""
    return torch.cat([states[:, 1:], torch.zeros_like(states[:, :1])], 1)


def _first(count: int, maps: Tensor) -> Tensor:
    """The first maps of (h, n, ...). By narrow: under is_grads_batched a slice that covers everything fails."""
    return maps.narrow(1, 0, count)


def _inverse(matrices: Tensor) -> Tensor:
    """The inverses of (..., s, s); not finite, and no error, if singular. Libraries are slow with very small ones."""
    size = matrices.shape[-1]
    if size == 1:
        return 1 / matrices
    if size == 2:
        a, b, c, d = matrices.flatten(-2).unbind(-1)
        turned: Tensor = torch.stack([d, -b, -c, a], -1) / (a * d - b * c)[..., None]
        return turned.reshape(matrices.shape)
    inverse: Tensor = torch.linalg.inv_ex(matrices).inverse
    return inverse


def _interleaved(even: Tensor, odd: Tensor) -> Tensor:
    """The rows of dimension 1 in turn; ``even`` may have one more."""
    count = odd.shape[1]
    pairs = torch.stack([_first(count, even), odd], 2).reshape(odd.shape[0], 2 * count, *odd.shape[2:])
    return pairs if even.shape[1] == odd.shape[1] else torch.cat([pairs, even[:, -1:]], 1)
