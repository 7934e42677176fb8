r"""A Gaussian process as a chain of states: factor, solve, predict and sample, in O(n), differentiable to any order.

All arrays are float64. Three recursions (``scan``, ``scan_matrices``, ``factor``) walk over the points; everything else
acts on all points at once. Each recursion's derivative is again one of them, which is why all orders work.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from laplex._prefixes import following, previous
from laplex._small import outer, product, symmetric, times
from laplex._states import torch as portable
from laplex._states.fast import module_for


class Chain(NamedTuple):
    """A symmetric matrix A, A_nm = p_n^T T_n ... T_{m+1} q_m for n > m and A_nn = p_n^T q_n + diag_n, for h series."""

    steps: Tensor  # (h, n, s, s): T_n leads from point n - 1 to point n
    p: Tensor  # (h, n, s)
    q: Tensor  # (h, n, s)
    diag: Tensor  # (h, n): infinite where nothing is observed

    def variance(self) -> Tensor:
        """The largest p^T q of each series, (h,), without gradients."""
        return (self.p.detach() * self.q.detach()).sum(-1).amax(-1)

    def is_finite(self) -> bool:
        """Whether all numbers are finite, those of diag aside."""
        return all(bool(part.isfinite().all()) for part in (self.steps, self.p, self.q))

    def apply(self, x: Tensor) -> Tensor:
        """(A - diag) x for x (h, n, m)."""
        arriving = scan(self.steps, self.q[..., None] * x[..., None, :])  # with the point's own q x
        returning = scan(self.steps, self.p[..., None] * x[..., None, :], reverse=True)
        later = product(following(self.steps).mT, following(returning))
        return (self.p[..., None] * arriving + self.q[..., None] * later).sum(-2)


# --- The recursions --------------------------------------------------------------------------------------------------


def scan(steps: Tensor, source: Tensor, *, reverse: bool = False) -> Tensor:
    """f_n = T_n f_{n-1} + u_n, or in reverse f_n = T_{n+1}^T f_{n+1} + u_n; source and result (h, n, s, m)."""
    module = _module(steps, source)
    if module is not None:
        result: Tensor = _Scan.apply(steps, source, reverse, module)
        return result
    return portable.scan(steps, source, reverse)


def scan_matrices(steps: Tensor, source: Tensor, *, reverse: bool = False) -> Tensor:
    """Z_n = T_n Z_{n-1} T_n^T + X_n, or in reverse Z_n = T_{n+1}^T Z_{n+1} T_{n+1} + X_n; X (h, n, s, s) symmetric."""
    module = _module(steps, source)
    if module is not None:
        result: Tensor = _ScanMatrices.apply(steps, source, reverse, module)
        return result
    return portable.scan_matrices(steps, source, reverse)


def _factor(chain: Chain) -> tuple[Tensor, Tensor]:
    """S (h, n, s, s) before every point, and the first point of every series without a positive pivot, or -1."""
    module = _module(*chain)
    if module is not None:
        states, failed = _Factor.apply(*chain, module)
        return states, failed
    return portable.factor(*chain)


def _module(*tensors: Tensor) -> ModuleType | None:
    """The compiled module for this many states, ``cpp`` or one like it; None for ``portable``."""
    module = module_for(*tensors)
    return module if module is not None and tensors[0].shape[-1] <= module.MAX_CHAIN else None


# For f_n = T_n f_{n-1} + u_n, u_bar is g scanned in reverse, and T_bar_n = u_bar_n f_{n-1}^T. For the reverse scan,
# u_bar is g scanned forward, and T_bar_n = f_n u_bar_{n-1}^T.


class _Scan(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, steps: Tensor, source: Tensor, reverse: bool, module: Any) -> Tensor:
        result: Tensor = module.scan(steps, source, reverse)
        ctx.save_for_backward(steps, result)
        ctx.reverse = reverse
        return result

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor, None, None]:
        steps, f = ctx.saved_tensors
        u_bar = scan(steps, g, reverse=not ctx.reverse)
        steps_bar = product(f, previous(u_bar).mT) if ctx.reverse else product(u_bar, previous(f).mT)
        return steps_bar, u_bar, None, None


# Likewise Z_n = T_n Z_{n-1} T_n^T + X_n has T_bar_n = 2 X_bar_n T_n Z_{n-1}, and its reverse T_bar_n = 2 Z_n T_n
# X_bar_{n-1}.


class _ScanMatrices(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, steps: Tensor, source: Tensor, reverse: bool, module: Any) -> Tensor:
        result: Tensor = module.scan_matrices(steps, source, reverse)
        ctx.save_for_backward(steps, result)
        ctx.reverse = reverse
        return result

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor, None, None]:
        steps, z = ctx.saved_tensors
        x_bar = scan_matrices(steps, symmetric(g), reverse=not ctx.reverse)
        first, last = (z, previous(x_bar)) if ctx.reverse else (x_bar, previous(z))
        return 2 * product(product(first, steps), last), x_bar, None, None


# A point computes c = q - S p, d = diag + p^T c, w = c / d, and the step after it S' = T (S + c c^T / d) T^T. A change
# dS changes S' by J dS J^T with J = T (I - w p^T). So the gradients of all S' are G scanned in reverse with J; call
# them L, and let sigma = T^T L T. Then
#
#     T_bar = 2 L T (S + c c^T / d)        diag_bar = d_bar = -w^T sigma w        q_bar = c_bar = 2 sigma w + d_bar p
#     p_bar = d_bar c - S c_bar


class _Factor(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, steps: Tensor, p: Tensor, q: Tensor, diag: Tensor, module: Any) -> tuple[Tensor, Tensor]:
        states, failed = module.factor(steps, p, q, diag)
        ctx.save_for_backward(steps, p, q, diag, states)
        ctx.mark_non_differentiable(failed)
        return states, failed

    @staticmethod
    def backward(ctx: Any, g: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
        steps, p, q, diag, states = ctx.saved_tensors
        factored = factored_from(Chain(steps, p, q, diag), states)
        c, w = factored.c, factored.w
        pulled = scan_matrices(factored.loops, symmetric(g), reverse=True)
        steps_bar = 2 * product(product(pulled, steps), previous(states + outer(c, w)))
        onward = following(steps)
        sigma_w = times(product(onward.mT, product(following(pulled), onward)), w)
        d_bar = -(w * sigma_w).sum(-1)
        c_bar = 2 * sigma_w + d_bar[..., None] * p
        return steps_bar, d_bar[..., None] * c - times(states, c_bar), c_bar, d_bar, None


# --- What is made of them --------------------------------------------------------------------------------------------


class Factored(NamedTuple):
    """A = L diag(d) L^T, with ones on the diagonal of L and L_nm = p_n^T T_n ... T_{m+1} w_m for n > m."""

    chain: Chain
    states: Tensor  # (h, n, s, s): S, by how much the points before reduce the covariance of the states
    c: Tensor  # (h, n, s): the covariance of the value at a point with the state, given the points before
    d: Tensor  # (h, n): the variance of the value given the points before; infinite where nothing is observed
    over_d: Tensor  # (h, n): 1 / d
    w: Tensor  # (h, n, s)
    loops: Tensor  # (h, n, s, s): J_n = T_n (I - w_{n-1} p_{n-1}^T)

    def whiten(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """z = L^-1 y for y (h, n, m), and the means f (h, n, s, m) of the states before every point."""
        pushed = product(self.chain.steps, previous(self.w[..., None] * y[..., None, :]))
        f = scan(self.loops, pushed)
        return y - (self.chain.p[..., None] * f).sum(-2), f

    def colour(self, x: Tensor) -> Tensor:
        """L x for x (h, n, m)."""
        pushed = product(self.chain.steps, previous(self.w[..., None] * x[..., None, :]))
        return x + (self.chain.p[..., None] * scan(self.chain.steps, pushed)).sum(-2)

    def roots(self) -> Tensor:
        """sqrt(d), (h, n); 1 where nothing is observed."""
        return torch.where(self.over_d == 0, 1.0, self.d).sqrt()

    def gather(self, z: Tensor) -> Tensor:
        """r (h, n, s, m): the information from a point and those after it about its state, from z = L^-1 y."""
        return scan(self.loops, self.chain.p[..., None] * (z * self.over_d[..., None])[..., None, :], reverse=True)

    def information(self) -> Tensor:
        """N (h, n, s, s): the information from a point and those after it, as an inverse covariance."""
        source = outer(self.chain.p, self.chain.p) * self.over_d[..., None, None]
        return scan_matrices(self.loops, source, reverse=True)

    def solve(self, y: Tensor) -> Tensor:
        """A^-1 y for y (h, n, m); 0 where nothing is observed."""
        z, _ = self.whiten(y)
        later = product(following(self.chain.steps).mT, following(self.gather(z)))
        return z * self.over_d[..., None] - (self.w[..., None] * later).sum(-2)

    def inverse_diagonal(self) -> Tensor:
        """The diagonal of A^-1, (h, n)."""
        onward = following(self.chain.steps)
        later = product(onward.mT, product(following(self.information()), onward))
        return self.over_d + (self.w * times(later, self.w)).sum(-1)


def factorise(chain: Chain) -> tuple[Factored, Tensor]:
    """The factor, and the first point of every series without a positive pivot, or -1."""
    states, failed = _factor(chain)
    return factored_from(chain, states), failed


def factored_from(chain: Chain, states: Tensor) -> Factored:
    """The factor that follows from the states before all points."""
    c = chain.q - times(states, chain.p)
    d = chain.diag + (chain.p * c).sum(-1)
    over_d = 1 / d
    w = c * over_d[..., None]
    loops = chain.steps - outer(times(chain.steps, previous(w)), previous(chain.p))
    return Factored(chain, states, c, d, over_d, w, loops)
