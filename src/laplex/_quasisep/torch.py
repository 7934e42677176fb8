r"""Quasiseparable factors in plain torch, on any device: parallel in n. Results are written in place.

Every recursion is a composition of maps from one point to the next, and composition is associative, so all prefixes are
found by pairing neighbours, log n times:

    states      S -> X + F S (I - G S)^-1 F^T            the factor; P = I - S in place of S where there is no mass
    vectors     f -> F f + u                             products and solves with L
    gradients   S -> F S F^T + X                         of the factor, from the last point back

O(n r^3) work and O(n r^2) memory, in about 2 log2(n) rounds of a few calls. The same sums as in C++, in another order.
What is composed is not as stable as what is solved in turn: for Gram matrices the states and the solves with L are
corrected afterwards, by what they leave of the equations of one step.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

ENOUGH = 1e-7  # of the matrix's own diagonal: with so much added, maps compose without much loss
ROUNDS = 8  # of Newton's method, from there to the diagonal given
Maps = tuple[Tensor, ...]  # (h, n, ...), one map a point
Compose = Callable[[Maps, Maps], Maps]  # of the earlier and the later


def factor(
    decay: Tensor, p: Tensor, q: Tensor, mass: Tensor, diag: Tensor, d: Tensor, z: Tensor, states: Tensor
) -> None:
    """A = L diag(d) L^T, as ``_solve_ops`` describes it."""
    if mass.shape[-1]:
        steps = _steps(decay, p, mass)
        after = _guess(steps, p, q, diag)
        for _ in range(ROUNDS):
            after = _symmetric(after + _correction(steps, p, q, diag, after))
        state = steps @ _before(after) @ steps.mT
        c = q - (state @ p[..., None])[..., 0]
    else:  # nothing is subtracted: P = rho^2 P + kappa I of the point before, then P - c c^T / d
        kappa = (-decay * (2 + decay))[..., None, None]
        rho = (1 + decay)[..., None, None]
        added = diag[..., None, None]
        kept = _beside(p) + _outer(p, p) * (added / _nonzero(kappa + added))
        maps = rho * kept, -(rho * rho) * _outer(p, p) / _nonzero(kappa + added), kappa * kept
        before = _before(_prefixes(_compose_states, maps)[2])
        state = rho * rho * before + kappa * _eye(p)
        c = (state @ p[..., None])[..., 0]
    d.copy_(diag + (p * c).sum(-1))
    z.copy_(c / d[..., None])
    if states.numel():
        states.copy_(state)


def _guess(steps: Tensor, p: Tensor, q: Tensor, diag: Tensor) -> Tensor:
    """S + d z z^T of every point, for a diagonal that is large enough."""
    entries = (p * q).sum(-1)
    whole = (entries + diag.maximum(ENOUGH * entries))[..., None, None]
    maps = (_eye(p) - _outer(q, p) / whole) @ steps, steps.mT @ (_outer(p, p) / whole) @ steps, _outer(q, q) / whole
    return _prefixes(_compose_states, maps)[2]


def _correction(steps: Tensor, p: Tensor, q: Tensor, diag: Tensor, after: Tensor) -> Tensor:
    """Newton's step: what one step of the recursion leaves, carried on by its derivative, (I - z p^T) T both sides."""
    state = steps @ _before(after) @ steps.mT
    c = q - (state @ p[..., None])[..., 0]
    d = (diag + (p * c).sum(-1))[..., None]
    left = state + _outer(c, c / d) - after
    return _prefixes(_compose_gradients, ((_eye(p) - _outer(c / d, p)) @ steps, left))[1]


