"""Encoders of torch, which in evaluation read ``weight`` of their layers themselves, in one fused operator.

That would form the matrix twice in each call, and fails in half precision, in which a layer keeps its parameters in
float32. So such encoders are made to call the layer. By these attributes they decide:

    TransformerEncoderLayer.activation_relu_or_gelu   0, as for any other activation: the layer is called
    TransformerEncoder.use_nested_tensor              False: its layers get ordinary tensors
"""

from __future__ import annotations

import functools

from torch import nn
from torch.nn.modules.module import register_module_module_registration_hook


@functools.cache
def watch(kind: type[nn.Module]) -> None:
    """From now on an encoder layer into which a module of this kind is put calls it, whoever puts it there."""

    def registered(module: nn.Module, _name: str, submodule: nn.Module | None) -> None:
        if isinstance(submodule, kind) and isinstance(module, nn.TransformerEncoderLayer):
            module.activation_relu_or_gelu = 0

    register_module_module_registration_hook(registered)


def leave_nested_tensors(model: nn.Module, kind: type[nn.Module]) -> None:
    """Give ordinary tensors to the encoders that have a module of this kind."""
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoder) and any(isinstance(part, kind) for part in module.modules()):
            module.use_nested_tensor = False
