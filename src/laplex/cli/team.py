"""The processes of one command under `torchrun`, or the only one without it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed
from torch import Tensor, nn


@dataclass(frozen=True)
class Team:
    """This process among those that work together."""

    rank: int
    size: int
    device: torch.device

    @property
    def leads(self) -> bool:
        """Whether this process prints and writes."""
        return self.rank == 0

    def train_together(self, model: nn.Module) -> None:
        """Give all processes the first one's parameters, and from now on the mean of all gradients.

        DistributedDataParallel would do this, but it never lets go of its process group (seen in torch 2.13). The
        group's threads then live on while Python ends, and now and then one of them aborts the process.
        """
        if self.size == 1:
            return
        for one in (*model.parameters(), *model.buffers()):
            torch.distributed.broadcast(one.detach(), 0)
        for parameter in model.parameters():
            parameter.register_post_accumulate_grad_hook(self._average)

    def _average(self, parameter: Tensor) -> None:
        if parameter.grad is not None:
            torch.distributed.all_reduce(parameter.grad)
            parameter.grad /= self.size

    def mean(self, value: float) -> float:
        """Over the values of all."""
        if self.size == 1:
            return value
        total = torch.tensor(value, dtype=torch.float64, device=self.device)
        torch.distributed.all_reduce(total)
        return float(total) / self.size

    def wait(self) -> None:
        """Until all are here."""
        if self.size > 1:
            torch.distributed.barrier()


@contextmanager
def joined(device: str) -> Iterator[Team]:
    """The team, which can talk inside the block. With "cuda" every process takes the GPU of its own number."""
    size = int(os.environ.get("WORLD_SIZE", "1"))  # set by torchrun
    if size == 1:
        yield Team(0, 1, torch.device(device))
        return
    if device == "cuda":
        device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
        torch.cuda.set_device(device)
    torch.distributed.init_process_group("nccl" if device.startswith("cuda") else "gloo")
    try:
        yield Team(torch.distributed.get_rank(), size, torch.device(device))
        torch.distributed.barrier()  # torchrun ends all processes if one that leaves early fails as it ends
    finally:
        torch.distributed.destroy_process_group()
