r"""Sums over samples on a line, seen from any point: relative to the nearest sample, so that they never vanish.

For samples s_1 <= ... <= s_n with masses v_j (each a row of channels, the first one the weight) and a point p, let l be
the last sample left of p, r the first one right of it, and T the sum over those equal to p. With the one-sided sums

    L_j = sum over i <= j of e^{-(s_j - s_i) / tau} v_i = e^{-(s_j - s_{j-1}) / tau} L_{j-1} + v_j

and their mirror image R, the sum over all samples is

    sum over j of e^{-|p - s_j| / tau} v_j = e^{-(p - s_l) / tau} L_l + T + e^{-(s_r - p) / tau} R_r

Its three terms are compared by the logarithms of their weights, and the largest one is divided out. So the sum of the
weights is between 1 and 3 times e^m, with an m that is never lost, however far away p is. Nothing is subtracted, so
nothing is lost when a sample is left out of the sum at its own place, either.

A weight may be 0. If L underflows at sample l because all samples near it have weight 0, the nearest sample at which it
does not underflow takes its place.

Both directions are one batch of left sums, over the samples and over their mirror image. All numbers are in float64.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from laplex._prefixes import previous
from laplex._running import running

# The least one-sided sum, of weights up to 1, that is used: towards 1e-308 sums lose digits. Derivatives of any order
# divide by such sums, though never by a power of them (``ratio``): 1e200 leaves room for the other factors.
FLOOR = 1e-200
LARGEST = 700.0  # exponent


class Line(NamedTuple):
    """Samples in order."""

    s: Tensor  # (h, n)
    mass: Tensor  # (h, n, c); the first channel is the weight
    tau: Tensor  # (h, 1)
    weighted: bool  # whether weights may be 0

    def both_ways(self) -> tuple[Tensor, Tensor]:
        """Gaps over tau to the sample before, (2 h, n), and masses (2 h, n, c): from the left, and from the right."""
        gaps = self.s.diff(dim=-1) / self.tau
        gaps = torch.cat([pad(gaps, (1, 0)), pad(gaps.flip(-1), (1, 0))])
        return gaps, torch.cat([self.mass, self.mass.flip(1)])


class Places(NamedTuple):
    """Where points lie among the samples."""

    p: Tensor  # (h, q)
    below: Tensor  # (h, q): how many samples are < p
    upto: Tensor  # (h, q): how many are <= p
    tied: Tensor  # (h, q, c): the mass of the samples equal to p that count


class Terms(NamedTuple):
    """The three terms of the sum at each point: samples to the left, tied ones, and samples to the right."""

    log_scale: Tensor  # (h, q): m, which is divided out
    shares: tuple[Tensor, Tensor, Tensor]  # (h, q) each: weights relative to e^m
    left: Tensor  # (h, q, c): sums at the nearest sample over the sum of weights there
    tied: Tensor  # (h, q, c): sums relative to e^m
    right: Tensor  # (h, q, c)
    distances: tuple[Tensor, Tensor]  # (h, q) each: to the samples where left and right are taken, over tau
    faint: Tensor | None  # (h, q, c): sums over samples of weight 0 that no other term has, relative to e^m

    def log_weight(self) -> Tensor:
        """The logarithm of the sum of all weights, (h, q), as a constant."""
        return self.log_scale + torch.stack(self.shares).detach().sum(0).log()

    def sums(self) -> Tensor:
        """All sums relative to e^m, (h, q, c)."""
        all_sums = self.shares[0][..., None] * self.left + self.tied + self.shares[2][..., None] * self.right
        return all_sums if self.faint is None else all_sums + self.faint


def ratio(sums: Tensor, weight: Tensor) -> Tensor:
    """sums / weight, where the weight may be tiny, and its derivatives to any order.

    The derivatives of a plain quotient have 1 / weight^2 and higher powers, which overflow before small factors make up
    for them. Here the weight is 1 times a constant: powers are those of 1, and every change of sums and weight is
    divided by the constant once.
    """
    scale = weight.detach()
    return (sums / scale) / (weight / scale)


def one_sided(line: Line) -> Tensor:
    """L over the samples and over their mirror image, (2 h, n, c)."""
    gaps, mass = line.both_ways()
    return running(torch.exp(-gaps), mass)


def read(line: Line, states: Tensor, places: Places) -> Terms:
    """The terms at every point, from states (2 h, n, c) whose first channel is the sum of weights."""
    n, (from_left, from_right) = line.s.shape[-1], states.tensor_split(2)
    views = (
        (from_left, line.s, places.p, places.below - 1),
        (from_right, -line.s.flip(-1), -places.p, n - 1 - places.upto),  # in the mirror
    )
    left, right = (_side(view, line) for view in views)
    tied = places.tied
    log_scale = torch.maximum(torch.maximum(left.log_weight, right.log_weight), tied[..., 0].log()).detach()
    # Tied masses are divided, not multiplied by e^-m: those of weight 0 have derivatives. Where e^m would underflow
    # they are 0.
    tied = tied / torch.exp(log_scale.clamp(min=-LARGEST))[..., None]
    shares = torch.exp(left.log_weight - log_scale), tied[..., 0], torch.exp(right.log_weight - log_scale)
    faint = None
    if line.weighted:
        faint = _faint(views[0], left, log_scale, line.tau) + _faint(views[1], right, log_scale, line.tau)
    return Terms(log_scale, shares, left.sums, tied, right.sums, (left.u, right.u), faint)


class _Side(NamedTuple):
    """What points see on one side, at the nearest sample where the sum of weights has its digits."""

    log_weight: Tensor  # (h, q): of all samples there, as the point sees it; -inf if there are none
    sums: Tensor  # (h, q, c): over the sum of weights
    u: Tensor  # (h, q): the distance over tau
    nearest: Tensor  # (h, q): the sample, or -1


View = tuple[Tensor, Tensor, Tensor, Tensor]  # states (h, n, c), samples (h, n), points and the nearest samples (h, q)


def _side(view: View, line: Line) -> _Side:
    states, s, p, index = view
    if line.weighted:
        index = _usable(states[..., 0], index)
    present, place = index >= 0, index.clamp(min=0)
    u = torch.where(present, p - take(s[..., None], place)[..., 0], 0.0) / line.tau
    sums = take(states, place)
    weight = torch.where(present, sums[..., 0], 1.0)
    scale = weight.detach()
    log_weight = scale.log() + (weight / scale).log()  # as in ratio()
    relative = torch.where(present[..., None], ratio(sums, weight[..., None]), 0.0)
    return _Side(torch.where(present, log_weight - u, -torch.inf), relative, u, index)


def _faint(view: View, side: _Side, log_scale: Tensor, tau: Tensor) -> Tensor:
    """Sums (h, q, c), relative to e^m, of samples of weight 0 between a point and the sample where its side is read.

    They are 0 (or too small to count), but have derivatives: what a little weight there would change. If the sample
    that is read is far away and still the nearest one, that change is too large for a number, and is left out.
    """
    states, s, p, index = view
    counts = (index > side.nearest) & (side.log_weight.detach() < log_scale - 100.0)
    index = index.clamp(min=0)
    u = (p - take(s[..., None], index)[..., 0]) / tau
    decay = torch.exp(torch.where(counts, -u - log_scale, 0.0).clamp(max=LARGEST))
    return torch.where(counts[..., None], decay[..., None] * take(states, index), 0.0)


def places_of(line: Line, p: Tensor, below: Tensor, upto: Tensor) -> Places:
    """Place points p (h, q) among the samples, all of which count."""
    ties = below < upto
    last = (upto - 1).clamp(min=0)
    tied = torch.where(ties[..., None], take(_group_sums(line), last), 0.0)
    return Places(p, below, upto, tied)


def places_left_out(line: Line) -> Places:
    """The samples themselves, each left out of its own sum."""
    s = line.s
    is_again, has_again = equal_neighbours(s)
    first, last = run_bounds(is_again, has_again)
    earlier = previous(running(is_again.double(), line.mass)) * is_again[..., None]
    has_again = has_again.flip(-1)
    later = (previous(running(has_again.double(), line.mass.flip(1))) * has_again[..., None]).flip(1)
    return Places(s, first, last + 1, earlier + later)


def equal_neighbours(s: Tensor) -> tuple[Tensor, Tensor]:
    """Whether the sample before each of s (h, n), which are in order, is equal to it, and whether the one after is."""
    # Inductor cannot compile a padded comparison of strided float64: the samples are padded instead.
    before, after = pad(s[:, :-1], (1, 0), value=-torch.inf), pad(s[:, 1:], (0, 1), value=torch.inf)
    return s == before, s == after


def run_bounds(is_again: Tensor, has_again: Tensor) -> tuple[Tensor, Tensor]:
    """The first and the last index of the samples equal to each, (h, n), from what ``equal_neighbours`` returns."""
    n = is_again.shape[-1]
    index = torch.arange(n, device=is_again.device).expand_as(is_again)
    first = torch.where(is_again, 0, index).cummax(-1).values
    last = torch.where(has_again, n, index).flip(-1).cummin(-1).values.flip(-1)
    return first, last


def take(v: Tensor, index: Tensor) -> Tensor:
    """v (h, n, c) at index (h, q), which may name a place many times.

    On a GPU the derivative of ``gather`` adds in an arbitrary order, that of indexing always in the same one.
    """
    if v.is_cuda:
        return v[torch.arange(v.shape[0], device=v.device)[:, None], index]
    return v.gather(1, index[..., None].expand(-1, -1, v.shape[-1]))


def _group_sums(line: Line) -> Tensor:
    """The sum over the samples equal to each that do not come after it, (h, n, c)."""
    return running(equal_neighbours(line.s)[0].double(), line.mass)


def _usable(weight: Tensor, index: Tensor) -> Tensor:
    """The last place up to ``index`` where a one-sided sum of weights (h, n) has its digits, or -1."""
    order = torch.arange(weight.shape[-1], device=weight.device)
    places = torch.where(weight.detach() > FLOOR, order, -1).cummax(-1).values
    return torch.where(index >= 0, places.gather(-1, index.clamp(min=0)), -1)
