"""K diag(weight) K^T as a lazy matrix: products and diagonal in O(n + k), solves in O(n)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from laplex import _autocast, _checks
from laplex._algebra import Algebra
from laplex._checks import algebra as _algebra_checks
from laplex._checks import saved
from laplex._cholesky import CholeskyFactor
from laplex._errors import frozen, set_fields
from laplex._functional import gram, linear
from laplex._quasisep import systems as _systems
from laplex._selection import ALL, selection
from laplex._shapes import flat_anchors

if TYPE_CHECKING:
    from laplex._operator import LaplaceOperator


class Kernel(Algebra):
    """The base of :class:`laplex.LaplaceOperator`, by which a Gram matrix knows it: that module imports this one."""


class GramOperator(Algebra):
    r"""The symmetric n x n matrix M = K diag(weight) K^T, held as K and the weights; ``K.gram(weight)`` makes it.

    With a sorted, M is quasiseparable of order 2, or 4 with phases: for a_i >= a_j

        M_ij = exp(-(a_i - a_j) / tau) (U_j + W_ij + V_i)

    U_j and V_i are the weights left of a_j and right of a_i, with decays at tau / 2, and W_ij is the weight between
    them. So for weight >= 0 and a positive ``diag``, M + diag is factored and solved in O(n), after O((n + k) log(n +
    k)) for the order and the sums. All is computed in float64, whatever the dtype.

    **How small diag may be.** M is singular where k < n, and close to it in many other cases, so M + diag may be
    ill-conditioned. Fractions below are of M's diagonal.

    - On the CPU with the compiled core, solves lose digits below about 1e-14, or 1e-6 with phases.
    - On CUDA, and on the CPU without the compiled core, the factor is found by a fixed number of iterations. Where
      anchors come in tight clusters, they are too few for ``diag`` below about 1e-9, or 1e-6 with phases. **Solves, log
      determinants and factors can then be wrong without notice.** Measured: benchmarks/results/refinement-cpu.json.
    - Everywhere, a pivot of the factorisation below 1e-15 is an error, or on CUDA NaN.

    A solution is refined once, by a product with K and one with K^T. Log determinants and factors are not refined: they
    are as accurate as float64 and the condition number of M + diag allow. With phases and a small ``diag`` they lose
    more digits than that, without notice.

    Args:
        kernel: the :class:`laplex.LaplaceOperator` K, (*H, n, k).
        weight: (k,) or (*H, k); None for ones. Of any sign for products, not negative for solves.

    Example:
        >>> M = LaplaceOperator(torch.randn(1000).double(), torch.randn(5000).double()).gram()
        >>> y = torch.randn(1000).double()
        >>> x = M.solve(y, diag=0.1)
        >>> torch.allclose(M @ x + 0.1 * x, y)
        True
    """

    kernel: LaplaceOperator
    weight: Tensor | None
    __module__ = "laplex"  # the name that users import and that saved files hold
    __setattr__ = frozen
    __array_ufunc__ = None  # NumPy then leaves array @ M to __rmatmul__, whose error says what to do

    def __init__(self, kernel: LaplaceOperator, weight: Tensor | None = None) -> None:
        maker = "K.gram(weight) of K = laplex.LaplaceOperator(a, b)"
        _checks.made_by("GramOperator", maker, kernel, Kernel)
        _checks.one_weight("LaplaceOperator.gram", weight, kernel.b, tuple(kernel.shape[:-2]))
        set_fields(self, kernel=kernel, weight=weight)

    @property
    def shape(self) -> torch.Size:
        *batch, n, _ = self.kernel.shape
        return torch.Size((*batch, n, n))

    @property
    def dtype(self) -> torch.dtype:
        return self.kernel.dtype

    @property
    def device(self) -> torch.device:
        return self.kernel.device

    @property
    def requires_grad(self) -> bool:
        return self.kernel.requires_grad or (self.weight is not None and self.weight.requires_grad)

    @property
    def mT(self) -> GramOperator:
        """The matrix itself: it is symmetric."""
        return self

    @property
    def T(self) -> GramOperator:
        """The same: the matrix is symmetric. Of a batch use ``mT``."""
        batch = tuple(self.shape[:-2])
        if batch:
            raise ValueError(f"GramOperator.T: needs a single matrix, got batch shape {batch}; use .mT")
        return self

    def __matmul__(self, x: Tensor) -> Tensor:
        """M @ x for x (n,) or (*H, n, m), as two products: K (weight * (K^T x)), in float32 at least."""
        _checks.check_tensor("GramOperator @ x", "x", x)
        if x.dim() == 0 or x.shape[max(x.dim() - 2, 0)] != self.shape[-1]:
            raise ValueError(
                f"GramOperator @ x: the matrix is {tuple(self.shape)} and `x` must have size {self.shape[-1]} where "
                f"they meet, got shape {tuple(x.shape)}"
            )
        x = _autocast.cast(x)
        if x.dtype.itemsize < 4:  # between the two products half precision would round, or overflow
            with _autocast.off(x.device):
                return self.__matmul__(x.float()).to(x.dtype)
        inner = self.kernel.mT.__matmul__(x)  # spelled so for torch.compile
        if self.weight is not None:
            weight = self.weight.to(inner.real.dtype if inner.is_complex() else inner.dtype)
            inner = inner * (weight if x.dim() == 1 else weight[..., None])
        if x.dim() == 1 and inner.dim() > 1:  # one vector, a batch of matrices
            return self.kernel.__matmul__(inner[..., None])[..., 0]
        return self.kernel.__matmul__(inner)

    def __rmatmul__(self, x: Tensor) -> Tensor:
        """x @ M for x (n,) or (*H, m, n)."""
        _checks.check_tensor("x @ GramOperator", "x", x)
        return self.__matmul__(x) if x.dim() == 1 else self.__matmul__(x.mT).mT

    def __getitem__(self, key: Any) -> GramOperator:
        """M[rows, rows], with the same object or equal slices as rows and columns; of a batch also M[matrices].

        A single index is of the first dimension, as of :class:`laplex.LaplaceOperator`.
        """
        chosen = selection("GramOperator", key, self.shape, self.device)
        if not chosen.same:
            raise ValueError(_algebra_checks.not_the_same_rows("GramOperator"))
        if chosen.matrices is None:
            return self.kernel[chosen.rows, ALL].gram(self.weight)
        *batch, _, k = self.kernel.shape
        weight = None if self.weight is None else chosen.among_matrices(self.weight, (*batch, k))
        return self.kernel[key].gram(weight)

    def diagonal(self) -> Tensor:
        r"""The entries M_ii, (*H, n), in O(n + k): K_ij^2 is an entry of K at tau / 2.

        With phases, cos^2(phi - psi) = (1 + cos 2 phi cos 2 psi + sin 2 phi sin 2 psi) / 2.
        """
        kernel, weight = self.kernel, self._weights().double()  # autocast does not cast float64
        smallest = _checks.SMALLEST_TAU_OF_SQUARES
        _checks.length_scale("GramOperator.diagonal", kernel.tau, kernel.a, smallest)
        _checks.positive_on_cpu("GramOperator.diagonal", kernel.tau, tuple(kernel.shape[:-2]), smallest)
        tau = kernel.tau / 2
        if kernel.phi is None or kernel.psi is None:
            rows = weight[..., None, :]
            return linear(rows, kernel.a, kernel.b, tau, plan=kernel.plan)[..., 0, :].to(self.dtype)
        angles, angle = 2 * kernel.phi.double(), 2 * kernel.psi.double()  # terms cancel near a cosine of 0
        rows = torch.stack(torch.broadcast_tensors(weight, weight * angle.cos(), weight * angle.sin()), -2)
        plain, of_cos, of_sin = linear(rows, kernel.a, kernel.b, tau, plan=kernel.plan).unbind(-2)
        return ((plain + angles.cos() * of_cos + angles.sin() * of_sin) / 2).to(self.dtype)

    def to_dense(self) -> Tensor:
        """The dense matrix, n^2 numbers, by :func:`laplex.gram`."""
        kernel, weight = self.kernel, self._weights()
        rows = weight[..., None, :] if len(self.shape) > 2 else weight
        matrix = gram(kernel.a, kernel.b, rows, kernel.tau, phi=kernel.phi, psi=kernel.psi, plan=kernel.plan)
        return (matrix[..., 0, :, :] if len(self.shape) > 2 else matrix).to(self.dtype)

    def solve(self, y: Tensor, diag: float | Tensor) -> Tensor:
        """x = (M + diag)^-1 y in O(n), for y (n,) or (..., n, m) and a positive diag, a number or (*H, n).

        The class says how small ``diag`` may be: on CUDA and without the compiled core, a ``diag`` below about 1e-9 of
        M's diagonal (1e-6 with phases) can give a wrong x without notice. Differentiable to any order in y, diag,
        weight, a, b, tau and the phases, in reverse mode. Forward mode and torch.func transforms raise.
        """
        return self._system("GramOperator.solve", diag).solve(y)

    def logdet(self, diag: float | Tensor) -> Tensor:
        """log det(M + diag), (*H), in O(n).

        Differentiable once in diag, weight, a, b, tau and the phases, in reverse mode only.
        """
        return self._system("GramOperator.logdet", diag).logdet()

    def cholesky(self, diag: float | Tensor) -> CholeskyFactor:
        """C with C C^T = M + diag, in O(n); it samples from N(0, M + diag) and whitens."""
        return CholeskyFactor(self._system("GramOperator.cholesky", diag))

    def _weights(self) -> Tensor:
        """weight, or ones, (*H, k), at least as wide as the anchors: ``gram`` rounds to the weight's dtype."""
        shape = (*self.kernel.shape[:-2], self.kernel.shape[-1])
        if self.weight is None:
            return torch.ones(shape, dtype=self.dtype, device=self.device)
        return self.weight.to(torch.promote_types(self.weight.dtype, self.dtype)).expand(shape)

    def _system(self, where: str, diag: float | Tensor | None) -> _systems.System:
        batch = tuple(self.shape[:-2])
        if diag is None:
            raise TypeError(
                f"{where}: `diag` must be given: M alone is singular if n > k, and nearly singular in many other cases"
            )
        kernel = self.kernel
        held = kernel.a, kernel.b, kernel.tau, kernel.phi, kernel.psi
        _checks.reverse_mode_only(where, *held, self.weight, diag)
        _checks.one_by_one(where, kernel.a, kernel.b)
        added = _checks.diagonal(where, diag, kernel.a, batch, optional=False)
        weight = self._weights() if self.weight is None else self.weight
        weight = flat_anchors(weight.double(), batch or (1,))
        weight = _checks.not_negative(where, weight)
        return _systems.gram_system(where, kernel._flat(where), weight, added, batch)

    def _mapped(self, function: Callable[[Tensor], Tensor]) -> GramOperator:
        kernel, weight = self.kernel._mapped(function), None if self.weight is None else function(self.weight)
        return self if kernel is self.kernel and weight is self.weight else GramOperator(kernel, weight)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """As the constructor: what comes from a file is checked as what comes from a caller."""
        GramOperator.__init__(self, **saved.GRAM.fields(state, {"kernel", "weight"}))

    def __repr__(self) -> str:
        shape = " x ".join(map(str, self.shape))
        weighted = "" if self.weight is None else ", weighted"
        phased = ", phased" if self.kernel.phi is not None else ""
        return f"GramOperator({shape}, {self.dtype}, device={self.device}{weighted}{phased}, k={self.kernel.shape[-1]})"


torch.serialization.add_safe_globals([GramOperator])
