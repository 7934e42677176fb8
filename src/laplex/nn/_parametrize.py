"""Kernels behind the weight of any module, through ``torch.nn.utils.parametrize``."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.nn.utils.parametrize import is_parametrized, register_parametrization

from laplex._checks.counts import integer
from laplex.nn import _checks as checks
from laplex.nn import _scales as scales
from laplex.nn._anchored import Anchored, never_to_half
from laplex.nn._fitting import Snapshot
from laplex.nn._linear import LaplexLinear
from laplex.nn._recurrent import read_weights_anew
from laplex.nn._replace import MOST_UNEXPLAINED

if TYPE_CHECKING:
    from laplex._progress import Progress

WHERE = "laplex.nn.parametrize"


class FormedWeight(nn.Module):
    """The parametrization that torch calls for a weight: W of a kernel layer, in the weight's shape and dtype.

    The layer keeps its anchors in float32 under ``.half()``; the dtype of the weight follows the module. The size of
    the first weight, on which the layer's gradients depend, is part of the state.
    """

    size: Tensor  # in units of a fresh layer's

    def __init__(self, weight: Tensor, layer: LaplexLinear) -> None:
        super().__init__()
        self.layer = layer
        self.register_buffer("size", torch.tensor(layer._first_size, dtype=torch.float32, device=weight.device))
        layer._begin_with(layer._first_tau, float(self.size))  # as after it is saved and loaded
        self.shape, self.dtype, self.registered = weight.shape, weight.dtype, False

    def forward(self) -> Tensor:
        """The weight, in the dtype of the module, or of anchors that FSDP or ``functional_call`` has rounded."""
        dtype = self.dtype if self.layer.a.dtype.itemsize >= 4 else self.layer.a.dtype
        return self.layer.weight.to(dtype).view(self.shape)

    def right_inverse(self, weight: Tensor) -> tuple[Tensor, ...]:
        """Called by torch when this is registered, and again whenever the weight is assigned."""
        if self.registered:
            raise AttributeError(checks.weight_is_parametrized(WHERE, weight))
        self.registered = True
        return ()  # torch should train no tensors besides those of the layer

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Load as every module does, including from old files, which do not have the size."""
        size = state_dict.setdefault(prefix + "size", self.size)
        super()._load_from_state_dict(state_dict, prefix, *args)
        if not size.is_meta:
            self.layer._begin_with(self.layer._first_tau, float(size))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(never_to_half(fn), recurse)
        self.dtype = fn(torch.empty(0, dtype=self.dtype)).dtype
        return self

    def extra_repr(self) -> str:
        """What print shows."""
        return f"shape={tuple(self.shape)}, dtype={self.dtype}"


def parametrize(
    module: nn.Module,
    tensor_name: str = "weight",
    kernels: int = 8,
    *,
    phase: bool = False,
    fit: bool = False,
    sweeps: int = 80,
    progress: Progress | None = None,
) -> nn.Module:
    """Put a sum of kernels behind a weight of any module, which reads it as before: attention, convolutions, LSTMs.

    A weight (n, ...) counts as a matrix (n, k), with its trailing dimensions flattened. Its kernels * (n + k + 1)
    numbers are those of a :class:`LaplexLinear`, ``module.parametrizations[tensor_name][0].layer``, and are trained in
    its place: make the optimizer afterwards. The matrix is formed each time it is read, so this saves parameters,
    gradients and optimizer state, but no time. A module that reads it several times forms it once under
    ``torch.nn.utils.parametrize.cached()``; for an nn.Linear that is called, :func:`replace_linear` is better.

    ``torch.nn.utils.parametrize.remove_parametrizations`` leaves the dense weight. Save by ``state_dict``, since torch
    does not pickle parametrized modules. A weight shared with another module is no longer shared. In an embedding, the
    row of ``padding_idx`` is not 0.

    Args:
        module: the module that has the weight.
        tensor_name: the name of the weight in the module, such as "in_proj_weight".
        kernels: the number of kernels. They must take fewer numbers than the weight.
        phase: whether kernels have phases. Not with a fit.
        fit: whether the kernels are fitted to the present weight, as in :meth:`LaplexLinear.from_linear`; otherwise
            they start like a new :class:`LaplexLinear`, scaled to the size of the present weight.
        sweeps: the number of sweeps of a fit.
        progress: called during a fit with the number of sweeps done and the total; None shows a bar.

    Returns:
        The module.

    Example:
        >>> attention = torch.nn.MultiheadAttention(256, 4)
        >>> laplex.nn.parametrize(attention, "in_proj_weight", kernels=8).in_proj_weight.shape
        torch.Size([768, 256])
        >>> sum(p.numel() for p in attention.parametrizations.parameters())
        8200
    """
    integer(WHERE, "kernels", kernels)
    if fit and phase:
        raise ValueError(
            f"{WHERE}: with fit=True kernels have no phase, got phase=True; leave it out, or set fit=False"
        )
    weight = _weight(module, tensor_name)
    matrix = weight.detach().flatten(1)
    checks.weight_like(WHERE, tensor_name, matrix, (matrix.shape[0], matrix.shape[1]))
    _check_saving(tensor_name, matrix, kernels, phase)
    layer = _fitted(tensor_name, matrix, kernels, sweeps, progress) if fit else _fresh(matrix, kernels, phase)
    layer.requires_grad_(weight.requires_grad)
    register_parametrization(module, tensor_name, FormedWeight(weight, layer))
    if isinstance(module, nn.RNNBase):
        read_weights_anew(module)
    return module


