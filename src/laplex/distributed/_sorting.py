"""Sample sort: decides which rank owns which anchors, and what is sent where.

All anchors of both sides are ordered by the key (value, side, rank, index). No two keys are equal, so a run of equal
anchors can be shared by as many ranks as it needs. Every rank sorts what it holds and sends regular samples of it to
all; w - 1 of the samples, the splitters, cut the line into w intervals with about equally many anchors, one per rank.
Nothing is moved to make the counts equal. If the shards already are intervals in the order of ranks, and no rank holds
much more than its share, every rank owns what it holds, and nothing is moved at all.

Where runs of equal anchors must stay together, cuts are by value alone: anchors equal to a splitter
go to the rank on its right.

    D. J. DeWitt, J. F. Naughton, D. A. Schneider, Parallel sorting on a shared-nothing architecture using
        probabilistic splitting, Parallel and Distributed Information Systems (1991).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from laplex.distributed._moves import Share
from laplex.distributed._ranks import Ranks

SAMPLES = 512  # per side, rank and matrix: a rank's share is off by at most 1 / 512 of all anchors
CROWDED = 1.5  # times the mean: a rank that holds more hands some over, even if all shards are in order


class Sorted(NamedTuple):
    """What this rank holds of one side: (h, size), each matrix sorted."""

    values: Tensor
    places: Tensor  # int64: indices in the caller's order


class Splitters(NamedTuple):
    """The keys that separate the ranks' intervals: (h, ranks - 1) each."""

    value: Tensor
    side: Tensor
    rank: Tensor
    place: Tensor


def shared(a: Tensor, b: Tensor, ranks: Ranks, *, together: bool = False) -> tuple[Share, Share]:
    """The shares of a (h, n) and b (h, k). With `together`, equal anchors have one owner."""
    sides = [Sorted(*side.sort(dim=-1, stable=True)) for side in (a, b)]
    if _are_intervals(sides, ranks, together):
        cuts = [_own_cuts(side, ranks) for side in sides]
        stays = True
    else:
        splitters = _splitters(sides, ranks)
        if together:
            cuts = [_cuts_by_value(side, splitters) for side in sides]
        else:
            cuts = [_cuts(side, number, splitters, ranks) for number, side in enumerate(sides)]
        stays = False
    rows = _share(a, sides[0].places, cuts[0], ranks, stays)
    return rows, _share(b, sides[1].places, cuts[1], ranks, stays)


def _are_intervals(sides: list[Sorted], ranks: Ranks, together: bool) -> bool:
    """Whether the shards are intervals of the line in the order of ranks, none with many more anchors than the mean.

    With `together`, no two intervals may share an end point.
    """
    h = sides[0].values.shape[0]
    held = sum(side.values.shape[-1] for side in sides)
    ends = torch.tensor([torch.inf, -torch.inf], dtype=torch.float64, device=sides[0].values.device).repeat(h, 1)
    for side in sides:
        if side.values.shape[-1] > 0:
            ends[:, 0] = torch.minimum(ends[:, 0], side.values[:, 0])
            ends[:, 1] = torch.maximum(ends[:, 1], side.values[:, -1])
    everyone = ranks.gathered(torch.cat([ends.flatten(), ends.new_tensor([held])])).cpu()
    counts = everyone[:, -1]
    if float(counts.max()) > CROWDED * float(counts.mean()):
        return False
    low, high = everyone[counts > 0, :-1].unflatten(-1, (h, 2)).unbind(-1)
    return bool((high[:-1] < low[1:] if together else high[:-1] <= low[1:]).all())


def _own_cuts(side: Sorted, ranks: Ranks) -> Tensor:
    """(h, ranks + 1): the cuts with which this rank keeps everything that it holds."""
    h, size = side.values.shape
    is_past_own = torch.arange(ranks.size + 1) > ranks.rank
    return (is_past_own * size).expand(h, -1)


