"""Autocast: x is cast as ``torch.nn.functional.linear`` casts it; anchors, tau, phases and sums keep their dtype."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

CAST = (torch.float16, torch.bfloat16, torch.float32)  # float64 and complex are not cast


def cast(x: Tensor) -> Tensor:
    """x in autocast's dtype for its device, if autocast is on."""
    if not torch._C._is_any_autocast_enabled() or not isinstance(x, Tensor):  # what is not a tensor is refused later
        return x
    device = x.device.type
    if x.dtype not in CAST or not torch.amp.is_autocast_available(device) or not torch.is_autocast_enabled(device):
        return x
    return x.to(torch.get_autocast_dtype(device))


def off(device: torch.device) -> AbstractContextManager[object]:
    """A context in which autocast is off, so that :func:`cast` returns x unchanged."""
    if torch._C._is_any_autocast_enabled() and torch.amp.is_autocast_available(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()
