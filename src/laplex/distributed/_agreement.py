"""Agreement on faults: an error on one rank is raised on every rank, with the same message.

If a rank raised while the others were waiting in a collective, they would wait until the group's timeout, 30 minutes.
So arguments are checked, and the outcomes exchanged, before anything else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn.parameter import is_lazy

from laplex._eager import plain, plainly_eager
from laplex._errors import StalePlanError
from laplex.distributed._ranks import Ranks, ranks_of

Result = TypeVar("Result")
CALLED = "the function that is called"
# By this exception activation checkpointing ends what it computes again, once all that backward needs is saved.
END_OF_RECOMPUTATION = "_StopRecomputationError"
KINDS: tuple[type[Exception], ...] = (StalePlanError, ValueError, TypeError, RuntimeError)  # the first match counts


def ranks_in(where: str, group: Any) -> Ranks:
    """The ranks of a group. If the argument is not a group, this raises on all processes."""
    if not (dist.is_available() and dist.is_initialized()):
        raise RuntimeError(
            f"{where}: there is no process group; start the script with torchrun, and call "
            "torch.distributed.init_process_group first"
        )
    if group is None or isinstance(group, dist.ProcessGroup):
        return ranks_of(group)
    if isinstance(group, int) and group == dist.GroupMember.NON_GROUP_MEMBER:  # no other process waits for this one
        raise ValueError(f"{where}: this process is not in `group`; call it on the ranks of the group only")

    def refuse() -> dict[str, Any]:
        raise TypeError(
            f"{where}: `group` must be a torch.distributed.ProcessGroup or None, got {type(group).__name__}; "
            "torch.distributed.new_group makes one, and a DeviceMesh has one in mesh.get_group()"
        )

    agree(where, ranks_of(None), refuse)
    return ranks_of(None)


def agree(
    where: str, ranks: Ranks, check: Callable[[], dict[str, Any]], flag: Callable[[], bool] = lambda: False
) -> bool:
    """Run a check on every rank, and raise on all ranks if it raises on one or if its results differ.

    The check returns, by name, the values that must be the same on all ranks. If it passes, ``flag`` is called, and
    the result says whether it is true on any rank.
    """
    fault, stop, terms, flagged = None, None, {}, False
    try:
        terms = {CALLED: where} | {name: str(value) for name, value in check().items()}
        flagged = flag()
    except Exception as error:  # whatever it is, the other ranks must learn of it
        if type(error).__name__ == END_OF_RECOMPUTATION:
            stop = error
        else:
            fault = error
    mine = torch.tensor([fault is not None, flagged, _digest(terms)], dtype=torch.int64, device=ranks.device)
    faulty, flags, digests = ranks.gathered(mine).unbind(-1)
    if bool(faulty.any()):
        _raise_everywhere(ranks, fault)
    if bool((digests != digests[0]).any()):
        raise ValueError(_difference(ranks.objects(terms)))
    if stop is not None:
        raise stop
    return bool(flags.any())


def agree_if_spread(where: str, ranks: Ranks | None, check: Callable[[], dict[str, Any]]) -> None:
    """:func:`agree` if there are ranks; without them, only run the check."""
    if ranks is None:
        check()
    else:
        agree(where, ranks, check)


def run_on_all(where: str, ranks: Ranks | None, work: Callable[[], Result]) -> Result:
    """Run a part of a call on every rank. Returns its result; if it raises on one rank, this raises on all."""
    results: list[Result] = []

    def check() -> dict[str, Any]:
        results.append(work())
        return {}

    agree_if_spread(where, ranks, check)
    return results[0]


def plain_arguments(where: str, values: Iterable[Any]) -> None:
    """Raise if the call is being traced or transformed: collectives run immediately."""
    if not plainly_eager() or not all(plain(value) for value in values if isinstance(value, Tensor)):
        raise RuntimeError(
            f"{where}: it runs eagerly, on plain tensors; call it outside of torch.compile, torch.func and dispatch "
            "modes, and pass dense tensors that have values, local ones of DTensors and other subclasses"
        )


def resolved(value: Any) -> Any:
    """The argument with a lazy negation carried out: a conjugate's imaginary part is stored with the other sign.

    A parameter of a lazy module, which has no values yet, is left for the checks that follow to refuse.
    """
    return value.resolve_neg() if isinstance(value, Tensor) and not is_lazy(value) else value


def trained(arguments: dict[str, Any]) -> list[str]:
    """The names of the arguments that are differentiated: each adds exchanges, which all ranks must join."""
    tensors = {name: value for name, value in arguments.items() if isinstance(value, Tensor)}
    backward = [name for name, value in tensors.items() if value.requires_grad and torch.is_grad_enabled()]
    forward = [f"{name} (forward mode)" for name, value in tensors.items() if has_tangent(value)]
    return backward + forward


def has_tangent(value: Tensor) -> bool:
    """Whether forward mode differentiates a plain tensor."""
    with torch.no_grad():
        return forward_ad.unpack_dual(value).tangent is not None


def digest(values: Tensor) -> str:
    """A short hash of the values, for use in a message."""
    data = values.detach().cpu().contiguous().numpy()
    return hashlib.blake2b(data.tobytes(), digest_size=6).hexdigest()


def _digest(terms: dict[str, str]) -> int:
    return int.from_bytes(hashlib.blake2b(repr(terms).encode(), digest_size=7).digest(), "little")


def _raise_everywhere(ranks: Ranks, fault: Exception | None) -> None:
    """Raise the fault of the first rank that has one. On that rank the traceback is kept."""
    kind = next((kind for kind in KINDS if isinstance(fault, kind)), RuntimeError)
    mine = None if fault is None else (kind.__name__, str(fault) or type(fault).__name__)
    for rank, theirs in enumerate(ranks.objects(mine)):
        if theirs is not None:
            name, text = theirs
            raised = next(kind for kind in KINDS if kind.__name__ == name)
            raise raised(f"rank {rank}: {text}") from (fault if rank == ranks.rank else None)


def _difference(everyone: Sequence[dict[str, str]]) -> str:
    """A message naming the first difference and the ranks involved: the same text on all ranks."""
    where = everyone[0][CALLED]
    for name, value in everyone[0].items():
        for rank, theirs in enumerate(everyone):
            other = theirs.get(name, "none")
            if other != value:
                return (
                    f"{where}: {name} must be the same on all ranks, got {value} on rank 0 and {other} on rank {rank}"
                )
    return f"{where}: all ranks must call the same function with the same kinds of arguments"
