r"""Sums over samples on a line, seen from any point: relative to the nearest sample, so that they never vanish.

For samples s_1 <= ... <= s_n with masses v_j (each a row of channels, the first one the weight) and a point p, let l be
the last sample left of p, r the first one right of it, and T the sum over those equal to p. With the one-sided sums

    L_j = sum over i <= j of e^{-(s_j - s_i) / tau} v_i = e^{-(s_j - s_{j-1}) / tau} L_{j-1} + v_j

and their mirror image R, the sum over all samples is

    sum over j of e^{-|p - s_j| / tau} v_j = e^{-(p - s_l) / tau} L_l + T + e^{-(s_r - p) / tau} R_r

Its three terms are compared by the logarithms of their weights, and the largest one is divided out. So the sum of the
weights is between 1 and 3 times e^m, with an m that is never lost, however far away p is. Nothing is subtracted, so
neither is anything lost where one sample is left out of the sum at its own place.

A weight may be 0. If L underflows at sample l because all samples near it have weight 0, the nearest one where it does
not takes its place.

Both directions are one batch of left sums, over the samples and over their mirror image. All numbers are in float64.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from laplex._prefixes import previous
from laplex._states import chain

FLOOR = 1e-200  # of one-sided sums of weights whose largest is 1: with less, digits would be lost


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

    def sums(self) -> Tensor:
        """All sums relative to e^m, (h, q, c)."""
        return self.shares[0][..., None] * self.left + self.tied + self.shares[2][..., None] * self.right


def running(decay: Tensor, v: Tensor) -> Tensor:
    """f_j = decay_j f_{j-1} + v_j, for decay (h, n) and v (h, n, c). Differentiable to any order."""
    return chain.scan(decay[..., None, None], v[..., None, :])[..., 0, :]


def one_sided(line: Line) -> Tensor:
    """L over the samples and over their mirror image, (2 h, n, c)."""
    gaps, mass = line.both_ways()
    return running(torch.exp(-gaps), mass)


def read(line: Line, states: Tensor, places: Places) -> Terms:
    """The terms at every point, from states (2 h, n, c) whose first channel is the sum of weights."""
    from_left, mirrored = states.tensor_split(2)
    from_right = mirrored.flip(1)
    n = line.s.shape[-1]
    left, right = places.below - 1, places.upto
    if line.weighted:
        left, right = _usable(from_left[..., 0], left), n - 1 - _usable(mirrored[..., 0], n - 1 - right)
    sides = []
    for states, index, sign in ((from_left, left, 1), (from_right, right, -1)):
        present = (index >= 0) & (index < n)
        index = index.clamp(0, n - 1)
        u = torch.where(present, sign * (places.p - line.s.gather(-1, index)), 0.0) / line.tau
        sums = take(states, index)
        weight = torch.where(present, sums[..., 0], 1.0)
        relative = torch.where(present[..., None], sums / weight[..., None], 0.0)
        sides.append((torch.where(present, weight.log() - u, -torch.inf), relative, u))
    (log_left, left_sums, u_left), (log_right, right_sums, u_right) = sides
    return _terms(places.tied, (log_left, log_right), (left_sums, right_sums), (u_left, u_right))


def _terms(
    tied: Tensor, logs: tuple[Tensor, Tensor], sums: tuple[Tensor, Tensor], distances: tuple[Tensor, Tensor]
) -> Terms:
    log_left, log_right = logs
    log_scale = torch.maximum(torch.maximum(log_left, log_right), tied[..., 0].log()).detach()
    # Tied masses are divided, not multiplied by e^-m: those of weight 0 have derivatives. Where e^m would underflow
    # they are 0.
    tied = tied / torch.exp(log_scale.clamp(min=-700.0))[..., None]
    shares = torch.exp(log_left - log_scale), tied[..., 0], torch.exp(log_right - log_scale)
    return Terms(log_scale, shares, sums[0], tied, sums[1], distances)


def places_of(line: Line, p: Tensor, below: Tensor, upto: Tensor) -> Places:
    """Points p (h, q) among the samples, all of which count."""
    ties = below < upto
    last = (upto - 1).clamp(min=0)
    tied = torch.where(ties[..., None], take(_group_sums(line), last), 0.0)
    return Places(p, below, upto, tied)


def places_left_out(line: Line) -> Places:
    """The samples themselves, each left out of its own sum."""
    s, n = line.s, line.s.shape[-1]
    equal = s[:, 1:] == s[:, :-1]
    index = torch.arange(n, device=s.device).expand_as(s)
    below = torch.where(pad(~equal, (1, 0), value=True), index, 0).cummax(-1).values
    upto = torch.where(pad(~equal, (0, 1), value=True), index + 1, n).flip(-1).cummin(-1).values.flip(-1)
    earlier = previous(running(pad(equal, (1, 0)).double(), line.mass)) * pad(equal, (1, 0))[..., None]
    later = running(pad(equal.flip(-1), (1, 0)).double(), line.mass.flip(1))
    later = (previous(later) * pad(equal.flip(-1), (1, 0))[..., None]).flip(1)
    return Places(s, below, upto, earlier + later)


def take(v: Tensor, index: Tensor) -> Tensor:
    """v (h, n, c) at index (h, q)."""
    return v.gather(1, index[..., None].expand(-1, -1, v.shape[-1]))


def _group_sums(line: Line) -> Tensor:
    """The sum over the samples equal to each that do not come after it, (h, n, c)."""
    equal = pad(line.s[:, 1:] == line.s[:, :-1], (1, 0))
    return running(equal.double(), line.mass)


def _usable(weight: Tensor, index: Tensor) -> Tensor:
    """The last place up to ``index`` where a one-sided sum of weights (h, n) has its digits, or -1."""
    n = weight.shape[-1]
    places = torch.where(weight.detach() > FLOOR, torch.arange(n, device=weight.device), -1).cummax(-1).values
    return torch.where(index >= 0, places.gather(-1, index.clamp(0, n - 1)), -1)
