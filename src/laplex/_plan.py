"""The sorted order of two sets of anchors, computed once and reused while it is valid."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from laplex import _backends, _checks
from laplex._checks import saved
from laplex._eager import plain, plainly_eager
from laplex._errors import StalePlanError, frozen, set_fields
from laplex._scan import ops
from laplex._scan.order import Matrix, Order
from laplex._shapes import flat, flat_anchors


class Known:
    """The identity of the anchors that a plan was built from: the tensor object, its address and its version counter.

    Anchors that require gradients are never recorded: fused optimizers write to them without raising the counter. Nor
    are anchors recorded while a graph is traced, because the graph will run with other values.
    """

    def __init__(self, anchors: Tensor | None) -> None:
        self.tensor: Callable[[], Tensor | None] = lambda: None
        self.state: tuple[Any, ...] = ()
        if anchors is not None and plain(anchors) and not (anchors.requires_grad or anchors.is_inference()):
            self.tensor = weakref.ref(anchors)
            self.state = anchors.data_ptr(), anchors._version, anchors.shape

    def still(self, anchors: Tensor) -> bool:
        """Whether this is the recorded tensor, and nothing was written to it since."""
        if anchors is not self.tensor() or anchors.requires_grad:
            return False
        return (anchors.data_ptr(), anchors._version, anchors.shape) == self.state


class Plan:
    """The sorted order of the anchors a (*H, n) and b (*H, k), for reuse in many calls.

    Sorting takes most of the time of a single product. With a plan it is done once::

        plan = laplex.Plan(a, b)
        for x in batches:
            y = laplex.linear(x, a, b, tau, plan=plan)

    The plan is valid for the product, its transpose and all their derivatives, for every tau, and while anchors move
    without passing one another. :meth:`update` returns the plan for anchors that moved.

    Every use of a plan is checked. With anchors whose order the plan does not describe, a product raises
    :class:`laplex.StalePlanError` (or is right all the same, if the backend does not need the order). On CUDA a product
    does not wait for the device, so there it is NaN throughout. :meth:`validate` does wait, and raises. Building a plan
    waits and raises, too, except in a graph or a transform, where values are not known.

    On CUDA the check is skipped for the tensors that the plan was built from, if they do not require gradients and
    torch counts no write to them since. Torch does not count writes through ``.data``, NumPy or a replayed CUDA graph.

    A CUDA graph that captured a product reads the plan's memory: keep the plan as long as the graph.

    Args:
        a (*H, n): row anchors, float32 or float64.
        b (*H, k): column anchors, same dtype and device.
        backend: the backend that will use the plan; None chooses by device.
    """

    shape: tuple[int, ...]  # (*H, n, k)
    _order: Order
    _anchors: tuple[Known, Known]  # the a and b that the order was computed from
    _cache: dict[str, Any]  # of a backend, for products with these anchors
    __module__ = "laplex"  # the name that users import and that saved files hold
    __setattr__ = frozen

    def __init__(self, a: Tensor, b: Tensor, *, backend: str | None = None) -> None:
        rows, cols, shape = _flat("laplex.Plan", a, b)
        n, k = shape[-2:]
        table = _backends.choose(a.device, n, k, backend or _backends.planner(a.device))
        if table.order is None:
            table = _backends.load(_backends.planner_of_sides(a.device), a.device.type)
        eager = plainly_eager()  # if not, no values are known
        layout = table.look(a, b) if eager and table.look is not None else table.layout(n, k)
        order = ops.order(rows, cols, layout, table)
        if eager and table.complete is not None:
            order = table.complete(order, n, k)
        anchors = Known(a if eager else None), Known(b if eager else None)
        set_fields(self, shape=shape, _order=order, _anchors=anchors, _cache={})

    @property
    def backend(self) -> str:
        """The backend that the order was computed for; "torch" and "cpp" share one form of order."""
        return _backends.order_backend(self._order)

    @property
    def _table(self) -> _backends.Backend:
        return _backends.load(self.backend, self.device.type)

    def _order_for(self, a: Tensor, b: Tensor) -> Order:
        """The order for these anchors, marked for a check if they may have changed since it was computed."""
        return self._order if not self._order.joined or self._knows(a, b) else self._order.unchecked()

    def _knows(self, a: Tensor, b: Tensor) -> bool:
        """Whether a and b are the unchanged tensors of the order. False in graph capture: they may change later."""
        if not plainly_eager() or not (self._anchors[0].still(a) and self._anchors[1].still(b)):
            return False
        return not (a.is_cuda and torch.cuda.is_current_stream_capturing())

    @property
    def device(self) -> torch.device:
        return self._order.target.indices.device

    @property
    def mT(self) -> Plan:
        """The plan of the transpose: the same order, with rows and columns swapped. Nothing is copied."""
        *batch, n, k = self.shape
        return self._from_order((*batch, k, n), self._order.mT, self._anchors[::-1])

    def to(self, device: torch.device | str) -> Plan:
        """The plan on another device. A plan that Triton made cannot move to the CPU."""
        if self._order.joined and torch.device(device).type != self.device.type:
            raise ValueError(
                f"Plan.to: the plan was built for backend 'triton' on {self.device}, whose order is of no use on "
                f"{device}; build laplex.Plan(a, b) of anchors moved there"
            )
        return self._from_order(self.shape, self._order.to(device), self._anchors)

    def update(self, a: Tensor, b: Tensor) -> Plan:
        """The plan for anchors that moved since this one was built. On the CPU small moves cost less than a new plan.

        It returns a new plan: ``plan = plan.update(a, b)``. Inside torch.compile and torch.func it sorts again.
        """
        rows, cols, shape = _flat("Plan.update", a, b)
        self._check_shape("Plan.update", shape, a.device)
        update = self._table.update
        if a.dtype != self._order.target.values.dtype or update is None or not plainly_eager():
            return Plan(a, b, backend=self.backend)
        order = update(flat(rows, 2), flat(cols, 2), self._order)
        return self._from_order(self.shape, order, (Known(a), Known(b)))

    def validate(self, a: Tensor, b: Tensor) -> None:
        """Raise, with the cause, unless this plan describes the order of these anchors. Waits for the device."""
        rows, cols, shape = _flat("Plan.validate", a, b)
        self._check_shape("Plan.validate", shape, a.device)
        for name, anchors in (("a", a), ("b", b)):
            if not bool(torch.isfinite(anchors).all()):
                raise ValueError(_checks.not_finite("Plan.validate", name))
        tau = rows.new_ones(rows.shape[:-1], dtype=torch.float64)
        matrix = Matrix(rows, cols, tau, self._order.unchecked(), self._table)
        if shape[-2] > shape[-1]:  # with few columns the GPU does not use the order, so nothing would be checked
            matrix = matrix.mT
        try:
            even, _ = ops.scan(torch.zeros_like(matrix.source), *matrix.flat, True, 0)
            stale = bool(even.isnan().any())  # as CUDA says it
        except StalePlanError:
            stale = True
        if stale:
            raise StalePlanError(_checks.stale_plan("Plan.validate"))

    def _check_shape(self, where: str, shape: tuple[int, ...], device: torch.device) -> None:
        """Raise unless the plan was built for these sizes on this device."""
        if self.shape != shape:
            raise ValueError(
                f"{where}: `plan` was built for (*H, n, k) = {self.shape}, `a` and `b` here give {shape}; "
                "build one with laplex.Plan(a, b)"
            )
        if self.device != device:
            raise ValueError(f"{where}: `plan` is on {self.device}, the anchors on {device}; use plan.to('{device}')")
        if self._order.joined and device.type != "cuda" and not _backends.interpreted():
            raise ValueError(
                f"{where}: `plan` was built on a GPU, and its order is of no use on {device}; build one with "
                "laplex.Plan(a, b)"
            )

    @classmethod
    def _from_order(cls, shape: tuple[int, ...], order: Order, anchors: tuple[Known, ...]) -> Plan:
        plan = object.__new__(cls)
        set_fields(plan, shape=shape, _order=order, _anchors=anchors, _cache={})
        return plan

    def __getstate__(self) -> dict[str, Any]:
        """The state of copies and saved files, without addresses and without classes of private modules."""
        return {"shape": self.shape, "layout": self._order.layout, "order": self._order.tensors}

    def __setstate__(self, state: dict[str, Any]) -> None:
        shape, order = saved.plan(state)
        set_fields(self, shape=shape, _order=order, _anchors=(Known(None), Known(None)), _cache={})

    def __repr__(self) -> str:
        *batch, n, k = self.shape
        ways = {
            "merged": "merged: both sides sorted",
            "short_rows": f"short axis: the {n} rows sorted",
            "short_cols": f"short axis: the {k} columns sorted",
            "joined": "joined: one order of both sides",
            "in_order": "joined: both sides came in order",
        }
        way = ways[self._order.kept_as]
        matrices = f", batch={tuple(batch)}" if batch else ""
        return f"Plan(n={n}, k={k}{matrices}, device={self.device}, {way})"


torch.serialization.add_safe_globals([Plan])


def _flat(where: str, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, tuple[int, ...]]:
    """The anchors, checked, flattened and detached, and the shape (*H, n, k) of the matrix."""
    _checks.anchor_pair(where, a, b)
    batch = _checks.batch_shape(where, a, b, 1.0)
    shape = (*batch, a.shape[-1], b.shape[-1])
    return flat_anchors(a.detach(), batch), flat_anchors(b.detach(), batch), shape


def check_plan(where: str, plan: Any, anchors: tuple[Tensor, Tensor], batch: tuple[int, ...]) -> None:
    """Raise unless the plan, if there is one, was built for anchors of these sizes on their device."""
    if plan is None:
        return
    if not isinstance(plan, Plan):
        raise TypeError(_checks.not_a_plan(where, plan))
    a, b = anchors
    plan._check_shape(where, (*batch, a.shape[-1], b.shape[-1]), a.device)


def planned_matrix(
    where: str,
    anchors: tuple[Tensor, Tensor],
    tau: Tensor,
    batch: tuple[int, ...],
    plan: Plan | None,
    backends: tuple[_backends.Backend, str | None],
) -> Matrix:
    """The matrix and its order, from the plan if there is one; ``backends`` are the chosen and the requested one."""
    (a, b), (table, backend) = anchors, backends
    rows, cols = flat_anchors(a, batch), flat_anchors(b, batch)
    if plan is not None:
        if table.order is not None and backend is None:
            table = plan._table
        elif table.order is not None and table.joins != plan._order.joined:
            raise ValueError(_checks.other_backend(where, table.name, plan.backend))
        return Matrix(rows, cols, tau, plan._order_for(a, b), table)
    if table.order is None:
        return Matrix(rows, cols, tau, Order.none(rows, cols), table)
    order = ops.order(rows.detach(), cols.detach(), table.layout(a.shape[-1], b.shape[-1]), table)
    return Matrix(rows, cols, tau, order, table)
