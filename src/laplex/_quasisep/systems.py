"""How the symmetric K and the Gram matrices M = K diag(weight) K^T, plus a diagonal, become systems to be solved.

The generators are those of the package's docstring, with the points in the order of a and e_i = 1 without phases.
``_masses`` finds U, V and W: sums of the weights or, with phases, of their moments, the 2 x 2 matrices
weight * (cos psi, sin psi) (cos psi, sin psi)^T. U and V are half sums of a product with K at tau / 2.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from laplex import _backends, _checks
from laplex._eager import plain
from laplex._errors import StalePlanError
from laplex._product import product
from laplex._quasisep.arrays import Chain
from laplex._quasisep.autograd import Factored, Generators, Product, factor, halves, logdet, solve
from laplex._scan.order import Matrix, Order, Side
from laplex._shapes import flat_anchors, flat_tau, fold, unfold

if TYPE_CHECKING:
    from laplex._operator import LaplaceOperator

# A pivot d_i is A_ii minus what the points before explain, so it has rounding errors of a few eps = 2.2e-16 of A_ii. A
# pivot below SINGULAR of A_ii has no correct digit, and A counts as singular. benchmarks/studies/refinement.py measures
# pivots whose exact value is 0: without phases they come out as at most 2.6e-16 of A_ii. With phases the median is
# below 4e-16 too, but a few are as large as 6e-7: a singular matrix with phases is not always detected.
SINGULAR = 1e-15


class Flat(NamedTuple):
    """The tensors of a LaplaceOperator, its batch flattened to h matrices.

    They are converted to float64 once, here, so that the gradients of narrower tensors are rounded once.
    """

    a: Tensor  # (h, n)
    b: Tensor  # (h, k)
    tau: Tensor  # (h,)
    phi: Tensor | None  # (h, n)
    psi: Tensor | None  # (h, k)
    order: Order
    backend: str  # of products
    dtype: torch.dtype  # of the anchors as given


class System(NamedTuple):
    """A matrix A = M + diag, or K + diag, and its factors; or a positive multiple, scale * A."""

    where: str  # the method that the user called, for messages
    batch: tuple[int, ...]
    generators: Generators
    factored: Factored
    diag: Tensor  # (h, n), in the caller's order
    order: Order
    backend: str  # of products
    parameters: tuple[Tensor, ...]  # what the product with M, or K, is a function of
    dtype: torch.dtype  # of the anchors as given
    scale: Tensor | None = None  # (h,), in float64; None for 1

    @property
    def requires_grad(self) -> bool:
        scales = () if self.scale is None else (self.scale,)
        return any(tensor.requires_grad for tensor in (*self.generators, *self.parameters, *scales))

    def detached(self) -> System:
        """The same without gradients: under no_grad alone, a view of a leaf still has requires_grad=True."""
        return self._replace(
            generators=Generators(*(part.detach() for part in self.generators)),
            diag=self.diag.detach(),
            parameters=tuple(part.detach() for part in self.parameters),
            scale=None if self.scale is None else self.scale.detach(),
        )

    def saved(self) -> dict[str, Any]:
        """The system in classes of torch and Python alone: private classes may change their names, files stay."""
        chain, *others = self.factored
        fields = self._asdict()
        order = fields.pop("order")
        if self.scale is None:
            del fields["scale"]  # as in files of versions without scales
        planned = {"order": order.tensors, "layout": order.layout}
        return {**fields, "generators": tuple(self.generators), "factored": (*chain, *others), "planned": planned}

    @classmethod
    def loaded(cls, saved: dict[str, Any]) -> System:
        """The system that ``saved`` wrote. It may now be on another device, or without the compiled core."""
        backend = _backends.planner_of_sides(saved["diag"].device)
        *chain, d, index, _ = saved["factored"]
        fields = {**saved}
        planned = fields.pop("planned")
        order = Order.from_tensors(planned["order"], planned["layout"])
        private = {
            "generators": Generators(*saved["generators"]),
            "factored": Factored(Chain(*chain), d, index, backend),
            "order": order,
            "backend": _backends.order_backend(order),
        }
        return cls(**{**fields, **private})

    def solve(self, y: Tensor) -> Tensor:
        """(scale * A)^-1 y for y (n,) or (..., n, m), in its dtype."""

        def apply(columns: Tensor) -> Tensor:
            scaled = columns if self.scale is None else columns / self.scale[:, None, None]
            return solve(scaled, self.diag, self.factored, self._product, *self.parameters)

        return self.on_columns(self.where, y, apply)

    @property
    def _product(self) -> Product:
        """The product with M or K, without the diagonal. Only the points of a Gram matrix have mass between them."""
        function = _gram_product if self.factored.chain.mass.shape[-1] else _kernel_product
        return partial(function, self.order, self.backend)

    def on_columns(self, where: str, y: Tensor, apply: Callable[[Tensor], Tensor]) -> Tensor:
        """apply(y) for y (n,) or (..., n, m), in the dtype of y; apply takes and returns float64 (h, n, m)."""
        _checks.reverse_mode_only(where, y)
        _checks.right_hand_side(where, y, self.diag, self.batch, self.diag.shape[-1])
        _backends.tell_without_core(y.device, y.numel())
        columns = y[:, None] if y.dim() == 1 else y
        rows, folding = fold(columns.mT.double(), self.batch or (1,))
        x = unfold(apply(rows.mT).mT, folding).mT.to(y.dtype)
        x = x if self.batch else x.reshape(columns.shape)
        return x[..., 0] if y.dim() == 1 else x

    def logdet(self) -> Tensor:
        """log det(scale * A), (*H), in the dtype of the anchors."""
        total = logdet(self.generators, self.factored)
        if self.factored.chain.mass.shape[-1] and total.device.type == "cpu" and plain(total) and total.numel():
            # Of Gram matrices: K itself is factored without a subtraction, and keeps its digits.
            entries = (self.generators.p * self.generators.q).sum(-1).detach()
            _checks.warn_of_lost_digits(self.where, float((entries / self.factored.d.detach()).sum(-1).max()))
        if self.scale is not None:
            total = total + self.diag.shape[-1] * self.scale.log()
        return total.reshape(self.batch).to(self.dtype)


def flat(where: str, operator: LaplaceOperator) -> Flat:
    """The tensors of an operator, checked."""
    a, b, phi, psi, shape = operator.a, operator.b, operator.phi, operator.psi, operator._batch or (1,)
    _backends.tell_without_core(a.device, a.numel() + b.numel())
    rows = flat_anchors(a.double(), shape)
    cols = rows if b is a else flat_anchors(b.double(), shape)
    row_phases = None if phi is None else _checks.finite_phase(where, "phi", flat_anchors(phi.double(), shape))
    col_phases = row_phases
    if psi is not None and psi is not phi:
        col_phases = _checks.finite_phase(where, "psi", flat_anchors(psi.double(), shape))
    scale = _checks.valid_tau(where, flat_tau(operator.tau, shape, a.device))
    plan = operator.plan
    return Flat(rows, cols, scale, row_phases, col_phases, plan._order_for(a, b), plan.backend, a.dtype)


def kernel_system(where: str, k: Flat, diag: Tensor | None, batch: tuple[int, ...]) -> System:
    """K + diag for b = a and psi = phi."""
    index, t = _ordered(k)
    p = _directions(k.phi, index)
    added = torch.zeros_like(t[..., :1]).expand(t.shape) if diag is None else diag
    generators = Generators(t, k.tau, p, p, t.new_empty((*t.shape, 0)), _sorted(added, index))
    backend = _backends.planner_of_sides(t.device)
    factored = _checked(where, generators, factor(generators, index, backend), alone=diag is None)
    parameters = (k.a, k.tau) if k.phi is None else (k.a, k.tau, k.phi)
    return System(where, batch, generators, factored, added, k.order, k.backend, parameters, k.dtype)


def gram_system(where: str, k: Flat, weight: Tensor, diag: Tensor, batch: tuple[int, ...]) -> System:
    """K diag(weight) K^T + diag, for weight (h, k) in float64."""
    index, t = _ordered(k)
    smallest = _checks.SMALLEST_TAU_OF_SQUARES
    if not k.tau.is_cuda and not bool(_checks.is_length(k.tau, smallest).all()):  # on CUDA the sums are NaN
        raise ValueError(_checks.bad_tau(where, k.tau, smallest))
    try:
        left, right, mass = _masses(_moments(weight, k.psi), k, index, t)
    except StalePlanError:  # the sums raised it, without the name of the method
        raise StalePlanError(_checks.stale_plan(where)) from None
    e = _directions(k.phi, index)
    p, q = torch.cat([e, _applied(right, e)], -1), torch.cat([_applied(left, e), e], -1)
    generators = Generators(t, k.tau, p, q, mass, _sorted(diag, index))
    backend = _backends.planner_of_sides(t.device)
    factored = _checked(where, generators, factor(generators, index, backend), alone=False)
    phases = () if k.phi is None or k.psi is None else (k.phi, k.psi)
    parameters = (weight, k.a, k.b, k.tau, *phases)
    return System(where, batch, generators, factored, diag, k.order, k.backend, parameters, k.dtype)


def _kernel_product(order: Order, backend: str, x: Tensor, a: Tensor, tau: Tensor, *phi: Tensor) -> Tensor:
    """K x."""
    phase = (phi[0], phi[0]) if phi else ()
    return product(x.mT, Matrix(a, a, tau, _widened(order), _backends.load(backend, a.device.type)), phase).mT


def _gram_product(order: Order, backend: str, x: Tensor, *parameters: Tensor) -> Tensor:
    """K diag(weight) K^T x."""
    weight, a, b, tau, *phases = parameters
    there = (phases[0], phases[1]) if phases else ()
    back = (phases[1], phases[0]) if phases else ()
    matrix = Matrix(a, b, tau, _widened(order), _backends.load(backend, a.device.type))
    inner = product(x.mT, matrix.mT, back)
    return product(inner * weight[:, None], matrix, there).mT


def _widened(order: Order) -> Order:
    """The order with its copy of the anchors in float64, as they are here: the core compares the two."""
    if order.target.kind != "sorted":  # it has no copy, or is the GPU's
        return order
    target, source = (side._replace(values=side.values.double()) for side in (order.target, order.source))
    return order._replace(target=target, source=source)


def _ordered(k: Flat) -> tuple[Tensor, Tensor]:
    """The indices (h, n) that sort a, and a sorted."""
    side = k.order.target
    if side.kind in ("sorted", "short"):
        index = side.indices[:, 0].long()
    else:
        index = k.a.detach().argsort(stable=True)
    return index, _gathered(k.a, index, side)


def _gathered(anchors: Tensor, index: Tensor, side: Side) -> Tensor:
    """anchors (h, n) at index (h, n), which sorts them; copied from a sorted side if they have not moved."""
    # A copy has no gradient. On CUDA the comparison would wait for the device.
    compared = side.kind == "sorted" and not (anchors.requires_grad or anchors.is_cuda)
    if compared and torch.equal(side.values[:, 0].double(), anchors):
        return side.values[:, 1].double()
    return anchors.gather(-1, index)


def _checked(where: str, generators: Generators, factored: Factored, *, alone: bool) -> Factored:
    """The factors, or an error if the matrix is not positive definite; ``alone`` if no diagonal was added.

    On CUDA an error would have to wait for the device, so d becomes NaN instead, and with it every result.
    """
    d, decay, index = factored.d, factored.chain.decay, factored.order
    subtracted = factored.chain.mass.shape[-1] > 0  # then d is a difference, and a small one may have no correct digit
    most = 1 if subtracted else 0  # decay is rho <= 1, or rho - 1 <= 0, if the anchors are sorted
    lost = ~(d > (SINGULAR * _diagonal(generators) if subtracted else 0))
    if alone:  # K of three equal anchors with phases is singular, but the last d comes out as a rounding error
        lost = lost | ((decay == 0) & (d <= SINGULAR))
    # An infinite anchor does not show in decay, which is 0 for any wide gap. If sorted, it is the first or the last.
    ends = torch.cat([generators.t[:, :1], generators.t[:, -1:]], -1).detach()
    finite = torch.isfinite(ends).all(-1, keepdim=True)
    if d.is_cuda:
        lost = lost | ~(decay <= most) | ~finite
        return factored._replace(d=torch.where(lost.any(-1, keepdim=True), torch.nan, d))
    if not bool((decay <= most).all() & finite.all()):
        raise StalePlanError(_checks.stale_plan(where))
    if bool(lost.any()):
        entry, i = (int(part) for part in lost.nonzero()[0])  # of the batch, and of the points
        tied = index[entry, [i - 1, i]].tolist() if i and float(decay[entry, i]) == 0 else None
        raise ValueError(_checks.not_definite(where, int(index[entry, i]), sorted(tied) if alone and tied else None))
    return factored


def _diagonal(generators: Generators) -> Tensor:
    """The diagonal (h, n) of A, in sorted order."""
    sides = zip(generators.p.detach().unbind(-1), generators.q.detach().unbind(-1))
    return sum((p * q for p, q in sides), generators.diag.detach())


def _sorted(diag: Tensor, index: Tensor) -> Tensor:
    """diag (h, n) in sorted order; a single number, expanded, needs no sorting."""
    return diag if diag.stride(-1) == 0 else diag.gather(-1, index)


def _directions(phi: Tensor | None, index: Tensor) -> Tensor:
    """e (h, n, 1 or 2), in sorted order."""
    if phi is None:
        return torch.ones_like(index, dtype=torch.float64)[..., None]
    angle = phi.gather(-1, index)
    return torch.stack([angle.cos(), angle.sin()], -1)


def _moments(weight: Tensor, psi: Tensor | None) -> Tensor:
    """The moments (h, 1 or 3, k) of every column: weight times 1, or times cos^2, cos sin and sin^2 of psi."""
    if psi is None:
        return weight[:, None]
    cos, sin = psi.cos(), psi.sin()
    return weight[:, None] * torch.stack([cos * cos, cos * sin, sin * sin], 1)


def _applied(moments: Tensor, e: Tensor) -> Tensor:
    """The symmetric matrices packed in moments (h, 1 or 3, n), times e (h, n, 1 or 2)."""
    if e.shape[-1] == 1:
        return moments[:, 0, :, None] * e
    one, both, two = moments.unbind(1)
    cos, sin = e.unbind(-1)
    return torch.stack([one * cos + both * sin, both * cos + two * sin], -1)


def _masses(moments: Tensor, k: Flat, index: Tensor, t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """U and V (h, 1 or 3, n), and W (h, n, 1 or 3), of moments (h, 1 or 3, k); all in the order of t, a sorted."""
    n, side = t.shape[-1], k.order.source
    matrix = Matrix(k.a, k.b, k.tau / 2, k.order, _backends.load(k.backend, t.device.type))
    if side.kind == "sorted":  # both sides are sorted: the sums then read memory in sequence
        cols, below, upto = (side.indices[:, channel].long() for channel in (0, 2, 3))
        moments = moments.gather(-1, cols[:, None].expand(moments.shape))
        s = _gathered(k.b, cols, side)
        left, right = halves(moments, matrix._replace(target=t, source=s, order=_as_sorted(k.order)))
        return left, right, _between(moments, below, upto, n)
    left, right = halves(moments, matrix)
    if side.kind == "long":
        below, upto = (side.indices[:, channel].long() for channel in (0, 1))
    else:
        ends, s = t.detach(), k.b.detach()
        below, upto = torch.searchsorted(ends, s), torch.searchsorted(ends, s, right=True)
    picked = index[:, None].expand(left.shape)
    return left.gather(-1, picked), right.gather(-1, picked), _between(moments, below, upto, n)


def _as_sorted(order: Order) -> Order:
    """A merged order, changed to that of the same anchors given sorted."""
    tensors = []
    for side in (order.target, order.source):
        below, upto = side.indices[:, 2], side.indices[:, 3]
        own = torch.arange(below.shape[-1], dtype=torch.int32, device=below.device).expand(below.shape)
        tensors += [torch.stack([own, own, below, upto], 1), below.new_empty((1, 0, 1), dtype=torch.float64)]
    return Order.from_tensors(tensors, order.layout)


def _between(moments: Tensor, below: Tensor, upto: Tensor, n: int) -> Tensor:
    """W (h, n, 1 or 3): the sum of the moments (h, 1 or 3, k) in the gap before every point.

    ``below`` and ``upto`` (h, k) count the points that are < and <= each column. Half of a column's moments goes to the
    gap before point ``below``, half to that before point ``upto``. These are the same gap unless the column is equal to
    a point; then they are the gaps on its two sides.
    """
    gaps = moments.new_zeros((*moments.shape[:-1], n + 1))  # the last is beyond the last point, and dropped
    for place in (below, upto):
        gaps = _added(gaps, place[:, None].expand(moments.shape), moments / 2)
    return gaps[..., :n].mT


def _added(sums: Tensor, index: Tensor, values: Tensor) -> Tensor:
    """sums (h, c, n) with values (h, c, k) added at index (h, c, k); always in the same order, for the same bits."""
    if not sums.is_cuda:
        return sums.scatter_add(-1, index, values)
    # On CUDA scatter_add uses atomics, in any order; index_put with accumulate sorts the indices first.
    rows = torch.arange(sums[..., 0].numel(), device=sums.device).view(*sums.shape[:-1], 1)
    flat = (index + sums.shape[-1] * rows).flatten()
    return sums.flatten().index_put((flat,), values.flatten(), accumulate=True).view(sums.shape)
