r"""Weighted means with Laplace weights that never vanish: K(q, k) x divided by K(q, k) w, however far q is from k.

    y_i = sum over j of e^(-|q_i - k_j| / tau) x_j  /  sum over j of e^(-|q_i - k_j| / tau) w_j,          w_j >= 0

With x_j = w_j v_j it is a softmax over j of -|q_i - k_j| / tau, times v: attention with one number for every query and
key, or the regression of Nadaraya and Watson. Two products would do, were it not that both sums underflow for a query
hundreds of tau from all keys. So sums are kept at the keys, where those of w are at least w_j, and every query reads
them at its two neighbours, k_l <= q < k_r, with weights relative to the nearer of the two.

Reading
    Let u, v be the distances q - k_l and k_r - q over tau, m the smaller of them, and E(k_l), E(k_r) the sums of K x at
    the neighbours. Between two keys a sum of exponentials of both signs satisfies tau^2 E'' = E, so that

        e^m E(q) = (e^-(u - m) (1 - e^-2v) E(k_l)  +  e^-(v - m) (1 - e^-2u) E(k_r)) / (1 - e^-2(u + v))

    Both weights are positive, no exponent is, and one of the two is of size 1. For a query beyond the last key v is
    infinite: the weights are 1 and 0, and the query reads what it would read at that key.

Derivatives
    They need the sums from each side: from the left, L, and from the right, R, both with the key itself,

        L = (E - O + T) / 2        R = (E + O + T) / 2        O: the odd sums, T: those over equal keys
        e^m (left part of E(q)) = e^-(u - m) L(k_l)           e^m (right part) = e^-(v - m) R(k_r)

    The transpose goes the same way back: every query leaves its share at its two neighbours, and a scan of what lies
    there goes left from the k_l and right from the k_r. A key that equals the query counts in the sums, and has no
    derivative through |q - k|, as in the dense definition. Equal keys share one place in the sorted order, the last
    one, where their x are added up; then T is what lies there.

    (E - O) / 2 subtracts, but loses nothing: at k_l the sum of the right part is at most e^-u times that which the
    query itself reads from the right, so the rounding errors of E stay those of terms that are added in the end.

Keys of weight 0 are left out: nobody reads at them. Where all weights are 0, the mean is 0 and has no derivatives.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from laplex import _backends
from laplex._plan import planned_matrix
from laplex._scan.autograd import bars_through, builds_graph, scan
from laplex._scan.order import Matrix


class Places(NamedTuple):
    """Where keys and queries are in the sorted order of the keys. Distances are in float64, which holds them exactly.

    A neighbour that does not exist is infinitely far away, and its slot is any other.
    """

    ordered: Tensor  # (h, k) the keys, sorted
    slots: Tensor  # (h, k) the slot of every key; equal keys share the last one of theirs
    left: Tensor  # (h, n) the slot of the last key up to every query
    right: Tensor  # (h, n) the slot of the first key beyond
    nearest: Tensor  # (h, n) the distance to the nearer of both
    below: Tensor  # (h, n) that to the left one
    above: Tensor  # (h, n) that to the right one


def weighted_means(x: Tensor, weight: Tensor | None, queries: Tensor, keys: Tensor, tau: Tensor) -> Tensor:
    """(K x) / (K weight), as above: x (h, k, c), weight (h, k), queries (h, n), keys (h, k), tau (h,) -> (h, n, c).

    Differentiable to any order in all of them. Where a weight is 0, x and the key do not matter and have no gradient,
    nor has the weight. x, the weights, queries and keys are in float32 or float64, and tau is in float64. k is at
    least 1.
    """
    if weight is None:
        weight = torch.ones_like(x[..., 0])
    else:
        x, keys = _without_absent(x, weight, keys)
    inputs = x, weight, queries, keys, tau
    if torch.compiler.is_compiling():
        return _Means.apply(*inputs)  # type: ignore[no-any-return]
    if torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0:
        return transparent_means(*inputs)
    return _Means.apply(*inputs)  # type: ignore[no-any-return]


def _without_absent(x: Tensor, weight: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
    """x and keys where keys of weight 0 have no x, and lie where another key is, so that nobody reads at them."""
    present = weight > 0
    highest = keys.detach().masked_fill(~present, -torch.inf).amax(-1, keepdim=True)
    keys = torch.where(present, keys, torch.where(highest.isfinite(), highest, 0.0))
    return torch.where(present[..., None], x, 0.0), keys


class _Means(torch.autograd.Function):
    """Reverse mode in few passes; derivatives of derivatives are those of ``transparent_means``."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, queries: Tensor, keys: Tensor, tau: Tensor) -> Tensor:
        places = find_places(queries, keys)
        masses = collected(torch.cat([x, weight[..., None]], -1), places.slots, keys.shape[-1])
        even, _ = scan(masses.mT, symmetric(places.ordered, tau), odd=False)
        return _mean(_read_between(even.mT, places, tau))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs, output)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, means = ctx.saved_tensors
        needed = ctx.needs_input_grad
        if builds_graph():
            return tuple(bars_through(transparent_means, tuple(inputs), g, needed))
        return _bars(g, means, *inputs, to_tau=needed[4])


