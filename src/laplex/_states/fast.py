"""Which compiled module does the recursions: C++ on the CPU, Triton on CUDA, none under transforms of torch."""

from __future__ import annotations

from types import ModuleType

import torch
from torch import Tensor

from laplex import _backends
from laplex._eager import plain, plainly_eager
from laplex._states import cpp


def module_for(*tensors: Tensor) -> ModuleType | None:
    """The compiled recursions for float64 tensors on one device; None if torch must do them."""
    if not plainly_eager() or torch.autograd.forward_ad._current_level >= 0 or not all(map(plain, tensors)):
        return None
    device = tensors[0].device.type
    if any(tensor.device.type != device or tensor.dtype != torch.float64 for tensor in tensors):
        return None  # compiled code reads memory as float64
    if device == "cpu":
        return cpp
    return _backends.load("triton", device).states if device == "cuda" and not _backends.NO_TRITON else None
