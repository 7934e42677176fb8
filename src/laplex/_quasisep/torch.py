r"""The operators in plain torch, on any device, by parallel scans over the points. Results are written in place.

Every recursion of the package's docstring applies one map per point to a state. Maps of the same form compose to a map
of that form, and composition is associative, so a parallel scan (``laplex._prefixes``) finds the states after all
points in about 2 log2(n) rounds of a few calls: O(n r^3) work and O(n r^2) memory.

    factor        S+ -> X + F S+ (I - G S+)^-1 F^T      S+ is the state after a point, S+ = S + d z z^T; for K it is P+
    sweep         f  -> F f + u
    gradients     Z  -> F Z F^T + X

The sums are those of C++ in another order. Composed maps lose more digits than a walk from point to point. For K the
loss is harmless. For Gram matrices, ``factor`` and ``sweep`` insert their result into the recursion of one step and
correct it by what that step leaves.
"""

from __future__ import annotations

import torch
from torch import Tensor

from laplex._prefixes import compose_matrices, compose_states, compose_vectors, following, prefixes, previous
from laplex._quasisep.arrays import BLOCK, Chain, ChainBars, MatrixBars, Pivots, Quasiseparable
from laplex._small import outer, symmetric

# Newton's method for the factor of a Gram matrix (``_factor_gram``). benchmarks/studies/refinement.py has the figures.
#
# It starts from the factor of the same matrix with diag raised to ENOUGH of its entries, which composition finds. The
# inverse in ``compose_states`` then has a condition number of up to 1 / ENOUGH, so composed maps have errors of about
# eps / ENOUGH of the entries. Pivots may be as small as ENOUGH of the entries, so their relative errors are about
# eps / ENOUGH^2: 0.02 for 1e-7, and 2 for 1e-8. Measured, with phases: 0.005 and 0.4. So 1e-7 is the smallest power of
# ten that leaves a digit to start from.
ENOUGH = 1e-7

# Where diag is at least ENOUGH of the entries, the start solves the same equations, and 3 to 5 rounds remove its
# rounding errors. Where diag is smaller, the pivots of the start are too large. The model of this case is a run of
# equal points. The variance P of a point, given the points before it, obeys 1 / P+ = 1 / P + 1 / diag, so P = diag / i
# after i points. Newton's method gives diag / (2^k - 1) after k rounds, for i between 2^k and ENOUGH / diag; for larger
# i the start is good enough. So about log2(ENOUGH / diag) rounds halve the error, and one or two more converge
# quadratically: 8 rounds for diag = 1e-9 of the entries. Measured there, without phases: errors of the pivots are below
# 1e-5 in clusters of 200 points and below 0.01 in clusters of 6000; ``autograd.solve`` then refines the solution once.
# With phases and clusters of 6000 points, 1e-6 is needed. Below these limits pivots may be wrong, as GramOperator says.
ROUNDS = 8


def factor(matrix: Quasiseparable, pivots: Pivots) -> None:
    """A = L diag(d) L^T."""
    p, diag = matrix.p, matrix.diag
    state, c = _factor_gram(matrix) if matrix.mass.shape[-1] else _factor_kernel(matrix)
    pivots.d.copy_(diag + (p * c).sum(-1))
    pivots.z.copy_(c / pivots.d[..., None])
    if pivots.states.numel():
        pivots.states.copy_(state)


def factor_pullback(chain: Chain, d: Tensor, states: Tensor, d_bar: Tensor, z_bar: Tensor, bars: MatrixBars) -> None:
    r"""The gradients of what A is made of, from those of d and z.

    The reverse of one point's c = q - S p, d = diag + p^T c, z = c / d, S+ = S + d z z^T, given sigma, the gradient of
    S+ that the later points make:

        d_bar' = d_bar - z^T z_bar / d - z^T sigma z                                    = diag_bar
        c_bar  = z_bar / d + 2 sigma z + d_bar' p                                       = q_bar
        p_bar  = d_bar' c - S c_bar
        S_bar  = sigma - (c_bar p^T + p c_bar^T) / 2,      sigma of the point before = T^T S_bar T

    Without the terms of sigma, d_bar' and c_bar are called ``own`` and ``c_own``. The terms of sigma add up to

        S_bar = (I - p z^T) sigma (I - z p^T) - (c_own p^T + p c_own^T) / 2

    so sigma is a recursion of the form Z -> F Z F^T + X from the last point back.
    """
    decay, p, z, mass = chain
    steps, over = _steps(chain), d[..., None]
    own = d_bar - (z * z_bar).sum(-1) / d
    c_own = z_bar / over + own[..., None] * p
    held = steps.mT @ (_eye(p) - outer(p, z))
    maps = held, -steps.mT @ symmetric(outer(c_own, p)) @ steps
    turned = tuple(part.flip(1) for part in maps)
    sigma = previous(prefixes(compose_matrices, turned)[1]).flip(1)
    pulled = (sigma @ z[..., None])[..., 0]
    bars.diag.copy_(own - (z * pulled).sum(-1))
    bars.q.copy_(z_bar / over + 2 * pulled + bars.diag[..., None] * p)
    state = states if mass.shape[-1] else _eye(p) - states
    bars.p.copy_(bars.diag[..., None] * over * z - (state @ bars.q[..., None])[..., 0])
    after = previous(state + d[..., None, None] * outer(z, z))
    state_bar = sigma - symmetric(outer(bars.q, p))
    # <S_bar, S>, where S is made again from S+ of the point before: I - P has lost its digits where S is small.
    bars.gap.copy_(2 * (state_bar * (steps @ after @ steps.mT)).sum((-2, -1)))
    if mass.shape[-1]:
        _pack(2 * decay[..., None, None] * (state_bar @ steps @ after), bars.mass)


