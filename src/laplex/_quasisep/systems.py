"""Symmetric K and Gram matrices M = K diag(weight) K^T, plus a diagonal, as quasiseparable matrices to be solved.

In the order of a, with e_i = 1 or (cos phi_i, sin phi_i), and gaps between neighbours:

    K:  p_i = q_i = e_i,                                  T_i = exp(-gap / tau) I
    M:  p_i = (e_i, V_i e_i),   q_i = (U_i e_i, e_i),     T_i = exp(-gap / tau) [[I, W_i], [0, I]]

U_i is the weight left of a_i, V_i that right of it, both at the rate 2 / tau, and W_i that in the gap before a_i, at no
rate; with phases each is the 2 x 2 matrix of the moments weight * (cos psi, sin psi)(cos psi, sin psi)^T. A b tied with
a_i counts half to each side. For weight >= 0 none of these is a difference.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from laplex import _backends, _checks
from laplex._errors import StalePlanError
from laplex._functional import product
from laplex._plan import Plan
from laplex._quasisep.autograd import Factored, Generators, Product, factor, halves, logdet, solve
from laplex._scan.order import Matrix, Order, Side
from laplex._shapes import flat_anchors, flat_tau, fold, unfold

SINGULAR = 1e-15  # of the diagonal: what rounding errors may leave of a pivot that is 0


class Flat(NamedTuple):
    """An operator's tensors, h kernels flat, in float64: converted once, so that their gradients are rounded once."""

    a: Tensor  # (h, n)
    b: Tensor  # (h, k)
    tau: Tensor  # (h,)
    phi: Tensor | None  # (h, n)
    psi: Tensor | None  # (h, k)
    planned: Order
    backend: str  # of the products
    dtype: torch.dtype  # of the anchors as they were given


class System(NamedTuple):
    """A matrix to be solved, and its factors."""

    where: str
    batch: tuple[int, ...]
    generators: Generators
    factored: Factored
    diag: Tensor  # (h, n), in the caller's order
    planned: Order
    backend: str  # of products
    parameters: tuple[Tensor, ...]
    dtype: torch.dtype

    @property
    def requires_grad(self) -> bool:
        return any(tensor.requires_grad for tensor in (*self.generators, *self.parameters))

    def detached(self) -> System:
        """Without gradients. (Under no_grad alone, views of leaves still ask for them.)"""
        return self._replace(
            generators=Generators(*(part.detach() for part in self.generators)),
            diag=self.diag.detach(),
            parameters=tuple(part.detach() for part in self.parameters),
        )

    def saved(self) -> dict[str, Any]:
        """All of it, in classes of torch and Python: a file outlives the names of private modules."""
        planned = {"order": self.planned.tensors, "layout": self.planned.layout}
        return {
            **self._asdict(),
            "generators": tuple(self.generators),
            "factored": tuple(self.factored),
            "planned": planned,
        }

    @classmethod
    def loaded(cls, saved: dict[str, Any]) -> System:
        """The same again, perhaps on another device, or without the compiled core."""
        backend = _backends.planner_of_sides(saved["diag"].device)
        generators, factored = Generators(*saved["generators"]), Factored(*saved["factored"])
        planned = Order.of(saved["planned"]["order"], saved["planned"]["layout"])
        made = {"generators": generators, "factored": factored._replace(backend=backend), "planned": planned}
        return cls(**{**saved, **made, "backend": _backends.of_order(planned)})

    def solve(self, y: Tensor) -> Tensor:
        """A^-1 y for y (n,) or (..., n, m), in its dtype."""
        return self.on_columns(
            self.where, y, lambda flat: solve(flat, self.diag, self.factored, self._product, *self.parameters)
        )

    @property
    def _product(self) -> Product:
        """The product with the matrix, without the diagonal. Only a Gram matrix has mass between its points."""
        function = _gram_product if self.factored.mass.shape[-1] else _kernel_product
        return partial(function, self.planned, self.backend)

    def on_columns(self, where: str, y: Tensor, apply: Callable[[Tensor], Tensor]) -> Tensor:
        """apply, of (h, n, m) in float64, to y (n,) or (..., n, m); in the dtype of y."""
        _checks.reverse_mode_only(where, y)
        _checks.right_hand_side(where, y, self.diag, self.batch, self.diag.shape[-1])
        _backends.tell_without_core(y.device, y.numel())
        columns = y[:, None] if y.dim() == 1 else y
        rows, folding = fold(columns.mT.double(), self.batch or (1,))
        x = unfold(apply(rows.mT).mT, folding).mT.to(y.dtype)
        x = x if self.batch else x.reshape(columns.shape)
        return x[..., 0] if y.dim() == 1 else x

    def logdet(self) -> Tensor:
        """log det A, (*H), in the dtype of the anchors."""
        return logdet(self.generators, self.factored).reshape(self.batch).to(self.dtype)


