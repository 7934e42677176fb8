r"""The five operators of symmetric quasiseparable matrices: schemas, shapes and registrations.

Points in order, i < n. The matrix, of order r, and its factors A = L diag(d) L^T, L lower triangular:

    A_ij = p_i^T T_i ... T_{j+1} q_j  (i > j),     A_ii = p_i^T q_i + diag_i,     T_i = rho_i [[I, W_i], [0, I]]
    L_ij = p_i^T T_i ... T_{j+1} z_j  (i > j),     L_ii = 1

    decay (h, n)      with mass rho = exp(-gap / tau): much mass may lie between points far apart;
                      without, rho - 1 = expm1(-gap / tau): 1 - rho^2 is exact for near neighbours. The first rho is 0
    p, q, z (h, n, r)
    mass (h, n, c)    W packed by rows: c = 0 (T_i = rho_i I), 1 or 3 for blocks of size 0, 1 or 2
    diag, d (h, n)
    states (h, n, r, r), or (h, 0, r, r) unless asked for: what ``factor_pullback`` needs

    laplex::factor(decay, p, q, mass, diag, keep)            -> d, z, states
    laplex::factor_pullback(decay, p, mass, d, z, states, d_bar, z_bar)  -> p_bar, q_bar, mass_bar, diag_bar,
                                                                                     gap_bar
    laplex::sweep(decay, p, z, mass, x, transposed, inverse) -> L x, L^T x, L^-1 x or L^-T x        x (h, n, m)
    laplex::quasi_solve(decay, p, z, mass, d, order, y)      -> A^-1 y for y (h, n, m) in the caller's order, (h, n)
    laplex::sweep_pullback(decay, p, z, mass, left, right)   -> p_bar, z_bar, mass_bar, gap_bar
                                                of the sum over i > j of left_i L_ij right_j

Without mass, q = p of length 1 is required: the factor is then found without a subtraction. gap_bar (h, n) is the
gradient of log rho = -gap / tau, from which ``_solve_autograd`` makes those of the positions and of tau. All is
float64. Opaque to autograd.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from laplex import _backends

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
    """The module that factors and sweeps."""
    return _backends.load(backend, like.device.type).solver


@torch.library.impl(_library, "factor", "CompositeExplicitAutograd")
def _factor(
    decay: Tensor, p: Tensor, q: Tensor, mass: Tensor, diag: Tensor, keep: bool, backend: str
) -> tuple[Tensor, Tensor, Tensor]:
    made: tuple[Tensor, Tensor, Tensor] = _factor_fake(decay, p, q, mass, diag, keep, backend)
    if decay.numel():
        _solver(backend, p).factor(decay, p, q, mass, diag, *made)
    return made


@torch.library.register_fake("laplex::factor", lib=_library)
def _factor_fake(
    decay: Tensor, p: Tensor, q: Tensor, mass: Tensor, diag: Tensor, keep: bool, backend: str
) -> tuple[Tensor, Tensor, Tensor]:
    h, n, r = p.shape
    return decay.new_empty((h, n)), decay.new_empty((h, n, r)), decay.new_empty((h, n if keep else 0, r, r))


@torch.library.impl(_library, "factor_pullback", "CompositeExplicitAutograd")
def _factor_pullback(
    decay: Tensor,
    p: Tensor,
    mass: Tensor,
    d: Tensor,
    z: Tensor,
    states: Tensor,
    d_bar: Tensor,
    z_bar: Tensor,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    of_d = p.new_zeros(d.shape), p.new_zeros(d.shape)
    made = p.new_zeros(p.shape), p.new_zeros(p.shape), p.new_zeros(mass.shape), *of_d
    if decay.numel():
        _solver(backend, p).factor_pullback(decay, p, mass, d, z, states, d_bar, z_bar, *made)
    return made


@torch.library.register_fake("laplex::factor_pullback", lib=_library)
def _factor_pullback_fake(
    decay: Tensor,
    p: Tensor,
    mass: Tensor,
    d: Tensor,
    z: Tensor,
    states: Tensor,
    d_bar: Tensor,
    z_bar: Tensor,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    of_p, of_d = p.new_empty(p.shape), p.new_empty(d.shape)
    return of_p, torch.empty_like(of_p), p.new_empty(mass.shape), of_d, torch.empty_like(of_d)


@torch.library.impl(_library, "sweep", "CompositeExplicitAutograd")
def _sweep(
    decay: Tensor, p: Tensor, z: Tensor, mass: Tensor, x: Tensor, transposed: bool, inverse: bool, backend: str
) -> Tensor:
    y = x.new_empty(x.shape)
    if x.numel():
        _solver(backend, x).sweep(decay, p, z, mass, x, y, transposed=transposed, inverse=inverse)
    return y


@torch.library.register_fake("laplex::sweep", lib=_library)
def _sweep_fake(
    decay: Tensor, p: Tensor, z: Tensor, mass: Tensor, x: Tensor, transposed: bool, inverse: bool, backend: str
) -> Tensor:
    return x.new_empty(x.shape)


@torch.library.impl(_library, "quasi_solve", "CompositeExplicitAutograd")
def _quasi_solve(
    decay: Tensor, p: Tensor, z: Tensor, mass: Tensor, d: Tensor, order: Tensor, y: Tensor, backend: str
) -> Tensor:
    x = y.new_empty(y.shape)
    if y.numel():
        _solver(backend, y).solve(decay, p, z, mass, d, order, y, x)
    return x


@torch.library.register_fake("laplex::quasi_solve", lib=_library)
def _quasi_solve_fake(
    decay: Tensor, p: Tensor, z: Tensor, mass: Tensor, d: Tensor, order: Tensor, y: Tensor, backend: str
) -> Tensor:
    return y.new_empty(y.shape)


@torch.library.impl(_library, "sweep_pullback", "CompositeExplicitAutograd")
def _sweep_pullback(
    decay: Tensor, p: Tensor, z: Tensor, mass: Tensor, left: Tensor, right: Tensor, backend: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    made = p.new_zeros(p.shape), p.new_zeros(p.shape), p.new_zeros(mass.shape), p.new_zeros(decay.shape)
    if left.numel():
        _solver(backend, p).sweep_pullback(decay, p, z, mass, left, right, *made)
    return made


@torch.library.register_fake("laplex::sweep_pullback", lib=_library)
def _sweep_pullback_fake(
    decay: Tensor, p: Tensor, z: Tensor, mass: Tensor, left: Tensor, right: Tensor, backend: str
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return p.new_empty(p.shape), p.new_empty(p.shape), p.new_empty(mass.shape), p.new_empty(decay.shape)
