"""The processes of one command under `torchrun`, or the only one without it."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed
from torch import nn
from torch.nn.parallel import DistributedDataParallel


@dataclass(frozen=True)
class Team:
    """This process among those that work together."""

    rank: int
    size: int
    device: torch.device

    @property
    def group(self) -> Any:
        """The process group, if there are several processes."""
        return None if self.size == 1 else torch.distributed.group.WORLD

    @property
    def leads(self) -> bool:
        """Whether this process prints and writes."""
        return self.rank == 0

    def together(self, model: nn.Module) -> nn.Module:
        """The module as one that all train, with the gradients of all."""
        if self.size == 1:
            return model
        with warnings.catch_warnings():
            # The mean of a density is a buffer that nobody changes. Newer torch has another name for this option.
            warnings.filterwarnings("ignore", message="`broadcast_buffers` is deprecated", category=FutureWarning)
            return DistributedDataParallel(model, broadcast_buffers=False)

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
