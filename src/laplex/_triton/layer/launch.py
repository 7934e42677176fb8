"""A layer's step, forward and backward: which way it takes, and its replays."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor

from laplex._layer.inputs import Inputs, Settings
from laplex._triton import tuning
from laplex._triton.layer import formed, scanned
from laplex._triton.recording import Results
from laplex._triton.repetition import Inner
from laplex._triton.replay import Repeat


class Step:
    """The step of a layer for inputs of one form."""

    def __init__(self, settings: Settings, inputs: Inputs) -> None:
        self.settings = settings
        way: Any = scanned if settings.backend.form is None else formed
        given = inputs.given
        small = sum(tensor.numel() for tensor in given) <= tuning.REPLAYED_OPERATORS
        enabled = small and all(tensor.is_contiguous() for tensor in given)
        self._forward = Repeat(functools.partial(way.forward, settings), 1, enabled=enabled)
        self._backward = Repeat(functools.partial(way.backward, settings), sum(settings.needs), enabled=enabled)

    def forward(self, given: Results) -> tuple[Tensor, Inner]:
        """y, and what backward needs besides the inputs."""
        results, inner = self._forward(given)
        return results[0], inner

    def backward(self, g: Tensor, given: Results, inner: Results, places: Any) -> tuple[Any, ...]:
        """The gradients of all ``Inputs``; None where they are not needed."""
        results, _ = self._backward((g, *given), Inner(inner, places))
        return tuple(self.settings.all_gradients(results))


def step(settings: Settings, inputs: Inputs) -> Step | None:
    """The step for inputs of this form, or None if it has no launches of its own: with one kernel by the scan, without
    phases and in full precision, or with the weight formed."""
    if settings.backend.form is None:
        one = inputs.tau.numel() == 1 and inputs.phi is None
        if not one or inputs.x.dtype not in (torch.float32, torch.float64):
            return None
    return Step(settings, inputs)
