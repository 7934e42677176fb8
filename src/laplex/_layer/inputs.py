"""What goes into a layer's step, as backends see it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from laplex._backends import Backend


class Inputs(NamedTuple):
    """The tensors of a layer's product with r kernels."""

    x: Tensor  # (..., k)
    a: Tensor  # (r, n)
    b: Tensor  # (r, k)
    tau: Tensor  # (r,)
    mix: Tensor  # (r,)
    bias: Tensor | None  # (n,)
    phi: Tensor | None  # (r, n)
    psi: Tensor | None  # (r, k)

    @property
    def given(self) -> tuple[Tensor, ...]:
        """The tensors that are not None."""
        return tuple([tensor for tensor in self if tensor is not None])


class Factors(NamedTuple):
    """Numbers by which the gradients of parameters are multiplied."""

    a: float = 1.0
    b: float = 1.0
    tau: float = 1.0
    mix: float = 1.0
    phases: float = 1.0

    @property
    def each(self) -> tuple[float, ...]:
        """The factors for a, b, tau, mix, phi and psi."""
        return (*self, self.phases)


ONES = Factors()


class Settings(NamedTuple):
    """Everything that a step depends on besides its tensors."""

    backend: Backend
    present: tuple[bool, ...]  # which fields of ``Inputs`` are there
    needs: tuple[bool, ...]  # which of their gradients are needed
    factors: Factors

    def inputs(self, given: Sequence[Tensor]) -> tuple[Inputs, tuple[Tensor, ...]]:
        """The inputs, taken from tensors that begin with ``Inputs.given``, and the remaining tensors."""
        tensors = iter(given)
        return Inputs(*[next(tensors) if present else None for present in self.present]), (*tensors,)  # type: ignore[arg-type]

    def needed(self, gradients: Sequence[Tensor | None]) -> tuple[Tensor, ...]:
        """The gradients that are needed, out of gradients in the order of ``Inputs``."""
        pairs = zip(gradients, self.needs, strict=True)
        return tuple([gradient for gradient, need in pairs if need and gradient is not None])

    def all_gradients(self, needed: Sequence[Tensor]) -> Iterator[Any]:
        """The inverse of :meth:`needed`: None for gradients that are not needed."""
        gradients = iter(needed)
        return (next(gradients) if need else None for need in self.needs)
