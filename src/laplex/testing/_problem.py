"""A product and its inputs, drawn with a seed, so that every machine and every run sees the same numbers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

DRAWN_ON_CPU = 1 << 24  # numbers; if there are more, they are drawn on the device


@dataclass(frozen=True)
class Problem:
    """y = x K^T with K = K(a, b), and the cotangent of y with which gradients are taken.

    With a weight, K is the sum over h of weight_h K(a_h, b_h).
    """

    x: Tensor  # (rows, k)
    a: Tensor  # (n,), or (h, n) with a weight
    b: Tensor  # (k,), or (h, k)
    cotangent: Tensor  # (rows, n)
    tau: float | Tensor = 1.0
    phi: Tensor | None = None  # as a
    psi: Tensor | None = None  # as b
    weight: Tensor | None = None  # (h,)

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments for :func:`laplex.linear`, by name, without those that are None."""
        names = ("x", "a", "b", "tau", "phi", "psi", "weight")
        return {name: getattr(self, name) for name in names if getattr(self, name) is not None}

    @property
    def mT(self) -> Problem:
        """The product with the transposed matrix: its y is the gradient of x here, its cotangent is x."""
        return replace(
            self, x=self.cotangent, a=self.b, b=self.a, cotangent=self.x, phi=self.psi, psi=self.phi
        )  # fmt: skip


def draw(
    n: int,
    k: int,
    *,
    rows: int = 1,
    tau: float = 1.0,
    phases: bool = False,
    matrices: int | None = None,
    seed: int = 0,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
) -> Problem:
    """A random problem of standard normal numbers; up to 2^24 of them are the same on every device.

    Args:
        n, k: the sizes of the matrix.
        rows: rows of x.
        tau: the length scale.
        phases: whether there are phases.
        matrices: sum this many matrices, with weights; None for one matrix without a weight.
        seed: the seed of the generator.
        device: where the tensors are.
        dtype: of x and the cotangent; the others are at least float32.

    >>> from laplex import linear, testing
    >>> linear(**testing.draw(5, 3, rows=2, phases=True, matrices=4).arguments).shape
    torch.Size([2, 5])
    """
    source = "cpu" if rows * max(n, k) <= DRAWN_ON_CPU else device
    generator = torch.Generator(source).manual_seed(seed)
    precise = torch.float64 if dtype == torch.float64 else torch.float32
    batch = () if matrices is None else (matrices,)

    def normal(*shape: int, kind: torch.dtype = precise) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=precise, device=source).to(device, kind)

    x, a, b = normal(rows, k, kind=dtype), normal(*batch, n), normal(*batch, k)
    cotangent = normal(rows, n, kind=dtype)
    phi, psi = (normal(*batch, n), normal(*batch, k)) if phases else (None, None)
    return Problem(x, a, b, cotangent, tau, phi, psi, normal(*batch) if batch else None)


def sample(size: int, count: int, device: torch.device | str = "cpu") -> Tensor:
    """All ``size`` positions if there are at most ``count``, else about ``count`` random ones; always the same."""
    if size <= count:
        return torch.arange(size, device=device)
    drawn = torch.randint(size, (count,), generator=torch.Generator().manual_seed(0))
    positions: Tensor = torch.unique(drawn)
    return positions.to(device)
