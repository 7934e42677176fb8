"""The public function ``linear`` over ranks."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from laplex import _autocast, _checks
from laplex._eager import outside_graphs
from laplex._phase.composition import channels, joined_channels
from laplex._scan.autograd import scan
from laplex._scan.order import Matrix
from laplex._scan.weighted import mixed
from laplex._shapes import flat_tau, fold, unfold
from laplex.distributed._agreement import agree, plain_arguments, ranks_in, resolved, trained
from laplex.distributed._moves import replicated, to_holders, to_owners
from laplex.distributed._plan import Plan, anchor_terms, as_matrices, dtensor_parts, planned
from laplex.distributed._ranks import Ranks


class _Operands(NamedTuple):
    x: Any
    a: Any
    b: Any
    tau: Any
    weight: Any
    phi: Any
    psi: Any
    plan: Any


@outside_graphs
@_autocast.casting
def linear(
    x: Tensor,
    a: Tensor,
    b: Tensor,
    tau: float | Tensor = 1.0,
    *,
    weight: Tensor | None = None,
    phi: Tensor | None = None,
    psi: Tensor | None = None,
    plan: Plan | None = None,
    group: Any = None,
) -> Tensor:
    r"""y = x K^T with K(a, b) spread over the ranks of a group: :func:`laplex.linear` on shards.

    Every rank passes its shards: columns of x with the anchors b (and phases psi) that belong to them, and the anchors
    a (and phases phi) of the rows whose results it wants. Shards may have any sizes, 0 included, and any order. All
    ranks of the group must call this together, and if one calls backward, all must.

    Instead of shards, all sharded arguments may be DTensors on a one-dimensional mesh, placed as ``Shard(-1)`` or
    ``Replicate()``. The result is then a DTensor placed like a, and tau and weight may be replicated DTensors.

    Args:
        x (..., k of this rank): the shard of the input; with batched anchors and no weight (*H, m, k of this rank).
        a (*H, n of this rank): the shard of the row anchors.
        b (*H, k of this rank): the shard of the column anchors, same dtype.
        tau: positive length scale, the same on all ranks: a number, or a tensor as in :func:`laplex.linear`.
        weight (H): the weights of a sum over the matrices of the batch, the same on all ranks; None for no sum.
        phi (*H, n of this rank), psi (*H, k of this rank): shards of the phases, both or neither.
        plan: a :class:`laplex.distributed.Plan` of these anchors, to skip sorting and moving them.
        group: a torch.distributed.ProcessGroup; None for the plan's group, or for all processes.

    Returns:
        y (..., n of this rank): the results of this rank's rows.

        Gradients, of any order, are those of the sum of all ranks' losses. For x, a, b and phases each rank gets the
        gradient of its own shard; for tau and weight every rank gets the same whole gradient.

        Errors raise on all ranks, with the message of the rank at fault. All else is as in :func:`laplex.linear`.
    """
    where = "laplex.distributed.linear"
    arguments = {"x": x, "a": a, "b": b, "tau": tau, "weight": weight, "phi": phi, "psi": psi}
    arguments = {name: resolved(value) for name, value in arguments.items()}
    parts = dtensor_parts(where, arguments, group)
    if parts is not None:
        y: Tensor = parts.wrapped(_linear(where, _Operands(**parts.arguments, plan=plan), parts.group))
        return y
    return _linear(where, _Operands(**arguments, plan=plan), group)


def _linear(where: str, operands: _Operands, group: Any) -> Tensor:
    x, a, b, tau, weight, phi, psi, plan = operands
    ranks = ranks_in(where, plan.group if group is None and isinstance(plan, Plan) else group)
    changed = agree(where, ranks, lambda: _terms(where, operands, ranks), lambda: _changed(operands))
    if plan is None:
        plan, changed = planned(where, a, b, ranks), False
    batch = plan.shape[:-2]
    rows, cols = as_matrices(a, batch), as_matrices(b, batch)
    scale = replicated(flat_tau(tau, batch, a.device).reshape(-1), ranks)
    matrix = plan._matrix(where, rows, cols, scale, changed=changed)
    phase = tuple(as_matrices(side, batch) for side in (phi, psi) if side is not None)
    if weight is not None:
        return _weighted_sum(x, matrix, plan, phase, replicated(weight.expand(batch).reshape(-1), ranks))
    if not batch:
        lead = x.shape[:-1]
        y = _product(x.reshape(1, math.prod(lead), x.shape[-1]), matrix, plan, phase)
        return y.reshape(*lead, y.shape[-1])
    folded, folding = fold(x, batch)
    return unfold(_product(folded, matrix, plan, phase), folding)


def _weighted_sum(x: Tensor, matrix: Matrix, plan: Plan, phase: tuple[Tensor, ...], weight: Tensor) -> Tensor:
    """sum over h of weight_h x K_h^T, (..., n), for x (..., k)."""
    lead = x.shape[:-1]
    rows = x.reshape(math.prod(lead), x.shape[-1]).expand(weight.numel(), -1, -1)
    wide = torch.promote_types(x.dtype, torch.float32)
    summed = mixed(_product(rows.to(wide), matrix, plan, phase), weight).to(x.dtype)
    return summed.reshape(*lead, summed.shape[-1])


def _product(x: Tensor, matrix: Matrix, plan: Plan, phase: tuple[Tensor, ...]) -> Tensor:
    """Multiply x (h, m, k of this rank): (h, m, n of this rank), in the dtype of x.

    The parts of a complex x, and the two channels of phases (``laplex._phase``), become extra rows of one exchange.
    """
    if x.is_complex():
        parts = _product(torch.cat([x.real, x.imag], 1), matrix, plan, phase)
        return torch.complex(*parts.tensor_split(2, 1))
    wide = x.to(torch.promote_types(x.dtype, torch.float32))
    (rows, cols), ranks = plan._shares, plan._ranks
    if phase:
        phi, psi = phase
        wide = channels(wide, psi, psi).flatten(1, 2)  # (h, 2 m, k)
    odd = torch.is_grad_enabled() and matrix.target.requires_grad
    at_owners, _ = scan(to_owners(wide, cols, ranks), matrix, odd=odd)
    y = to_holders(at_owners, rows, ranks)
    if phase:
        y = joined_channels(y.unflatten(1, (2, x.shape[1])), phi, phi)
    return y.to(x.dtype)


def _terms(where: str, operands: _Operands, ranks: Ranks) -> dict[str, Any]:
    """Check the arguments of this rank, and return what must be the same on all ranks."""
    x, a, b, tau, weight, phi, psi, plan = operands
    if plan is not None and not isinstance(plan, Plan):
        raise TypeError(
            f"{where}: `plan` must be a laplex.distributed.Plan or None, got "
            f"{type(plan).__module__}.{type(plan).__name__}"
        )
    terms = anchor_terms(where, a, b, finite=plan is None)
    _checks.length_scale(where, tau, a)
    batch = _checks.batch_shape(where, a, b, tau)
    _checks.phases(where, a, b, phi, psi)
    _checks.sum_weight(where, weight, a, batch)
    _checks.operand(where, x, b, batch if weight is None else ())
    _values(where, tau)
    if plan is not None:
        if not plan._ranks.same_group_as(ranks):
            raise ValueError(f"{where}: `plan` was built for another group than `group`; leave `group` out")
        plan._check_shape(where, a, b, batch)
    plain_arguments(where, operands)
    return terms | {
        "the shape of `x` but for its last dimension": tuple(x.shape[:-1]),
        "the dtype of `x`": x.dtype,
        "`tau`": tau.detach().tolist() if isinstance(tau, Tensor) else float(tau),
        "`weight`": None if weight is None else weight.detach().tolist(),
        "the dtype of `weight`": None if weight is None else weight.dtype,
        "whether phases are given": phi is not None,
        "whether a plan is given": plan is not None,
        "the set of arguments that require gradients": trained(operands._asdict()),
    }


def _values(where: str, tau: float | Tensor) -> None:
    """Raise unless tau is a valid length scale. This waits for the device, as no rank may continue alone."""
    if isinstance(tau, Tensor) and not bool(_checks.is_length(tau.detach()).all()):
        raise ValueError(_checks.bad_tau(where, tau.detach()))


def _changed(operands: _Operands) -> bool:
    """Whether the anchors differ from those that the plan was built from."""
    return operands.plan is not None and operands.plan._changed(operands.a, operands.b)
