"""Autocast: x is taken as ``torch.nn.functional.linear`` takes it; anchors, tau, phases and sums stay as they are."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

CAST = (torch.float16, torch.bfloat16, torch.float32)  # float64 and complex are left alone


def cast(x: Tensor) -> Tensor:
    """x in autocast's dtype for its device, if that is on."""
    if not torch._C._is_any_autocast_enabled() or not isinstance(x, Tensor):  # checked later, with a message
        return x
    device = x.device.type
    if x.dtype not in CAST or not torch.amp.is_autocast_available(device) or not torch.is_autocast_enabled(device):
        return x
    return x.to(torch.get_autocast_dtype(device))


def off(device: torch.device) -> AbstractContextManager[object]:
    """Within, :func:`cast` leaves x as it is."""
    if torch._C._is_any_autocast_enabled() and torch.amp.is_autocast_available(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()
