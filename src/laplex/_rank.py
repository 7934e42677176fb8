"""The exact rank of a kernel matrix without phases; only the order of the anchors matters."""

from __future__ import annotations

import torch
from torch import Tensor

from laplex import _checks
from laplex._shapes import flat, flat_anchors


def rank(a: Tensor, b: Tensor) -> int | Tensor:
    """The exact rank of K(a, b) without phases, in O((n + k) log(n + k)), with no matrix and no tolerance.

    The rank is the same for every tau. exp(-|x - y|) is a single-pair kernel (Gantmacher and Krein): pair the rows and
    the columns of a minor in ascending order, and take the interval between the two anchors of each pair; the minor is
    non-zero just when these intervals are disjoint. So the rank is the largest number of disjoint intervals with an a
    at one end and a b at the other; an a that equals a b is an interval of one point. To choose, from left to right,
    the interval that ends first gives the largest number. Anchors a and b that alternate give full rank; n = k anchors
    drawn independently give about 2n/3.

    Args:
        a (*H, n), b (*H, k): anchors. Equal ones count once.

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
    """The rank of one matrix, for a (n,) and b (k,).

    Each distinct position holds an a, a b, or both (it is tied). The algorithm goes from left to right and keeps one
    anchor that is not yet paired, the *waiting* one. An anchor of the other kind is paired with it, and then none
    waits. An anchor of the same kind changes nothing. A tied position is a pair by itself, and no anchor waits across
    it: the tied positions cut the line into parts.

    The positions of a part form runs of one kind. After a run of two or more positions one anchor waits, whatever came
    before. After a run of one position, one waits just when none waited before it. So it is enough to know, for every
    run, the parity of its distance from the last run after which one surely waits.
    """
    values = torch.cat([a, b]).unique()
    has_a, has_b = torch.isin(values, a), torch.isin(values, b)
    tied = has_a & has_b
    part = tied.cumsum(0)[~tied]  # of every position that is not tied
    kind = has_a[~tied]
    if kind.numel() == 0:
        return int(tied.sum())
    part_starts = torch.cat([part.new_ones(1), part.diff()]) != 0
    starts = part_starts | (torch.cat([kind[:1], kind[:-1]]) != kind)
    first = starts.nonzero()[:, 0]
    length = torch.cat([first, first.new_tensor([kind.numel()])]).diff()
    opens = part_starts[first]  # the first run of a part: no anchor waits before it
    run = torch.arange(first.numel(), device=a.device)
    sure = torch.where(opens | (length > 1), run, 0).cummax(0).values  # the last run after which one surely waits
    waits = (run - sure) % 2 == 0
    pairs = waits[:-1] & ~opens[1:]
    return int(tied.sum() + pairs.sum())
