"""A plan over ranks: which rank owns which anchors, and their order there."""

from __future__ import annotations

import importlib
import math
import sys
from typing import Any, NamedTuple, NoReturn

import torch
from torch import Tensor

from laplex import _checks
from laplex._eager import normal_mode, outside_graphs
from laplex._errors import StalePlanError, frozen
from laplex._plan import Known
from laplex._plan import Plan as LocalPlan
from laplex._scan.order import Matrix
from laplex._shapes import flat_anchors
from laplex.distributed._agreement import agree, plain_arguments, ranks_in, resolved, run_on_all, trained
from laplex.distributed._ends import Ghosts, edges, ghosts
from laplex.distributed._local import LocalPart
from laplex.distributed._moves import (
    Share,
    in_arrival_order,
    in_line_order,
    owned,
    to_holders,
    to_owners,
    to_owners_detached,
)
from laplex.distributed._ranks import Ranks
from laplex.distributed._scan import BACKEND, Half, SpreadOrder
from laplex.distributed._sorting import shared


class Settled(NamedTuple):
    """The anchors where they are owned, and their order."""

    rows: Tensor  # (h, width)
    cols: Tensor
    plan: LocalPlan  # of these anchors
    order: SpreadOrder


class Plan:
    """The order of anchors a (*H, n) and b (*H, k) whose last dimensions are spread over the ranks of a group.

    Every rank passes its own shards, which may have any sizes, 0 included, and any order. A sample sort gives each rank
    an interval of the line, with about equally many anchors. A product sends the operand to the owners of its columns,
    multiplies there, exchanges a few numbers per row, and sends the results back to where the rows are.

    If the shards already are such intervals, in the order of ranks, only those few numbers are exchanged.
    :meth:`arrange_rows` and :meth:`arrange_columns` bring values into that layout, so that you can keep them there.

    All ranks of the group must make the plan, and use it, together. If it is used with anchors that have moved past one
    another, it raises :class:`laplex.StalePlanError` on all ranks; :meth:`update` makes a plan for them.

    Both sides may be DTensors, as in :func:`laplex.distributed.linear`.

    Args:
        a (*H, n of this rank): row anchors, float32 or float64. Leading dimensions H are a batch of matrices.
        b (*H, k of this rank): column anchors, same dtype and device.
        group: a torch.distributed.ProcessGroup; None for all processes.
    """

    local_shape: tuple[int, ...]  # (*H, n, k) of the shards on this rank
    shape: tuple[int, ...]  # over all ranks
    _ranks: Ranks
    _shares: tuple[Share, Share]
    _settled: Settled
    _anchors: tuple[Tensor, Tensor]  # copies of the anchors, to detect changes
    _known: tuple[Known, Known]
    __setattr__ = frozen

    @outside_graphs
    def __init__(self, a: Tensor, b: Tensor, *, group: Any = None) -> None:
        where = "laplex.distributed.Plan"
        parts = dtensor_parts(where, {"a": a, "b": b}, group)
        if parts is not None:
            (a, b), group = parts.arguments.values(), parts.group
        a, b = resolved(a), resolved(b)
        ranks = ranks_in(where, group)
        agree(where, ranks, lambda: anchor_terms(where, a, b, finite=True))
        self.__dict__.update(planned(where, a, b, ranks).__dict__)

    @property
    def group(self) -> Any:
        """The process group; None for all processes."""
        return self._ranks.group

    @property
    def device(self) -> torch.device:
        return self._anchors[0].device

    @property
    def owned(self) -> tuple[int, int]:
        """How many rows and columns this rank owns, over all matrices."""
        rows, cols = self._shares
        return sum(rows.counts), sum(cols.counts)

    @property
    def mT(self) -> Plan:
        """The plan of the transpose. Nothing is copied."""
        (rows, cols), settled = self._shares, self._settled
        return _with_fields(
            local_shape=(*self.local_shape[:-2], *self.local_shape[:-3:-1]),
            shape=(*self.shape[:-2], *self.shape[:-3:-1]),
            _ranks=self._ranks,
            _shares=(cols, rows),
            _settled=Settled(settled.cols, settled.rows, settled.plan.mT, settled.order.mT),
            _anchors=self._anchors[::-1],
            _known=self._known[::-1],
        )

    def update(self, a: Tensor, b: Tensor) -> Plan:
        """A plan for anchors that have moved since this one was made."""
        return Plan(a, b, group=self.group)

    def arrange_rows(self, values: Tensor) -> Tensor:
        """Move values (..., n of this rank), one per row, into the plan's layout: each rank's interval, in order."""
        return self._arranged("arrange_rows", values, 0)

    def arrange_columns(self, values: Tensor) -> Tensor:
        """Move values (..., k of this rank), one per column, into the plan's layout: each rank's interval, in order."""
        return self._arranged("arrange_columns", values, 1)

    def restore_rows(self, values: Tensor) -> Tensor:
        """The inverse of :meth:`arrange_rows`."""
        return self._restored("restore_rows", values, 0)

    def restore_columns(self, values: Tensor) -> Tensor:
        """The inverse of :meth:`arrange_columns`."""
        return self._restored("restore_columns", values, 1)

    @outside_graphs
    def _arranged(self, method: str, values: Tensor, side: int) -> Tensor:
        share = self._shares[side]
        values = self._agreed(method, values, share.size)
        rows = values.reshape(1, math.prod(values.shape[:-1]), share.size)
        at_owners = to_owners(rows, share, self._ranks)[0]
        return in_line_order(at_owners, share)[:, : share.counts[0]].reshape(*values.shape[:-1], share.counts[0])

    @outside_graphs
    def _restored(self, method: str, values: Tensor, side: int) -> Tensor:
        share = self._shares[side]
        values = self._agreed(method, values, share.counts[0] if len(share.counts) == 1 else -1)
        rows = values.reshape(1, math.prod(values.shape[:-1]), share.counts[0])
        at_owners = in_arrival_order(rows[0], share)[None]
        return to_holders(at_owners, share, self._ranks).reshape(*values.shape[:-1], share.size)

    def _agreed(self, method: str, values: Any, size: int) -> Tensor:
        """Check that the values have this size on this rank and the same form on all ranks, and return them."""
        where, values = f"laplex.distributed.Plan.{method}", resolved(values)

        def check() -> dict[str, Any]:
            if len(self.shape) > 2:
                raise ValueError(f"{where}: the plan must be of one matrix, got a batch of {self.shape[:-2]}")
            _checks.check_tensor(where, "values", values)
            if values.device != self.device:
                raise ValueError(
                    f"{where}: `values` must be on {self.device}, where the plan is, got {values.device}; use .to()"
                )
            plain_arguments(where, [values])
            if values.dim() == 0 or values.shape[-1] != size:
                raise ValueError(
                    f"{where}: `values` must have size {size} in its last dimension, got shape {tuple(values.shape)}"
                )
            return {
                "the shape of `values` but for its last dimension": tuple(values.shape[:-1]),
                "the dtype of `values`": values.dtype,
                "the set of arguments that require gradients": trained({"values": values}),
            }

        agree(where, self._ranks, check)
        checked: Tensor = values
        return checked

    def _changed(self, a: Tensor, b: Tensor) -> bool:
        """Whether the caller's anchors differ in any bit from those of the plan."""
        pairs = zip(self._known, self._anchors, (a, b), strict=True)
        return not all(known.still(now) or torch.equal(before, now) for known, before, now in pairs)

    def _check_shape(self, where: str, a: Tensor, b: Tensor, batch: tuple[int, ...]) -> None:
        shape = (*batch, a.shape[-1], b.shape[-1])
        if self.local_shape != shape:
            raise ValueError(
                f"{where}: `plan` was built for shards of (*H, n, k) = {self.local_shape} on this rank, `a` and `b` "
                f"here give {shape}; build one with laplex.distributed.Plan(a, b)"
            )
        if self.device != a.device or self._anchors[0].dtype != a.dtype:
            raise ValueError(
                f"{where}: `plan` was built for {self._anchors[0].dtype} on {self.device}, the anchors are {a.dtype} "
                f"on {a.device}; build one with laplex.distributed.Plan(a, b)"
            )

    def _matrix(self, where: str, a: Tensor, b: Tensor, tau: Tensor, *, changed: bool) -> Matrix:
        """The matrix of the caller's anchors a (h, n) and b (h, k) and tau (h,), differentiable in all of them."""
        settled = self._settled
        if changed:
            settled = _settle(where, (a.detach(), b.detach()), self._shares, self._ranks, settled.plan)
        rows = owned(a, settled.rows, self._shares[0], self._ranks)
        cols = owned(b, settled.cols, self._shares[1], self._ranks)
        return Matrix(rows, cols, tau, settled.order, BACKEND)  # type: ignore[arg-type]

    def __copy__(self) -> Plan:
        return self  # a plan never changes, and a process group cannot be copied

    def __deepcopy__(self, memo: dict[int, Any]) -> Plan:
        return self

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            "laplex.distributed.Plan cannot be saved or sent: it belongs to a process group; save the anchors, and "
            "make it again with laplex.distributed.Plan(a, b)"
        )

    def __repr__(self) -> str:
        *batch, n, k = self.shape
        matrices = f", batch={tuple(batch)}" if batch else ""
        moved = "as they are" if self._shares[0].stays else "moved"
        rows, cols = self.owned
        return (
            f"Plan(n={n}, k={k}{matrices}, rank {self._ranks.rank} of {self._ranks.size} owns {rows} rows and {cols} "
            f"columns, {moved})"
        )


