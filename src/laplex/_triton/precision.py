"""How float32 matrices are multiplied: in float64, where the GPU has units for that."""

from __future__ import annotations

import functools

import torch

from laplex._triton.launch import state

DOUBLE_UNITS = (8, 0), (9, 0), (10, 0)  # compute capabilities: A100, H100 and H200, B200


def multiplies_doubles(device: torch.device) -> bool:
    """Whether products in float64 are as fast as in float32; during a survey, on the device that it is for."""
    return _has_double_units(device if state.survey is None else state.survey.device)


@functools.cache
def _has_double_units(device: torch.device) -> bool:
    if device.type != "cuda" or torch.version.hip is not None:
        return False
    return torch.cuda.get_device_capability(device) in DOUBLE_UNITS
