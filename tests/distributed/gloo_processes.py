"""Processes of a gloo group that run many checks each, because starting them takes longer than any check."""

import os
import time
import traceback
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist


def start(checks: Callable[[], dict[str, Callable]], size: int, folder: Path) -> list[dict]:
    """Run all checks of a function in a module, in the same order, on every one of `size` processes.

    Returns for each process the result of every check by name: what it returned, or the text of its exception.
    """
    torch.multiprocessing.spawn(_member, (checks, size, str(folder)), nprocs=size)
    return [torch.load(folder / f"results-{rank}", weights_only=False) for rank in range(size)]


def _member(rank: int, checks: Callable[[], dict[str, Callable]], size: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", size), rank=rank, world_size=size)
    results = {}
    table = checks()
    for name, check in table.items():
        torch.manual_seed(0)
        try:
            results[name] = check()
        except Exception:
            results[name] = traceback.format_exc()
            break  # the others may wait for this process in the middle of the check
    torch.save(results, f"{folder}/results-{rank}")
    if len(results) == len(table):
        dist.barrier()  # a process that leaves early closes connections that the others still read
        dist.destroy_process_group()
    os._exit(0)  # gloo's threads outlive the group, and may abort Python as it ends


def failures(results: list[dict], name: str) -> dict[int, str]:
    """What a check raised, by rank."""
    outcomes = {rank: mine.get(name, "it was not reached") for rank, mine in enumerate(results)}
    return {rank: outcome for rank, outcome in outcomes.items() if isinstance(outcome, str)}


def caught(call: Callable[[], object]) -> tuple[type | None, str, float]:
    """The type and the text of what a call raises on this process, and after how many seconds."""
    dist.barrier()
    begin = time.monotonic()
    try:
        call()
    except Exception as error:
        return type(error), str(error), time.monotonic() - begin
    return None, "nothing was raised", 0.0
