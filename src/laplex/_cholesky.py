"""The Cholesky factor of a symmetric operator plus a diagonal, as a lazy matrix."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from laplex import _checks
from laplex._checks import saved
from laplex._errors import frozen, set_fields
from laplex._quasisep.autograd import as_given, in_order, multiply
from laplex._quasisep.systems import System


class CholeskyFactor:
    r"""The matrix C with C C^T = A, made by ``.cholesky(diag)`` of a symmetric operator; products and solves are O(n).

    If the anchors are sorted, C is the Cholesky factor of A: lower triangular with a positive diagonal. If they are
    not, C is that factor with rows and columns put into the caller's order. For z ~ N(0, I), ``C @ z`` is a sample of
    N(0, A); for y ~ N(0, A), ``C.solve(y)`` is white noise. Both are differentiable once in their operand and in all
    tensors of A, in reverse mode only. Equal anchors a are sorted by their indices; the factor depends on that order,
    and for K its derivative does, too.

    Example:
        >>> C = LaplaceOperator(torch.randn(1000), tau=0.5).cholesky(diag=0.1)
        >>> C.sample(5).shape, (C @ torch.randn(1000, 3)).shape
        (torch.Size([5, 1000]), torch.Size([1000, 3]))
    """

    _system: System
    __module__ = "laplex"  # users import it from there, and files name it so
    __setattr__ = frozen
    __array_ufunc__ = None  # NumPy then leaves array @ C to __rmatmul__ below, whose error says what to do

    def __init__(self, system: System) -> None:
        maker = "K.cholesky(diag) of a symmetric K = laplex.LaplaceOperator(a), or of a GramOperator"
        _checks.made_by("CholeskyFactor", maker, system, System)
        set_fields(self, _system=system if torch.is_grad_enabled() else system.detached())

    @property
    def shape(self) -> torch.Size:
        n = self._system.diag.shape[-1]
        return torch.Size((*self._system.batch, n, n))

    @property
    def dtype(self) -> torch.dtype:
        return self._system.dtype

    @property
    def device(self) -> torch.device:
        return self._system.diag.device

    def __matmul__(self, x: Tensor) -> Tensor:
        """C @ x for x (n,) or (..., n, m)."""
        return self._multiply("CholeskyFactor @ y", x, inverse=False)

    def __rmatmul__(self, x: object) -> Tensor:
        raise TypeError(_checks.not_defined_for_factors("x @ C"))

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """torch.matmul(C, x); every other function of torch would need the dense matrix, and raises."""
        if torch.compiler.is_compiling():  # torch.compile passes C @ y as y @ C
            raise RuntimeError(_checks.not_captured("CholeskyFactor @ y"))
        if func is not torch.matmul or kwargs or not isinstance(args[0], CholeskyFactor):
            raise TypeError(_checks.not_defined_for_factors(func.__name__))
        return args[0].__matmul__(args[1])

    def solve(self, y: Tensor) -> Tensor:
        """C^-1 y for y (n,) or (..., n, m)."""
        return self._multiply("CholeskyFactor.solve", y, inverse=True)

    def to_dense(self) -> Tensor:
        """C as a dense tensor (*H, n, n), in the caller's order."""
        return self @ torch.eye(self.shape[-1], dtype=self.dtype, device=self.device)

    def logdet(self) -> Tensor:
        """log det C, (*H), which is half of log det A."""
        return self._system.logdet() / 2

    def sample(self, count: int | None = None, *, generator: torch.Generator | None = None) -> Tensor:
        """Samples of N(0, A): one, (*H, n), or ``count``, (count, *H, n). ``generator`` is that of ``torch.randn``."""
        _checks.sample_count("CholeskyFactor.sample", count)
        *batch, n, _ = self.shape
        draws = 1 if count is None else count
        noise = torch.randn(*batch, n, draws, generator=generator, dtype=self.dtype, device=self.device)
        samples = self._multiply("CholeskyFactor.sample", noise, inverse=False).movedim(-1, 0)
        return samples[0] if count is None else samples

    def _multiply(self, where: str, x: Tensor, *, inverse: bool) -> Tensor:
        order, scale = self._system.factored.order, self._system.scale
        root = None if scale is None else scale.sqrt()[:, None, None]  # of s K + D = s (K + D / s)

        def apply(columns: Tensor) -> Tensor:
            y = multiply(in_order(columns, order), self._system.generators, self._system.factored, inverse=inverse)
            return as_given(y, order) if root is None else as_given(y, order) * (1 / root if inverse else root)

        return self._system.on_columns(where, x, apply)

    def __getstate__(self) -> dict[str, Any]:
        if self._system.requires_grad:
            raise RuntimeError(_checks.not_copied())
        return self._system.saved()

    def __setstate__(self, state: dict[str, Any]) -> None:
        set_fields(self, _system=System.loaded(saved.factor(state)))

    def __repr__(self) -> str:
        shape = " x ".join(map(str, self.shape))
        return f"CholeskyFactor({shape}, {self.dtype}, device={self.device})"


torch.serialization.add_safe_globals([CholeskyFactor])