def flat(
    where: str,
    a: Tensor,
    b: Tensor,
    tau: float | Tensor,
    phi: Tensor | None,
    psi: Tensor | None,
    plan: Plan,
    batch: tuple[int, ...],
) -> Flat:
    shape = batch or (1,)
    _backends.tell_without_core(a.device, a.numel() + b.numel())
    rows = flat_anchors(a.double(), shape)
    cols = rows if b is a else flat_anchors(b.double(), shape)
    of_rows = None if phi is None else _checks.finite_phase(where, "phi", flat_anchors(phi.double(), shape))
    of_cols = of_rows
    if psi is not None and psi is not phi:
        of_cols = _checks.finite_phase(where, "psi", flat_anchors(psi.double(), shape))
    scale = _checks.valid_tau(where, flat_tau(tau, shape, a.device))
    return Flat(rows, cols, scale, of_rows, of_cols, plan._order_for(a, b), plan.backend, a.dtype)


def of_kernel(where: str, k: Flat, diag: Tensor | None, batch: tuple[int, ...]) -> System:
    """K + diag for b = a and psi = phi."""
    order, t = _ordered(k)
    p = _directions(k.phi, order)
    added = torch.zeros_like(t[..., :1]).expand(t.shape) if diag is None else diag
    generators = Generators(t, k.tau, p, p, t.new_empty((*t.shape, 0)), _sorted(added, order))
    backend = _backends.planner_of_sides(t.device)
    factored = _checked(where, generators, factor(generators, order, backend), alone=diag is None)
    parameters = (k.a, k.tau) if k.phi is None else (k.a, k.tau, k.phi)
    return System(where, batch, generators, factored, added, k.planned, k.backend, parameters, k.dtype)


def of_gram(where: str, k: Flat, weight: Tensor, diag: Tensor, batch: tuple[int, ...]) -> System:
    """K diag(weight) K^T + diag, weight (h, k) float64."""
    order, t = _ordered(k)
    smallest = _checks.SMALLEST_TAU_OF_SQUARES
    if not k.tau.is_cuda and not bool(_checks.is_length(k.tau, smallest).all()):  # on CUDA the sums will be NaN
        raise ValueError(_checks.bad_tau(where, k.tau, smallest))
    try:
        left, right, mass = _masses(_moments(weight, k.psi), k, order, t)
    except StalePlanError:  # of the product underneath
        raise StalePlanError(_checks.stale_plan(where)) from None
    e = _directions(k.phi, order)
    p, q = torch.cat([e, _applied(right, e)], -1), torch.cat([_applied(left, e), e], -1)
    generators = Generators(t, k.tau, p, q, mass, _sorted(diag, order))
    backend = _backends.planner_of_sides(t.device)
    factored = _checked(where, generators, factor(generators, order, backend), alone=False)
    phases = () if k.phi is None or k.psi is None else (k.phi, k.psi)
    parameters = (weight, k.a, k.b, k.tau, *phases)
    return System(where, batch, generators, factored, diag, k.planned, k.backend, parameters, k.dtype)