def _bars(
    g: Tensor, means: Tensor, x: Tensor, weight: Tensor, queries: Tensor, keys: Tensor, tau: Tensor, *, to_tau: bool
) -> tuple[Tensor | None, ...]:
    """The gradients of x, weight, queries, keys and tau."""
    places, per_tau = find_places(queries, keys), 1 / tau[:, None]
    rows = torch.cat([x, weight[..., None]], -1)  # (h, k, c + 1)
    masses = collected(rows, places.slots, keys.shape[-1])
    matrix = symmetric(places.ordered, tau)
    from_left, from_right = _one_sided(masses, matrix)
    near, far = (decays.to(x.dtype)[..., None] for decays in _decays(places, tau))
    lefts, rights = near * rows_at(from_left, places.left), far * rows_at(from_right, places.right)
    total = (lefts + rights)[..., -1:]
    pulls = torch.cat([g, -(g * means).sum(-1, keepdim=True)], -1)  # of the numerator, and of the denominator
    pulls = torch.where(total == 0, 0.0, pulls / total)
    left_pull, right_pull = (pulls * lefts).sum(-1), (pulls * rights).sum(-1)
    tied = places.below == 0
    tied_pull = torch.where(tied, (pulls * near * rows_at(masses, places.left)).sum(-1), 0.0)
    queries_bar = (right_pull - left_pull + tied_pull) * per_tau
    tau_bar = None
    if to_tau:
        stretch = _stretched(masses, matrix, places, (near, far), pulls)
        stretch = stretch + _finite(places.below - places.nearest) * per_tau * left_pull
        stretch = stretch + _finite(places.above - places.nearest) * per_tau * right_pull
        tau_bar = stretch.sum(-1, dtype=torch.float64) / tau
    even, odd = _transposed(pulls, places, matrix, (near, far), tied)
    rows_bar = rows_at(even, places.slots)
    keys_bar = -(rows * rows_at(odd, places.slots)).sum(-1) * per_tau
    return rows_bar[..., :-1], rows_bar[..., -1], queries_bar.to(queries.dtype), keys_bar.to(keys.dtype), tau_bar


def _stretched(masses: Tensor, matrix: Matrix, places: Places, decays: tuple[Tensor, Tensor], pulls: Tensor) -> Tensor:
    """The pull on sums weighted by the distance of every key to the query's neighbour, over tau, (h, n)."""
    even, odd = scan(masses.mT, matrix, odd=True, degree=1)
    lefts, rights = (even - odd).mT / 2, (even + odd).mT / 2
    near, far = decays
    stretched = near * rows_at(lefts, places.left) + far * rows_at(rights, places.right)
    return (pulls * stretched).sum(-1)


def _transposed(
    pulls: Tensor, places: Places, matrix: Matrix, decays: tuple[Tensor, Tensor], tied: Tensor
) -> tuple[Tensor, Tensor]:
    """The even and the odd sums of pulls (h, n, c) at the keys, in sorted order, (h, k, c)."""
    k, c = matrix.source.shape[-1], pulls.shape[-1]
    near, far = decays
    at_left = collected(near * pulls, places.left, k)
    at_right = collected(far * pulls, places.right, k)
    ties = collected(torch.where(tied[..., None], near * pulls, 0.0), places.left, k)
    even, odd = (sums.mT for sums in scan(torch.cat([at_left, at_right], -1).mT, matrix, odd=True))
    going_left = (even[..., :c] + odd[..., :c] + at_left) / 2
    going_right = (even[..., c:] - odd[..., c:] + at_right) / 2
    return going_right + going_left, going_right - (going_left - ties)


def transparent_means(x: Tensor, weight: Tensor, queries: Tensor, keys: Tensor, tau: Tensor) -> Tensor:
    """The same as ``weighted_means``, composed of what autograd differentiates to any order, in float64.

    Places are constants. A key that moves by s scales its x by e^(s / tau) for queries on its right, and by
    e^(-s / tau) for those on its left; here s is 0, and only its derivatives matter.
    """
    places = find_places(queries.detach(), keys.detach())
    shift = ((keys - keys.detach()) / tau[:, None])[..., None]
    rows = torch.cat([x, weight[..., None]], -1).double()
    k, c = keys.shape[-1], rows.shape[-1]
    rising, falling, still = (
        collected(part, places.slots, k) for part in (rows * torch.exp(shift), rows * torch.exp(-shift), rows)
    )
    both = torch.cat([rising, falling], -1).mT
    even, odd = (sums.double().mT for sums in scan(both, symmetric(places.ordered, tau), odd=True))
    before = (even[..., :c] - odd[..., :c] - rising) / 2  # from the left, without the key itself
    after = (even[..., c:] + odd[..., c:] + falling) / 2
    moved = (queries - queries.detach()) / tau[:, None]
    near, far = _decays(places, tau)
    near, far = (near * torch.exp(-moved))[..., None], (far * torch.exp(moved))[..., None]
    tied = (places.below == 0)[..., None]
    own = torch.where(tied, rows_at(still, places.left), near * rows_at(rising, places.left))
    return _mean(near * rows_at(before, places.left) + own + far * rows_at(after, places.right)).to(x.dtype)