def factor_pullback(
    decay: Tensor,
    p: Tensor,
    mass: Tensor,
    d: Tensor,
    z: Tensor,
    states: Tensor,
    d_bar: Tensor,
    z_bar: Tensor,
    p_bar: Tensor,
    q_bar: Tensor,
    mass_bar: Tensor,
    diag_bar: Tensor,
    gap_bar: Tensor,
) -> None:
    """The gradients of what ``factor`` was given."""
    steps, over = _steps(decay, p, mass), d[..., None]
    own = d_bar - (z * z_bar).sum(-1) / d  # the gradients of d and c that no later point adds to
    c_own = z_bar / over + own[..., None] * p
    held = steps.mT @ (_eye(p) - _outer(p, z))
    maps = held, -steps.mT @ _symmetric(_outer(c_own, p)) @ steps
    turned = tuple(part.flip(1) for part in maps)
    sigma = _before(_prefixes(_compose_gradients, turned)[1]).flip(1)  # of S + d z z^T
    pulled = (sigma @ z[..., None])[..., 0]
    diag_bar.copy_(own - (z * pulled).sum(-1))
    q_bar.copy_(z_bar / over + 2 * pulled + diag_bar[..., None] * p)
    state = states if mass.shape[-1] else _eye(p) - states
    p_bar.copy_(diag_bar[..., None] * over * z - (state @ q_bar[..., None])[..., 0])
    after = _before(state + d[..., None, None] * _outer(z, z))
    state_bar = sigma - _symmetric(_outer(q_bar, p))
    gap_bar.copy_(2 * (state_bar * (steps @ after @ steps.mT)).sum((-2, -1)))  # S again: in I - S a small one is lost
    if mass.shape[-1]:
        _pack(2 * decay[..., None, None] * (state_bar @ steps @ after), mass_bar)


def sweep(
    decay: Tensor, p: Tensor, z: Tensor, mass: Tensor, x: Tensor, y: Tensor, *, transposed: bool, inverse: bool
) -> None:
    """y = L x, L^T x, L^-1 x or L^-T x for x (h, n, m)."""
    steps = _steps(decay, p, mass)
    reads, writes, given = p, z, x
    if transposed:  # from the last point back, by the steps into the points after
        steps = torch.cat([steps[:, 1:], torch.zeros_like(steps[:, :1])], 1).mT.flip(1)
        reads, writes, given = z.flip(1), p.flip(1), x.flip(1)
    result = _swept(steps, reads, writes, given, inverse)
    if inverse and mass.shape[-1]:
        # Composed, (I - w r^T) T loses digits that T, in products, does not: what is left is solved for once more.
        left = given - _swept(steps, reads, writes, result, False)
        result = result + _swept(steps, reads, writes, left, True)
    y.copy_(result.flip(1) if transposed else result)


def solve(decay: Tensor, p: Tensor, z: Tensor, mass: Tensor, d: Tensor, order: Tensor, y: Tensor, x: Tensor) -> None:
    """x = L^-T diag(d)^-1 L^-1 y, for y and x (h, n, m) in the caller's order, whose rows ``order`` (h, n) names."""
    index = order[..., None].expand(y.shape)
    inner, outer = torch.empty_like(y), torch.empty_like(y)
    sweep(decay, p, z, mass, y.gather(1, index), inner, transposed=False, inverse=True)
    sweep(decay, p, z, mass, inner / d[..., None], outer, transposed=True, inverse=True)
    x.scatter_(1, index, outer)


def sweep_pullback(
    decay: Tensor,
    p: Tensor,
    z: Tensor,
    mass: Tensor,
    left: Tensor,
    right: Tensor,
    p_bar: Tensor,
    z_bar: Tensor,
    mass_bar: Tensor,
    gap_bar: Tensor,
) -> None:
    """The gradients of the sum over i > j of left_i L_ij right_j, and over the columns of left and right (h, n, m)."""
    steps = _steps(decay, p, mass)
    later = torch.cat([steps[:, 1:], torch.zeros_like(steps[:, :1])], 1).mT
    from_left = _states(steps, p, z, right, False)  # (h, n, r, m), right of every point
    from_right = _states(later.flip(1), z.flip(1), p.flip(1), left.flip(1), False).flip(1)  # left of it
    before = _before(from_left)
    arriving = steps @ before
    p_bar.copy_((arriving * left[..., None, :]).sum(-1))
    gap_bar.copy_((from_right * arriving).sum((-2, -1)))
    after = torch.cat([from_right[:, 1:], torch.zeros_like(from_right[:, :1])], 1)
    z_bar.copy_((later @ after * right[..., None, :]).sum(-1))
    if mass.shape[-1]:
        _pack(decay[..., None, None] * (from_right @ before.mT), mass_bar)


def _swept(steps: Tensor, reads: Tensor, writes: Tensor, x: Tensor, inverse: bool) -> Tensor:
    """x + r^T T f, or x - r^T T f, of f after the point before."""
    read = (reads[..., None, :] @ steps @ _before(_states(steps, reads, writes, x, inverse)))[..., 0, :]
    return x - read if inverse else x + read