def _kernel_product(planned: Order, backend: str, x: Tensor, a: Tensor, tau: Tensor, *phi: Tensor) -> Tensor:
    """K x."""
    phase = (phi[0], phi[0]) if phi else None
    return product(x.mT, Matrix(a, a, tau, _widened(planned), backend), phase).mT


def _gram_product(
    planned: Order, backend: str, x: Tensor, weight: Tensor, a: Tensor, b: Tensor, tau: Tensor, *phases: Tensor
) -> Tensor:
    """K diag(weight) K^T x."""
    there = (phases[0], phases[1]) if phases else None
    back = (phases[1], phases[0]) if phases else None
    matrix = Matrix(a, b, tau, _widened(planned), backend)
    inner = product(x.mT, matrix.mT, back)
    return product(inner * weight[:, None], matrix, there).mT


def _widened(planned: Order) -> Order:
    """The order with its anchors in float64, as they are here: the core then sees that none moved."""
    if planned.target.kind != "sorted":  # it holds no anchors, or is the GPU's
        return planned
    return planned._replace(target=_wide(planned.target), source=_wide(planned.source))


def _wide(side: Side) -> Side:
    return side._replace(values=side.values.double())


def _ordered(k: Flat) -> tuple[Tensor, Tensor]:
    """The order (h, n) of the rows, and their anchors in it."""
    side = k.planned.target
    if side.kind in ("sorted", "short"):
        order = side.indices[:, 0].long()
    else:
        order = k.a.detach().argsort(stable=True)
    return order, _gathered(k.a, order, side)


def _gathered(anchors: Tensor, order: Tensor, side: Side) -> Tensor:
    """anchors (h, n) in order; from the plan's values, where it has them and the anchors have not moved."""
    looked_at = side.kind == "sorted" and not (anchors.requires_grad or anchors.is_cuda)  # CUDA is not waited for
    if looked_at and torch.equal(side.values[:, 0].double(), anchors):
        return side.values[:, 1].double()
    return anchors.gather(-1, order)


def _checked(where: str, generators: Generators, factored: Factored, *, alone: bool) -> Factored:
    """Raise unless the matrix is positive definite. On CUDA, which is not waited for, all is NaN instead."""
    d, decay, order = factored.d, factored.decay, factored.order
    subtracted = factored.mass.shape[-1] > 0  # then a small pivot is a difference, of which no digit may be left
    most = 1 if subtracted else 0  # of anchors in order
    lost = ~(d > (SINGULAR * _diagonal(generators) if subtracted else 0))
    if alone:  # three equal anchors with phases are singular, but the last d comes out as a rounding error
        lost = lost | ((decay == 0) & (d <= SINGULAR))
    # An infinite gap decays to 0, as any wide one does: of anchors in order only the outermost can have one.
    ends = torch.cat([generators.t[:, :1], generators.t[:, -1:]], -1).detach()
    finite = torch.isfinite(ends).all(-1, keepdim=True)
    if d.is_cuda:
        lost = lost | ~(decay <= most) | ~finite
        return factored._replace(d=torch.where(lost.any(-1, keepdim=True), torch.nan, d))
    if not bool((decay <= most).all() & finite.all()):
        raise StalePlanError(_checks.stale_plan(where))
    if bool(lost.any()):
        kernel, i = (int(part) for part in lost.nonzero()[0])
        tied = order[kernel, [i - 1, i]].tolist() if i and float(decay[kernel, i]) == 0 else None
        raise ValueError(_checks.not_definite(where, int(order[kernel, i]), sorted(tied) if alone and tied else None))
    return factored


def _diagonal(generators: Generators) -> Tensor:
    """The diagonal (h, n) of the matrix, in order."""
    sides = zip(generators.p.detach().unbind(-1), generators.q.detach().unbind(-1))
    return sum((p * q for p, q in sides), generators.diag.detach())


def _sorted(diag: Tensor, order: Tensor) -> Tensor:
    """diag (h, n) in order; a number is the same in any."""
    return diag if diag.stride(-1) == 0 else diag.gather(-1, order)