def _fresh(matrix: Tensor, kernels: int, phase: bool) -> LaplexLinear:
    """A new layer with entries as large as those of the matrix, whose size its module has chosen."""
    rows, columns = matrix.shape
    layer = LaplexLinear(columns, rows, False, kernels=kernels, phase=phase, device=matrix.device, dtype=matrix.dtype)
    size = float(matrix.double().square().mean().sqrt()) * math.sqrt(3 * columns)  # in units of nn.Linear's
    size /= scales.gain(kernels, phase)
    Snapshot(0.0, layer.a.detach(), layer.b.detach(), layer.mix.detach() * size).write_to(layer)
    layer._begin_with(layer._first_tau, size or 1.0)  # size is 0 for a weight of zeros
    return layer


def _fitted(tensor_name: str, matrix: Tensor, kernels: int, sweeps: int, progress: Progress | None) -> LaplexLinear:
    """A layer fitted to the matrix."""
    dense = nn.Linear(matrix.shape[1], matrix.shape[0], False, device="meta")
    dense.weight = nn.Parameter(matrix, requires_grad=False)
    layer = LaplexLinear.from_linear(dense, kernels, sweeps=sweeps, progress=progress)
    if layer.fit_residual is not None and layer.fit_residual > MOST_UNEXPLAINED:
        warnings.warn(
            f"{WHERE}: the fit left {layer.fit_residual:.0%} of the energy of `{tensor_name}` unexplained; train the "
            "model before you rely on it, or use more `kernels`",
            UserWarning,
            stacklevel=3,
        )
    return layer


def _weight(module: object, tensor_name: object) -> Tensor:
    """The tensor that is parametrized."""
    if not isinstance(module, nn.Module):
        raise TypeError(
            f"{WHERE}: `module` must be a torch.nn.Module, got {type(module).__name__}; pass the one with the weight"
        )
    if isinstance(module, Anchored):
        kind = type(module).__name__
        raise TypeError(f"{WHERE}: `module` must have a dense weight, got {kind}, which has anchors; leave it as it is")
    if getattr(module, "sparse", False):
        raise ValueError(
            f"{WHERE}: `module` must have sparse=False, got sparse=True; anchors have dense gradients, so set "
            "module.sparse = False"
        )
    tensors = {**module._buffers, **module._parameters}
    weight = tensors.get(tensor_name) if isinstance(tensor_name, str) else None
    if weight is None:
        raise ValueError(_no_such_tensor(module, tensor_name, tensors))
    checks.can_be_formed(WHERE, str(tensor_name), weight)
    return weight


def _no_such_tensor(module: nn.Module, tensor_name: object, tensors: dict[str, Tensor | None]) -> str:
    kind = type(module).__name__
    if isinstance(tensor_name, str) and is_parametrized(module, tensor_name):
        return (
            f"{WHERE}: `{tensor_name}` must not be parametrized yet, got one that is, of {kind}; call "
            "torch.nn.utils.parametrize.remove_parametrizations first"
        )
    names = [
        name for name, tensor in tensors.items() if tensor is not None and not is_lazy(tensor) and tensor.dim() > 1
    ]
    advice = f"use {' or '.join(names)}" if names else "pass the submodule that has the weight"
    return f"{WHERE}: `tensor_name` must be a parameter or buffer of {kind}, got {tensor_name!r}; {advice}"


def _check_saving(tensor_name: str, matrix: Tensor, kernels: int, phase: bool) -> None:
    """Check that the kernels have fewer numbers than the matrix."""
    rows, columns = matrix.shape
    layer = LaplexLinear(columns, rows, False, kernels=kernels, phase=phase, device="meta")
    count = sum(parameter.numel() for parameter in layer.parameters())
    if count >= matrix.numel():
        most = (matrix.numel() - 1) // (count // kernels)
        advice = f"use at most {most}" if most > 0 else "leave it dense"
        raise ValueError(
            f"{WHERE}: `kernels` must save parameters of `{tensor_name}`, which has {matrix.numel()}, got {kernels} "
            f"with {count}; {advice}"
        )
