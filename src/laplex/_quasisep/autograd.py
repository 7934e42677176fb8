r"""Derivatives of solves, determinants and triangular factors of a symmetric quasiseparable A = M + diag.

Solves are differentiable any number of times: their derivative is made of solves and of products with M. Determinants
and factors are differentiable once, by the pullback operators of ``ops``. Every derivation stands above its class. A
name with _bar is the gradient of the loss with respect to what the name stands for.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from laplex import _checks
from laplex._quasisep import ops as _quasi_ops
from laplex._quasisep.arrays import Chain, ChainBars, MatrixBars, Pivots, Quasiseparable
from laplex._scan.autograd import bars_through, scan
from laplex._scan.ops import matrix_from
from laplex._scan.order import Matrix
from laplex._scan.torch import BEYOND

Product = Callable[..., Tensor]  # (x (h, n, m), *parameters) -> M(parameters) x, in the caller's order


class Generators(NamedTuple):
    """A symmetric quasiseparable matrix, its points in sorted order; differentiable. ``arrays`` explains r and c."""

    t: Tensor  # (h, n): positions, ascending
    tau: Tensor  # (h,)
    p: Tensor  # (h, n, r)
    q: Tensor  # (h, n, r)
    mass: Tensor  # (h, n, c)
    diag: Tensor  # (h, n)

    def matrix(self, decay: Tensor) -> Quasiseparable:
        """What the operators read: decay (h, n) in place of the positions and tau."""
        return Quasiseparable(decay, self.p, self.q, self.mass, self.diag)


class Factored(NamedTuple):
    """A = L diag(d) L^T; not differentiable."""

    chain: Chain  # L
    d: Tensor  # (h, n)
    order: Tensor  # (h, n): the caller's index of every point
    backend: str

    def sweep(self, x: Tensor, *, transposed: bool = False, inverse: bool = False) -> Tensor:
        """L x, L^T x, L^-1 x or L^-T x, for x (h, n, m) in sorted order."""
        y: Tensor = _quasi_ops.sweep(*self.chain, x, transposed, inverse, self.backend)
        return y

    def solve(self, y: Tensor) -> Tensor:
        """A^-1 y, for y (h, n, m) in the caller's order."""
        x: Tensor = _quasi_ops.quasi_solve(*self.chain, self.d, self.order, y, self.backend)
        return x


def in_order(x: Tensor, order: Tensor) -> Tensor:
    """x (h, n, m) from the caller's order to sorted order, for order (h, n)."""
    return x.gather(1, order[..., None].expand(x.shape))


def as_given(x: Tensor, order: Tensor) -> Tensor:
    """x (h, n, m) from sorted order to the caller's order, for order (h, n)."""
    return torch.zeros_like(x).scatter(1, order[..., None].expand(x.shape), x)


def decays(t: Tensor, tau: Tensor, mass: Tensor) -> Tensor:
    """The decay (h, n) of every gap: rho - 1 without mass, rho with mass; rho = 0 for the first point.

    Without mass the factor needs 1 - rho^2, and rho - 1 gives it with all digits for neighbours that are close. With
    mass the factor needs rho times the mass of the gap, which may be large where rho is tiny. Not differentiable.
    """
    decay = torch.empty_like(t)
    decay[:, :1] = -1.0 if mass.shape[-1] == 0 else 0.0
    steps = torch.sub(t[:, :-1], t[:, 1:], out=decay[:, 1:]).div_(tau[:, None])
    if mass.shape[-1] == 0:
        steps.expm1_()
    else:
        # Some processors' exp rounds down more often than up just below 1, and such errors add up over the points.
        steps.copy_(torch.where(steps > -0.5, torch.expm1(steps) + 1.0, torch.exp(steps)))
    return decay


def factor(generators: Generators, order: Tensor, backend: str) -> Factored:
    """The factors, which autograd does not see; order (h, n) is the caller's index of every point."""
    detached = Generators(*(part.detach() for part in generators))
    matrix = detached.matrix(decays(detached.t, detached.tau, detached.mass))
    d, z, _ = _quasi_ops.factor(*matrix, False, backend)
    return Factored(Chain(matrix.decay, matrix.p, z, matrix.mass), d, order, backend)


def solve(y: Tensor, diag: Tensor, factored: Factored, product: Product, *parameters: Tensor) -> Tensor:
    """A^-1 y, for y (h, n, m) and diag (h, n) in the caller's order; differentiable any number of times."""
    return _Solve.apply(y, diag, factored, product, *parameters)  # type: ignore[no-any-return]


