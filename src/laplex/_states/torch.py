"""The recursions in plain torch, by parallel scans: on any device, and under all transforms of torch.func."""

from __future__ import annotations

import torch
from torch import Tensor

from laplex._prefixes import compose_matrices, compose_states, compose_vectors, following, prefixes, previous
from laplex._small import outer, symmetric

REFINEMENTS = 2  # of the factor, by Newton's method: composed maps lose more digits than a walk from point to point


def scan(steps: Tensor, source: Tensor, reverse: bool) -> Tensor:
    """f_n = T_n f_{n-1} + u_n, or in reverse f_n = T_{n+1}^T f_{n+1} + u_n; source and result (h, n, s, m)."""
    if reverse:
        return prefixes(compose_vectors, (following(steps).mT.flip(1), source.flip(1)))[1].flip(1)
    return prefixes(compose_vectors, (steps, source))[1]


def scan_matrices(steps: Tensor, source: Tensor, reverse: bool) -> Tensor:
    """Z_n = T_n Z_{n-1} T_n^T + X_n, or in reverse Z_n = T_{n+1}^T Z_{n+1} T_{n+1} + X_n; X (h, n, s, s) symmetric."""
    if reverse:
        return prefixes(compose_matrices, (following(steps).mT.flip(1), source.flip(1)))[1].flip(1)
    return prefixes(compose_matrices, (steps, source))[1]


def factor(steps: Tensor, p: Tensor, q: Tensor, diag: Tensor) -> tuple[Tensor, Tensor]:
    r"""S (h, n, s, s) before every point, and for every series the first point without a positive pivot, or -1.

    A point and the step that follows it map S to

        T (S + c c^T / d) T^T = X + F S (I - G S)^-1 F^T        with e = p^T q + diag,
        F = T (I - q p^T / e)        G = p p^T / e        X = T q q^T T^T / e

    Maps of this form compose to such maps. Then Newton's method inserts the result into the recursion of one step, and
    corrects it by what that leaves: a correction Z obeys Z_{n+1} = J Z_n J^T + left, J = T (I - w p^T).
    """
    units = _units(p, q)
    rows, cols = units[..., :, None], units[..., None, :]
    steps, p, q = steps * cols / rows, p * units, q / units
    over = 1 / ((p * q).sum(-1) + diag)[..., None, None]
    unit = torch.eye(p.shape[-1], dtype=p.dtype, device=p.device)
    onward = following(steps)  # from every point to the next; nothing follows the last
    pushed = onward @ q[..., None]
    maps = onward @ (unit - outer(q, p) * over), outer(p, p) * over, pushed @ pushed.mT * over
    states = previous(prefixes(compose_states, maps)[2])
    for _ in range(REFINEMENTS):
        states = states + _correction(states, steps, p, q, diag)
        states = symmetric(states)
    d = diag + (p * (q - (states @ p[..., None])[..., 0])).sum(-1)
    bad = ~(d.detach() > 0)
    failed = torch.where(bad.any(-1), bad.to(torch.int8).argmax(-1), -1)
    return states * rows * cols, failed


def _units(p: Tensor, q: Tensor) -> Tensor:
    """Units (h, 1, s) of the states, powers of 2, without a graph, in which the entries of G S are alike in size: what
    inverts I - G S loses the digits of those that are small next to others. A slot of an exposure has the unit of time.
    """
    deviation = (p * q).detach().sum(-1).amax(-1).sqrt()
    sizes = q.detach().abs().amax(-2, keepdim=True) / deviation[..., None, None]
    return torch.where((sizes > 0) & sizes.isfinite(), sizes, 1.0).log2().round().exp2()


def _correction(states: Tensor, steps: Tensor, p: Tensor, q: Tensor, diag: Tensor) -> Tensor:
    c = q - (states @ p[..., None])[..., 0]
    w = c / (diag + (p * c).sum(-1))[..., None]
    left = steps @ previous(states + outer(c, w)) @ steps.mT - states
    loops = steps - (steps @ previous(w)[..., None]) @ previous(p)[..., None, :]
    left = torch.cat([-states[:, :1], left[:, 1:]], 1)
    return prefixes(compose_matrices, (loops, left))[1]
