"""The processes of one command under `torchrun`, or the only one without it."""

from __future__ import annotations

import os
import time
import uuid
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar, cast

import torch
import torch.distributed
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from laplex.cli import signals
from laplex.cli.parsing import as_command
from laplex.distributed._ranks import ranks_of

T = TypeVar("T")
PATIENCE = 1800.0  # seconds to wait for other processes, as in a process group
POLL = 0.01  # seconds between two looks at a store: a look that blocks would not notice a signal


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
        """The module wrapped so that all processes train it together, with the gradients of all."""
        if self.size == 1:
            return model
        with warnings.catch_warnings():
            # The mean of a density is a buffer that never changes. Newer torch has another name for this option.
            warnings.filterwarnings("ignore", message="`broadcast_buffers` is deprecated", category=FutureWarning)
            return DistributedDataParallel(model, broadcast_buffers=False)

    def mean(self, value: float) -> float:
        """The mean of the values of all processes."""
        if self.size == 1:
            return value
        total = torch.tensor(value, dtype=torch.float64, device=self.device)
        torch.distributed.all_reduce(total)
        return float(total) / self.size

    def attempt(self, work: Callable[[], T]) -> T:
        """Do the work, wait for all processes, and return this process's result. If it fails on one, all raise why.

        For work that may refuse options, data or files, which may differ between machines.
        """
        if self.size == 1:
            return work()
        result, reason = None, None
        try:
            result = work()
        except (ValueError, TypeError, ImportError, OSError) as error:
            reason = as_command(error)
        for process, theirs in enumerate(ranks_of(None).objects(reason)):
            if theirs is not None:
                raise ValueError(f"process {process}: {theirs}" if process else theirs)
        return cast(T, result)

    def agree_on(self, requirement: str, value: str) -> None:
        """Raise ValueError, on all processes, if they have different values."""
        everyone = [value] if self.size == 1 else ranks_of(None).objects(value)
        for process, theirs in enumerate(everyone):
            if theirs != everyone[0]:
                raise ValueError(f"{requirement}, got {everyone[0]} in process 0 and {theirs} in process {process}")

    def largest(self, value: int) -> int:
        """The largest of the values of all processes."""
        if self.size == 1:
            return value
        most = torch.tensor(value, device=self.device)
        torch.distributed.all_reduce(most, torch.distributed.ReduceOp.MAX)
        return int(most)

    def run_to_continue(self) -> str | None:
        """The name of the run if `torchrun` has restarted these processes after a fault, else None; all must call."""
        restarts = self.largest(int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")))  # a node counts only its own
        return self.run if restarts else None

    @property
    def run(self) -> str | None:
        """The name of the `torchrun` run, which restarts do not change."""
        name = os.environ.get("TORCHELASTIC_RUN_ID")
        if name is not None and os.environ.get("LOCAL_WORLD_SIZE") == os.environ.get("WORLD_SIZE"):
            name += f" {os.getppid()}"  # with one torchrun, this tells apart two runs of the same name
        return name


def several() -> bool:
    """Whether `torchrun` has started this process as one of several."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


@contextmanager
def joined(device: str) -> Iterator[Team]:
    """The team, which can communicate inside the block. With "cuda" every process takes the GPU of its own number.

    After an error no process waits for the others: it must end soon, so that they notice.
    """
    if not several():
        yield Team(0, 1, torch.device(device))
        return
    if device == "cuda":
        device = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
        torch.cuda.set_device(device)
    with signals.ending_at_once():  # there is nothing to save yet, and compiled code that waits notices no signal
        _meet("nccl" if device.startswith("cuda") else "gloo")
    yield Team(torch.distributed.get_rank(), torch.distributed.get_world_size(), torch.device(device))
    torch.distributed.barrier()  # torchrun ends all processes if one leaves early and fails as it ends
    torch.distributed.destroy_process_group()


def _meet(backend: str) -> None:
    """Make the process group."""
    from torch.distributed import PrefixStore  # type: ignore[attr-defined]  # some builds of torch have none
    from torch.distributed.rendezvous import rendezvous

    store, rank, size = next(iter(rendezvous("env://")))
    store = PrefixStore(_meeting(store, rank, size), store)
    torch.distributed.init_process_group(backend, store=store, rank=rank, world_size=size)


def _meeting(store: Any, rank: int, size: int, patience: float = PATIENCE) -> str:
    """A name that the processes now running share with each other, and with none that ran before.

    After a restart the store of `torchrun` still has what dead processes wrote (seen in torch 2.13), and a process that
    read their addresses would wait for them. So the first process proposes a name, each other process answers with a
    number drawn at random, and is in once the first, which must be alive to do so, has confirmed that number.
    """
    drawn = uuid.uuid4().hex
    end = time.monotonic() + patience
    if rank == 0:
        store.set("laplex", drawn)
        for other in range(1, size):
            while not store.check([f"{drawn} {other}"]):
                _wait(end, f"process {other} of {size}", patience)
            store.set(f"{drawn} {store.get(f'{drawn} {other}').decode()}", "")
        return drawn
    proposed = ""
    while not (proposed and store.check([f"{proposed} {drawn}"])):
        if store.check(["laplex"]):
            proposed = store.get("laplex").decode()
            store.set(f"{proposed} {rank}", drawn)
        _wait(end, f"the answer of process 0 of {size}", patience)
    return proposed


def _wait(end: float, missing: str, patience: float) -> None:
    """Wait until the next look. Raises ConnectionError after the time `end`."""
    if time.monotonic() > end:
        raise ConnectionError(
            f"{missing} did not come in {patience:g} s; start as many processes as torchrun was told, on all nodes"
        )
    time.sleep(POLL)