def _directions(phi: Tensor | None, order: Tensor) -> Tensor:
    """e (h, n, 1 or 2), in order."""
    if phi is None:
        return torch.ones_like(order, dtype=torch.float64)[..., None]
    angle = phi.gather(-1, order)
    return torch.stack([angle.cos(), angle.sin()], -1)


def _moments(weight: Tensor, psi: Tensor | None) -> Tensor:
    """The weights' moments (h, 1 or 3, k): of 1, or of cos^2, cos sin, sin^2 of psi."""
    if psi is None:
        return weight[:, None]
    cos, sin = psi.cos(), psi.sin()
    return weight[:, None] * torch.stack([cos * cos, cos * sin, sin * sin], 1)


def _applied(moments: Tensor, e: Tensor) -> Tensor:
    """The matrices packed in moments (h, 1 or 3, n), times e (h, n, 1 or 2)."""
    if e.shape[-1] == 1:
        return moments[:, 0, :, None] * e
    one, both, two = moments.unbind(1)
    cos, sin = e.unbind(-1)
    return torch.stack([one * cos + both * sin, both * cos + two * sin], -1)


def _masses(moments: Tensor, k: Flat, order: Tensor, t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """U, V (h, 1 or 3, n), and W (h, n, 1 or 3) in the gap before every point, of moments (h, 1 or 3, k)."""
    side = k.planned.source
    matrix = Matrix(k.a, k.b, k.tau / 2, k.planned, k.backend)
    if side.kind == "sorted":  # both sides are sorted: then all is a walk, nothing a look-up
        cols = side.indices[:, 0].long()
        moments = moments.gather(-1, cols[:, None].expand(moments.shape))
        below, upto = side.indices[:, 2].long(), side.indices[:, 3].long()
        s = _gathered(k.b, cols, side)
        left, right = halves(moments, matrix._replace(target=t, source=s, order=_as_sorted(k.planned)))
        return left, right, _between(moments, below, upto, t.shape[-1])
    left, right = halves(moments, matrix)
    if side.kind == "long":
        below, upto = side.indices[:, 0].long(), side.indices[:, 1].long()
    else:
        ends, s = t.detach(), k.b.detach()
        below, upto = torch.searchsorted(ends, s), torch.searchsorted(ends, s, right=True)
    picked = order[:, None].expand(left.shape)
    return left.gather(-1, picked), right.gather(-1, picked), _between(moments, below, upto, t.shape[-1])


def _as_sorted(planned: Order) -> Order:
    """A merged order, as it is for the same anchors given in order."""
    made = []
    for side in (planned.target, planned.source):
        index = side.indices
        own = torch.arange(index.shape[-1], dtype=torch.int32, device=index.device).expand(index.shape[0], -1)
        made += [torch.stack([own, own, index[:, 2], index[:, 3]], 1), index.new_empty((1, 0, 1), dtype=torch.float64)]
    return Order.of(made, planned.layout)


def _between(moments: Tensor, below: Tensor, upto: Tensor, n: int) -> Tensor:
    """The moments in the gap before every point, (h, n, 1 or 3), half of those tied with its ends."""
    gaps = moments.new_zeros((*moments.shape[:-1], n + 1))  # the last holds what lies beyond
    for place in (below, upto):
        gaps = _added(gaps, place[:, None].expand(moments.shape), moments / 2)
    return gaps[..., :n].mT


def _added(sums: Tensor, index: Tensor, values: Tensor) -> Tensor:
    """sums (h, c, n) with values (h, c, k) added where index says; in the same order every time."""
    if not sums.is_cuda:
        return sums.scatter_add(-1, index, values)
    # There scatter_add adds in the order in which threads happen to come; index_put sorts the indices first.
    rows = torch.arange(sums[..., 0].numel(), device=sums.device).view(*sums.shape[:-1], 1)
    flat = (index + sums.shape[-1] * rows).flatten()
    return sums.flatten().index_put((flat,), values.flatten(), accumulate=True).view(sums.shape)
