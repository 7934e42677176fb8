"""Launches of Triton programs with little Python, and a hook for what records them (``replay``)."""

from __future__ import annotations

import functools
import threading
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from laplex._triton import tuning
from laplex._triton.program import form_of

Grid = tuple[int, int, int]
_compiled: dict[Any, Any] = {}


class Launch(NamedTuple):
    """A launch that was done. ``compiled`` is None if it cannot be done again by :func:`launch_compiled`."""

    compiled: Any
    grid: Grid
    tensors: tuple[Tensor, ...]
    numbers: tuple[Any, ...]


class Recorder(Protocol):
    """Takes note of launches."""

    def launched(self, launch: Launch) -> None: ...


class _State(threading.local):
    recorder: Recorder | None = None


state = _State()  # of this thread


def power(size: int) -> int:
    """The smallest power of two that is at least ``size``."""
    return 1 << max(size - 1, 0).bit_length()


def step(size: int, most: int, *parts: int) -> int:
    """The least of ``most`` and its ``parts`` (of 4 a quarter) that is at least ``size``; ``most`` if none is.

    A program is compiled for each length of its vectors. So a length that follows a size has few steps.
    """
    return min((most // part for part in parts if most // part >= size), default=most)


@functools.cache
def can_start_early(device: torch.device) -> bool:
    """Whether a launch may begin before the last one ends (programmatic dependent launch): on Hopper and later."""
    return device.type == "cuda" and torch.version.hip is None and torch.cuda.get_device_capability(device) >= (9, 0)


def launch(
    program: Any, grid: Grid, tensors: tuple[Tensor, ...], sizes: tuple[int, ...], flags: Any, warps: int
) -> None:
    """Launch a program. From the second time on Triton is not asked which compiled program that is.

    The key holds what Triton specialises on: flags, dtypes, and what ``program`` lets it see of the numbers. Programs
    specialise on the alignment of our own tensors only, which are all aligned. Under Triton's interpreter nothing is
    compiled.
    """
    device = tensors[0].device
    if device.type == "cuda" and device.index != torch._C._cuda_getDevice():
        with torch.cuda.device(device):
            launch(program, grid, tensors, sizes, flags, warps)
        return
    early = False
    if program.arg_names[-1] == "EARLY":
        early = grid[0] * grid[1] * grid[2] <= tuning.EARLY_PROGRAMS and can_start_early(device)
        flags = (*flags, early)
    key = program, flags, warps, form_of(program, sizes), device, *[tensor.dtype for tensor in tensors]
    found = _compiled.get(key)
    if found is not None:
        stream = torch._C._cuda_getCurrentRawStream(device.index)
        launch_compiled(found, grid, stream, [tensor.data_ptr() for tensor in tensors], (*sizes, *flags))
    else:
        how = {"launch_pdl": True} if early else {}  # an option that Triton knows on such GPUs only
        made = program[grid](*tensors, *sizes, *flags, num_warps=warps, **how)
        if can_be_launched(made):
            found = made
            if len(_compiled) >= tuning.COMPILED_KEPT:
                _compiled.clear()
            _compiled[key] = found
    if state.recorder is not None:
        state.recorder.launched(Launch(found, grid, tensors, (*sizes, *flags)))


def can_be_launched(compiled: Any) -> bool:
    """Whether :func:`launch_compiled` knows this object. If not, every launch goes through Triton's public call."""
    return all(hasattr(compiled, name) for name in ("run", "function", "packed_metadata"))


def launch_compiled(compiled: Any, grid: Grid, stream: int, addresses: list[int], numbers: tuple[Any, ...]) -> None:
    """Launch a compiled program on a stream, with addresses in place of tensors.

    This is the one place that uses private parts of Triton, in the form that versions 3.4 to 3.7 have; it was run with
    3.6. The public call takes several times as long: it binds and specialises the arguments again and asks the driver
    about every pointer (``public_launch`` in benchmarks/results/crossover-gpu.json).
    """
    function, metadata = compiled.function, compiled.packed_metadata
    compiled.run(*grid, stream, function, metadata, None, None, None, *addresses, *numbers)
