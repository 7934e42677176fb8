"""Launches of Triton kernels, with as little Python as they need; and what was launched, to launch it again."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

_compiled: dict[Any, Any] = {}
_COMPILED_KEPT = 4096


def power(size: int) -> int:
    """The smallest power of two that is no smaller."""
    return 1 << max(size - 1, 0).bit_length()


class Record(threading.local):
    """What a thread launches and allocates while it is recorded."""

    def __init__(self) -> None:
        self.launches: list[tuple[Any, tuple[int, int, int], tuple[Tensor, ...], tuple[Any, ...]]] | None = None
        self.fresh: list[Tensor] = []


_record = Record()


@contextmanager
def recorded() -> Iterator[Record]:
    """Record this thread's launches; ``launches`` is None at the end if there was more to it than launches."""
    _record.launches, _record.fresh = [], []
    try:
        yield _record
    finally:
        _record.launches, _record.fresh = None, []


def more_than_launches() -> None:
    """What is done here is not only launches: it cannot be repeated as such."""
    _record.launches = None


def empty(like: Tensor, shape: tuple[int, ...], dtype: torch.dtype | None = None) -> Tensor:
    """Memory for one product."""
    made = like.new_empty(shape, dtype=like.dtype if dtype is None else dtype)
    if _record.launches is not None:
        _record.fresh.append(made)
    return made


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
    key = kernel, grid, sizes, flags, warps, device, *[tensor.dtype for tensor in tensors]
    found = _compiled.get(key)
    if found is not None:  # addresses in place of tensors: Triton would ask the driver about each
        stream = torch._C._cuda_getCurrentRawStream(device.index)
        run(found, grid, stream, [tensor.data_ptr() for tensor in tensors], (*sizes, *flags))
    else:
        names = kernel.arg_names[-len(flags) :]
        found = kernel[grid](*tensors, *sizes, **dict(zip(names, flags, strict=True)), num_warps=warps)
        if found is not None:
            if len(_compiled) >= _COMPILED_KEPT:
                _compiled.clear()
            _compiled[key] = found
    if _record.launches is not None:
        _record.launches.append((found, grid, tensors, (*sizes, *flags)))


def run(compiled: Any, grid: tuple[int, int, int], stream: int, addresses: list[int], numbers: tuple[Any, ...]) -> None:
    """What was compiled, on a stream."""
    function, metadata = compiled.function, compiled.packed_metadata
    compiled.run(*grid, stream, function, metadata, None, None, None, *addresses, *numbers)
