"""Compiling side by side: an operator's first launch that finds no compiled program compiles those that follow, too.

Compiling takes longer than anything else a call does, and one program after the other takes several times as long as
all at once. The operator runs on meta tensors for that, as ``warm_up`` describes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

from laplex._triton.launch import compiled, state
from laplex._triton.recording import paused
from laplex._triton.warm_up import compile_all, surveyed


class Foresight:
    """Within it, ``launch`` knows which operator runs, and calls this object before it compiles a program."""

    __slots__ = ("before", "call")

    def __init__(self, operator: Callable[..., Any], operands: tuple[Any, ...], how: dict[str, Any]) -> None:
        self.call = operator, operands, how

    def __enter__(self) -> None:
        self.before, state.foresight = state.foresight, self

    def __exit__(self, *error: object) -> None:
        state.foresight = self.before

    def __call__(self, device: torch.device) -> None:
        """Compile all programs of the operator that are not compiled; one alone is left to its launch."""
        operator, operands, how = self.call
        state.foresight = None  # once is enough
        with surveyed(device) as noted, paused():
            operator(*tree_map_only(Tensor, _without_memory, operands), **how)
        missing = {variant: numbers for variant, numbers in noted.found.items() if variant not in compiled}
        if len(missing) > 1:
            compile_all(missing, lambda done, of: None)


def _without_memory(tensor: Tensor) -> Tensor:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="meta")
