"""Chains of states as operators of linear_operator, the algebra of GPyTorch; ``laplex.gp.gpytorch`` exports them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from linear_operator import LinearOperator
from linear_operator.operators import DiagLinearOperator
from linear_operator.utils.errors import NotPSDError
from linear_operator.utils.generic import _to_helper
from torch import Tensor

from laplex._small import block_diagonal
from laplex._states.chain import Chain, Factored, factorise
from laplex.gp import _checks as checks

WHERE = "laplex.gp.gpytorch.StateLinearOperator"


class StateLinearOperator(LinearOperator):  # type: ignore[misc]
    """A symmetric matrix that a chain of states represents: products, solves and log determinants in O(n), exact.

        A_ij = p_i^T T_i ... T_{j+1} q_j  for i > j,    A_ii = p_i^T q_i + diag_i

    with points in the order of time. Multiples, sums with a diagonal matrix and sums with an operator over the same
    times are operators of this kind again. :class:`laplex.gp.gpytorch.LaplexKernel` makes them.

    Args:
        steps (*batch, n, s, s), p (*batch, n, s), q (*batch, n, s), diag (*batch, n): in float64.
        order (*batch, n): the row of every point.
        precision: the dtype that the operator reports.
    """

    __module__ = "laplex.gp.gpytorch"

    def __init__(
        self,
        steps: Tensor,
        p: Tensor,
        q: Tensor,
        diag: Tensor,
        order: Tensor,
        *,
        precision: torch.dtype = torch.float64,
    ) -> None:
        super().__init__(steps, p, q, diag, order, precision=precision)
        self._precision = precision

    @property
    def dtype(self) -> torch.dtype:
        return self._precision

    # --- What linear_operator requires -------------------------------------------------------------------------------

    def _size(self) -> torch.Size:
        diag = self._args[3]
        return torch.Size((*diag.shape, diag.shape[-1]))

    def _transpose_nonbatch(self) -> StateLinearOperator:
        return self

    def _matmul(self, rhs: Tensor) -> Tensor:
        operator, columns = self._with(rhs)
        chain = operator._chain()
        x = operator._take(columns)
        return operator._in_callers_form(chain.apply(x) + chain.diag[..., None] * x, rhs)

    def _diagonal(self) -> Tensor:
        _, p, q, diag, order = self._args
        values: Tensor = (p * q).sum(-1) + diag
        return values.gather(-1, order.argsort(-1)).to(self.dtype)

    def _expand_batch(self, batch_shape: Sequence[int]) -> StateLinearOperator:
        inner = len(self.batch_shape)
        args = (arg.expand(*batch_shape, *arg.shape[inner:]) for arg in self._args)
        return StateLinearOperator(*args, precision=self.dtype)

    def type(self, dtype: torch.dtype) -> StateLinearOperator:
        """The operator with another dtype, in which it returns results."""
        return StateLinearOperator(*self._args, precision=dtype)

    def to(self, *args: Any, **kwargs: Any) -> StateLinearOperator:
        """The operator with another device or dtype, as ``torch.Tensor.to`` takes them."""
        device, dtype = _to_helper(*args, **kwargs)
        return StateLinearOperator(*(arg.to(device=device) for arg in self._args), precision=dtype or self.dtype)

    # --- Sums and multiples that stay of this kind -------------------------------------------------------------------

    def __add__(self, other: Any) -> Any:
        if isinstance(other, DiagLinearOperator):
            return self.add_diagonal(other.diagonal())
        if isinstance(other, StateLinearOperator) and torch.equal(self._args[4], other._args[4]):
            return self._joined(other)
        return super().__add__(other)

    def _joined(self, other: StateLinearOperator) -> StateLinearOperator:
        """The sum of both operators: the states of both, side by side."""
        (steps, p, q, diag, order), (steps2, p2, q2, diag2, _) = self._args, other._args
        joined = block_diagonal([steps, steps2]), torch.cat([p, p2], -1), torch.cat([q, q2], -1)
        parts = *joined, diag + diag2, order
        return StateLinearOperator(*parts, precision=self.dtype)

    def add_diagonal(self, diag: Tensor) -> StateLinearOperator:
        """A + diag, for a number, or a tensor (*batch, n) or (*batch, 1)."""
        n = self.shape[-1]
        try:
            batch = torch.broadcast_shapes(diag.shape[:-1], self.batch_shape)
            expanded = diag.double().expand(*batch, n)
        except RuntimeError:
            raise ValueError(
                f"{WHERE}: `diag` must be a number, or broadcast to the diagonal of {tuple(self.shape)}, got "
                f"{tuple(diag.shape)}"
            ) from None
        operator = self if batch == self.batch_shape else self._expand_batch(batch)
        steps, p, q, old, order = operator._args
        return StateLinearOperator(steps, p, q, old + expanded.gather(-1, order), order, precision=self.dtype)

    def _mul_constant(self, other: Any) -> StateLinearOperator:
        steps, p, q, diag, order = self._args
        factor = torch.as_tensor(other, dtype=torch.float64, device=q.device)
        scaled = q * factor[..., None, None], diag * factor[..., None]
        return StateLinearOperator(steps, p, *scaled, order, precision=self.dtype)

    # --- Solves and determinants -------------------------------------------------------------------------------------

    def solve(self, right_tensor: Tensor, left_tensor: Tensor | None = None) -> Tensor:
        """A^-1 right, or left A^-1 right, exact."""
        operator, columns = self._with(right_tensor)
        solved = operator._in_callers_form(operator._factored().solve(operator._take(columns)), right_tensor)
        return solved if left_tensor is None else left_tensor @ solved

    def _solve(self, rhs: Tensor, preconditioner: Any = None, num_tridiag: int | None = 0) -> Any:
        if num_tridiag:
            return super()._solve(rhs, preconditioner, num_tridiag)
        return self.solve(rhs)

    def inv_quad(self, inv_quad_rhs: Tensor, reduce_inv_quad: bool = True) -> Tensor:
        """The trace of r^T A^-1 r, or its diagonal."""
        return self.inv_quad_logdet(inv_quad_rhs, reduce_inv_quad=reduce_inv_quad)[0]

    def inv_quad_logdet(
        self, inv_quad_rhs: Tensor | None = None, logdet: bool | None = False, reduce_inv_quad: bool | None = True
    ) -> tuple[Tensor, Tensor]:
        """The trace of r^T A^-1 r, or its diagonal, and log det A, exact; 0 for what is not asked for."""
        operator, columns = (self, None) if inv_quad_rhs is None else self._with(inv_quad_rhs)
        factored, zero = operator._factored(), torch.zeros((), dtype=self.dtype, device=self.device)
        quad = volume = zero
        if columns is not None:
            z, _ = factored.whiten(operator._take(columns))
            quads = operator._shaped((z.square() * factored.over_d[..., None]).sum(-2)).to(self.dtype)
            quad = quads.sum(-1) if reduce_inv_quad else quads
        if logdet:
            volume = operator._shaped(factored.d.log().sum(-1)).to(self.dtype)
        return quad, volume

    def zero_mean_mvn_samples(self, num_samples: int) -> Tensor:
        """Draws of N(0, A), (num_samples, *batch, n)."""
        factored = self._factored()
        white = torch.randn(*factored.d.shape, num_samples, dtype=torch.float64, device=self.device)
        drawn = self._put(factored.colour(factored.d.sqrt()[..., None] * white))
        return self._shaped(drawn).movedim(-1, 0).to(self.dtype)

    # --- Between (*batch, n, m) in rows and (h, n, m) in the order of time -------------------------------------------

    def _with(self, rhs: Tensor) -> tuple[StateLinearOperator, Tensor]:
        """The operator, and a vector (n,) or columns (*batch, n, m) as (*batch, n, m), in their common batch."""
        columns = rhs[:, None] if rhs.dim() == 1 else rhs
        if columns.shape[-2] != self.shape[-1]:
            raise RuntimeError(f"{WHERE}: of size {tuple(self.shape)}, cannot be multiplied by size {tuple(rhs.shape)}")
        batch = torch.broadcast_shapes(self.batch_shape, columns.shape[:-2])
        operator = self if batch == self.batch_shape else self._expand_batch(batch)
        return operator, columns.double().expand(*batch, *columns.shape[-2:])

    def _chain(self) -> Chain:
        inner = len(self.batch_shape)
        return Chain(*(arg.double().reshape(-1, *arg.shape[inner:]) for arg in self._args[:4]))

    def _factored(self) -> Factored:
        factored, failed = factorise(self._chain())
        if checks.readable(failed) and bool((failed >= 0).any()):
            raise NotPSDError(
                f"{WHERE}: the matrix must be positive definite; raise the noise of the likelihood, or check the "
                "kernel's parameters"
            )
        return factored

    def _take(self, values: Tensor) -> Tensor:
        order = self._args[4]
        flat = values.reshape(-1, *values.shape[-2:])
        return flat.gather(1, order.reshape(-1, order.shape[-1], 1).expand(flat.shape))

    def _put(self, values: Tensor) -> Tensor:
        order = self._args[4]
        back = order.reshape(-1, order.shape[-1]).argsort(-1)
        return values.gather(1, back[..., None].expand(values.shape))

    def _shaped(self, values: Tensor) -> Tensor:
        return values.reshape((*self.batch_shape, *values.shape[1:]))

    def _in_callers_form(self, values: Tensor, rhs: Tensor) -> Tensor:
        result = self._shaped(self._put(values)).to(rhs.dtype)
        return result[..., 0] if rhs.dim() == 1 else result


class CrossLinearOperator(LinearOperator):  # type: ignore[misc]
    """The covariances of some rows of a symmetric matrix with the others: its block [..., :n, n:] or [..., n:, :n].

    Args:
        operator: the symmetric matrix.
        n: where the rows are split.
        first: whether the rows are the first n.
    """

    def __init__(self, operator: StateLinearOperator, n: int, first: bool = True) -> None:
        super().__init__(operator, n=n, first=first)
        self.operator, self.n, self.first = operator, n, first

    def _size(self) -> torch.Size:
        sizes = self.n, self.operator.shape[-1] - self.n
        return torch.Size((*self.operator.batch_shape, *(sizes if self.first else sizes[::-1])))

    def _transpose_nonbatch(self) -> CrossLinearOperator:
        return CrossLinearOperator(self.operator, self.n, not self.first)

    def _matmul(self, rhs: Tensor) -> Tensor:
        columns = rhs[:, None] if rhs.dim() == 1 else rhs
        rows = self.operator.shape[-1] - columns.shape[-2]
        padded = torch.nn.functional.pad(columns, (0, 0, rows, 0) if self.first else (0, 0, 0, rows))
        product = self.operator._matmul(padded)
        part = product[..., : self.n, :] if self.first else product[..., self.n :, :]
        return part[..., 0] if rhs.dim() == 1 else part

    def _expand_batch(self, batch_shape: Sequence[int]) -> CrossLinearOperator:
        return CrossLinearOperator(self.operator._expand_batch(batch_shape), self.n, self.first)
