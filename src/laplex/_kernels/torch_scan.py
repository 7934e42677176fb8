"""The ordered scan in plain torch, on any device: the readable algorithm.

The state is float64, so float32 data loses nothing on the way.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import pad

from laplex import _checks, _ops
from laplex._shapes import flat, flat_rows
from laplex.errors import StalePlanError

CHUNK = 32  # by benchmarks/crossover.py; 2^20 sources are four levels of chunks


def plan(a: Tensor, b: Tensor, layout: str) -> _ops.Planned:
    """The order of a (h, n) and b (h, k), as ``_ops`` describes it."""
    a, b = a.contiguous(), b.contiguous()
    for name, anchors in (("a", a), ("b", b)):
        if not bool(torch.isfinite(anchors).all()):
            raise ValueError(_checks.not_finite("laplex", name))
    made = row_index, row_values, col_index, col_values = _ops.empty_plan(a, b, layout)
    row_kind, col_kind = _ops.SIDES[layout]
    a_sorted, b_sorted = _fill_order(a, row_index, row_kind), _fill_order(b, col_index, col_kind)
    _fill_counts(a_sorted, b_sorted, row_index, row_kind)
    _fill_counts(b_sorted, a_sorted, col_index, col_kind)
    if layout == "merged":
        row_values[:, 0], row_values[:, 1] = a, a_sorted
        col_values[:, 0], col_values[:, 1] = b, b_sorted
    return made


def replan(a: Tensor, b: Tensor, layout: str, old: _ops.Planned) -> _ops.Planned:
    """The plan for anchors that moved."""
    del old  # torch sorts from scratch
    return plan(a, b, layout)


def scan(
    x: Tensor,
    target: Tensor,
    source: Tensor,
    tau: Tensor,
    target_index: Tensor,
    target_values: Tensor,
    source_index: Tensor,
    source_values: Tensor,
    *,
    odd: bool,
) -> tuple[Tensor, Tensor]:
    """(E x, S x) for K(target, source): x (*X, k) -> (*X, n), and the second (*X, 0) unless ``odd``."""
    del target_values, source_values  # gathered anew: the check of the order comes with it
    wide = torch.float64
    if not bool(_checks.is_length(tau).all()):
        raise ValueError(_checks.bad_tau("laplex.linear", tau.tolist()))
    t, s = flat(target, 2).to(wide), flat(source, 2).to(wide)
    rate = (1 / tau).to(wide).reshape(-1, 1)
    sums = _collect if source_index.shape[-2] == 2 else _read
    left, tied, right = sums(flat_rows(x, tau).to(wide), t, s, rate, flat(target_index, 3), flat(source_index, 3))
    even = (left + tied + right).to(x.dtype).view(*x.shape[:-1], -1)
    return even, (right - left).to(x.dtype).view(even.shape) if odd else x.new_empty((*x.shape[:-1], 0))


def pullback(*arguments: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """x_bar, t_bar, s_bar for the cotangent g of E x, in one swapped scan; t_bar is (h, 0) without ``odd_x``."""
    return pullback_from(scan, *arguments)


def pullback_from(
    scan: Callable[..., tuple[Tensor, Tensor]],
    g: Tensor,
    x: Tensor,
    odd_x: Tensor,
    target: Tensor,
    source: Tensor,
    tau: Tensor,
    target_index: Tensor,
    target_values: Tensor,
    source_index: Tensor,
    source_values: Tensor,
) -> tuple[Tensor, Tensor, Tensor]:
    """The same for any ``scan``."""

    def row_sum(product: Tensor, anchors: Tensor) -> Tensor:
        return (flat_rows(product, tau).sum(1) / tau.reshape(-1, 1)).to(anchors.dtype)

    x_bar, odd_g = scan(g, source, target, tau, source_index, source_values, target_index, target_values, odd=True)
    wants_t = odd_x.shape[-1] > 0
    t_bar = row_sum(g * odd_x, target).view(target.shape) if wants_t else target.new_empty((*target.shape[:-1], 0))
    return x_bar, t_bar, row_sum(x * odd_g, source).view(source.shape)


def _read(
    x: Tensor, t: Tensor, s: Tensor, rate: Tensor, target_index: Tensor, source_index: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Scan the sorted sources, then read the states beside each target. Targets sorted (merged) or as they come."""
    *target_order, below, upto = target_index.long().unbind(1)  # order and rank, if the targets are sorted
    order = source_index[:, 0].long()
    t = t.gather(-1, target_order[0]) if target_order else t
    s, x = s.gather(-1, order), _take(x, order)
    from_left, from_right = _decayed_sums(s, x, rate), _decayed_sums(-s.flip(-1), x.flip(-1), rate).flip(-1)

    edge = torch.inf
    s_padded = pad(s, (1, 0), value=-edge), pad(s, (0, 1), value=edge)  # no source beyond the ends: decay 0
    left_gap = t - s_padded[0].gather(-1, below)
    right_gap = s_padded[1].gather(-1, upto) - t
    tie = below < upto
    tie_stands = (s_padded[1].gather(-1, below) == t) & (s_padded[0].gather(-1, upto) == t)
    holds = (left_gap > 0) & (right_gap > 0) & (tie == tie_stands)
    if not bool(holds.all() & _in_order(s)):
        raise StalePlanError(_checks.stale_plan("laplex.linear"))
    left = _take(pad(from_left, (1, 0)), below) * _decay(left_gap, rate)
    right = _take(pad(from_right, (0, 1)), upto) * _decay(right_gap, rate)
    tied = torch.where(tie[:, None], _take(pad(_group_sums(s, x), (0, 1)), below), 0.0)
    if target_order:
        return _put(left, target_order[0]), _put(tied, target_order[0]), _put(right, target_order[0])
    return left, tied, right


