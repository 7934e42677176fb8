"""The processes of a group, and how they exchange tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from laplex import _compiled


class Ranks(NamedTuple):
    """The processes of a group, as one of them sees them."""

    group: Any  # a ProcessGroup, or None for the group of all processes
    rank: int  # the rank of this process in the group
    size: int

    @property
    def device(self) -> torch.device:
        """Where small tensors must be for the group to exchange them."""
        if "nccl" in dist.get_backend(self.group):
            return torch.device("cuda", torch.cuda.current_device())
        return torch.device("cpu")

    def same_group_as(self, others: Ranks) -> bool:
        """Whether both are ranks of one group; None and torch's name for all processes are one group."""
        ours, theirs = (dist.group.WORLD if ranks.group is None else ranks.group for ranks in (self, others))
        return ours is theirs

    def gathered(self, tensor: Tensor) -> Tensor:
        """(size, *shape): the tensors of all ranks, which have the same shape."""
        everyone = tensor.new_empty((self.size, *tensor.shape))
        dist.all_gather(list(everyone.unbind(0)), tensor.contiguous(), group=self.group)
        return everyone

    def exchanged(self, values: Tensor, sent: Sequence[int], received: Sequence[int]) -> Tensor:
        """All-to-all: cut values (sum(sent), ...) into a part for each rank, and collect (sum(received), ...)."""
        arrived = new_memory(values, (sum(received), *values.shape[1:]))
        dist.all_to_all_single(arrived, values.contiguous(), list(received), list(sent), group=self.group)
        return arrived

    def total(self, tensor: Tensor) -> Tensor:
        """The sum over all ranks."""
        summed = tensor.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(summed, group=self.group)
        return summed

    def from_first(self, tensor: Tensor) -> Tensor:
        """The first rank's tensor; all ranks pass one of the same shape and dtype."""
        copy = tensor.clone(memory_format=torch.contiguous_format)
        first = 0 if self.group is None else dist.get_global_rank(self.group, 0)
        dist.broadcast(copy, first, group=self.group)
        return copy

    def objects(self, value: object) -> list[Any]:
        """The objects of all ranks. Slow: used for errors."""
        everyone: list[Any] = [None] * self.size
        dist.all_gather_object(everyone, value, group=self.group)
        return everyone


def new_memory(like: Tensor, shape: Sequence[int]) -> Tensor:
    """An uninitialized tensor of this shape, in large pages."""
    memory = like.new_empty(tuple(shape))
    if memory.device.type == "cpu" and not _compiled.MISSING:
        _compiled.core.use_large_pages(memory.data_ptr(), memory.nbytes)
    return memory


def ranks_of(group: Any) -> Ranks:
    """This process among those of a group; None for all processes."""
    return Ranks(group, dist.get_rank(group), dist.get_world_size(group))
