"""The ordered scan in plain torch, on any device: the readable algorithm. ``laplex._scan`` has the mathematics.

States are (degree + 1, h, m, points) in float64: v, and for degree 1 also p. Float32 data is rounded once, at the end.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import pad

from laplex import _checks
from laplex._errors import StalePlanError
from laplex._scan.order import Matrix, Order, Side, empty_order
from laplex._shapes import flat, flat_rows

BEYOND = 1e3  # for u >= 1e3, exp(-u) and u exp(-u) are 0 in float64; larger u are clamped, as u v may overflow
CHUNK = 32  # points, chosen by benchmarks/studies/crossover.py; 2^20 sources have four levels of chunks


def order(a: Tensor, b: Tensor, layout: str) -> Order:
    """The order of a (*H, n) and b (*H, k)."""
    a, b = flat(a, 2).contiguous(), flat(b, 2).contiguous()
    for name, anchors in (("a", a), ("b", b)):
        if not bool(torch.isfinite(anchors).all()):
            raise ValueError(_checks.not_finite("laplex", name))
    filled = empty_order(a, b, layout)
    rows, cols = filled.target, filled.source
    a_sorted, b_sorted = _fill_order(a, rows), _fill_order(b, cols)
    _fill_counts(a_sorted, b_sorted, rows)
    _fill_counts(b_sorted, a_sorted, cols)
    for side, anchors, in_order in ((rows, a, a_sorted), (cols, b, b_sorted)):
        if side.kind == "sorted":
            side.values[:, 0], side.values[:, 1] = anchors, in_order
    return filled


def scan(x: Tensor, matrix: Matrix, *, odd: bool, degree: int = 0) -> tuple[Tensor, Tensor]:
    """(E x, S x): x (*X, k) -> (*X, n), and the second (*X, 0) unless ``odd``."""
    wide = torch.float64
    if not bool(_checks.is_length(matrix.tau).all()):
        raise ValueError(_checks.bad_tau("laplex.linear", matrix.tau))
    t, s = flat(matrix.target, 2).to(wide), flat(matrix.source, 2).to(wide)
    rate = (1 / matrix.tau).to(wide).reshape(-1, 1)
    targets, sources = matrix.order.target, matrix.order.source
    sums = _collect if sources.kind == "long" else _read
    states = flat_rows(x, matrix.tau).to(wide)[None]
    if degree:
        states = torch.cat([states, torch.zeros_like(states)])
    # The copies of the anchors in the order are not used: anchors are gathered again, and the order is checked.
    left, tied, right = sums(states, t, s, rate, flat(targets.indices, 3), flat(sources.indices, 3))
    even = (left + tied + right).to(x.dtype).view(*x.shape[:-1], -1)
    return even, (right - left).to(x.dtype).view(even.shape) if odd else x.new_empty((*x.shape[:-1], 0))


def pullback_by(
    scan: Callable[..., tuple[Tensor, Tensor]], g: Tensor, x: Tensor, odd_x: Tensor, matrix: Matrix, *, to_tau: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x_bar, t_bar, s_bar, tau_bar for the cotangent g of E x, by any backend's ``scan``, given odd_x = S x.

    ``autograd`` derives them. If odd_x is empty, t_bar is (*H, 0). Without ``to_tau``, tau_bar is (0,).
    """
    target, source, tau = matrix[:3]

    def row_sum(product: Tensor, anchors: Tensor) -> Tensor:
        return (flat_rows(product, tau).sum(1) / tau.reshape(-1, 1)).to(anchors.dtype).view(anchors.shape)

    x_bar, odd_g = scan(g, matrix.mT, odd=True)
    t_bar = row_sum(g * odd_x, target) if odd_x.shape[-1] > 0 else target.new_empty((*target.shape[:-1], 0))
    tau_bar = tau.new_empty(0)
    if to_tau:
        stretch = x.double() * scan(g.double(), matrix.mT, odd=False, degree=1)[0]
        tau_bar = flat_rows(stretch, tau).sum((1, 2)).view(tau.shape) / tau
    return x_bar, t_bar, row_sum(x * odd_g, source), tau_bar


