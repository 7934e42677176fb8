"""The order of two sets of anchors, found once and reused while it stands."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from laplex import _checks, _dispatch
from laplex._errors import StalePlanError, frozen
from laplex._scan import ops as _ops
from laplex._shapes import always, flat, flat_anchors, plain, plainly_eager
from laplex._triton.order import launch as triton_plan
from laplex._triton.replay import Repeats

# From this ratio of sizes on only the shorter side is sorted. benchmarks/crossover.py: short -> long gains from 16 on,
# long -> short loses a little where all fits the cache; the plan, which sorts only the short side, gains throughout.
SHORT_AXIS_RATIO = 16


class Known:
    """Anchors as a plan saw them: the object, and the count of what was written to it since.

    Anchors that are trained are never known: fused optimizers write without counting. Nor is anything while a graph is
    made, which will run with what the anchors are then.
    """

    def __init__(self, anchors: Tensor | None) -> None:
        self.tensor: Callable[[], Tensor | None] = lambda: None
        self.seen: tuple[Any, ...] = ()
        if anchors is not None and plain(anchors) and not (anchors.requires_grad or anchors.is_inference()):
            self.tensor = weakref.ref(anchors)
            self.seen = anchors.data_ptr(), anchors._version, anchors.shape

    def still(self, anchors: Tensor) -> bool:
        """Whether these are they, unchanged."""
        if anchors is not self.tensor() or anchors.requires_grad:
            return False
        return (anchors.data_ptr(), anchors._version, anchors.shape) == self.seen


class Plan:
    """The sorted order of the anchors a (*H, n) and b (*H, k), for reuse in many calls.

    Sorting is most of the price of a single product. A plan pays it once::

        plan = laplex.Plan(a, b)
        for x in batches:
            y = laplex.linear(x, a, b, tau, plan=plan)

    A plan stays true while anchors move without passing one another, whatever tau does, and it serves the product, its
    transpose and all their derivatives. Used with anchors whose order it does not describe, a product is still right or
    raises :class:`laplex.StalePlanError`; it never answers wrongly. :meth:`update` gives the plan for anchors that
    moved. On CUDA a product does not wait for the device: there it is NaN throughout instead, and :meth:`validate`
    waits and raises, as building a plan does (but not in a graph or a transform, where values cannot be looked at).
    Anchors that are the very tensors the plan was built from, that are not trained and were not written to since (as
    torch counts it: not through ``.data``, NumPy or a replayed graph), are not checked again.

    A CUDA graph that captured a product reads the plan's memory: keep the plan as long as the graph.

    Args:
        a (*H, n): row anchors, float32 or float64.
        b (*H, k): column anchors, same dtype and device.
        backend: the backend it is for; None lets the device choose.
    """

    shape: tuple[int, ...]  # (*H, n, k)
    _layout: str  # "merged", "short_rows" or "short_cols"; on the GPU "joined" or "in_order"
    _order: _ops.Planned  # row and column index and values: laplex._scan.ops
    _anchors: tuple[Known, Known] | None  # those whose values the GPU's order holds
    _repeats: Repeats  # products done before on the GPU with these very anchors
    __module__ = "laplex"  # as users import it, and as files name it
    __setattr__ = frozen

    def __init__(self, a: Tensor, b: Tensor, *, backend: str | None = None) -> None:
        rows, cols, shape = _flat("laplex.Plan", a, b)
        n, k = shape[-2:]
        chosen = _dispatch.choose(a.device, n, k, backend or _dispatch.planner(a.device))
        layout, eager = choose_layout(n, k, chosen), plainly_eager()  # else there is no value to look at
        anchors = None
        if layout == "joined":
            layout = "in_order" if eager and _looked_through(a, b) else layout  # waits, and raises
            anchors = Known(a if eager else None), Known(b if eager else None)
        order = build(rows, cols, layout, chosen)
        if layout == "joined" and eager:
            order = triton_plan.placed(order, n, k)
        self.__dict__.update(shape=shape, _layout=layout, _order=order, _anchors=anchors, _repeats=Repeats())

    @property
    def backend(self) -> str:
        """The backend the order was made for; "torch" and "cpp" have theirs in common."""
        return "triton" if self._anchors is not None else _dispatch.planner_of_sides(self.device)

    def _order_for(self, a: Tensor, b: Tensor) -> _ops.Planned:
        """The order, without its values if these anchors may be others than those it was built from."""
        if self._anchors is None or self._knows(a, b):
            return self._order
        return self._without_values()

    def _knows(self, a: Tensor, b: Tensor) -> bool:
        """Whether these are the anchors whose values the GPU's order holds; in a captured graph they may change."""
        if self._anchors is None or not plainly_eager():
            return False
        if not (self._anchors[0].still(a) and self._anchors[1].still(b)):
            return False
        return not (a.is_cuda and torch.cuda.is_current_stream_capturing())

    def _without_values(self) -> _ops.Planned:
        """The order as the GPU checks it before use; the CPU always does."""
        if self._anchors is None:
            return self._order
        row_index, row_values, col_index, col_values = self._order
        return row_index, row_values[..., :0], col_index, col_values[..., :0]

    @property
    def device(self) -> torch.device:
        return self._order[0].device

    @property
    def mT(self) -> Plan:
        """The plan of the transpose: the same order, with rows and columns swapped. Nothing is copied."""
        *batch, n, k = self.shape
        layout = {"short_rows": "short_cols", "short_cols": "short_rows"}.get(self._layout, self._layout)
        anchors = None if self._anchors is None else self._anchors[::-1]
        return self._made((*batch, k, n), layout, (*self._order[2:], *self._order[:2]), anchors)

    def to(self, device: torch.device | str) -> Plan:
        """The plan on another device."""
        if self._anchors is not None and torch.device(device).type != self.device.type:
            raise ValueError(
                f"Plan.to: the plan was built for backend 'triton' on {self.device}, whose order is of no use on "
                f"{device}; build laplex.Plan(a, b) of anchors moved there"
            )
        row_index, row_values, col_index, col_values = (tensor.to(device=device) for tensor in self._order)
        return self._made(self.shape, self._layout, (row_index, row_values, col_index, col_values), self._anchors)

    def update(self, a: Tensor, b: Tensor) -> Plan:
        """The plan for anchors that moved since this one was built. On the CPU, the less they moved, the less it costs.

        Not for use inside torch.compile or torch.func transforms: there, leave the plan out.
        """
        rows, cols, shape = _flat("Plan.update", a, b)
        self._check_shape("Plan.update", shape, a.device)
        if a.dtype != self._order[1].dtype or self._anchors is not None:
            return Plan(a, b, backend=self.backend)
        kernels = _ops.kernels(_dispatch.planner_of_sides(a.device))
        order = kernels.replan(flat(rows, 2), flat(cols, 2), self._layout, self._order)
        return self._made(self.shape, self._layout, order, None)

    def validate(self, a: Tensor, b: Tensor) -> None:
        """Raise, with the cause, unless this plan describes the order of these anchors. Waits for the device."""
        rows, cols, shape = _flat("Plan.validate", a, b)
        self._check_shape("Plan.validate", shape, a.device)
        for name, anchors in (("a", a), ("b", b)):
            if not bool(torch.isfinite(anchors).all()):
                raise ValueError(_checks.not_finite("Plan.validate", name))
        tau = rows.new_ones(rows.shape[:-1], dtype=torch.float64)
        order = self._without_values()
        if shape[-2] > shape[-1]:  # few columns are read without the order
            rows, cols, order = cols, rows, (*order[2:], *order[:2])
        even, _ = _ops.scan(torch.zeros_like(cols), rows, cols, tau, *order, True, 0, self.backend)
        if bool(even.isnan().any()):
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

    @classmethod
    def _made(
        cls, shape: tuple[int, ...], layout: str, order: _ops.Planned, anchors: tuple[Known, Known] | None
    ) -> Plan:
        made = object.__new__(cls)
        made.__dict__.update(shape=shape, _layout=layout, _order=order, _anchors=anchors, _repeats=Repeats())
        return made

    def __getstate__(self) -> dict[str, Any]:
        """What a copy and a file hold: no addresses, and no class of a private module."""
        return {"shape": self.shape, "layout": self._layout, "order": self._order}

    def __setstate__(self, state: dict[str, Any]) -> None:
        layout, order = state["layout"], state["order"]
        unknown = None if layout in _ops.SIDES else (Known(None), Known(None))
        held = {"_layout": layout, "_order": order, "_anchors": unknown, "_repeats": Repeats()}
        self.__dict__.update(shape=state["shape"], **held)

    def __repr__(self) -> str:
        *batch, n, k = self.shape
        ways = {
            "merged": "merged: both sides sorted",
            "short_rows": f"short axis: the {n} rows sorted",
            "short_cols": f"short axis: the {k} columns sorted",
            "joined": "joined: one order of both sides",
            "in_order": "joined: both sides came in order",
        }
        kernels = f", batch={tuple(batch)}" if batch else ""
        return f"Plan(n={n}, k={k}{kernels}, device={self.device}, {ways[self._layout]})"


