"""Sums of kernel matrices in C++ (csrc/formed*.cpp), called with addresses: this file owns dtypes and messages."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from laplex import _checks
from laplex._compiled import core
from laplex._formed.kernels import Kernels, Needs

Bars = tuple[Tensor | None, Tensor | None, Tensor | None, Tensor | None, Tensor | None, Tensor | None]


def form(kernels: Kernels, dtype: torch.dtype) -> Tensor:
    """W (h, n, k), the sum over q of w_q K_q."""
    h, _, n = kernels.target.shape
    wide = torch.promote_types(dtype, kernels.target.dtype)  # the core takes one dtype: the wider, so nothing is lost
    made = kernels.target.new_empty((h, n, kernels.source.shape[-1]), dtype=wide)
    _run(core.form, kernels, made)
    return made.to(dtype)


def pull(g: Tensor, kernels: Kernels, needs: Needs) -> Bars:
    """The gradients of sum(g * W) for g (h, n, k), each like its input, tau's in float64; None where not needed."""
    target, source, tau, weight, phi, psi = kernels
    g = g.to(torch.promote_types(g.dtype, target.dtype)).contiguous()
    t_bar, s_bar = (_bar(g, anchors, needs.anchors) for anchors in (target, source))
    phi_bar, psi_bar = (_bar(g, phase, needs.phase) for phase in (phi, psi))
    tau_bar, weight_bar = (torch.empty_like(tau, memory_format=torch.contiguous_format) for _ in range(2))
    _run(core.form_pullback, kernels, g, t_bar, s_bar, tau_bar, weight_bar, phi_bar, psi_bar)
    return (
        _like(t_bar, target),
        _like(s_bar, source),
        tau_bar if needs.tau else None,
        _like(weight_bar, weight) if needs.weight else None,
        _like(phi_bar, phi),
        _like(psi_bar, psi),
    )


def _bar(g: Tensor, value: Tensor | None, needed: bool) -> Tensor | None:
    """Memory for the gradient of ``value`` in the dtype of g, which is the core's."""
    return g.new_empty(value.shape) if needed and value is not None else None


def _like(bar: Tensor | None, value: Tensor | None) -> Tensor | None:
    return None if bar is None or value is None else bar.to(value.dtype)


def _run(function: Callable[..., int], kernels: Kernels, matrix: Tensor, *bars: Tensor | None) -> None:
    """Call the core, with the kernels in the dtype of ``matrix``, which is W or its cotangent."""
    (h, r, n), k, dtype = kernels.target.shape, kernels.source.shape[-1], matrix.dtype
    weight = None if kernels.weight is None else kernels.weight.double()
    directions = _direction(kernels.phi, dtype), _direction(kernels.psi, dtype)
    inputs = kernels.target.to(dtype), kernels.source.to(dtype), kernels.tau, weight, *directions
    arrays = [None if array is None else array.contiguous() for array in inputs]  # alive until the core returns
    addresses = [0 if array is None else array.data_ptr() for array in (*arrays, matrix, *bars)]
    status = function(*addresses, h, r, n, k, dtype == torch.float64, torch.get_num_threads())
    if status:
        _raise(status, kernels.tau)


def _direction(phase: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """(h, r, 2, size): cos and sin, rounded once."""
    if phase is None:
        return None
    wide = phase.double()
    return torch.stack((wide.cos(), wide.sin()), dim=2).to(dtype)


def _raise(status: int, tau: Tensor) -> None:
    where = "laplex.linear"
    if status == core.BAD_TAU:
        raise ValueError(_checks.bad_tau(where, tau))
    if status in (core.NOT_FINITE_A, core.NOT_FINITE_B):
        raise ValueError(_checks.not_finite(where, "a" if status == core.NOT_FINITE_A else "b"))
    raise MemoryError(f"{where}: no memory for the compiled core's scratch arrays; use smaller batches")