def dtensor_parts(where: str, arguments: dict[str, Any], group: Any) -> Any:
    """The local parts of DTensors (``_tensors.LocalArguments``), or None if there are none.

    Imported here because the DTensor module takes a second to import, and a program without DTensors never does.
    """
    if "torch.distributed.tensor" not in sys.modules:
        return None
    tensors = importlib.import_module("laplex.distributed._tensors")
    return tensors.local_arguments(where, arguments, group) if tensors.has_dtensors(arguments) else None


def anchor_terms(where: str, a: Any, b: Any, *, finite: bool) -> dict[str, Any]:
    """Check the anchors of this rank, and return what must be the same on all ranks."""
    _checks.anchor_pair(where, a, b)
    plain_arguments(where, (a, b))
    batch = _checks.batch_shape(where, a, b, 1.0)
    for name, side in (("a", a), ("b", b)):
        if finite and not bool(torch.isfinite(side).all()):
            raise ValueError(_checks.not_finite(where, name))
    if math.prod(batch) == 0:
        raise ValueError(f"{where}: there must be at least one matrix, got H = {batch}")
    return {"the batch H (leading dimensions of `a` and `b`)": batch, "the dtype of `a` and `b`": a.dtype}


def planned(where: str, a: Tensor, b: Tensor, ranks: Ranks) -> Plan:
    """The plan of checked anchors. It may be made in inference mode and used later where gradients are wanted."""
    with normal_mode():
        return _planned(where, a, b, ranks)


