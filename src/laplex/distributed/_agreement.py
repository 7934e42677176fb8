"""Faults that all ranks learn of: an error on one rank is raised on every rank, with the same message.

A rank that raised while the others wait in a collective would leave them there until the group's timeout, which is 30
minutes. So arguments are checked, and the outcome is exchanged, before anything else is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

import torch

from laplex._errors import StalePlanError
from laplex.distributed._ranks import Ranks

KINDS: tuple[type[Exception], ...] = (StalePlanError, ValueError, TypeError, RuntimeError)  # the first that fits


def agree(
    where: str, ranks: Ranks, check: Callable[[], dict[str, Any]], flag: Callable[[], bool] = lambda: False
) -> bool:
    """Run a check on every rank, and raise on all ranks if it raises on one, or if its results differ.

    A check returns what must be the same on all ranks, by name. If all is well, a flag is read, and the result is
    whether it is set on any rank.
    """
    fault, terms, flagged = None, {}, False
    try:
        terms = {name: str(value) for name, value in check().items()}
        flagged = flag()
    except Exception as error:  # noqa: BLE001 - whatever it is, the other ranks must hear of it
        fault = error
    mine = torch.tensor([fault is not None, flagged, _digest(terms)], dtype=torch.int64, device=ranks.device)
    faulty, flags, digests = ranks.gathered(mine).unbind(-1)
    if bool(faulty.any()):
        _raise_everywhere(ranks, fault)
    if bool((digests != digests[0]).any()):
        raise ValueError(_difference(where, ranks.objects(terms)))
    return bool(flags.any())


def _digest(terms: dict[str, str]) -> int:
    return int.from_bytes(hashlib.blake2b(repr(terms).encode(), digest_size=7).digest(), "little")


def _raise_everywhere(ranks: Ranks, fault: Exception | None) -> None:
    """Raise the fault of the first rank that has one. The rank itself keeps its traceback."""
    kind = next((kind for kind in KINDS if isinstance(fault, kind)), RuntimeError)
    mine = None if fault is None else (kind.__name__, str(fault))
    for rank, theirs in enumerate(ranks.objects(mine)):
        if theirs is not None:
            name, text = theirs
            raised = next(kind for kind in KINDS if kind.__name__ == name)
            raise raised(f"rank {rank}: {text}") from (fault if rank == ranks.rank else None)


def _difference(where: str, everyone: Sequence[dict[str, str]]) -> str:
    """What differs first, and between which ranks."""
    for name, value in everyone[0].items():
        for rank, theirs in enumerate(everyone):
            if theirs.get(name) != value:
                return f"{where}: {name} must be the same on all ranks, got {value} on rank 0 and {theirs.get(name)} on rank {rank}"
    return f"{where}: the arguments must be of the same kinds on all ranks"
