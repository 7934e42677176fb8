"""Launches of Triton kernels, with as little Python as they need; and what was launched, to launch it again."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor

_compiled: dict[Any, Any] = {}
_COMPILED_KEPT = 4096
EARLY_PROGRAMS = 2048  # each of them has to wait by itself: of more that takes longer than it saves


def power(size: int) -> int:
    """The smallest power of two that is no smaller."""
    return 1 << max(size - 1, 0).bit_length()


class Launch(NamedTuple):
    """A kernel as it was launched; ``compiled`` is None where Triton's interpreter ran it."""

    compiled: Any
    grid: tuple[int, int, int]
    tensors: tuple[Tensor, ...]
    numbers: tuple[Any, ...]


class Call(NamedTuple):
    """A function of torch that fills what it is given; the last tensors are those."""

    function: Callable[..., Any]
    tensors: tuple[Tensor, ...]
    filled: int
    how: dict[str, Any]


class Record(threading.local):
    """What a thread does and allocates while it is recorded."""

    def __init__(self) -> None:
        self.steps: list[Launch | Call] | None = None
        self.fresh: list[Tensor] = []
        self.constant: list[Tensor] = []  # what its repeats find as it was
        self.made: dict[str, tuple[Tensor, ...]] | None = None  # of the anchors, if its repeats have the same


_record = Record()


@contextmanager
def recorded(constant: tuple[Tensor, ...], made: dict[str, tuple[Tensor, ...]] | None) -> Iterator[Record]:
    """Record what this thread does; ``steps`` is None at the end if there was more to it.

    ``made``: what other products made of the same anchors, and this one will; None if repeats are for others.
    """
    _record.steps, _record.fresh, _record.constant, _record.made = [], [], [*constant], made
    try:
        yield _record
    finally:
        not_to_be_repeated()


def not_to_be_repeated() -> None:
    """What is done here is more than launches and calls, or takes so long that nothing is gained."""
    _record.steps, _record.fresh, _record.constant, _record.made = None, [], [], None


def recording() -> bool:
    """Whether what this thread does is recorded."""
    return _record.steps is not None


def constant(tensor: Tensor) -> Tensor:
    """A tensor that stays as it is while anyone holds it."""
    if _record.steps is not None:
        _record.constant.append(tensor)
    return tensor


def once(what: str, make: Callable[[], tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    """What follows from the anchors alone: a repeat for the same anchors has it, one for others is none."""
    steps, fresh, constants, made = _record.steps, _record.fresh, _record.constant, _record.made
    not_to_be_repeated()
    result = made[what] if made is not None and what in made else make()
    if steps is not None and made is not None:
        made[what] = result
        _record.steps, _record.fresh, _record.constant, _record.made = steps, fresh, [*constants, *result], made
    return result


def empty(like: Tensor, shape: tuple[int, ...], dtype: torch.dtype | None = None) -> Tensor:
    """Memory for one product."""
    return fresh(like.new_empty(shape, dtype=like.dtype if dtype is None else dtype))


def fresh(made: Tensor) -> Tensor:
    """Memory for one product that was allocated elsewhere, of which nothing is filled yet."""
    if _record.steps is not None:
        _record.fresh.append(made)
    return made


def call(function: Callable[..., Any], *tensors: Tensor, out: tuple[Tensor, ...], **how: Any) -> None:
    """Let a function of torch fill ``out``."""
    function(*tensors, out=out if len(out) > 1 else out[0], **how)
    if _record.steps is not None:
        _record.steps.append(Call(function, (*tensors, *out), len(out), how))


@functools.cache
def can_start_early(device: torch.device) -> bool:
    """Whether a launch may begin before the last one ends: Hopper's can, and what came after."""
    return device.type == "cuda" and torch.version.hip is None and torch.cuda.get_device_capability(device) >= (9, 0)


def launch(
    kernel: Any,
    grid: tuple[int, int, int],
    tensors: tuple[Tensor, ...],
    sizes: tuple[int, ...],
    flags: Any,
    warps: int,
) -> None:
    """Launch a kernel; the second time with less Python than Triton's own look-up takes.

    What Triton specialises on is in the key: dtypes and numbers; of alignment the kernels ask for our own tensors only,
    which all have it. Under Triton's interpreter nothing is compiled.
    """
    device = tensors[0].device
    if device.type == "cuda" and device.index != torch._C._cuda_getDevice():
        with torch.cuda.device(device):
            launch(kernel, grid, tensors, sizes, flags, warps)
        return
    early = False
    if kernel.arg_names[-1] == "EARLY":
        early = grid[0] * grid[1] * grid[2] <= EARLY_PROGRAMS and can_start_early(device)
        flags = (*flags, early)
    key = kernel, grid, sizes, flags, warps, device, *[tensor.dtype for tensor in tensors]
    found = _compiled.get(key)
    if found is not None:  # addresses in place of tensors: Triton would ask the driver about each
        stream = torch._C._cuda_getCurrentRawStream(device.index)
        run(found, grid, stream, [tensor.data_ptr() for tensor in tensors], (*sizes, *flags))
    else:
        how = {"launch_pdl": True} if early else {}  # which Triton knows on such GPUs
        found = kernel[grid](*tensors, *sizes, *flags, num_warps=warps, **how)
        if found is not None:
            if len(_compiled) >= _COMPILED_KEPT:
                _compiled.clear()
            _compiled[key] = found
    if _record.steps is not None:
        _record.steps.append(Launch(found, grid, tensors, (*sizes, *flags)))


def run(compiled: Any, grid: tuple[int, int, int], stream: int, addresses: list[int], numbers: tuple[Any, ...]) -> None:
    """What was compiled, on a stream."""
    function, metadata = compiled.function, compiled.packed_metadata
    compiled.run(*grid, stream, function, metadata, None, None, None, *addresses, *numbers)
