r"""The five operators of quasiseparable matrices that PyTorch sees: schemas, shapes and registrations.

    laplex::factor(*A, keep)                            -> d, z, states         A = L diag(d) L^T
    laplex::factor_pullback(decay, p, mass, d, z, states, d_bar, z_bar)
                                                        -> *MatrixBars          from the gradients of d and z
    laplex::sweep(*L, x, transposed, inverse)           -> L x, L^T x, L^-1 x or L^-T x
    laplex::quasi_solve(*L, d, order, y)                -> A^-1 y
    laplex::sweep_pullback(*L, left, right)             -> *ChainBars           of the sum over i > j, and over columns,
                                                                                of left_i L_ij right_j

The package's docstring has the mathematics. *A are the fields of ``Quasiseparable``, *L those of ``Chain``
(``arrays.py``, with their shapes). ``keep`` asks for the states, which ``factor_pullback`` needs. x, left and right are
(h, n, m), in sorted order. y (h, n, m) and A^-1 y are in the caller's order; order (h, n), int64, is the caller's index
of every point. All operators take the name of the backend last. Autograd does not see into them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from laplex import _backends
from laplex._quasisep.arrays import Chain, ChainBars, MatrixBars, Pivots, Quasiseparable

_EVERYWHERE = "CompositeExplicitAutograd"  # one implementation for all devices

_library = torch.library.Library("laplex", "FRAGMENT")
for _schema in (
    "factor(Tensor decay, Tensor p, Tensor q, Tensor mass, Tensor diag, bool keep, str backend) "
    "-> (Tensor, Tensor, Tensor)",
    "factor_pullback(Tensor decay, Tensor p, Tensor mass, Tensor d, Tensor z, Tensor states, Tensor d_bar, "
    "Tensor z_bar, str backend) -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
    "sweep(Tensor decay, Tensor p, Tensor z, Tensor mass, Tensor x, bool transposed, bool inverse, str backend) "
    "-> Tensor",
    "quasi_solve(Tensor decay, Tensor p, Tensor z, Tensor mass, Tensor d, Tensor order, Tensor y, str backend) "
    "-> Tensor",
    "sweep_pullback(Tensor decay, Tensor p, Tensor z, Tensor mass, Tensor left, Tensor right, str backend) "
    "-> (Tensor, Tensor, Tensor, Tensor)",
):
    _library.define(_schema, tags=(torch.Tag.pt2_compliant_tag,))

factor = torch.ops.laplex.factor.default
factor_pullback = torch.ops.laplex.factor_pullback.default
sweep = torch.ops.laplex.sweep.default
quasi_solve = torch.ops.laplex.quasi_solve.default
sweep_pullback = torch.ops.laplex.sweep_pullback.default


def _solver(backend: str, like: Tensor) -> Any:
    """The module that implements the operators: torch.py or cpp.py."""
    return _backends.load(backend, like.device.type).solver


@torch.library.register_fake("laplex::factor", lib=_library)
def _factor_fake(*inputs: Any) -> tuple[Tensor, ...]:
    *arrays, keep, _ = inputs
    p = Quasiseparable(*arrays).p
    h, n, r = p.shape
    return p.new_empty((h, n)), p.new_empty((h, n, r)), p.new_empty((h, n if keep else 0, r, r))


@torch.library.impl(_library, "factor", _EVERYWHERE)
def _factor(*inputs: Any) -> tuple[Tensor, ...]:
    *arrays, _, backend = inputs
    matrix = Quasiseparable(*arrays)
    results: tuple[Tensor, ...] = _factor_fake(*inputs)
    if matrix.p.numel():
        _solver(backend, matrix.p).factor(matrix, Pivots(*results))
    return results


@torch.library.register_fake("laplex::factor_pullback", lib=_library)
def _factor_pullback_fake(*inputs: Any) -> tuple[Tensor, ...]:
    _, p, mass, d, *_ = inputs
    return tuple(p.new_empty(part.shape) for part in MatrixBars(p, p, mass, d, d))


@torch.library.impl(_library, "factor_pullback", _EVERYWHERE)
def _factor_pullback(*inputs: Any) -> tuple[Tensor, ...]:
    decay, p, mass, d, z, states, d_bar, z_bar, backend = inputs
    results = tuple(part.zero_() for part in _factor_pullback_fake(*inputs))
    if p.numel():
        chain, bars = Chain(decay, p, z, mass), MatrixBars(*results)
        _solver(backend, p).factor_pullback(chain, d, states, d_bar, z_bar, bars)
    return results


@torch.library.register_fake("laplex::sweep", lib=_library)
def _sweep_fake(*inputs: Any) -> Tensor:
    *_, x, _, _, _ = inputs
    results: Tensor = x.new_empty(x.shape)
    return results


@torch.library.impl(_library, "sweep", _EVERYWHERE)
def _sweep(*inputs: Any) -> Tensor:
    *arrays, x, transposed, inverse, backend = inputs
    y: Tensor = _sweep_fake(*inputs)
    if x.numel():
        _solver(backend, x).sweep(Chain(*arrays), x, y, transposed=transposed, inverse=inverse)
    return y


@torch.library.register_fake("laplex::quasi_solve", lib=_library)
def _quasi_solve_fake(*inputs: Any) -> Tensor:
    *_, y, _ = inputs
    results: Tensor = y.new_empty(y.shape)
    return results


@torch.library.impl(_library, "quasi_solve", _EVERYWHERE)
def _quasi_solve(*inputs: Any) -> Tensor:
    *arrays, d, order, y, backend = inputs
    x: Tensor = _quasi_solve_fake(*inputs)
    if y.numel():
        _solver(backend, y).solve(Chain(*arrays), d, order, y, x)
    return x


@torch.library.register_fake("laplex::sweep_pullback", lib=_library)
def _sweep_pullback_fake(*inputs: Any) -> tuple[Tensor, ...]:
    decay, p, z, mass, *_ = inputs
    return tuple(p.new_empty(part.shape) for part in ChainBars(p, z, mass, decay))


@torch.library.impl(_library, "sweep_pullback", _EVERYWHERE)
def _sweep_pullback(*inputs: Any) -> tuple[Tensor, ...]:
    *arrays, left, right, backend = inputs
    results = tuple(part.zero_() for part in _sweep_pullback_fake(*inputs))
    if left.numel():
        _solver(backend, left).sweep_pullback(Chain(*arrays), left, right, ChainBars(*results))
    return results