def logdet(generators: Generators, factored: Factored) -> Tensor:
    """log det A, (h,); differentiable once."""
    return _LogDet.apply(factored, *generators)  # type: ignore[no-any-return]


def multiply(x: Tensor, generators: Generators, factored: Factored, *, inverse: bool) -> Tensor:
    """C x or C^-1 x with C = L diag(d)^1/2, for x (h, n, m) in sorted order; differentiable once."""
    return _Multiply.apply(factored, inverse, x, *generators)  # type: ignore[no-any-return]


def halves(x: Tensor, matrix: Matrix) -> Any:
    """The half sums left and right, (h, m, n) each, of x (h, m, k); differentiable any number of times."""
    return _Halves.apply(x, *matrix.flat)


# --- solve -----------------------------------------------------------------------------------------------------------
#
# x = A^-1 y with A = M(parameters) + diag, so dx = A^-1 (dy - dA x). For the cotangent g of x, with lambda = A^-1 g:
#
#     y_bar = lambda        diag_bar = -lambda * x        parameters: the gradient of  -lambda^T M(parameters) x
#
# where lambda and x count as constants in the last. M x is a product of laplex.linear, which has its own derivatives.
# All three are made of differentiable calls, so they can be differentiated in turn.
#
# Refinement. The factors of a Gram matrix were found by subtraction, so x is refined once: x + A^-1 (y - A x). Here A x
# is diag x + K (w (K^T x)), not a product with the generators. Where diag is small x is large, but K^T x is not, and
# the rounding errors of K (...) lie in the range of K, on which A^-1 is small. So the accuracy of x is that which the
# condition of K allows, and this is better than what the condition of A allows. The factors of K itself were found
# without subtraction; there a residual would have fewer correct digits than x.


class _Solve(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor, diag: Tensor, factored: Factored, product: Product, *parameters: Tensor) -> Tensor:
        x = factored.solve(y)
        if factored.chain.mass.shape[-1]:
            x = x + factored.solve(y - diag[..., None] * x - product(x, *parameters))
        ctx.factored, ctx.product = factored, product
        ctx.save_for_backward(x, diag, *parameters)
        return x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
        x, diag, *parameters = ctx.saved_tensors
        lam = solve(g, diag, ctx.factored, ctx.product, *parameters)
        # lambda is the cotangent, not a factor: as a cotangent it may be a batch (is_grads_batched).
        bars = bars_through(functools.partial(ctx.product, x), tuple(parameters), -lam, ctx.needs_input_grad[4:])
        return lam, -(lam * x).sum(-1), None, None, *bars


# --- functions that are differentiable once ---------------------------------------------------------------------------


class _Refuse(torch.autograd.Function):
    """The identity on a gradient. Its derivative raises an error."""

    @staticmethod
    def forward(ctx: Any, bar: Tensor, *depends_on: Tensor) -> Tensor:
        return bar.view_as(bar)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
        raise RuntimeError(_checks.differentiable_once())


def _once(backward: Callable[..., tuple[Any, ...]]) -> Callable[..., tuple[Any, ...]]:
    """A backward that raises an error where its own derivative is requested.

    torch's once_differentiable raises only if g requires a gradient; where g is a constant and only the inputs do, the
    second derivative would silently be left out.
    """

    @functools.wraps(backward)
    def refusing(ctx: Any, g: Tensor) -> tuple[Any, ...]:
        saved = ctx.saved_tensors  # read once: under activation checkpointing a second reading fails
        with torch.no_grad():
            bars = backward(ctx, saved, g)
        depends_on = [tensor for tensor in (*saved, g) if tensor.requires_grad]
        if not torch.is_grad_enabled() or not depends_on:
            return bars
        return tuple(None if bar is None else _Refuse.apply(bar, *depends_on) for bar in bars)

    return refusing