torch.serialization.add_safe_globals([Plan])


def choose_layout(n: int, k: int, backend: str) -> str:
    if backend == "triton":
        return "joined"
    if always(k >= SHORT_AXIS_RATIO * n):
        return "short_rows"
    return "short_cols" if always(n >= SHORT_AXIS_RATIO * k) else "merged"


def build(a: Tensor, b: Tensor, layout: str, backend: str) -> _ops.Planned:
    """The order of a (h, n) and b (h, k), or of a (n,) and b (k,)."""
    if backend == "dense":  # has none of its own
        backend = _dispatch.planner_of_sides(a.device)
    return _ops.run_plan(a.detach(), b.detach(), layout, backend)


def _looked_through(a: Tensor, b: Tensor) -> bool:
    """Raise unless both sides are finite; whether both are in order."""
    asked = [torch.isfinite(a).all(), torch.isfinite(b).all()]
    asked += [(side[..., 1:] >= side[..., :-1]).all() for side in (a.detach(), b.detach())]
    a_finite, b_finite, a_sorted, b_sorted = torch.stack(asked).tolist()
    for name, finite in (("a", a_finite), ("b", b_finite)):
        if not finite:
            raise ValueError(_checks.not_finite("laplex.Plan", name))
    return bool(a_sorted and b_sorted and a.shape[-1] and b.shape[-1])


def no_order(a: Tensor, b: Tensor) -> _ops.Planned:
    """In place of an order, for the backend that needs none."""
    of_rows, of_cols = _nothing(a), _nothing(b)
    return of_rows, of_rows, of_cols, of_cols


def _nothing(side: Tensor) -> Tensor:
    return side.new_empty((*(side.shape[:-1] or (1,)), 0, side.shape[-1]))


def _flat(where: str, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, tuple[int, ...]]:
    """Checked anchors, flat, out of autograd's sight, and the matrix's shape (*H, n, k)."""
    _checks.anchor_pair(where, a, b)
    batch = _checks.batch_shape(where, a, b, 1.0)
    shape = (*batch, a.shape[-1], b.shape[-1])
    return flat_anchors(a.detach(), batch), flat_anchors(b.detach(), batch), shape
