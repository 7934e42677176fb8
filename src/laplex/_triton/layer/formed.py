"""The launches of a layer whose weight is formed."""

from __future__ import annotations

import torch
from torch import Tensor

from laplex._formed.kernels import Kernels, Needs
from laplex._layer.inputs import Inputs, Settings
from laplex._triton.formed.launch import entries_dtype, form, matmul, multiply, outer, pull
from laplex._triton.recording import Results


def _kernels(inputs: Inputs) -> Kernels:
    _x, a, b, tau, mix, _bias, phi, psi = inputs
    return Kernels(a, b, tau, mix, phi, psi, tau.numel())


def _written(x: Tensor, kernels: Kernels) -> torch.dtype:
    return entries_dtype(x.dtype, x.device, x.numel() * kernels.shape[1])


def forward(settings: Settings, *given: Tensor) -> Results:
    """y, and the weight if backward reads it, for the gradient of x."""
    inputs, _ = settings.inputs(given)
    kernels = _kernels(inputs)
    matrix = form(kernels, inputs.x.dtype, _written(inputs.x, kernels))
    y = multiply(inputs.x, matrix, inputs.bias)
    return (y, matrix) if settings.needs[0] else (y,)


def backward(settings: Settings, g: Tensor, *given: Tensor) -> Results:
    """The gradients that are needed, in the order of ``Inputs``."""
    inputs, matrix = settings.inputs(given)
    x, bias, kernels = inputs.x, inputs.bias, _kernels(inputs)
    rows, columns = (tensor.reshape(-1, tensor.shape[-1]) for tensor in (g, x))
    x_bar = matmul(rows, matrix[0], g.dtype).view(x.shape) if settings.needs[0] else None
    dtype = torch.float32 if g.dtype.itemsize < 4 else _written(x, kernels)
    bias_bar = None
    if settings.needs[5] and bias is not None:
        bias_bar = torch.empty_like(bias)
        matrix_bar = outer(rows, columns, dtype, bias_bar)
    else:
        matrix_bar = matmul(rows.t(), columns, dtype)
    needs = Needs.from_flags((*settings.needs[1:5], *settings.needs[6:]))
    a_bar, b_bar, tau_bar, mix_bar, phi_bar, psi_bar = pull(matrix_bar, kernels, needs, x.dtype, settings.factors)
    return settings.needed((x_bar, a_bar, b_bar, tau_bar, mix_bar, bias_bar, phi_bar, psi_bar))