# --- determinant -----------------------------------------------------------------------------------------------------
#
# log det A is the sum of log d, so d_bar = g / d and z_bar = 0, and factor_pullback gives the gradients of p, q, mass,
# diag, and gap_bar, that of log rho_i = -(t_i - t_{i-1}) / tau. The positions and tau enter through the gaps alone:
#
#     t_bar_i = (gap_bar_{i+1} - gap_bar_i) / tau           tau_bar = sum of gap_bar_i (t_i - t_{i-1}) / tau^2
#
# Ties. K has a kink where two positions are equal: by the dense definition the derivative of exp(-|t_i - t_j| / tau) is
# 0 there, but these formulas count the pair with a sign, that of its order. The determinant does not depend on the
# order of equal points, so we take the mean of t_bar over this order and the one with every run of equal points
# reversed: the signs cancel, and the mean is exact. A factor does depend on that order, and its derivative is that for
# the order kept. A Gram matrix is smooth in its positions and has no kink.


class _LogDet(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, factored: Factored, *generators: Tensor) -> Tensor:
        ctx.save_for_backward(*generators)
        ctx.factored = factored
        return factored.d.log().sum(-1)

    @staticmethod
    @_once
    def backward(ctx: Any, saved: tuple[Tensor, ...], g: Tensor) -> tuple[Any, ...]:
        generators = Generators(*saved)
        t, tau = generators.t, generators.tau
        matrix, backend = generators.matrix(ctx.factored.chain.decay), ctx.factored.backend
        bars = _logdet_bars(matrix, g, backend)
        t_bar, tau_bar = _bars_of_gaps(t, tau, bars.gap)
        # On CUDA the answer is not waited for: there the mean is always taken.
        kinks = matrix.mass.shape[-1] == 0 and (t.is_cuda or bool((torch.diff(t) == 0).any()))
        if kinks:
            turned = _turned_ties(t)
            p, q, diag = (_pick(part, turned) for part in (matrix.p, matrix.q, matrix.diag))
            others = _logdet_bars(matrix._replace(p=p, q=q, diag=diag), g, backend)
            t_bar = (t_bar + _pick(_bars_of_gaps(t, tau, others.gap)[0], turned)) / 2
        return None, t_bar, tau_bar, bars.p, bars.q, bars.mass, bars.diag


def _logdet_bars(matrix: Quasiseparable, g: Tensor, backend: str) -> MatrixBars:
    pivots = Pivots(*_quasi_ops.factor(*matrix, True, backend))
    return _factor_bars(matrix, pivots, g[:, None] / pivots.d, torch.zeros_like(pivots.z), backend)


def _factor_bars(matrix: Quasiseparable, pivots: Pivots, d_bar: Tensor, z_bar: Tensor, backend: str) -> MatrixBars:
    arguments = matrix.decay, matrix.p, matrix.mass, *pivots, d_bar, z_bar
    return MatrixBars(*_quasi_ops.factor_pullback(*arguments, backend))


def _bars_of_gaps(t: Tensor, tau: Tensor, gap_bar: Tensor) -> tuple[Tensor, Tensor]:
    """t_bar (h, n) and tau_bar (h,). The first gap_bar is 0: nothing lies before the first point."""
    after = torch.nn.functional.pad(gap_bar[:, 1:], (0, 1))
    u = (torch.diff(t) / tau[:, None]).clamp(max=BEYOND)
    tau_bar = (gap_bar[:, 1:] * u).sum(-1) / tau
    return (after - gap_bar) / tau[:, None], tau_bar


def _turned_ties(t: Tensor) -> Tensor:
    """The permutation (h, n) that reverses every run of equal positions."""
    index = torch.arange(t.shape[-1], device=t.device).expand(t.shape)
    edge = torch.ones_like(t[:, :1], dtype=torch.bool)
    apart = torch.diff(t) != 0
    begin = torch.where(torch.cat([edge, apart], -1), index, 0).cummax(-1).values
    last = torch.where(torch.cat([apart, edge], -1), index, t.shape[-1]).flip(-1).cummin(-1).values.flip(-1)
    return begin + last - index


def _pick(x: Tensor, index: Tensor) -> Tensor:
    """x (h, n) or (h, n, r) at the points index (h, n)."""
    return x.gather(1, index) if x.dim() == 2 else in_order(x, index)


# --- factor ----------------------------------------------------------------------------------------------------------
#
# C = L R with R = diag(d)^1/2. In both cases L enters through a sum over i > j of left_i L_ij right_j. sweep_pullback
# has the gradients of that sum in p, z, mass and the gaps; d_bar and z_bar then go through factor_pullback.
#
#     y = L R x:            dy = dL (R x) + L dR x + L R dx
#         x_bar = R L^T g       left = g        right = R x       d_bar = (L^T g) x / (2 R)
#
#     y = R^-1 L^-1 x:      dy = R^-1 L^-1 (dx - dL (R y)) - R^-1 dR y
#         x_bar = L^-T R^-1 g   left = -x_bar   right = R y       d_bar = -g y / (2 d)