def _planned(where: str, a: Tensor, b: Tensor, ranks: Ranks) -> Plan:
    batch = _checks.batch_shape(where, a, b, 1.0)
    rows, cols = (as_matrices(side.detach(), batch) for side in (a, b))
    shares = shared(rows, cols, ranks)
    local = (*batch, a.shape[-1], b.shape[-1])
    sizes = ranks.gathered(torch.tensor(local[-2:], device=ranks.device)).sum(0).tolist()
    return _with_fields(
        local_shape=local,
        shape=(*batch, *sizes),
        _ranks=ranks,
        _shares=shares,
        _settled=_settle(where, (rows, cols), shares, ranks, None),
        _anchors=(a.detach().clone(), b.detach().clone()),
        _known=(Known(a), Known(b)),
    )


def as_matrices(side: Tensor, batch: tuple[int, ...]) -> Tensor:
    return flat_anchors(side, batch) if batch else side[None]


def _with_fields(**fields: Any) -> Plan:
    plan = object.__new__(Plan)
    plan.__dict__.update(fields)
    return plan


def _settle(
    where: str,
    anchors: tuple[Tensor, Tensor],
    shares: tuple[Share, Share],
    ranks: Ranks,
    old: LocalPlan | None,
) -> Settled:
    """Move the caller's anchors (h, n) and (h, k) to their owners, and find the order of those that this rank owns.

    Given the plan from before the anchors moved, all ranks raise if any have moved past one another.
    """
    sides = [to_owners_detached(side[:, None], share, ranks)[:, 0] for side, share in zip(anchors, shares, strict=True)]
    own = [edges(side, share.spans) for side, share in zip(sides, shares, strict=True)]
    positions = ranks.gathered(torch.stack([side.positions for side in own]))  # (ranks, 2, h, 4)
    others = [ghosts(positions[:, 1 - i], positions[:, i], ranks.rank) for i in range(2)]
    rows, cols = (_with_ghosts(*side) for side in zip(sides, shares, others, strict=True))

    def local_plan() -> LocalPlan:
        if old is not None and not (_apart(positions) and all(map(_are_sorted, sides, shares))):
            raise StalePlanError(_checks.stale_plan(where, "laplex.distributed.Plan"))
        return LocalPlan(rows, cols) if old is None else old.update(rows, cols)

    plan = run_on_all(where, ranks, local_plan)
    local = LocalPart.planned(rows, cols, plan)
    halves = [Half(share.counts, *half) for share, half in zip(shares, zip(own, others, strict=True), strict=True)]
    order = SpreadOrder(local, halves[0], halves[1], _middle(positions), ranks)
    return Settled(local.target[:, : shares[0].width], local.source[:, : shares[1].width], plan, order)


def _with_ghosts(side: Tensor, share: Share, others: Ghosts) -> Tensor:
    """Anchors (h, width) followed by the positions of ghosts. Padding gets the position of the first ghost."""
    anchors = torch.cat([side, others.positions.to(side.dtype)], -1)
    for i, count in enumerate(share.counts):
        anchors[i, count : share.width] = others.positions[i, 0]
    return anchors


def _apart(positions: Tensor) -> bool:
    """Whether the anchors of every rank, with ends (ranks, 2, h, 4), are beyond those of all lower ranks."""
    low = positions[..., 0].nan_to_num(torch.inf).amin(1)
    high = positions[..., 3].nan_to_num(-torch.inf).amax(1)
    return bool((high.cummax(0).values[:-1] <= low[1:]).all())


def _are_sorted(anchors: Tensor, share: Share) -> bool:
    """Whether anchors (h, width), on their owner, are still in the order that they had when they were sorted."""
    if share.ordered or len(share.counts) > 1:
        pieces = [anchors[i, :count] for i, count in enumerate(share.counts)]
    else:
        pieces = [in_line_order(anchors, share)[0, : share.counts[0]]]
    return all(bool((piece[1:] >= piece[:-1]).all()) for piece in pieces)


def _middle(positions: Tensor) -> Tensor:
    """A point among all anchors, (h, 1), the same on all ranks."""
    return positions[..., ::3].nanmean((0, 1, 3)).nan_to_num(0.0)[:, None]
