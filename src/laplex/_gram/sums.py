r"""M = K diag(w) K^T from sums over the columns, and back: what all backends have in common.

For one kernel, one weight and a_i >= a_j, with D = exp(-(a_i - a_j) / tau),

    M_ij = D (U_j + (W_i - W_j) + V_i)        U_j = sum over b < a_j of exp(-2 (a_j - b) / tau) w      left
                                              V_i = sum over b > a_i of exp(-2 (b - a_i) / tau) w      right
                                              W_i = sum over b < a_i of w

where a b that ties with an anchor counts half on each side, in U, V and W alike. So with E, S of ``_ops.scan`` at half
of tau, U = (E - S) w / 2 and V = (E + S) w / 2; and with S of an endless tau, at which nothing decays, W_i - W_j =
(S_j - S_i) w / 2, since L + R is the same everywhere.

W_i - W_j cancels: an error of eps times all of the mass is more than M itself where a spans many tau, or lies far from
b. So W is exact. The weights are cut into a high and a low part, both so coarse that every sum of either is without
rounding: what lies between two anchors is then the same whatever lies elsewhere, and 0 if nothing does. Dropped is less
than 16 k^2 2^-104 of the largest weight.

With phases cos(phi_i - psi) cos(phi_j - psi) = [cos(phi_i - phi_j) + cos(phi_i + phi_j - 2 psi)] / 2, so

    M = 1/2 [cos(phi_i - phi_j) M(w) + cos(phi_i + phi_j) M(w cos 2 psi) + sin(phi_i + phi_j) M(w sin 2 psi)]

are three channels of weights; without there is one. In tensors, all float64:

    weight     (h, m, channels, k)
    sums       (h, m, channels, 4, n)     U, V, and the high and the low part of W
    direction  (h, 2, n)                  cos phi, sin phi; (h, 0, n) without phases

The derivative, for a cotangent g of M and G = g + g^T off the diagonal, g on it. With P the cosines and sines above,
every pair pulls with q = G_ij D P_ij at U_j and V_i, with q at W_i and with -q at W_j. Where a_i = a_j, U and V are
alike, and either may be pulled at: here half each. So the pull at W is that at V less that at U:

    gU_i = sum of q over j right of i       gV_i = sum of q over j left of i        gW = gV - gU

Half ties decay like all else, dU/da = -2 U / tau and dV/da = 2 V / tau: with D, the halves of a b that ties with a_i
then move M by nothing together, as the definition has it. So the anchors are pulled at with

    a_i: 1/tau sum of q (V_i - U_j - (W_i - W_j))       a_j: 1/tau sum of q (V_i - U_j + (W_i - W_j))

and the columns by the scan with sides swapped, as R of b is E + S over 2, and L is E - S over 2,

    w_bar = 1/2 [E (gU + gV) + S (gU - gV)] + 1/2 S_endless (gV - gU)          (E_endless gW = sum of gW = 0)
    b_bar = w / tau [E (gU - gV) + S (gU + gV)]                                  summed over weights and channels

Beyond the outermost a the endless sum is 0; it is written so, not computed. tau moves D, U and V, by sums in which
every term has its own sign, so that nothing cancels however far anchors lie apart. With U_1 and V_1 for U and V with
u exp(-u) in place of exp(-u), u = 2 |a - b| / tau,

    tau_bar = 1/tau [ sum over pairs of q |a_i - a_j| / tau (U_j + W_i - W_j + V_i)  +  gU . U_1  +  gV . V_1 ]
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

import torch
from torch import Tensor

from laplex import _checks
from laplex._errors import StalePlanError
from laplex._scan import ops as _ops

ENDLESS = 1e300  # a tau at which nothing decays
HUGE = 2.0**512  # weights above are looked at in this unit


def gram(
    weight: Tensor,
    direction: Tensor,
    target: Tensor,
    source: Tensor,
    tau: Tensor,
    order: _ops.Planned,
    dtype: torch.dtype,
    backend: str,
) -> tuple[Tensor, Tensor]:
    """M (h, m, n, n) in a dtype, and the sums it is made of."""
    smallest = _checks.SMALLEST_TAU_OF_SQUARES
    if not (tau.is_cuda or backend == "triton" or bool(_checks.is_length(tau, smallest).all())):
        raise ValueError(_checks.bad_tau("laplex.gram", tau, smallest))
    with _as_gram():
        sums = _sums(weight, target, source, tau, order, backend)
    return _assembly(backend, tau).assemble(sums, direction, target.double(), tau, dtype), sums


def pullback(
    g: Tensor,
    sums: Tensor,
    weight: Tensor,
    direction: Tensor,
    target: Tensor,
    source: Tensor,
    tau: Tensor,
    order: _ops.Planned,
    to_source: bool,
    to_tau: bool,
    backend: str,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """weight_bar, direction_bar, t_bar, s_bar, tau_bar in float64; empty what is not asked for."""
    pulled = _assembly(backend, tau).pull(g, sums, direction, target.double(), tau)
    channels = sums.shape[2]
    at_left, at_right, at_anchor, at_decay, at_direction = pulled.split_with_sizes(pulls(channels), 2)
    t_bar, direction_bar = at_anchor[:, :, 0].sum(1) / tau[:, None], at_direction.sum(1)
    weight_bar, s_bar, tau_bar = weight.new_empty(0), weight.new_empty(0), weight.new_empty(0)
    if to_source:
        weight_bar, s_bar = _to_source(at_left, at_right, weight, target, source, tau, order, backend)
    if to_tau:
        with _as_gram():
            left, right = _sides(weight, target, source, tau, order, 1, backend).unbind(3)
        tau_bar = (at_left * left + at_right * right).sum((1, 2, 3)) + at_decay.sum((1, 2, 3))
        tau_bar = tau_bar / tau
    return weight_bar, direction_bar, t_bar, s_bar, tau_bar


def _to_source(
    at_left: Tensor,
    at_right: Tensor,
    weight: Tensor,
    target: Tensor,
    source: Tensor,
    tau: Tensor,
    order: _ops.Planned,
    backend: str,
) -> tuple[Tensor, Tensor]:
    """weight_bar and s_bar for what is pulled at U and V, (h, m, channels, n)."""
    h, m, channels, _ = weight.shape
    both, apart = at_left + at_right, at_left - at_right
    swapped = *order[2:], *order[:2]
    scan = functools.partial(_ops.scan_now, backend=backend)
    with _as_gram():
        even, odd = scan(torch.stack([both, apart], 1).flatten(1, 3), source, target, tau / 2, *swapped, odd=True)
        _, endless = scan(apart.flatten(1, 2), source, target, _endless(tau), *swapped, odd=True)
    (even_both, even_apart), (odd_both, odd_apart) = (
        part.view(h, 2, m, channels, -1).unbind(1) for part in (even, odd)
    )
    weight_bar = (even_both + odd_apart - _inside(endless.view(weight.shape), target, source)) / 2
    return weight_bar, (weight * (even_apart + odd_both)).sum((1, 2)) / tau[:, None]


def pulls(channels: int) -> list[int]:
    """How many numbers a cotangent pulls with at each anchor: at U and V of every channel, at a, at D, at cos and sin.

    Those at D are shared out among the anchors of a pair as suits the backend: only their sum has a meaning.
    """
    return [channels, channels, 1, 1, 0 if channels == 1 else 2]


def exact_parts(weight: Tensor) -> Tensor:
    """(..., k) -> (..., 2, k): a high and a low part, of either of which every sum of up to k is exact in float64."""
    if weight.numel() == 0:
        return weight.new_zeros((*weight.shape[:-1], 2, weight.shape[-1]))
    room = 4 * weight.shape[-1]
    largest = weight.detach().abs().amax(-1, keepdim=True)
    unit = torch.ones_like(largest).masked_fill(largest > HUGE, HUGE)  # or ``coarse`` may overflow
    weight, coarse = weight / unit, room * (largest / unit)
    high = (weight + coarse) - coarse  # multiples of half an ulp of ``coarse``, whose sums stay below 2^53 of them
    fine = coarse * (room * 2.0**-52)
    return torch.stack([high, (weight - high + fine) - fine], -2) * unit[..., None]


def _sums(weight: Tensor, target: Tensor, source: Tensor, tau: Tensor, order: _ops.Planned, backend: str) -> Tensor:
    h, k = weight.shape[0], weight.shape[-1]
    sides = _sides(weight, target, source, tau, order, 0, backend)
    parts = exact_parts(weight).view(h, -1, k)
    _, endless = _ops.scan_now(parts, target, source, _endless(tau), *order, odd=True, backend=backend)
    return torch.cat([sides, -endless.view(sides.shape) / 2], 3)


def _sides(
    weight: Tensor, target: Tensor, source: Tensor, tau: Tensor, order: _ops.Planned, degree: int, backend: str
) -> Tensor:
    """U and V, or of degree 1 U_1 and V_1, (h, m, channels, 2, n)."""
    h, m, channels, k = weight.shape
    rows = weight.view(h, -1, k)
    even, odd = _ops.scan_now(rows, target, source, tau / 2, *order, odd=True, degree=degree, backend=backend)
    return torch.stack([even - odd, even + odd], 2).view(h, m, channels, 2, -1) / 2


def _endless(tau: Tensor) -> Tensor:
    return torch.full_like(tau, ENDLESS)


def _inside(sums: Tensor, target: Tensor, source: Tensor) -> Tensor:
    """The same between the outermost targets, and 0 beyond."""
    inside = (source >= target.amin(-1, keepdim=True)) & (source <= target.amax(-1, keepdim=True))
    return torch.where(inside[:, None, None], sums, 0.0)


def _assembly(backend: str, tau: Tensor) -> ModuleType:
    if backend == "dense":  # has none of its own
        backend = "triton" if tau.is_cuda and _ops.HAS_TRITON else "torch"
    return _ops.assembly(backend)


@contextmanager
def _as_gram() -> Iterator[None]:
    """Faults found by the scan, told by the name of what was called."""
    try:
        yield
    except (ValueError, StalePlanError) as error:
        raise type(error)(str(error).replace("laplex.linear", "laplex.gram")) from None
