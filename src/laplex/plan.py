"""The order of two sets of anchors, found once and reused while it stands."""

from __future__ import annotations

import torch
from torch import Tensor

from laplex import _checks, _ops, backends
from laplex._shapes import flat_anchors

SHORT_AXIS_RATIO = 8  # from this ratio of sizes on, sorting only the shorter side is faster (laplex bench: short axis)


class Plan:
    """The sorted order of the anchors a (*H, n) and b (*H, k), for reuse in many calls.

    Sorting is most of the price of a single product. A plan pays it once::

        plan = laplex.Plan(a, b)
        for x in batches:
            y = laplex.linear(x, a, b, tau, plan=plan)

    A plan holds the order and no values: it stays true while anchors move without passing one another, whatever tau
    does, and it serves the product, its transpose and all their derivatives. Used with anchors in another order it
    raises :class:`StalePlanError`; it never answers wrongly. :meth:`update` gives a plan for anchors that moved.

    Args:
        a (*H, n): row anchors, float32 or float64.
        b (*H, k): column anchors, same dtype and device.
    """

    def __init__(self, a: Tensor, b: Tensor) -> None:
        _checks.anchor_pair("laplex.Plan", a, b)
        batch = _checks.batch_shape("laplex.Plan", a, b, 1.0)
        n, k = a.shape[-1], b.shape[-1]
        layout = choose_layout(n, k)
        row_index, col_index = build(flat_anchors(a.detach(), batch), flat_anchors(b.detach(), batch), layout)
        self.shape: tuple[int, ...] = (*batch, n, k)
        self.layout = layout  # "merged", "short_rows" or "short_cols"
        self.row_index, self.col_index = row_index, col_index  # what is in them: laplex._ops

    @property
    def device(self) -> torch.device:
        return self.row_index.device

    @property
    def mT(self) -> Plan:
        """The plan of the transpose: the same order, with rows and columns swapped. Nothing is copied."""
        *batch, n, k = self.shape
        layout = {"short_rows": "short_cols", "short_cols": "short_rows"}.get(self.layout, self.layout)
        return self._made((*batch, k, n), layout, self.col_index, self.row_index)

    def to(self, device: torch.device | str) -> Plan:
        """The plan on another device."""
        return self._made(self.shape, self.layout, self.row_index.to(device), self.col_index.to(device))

    def update(self, a: Tensor, b: Tensor) -> Plan:
        """The plan for anchors that moved: this one if its order still stands, else a new one that starts from it."""
        _checks.anchor_pair("Plan.update", a, b)
        batch = _checks.batch_shape("Plan.update", a, b, 1.0)
        self.check_shape("Plan.update", (*batch, a.shape[-1], b.shape[-1]), a.device)
        flat_a, flat_b = flat_anchors(a.detach(), batch), flat_anchors(b.detach(), batch)
        kernels = _ops.kernels(backends.planner(a.device))
        row_index, col_index = kernels.replan(flat_a, flat_b, self.layout, self.row_index, self.col_index)
        if row_index is self.row_index:
            return self
        return self._made(self.shape, self.layout, row_index, col_index)

    def validate(self, a: Tensor, b: Tensor) -> None:
        """Raise, with the cause, unless this plan describes the order of these anchors. Waits for the device."""
        _checks.anchor_pair("Plan.validate", a, b)
        batch = _checks.batch_shape("Plan.validate", a, b, 1.0)
        self.check_shape("Plan.validate", (*batch, a.shape[-1], b.shape[-1]), a.device)
        for name, anchors in (("a", a), ("b", b)):
            if not bool(torch.isfinite(anchors).all()):
                raise ValueError(_checks.not_finite("Plan.validate", name))
        rows = flat_anchors(a.detach(), batch)
        cols = flat_anchors(b.detach(), batch)
        ones = torch.ones((), dtype=torch.float64, device=a.device).expand(rows.shape[0])
        probe = cols.new_zeros((cols.shape[0], 1, cols.shape[1]))
        _ops.scan(probe, rows, cols, ones, self.row_index, self.col_index, True, backends.planner(a.device))

    def check_shape(self, where: str, shape: tuple[int, ...], device: torch.device) -> None:
        """Raise unless the plan was built for these sizes on this device."""
        if self.shape != tuple(shape):
            raise ValueError(
                f"{where}: `plan` was built for (*H, n, k) = {self.shape}, the anchors here give {tuple(shape)}; "
                "build one for them with laplex.Plan(a, b)"
            )
        if self.device != device:
            raise ValueError(f"{where}: `plan` is on {self.device}, the anchors on {device}; use plan.to({device})")

    @classmethod
    def _made(cls, shape: tuple[int, ...], layout: str, row_index: Tensor, col_index: Tensor) -> Plan:
        made = object.__new__(cls)
        made.shape, made.layout, made.row_index, made.col_index = shape, layout, row_index, col_index
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


def build(a: Tensor, b: Tensor, layout: str) -> tuple[Tensor, Tensor]:
    """The index tensors of a (h, n) and b (h, k)."""
    result: tuple[Tensor, Tensor] = _ops.plan(a, b, layout, backends.planner(a.device))
    return result


def no_index(side: Tensor) -> Tensor:
    """In place of an order, for the backend that needs none."""
    return side.new_empty((side.shape[0], 0, side.shape[1]), dtype=torch.int32)
