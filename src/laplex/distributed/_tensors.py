"""DTensors in and out: their local parts are the shards, and the result is a DTensor like `a`.

A DTensor is cut as torch.chunk cuts. A caller's shards may be cut that way, but a plan's sorted shards are not. So a
DTensor is never sorted itself: it goes in and comes out in its own layout.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, Shard

from laplex.distributed._agreement import agree, ranks_in

SHARDED = ("x", "a", "b", "phi", "psi")  # along the last dimension; tau and weight are replicated


class LocalArguments(NamedTuple):
    """The arguments of a call as local tensors, and how its result becomes a DTensor."""

    arguments: dict[str, Any]
    group: Any
    wrapped: Callable[[Tensor], Tensor]


def has_dtensors(arguments: dict[str, Any]) -> bool:
    return any(isinstance(value, DTensor) for value in arguments.values())


def local_arguments(where: str, arguments: dict[str, Any], group: Any) -> LocalArguments:
    """The local parts of the arguments; all sharded ones must be DTensors on one one-dimensional mesh.

    ``group`` is None or the group of the mesh.
    """
    mesh = next(value.device_mesh for value in arguments.values() if isinstance(value, DTensor))
    mesh_group = mesh.get_group() if mesh.ndim == 1 else None

    def check() -> dict[str, Any]:
        if mesh.ndim != 1:
            raise ValueError(f"{where}: the mesh must have one dimension, got {mesh.ndim}; use one of its submeshes")
        if group is not None and group is not mesh_group:
            raise ValueError(
                f"{where}: `group` must be left out where there are DTensors, which have that of their mesh"
            )
        for name, value in arguments.items():
            _check(where, name, value, mesh)
        tensors = {name: value for name, value in arguments.items() if isinstance(value, DTensor)}
        # Each placement has exchanges of its own, forward or backward.
        return {"the mesh": mesh, "the placements": {name: value.placements[0] for name, value in tensors.items()}}

    agree(where, ranks_in(where, mesh_group), check)
    local = {name: _local(name, value) for name, value in arguments.items()}
    rows = arguments["a"]

    def wrapped(y: Tensor) -> Tensor:
        shape = torch.Size((*y.shape[:-1], rows.shape[-1]))
        stride = torch.empty(shape, device="meta").stride()
        y = DTensor.from_local(y.contiguous(), mesh, [Shard(y.dim() - 1)], run_check=False, shape=shape, stride=stride)
        return y.redistribute(placements=[Replicate()]) if rows.placements[0].is_replicate() else y

    return LocalArguments(local, mesh_group, wrapped)


def _check(where: str, name: str, value: Any, mesh: Any) -> None:
    if not isinstance(value, DTensor):
        if name in SHARDED and isinstance(value, Tensor):
            raise TypeError(
                f"{where}: `{name}` must be a DTensor where others are, got a plain tensor; use distribute_tensor, or "
                "pass the local parts of all of them"
            )
        return
    if value.device_mesh != mesh:
        raise ValueError(f"{where}: `{name}` must be on the mesh of the other DTensors, {mesh}")
    if name in SHARDED and value.dim() == 0:
        raise ValueError(f"{where}: `{name}` must have at least one dimension, got a scalar; use .reshape(1)")
    placement = value.placements[0]
    if not (placement.is_replicate() or (name in SHARDED and placement.is_shard(value.dim() - 1))):
        last = "Shard(-1) or Replicate()" if name in SHARDED else "Replicate()"
        raise ValueError(f"{where}: `{name}` must be placed as {last}, got {placement}; use .redistribute")


def _local(name: str, value: Any) -> Any:
    """This rank's part: a chunk of a sharded argument, all of tau or weight."""
    if not isinstance(value, DTensor):
        return value
    if name not in SHARDED:
        return value.to_local(grad_placements=[Replicate()])  # their gradients are the same on all ranks
    return value.redistribute(placements=[Shard(value.dim() - 1)]).to_local()
