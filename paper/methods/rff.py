r"""Random Fourier features: K(a, b) as a mean over random cosines, for anchors anywhere.

    exp(-|a - b| / tau) = E[ 2 cos(w a / tau + c) cos(w b / tau + c) ],   w standard Cauchy, c uniform in [0, 2 pi]

With D draws the mean is a product of features of a and of b, so K x takes O((n + k) D). Each term is at most 2, so the
error of values falls as 1 / sqrt(D).

The derivative in an anchor multiplies each term by its frequency w / tau, and the Cauchy distribution has no mean. So
for derivatives the law of large numbers does not apply: a few large frequencies dominate at every D. (The paper says
that the variance is infinite; with the absolute value of a term not even the mean is finite.)
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor


class FourierFeatures(NamedTuple):
    """D frequencies and offsets, made by :func:`draw`."""

    frequency: Tensor  # (D,)
    offset: Tensor  # (D,)

    def matrix(self, anchors: Tensor, tau: float | Tensor = 1.0) -> Tensor:
        """The features of anchors (n,): (n, D). The product of two such matrices is near K."""
        angle = (anchors / tau)[:, None] * self.frequency + self.offset
        return angle.cos() * math.sqrt(2 / len(self.frequency))

    def linear(self, x: Tensor, a: Tensor, b: Tensor, tau: float | Tensor = 1.0) -> Tensor:
        """About ``laplex.linear(x, a, b, tau)``: x (..., k) to (..., n), differentiable in all of them by autograd."""
        return (x @ self.matrix(b, tau)) @ self.matrix(a, tau).mT


def draw(
    count: int,
    *,
    generator: torch.Generator | None = None,
    device: torch.device | str | None = None,
    dtype: torch.dtype | None = None,
) -> FourierFeatures:
    """``count`` = D random features, for every tau.

    Frequencies are tan(pi (u - 1/2)) of u uniform in (0, 1), computed in float64: in float32 u = 0 would be drawn now
    and then, and large frequencies would all be among few values.
    """
    drawn_on = device if generator is None else generator.device
    u, v = torch.rand(2, count, generator=generator, device=drawn_on, dtype=torch.float64)
    like = torch.empty((), device=u.device if device is None else device, dtype=dtype)
    return FourierFeatures(torch.tan(math.pi * (u - 0.5)).to(like), (2 * math.pi * v).to(like))
