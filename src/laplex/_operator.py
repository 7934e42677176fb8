"""K(a, b) as a lazy matrix: an immutable object that holds the anchors and calls ``laplex.linear``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy
import torch
from torch import Tensor

from laplex import _autocast, _checks, reference
from laplex._checks import saved
from laplex._cholesky import CholeskyFactor
from laplex._errors import frozen, set_fields
from laplex._functional import linear
from laplex._gram_operator import GramOperator, Kernel
from laplex._plan import Plan
from laplex._quasisep import systems as _systems
from laplex._selection import selection
from laplex._shapes import spread_tau

if TYPE_CHECKING:
    from scipy.sparse.linalg import LinearOperator


class LaplaceOperator(Kernel):
    """The n x k matrix K[i, j] = exp(-|a_i - b_j| / tau) cos(phi_i - psi_j), held as its anchors.

    Args:
        a (*H, n): row anchors. Leading dimensions are a batch of matrices: (n, 1) is n matrices of 1 x 1, of which
            solves, determinants and factors warn.
        b (*H, k): column anchors; None makes the symmetric matrix with b = a (and psi = phi).
        tau: positive length scale: a number, a tensor of one element, or a tensor that broadcasts to H.
        phi (*H, n), psi (*H, k): phases, both or neither; with b=None, phi alone.
        plan: a :class:`laplex.Plan` of the anchors; built here if None.

    Example:
        >>> K = LaplaceOperator(torch.randn(1000), torch.randn(500), tau=0.5)
        >>> (K @ torch.randn(500, 3)).shape, (torch.randn(1000) @ K).shape
        (torch.Size([1000, 3]), torch.Size([500]))
    """

    a: Tensor
    b: Tensor
    tau: float | Tensor
    phi: Tensor | None
    psi: Tensor | None
    plan: Plan
    _batch: tuple[int, ...]
    __module__ = "laplex"  # the name that users import and that saved files hold
    __setattr__ = frozen
    __array_ufunc__ = None  # NumPy then leaves array @ K to __rmatmul__, whose error says what to do

    def __init__(
        self,
        a: Tensor,
        b: Tensor | None = None,
        tau: float | Tensor = 1.0,
        *,
        phi: Tensor | None = None,
        psi: Tensor | None = None,
        plan: Plan | None = None,
    ) -> None:
        where = "laplex.LaplaceOperator"
        if b is None:
            b = a
            psi = phi if psi is None else psi
        _checks.anchor_pair(where, a, b)
        _checks.length_scale(where, tau, a)
        batch = _checks.batch_shape(where, a, b, tau)
        _checks.phases(where, a, b, phi, psi)
        if plan is None:
            plan = Plan(a, b)
            _checks.resolution(where, tau, a)  # a plan has waited for the device, too
        else:
            if not isinstance(plan, Plan):
                raise TypeError(_checks.not_a_plan(where, plan))
            plan._check_shape(where, (*batch, a.shape[-1], b.shape[-1]), a.device)
            if a.device.type == "cpu":
                _checks.resolution(where, tau, a)
        tau = tau if isinstance(tau, Tensor) else float(tau)
        set_fields(self, a=a, b=b, tau=tau, phi=phi, psi=psi, plan=plan, _batch=batch)

    @property
    def shape(self) -> torch.Size:
        return torch.Size((*self._batch, self.a.shape[-1], self.b.shape[-1]))

    @property
    def dtype(self) -> torch.dtype:
        return self.a.dtype

    @property
    def device(self) -> torch.device:
        return self.a.device

    @property
    def requires_grad(self) -> bool:
        held = (self.a, self.b, self.tau, self.phi, self.psi)
        return any(isinstance(value, Tensor) and value.requires_grad for value in held)

    @property
    def mT(self) -> LaplaceOperator:
        """The transpose: rows and columns are swapped, the plan is shared."""
        return LaplaceOperator(self.b, self.a, self.tau, phi=self.psi, psi=self.phi, plan=self.plan.mT)

    @property
    def T(self) -> LaplaceOperator:
        """The transpose of a single matrix; of a batch use ``mT``."""
        if self._batch:
            raise ValueError(f"LaplaceOperator.T: needs a single matrix, got batch shape {self._batch}; use .mT")
        return self.mT

    def __matmul__(self, x: Tensor) -> Tensor:
        """K @ x for x (k,) or (*H, k, m)."""
        _checks.check_tensor("LaplaceOperator @ x", "x", x)
        _checks.inner_size("LaplaceOperator @ x", self.shape, x, side=-1)
        vector = x.dim() == 1
        columns = x[:, None] if vector else x
        y = linear(columns.mT, self.a, self.b, self.tau, phi=self.phi, psi=self.psi, plan=self.plan).mT
        return y[..., 0] if vector else y

    def __rmatmul__(self, x: Tensor) -> Tensor:
        """x @ K for x (n,) or (*H, m, n)."""
        _checks.check_tensor("x @ LaplaceOperator", "x", x)
        _checks.inner_size("x @ LaplaceOperator", self.shape, x, side=-2)
        vector = x.dim() == 1
        rows = x[None, :] if vector else x
        y = linear(rows, self.b, self.a, self.tau, phi=self.psi, psi=self.phi, plan=self.plan.mT)
        return y[..., 0, :] if vector else y

    def __getitem__(self, key: Any) -> LaplaceOperator:
        """K[rows, cols], of every matrix of a batch; of a batch also K[matrices]; lazy, over the chosen anchors.

        Every part is an operator, so an int keeps its dimension among rows and columns, as a list of one would: K[3, 5]
        is 1 x 1. A single index is of the first dimension, as in torch. Of a single matrix K[rows] is K[rows, :]; of a
        batch K[2] is a matrix, and K[:2] a smaller batch.

        If K is symmetric and rows and cols are the same object, or equal slices, the result is symmetric.
        """
        chosen = selection("LaplaceOperator", key, self.shape, self.device)

        def part(values: Tensor, indices: slice | Tensor) -> Tensor:
            return chosen.among_matrices(values, (*self._batch, values.shape[-1]))[..., indices]

        tau = self.tau
        if isinstance(tau, Tensor) and tau.numel() != 1:
            tau = chosen.among_matrices(tau, self._batch)
        a, phi = part(self.a, chosen.rows), None if self.phi is None else part(self.phi, chosen.rows)
        if chosen.same and self._symmetric:
            return LaplaceOperator(a, tau=tau, phi=phi)
        psi = None if self.psi is None else part(self.psi, chosen.cols)
        return LaplaceOperator(a, part(self.b, chosen.cols), tau, phi=phi, psi=psi)

    def diagonal(self) -> Tensor:
        """The entries K[i, i], (*H, min(n, k)), in O(n)."""
        _checks.positive_on_cpu("LaplaceOperator.diagonal", self.tau, self._batch)
        size = torch.sym_min(*self.shape[-2:])  # min() would bind an exported graph to these sizes
        a, b = self.a[..., :size], self.b[..., :size]
        scale = spread_tau(self.tau, 1) if isinstance(self.tau, Tensor) else self.tau
        entries = torch.exp(-(a - b).abs() / scale)
        if self.phi is not None and self.psi is not None:
            entries = entries * torch.cos(self.phi[..., :size] - self.psi[..., :size])
        return entries.to(self.dtype)

    def to_dense(self) -> Tensor:
        """The dense matrix, n * k numbers: to inspect, and for small sizes."""
        _checks.positive_on_cpu("LaplaceOperator.to_dense", self.tau, self._batch)
        return reference.kernel(self.a, self.b, self.tau, phi=self.phi, psi=self.psi).to(self.dtype)

    def gram(self, weight: Tensor | None = None) -> GramOperator:
        """The lazy symmetric matrix K diag(weight) K^T, n x n; weight (k,) or (*H, k), None for ones."""
        return GramOperator(self, weight)

    def solve(self, y: Tensor, diag: float | Tensor | None = None) -> Tensor:
        r"""x = (K + diag)^-1 y for the symmetric K = LaplaceOperator(a), in O(n).

        Without a diagonal no two anchors may be equal; K then has a tridiagonal inverse. The solve is a recursion of
        positive terms in float64. On the CPU it runs in C++; on CUDA, and without the compiled core, it runs in plain
        torch as a parallel scan. On CUDA a fault makes the result NaN. Differentiable to any order in y, diag, a, tau
        and phi, in reverse mode. Forward mode and torch.func transforms raise.

        Args:
            y (n,) or (..., n, m): right-hand sides.
            diag: a positive number, or positive values that broadcast to (*H, n).

        Example:
            >>> K = LaplaceOperator(torch.randn(1000).double(), tau=0.5)
            >>> y = torch.randn(1000).double()
            >>> x = K.solve(y, 0.1)
            >>> torch.allclose(K @ x + 0.1 * x, y)
            True
        """
        return self._system("LaplaceOperator.solve", diag).solve(y)

    def logdet(self, diag: float | Tensor | None = None) -> Tensor:
        """log det(K + diag), (*H), for the symmetric K, in O(n).

        Differentiable once in diag, a, tau and phi, in reverse mode only.
        """
        return self._system("LaplaceOperator.logdet", diag).logdet()

    def cholesky(self, diag: float | Tensor | None = None) -> CholeskyFactor:
        """C with C C^T = K + diag, for the symmetric K, in O(n); it samples from N(0, K + diag) and whitens."""
        return CholeskyFactor(self._system("LaplaceOperator.cholesky", diag))

    def sample(
        self, count: int | None = None, diag: float | Tensor | None = None, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Samples of N(0, K + diag), for the symmetric K, in O(n): (*H, n), or (count, *H, n).

        For many calls make ``K.cholesky(diag)`` once and use its ``sample``. ``generator`` is that of
        ``torch.randn``.
        """
        return CholeskyFactor(self._system("LaplaceOperator.sample", diag)).sample(count, generator=generator)

    @property
    def _symmetric(self) -> bool:
        return self.b is self.a and self.psi is self.phi

    def _system(self, where: str, diag: float | Tensor | None) -> _systems.System:
        if not self._symmetric:
            raise ValueError(_checks.not_symmetric(where))
        _checks.reverse_mode_only(where, self.a, self.tau, self.phi, diag)
        _checks.one_by_one(where, self.a, self.b)
        added = None if diag is None else _checks.diagonal(where, diag, self.a, self._batch, optional=True)
        return _systems.kernel_system(where, self._flat(where), added, self._batch)

    def _flat(self, where: str) -> _systems.Flat:
        self.plan._check_shape(where, tuple(self.shape), self.device)  # a tensor may have got another memory since
        return _systems.flat(where, self)

    def _mapped(self, function: Callable[[Tensor], Tensor]) -> LaplaceOperator:
        """The operator of the mapped tensors, with this plan if they are of the same dtype and device."""
        a, tau = function(self.a), function(self.tau) if isinstance(self.tau, Tensor) else self.tau
        b = a if self.b is self.a else function(self.b)
        phi = None if self.phi is None else function(self.phi)
        psi = phi if self.psi is self.phi or self.psi is None else function(self.psi)
        if a is self.a and b is self.b and tau is self.tau and phi is self.phi and psi is self.psi:
            return self
        sorted_alike = a.dtype == self.dtype and a.device == self.device  # rounding may tie anchors
        return LaplaceOperator(a, b, tau, phi=phi, psi=psi, plan=self.plan if sorted_alike else None)

    def aslinearoperator(self) -> LinearOperator:
        """A SciPy LinearOperator over NumPy arrays, for its eigenvalue and least-squares solvers (needs scipy)."""
        if self._batch:
            raise ValueError(f"aslinearoperator: needs a single matrix, got batch shape {self._batch}; index a and b")
        try:
            from scipy.sparse.linalg import LinearOperator
        except ImportError:
            raise RuntimeError("aslinearoperator: SciPy is not installed; pip install scipy") from None

        forward, adjoint = partial(_on_arrays, self), partial(_on_arrays, self.mT)
        dtype = torch.empty((), dtype=self.dtype, device="cpu").numpy().dtype
        return LinearOperator(
            tuple(self.shape), matvec=forward, rmatvec=adjoint, matmat=forward, rmatmat=adjoint, dtype=dtype
        )

    def __setstate__(self, state: dict[str, Any]) -> None:
        """As the constructor: what comes from a file is checked as what comes from a caller."""
        fields = saved.OPERATOR.fields(state, {"a", "b", "tau", "phi", "psi", "plan", "_batch"})
        del fields["_batch"]
        saved.OPERATOR.require(
            isinstance(fields["plan"], Plan) and fields["plan"].__dict__, "`plan` must be a laplex.Plan"
        )
        LaplaceOperator.__init__(self, **fields)

    def __repr__(self) -> str:
        phased = ", phased" if self.phi is not None else ""
        shape = " x ".join(map(str, self.shape))
        return f"LaplaceOperator({shape}, {self.dtype}, device={self.device}{phased}, {self.plan._order.kept_as})"


torch.serialization.add_safe_globals([LaplaceOperator])


def _on_arrays(matrix: LaplaceOperator, x: Any) -> Any:
    """matrix @ x for NumPy arrays. A function of the module, so that SciPy's operator can be pickled."""
    array = numpy.require(x, requirements=["C", "W"])  # torch refuses negative strides, warns if read-only
    with torch.no_grad(), _autocast.off(matrix.device):
        tensor = torch.as_tensor(array, device=matrix.device)
        return (matrix @ tensor.to(torch.promote_types(tensor.dtype, matrix.dtype))).cpu().numpy()
