"""Kernels of laplex.gp in GPyTorch: exact, and in O(n). The module needs GPyTorch, which ``import laplex`` does not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from laplex.gp import _checks as checks
from laplex.gp._fit import trainable
from laplex.gp._kernel import Kernel
from laplex.gp._series import Series
from laplex.gp._systems import Bands

try:
    import gpytorch
    from gpytorch.models.exact_prediction_strategies import DefaultPredictionStrategy
    from linear_operator import LinearOperator
except ImportError as error:
    raise ImportError(
        f"laplex.gp.gpytorch: needs GPyTorch 1.13 or newer, which could not be imported ({error}); "
        "install it with `pip install 'gpytorch>=1.13'`"
    ) from error

from laplex.gp._linear_operator import CrossLinearOperator, StateLinearOperator

__all__ = ["LaplexKernel", "StateLinearOperator"]

WHERE = "laplex.gp.gpytorch.LaplexKernel"


class LaplexKernel(gpytorch.kernels.Kernel):  # type: ignore[misc]
    """A kernel of :mod:`laplex.gp` as a kernel of GPyTorch, for inputs with one column: times, in any order.

    With it, alone or in a ``ScaleKernel``, the likelihood of an ``ExactGP`` takes O(n), as does the predictive mean; no
    Cholesky factor, no conjugate gradients and no settings are involved. A variance at m times takes O(n m) in
    GPyTorch. Sums and products of such kernels are such kernels, too.

    Its numbers are trained, as :func:`laplex.gp.trainable` describes. They, and all computations, are in float64.

    Args:
        kernel: a kernel of :mod:`laplex.gp`, without bands.
        batch_shape: the shape of the parameters, for a batch of models.
        active_dims: the column of the inputs with the times, as a tuple of one number.

    Example:
        >>> from laplex.gp.gpytorch import LaplexKernel
        >>> covariance = LaplexKernel(laplex.gp.Matern32(scale=2.0))
        >>> covariance(torch.rand(1000, 1)).shape
        torch.Size([1000, 1000])
    """

    kernel: Kernel

    def __init__(
        self, kernel: Kernel, *, batch_shape: Sequence[int] = (), active_dims: tuple[int, ...] | None = None
    ) -> None:
        checks.check_kernel(WHERE, kernel)
        if any(isinstance(part, Bands) for part in kernel.modules()):
            raise ValueError(
                f"{WHERE}: `kernel` must be one without bands; use a laplex.gp.GaussianProcess with `band`"
            )
        inner = trainable(kernel, batch_shape=batch_shape)
        super().__init__(batch_shape=inner.batch_shape, active_dims=active_dims)
        self.kernel = inner

    def forward(
        self, x1: Tensor, x2: Tensor, diag: bool = False, last_dim_is_batch: bool = False, **_: Any
    ) -> Tensor | LinearOperator:
        """The covariances of times x1 (*batch, n, 1) and x2 (*batch, m, 1), as an operator."""
        if last_dim_is_batch or x1.shape[-1] != 1 or x2.shape[-1] != 1:
            raise ValueError(
                f"{WHERE}: inputs must have one column, of times, got shapes {tuple(x1.shape)} and {tuple(x2.shape)}; "
                "choose the column by `active_dims`"
            )
        t1, t2 = (x[..., 0].double() for x in (x1, x2))
        same = x1 is x2 or (x1.shape == x2.shape and torch.equal(x1, x2))
        if diag:
            return (self._operator(t1).diagonal() if same else self._paired(t1, t2)).to(x1.dtype)
        if same:
            return self._operator(t1, x1.dtype)
        lead = torch.broadcast_shapes(t1.shape[:-1], t2.shape[:-1])
        both = torch.cat([t.expand(*lead, t.shape[-1]) for t in (t1, t2)], -1)
        n = t1.shape[-1]
        return CrossLinearOperator(self._operator(both, x1.dtype), n)

    def prediction_strategy(self, *arguments: Any) -> DefaultPredictionStrategy:
        """The strategy by which GPyTorch predicts: its own, with the solves of this module."""
        return _Strategy(*arguments)

    def __add__(self, other: Any) -> Any:
        if self._combines(other):
            return LaplexKernel(self.kernel + other.kernel, active_dims=self._column())
        return super().__add__(other)

    def __mul__(self, other: Any) -> Any:
        if self._combines(other):
            return LaplexKernel(self.kernel * other.kernel, active_dims=self._column())
        return super().__mul__(other)

    def _combines(self, other: Any) -> bool:
        return isinstance(other, LaplexKernel) and self._column() == other._column()

    def _column(self) -> tuple[int, ...] | None:
        return None if self.active_dims is None else tuple(self.active_dims.tolist())

    def __getitem__(self, index: Any) -> LaplexKernel:
        """The part of a batch of kernels that GPyTorch asks for; only a single kernel, without a batch, has one."""
        if not self.batch_shape:
            return self
        raise NotImplementedError(f"{WHERE}: parts of a batch of kernels are not supported; use a model for each part")

    def _operator(self, t: Tensor, dtype: torch.dtype = torch.float64) -> StateLinearOperator:
        batch = torch.Size(torch.broadcast_shapes(t.shape[:-1], self.kernel.batch_shape))
        series, components = Series(t, batch, None), self.kernel.components()
        line = series.line()
        chain, order = line.chain(components, torch.zeros_like(series.t), series.per_series), line.order
        if order is None:
            order = torch.arange(series.n, device=t.device).expand_as(series.t)
        return StateLinearOperator(*(series.shaped(part) for part in (*chain, order)), precision=dtype)

    def _paired(self, t1: Tensor, t2: Tensor) -> Tensor:
        """k(t1_i, t2_i), (*batch, n)."""
        if self.kernel.batch_shape:
            dense: Tensor = self.kernel(t1, t2)
            return dense.diagonal(dim1=-2, dim2=-1)
        pairs: Tensor = self.kernel(t1[..., None], t2[..., None])
        return pairs[..., 0, 0]


class _Strategy(DefaultPredictionStrategy):  # type: ignore[misc]
    """GPyTorch's strategy with K evaluated, so that K plus noise is a StateLinearOperator rather than a lazy sum."""

    def __init__(  # GPyTorch passes these by name
        self, train_inputs: Any, train_prior_dist: Any, train_labels: Any, likelihood: Any, **options: Any
    ) -> None:
        prior = train_prior_dist
        evaluated = type(prior)(prior.mean, prior.lazy_covariance_matrix.evaluate_kernel())
        super().__init__(train_inputs, evaluated, train_labels, likelihood, **options)