def find_places(queries: Tensor, keys: Tensor) -> Places:
    """Where queries (h, n) and keys (h, k) are."""
    queries, keys = queries.contiguous(), keys.contiguous()
    ordered, last = keys.sort(-1).values, keys.shape[-1] - 1

    def slot(values: Tensor) -> Tensor:
        return torch.searchsorted(ordered, values, right=True) - 1

    left = slot(queries)
    right = slot(ordered.gather(-1, (left + 1).clamp(max=last)))
    low, high = ordered.gather(-1, left.clamp(min=0)), ordered.gather(-1, right)
    below = torch.where(left >= 0, queries.double() - low.double(), torch.inf)
    above = torch.where(left < last, high.double() - queries.double(), torch.inf)
    nearest = torch.minimum(below, above)
    return Places(ordered, slot(keys), left.clamp(min=0), right, nearest, below, above)


def symmetric(ordered: Tensor, tau: Tensor) -> Matrix:
    """K(k, k) for keys (h, k) and tau (h,)."""
    table = _backends.choose(ordered.device, ordered.shape[-1], ordered.shape[-1], None)
    return planned_matrix("laplex", (ordered, ordered), tau, tuple(ordered.shape[:1]), None, (table, None))


def collected(rows: Tensor, slots: Tensor, k: int) -> Tensor:
    """Rows (h, n, c) added up in the slots (h, n) of k: (h, k, c). The same bits every time, on a GPU, too."""
    h, _, c = rows.shape
    flat, sums = _flat(slots, k), rows.new_zeros(h * k, c)
    if rows.device.type == "cpu":  # the faster one there, and always in the same order
        return sums.index_add(0, flat, rows.reshape(-1, c)).reshape(h, k, c)
    return sums.index_put((flat,), rows.reshape(-1, c), accumulate=True).reshape(h, k, c)


def rows_at(table: Tensor, slots: Tensor) -> Tensor:
    """The rows of a table (h, k, c) in slots (h, n): (h, n, c)."""
    h, k, c = table.shape
    return table.reshape(h * k, c).index_select(0, _flat(slots, k)).reshape(*slots.shape, c)


def _flat(slots: Tensor, k: int) -> Tensor:
    first = k * torch.arange(slots.shape[0], device=slots.device)
    return (slots + first[:, None]).reshape(-1)


def _decays(places: Places, tau: Tensor) -> tuple[Tensor, Tensor]:
    """e^-(u - m) and e^-(v - m), (h, n), in float64."""
    beyond = (places.below - places.nearest, places.above - places.nearest)
    near, far = (
        torch.where(distance < torch.inf, torch.exp(-_finite(distance) / tau[:, None]), 0.0) for distance in beyond
    )
    return near, far


def _read_between(sums: Tensor, places: Places, tau: Tensor) -> Tensor:
    """e^m times the sums at the queries, (h, n, c), of those at the keys, (h, k, c)."""
    near, far = _decays(places, tau)
    rate = -2 / tau[:, None]
    gap = torch.expm1(rate * (places.below + places.above))
    near = near * (torch.expm1(rate * places.above) / gap)
    far = far * (torch.expm1(rate * places.below) / gap)
    near, far = (share.to(sums.dtype)[..., None] for share in (near, far))
    return near * rows_at(sums, places.left) + far * rows_at(sums, places.right)


def _one_sided(masses: Tensor, matrix: Matrix) -> tuple[Tensor, Tensor]:
    """L and R of masses (h, k, c), with what lies at the key itself."""
    even, odd = (sums.mT for sums in scan(masses.mT, matrix, odd=True))
    return (even - odd + masses) / 2, (even + odd + masses) / 2


def _mean(sums: Tensor) -> Tensor:
    """All channels over the last one; 0 where that is 0."""
    total = sums[..., -1:]
    empty = total == 0  # not where it is NaN, which stays
    return torch.where(empty, 0.0, sums[..., :-1] / torch.where(empty, 1.0, total))


def _finite(distance: Tensor) -> Tensor:
    return torch.where(distance < torch.inf, distance, 0.0)