def sweep(chain: Chain, x: Tensor, y: Tensor, *, transposed: bool, inverse: bool) -> None:
    """y = L x, L^T x, L^-1 x or L^-T x, for x (h, n, m)."""
    steps = _steps(chain)
    reads, writes, operand = chain.p, chain.z, x
    if transposed:  # from the last point back: the step that leads to point i comes from point i + 1
        steps = following(steps).mT.flip(1)
        reads, writes, operand = chain.z.flip(1), chain.p.flip(1), x.flip(1)
    result = _swept(steps, reads, writes, operand, inverse)
    if inverse and chain.mass.shape[-1]:
        # Products of T keep their digits, products of (I - w r^T) T do not: one step of iterative refinement.
        left = operand - _swept(steps, reads, writes, result, False)
        result = result + _swept(steps, reads, writes, left, True)
    y.copy_(result.flip(1) if transposed else result)


def solve(chain: Chain, d: Tensor, order: Tensor, y: Tensor, x: Tensor) -> None:
    """x = L^-T diag(d)^-1 L^-1 y, for y and x (h, n, m) in the caller's order."""
    rows = order[..., None].expand(y.shape)
    inner, solved = torch.empty_like(y), torch.empty_like(y)
    sweep(chain, y.gather(1, rows), inner, transposed=False, inverse=True)
    sweep(chain, inner / d[..., None], solved, transposed=True, inverse=True)
    x.scatter_(1, rows, solved)


def sweep_pullback(chain: Chain, left: Tensor, right: Tensor, bars: ChainBars) -> None:
    r"""The gradients of the sum over i > j, and over columns, of left_i L_ij right_j, for left and right (h, n, m).

    L_ij = p_i^T T_i ... T_{j+1} z_j. With f_i the state of the sweep of right up to and including point i, and g_i that
    of the sweep of left from the last point down to and including point i:

        p_bar_i = left_i T_i f_{i-1}        z_bar_i = right_i T_{i+1}^T g_{i+1}        T_bar_i = g_i f_{i-1}^T
    """
    steps = _steps(chain)
    later = following(steps).mT
    from_left = _states(steps, chain.p, chain.z, right, False)  # f (h, n, r, m)
    from_right = _states(later.flip(1), chain.z.flip(1), chain.p.flip(1), left.flip(1), False).flip(1)  # g
    before = previous(from_left)
    arriving = steps @ before
    bars.p.copy_((arriving * left[..., None, :]).sum(-1))
    bars.gap.copy_((from_right * arriving).sum((-2, -1)))
    bars.z.copy_((later @ following(from_right) * right[..., None, :]).sum(-1))
    if chain.mass.shape[-1]:
        _pack(chain.decay[..., None, None] * (from_right @ before.mT), bars.mass)


def _factor_kernel(matrix: Quasiseparable) -> tuple[Tensor, Tensor]:
    """P (h, n, r, r) and c (h, n, r) of K, from kappa = 1 - rho^2 and without a difference.

    P = rho^2 P+ + kappa I with P+ of the point before, then P+ = P - c c^T / d, c = P p, d = diag + p^T P p.
    """
    decay, p, _, _, diag = matrix
    kappa = (-decay * (2 + decay))[..., None, None]
    rho = (1 + decay)[..., None, None]
    added = diag[..., None, None]
    through = _orthogonal(p) + outer(p, p) * (added / _nonzero(kappa + added))
    maps = rho * through, -(rho * rho) * outer(p, p) / _nonzero(kappa + added), kappa * through
    before = previous(prefixes(compose_states, maps)[2])
    state = rho * rho * before + kappa * _eye(p)
    return state, (state @ p[..., None])[..., 0]


