"""The launches of a layer whose weight is formed."""

from __future__ import annotations

import torch
from torch import Tensor

from laplex._formed.kernels import Kernels, Needs
from laplex._layer.inputs import Inputs, Settings
from laplex._triton import tuning
from laplex._triton.branch import Branch
from laplex._triton.formed.launch import entries_dtype, form, matmul, multiply, pull
from laplex._triton.launch import launch
from laplex._triton.layer.programs import sum_rows_program
from laplex._triton.recording import Results, call


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
    x_bar, bias_bar, branch = None, None, Branch(g.device)
    with branch:  # the gradients of the anchors do not need these
        if settings.needs[0]:
            x_bar = matmul(rows, matrix[0], g.dtype).view(x.shape)
        if settings.needs[5] and bias is not None:
            bias_bar = torch.empty_like(bias)
            _sum_rows(rows, bias_bar)
    dtype = torch.float32 if g.dtype.itemsize < 4 else _written(x, kernels)
    matrix_bar = matmul(rows.t(), columns, dtype)
    needs = Needs.from_flags((*settings.needs[1:5], *settings.needs[6:]))
    a_bar, b_bar, tau_bar, mix_bar, phi_bar, psi_bar = pull(matrix_bar, kernels, needs, x.dtype, settings.factors)
    branch.join()
    return settings.needed((x_bar, a_bar, b_bar, tau_bar, mix_bar, bias_bar, phi_bar, psi_bar))


def _sum_rows(g: Tensor, sums: Tensor) -> None:
    """Fill the sums (n,) of g (m, n) over rows. torch takes three launches for that, or many programs for many rows."""
    m, n = g.shape
    if m > tuning.SUMMED_ROWS or g.stride(1) != 1:
        call(torch.sum, g, out=(sums,), dim=0, dtype=sums.dtype)
        return
    width, rows = tuning.SUM_ROWS_TILE
    launch(sum_rows_program, (-(-n // width), 1, 1), (g, sums), (m, n, g.stride(0)), (width, rows), 4)