pullback = functools.partial(pullback_by, scan)


def _read(
    states: Tensor, t: Tensor, s: Tensor, rate: Tensor, target_index: Tensor, source_index: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Scan the sorted sources; every target then reads its two neighbours. Targets need not be sorted."""
    *target_order, below, upto = target_index.long().unbind(1)  # order and rank first, if the targets are sorted
    order = source_index[:, 0].long()
    t = t.gather(-1, target_order[0]) if target_order else t
    s, states = s.gather(-1, order), _take(states, order)
    from_left, from_right = _running(s, states, rate), _running(-s.flip(-1), states.flip(-1), rate).flip(-1)

    edge = torch.inf
    s_padded = pad(s, (1, 0), value=-edge), pad(s, (0, 1), value=edge)  # a source at infinity has decay 0
    left_gap = t - s_padded[0].gather(-1, below)
    right_gap = s_padded[1].gather(-1, upto) - t
    tie = below < upto
    still_tied = (s_padded[1].gather(-1, below) == t) & (s_padded[0].gather(-1, upto) == t)
    valid = (left_gap > 0) & (right_gap > 0) & (tie == still_tied)
    if not bool(valid.all() & _in_order(s)):
        raise StalePlanError(_checks.stale_plan("laplex.linear"))
    left = _carried(_take(pad(from_left, (1, 0)), below), left_gap * rate)[-1]
    right = _carried(_take(pad(from_right, (0, 1)), upto), right_gap * rate)[-1]
    tied = torch.where(tie[:, None], _take(pad(_group_sums(s, states[-1]), (0, 1)), below), 0.0)
    if target_order:
        return _put(left, target_order[0]), _put(tied, target_order[0]), _put(right, target_order[0])
    return left, tied, right


def _collect(
    states: Tensor, t: Tensor, s: Tensor, rate: Tensor, target_index: Tensor, source_index: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Sum many sources, in the caller's order, into the intervals between few sorted targets; then scan the targets.

    A source between two targets is added to both, each time with its decay up to that target, so no exponent is
    positive. A tied source is added to its own target only.
    """
    below, upto = source_index.long().unbind(1)
    order = target_index[:, 0].long()
    t = t.gather(-1, order)
    edges = pad(pad(t, (1, 0), value=-torch.inf), (0, 1), value=torch.inf)  # edges[q] is target q - 1
    tie = below < upto
    left_gap = s - edges.gather(-1, upto)  # to the nearest target on the left, or at the same position
    right_gap = edges.gather(-1, below + 1) - s
    valid = (left_gap >= 0) & (right_gap >= 0) & (tie == (left_gap == 0)) & (tie == (right_gap == 0))
    valid &= (edges.gather(-1, below) < s) & (s < edges.gather(-1, upto + 1))
    if not bool(valid.all() & _in_order(t)):
        raise StalePlanError(_checks.stale_plan("laplex.linear"))
    apart = states * ~tie[:, None]
    into_left = _sum_into(_carried(apart, right_gap * rate), below, t.shape[-1] + 1)[..., :-1]
    into_right = _sum_into(_carried(apart, left_gap * rate), upto, t.shape[-1] + 1)[..., 1:]
    tied = _sum_into(states * tie[:, None], below, t.shape[-1] + 1)[..., :-1]
    # Strictly left of target i are the sources in intervals 0..i, and those tied with targets strictly below it.
    left = _running(t, into_left, rate) + _running_before(t, tied, rate)
    mirrored = -t.flip(-1)
    right = _running(mirrored, into_right.flip(-1), rate) + _running_before(mirrored, tied.flip(-1), rate)
    return _put(left[-1], order), _put(_group_sums(t, tied[-1]), order), _put(right.flip(-1)[-1], order)


def _carried(states: Tensor, u: Tensor) -> Tensor:
    """Move states (degree + 1, h, m, ...) over gaps of u = gap / tau, (h, ...): (v, p) -> exp(-u) (v, p + u v)."""
    u = u.clamp(max=BEYOND)[:, None]
    decay = torch.exp(-u)
    if states.shape[0] == 1:
        return decay * states
    v, p = states.unbind(0)
    return torch.stack([decay * v, decay * (p + u * v)])


def _running(p: Tensor, states: Tensor, rate: Tensor) -> Tensor:
    """The prefix scan of states (degree + 1, h, m, k) at sorted positions p (h, k).

    Every chunk is scanned by doubling. Then the chunks' totals, each at the position of its chunk's last point, are
    scanned in the same way and added to the chunks that follow. Decays are exponentials of differences of positions.
    """
    k = p.shape[-1]
    if k > CHUNK:
        extra = -k % CHUNK
        p = torch.cat([p, p[:, -1:].expand(-1, extra)], -1)
        states = pad(states, (0, extra))
    width = min(p.shape[-1], CHUNK)
    p = p.unflatten(-1, (-1, width))  # (h, chunks, width)
    states = states.unflatten(-1, (-1, width)).clone()  # (degree + 1, h, m, chunks, width)
    rate = rate[..., None]
    step = 1
    while step < width:
        gap = p[..., step:] - p[..., :-step]
        states[..., step:] += _carried(states[..., :-step], gap * rate)  # all states are read before any is written
        step *= 2
    if p.shape[1] > 1:
        ends = p[..., -1]
        totals = _running(ends, states[..., -1], rate[..., 0])[..., :-1, None]
        states[..., 1:, :] += _carried(totals, (p[:, 1:] - ends[:, :-1, None]) * rate)
    return states.flatten(3)[..., :k]


def _running_before(p: Tensor, states: Tensor, rate: Tensor) -> Tensor:
    """The prefix scan at the last point strictly before each, moved to the point; 0 where there is none."""
    start = _group_starts(p)
    before = (start - 1).clamp(min=0)
    carried = _carried(_take(_running(p, states, rate), before), (p - p.gather(-1, before)) * rate)
    return torch.where((start > 0)[:, None], carried, 0.0)


def _group_starts(p: Tensor) -> Tensor:
    """For sorted p (h, k): the index at which each point's run of equal values starts."""
    index = torch.arange(p.shape[-1], device=p.device).expand_as(p)
    return torch.where(pad(p[:, 1:] != p[:, :-1], (1, 0), value=True), index, 0).cummax(-1).values


def _group_sums(p: Tensor, v: Tensor) -> Tensor:
    """The sum of v over each run of equal p, at every member of the run."""
    start = _group_starts(p)
    return _take(_sum_into(v, start, p.shape[-1]), start)


def _fill_order(anchors: Tensor, side: Side) -> Tensor:
    """Fill the order of a side that is sorted. Returns the anchors sorted, or on a long side as given."""
    if side.kind == "long":
        return anchors
    values, order = anchors.sort(dim=-1, stable=True)
    side.indices[:, 0] = order
    if side.kind == "sorted":
        side.indices[:, 1] = order.argsort(-1)
    return values


def _fill_counts(anchors: Tensor, others: Tensor, side: Side) -> None:
    """Fill below and upto: how many of the sorted ``others`` are < and <= each anchor. A short side has neither."""
    if side.kind == "short":
        return
    side.indices[:, -2] = torch.searchsorted(others, anchors, right=False)
    side.indices[:, -1] = torch.searchsorted(others, anchors, right=True)


def _in_order(p: Tensor) -> Tensor:
    """Whether p (h, k) is sorted and finite, as a tensor of one bool."""
    return (p[:, 1:] >= p[:, :-1]).all() & torch.isfinite(p).all()


def _take(v: Tensor, index: Tensor) -> Tensor:
    """v (..., h, m, size) at index (h, count)."""
    return v.gather(-1, index[:, None].expand(*v.shape[:-1], -1))


def _put(v: Tensor, order: Tensor) -> Tensor:
    """v (h, m, n), given in sorted order, in the caller's order."""
    return torch.empty_like(v).scatter_(-1, order[:, None].expand_as(v), v)


def _sum_into(v: Tensor, index: Tensor, size: int) -> Tensor:
    """(..., h, m, size): v (..., h, m, count) summed into the places index (h, count)."""
    return v.new_zeros((*v.shape[:-1], size)).scatter_add_(-1, index[:, None].expand_as(v), v)
