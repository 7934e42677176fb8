"""The processes of a group, and the ways in which they exchange tensors."""

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
    rank: int  # of this process in the group
    size: int

    @property
    def device(self) -> torch.device:
        """Where small tensors must be for the group to exchange them."""
        if "nccl" in dist.get_backend(self.group):
            return torch.device("cuda", torch.cuda.current_device())
        return torch.device("cpu")

    def gathered(self, tensor: Tensor) -> Tensor:
        """(size, *shape): the tensors of all ranks, which have one shape."""
        everyone = tensor.new_empty((self.size, *tensor.shape))
        dist.all_gather(list(everyone.unbind(0)), tensor.contiguous(), group=self.group)
        return everyone

    def exchanged(self, values: Tensor, sent: Sequence[int], received: Sequence[int]) -> Tensor:
        """(sum(received), ...): values (sum(sent), ...), cut into one part for every rank, and their parts for this."""
        arrived = new_memory(values, (sum(received), *values.shape[1:]))
        dist.all_to_all_single(arrived, values.contiguous(), list(received), list(sent), group=self.group)
        return arrived

    def total(self, tensor: Tensor) -> Tensor:
        """The sum over all ranks."""
        summed = tensor.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(summed, group=self.group)
        return summed

    def from_first(self, tensor: Tensor) -> Tensor:
        """The tensor of the first rank, where all have one of the same shape and dtype."""
        copy = tensor.clone(memory_format=torch.contiguous_format)
        first = 0 if self.group is None else dist.get_global_rank(self.group, 0)
        dist.broadcast(copy, first, group=self.group)
        return copy

    def objects(self, value: object) -> list[Any]:
        """The objects of all ranks: slow, for errors."""
        everyone: list[Any] = [None] * self.size
        dist.all_gather_object(everyone, value, group=self.group)
        return everyone


def new_memory(like: Tensor, shape: Sequence[int]) -> Tensor:
    """A tensor of this shape that is yet to be filled, in large pages."""
    memory = like.new_empty(tuple(shape))
    if memory.device.type == "cpu" and not _compiled.MISSING:
        _compiled.core.use_large_pages(memory.data_ptr(), memory.nbytes)
    return memory


def ranks_of(group: Any) -> Ranks:
    """This process among those of a group; None for all processes."""
    return Ranks(group, dist.get_rank(group), dist.get_world_size(group))
