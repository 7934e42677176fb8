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
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from laplex import _checks

WHERE = "laplex.linear"
SIDES = ("a", "b", "phi", "psi")


def product(function: Callable[..., Tensor], x: Any, arguments: dict[str, Any]) -> Tensor:
    """function(x, **arguments) by local tensors, for a DTensor x; the result is a DTensor placed like x."""
    mesh, placements = x.device_mesh, x.placements
    for placement in placements:
        if not (placement.is_replicate() or (placement.is_shard() and placement.dim % x.dim() != x.dim() - 1)):
            raise ValueError(
                f"{WHERE}: `x` must be placed as Replicate() or as Shard of a leading dimension, got {placement}; "
                "where columns are spread, use laplex.distributed.linear"
            )
    batch = _batch(x, arguments)
    local = {name: _local(name, value, x, batch) for name, value in arguments.items()}
    y = function(x.to_local(), **local)
    sizes = list(y.shape)
    for placement in placements:
        if placement.is_shard():
            sizes[placement.dim] = x.shape[placement.dim]
    shape = torch.Size(sizes)
    stride = torch.empty(shape, device="meta").stride()
    return DTensor.from_local(y.contiguous(), mesh, placements, run_check=False, shape=shape, stride=stride)


def _batch(x: Any, arguments: dict[str, Any]) -> int:
    """How many dimensions of y are those of the batch of matrices. A sharded x has all of them, so y has none before.

    Of an x that broadcasts to the batch a rank would multiply rows by matrices that are not its own.
    """
    a, b = arguments["a"], arguments["b"]
    _checks.anchor_pair(WHERE, a, b)
    batch = _checks.batch_shape(WHERE, a, b, arguments["tau"])
    if arguments["weight"] is not None:  # the sum has no batch
        return 0
    sharded = not all(placement.is_replicate() for placement in x.placements)
    if batch and sharded and tuple(x.shape[:-2]) != batch:
        raise ValueError(
            f"{WHERE}: a DTensor `x` that is sharded must have all dimensions (*H, m, k) for a batch of matrices "
            f"H = {batch}, got shape {tuple(x.shape)}; expand it before it is distributed"
        )
    return len(batch)


def _local(name: str, value: Any, x: Any, batch: int) -> Any:
    """What a rank multiplies its rows by. Where rows are spread, its gradient is a part of a sum."""
    places = [
        _place(name, value, place, place.dim % x.dim() - batch if place.is_shard() else 0) for place in x.placements
    ]
    if not isinstance(value, DTensor):
        if isinstance(value, Tensor) and any(place.is_shard() for place in places):
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
    if list(value.placements) != places:
        raise ValueError(
            f"{WHERE}: `{name}` must be placed as {places} where `x` is placed as {list(x.placements)}, got "
            f"{list(value.placements)}; use .redistribute"
        )
    bars = [
        Partial() if rows.is_shard() and place.is_replicate() else place
        for rows, place in zip(x.placements, places, strict=True)
    ]
    return value.to_local(grad_placements=bars)


def _place(name: str, value: Any, rows: Any, dim: int) -> Any:
    """How ``value`` must be placed where x is placed as ``rows``: along the same matrices, or on all ranks.

    Dimensions of the batch broadcast from the right: ``dim`` is negative, and counts from their end. What does not have
    that dimension, or has it of size 1, is shared by all matrices.
    """
    if not rows.is_shard() or dim >= 0 or not isinstance(value, Tensor):
        return Replicate()
    own = value.shape[:-1] if name in SIDES else value.shape
    if len(own) < -dim or own[dim] == 1:
        return Replicate()
    return rows if rows.dim == len(own) + dim else Shard(len(own) + dim)
