"""The order of two sets of anchors, found once and reused while it stands."""

from __future__ import annotations

import torch
from torch import Tensor

from laplex import _checks, _ops, backends
from laplex._shapes import flat, flat_anchors
from laplex.errors import frozen

# From this ratio of sizes on only the shorter side is sorted. benchmarks/crossover.py: short -> long gains from 16 on,
# long -> short loses a little where all fits the cache; the plan, which sorts only the short side, gains throughout.
SHORT_AXIS_RATIO = 16


class Plan:
    """The sorted order of the anchors a (*H, n) and b (*H, k), for reuse in many calls.

    Sorting is most of the price of a single product. A plan pays it once::

        plan = laplex.Plan(a, b)
        for x in batches:
            y = laplex.linear(x, a, b, tau, plan=plan)

    A plan stays true while anchors move without passing one another, whatever tau does, and it serves the product, its
    transpose and all their derivatives. Used with anchors whose order it does not describe, a product is still right or
    raises :class:`laplex.StalePlanError`; it never answers wrongly. :meth:`update` gives the plan for anchors that
    moved.

    Args:
        a (*H, n): row anchors, float32 or float64.
        b (*H, k): column anchors, same dtype and device.
    """

    shape: tuple[int, ...]  # (*H, n, k)
    layout: str  # "merged", "short_rows" or "short_cols"
    order: _ops.Planned  # row and column index and values: laplex._ops
    __setattr__ = frozen

    def __init__(self, a: Tensor, b: Tensor) -> None:
        rows, cols, shape = _flat("laplex.Plan", a, b)
        layout = choose_layout(*shape[-2:])
        self.__dict__.update(shape=shape, layout=layout, order=build(rows, cols, layout))

    @property
    def device(self) -> torch.device:
        return self.order[0].device

    @property
    def mT(self) -> Plan:
        """The plan of the transpose: the same order, with rows and columns swapped. Nothing is copied."""
        *batch, n, k = self.shape
        layout = {"short_rows": "short_cols", "short_cols": "short_rows"}.get(self.layout, self.layout)
        return self._made((*batch, k, n), layout, (*self.order[2:], *self.order[:2]))

    def to(self, device: torch.device | str) -> Plan:
        """The plan on another device."""
        row_index, row_values, col_index, col_values = (tensor.to(device=device) for tensor in self.order)
        return self._made(self.shape, self.layout, (row_index, row_values, col_index, col_values))

    def update(self, a: Tensor, b: Tensor) -> Plan:
        """The plan for anchors that moved since this one was built. The less they moved, the less it costs.

        Not for use inside torch.compile or torch.func transforms: there, leave the plan out.
        """
        rows, cols, shape = _flat("Plan.update", a, b)
        self.check_shape("Plan.update", shape, a.device)
        if a.dtype != self.order[1].dtype:
            return Plan(a, b)
        kernels = _ops.kernels(backends.planner(a.device))
        order = kernels.replan(flat(rows, 2), flat(cols, 2), self.layout, self.order)
        return self._made(self.shape, self.layout, order)

    def validate(self, a: Tensor, b: Tensor) -> None:
        """Raise, with the cause, unless this plan describes the order of these anchors. Waits for the device."""
        rows, cols, shape = _flat("Plan.validate", a, b)
        self.check_shape("Plan.validate", shape, a.device)
        for name, anchors in (("a", a), ("b", b)):
            if not bool(torch.isfinite(anchors).all()):
                raise ValueError(_checks.not_finite("Plan.validate", name))
        tau = rows.new_ones(rows.shape[:-1], dtype=torch.float64)
        zeros = torch.zeros_like(cols)
        _ops.scan(zeros, rows, cols, tau, *self.order, True, backends.planner(a.device))

    def check_shape(self, where: str, shape: tuple[int, ...], device: torch.device) -> None:
        """Raise unless the plan was built for these sizes on this device."""
        if self.shape != shape:
            raise ValueError(
                f"{where}: `plan` was built for (*H, n, k) = {self.shape}, `a`, `b` and `tau` here give {shape}; "
                "build one with laplex.Plan(a, b), of anchors expanded to H if `tau` alone is batched"
            )
        if self.device != device:
            raise ValueError(f"{where}: `plan` is on {self.device}, the anchors on {device}; use plan.to('{device}')")

    @classmethod
    def _made(cls, shape: tuple[int, ...], layout: str, order: _ops.Planned) -> Plan:
        made = object.__new__(cls)
        made.__dict__.update(shape=shape, layout=layout, order=order)
        return made

    def __repr__(self) -> str:
        *batch, n, k = self.shape
        ways = {
            "merged": "merged: both sides sorted",
            "short_rows": f"short axis: the {n} rows sorted",
            "short_cols": f"short axis: the {k} columns sorted",
        }
        kernels = f", batch={tuple(batch)}" if batch else ""
        return f"Plan(n={n}, k={k}{kernels}, device={self.device}, {ways[self.layout]})"


def choose_layout(n: int, k: int) -> str:
    if k >= SHORT_AXIS_RATIO * n:
        return "short_rows"
    return "short_cols" if n >= SHORT_AXIS_RATIO * k else "merged"


def build(a: Tensor, b: Tensor, layout: str) -> _ops.Planned:
    """The order of a (h, n) and b (h, k), or of a (n,) and b (k,)."""
    result: _ops.Planned = _ops.plan(a.detach(), b.detach(), layout, backends.planner(a.device))
    return result


def no_order(a: Tensor, b: Tensor) -> _ops.Planned:
    """In place of an order, for the backend that needs none."""
    nothing = [side.new_empty((*(side.shape[:-1] or (1,)), 0, side.shape[-1])) for side in (a, a, b, b)]
    return nothing[0], nothing[1], nothing[2], nothing[3]


def _flat(where: str, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor, tuple[int, ...]]:
    """Checked anchors, flat, out of autograd's sight, and the matrix's shape (*H, n, k)."""
    _checks.anchor_pair(where, a, b)
    batch = _checks.batch_shape(where, a, b, 1.0)
    shape = (*batch, a.shape[-1], b.shape[-1])
    return flat_anchors(a.detach(), batch), flat_anchors(b.detach(), batch), shape