class _Multiply(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, factored: Factored, inverse: bool, x: Tensor, *generators: Tensor) -> Tensor:
        root = factored.d.sqrt()[..., None]
        y = factored.sweep(x, inverse=True) / root if inverse else factored.sweep(root * x)
        ctx.save_for_backward(x, y, *generators)
        ctx.factored, ctx.inverse = factored, inverse
        return y

    @staticmethod
    @_once
    def backward(ctx: Any, saved: tuple[Tensor, ...], g: Tensor) -> tuple[Any, ...]:
        x, y, *parts = saved
        generators, f = Generators(*parts), ctx.factored
        root = f.d.sqrt()[..., None]
        if ctx.inverse:
            x_bar = f.sweep(g / root, transposed=True, inverse=True)
            left, right, d_bar = -x_bar, root * y, -0.5 * (g * y).sum(-1) / f.d
        else:
            pulled = f.sweep(g, transposed=True)
            x_bar, left, right, d_bar = root * pulled, g, root * x, 0.5 * (pulled * x / root).sum(-1)
        chain = f.chain._replace(p=generators.p, mass=generators.mass)
        chain_bars = ChainBars(*_quasi_ops.sweep_pullback(*chain, left, right, f.backend))
        matrix = generators.matrix(f.chain.decay)
        pivots = Pivots(*_quasi_ops.factor(*matrix, True, f.backend))
        bars = _factor_bars(matrix, pivots, d_bar, chain_bars.z, f.backend)
        t_bar, tau_bar = _bars_of_gaps(generators.t, generators.tau, bars.gap + chain_bars.gap)
        return None, None, x_bar, t_bar, tau_bar, bars.p + chain_bars.p, bars.q, bars.mass + chain_bars.mass, bars.diag


# --- half sums -------------------------------------------------------------------------------------------------------
#
# left is the part of K x from the sources left of a target, right the part from those right of it, and a source that is
# equal to the target counts half in each. So left + right = K x, and with E and S the even and the odd sums of a scan,
#
#     left_i = sum over s_j < t_i of exp(-(t_i - s_j) / tau) x_j + (half of the ties) = (E x - S x) / 2
#     right  = (E x + S x) / 2
#
#     d left / dt = -left / tau     d right / dt = right / tau     d/ds: the opposite
#     d left / dtau and d right / dtau: the same half sums with degree 1, divided by tau
#
# The half of the ties is differentiated as if it belonged to its side. Where both left and right enter a result, as in
# a Gram matrix, what the two halves add to the derivative cancels. Swapping t and s swaps left and right.


def _halves_of_degree(degree: int, x: Tensor, matrix: Matrix) -> tuple[Tensor, Tensor]:
    even, odd = scan(x, matrix, odd=True, degree=degree)
    return (even - odd) / 2, (even + odd) / 2


class _Halves(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, *inputs: Any) -> tuple[Tensor, Tensor]:
        matrix = matrix_from(inputs)
        left, right = _halves_of_degree(0, x, matrix)
        ctx.layout, ctx.backend = inputs[-2:]
        ctx.save_for_backward(x, left, right, *matrix.tensors)
        return left, right

    @staticmethod
    def backward(ctx: Any, u: Tensor, v: Tensor) -> tuple[Any, ...]:
        x, left, right, *tensors = ctx.saved_tensors
        matrix = matrix_from((*tensors, ctx.layout, ctx.backend))
        from_left, from_right = halves(torch.cat([u, v], 1), matrix.mT)
        u_bar, v_bar = from_right.chunk(2, 1)[0], from_left.chunk(2, 1)[1]
        rate = 1 / matrix.tau[:, None]
        t_bar = ((right * v - left * u).sum(1) * rate).to(matrix.target.dtype)
        s_bar = ((x * (u_bar - v_bar)).sum(1) * rate).to(matrix.source.dtype)
        tau_bar = None
        if ctx.needs_input_grad[3]:
            left_1, right_1 = _halves_of_degree(1, x, matrix)
            tau_bar = (left_1 * u + right_1 * v).sum((1, 2)) / matrix.tau
        return u_bar + v_bar, t_bar, s_bar, tau_bar, *(None,) * 6