def _collect(
    x: Tensor, t: Tensor, s: Tensor, rate: Tensor, target_index: Tensor, source_index: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Sum many sources, as they come, into the intervals between few sorted targets, then scan the targets.

    A source between two targets gives to the right one (which it lies left of) and to the left one, each referred to
    that target, so no exponent is positive. A tied source gives to its target alone.
    """
    below, upto = source_index.long().unbind(1)
    order = target_index[:, 0].long()
    t = t.gather(-1, order)
    edges = pad(pad(t, (1, 0), value=-torch.inf), (0, 1), value=torch.inf)  # edges[q] is target q - 1
    tie = below < upto
    left_gap = s - edges.gather(-1, upto)  # to the target on the left; 0 at a tie
    right_gap = edges.gather(-1, below + 1) - s
    holds = (left_gap >= 0) & (right_gap >= 0) & (tie == (left_gap == 0)) & (tie == (right_gap == 0))
    holds &= (edges.gather(-1, below) < s) & (s < edges.gather(-1, upto + 1))
    if not bool(holds.all() & _in_order(t)):
        raise StalePlanError(_checks.stale_plan("laplex.linear"))
    apart = x * ~tie[:, None]
    into_left = _sum_into(apart * _decay(right_gap, rate), below, t.shape[-1] + 1)[..., :-1]
    into_right = _sum_into(apart * _decay(left_gap, rate), upto, t.shape[-1] + 1)[..., 1:]
    tied = _sum_into(x * tie[:, None], below, t.shape[-1] + 1)[..., :-1]
    # Target i has strictly on its left what went into intervals 0..i and the ties of the targets strictly below it.
    left = _decayed_sums(t, into_left, rate) + _strict_sums(t, tied, rate)
    right = _decayed_sums(-t.flip(-1), into_right.flip(-1), rate).flip(-1) + _strict_sums(
        -t.flip(-1), tied.flip(-1), rate
    ).flip(-1)
    return _put(left, order), _put(_group_sums(t, tied), order), _put(right, order)


def _decayed_sums(p: Tensor, v: Tensor, rate: Tensor) -> Tensor:
    """out_i = sum over j <= i of exp(-(p_i - p_j) rate) v_j, for p (h, k) in order, v (h, m, k).

    Chunks are scanned by doubling; their totals are scanned in turn, each at the position of its chunk's last point. A
    decay is always that of two positions, never a product of decays, and no exponent is positive.
    """
    k = p.shape[-1]
    if k > CHUNK:
        extra = -k % CHUNK
        p = torch.cat([p, p[:, -1:].expand(-1, extra)], -1).unflatten(-1, (-1, CHUNK))
        v = pad(v, (0, extra)).unflatten(-1, (-1, CHUNK))
    else:
        p, v = p[:, None, :], v[:, :, None, :]
    v = v.clone()
    step = 1
    while step < p.shape[-1]:
        decay = torch.exp((p[..., :-step] - p[..., step:]) * rate[..., None])
        v[..., step:] += decay[:, None] * v[..., :-step]  # the product is formed before the sum is written
        step *= 2
    if p.shape[1] > 1:
        ends = p[..., -1]
        carry = _decayed_sums(ends, v[..., -1], rate)
        decay = torch.exp((ends[:, :-1, None] - p[:, 1:]) * rate[..., None])
        v[:, :, 1:] += decay[:, None] * carry[..., :-1, None]
    return v.flatten(2)[..., :k]


def _strict_sums(p: Tensor, v: Tensor, rate: Tensor) -> Tensor:
    """The same over p_j < p_i only."""
    start = _group_starts(p)
    before = (start - 1).clamp(min=0)
    sums = _take(_decayed_sums(p, v, rate), before) * _decay(p - p.gather(-1, before), rate)
    return torch.where((start > 0)[:, None], sums, 0.0)


def _group_starts(p: Tensor) -> Tensor:
    """For p (h, k) in order: the first index of the run of equal values that each belongs to."""
    index = torch.arange(p.shape[-1], device=p.device).expand_as(p)
    return torch.where(pad(p[:, 1:] != p[:, :-1], (1, 0), value=True), index, 0).cummax(-1).values


def _group_sums(p: Tensor, v: Tensor) -> Tensor:
    """The sum of v over each run of equal p, at every member of the run."""
    start = _group_starts(p)
    return _take(_sum_into(v, start, p.shape[-1]), start)


def _fill_order(anchors: Tensor, index: Tensor, kind: str) -> Tensor:
    """The anchors as the index will have them: in order, or as they come on the long side."""
    if kind == "long":
        return anchors
    values, order = anchors.sort(dim=-1, stable=True)
    index[:, 0] = order
    if kind == "merged":
        index[:, 1] = order.argsort(-1)
    return values


def _fill_counts(anchors: Tensor, others: Tensor, index: Tensor, kind: str) -> None:
    if kind == "short":
        return
    index[:, -2] = torch.searchsorted(others, anchors, right=False)
    index[:, -1] = torch.searchsorted(others, anchors, right=True)


def _in_order(p: Tensor) -> Tensor:
    return (p[:, 1:] >= p[:, :-1]).all() & torch.isfinite(p).all()


def _decay(gap: Tensor, rate: Tensor) -> Tensor:
    return torch.exp(-gap * rate)[:, None]  # (h, 1, size)


def _take(v: Tensor, index: Tensor) -> Tensor:
    return v.gather(-1, index[:, None].expand(-1, v.shape[1], -1))


def _put(v: Tensor, order: Tensor) -> Tensor:
    return torch.empty_like(v).scatter_(-1, order[:, None].expand_as(v), v)


def _sum_into(v: Tensor, index: Tensor, size: int) -> Tensor:
    return v.new_zeros((*v.shape[:2], size)).scatter_add_(-1, index[:, None].expand_as(v), v)
