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
from laplex._errors import frozen
from laplex._functional import linear
from laplex._gram_operator import GramOperator, Kernel
from laplex._plan import Plan
from laplex._quasisep import systems as _systems
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
        self.__dict__.update(a=a, b=b, tau=tau, phi=phi, psi=psi, plan=plan, _batch=batch)

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
        _checks.is_tensor("LaplaceOperator @ x", "x", x)
        vector = x.dim() == 1
        columns = x[:, None] if vector else x
        self._check_inner("LaplaceOperator @ x", x, columns.shape[-2] if x.dim() else -1, self.shape[-1])
        y = linear(columns.mT, self.a, self.b, self.tau, phi=self.phi, psi=self.psi, plan=self.plan).mT
        return y[..., 0] if vector else y

    def __rmatmul__(self, x: Tensor) -> Tensor:
        """x @ K for x (n,) or (*H, m, n)."""
        _checks.is_tensor("x @ LaplaceOperator", "x", x)
        vector = x.dim() == 1
        rows = x[None, :] if vector else x
        self._check_inner("x @ LaplaceOperator", x, rows.shape[-1] if x.dim() else -1, self.shape[-2])
        y = linear(rows, self.b, self.a, self.tau, phi=self.psi, psi=self.phi, plan=self.plan.mT)
        return y[..., 0, :] if vector else y

    def _check_inner(self, where: str, x: Tensor, got: int, required: int) -> None:
        if got != required:
            raise ValueError(
                f"{where}: the operator is {tuple(self.shape)} and `x` must have size {required} where they meet, "
                f"got shape {tuple(x.shape)}{_checks.column_hint(self._batch, required, x.shape)}"
            )

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """torch.matmul, and @ with a tensor on the left. Other functions need the dense matrix, and raise."""
        if func not in (torch.matmul, Tensor.matmul, Tensor.__matmul__) or kwargs:
            raise TypeError(_checks.not_defined(func.__name__, "LaplaceOperator"))
        if func is not torch.matmul and torch.compiler.is_compiling():  # K @ x arrives as x @ K
            raise TypeError(
                "LaplaceOperator: inside torch.compile write torch.matmul(K, x) for K @ x, and so for x @ K"
            )
        left, right = args
        return left.__matmul__(right) if isinstance(left, LaplaceOperator) else right.__rmatmul__(left)

    def __getitem__(self, key: Any) -> LaplaceOperator:
        """K[rows, cols] as a lazy matrix over the chosen anchors. An int keeps its dimension, as a list of one would.

        If K is symmetric and rows and cols are the same object, or equal slices, the result is symmetric.
        """
        if not isinstance(key, tuple) or len(key) != 2 or any(part is Ellipsis or part is None for part in key):
            raise TypeError(_checks.not_an_index(key))
        rows, cols = (_as_selection(part, self.device) for part in key)
        phi = None if self.phi is None else self.phi[..., rows]
        psi = None if self.psi is None else self.psi[..., cols]
        a = self.a[..., rows]
        same = key[0] is key[1] or (isinstance(key[0], slice) and key[0] == key[1])
        if same and self._symmetric:
            return LaplaceOperator(a, tau=self.tau, phi=phi)
        return LaplaceOperator(a, self.b[..., cols], self.tau, phi=phi, psi=psi)

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


def _as_selection(part: Any, device: torch.device) -> slice | Tensor:
    """A slice, or a tensor of indices that keeps the dimension: an int becomes a list of one."""
    if isinstance(part, slice):
        return part
    if isinstance(part, numpy.ndarray):
        part = numpy.require(part, requirements=["C", "W"])  # torch warns about read-only memory
    indices = torch.as_tensor(part, device=device)
    if indices.numel() == 0 and not isinstance(part, Tensor):  # torch makes an empty list floating point
        indices = indices.long()
    return indices.reshape(1) if indices.dim() == 0 else indices
