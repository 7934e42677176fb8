"""The exact rank of an unphased kernel matrix, from the order of its anchors alone."""

from __future__ import annotations

import torch
from torch import Tensor

from laplex import _checks
from laplex._shapes import flat, flat_anchors


def rank(a: Tensor, b: Tensor) -> int | Tensor:
    """The exact rank of K(a, b), unphased, whatever tau: O((n + k) log(n + k)), no matrix formed, no tolerance.

    exp(-|x - y|) is a single-pair kernel: a minor is non-zero just when its rows and columns, paired in order, span
    disjoint intervals. So the rank is the largest number of disjoint intervals with an a at one end and a b at the
    other (one point, where they tie), and taking the interval that ends first is best. Interlaced anchors give full
    rank; n = k independent ones about 2n/3.

    Args:
        a (*H, n), b (*H, k): anchors; equal ones count once.

    Returns:
        An int, or an int64 tensor of shape H for batched anchors.
    """
    _checks.anchor_pair("laplex.rank", a, b)
    batch = _checks.batch_shape("laplex.rank", a, b, 1.0)
    for name, anchors in (("a", a), ("b", b)):
        if not bool(torch.isfinite(anchors).all()):
            raise ValueError(_checks.not_finite("laplex.rank", name))
    rows, cols = (flat(flat_anchors(side.detach(), batch), 2) for side in (a, b))
    ranks = [_rank(row, col) for row, col in zip(rows, cols, strict=True)]
    return torch.tensor(ranks, dtype=torch.int64, device=a.device).reshape(batch) if batch else ranks[0]


def _rank(a: Tensor, b: Tensor) -> int:
    """One kernel. Each distinct position is an a, a b, or both; runs of one kind are what counts.

    Going right, an unpaired anchor waits (one is enough) until the other kind comes. A run of two or more of a kind
    leaves one waiting whatever came before; a run of one leaves one waiting just when none was. A tied position is a
    pair of its own and ends all waiting.
    """
    values = torch.cat([a, b]).unique()
    has_a, has_b = torch.isin(values, a), torch.isin(values, b)
    tied = has_a & has_b
    part = tied.cumsum(0)[~tied]  # runs do not reach over a tied position
    kind = has_a[~tied]
    if kind.numel() == 0:
        return int(tied.sum())
    part_starts = torch.cat([part.new_ones(1), part.diff()]) != 0
    starts = part_starts | (torch.cat([kind[:1], kind[:-1]]) != kind)
    first = starts.nonzero()[:, 0]
    length = torch.cat([first, first.new_tensor([kind.numel()])]).diff()
    opens = part_starts[first]  # nothing waits before the first run of a part
    run = torch.arange(first.numel(), device=a.device)
    sure = torch.where(opens | (length > 1), run, 0).cummax(0).values  # the last run after which one surely waits
    waits = (run - sure) % 2 == 0
    pairs = waits[:-1] & ~opens[1:]
    return int(tied.sum() + pairs.sum())