def _factor_gram(matrix: Quasiseparable) -> tuple[Tensor, Tensor]:
    """S (h, n, r, r) and c (h, n, r) of a Gram matrix: a guess, improved by Newton's method."""
    steps = _steps(matrix)
    after = _guess(matrix, steps)
    for _ in range(ROUNDS):
        after = symmetric(after + _correction(matrix, steps, after))
    state = steps @ previous(after) @ steps.mT
    return state, matrix.q - (state @ matrix.p[..., None])[..., 0]


def _guess(matrix: Quasiseparable, steps: Tensor) -> Tensor:
    """S+ (h, n, r, r) of the matrix whose diagonal is at least ENOUGH of its entries, by composition."""
    p, q, diag = matrix.p, matrix.q, matrix.diag
    entries = (p * q).sum(-1)
    pivot = (entries + diag.maximum(ENOUGH * entries))[..., None, None]
    maps = (_eye(p) - outer(q, p) / pivot) @ steps, steps.mT @ (outer(p, p) / pivot) @ steps, outer(q, q) / pivot
    return prefixes(compose_states, maps)[2]


def _correction(matrix: Quasiseparable, steps: Tensor, after: Tensor) -> Tensor:
    """Newton's step for the n equations S+_i = step_i(S+_{i-1}).

    ``left`` is what S+ leaves of the equations. The derivative of step_i is Z -> J Z J^T with J = (I - z p^T) T, so the
    correction is the recursion Z_i = J_i Z_{i-1} J_i^T + left_i.
    """
    p, q, diag = matrix.p, matrix.q, matrix.diag
    state = steps @ previous(after) @ steps.mT
    c = q - (state @ p[..., None])[..., 0]
    d = (diag + (p * c).sum(-1))[..., None]
    left = state + outer(c, c / d) - after
    return prefixes(compose_matrices, ((_eye(p) - outer(c / d, p)) @ steps, left))[1]


def _swept(steps: Tensor, reads: Tensor, writes: Tensor, x: Tensor, inverse: bool) -> Tensor:
    """x + r^T T f, or x - r^T T f if inverse, with f the state after the point before."""
    read = (reads[..., None, :] @ steps @ previous(_states(steps, reads, writes, x, inverse)))[..., 0, :]
    return x - read if inverse else x + read


def _states(steps: Tensor, reads: Tensor, writes: Tensor, x: Tensor, inverse: bool) -> Tensor:
    """f (h, n, r, m) after every point: f <- T f + w x, or f <- (I - w r^T) T f + w x if inverse."""
    moves = (_eye(reads) - outer(writes, reads)) @ steps if inverse else steps
    return prefixes(compose_vectors, (moves, writes[..., None] * x[..., None, :]))[1]


def _steps(arrays: Quasiseparable | Chain) -> Tensor:
    """T (h, n, r, r)."""
    decay, p, _, mass, *_ = arrays
    block = BLOCK[mass.shape[-1]]
    shears = _eye(p).expand(*p.shape, p.shape[-1]).clone()
    if block == 1:
        shears[..., 0, 1] = mass[..., 0]
    if block == 2:
        one, both, two = mass.unbind(-1)
        shears[..., :2, 2:] = torch.stack([one, both, both, two], -1).unflatten(-1, (2, 2))
    return shears * (decay if block else 1 + decay)[..., None, None]


def _pack(shear_bar: Tensor, mass_bar: Tensor) -> None:
    """The gradient of W's packed entries, from that of [[I, W], [0, I]]; 0 for the first point, which has no gap."""
    block = shear_bar.shape[-1] // 2
    w_bar = shear_bar[..., :block, block:]
    entries = [w_bar[..., 0, 0]]
    if block == 2:
        entries += [w_bar[..., 0, 1] + w_bar[..., 1, 0], w_bar[..., 1, 1]]
    mass_bar.copy_(torch.stack(entries, -1))
    mass_bar[:, 0] = 0


def _eye(p: Tensor) -> Tensor:
    return torch.eye(p.shape[-1], dtype=p.dtype, device=p.device)


def _orthogonal(p: Tensor) -> Tensor:
    """I - p p^T for p of length 1, without the subtraction."""
    if p.shape[-1] == 1:
        return torch.zeros_like(p)[..., None]
    normal = torch.stack([-p[..., 1], p[..., 0]], -1)
    return outer(normal, normal)


def _nonzero(x: Tensor) -> Tensor:
    """x to divide by. It is 0 only where the matrix is singular, and there d = 0 reports that."""
    return torch.where(x == 0, torch.finfo(x.dtype).tiny, x)
