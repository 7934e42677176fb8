"""The matrices that are summed to W, as backends see them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor


class Kernels(NamedTuple):
    """Matrices K_q of which each ``summed`` consecutive ones give one W. H is (number of matrices,), or () for one."""

    target: Tensor  # (*H, n)
    source: Tensor  # (*H, k)
    tau: Tensor  # H, float32 or float64
    weight: Tensor | None  # H; None for ones
    phi: Tensor | None  # (*H, n)
    psi: Tensor | None  # (*H, k)
    summed: int

    @property
    def tensors(self) -> tuple[Tensor | None, ...]:
        """What can be differentiated."""
        return self[:6]

    @property
    def shape(self) -> tuple[int, int, int]:
        """Results, rows and columns: (h, n, k)."""
        return self.tau.numel() // self.summed, self.target.shape[-1], self.source.shape[-1]

    @property
    def shape_of_results(self) -> tuple[int, ...]:
        """(n, k) if all matrices are summed, else (h, n, k)."""
        return self.shape[1:] if self.summed == self.tau.numel() else self.shape

    def each(self, tensors: Sequence[Tensor | None], q: int) -> tuple[Any, ...]:
        """Of tensors in the order of :attr:`tensors`, what belongs to the q-th matrix of every sum, as views: (h, n),
        (h, k), (h,), (h,), (h, n), (h, k)."""
        h, n, k = self.shape
        shapes = (n,), (k,), (), (), (n,), (k,)
        return tuple(
            None if tensor is None else tensor.reshape(h, self.summed, *shape)[:, q]
            for tensor, shape in zip(tensors, shapes, strict=True)
        )

    def one(self, q: int) -> tuple[Any, ...]:
        """The q-th matrix of every sum, in float64; None for what is not there."""
        return tuple(None if tensor is None else tensor.double() for tensor in self.each(self.tensors, q))


class Needs(NamedTuple):
    """Which gradients are needed; those of targets and sources come together, and those of phi and psi."""

    anchors: bool
    tau: bool
    weight: bool
    phase: bool

    @classmethod
    def from_flags(cls, needed: Sequence[bool]) -> Needs:
        """Of flags in the order of ``Kernels.tensors``."""
        target, source, tau, weight, phi, psi = needed
        return cls(target or source, tau, weight, phi or psi)

    @property
    def flags(self) -> tuple[bool, ...]:
        """Flags in the order of ``Kernels.tensors``."""
        return self.anchors, self.anchors, self.tau, self.weight, self.phase, self.phase


Gradients = tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None, Tensor | None, Tensor | None]


def gradients_like(kernels: Kernels, needs: Needs) -> Gradients:
    """Memory for the gradients that are needed, in the order of ``Kernels.tensors``."""
    bars = [
        tensor.new_empty(tensor.shape) if need and tensor is not None else None
        for tensor, need in zip(kernels.tensors, needs.flags, strict=True)
    ]
    return bars[0], bars[1], bars[2], bars[3], bars[4], bars[5]
