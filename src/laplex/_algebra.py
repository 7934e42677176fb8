"""Sums of lazy matrices: s_1 K_1 + ... + s_m K_m + diag(d).

Scaling, adding and transposing such a sum gives another one, so one class, :class:`SumOperator`, holds every result:
there are no trees of expressions. :class:`Algebra` gives the operators their arithmetic.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from operator import add, is_
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from laplex import _autocast, _checks
from laplex._checks import algebra as _algebra_checks
from laplex._checks import saved
from laplex._cholesky import CholeskyFactor
from laplex._errors import frozen, set_fields
from laplex._quasisep.systems import System
from laplex._scalars import Number, at_least, is_one, multiplied, plus, written
from laplex._selection import Selection, selection
from laplex._shapes import flat_tau

PRODUCTS = (torch.matmul, Tensor.matmul, Tensor.__matmul__)


class Algebra:
    """The base of the operators: sums, multiples, copies, and the functions of torch that they have."""

    if TYPE_CHECKING:  # what every operator has

        @property
        def shape(self) -> torch.Size: ...
        @property
        def dtype(self) -> torch.dtype: ...
        @property
        def device(self) -> torch.device: ...
        @property
        def requires_grad(self) -> bool: ...
        @property
        def mT(self) -> Algebra: ...
        def __matmul__(self, x: Tensor) -> Tensor: ...
        def __getitem__(self, key: Any) -> Algebra: ...
        def diagonal(self) -> Tensor: ...
        def to_dense(self) -> Tensor: ...
        def _system(self, where: str, diag: Number | None) -> System: ...
        def _mapped(self, function: Callable[[Tensor], Tensor]) -> Self: ...

    def __mul__(self, s: Number) -> SumOperator:
        """s K, lazily: s is a number, or a tensor of one element or that broadcasts to H. Differentiable in s."""
        return _as_sum(self)._times(_algebra_checks.scale(f"{type(self).__name__} * s", s, self.shape, self.device))

    __rmul__ = __mul__

    def __truediv__(self, s: Number) -> SumOperator:
        """K / s, for s as in s K."""
        divisor = _algebra_checks.divisor(f"{type(self).__name__} / s", s, self.shape, self.device)
        return _as_sum(self)._times(1 / at_least(self.dtype, divisor))

    def __neg__(self) -> SumOperator:
        return _as_sum(self)._times(-1.0)

    def __add__(self, other: Algebra) -> SumOperator:
        """K_1 + K_2, lazily, of two operators of one shape, dtype and device. For a diagonal use ``add_diagonal``."""
        return self._plus("+", other)

    def __radd__(self, other: object) -> Self:
        if type(other) is int and other == 0:  # the start of sum([K1, K2])
            return self
        raise TypeError(_algebra_checks.not_added(f"x + {type(self).__name__}", other))

    def __sub__(self, other: Algebra) -> SumOperator:
        """K_1 - K_2, as K_1 + K_2."""
        return self._plus("-", other)

    def __rsub__(self, other: object) -> SumOperator:
        raise TypeError(_algebra_checks.not_added(f"x - {type(self).__name__}", other))

    def add_diagonal(self, diag: Number) -> SumOperator:
        """K + diag(d), lazily, for a number, or for values of any sign that broadcast to (*H, n).

        It is a method, named as in ``linear_operator``, because K + d has another meaning in torch: there it adds a
        number to every entry, and a vector to every row. So ``K + d`` raises.
        """
        where = f"{type(self).__name__}.add_diagonal"
        checked = _algebra_checks.added_diagonal(where, diag, self.shape, self.device)
        total = _as_sum(self)
        return SumOperator(total.operators, total.scales, plus(self.dtype, total.diag, checked))

    def to(self, *args: Any, **options: Any) -> Self:
        """The operator with its tensors moved or cast, by the arguments of ``Tensor.to``; itself if nothing changes.

        Cast or moved anchors are sorted again. They must be float32 or float64.
        """
        return self._mapped(lambda tensor: tensor.to(*args, **options))

    def detach(self) -> Self:
        """The operator without gradients; it shares its memory with this one."""
        return self._mapped(Tensor.detach)

    def clone(self) -> Self:
        """The operator with copies of its tensors; gradients flow to this one, as with ``Tensor.clone``."""
        return self._mapped(Tensor.clone)

    @classmethod
    def __torch_function__(
        cls, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """The functions of torch that are operators or methods here. Others need the dense matrix, and raise."""
        if func in PRODUCTS and not kwargs:
            if func is not torch.matmul and torch.compiler.is_compiling():  # K @ x arrives as x @ K
                raise TypeError(
                    f"{cls.__name__}: inside torch.compile write torch.matmul(K, x) for K @ x, and so for x @ K"
                )
            left, right = args
            return left.__matmul__(right) if isinstance(left, Algebra) else right.__rmatmul__(left)
        name = func.__name__
        if not kwargs and name in ARITHMETIC:
            left, right = args
            method, reflected = ARITHMETIC[name]
            if isinstance(left, Algebra):
                return getattr(left, method)(right)
            if reflected:
                return getattr(right, reflected)(left)
        if not kwargs and name in METHODS and isinstance(args[0], Algebra):
            return METHODS[name](*args)
        raise TypeError(_checks.not_defined(name, cls.__name__))

    def _plus(self, sign: str, other: Any) -> SumOperator:
        where = f"{type(self).__name__} {sign} x"
        if not isinstance(other, Algebra):
            raise TypeError(_algebra_checks.not_added(where, other))
        _algebra_checks.summands(where, self, other)
        left, right = _as_sum(self), _as_sum(other if sign == "+" else -other)
        operators, scales = left.operators + right.operators, left.scales + right.scales
        return SumOperator(operators, scales, plus(self.dtype, left.diag, right.diag))


class SumOperator(Algebra):
    """The matrix A = s_1 K_1 + ... + s_m K_m + diag(d), held as its parts.

    ``s * K``, ``K_1 + K_2`` and ``K.add_diagonal(d)`` make it.

    Products, entries and the diagonal are sums of those of the parts. One symmetric matrix, scaled by s > 0, with a
    positive diagonal or none, is solved, factored and sampled from in O(n), as s (K + diag(d / s)). Sums of several
    matrices are not: ``laplex.gp.GaussianProcess`` solves sums of exponential kernels. Results are differentiable in
    the scales and in d, as they are in the tensors of the parts.

    Attributes:
        operators: the m matrices, each a :class:`laplex.LaplaceOperator` or a :class:`laplex.GramOperator`.
        scales: their m scales, each a number or a tensor that broadcasts to H.
        diag: what is added to the diagonal: None, a number, or what broadcasts to (*H, n).

    Example:
        >>> K = LaplaceOperator(torch.randn(1000).double(), tau=0.5)
        >>> A = (2.0 * K).add_diagonal(0.1)
        >>> y = torch.randn(1000).double()
        >>> torch.allclose(A @ A.solve(y), y)
        True
    """

    operators: tuple[Algebra, ...]
    scales: tuple[Number, ...]
    diag: Number | None
    __module__ = "laplex"  # the name that users import and that saved files hold
    __setattr__ = frozen
    __array_ufunc__ = None  # NumPy then leaves array @ A to __rmatmul__, whose error says what to do

    def __init__(self, operators: tuple[Algebra, ...], scales: tuple[Number, ...], diag: Number | None = None) -> None:
        maker = "s * K, K1 + K2 or K.add_diagonal(d) of laplex.LaplaceOperator and laplex.GramOperator"
        listed = isinstance(operators, tuple) and operators and not isinstance(operators[0], SumOperator)
        _checks.made_by("SumOperator", maker, operators[0] if listed else operators, Algebra)
        set_fields(self, operators=operators, scales=scales, diag=diag)

    @property
    def shape(self) -> torch.Size:
        return self.operators[0].shape

    @property
    def dtype(self) -> torch.dtype:
        return self.operators[0].dtype

    @property
    def device(self) -> torch.device:
        return self.operators[0].device

    @property
    def requires_grad(self) -> bool:
        numbers = (*self.scales, self.diag)
        tensors = any(isinstance(number, Tensor) and number.requires_grad for number in numbers)
        return tensors or any(operator.requires_grad for operator in self.operators)

    @property
    def mT(self) -> SumOperator:
        """The transpose."""
        return SumOperator(tuple(operator.mT for operator in self.operators), self.scales, self.diag)

    @property
    def T(self) -> SumOperator:
        """The transpose of a single matrix; of a batch use ``mT``."""
        if self._batch:
            raise ValueError(f"SumOperator.T: needs a single matrix, got batch shape {self._batch}; use .mT")
        return self.mT

    def __matmul__(self, x: Tensor) -> Tensor:
        """A @ x for x (k,) or (*H, k, m), summed in float32 at least."""
        _checks.check_tensor("SumOperator @ x", "x", x)
        _checks.inner_size("SumOperator @ x", self.shape, x, side=-1)
        x = _autocast.cast(x)
        with _autocast.off(x.device):
            return self._product(x.float() if x.dtype.itemsize < 4 else x).to(x.dtype)

    def __rmatmul__(self, x: Tensor) -> Tensor:
        """x @ A for x (n,) or (*H, m, n)."""
        _checks.check_tensor("x @ SumOperator", "x", x)
        _checks.inner_size("x @ SumOperator", self.shape, x, side=-2)
        return self.mT.__matmul__(x) if x.dim() == 1 else self.mT.__matmul__(x.mT).mT

    def _product(self, x: Tensor) -> Tensor:
        dims = min(x.dim(), 2)
        total = self._sum(lambda operator: operator.__matmul__(x), dims)  # spelled so for torch.compile
        return total if self.diag is None else total + multiplied(self.diag, x, dims - 1)

    def _sum(self, function: Callable[[Algebra], Tensor], dims: int) -> Tensor:
        """The sum of s * function(K) over the parts; the function returns (*H, ...), with ``dims`` more dimensions."""
        parts = zip(self.scales, self.operators)
        return reduce(add, [multiplied(scale, function(operator), dims) for scale, operator in parts])

    def __getitem__(self, key: Any) -> SumOperator:
        """A[rows, cols], or A[matrices] of a batch, as of :class:`laplex.LaplaceOperator`.

        With an added diagonal, or a Gram matrix among the parts, rows and cols must be the same object, or equal
        slices, and with a diagonal no index may repeat.
        """
        chosen = selection("SumOperator", key, self.shape, self.device)
        operators = tuple(operator[key] for operator in self.operators)
        scales = tuple(
            chosen.among_matrices(scale, self._batch) if isinstance(scale, Tensor) and scale.dim() else scale
            for scale in self.scales
        )
        return SumOperator(operators, scales, self._diagonal_part(chosen))

    def _diagonal_part(self, chosen: Selection) -> Number | None:
        n, rows = self.shape[-1], chosen.rows
        if self.diag is None:
            return None
        repeats = isinstance(rows, Tensor) and rows.dtype != torch.bool and len((rows % n).unique()) < rows.numel()
        if not chosen.same or repeats:
            raise ValueError(_algebra_checks.not_a_part_with_a_diagonal("SumOperator"))
        if not isinstance(self.diag, Tensor):
            return self.diag
        shape = (*self._batch, n)
        return chosen.among_matrices(self.diag.expand(shape), shape)[..., rows]

    def diagonal(self) -> Tensor:
        """The entries A_ii, (*H, min(n, k))."""
        total = self._sum(lambda operator: operator.diagonal(), dims=1)
        return total if self.diag is None else (total + self.diag).to(self.dtype)

    def to_dense(self) -> Tensor:
        """The dense matrix, n * k numbers: to inspect, and for small sizes."""
        total = self._sum(lambda operator: operator.to_dense(), dims=2)
        if self.diag is None:
            return total
        return total + torch.diag_embed(multiplied(self.diag, total.new_ones(total.shape[:-1]), 0))

    def solve(self, y: Tensor, diag: Number | None = None) -> Tensor:
        """x = (A + diag)^-1 y for y (n,) or (..., n, m), in O(n), for A = s K + diag(d) with a symmetric K and s > 0.

        As accurate as ``solve`` of K, and as differentiable, in s as well. A sum of several matrices raises.
        """
        return self._system("SumOperator.solve", diag).solve(y)

    def logdet(self, diag: Number | None = None) -> Tensor:
        """log det(A + diag), (*H), for A as in ``solve``."""
        return self._system("SumOperator.logdet", diag).logdet()

    def cholesky(self, diag: Number | None = None) -> CholeskyFactor:
        """C with C C^T = A + diag, for A as in ``solve``; it samples from N(0, A + diag) and whitens."""
        return CholeskyFactor(self._system("SumOperator.cholesky", diag))

    def sample(
        self, count: int | None = None, diag: Number | None = None, *, generator: torch.Generator | None = None
    ) -> Tensor:
        """Samples of N(0, A + diag), for A as in ``solve``: (*H, n), or (count, *H, n)."""
        return CholeskyFactor(self._system("SumOperator.sample", diag)).sample(count, generator=generator)

    @property
    def _batch(self) -> tuple[int, ...]:
        return tuple(self.shape[:-2])

    def _system(self, where: str, diag: Number | None) -> System:
        """s K + diag(d) as s (K + diag(d / s))."""
        if len(self.operators) > 1:
            raise NotImplementedError(_algebra_checks.not_solved_as_a_sum(where, len(self.operators)))
        total = self if diag is None else self.add_diagonal(diag)
        (operator,), (scale,), added = total.operators, total.scales, total.diag
        if is_one(scale):
            return operator._system(where, added)
        _checks.reverse_mode_only(where, scale, added)
        scales = _algebra_checks.positive_scale(where, flat_tau(scale, self._batch or (1,), self.device))  # (h,)
        if added is not None:
            like = torch.empty(self.shape[-1], device=self.device)
            values = _checks.diagonal(where, added, like, self._batch, optional=False)  # (h, n)
            added = (values / scales[:, None]).reshape(self.shape[:-1])
        return operator._system(where, added)._replace(scale=scales)

    def _times(self, s: Number) -> SumOperator:
        wide, diag = at_least(self.dtype, s), self.diag
        if diag is not None:
            diag = (wide[..., None] if isinstance(wide, Tensor) else wide) * at_least(self.dtype, diag)
        scales = (s if is_one(scale) else wide * at_least(self.dtype, scale) for scale in self.scales)
        return SumOperator(self.operators, tuple(scales), diag)  # a parameter stays itself

    def _mapped(self, function: Callable[[Tensor], Tensor]) -> SumOperator:
        operators = tuple(operator._mapped(function) for operator in self.operators)
        scales = tuple(function(scale) if isinstance(scale, Tensor) else scale for scale in self.scales)
        diag = function(self.diag) if isinstance(self.diag, Tensor) else self.diag
        new, old = (*operators, *scales, diag), (*self.operators, *self.scales, self.diag)
        return self if all(map(is_, new, old)) else SumOperator(operators, scales, diag)

    def __setstate__(self, state: dict[str, Any]) -> None:
        """As sums are made: what comes from a file is checked as what comes from a caller."""
        fields = saved.SUM.fields(state, {"operators", "scales", "diag"})
        operators, scales, diag = (fields[name] for name in ("operators", "scales", "diag"))
        listed = isinstance(operators, tuple) and isinstance(scales, tuple) and len(operators) == len(scales) > 0
        saved.SUM.require(listed, "`operators` and `scales` must be tuples of one length")
        loaded = all(isinstance(operator, Algebra) and operator.__dict__ for operator in operators)
        saved.SUM.require(loaded, "`operators` must hold operators")
        total = reduce(add, [operator * scale for operator, scale in zip(operators, scales)])
        self.__dict__.update((total if diag is None else total.add_diagonal(diag)).__dict__)

    def __repr__(self) -> str:
        shape = " x ".join(map(str, self.shape))
        parts = [written(scale) + type(operator).__name__ for scale, operator in zip(self.scales, self.operators)]
        parts += [] if self.diag is None else ["diagonal"]
        return f"SumOperator({shape}, {self.dtype}, device={self.device}, {' + '.join(parts)})"


torch.serialization.add_safe_globals([SumOperator])


def _as_sum(operator: Algebra) -> SumOperator:
    return operator if isinstance(operator, SumOperator) else SumOperator((operator,), (1.0,))


# --- Functions of torch ----------------------------------------------------------------------------------------------


def _solve(matrix: Any, y: Tensor) -> Tensor:
    """torch.linalg.solve: for a batch, y of shape (*H, n) is one vector per matrix."""
    if len(matrix.shape) > 2 and isinstance(y, Tensor) and y.shape == matrix.shape[:-1]:
        return _solve(matrix, y[..., None])[..., 0]
    return matrix.solve(y, None)  # type: ignore[no-any-return]


def _slogdet(matrix: Any) -> Any:
    """torch.linalg.slogdet: the matrix is positive definite, so the sign is 1."""
    logdet = matrix.logdet(None)
    return torch.return_types.linalg_slogdet((torch.ones_like(logdet), logdet))  # type: ignore[attr-defined]


# By the names of functions: the method, and its reflection, for a tensor on the left.
ARITHMETIC = {
    **dict.fromkeys(("add", "__add__", "__radd__"), ("__add__", "__radd__")),
    **dict.fromkeys(("sub", "subtract", "__sub__"), ("__sub__", "__rsub__")),
    **dict.fromkeys(("mul", "multiply", "__mul__", "__rmul__"), ("__mul__", "__rmul__")),
    **dict.fromkeys(("div", "divide", "true_divide", "__truediv__"), ("__truediv__", "")),
}
METHODS: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("neg", "negative"), Algebra.__neg__),
    **dict.fromkeys(("slogdet", "linalg_slogdet"), _slogdet),
    "linalg_solve": _solve,
    "linalg_cholesky": lambda matrix: matrix.cholesky(None),
    "logdet": lambda matrix: matrix.logdet(None),
}
