r"""The best place on a line for every feature, given its covariances with the functions at the knots.

Between two neighbouring knots a function y(s) = sum over j of K(s, b_j) y_j is exactly determined by its values there:
with delta their distance over tau and s at the fraction f of the way,

    y(s) = A y(b_j) + B y(b_j+1),      A = sinh((1 - f) delta) / sinh(delta),      B = sinh(f delta) / sinh(delta)

So everything at a place comes from values at two knots: t_p, and T_s, a quadratic form of A and B. A feature at s
explains t_p^T T_s^-1 t_p of its variance. Places are tried in steps, first coarse ones and then finer ones around the
best, down to ``PLACES`` places from one knot to the next.
"""

from __future__ import annotations

import torch
from torch import Tensor

from laplex.reference import kernel

PLACES = 64  # from one knot to the next
COARSE = 4  # how many of them are tried first, in every interval
RIDGE = 1e-6  # relative to the mean diagonal of T_s


def evenly(order: Tensor) -> Tensor:
    """Places (n,), in float64, spread evenly over [0, 1], for features in this order (n,)."""
    n = len(order)
    places = torch.empty(n, dtype=torch.float64, device=order.device)
    places[order] = (torch.arange(n, dtype=torch.float64, device=order.device) + 0.5) / n
    return places


