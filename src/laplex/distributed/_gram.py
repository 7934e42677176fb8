"""Gram matrices over ranks: few rows, which all ranks have, and many columns, which are spread.

M = sum over columns of weight_l K[:, l] K[:, l]^T, so M is the sum of the Gram matrices of each rank's columns. Each of
those is exact and in float64; one all-reduce of n x n numbers adds them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from laplex import _checks
from laplex._eager import outside_graphs
from laplex._functional import gram as local_gram
from laplex._plan import Plan as LocalPlan
from laplex._shapes import flat_tau
from laplex.distributed._agreement import agree, digest, plain_arguments, ranks_in, resolved, run_on_all, trained
from laplex.distributed._moves import replicated, total
from laplex.distributed._ranks import Ranks


@outside_graphs
def gram(
    a: Tensor,
    b: Tensor,
    weight: Tensor | None = None,
    tau: float | Tensor = 1.0,
    *,
    phi: Tensor | None = None,
    psi: Tensor | None = None,
    plan: LocalPlan | None = None,
    group: Any = None,
) -> Tensor:
    r"""M = K diag(weight) K^T for K(a, b) with its columns spread over ranks: :func:`laplex.gram` on shards of b.

    All ranks pass the same a, which is short, and each passes its own shard of b, with the weights and phases that
    belong to it. Shards may have any sizes, 0 included, and any order; no part of them is sent. All ranks must call
    this together, and if one calls backward, all must.

    Args:
        a (*H, n): row anchors, the same on all ranks.
        b (*H, k of this rank): the shard of the column anchors, same dtype.
        weight (..., k of this rank): the shard of the weights, as in :func:`laplex.gram`; None for ones.
        tau: positive length scale, the same on all ranks.
        phi (*H, n): phases of the rows, the same on all ranks. psi (*H, k of this rank): shard of the columns' phases.
        plan: a :class:`laplex.Plan` of a and of this rank's b, on all ranks or on none.
        group: a torch.distributed.ProcessGroup; None for all processes.

    Returns:
        M, with the shape and dtype that :func:`laplex.gram` returns, the same on all ranks.

        Gradients, of any order, are those of the sum of all ranks' losses. For b, weight and psi each rank gets the
        gradient of its own shard; for a, tau and phi, the whole gradient. If all ranks compute the same loss of M,
        divide it by the number of ranks.

        Errors raise on all ranks, with the message of the rank at fault.
    """
    where = "laplex.distributed.gram"
    arguments = {"a": a, "b": b, "weight": weight, "tau": tau, "phi": phi, "psi": psi}
    arguments = {name: resolved(value) for name, value in arguments.items()}
    ranks = ranks_in(where, group)
    agree(where, ranks, lambda: _terms(where, arguments | {"plan": plan}))
    # On one rank, the plan may be stale or memory may run out.
    part = run_on_all(where, ranks, lambda: _of_shard(where, ranks, plan, **arguments))
    summed = total(part, ranks)
    matrix = torch.triu(summed) + torch.triu(summed, 1).mT  # symmetric, in whatever order the ranks' parts were added
    return matrix.to(a.dtype if weight is None else weight.dtype)


def _of_shard(where: str, ranks: Ranks, plan: LocalPlan | None, **arguments: Any) -> Tensor:
    """The Gram matrix of this rank's columns, in float64."""
    a, b, weight, tau, phi, psi = arguments.values()
    batch = _checks.batch_shape(where, a, b, tau)
    wide = a.new_ones(b.shape[-1], dtype=torch.float64) if weight is None else weight.double()
    scale = replicated(flat_tau(tau, batch, a.device).reshape(batch), ranks)
    rows = replicated(a, ranks)
    row_phases = None if phi is None else replicated(phi, ranks)
    return local_gram(rows, b, wide, scale, phi=row_phases, psi=psi, plan=plan)


def _terms(where: str, arguments: dict[str, Any]) -> dict[str, Any]:
    a, b, weight, tau, phi, psi, plan = arguments.values()
    _checks.anchor_pair(where, a, b)
    plain_arguments(where, arguments.values())
    _checks.length_scale(where, tau, a, _checks.SMALLEST_TAU_OF_SQUARES)
    batch = _checks.batch_shape(where, a, b, tau)
    _checks.phases(where, a, b, phi, psi)
    _checks.gram_weight(where, weight, b, batch)
    _checks.positive_on_cpu(where, tau, batch, _checks.SMALLEST_TAU_OF_SQUARES)
    for name, side in (("a", a), ("b", b)):
        if not bool(torch.isfinite(side).all()):
            raise ValueError(_checks.not_finite(where, name))
    if plan is not None and not isinstance(plan, LocalPlan):
        raise TypeError(_checks.not_a_plan(where, plan))
    return {
        "the shape of `a`": tuple(a.shape),
        "the dtype of `a` and `b`": a.dtype,
        "the batch H (leading dimensions of `b`)": tuple(b.shape[:-1]),
        "`a` (a digest of its values)": digest(a),
        "`phi` (a digest of its values)": None if phi is None else digest(phi),
        "the leading dimensions and dtype of `weight`": None
        if weight is None
        else (tuple(weight.shape[:-1]), weight.dtype),
        "`tau`": tau.detach().tolist() if isinstance(tau, Tensor) else float(tau),
        "whether a plan is given": plan is not None,
        "the set of arguments that require gradients": trained(arguments),
    }