def _splitters(sides: list[Sorted], ranks: Ranks) -> Splitters:
    """Splitters from regular samples of all ranks; a sample is weighted by its rank's anchors per sample."""
    device = sides[0].values.device
    samples, places = [], []
    for values, index in sides:
        size = values.shape[-1]
        steps = ((torch.arange(SAMPLES, device=device) + 0.5) * (size / SAMPLES)).long().clamp(max=max(size - 1, 0))
        sampled = steps[: SAMPLES if size > 0 else 0]
        short = SAMPLES - sampled.numel()  # SAMPLES if the rank holds nothing
        samples.append(torch.nn.functional.pad(values[:, sampled].double(), (0, short)))
        places.append(torch.nn.functional.pad(index[:, sampled], (0, short)))
    # Flattened in the order of the key (side, rank, index), so that a stable sort by value is a sort by key.
    value, index = (
        ranks.gathered(torch.stack(part, 1)).permute(1, 2, 0, 3).flatten(1) for part in (samples, places)
    )  # (h, 2 * ranks * SAMPLES)
    held = ranks.gathered(torch.tensor([side.values.shape[-1] for side in sides], device=device))  # (ranks, 2)
    weight = (held.mT.double() / SAMPLES).repeat_interleave(SAMPLES, -1).flatten()
    value, order = value.masked_fill(weight == 0, torch.inf).sort(dim=-1, stable=True)
    weight = weight[order]
    middles = weight.cumsum(-1) - weight / 2
    targets = torch.arange(1, ranks.size, device=device) * (weight.sum(-1, keepdim=True) / ranks.size)
    picked = torch.searchsorted(middles, targets).clamp(max=order.shape[-1] - 1)
    flat = order.gather(-1, picked)
    owner = flat // SAMPLES
    return Splitters(value.gather(-1, picked), owner // ranks.size, owner % ranks.size, index.gather(-1, flat))


def _cuts(side: Sorted, number: int, splitters: Splitters, ranks: Ranks) -> Tensor:
    """(h, ranks + 1) on the CPU: the sorted anchors [cuts[r], cuts[r + 1]) of this side go to rank r."""
    values, places = side
    keys = splitters.value.to(values.dtype).contiguous()  # they are anchors, so nothing is rounded
    below, upto = (torch.searchsorted(values, keys, right=right).cpu() for right in (False, True))
    key_side, key_rank, key_place = (part.cpu() for part in splitters[1:])
    mine = (key_side == number) & (key_rank == ranks.rank)
    first = (key_side > number) | ((key_side == number) & (key_rank > ranks.rank))  # ties here precede the splitter
    cuts = torch.where(first, upto, below)
    for i, j in mine.nonzero().tolist():  # ties are in the order of their places
        tied = places[i, below[i, j] : upto[i, j]]
        cuts[i, j] = below[i, j] + int(torch.searchsorted(tied, int(key_place[i, j])))
    return _with_ends(cuts, values)


def _cuts_by_value(side: Sorted, splitters: Splitters) -> Tensor:
    """The same, without a cut between equal anchors."""
    keys = splitters.value.to(side.values.dtype).contiguous()
    return _with_ends(torch.searchsorted(side.values, keys).cpu(), side.values)


def _with_ends(cuts: Tensor, values: Tensor) -> Tensor:
    return torch.nn.functional.pad(torch.nn.functional.pad(cuts, (1, 0)), (0, 1), value=values.shape[-1])


def _share(anchors: Tensor, index: Tensor, cuts: Tensor, ranks: Ranks, stays: bool) -> Share:
    """The share of anchors (h, size), which index puts in order and cuts divide among the ranks."""
    h, size = anchors.shape
    parts = (cuts[:, 1:] - cuts[:, :-1]).mT.contiguous()  # (ranks, h)
    incoming = ranks.exchanged(parts.to(ranks.device), [1] * ranks.size, [1] * ranks.size).cpu()
    places = index + torch.arange(h, device=anchors.device)[:, None] * size
    origins = torch.cat([places[i, cuts[i, r] : cuts[i, r + 1]] for r in range(ranks.size) for i in range(h)])
    sent, received = tuple(parts.sum(1).tolist()), tuple(incoming.sum(1).tolist())
    arrived = anchors.flatten()[origins]
    if not stays:
        arrived = ranks.exchanged(arrived, sent, received)
    counts = tuple(incoming.sum(0).tolist())
    width = max(*counts, 1)
    slots = _slots(arrived, incoming, width)
    ordered = stays and size > 0 and torch.equal(origins, torch.arange(h * size, device=origins.device))
    return Share(origins, slots, sent, received, size, counts, width, stays, ordered)


def _slots(arrived: Tensor, incoming: Tensor, width: int) -> Tensor:
    """Where the anchors that arrived, incoming (ranks, h) by rank and matrix, belong in the sorted (h * width).

    Each rank's part is in order, and ranks arrive in order, so a stable sort by value sorts by the whole key.
    """
    ends = incoming.flatten().cumsum(0).view(incoming.shape)
    slots = torch.empty_like(arrived, dtype=torch.int64)
    for i in range(incoming.shape[1]):
        spans = [torch.arange(int(e - c), int(e)) for e, c in zip(ends[:, i], incoming[:, i], strict=True)]
        arrivals = torch.cat(spans).to(arrived.device)
        order = arrived[arrivals].argsort(stable=True)
        slots[arrivals[order]] = i * width + torch.arange(order.numel(), device=order.device)
    return slots
