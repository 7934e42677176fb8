"""What is formed: r kernel matrices per result, each with its own anchors, length scale, weight and phases."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Kernels(NamedTuple):
    """h results, each the weighted sum of r kernel matrices n x k."""

    target: Tensor  # (h, r, n)
    source: Tensor  # (h, r, k)
    tau: Tensor  # (h, r) float64
    weight: Tensor | None  # (h, r), or None: all ones
    phi: Tensor | None  # (h, r, n), with psi (h, r, k), or both None
    psi: Tensor | None


class Needs(NamedTuple):
    """Which gradients are wanted."""

    anchors: bool
    tau: bool
    weight: bool
    phase: bool
