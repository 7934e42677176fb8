"""Torch's encoders, which in evaluation read ``weight`` of their layers themselves, in one fused operator.

That would form the matrix twice in each call, and fails in half precision, because a layer keeps its parameters in
float32. So such encoders are made to call the layer. These attributes decide:

    TransformerEncoderLayer.activation_relu_or_gelu   0, as for any other activation: the layer is called
    TransformerEncoder.use_nested_tensor              False: its layers get ordinary tensors
"""

from __future__ import annotations

import functools

from torch import nn
from torch.nn.modules.module import register_module_module_registration_hook


@functools.cache
def watch(kind: type[nn.Module]) -> None:
    """Make encoder layers call any module of this kind that is put into them from now on, whoever puts it there."""

    def registered(module: nn.Module, _name: str, submodule: nn.Module | None) -> None:
        if isinstance(submodule, kind) and isinstance(module, nn.TransformerEncoderLayer):
            module.activation_relu_or_gelu = 0

    register_module_module_registration_hook(registered)


def leave_nested_tensors(model: nn.Module, kind: type[nn.Module]) -> None:
    """Make encoders that contain a module of this kind use ordinary tensors."""
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoder) and any(isinstance(part, kind) for part in module.modules()):
            module.use_nested_tensor = False
