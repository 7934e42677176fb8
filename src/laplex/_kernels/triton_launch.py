"""Launches of Triton kernels, with as little Python as they need."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_compiled: dict[Any, Any] = {}
_COMPILED_KEPT = 4096


def launch(
    kernel: Any,
    grid: tuple[int, int, int],
    tensors: tuple[Tensor, ...],
    sizes: tuple[int, ...],
    flags: Any,
    warps: int,
) -> Any:
    """Launch a kernel and return what was compiled; the second time with less Python than Triton's own look-up takes.

    What Triton specialises on is in the key: dtypes and numbers; of alignment the kernels ask for our own tensors only,
    which all have it. Under Triton's interpreter nothing is compiled.
    """
    device = tensors[0].device
    if device.type == "cuda" and device.index != torch._C._cuda_getDevice():
        with torch.cuda.device(device):
            return launch(kernel, grid, tensors, sizes, flags, warps)
    key = kernel, grid, sizes, flags, warps, device, *[tensor.dtype for tensor in tensors]
    found = _compiled.get(key)
    if found is not None:  # addresses in place of tensors: Triton would ask the driver about each
        stream = torch._C._cuda_getCurrentRawStream(device.index)
        addresses = [tensor.data_ptr() for tensor in tensors]
        function, metadata = found.function, found.packed_metadata
        found.run(*grid, stream, function, metadata, None, None, None, *addresses, *sizes, *flags)
        return found
    names = kernel.arg_names[-len(flags) :]
    made = kernel[grid](*tensors, *sizes, **dict(zip(names, flags, strict=True)), num_warps=warps)
    if made is not None:
        if len(_compiled) >= _COMPILED_KEPT:
            _compiled.clear()
        _compiled[key] = made
    return made


def launched(
    kernel: Any,
    grid: tuple[int, int, int],
    sizes: tuple[int, ...],
    flags: Any,
    warps: int,
    device: torch.device,
    *dtypes: torch.dtype,
) -> Any:
    """What :func:`launch` compiled for such arguments, or None."""
    return _compiled.get((kernel, grid, sizes, flags, warps, device, *dtypes))