def _states(steps: Tensor, reads: Tensor, writes: Tensor, x: Tensor, inverse: bool) -> Tensor:
    """f (h, n, r, m) after every point: f <- T f + w x, or (I - w r^T) T f + w x."""
    moves = (_eye(reads) - _outer(writes, reads)) @ steps if inverse else steps
    return _prefixes(_compose_vectors, (moves, writes[..., None] * x[..., None, :]))[1]


def _prefixes(compose: Compose, maps: Maps) -> Maps:
    """The compositions of the maps up to every point, by pairs, pairs of pairs, and so on."""
    n = maps[0].shape[1]
    if n < 2:
        return maps
    even, odd = tuple(part[:, 0::2] for part in maps), tuple(part[:, 1::2] for part in maps)
    up_to_odd = _prefixes(compose, compose(tuple(part[:, : n // 2] for part in even), odd))
    earlier = tuple(part[:, : (n - 1) // 2] for part in up_to_odd)
    up_to_even = compose(earlier, tuple(part[:, 1:] for part in even))
    made = []
    for part, evens, odds in zip(maps, up_to_even, up_to_odd):
        whole = torch.empty_like(part)
        whole[:, 0], whole[:, 2::2], whole[:, 1::2] = part[:, 0], evens, odds
        made.append(whole)
    return tuple(made)


def _compose_states(one: Maps, two: Maps) -> Maps:
    (f1, g1, x1), (f2, g2, x2) = one, two
    between = torch.linalg.inv_ex(_eye(x1[..., 0]) - x1 @ g2).inverse  # (I - X1 G2)^-1; NaN, no error, if singular
    through = f2 @ between
    return through @ f1, g1 + f1.mT @ g2 @ between @ f1, x2 + through @ x1 @ f2.mT


def _compose_vectors(one: Maps, two: Maps) -> Maps:
    return two[0] @ one[0], two[0] @ one[1] + two[1]


def _compose_gradients(one: Maps, two: Maps) -> Maps:
    return two[0] @ one[0], two[0] @ one[1] @ two[0].mT + two[1]


def _before(states: Tensor) -> Tensor:
    """The states (h, n, ...) of the point before; 0 for the first."""
    return torch.cat([torch.zeros_like(states[:, :1]), states[:, :-1]], 1)


def _steps(decay: Tensor, p: Tensor, mass: Tensor) -> Tensor:
    """T (h, n, r, r)."""
    block = {0: 0, 1: 1, 3: 2}[mass.shape[-1]]
    shears = _eye(p).expand(*p.shape, p.shape[-1]).clone()
    if block == 1:
        shears[..., 0, 1] = mass[..., 0]
    if block == 2:
        one, both, two = mass.unbind(-1)
        shears[..., :2, 2:] = torch.stack([one, both, both, two], -1).unflatten(-1, (2, 2))
    return shears * (decay if block else 1 + decay)[..., None, None]


def _pack(full: Tensor, mass_bar: Tensor) -> None:
    """The gradient of T's upper right block, as that of W's packed entries; the first point has no gap before it."""
    block = full.shape[-1] // 2
    w_bar = full[..., :block, block:]
    entries = [w_bar[..., 0, 0]]
    if block == 2:
        entries += [w_bar[..., 0, 1] + w_bar[..., 1, 0], w_bar[..., 1, 1]]
    mass_bar.copy_(torch.stack(entries, -1))
    mass_bar[:, 0] = 0


def _eye(p: Tensor) -> Tensor:
    return torch.eye(p.shape[-1], dtype=p.dtype, device=p.device)


def _outer(one: Tensor, two: Tensor) -> Tensor:
    return one[..., :, None] * two[..., None, :]


def _symmetric(matrix: Tensor) -> Tensor:
    return (matrix + matrix.mT) / 2


def _beside(p: Tensor) -> Tensor:
    """I - p p^T for p of length 1, without the subtraction."""
    if p.shape[-1] == 1:
        return torch.zeros_like(p)[..., None]
    normal = torch.stack([-p[..., 1], p[..., 0]], -1)
    return _outer(normal, normal)


def _nonzero(x: Tensor) -> Tensor:
    """For a division by what is 0 only where the matrix is singular, as its d will tell."""
    return torch.where(x == 0, torch.finfo(x.dtype).tiny, x)