class Line:
    """The places between the first and the last knot.

    Args:
        knots (K,): on an even grid, at least two.
        tau: the length scale.
        moments (qK, qK): T, in float64.
        functions: q.

    Attributes:
        spread (K, K, q, q): K T K^T, the covariance of the functions at the knots.
    """

    def __init__(self, knots: Tensor, tau: float, moments: Tensor, functions: int) -> None:
        self._knots, self._functions = knots, functions
        self._step = (knots[-1] - knots[0]) / (len(knots) - 1)
        self._delta = self._step.double() / tau
        matrix = kernel(knots.double(), knots.double(), tau)
        blocks = moments.reshape(functions, len(knots), functions, len(knots))
        self.spread = torch.einsum("ij,cjdk,lk->ilcd", matrix, blocks, matrix)
        self._same = self.spread.diagonal(dim1=0, dim2=1).movedim(-1, 0)  # T at knots (K, q, q)
        self._next = self.spread.diagonal(1, dim1=0, dim2=1).movedim(-1, 0)  # between neighbours (K - 1, q, q)
        self._whiten = self._whitening().to(knots.dtype)

    def best(self, at_knots: Tensor) -> Tensor:
        """The best places (p,) of features with t_p = ``at_knots`` (p, q, K) at the knots."""
        index = self._coarsely(at_knots)
        step = PLACES // COARSE
        while step > 1:
            around = torch.arange(-(step - 1), step, max(1, step // 4), device=index.device)
            candidates = (index[:, None] + around).clamp(0, PLACES * (len(self._knots) - 1))
            gains = self._gains(at_knots, candidates)
            index = candidates.gather(1, gains.argmax(1, keepdim=True))[:, 0]
            step //= 4
        return self._knots[0] + index * (self._step / PLACES)

    def weights(self, at_knots: Tensor, places: Tensor) -> tuple[Tensor, Tensor]:
        """The best weights (q, p) of features at these places (p,), and the variance each then explains (p,)."""
        # In float32 a place among a thousand knots would be known only to 1e-4 of an interval.
        along = ((places.double() - self._knots[0]) / self._step.double()).clamp(0, len(self._knots) - 1)
        left = along.long().clamp_max(len(self._knots) - 2)
        first, second = (share.to(at_knots.dtype) for share in self._shares(along - left))
        feature = torch.arange(len(places), device=places.device)
        target = first[:, None] * at_knots[feature, :, left] + second[:, None] * at_knots[feature, :, left + 1]
        forms, ridge = self._forms(left, first.double(), second.double())
        weight = torch.cholesky_solve(target.double()[..., None], torch.linalg.cholesky_ex(forms + ridge).L)[..., 0]
        # With the ridge the weight is not quite the best one, and it explains less than its product with t_p.
        explained = (2 * weight * target).sum(1) - (weight[:, None] @ forms @ weight[..., None])[:, 0, 0]
        return weight.to(target.dtype).mT, explained.to(target.dtype)

    # --- scores -------------------------------------------------------------------------------------------------------

    def _coarsely(self, at_knots: Tensor) -> Tensor:
        """The index (p,) of the best place for each feature, out of ``COARSE`` places in every interval."""
        left, right = at_knots[..., :-1], at_knots[..., 1:]
        best = at_knots.new_full((len(at_knots), left.shape[-1]), -1.0)
        which = torch.zeros_like(best, dtype=torch.uint8)
        for number in range(COARSE):
            place = PLACES // COARSE * number
            first, second = self._shares(best.new_full((), place / PLACES))
            target = first.to(left.dtype) * left + second.to(left.dtype) * right
            gain = torch.zeros_like(best)
            for row in range(self._functions):
                whitened = target[:, 0] * self._whiten[place:-1:PLACES, row, 0]
                for column in range(1, row + 1):
                    whitened.addcmul_(target[:, column], self._whiten[place:-1:PLACES, row, column])
                gain.addcmul_(whitened, whitened)
            which.masked_fill_(gain > best, number)
            torch.maximum(best, gain, out=best)
        interval = best.argmax(1, keepdim=True)
        return (interval * PLACES + which.gather(1, interval) * (PLACES // COARSE))[:, 0]

    def _gains(self, at_knots: Tensor, candidates: Tensor) -> Tensor:
        """The variance that features explain at the places with these indices: (p, m) -> (p, m)."""
        left = (candidates // PLACES).clamp_max(len(self._knots) - 2)
        first, second = self._shares((candidates - left * PLACES) / PLACES)
        chosen = left[:, None].expand(-1, self._functions, -1)
        target = first[:, None].to(at_knots.dtype) * at_knots.gather(2, chosen)
        target += second[:, None].to(at_knots.dtype) * at_knots.gather(2, chosen + 1)
        whiten = self._whiten[candidates]
        return torch.einsum("pmdc,pcm->pdm", whiten, target).square().sum(1)

    # --- tables -------------------------------------------------------------------------------------------------------

    def _whitening(self) -> Tensor:
        """H_s with T_s^-1 = H_s^T H_s, lower triangular, at all places ((K - 1) PLACES + 1, q, q)."""
        intervals = len(self._knots) - 1
        index = torch.arange(intervals * PLACES + 1, device=self._knots.device)
        left = (index // PLACES).clamp_max(intervals - 1)
        first, second = self._shares((index - left * PLACES).double() / PLACES)
        forms, ridge = self._forms(left, first, second)
        chol = torch.linalg.cholesky(forms + ridge)
        unit = torch.eye(self._functions, dtype=chol.dtype, device=chol.device).expand_as(chol)
        return torch.linalg.solve_triangular(chol, unit, upper=False)  # type: ignore[no-any-return]

    def _forms(self, left: Tensor, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
        """T_s at places in the intervals ``left`` (s,), and a small ridge that makes it definite: (s, q, q) each."""
        one, two = first[:, None, None], second[:, None, None]
        mixed = self._next[left]
        forms = one * one * self._same[left] + two * two * self._same[left + 1] + one * two * (mixed + mixed.mT)
        forms = (forms + forms.mT) / 2
        ridge = RIDGE * forms.diagonal(dim1=1, dim2=2).mean(1) + torch.finfo(torch.float64).tiny
        return forms, ridge[:, None, None] * torch.eye(self._functions, dtype=forms.dtype, device=forms.device)

    def _shares(self, fraction: Tensor) -> tuple[Tensor, Tensor]:
        """A and B, computed without sinh, which would overflow if tau is small."""
        delta = self._delta.to(fraction.dtype)
        total = -torch.expm1(-2 * delta)
        first = torch.exp(-fraction * delta) * -torch.expm1(-2 * (1 - fraction) * delta) / total
        second = torch.exp(-(1 - fraction) * delta) * -torch.expm1(-2 * fraction * delta) / total
        return first, second
