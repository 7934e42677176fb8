"""Products of DTensors whose rows are spread: every rank multiplies its own rows, and nothing is exchanged.

x is sharded over leading dimensions, and the anchors are replicated; or, over a dimension of the batch of matrices,
both are sharded. Where columns or rows of the matrix are spread, ``laplex.distributed.linear`` is the product.

This goes by local tensors, not by ``register_sharding`` for our operators: of the arguments that are not tensors, torch
tells calls apart by those that are int alone (torch 2.13), and would give the results of ``odd=True`` the shapes of
``odd=False``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Partial, Replicate

WHERE = "laplex.linear"
SIDES = ("a", "b", "phi", "psi")


def product(function: Callable[..., Tensor], x: Any, arguments: dict[str, Any]) -> Tensor:
    """function(x, **arguments) by local tensors, for a DTensor x; the result is a DTensor placed like x."""
    mesh, placements = x.device_mesh, x.placements
    batch = 0 if arguments["weight"] is not None else max(arguments["a"].dim(), arguments["b"].dim()) - 1
    for placement in placements:
        if not (placement.is_replicate() or (placement.is_shard() and placement.dim % x.dim() != x.dim() - 1)):
            raise ValueError(
                f"{WHERE}: `x` must be placed as Replicate() or as Shard of a leading dimension, got {placement}; "
                "where columns are spread, use laplex.distributed.linear"
            )
    if batch and x.dim() != batch + 2 and not all(placement.is_replicate() for placement in placements):
        raise ValueError(
            f"{WHERE}: a DTensor `x` that is sharded must have all dimensions (*H, m, k) for a batch of matrices, got "
            f"shape {tuple(x.shape)}"
        )
    local = {name: _local(name, value, x, batch) for name, value in arguments.items()}
    y = function(x.to_local(), **local)
    shape = torch.Size((*x.shape[:-1], y.shape[-1]))
    stride = torch.empty(shape, device="meta").stride()
    return DTensor.from_local(y.contiguous(), mesh, placements, run_check=False, shape=shape, stride=stride)


def _local(name: str, value: Any, x: Any, batch: int) -> Any:
    """What a rank multiplies its rows by. Where rows are spread, its gradient is a part of a sum."""
    over_matrices = [place.is_shard() and place.dim % x.dim() < batch for place in x.placements]
    if not isinstance(value, DTensor):
        if isinstance(value, Tensor) and value.dim() > 0 and any(over_matrices):
            raise TypeError(
                f"{WHERE}: `{name}` must be a DTensor where `x` is sharded over matrices; use distribute_tensor"
            )
        sharded = any(place.is_shard() for place in x.placements)
        if sharded and isinstance(value, Tensor) and value.requires_grad and torch.is_grad_enabled():
            raise TypeError(
                f"{WHERE}: `{name}` must be a DTensor where `x` is sharded and `{name}` requires gradients: those of a "
                "plain tensor would be of this rank's rows alone; use distribute_tensor"
            )
        return value
    if value.device_mesh != x.device_mesh:
        raise ValueError(f"{WHERE}: `{name}` must be on the mesh of `x`, {x.device_mesh}, got {value.device_mesh}")
    wanted, bars = [], []
    for placement, matrices in zip(x.placements, over_matrices, strict=True):
        along = matrices and (name in SIDES or value.dim() == batch)
        wanted.append(placement if along else Replicate())
        bars.append(placement if along else Partial() if placement.is_shard() else Replicate())
    if tuple(value.placements) != tuple(wanted):
        raise ValueError(
            f"{WHERE}: `{name}` must be placed as {wanted} where `x` is placed as {list(x.placements)}, got "
            f"{list(value.placements)}; use .redistribute"
        )
    return value.to_local(grad_placements=bars)
