r"""Derivatives of solves, determinants and triangular factors of a symmetric quasiseparable A (``_solve_ops``).

**Solve.** x = A^-1 y with A = M(parameters) + diag. For a cotangent g of x, with lambda = A^-1 g:

    y_bar = lambda        diag_bar = -lambda * x        parameters: the gradient of  -lambda^T M(parameters) x

M x is a product of ``laplex.linear``, which knows its derivatives; all three are made of differentiable calls, so every
order follows.

The factors of a Gram matrix were found by subtracting, so x is refined once: A^-1 of what A x leaves of y is added. A x
comes from K (w (K^T x)), not from the generators: where diag is small x is large, but K^T x is not, and its rounding
errors stay in the range of K, where A^-1 is small. So x is as good as K is well conditioned, better than A would let
it be. The factors of K itself lose nothing, and a residual would.

**Determinant and factor.** They are functions of the generators p, q, mass, of diag, and of the positions t. For these
the recursion is walked back in C++ (``factor_pullback``, ``sweep_pullback``). The positions and tau enter through the
gaps alone: for the gradient gap_bar_i of log rho_i = -(t_i - t_{i-1}) / tau,

    t_bar_i = (gap_bar_{i+1} - gap_bar_i) / tau           tau_bar = sum of gap_bar_i (t_i - t_{i-1}) / tau^2

Between equal positions K has a kink, and the dense definition has derivative 0; in this formula the pair counts with
the sign of its order. The determinant does not depend on the order of equal points, so the mean over that order and its
reverse is exact. A factor does depend on it; its derivative there is that of the order kept. A Gram matrix has no kink.

**Half sums.** left + right = K x, a tied source counts half to each side:

    left_i = sum over s_j < t_i of d_ij x_j + T_i / 2 = (E x - S x) / 2        right = (E x + S x) / 2

    d left / dt = -left / tau     d right / dt = right / tau     (row i; halves of ties included)     d/ds: the opposite
    d left / dtau, d right / dtau: the same half sums of degree 1, over tau

The halves of ties cancel in all that is made of both. Swapping t and s swaps left and right.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from laplex import _checks
from laplex._quasisep import ops as _solve_ops
from laplex._scan.autograd import scan
from laplex._scan.order import Matrix
from laplex._scan.torch import BEYOND

Product = Callable[..., Tensor]  # x (h, n, m), *parameters -> M(parameters) x


class Generators(NamedTuple):
    """A symmetric quasiseparable matrix, its points in order; differentiable."""

    t: Tensor  # (h, n) positions, ascending
    tau: Tensor  # (h,)
    p: Tensor  # (h, n, r)
    q: Tensor
    mass: Tensor  # (h, n, c)
    diag: Tensor  # (h, n)


class Factored(NamedTuple):
    """L diag(d) L^T of a matrix whose points come in ``order``; not differentiable."""

    decay: Tensor
    p: Tensor
    z: Tensor
    mass: Tensor
    d: Tensor
    order: Tensor  # (h, n): the caller's index of every point
    backend: str

    def sweep(self, x: Tensor, *, transposed: bool = False, inverse: bool = False) -> Tensor:
        """L x, L^T x, L^-1 x or L^-T x, for x (h, n, m) in order."""
        y: Tensor = _solve_ops.sweep(self.decay, self.p, self.z, self.mass, x, transposed, inverse, self.backend)
        return y

    def solve(self, y: Tensor) -> Tensor:
        """A^-1 y for y (h, n, m) in the caller's order."""
        x: Tensor = _solve_ops.quasi_solve(self.decay, self.p, self.z, self.mass, self.d, self.order, y, self.backend)
        return x


def in_order(x: Tensor, order: Tensor) -> Tensor:
    """x (h, n, m), as given, in the order of the points."""
    return x.gather(1, order[..., None].expand(x.shape))


def as_given(x: Tensor, order: Tensor) -> Tensor:
    """The inverse of :func:`in_order`."""
    return torch.zeros_like(x).scatter(1, order[..., None].expand(x.shape), x)


def decays(t: Tensor, tau: Tensor, mass: Tensor) -> Tensor:
    """rho or rho - 1 (h, n), as ``_solve_ops`` has it; the first point has nothing to its left. Not differentiable."""
    made = torch.empty_like(t)
    made[:, :1] = -1.0 if mass.shape[-1] == 0 else 0.0
    steps = torch.sub(t[:, :-1], t[:, 1:], out=made[:, 1:]).div_(tau[:, None])
    steps.expm1_() if mass.shape[-1] == 0 else steps.exp_()
    return made


def factor(generators: Generators, order: Tensor, backend: str) -> Factored:
    """The factors, out of autograd's sight."""
    t, tau, p, q, mass, diag = (part.detach() for part in generators)
    decay = decays(t, tau, mass)
    d, z, _ = _solve_ops.factor(decay, p, q, mass, diag, False, backend)
    return Factored(decay, p, z, mass, d, order, backend)


def solve(y: Tensor, diag: Tensor, factored: Factored, product: Product, *parameters: Tensor) -> Tensor:
    """A^-1 y for y (h, n, m) and diag (h, n) in the caller's order; differentiable to every order."""
    return _Solve.apply(y, diag, factored, product, *parameters)  # type: ignore[no-any-return]


def logdet(generators: Generators, factored: Factored) -> Tensor:
    """log det A, (h,); differentiable once."""
    return _LogDet.apply(*generators, factored)  # type: ignore[no-any-return]


def multiply(x: Tensor, generators: Generators, factored: Factored, *, inverse: bool) -> Tensor:
    """C x or C^-1 x with C = L diag(d)^1/2, for x (h, n, m) in order; differentiable once."""
    return _Multiply.apply(x, *generators, factored, inverse)  # type: ignore[no-any-return]


def halves(x: Tensor, matrix: Matrix) -> Any:
    """Left and right half sums (h, m, n) of x (h, m, k); differentiable to every order."""
    return _Halves.apply(x, *matrix.flat)


class _Solve(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor, diag: Tensor, factored: Factored, product: Product, *parameters: Tensor) -> Tensor:
        x = factored.solve(y)
        if factored.mass.shape[-1]:
            x = x + factored.solve(y - diag[..., None] * x - product(x, *parameters))
        ctx.factored, ctx.product = factored, product
        ctx.save_for_backward(x, diag, *parameters)
        return x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
        x, diag, *parameters = ctx.saved_tensors
        lam = solve(g, diag, ctx.factored, ctx.product, *parameters)
        wanted = ctx.needs_input_grad[4:]
        bars: list[Tensor | None] = [None] * len(parameters)
        if any(wanted):
            again = torch.is_grad_enabled()
            with torch.enable_grad():
                # Copies of their own: lambda and x depend on the parameters, too, and are held here.
                own = [part.view_as(part) if again else part.detach() for part in parameters]
                own = [part if again else part.requires_grad_(want) for part, want in zip(own, wanted)]
                product = ctx.product(x, *own)
                leaves = [part for part, want in zip(own, wanted) if want]
                # lambda as the cotangent, not in a product with it: so it may be a batch (is_grads_batched).
                found = iter(torch.autograd.grad(product, leaves, -lam, create_graph=again))
            bars = [next(found) if want else None for want in wanted]
        return lam, -(lam * x).sum(-1), None, None, *bars


class _Refuse(torch.autograd.Function):
    """A gradient as it is, whose own derivative is refused."""

    @staticmethod
    def forward(ctx: Any, bar: Tensor, *depends_on: Tensor) -> Tensor:
        return bar.view_as(bar)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
        raise RuntimeError(_checks.differentiable_once())


def _once(backward: Callable[..., tuple[Any, ...]]) -> Callable[..., tuple[Any, ...]]:
    """A backward without a derivative: to ask for one is an error. (torch's once_differentiable would leave it out.)"""

    @functools.wraps(backward)
    def refusing(ctx: Any, g: Tensor) -> tuple[Any, ...]:
        saved = ctx.saved_tensors  # once: where activations are checkpointed, they are there only once
        with torch.no_grad():
            bars = backward(ctx, saved, g)
        depends_on = [tensor for tensor in (*saved, g) if tensor.requires_grad]
        if not torch.is_grad_enabled() or not depends_on:
            return bars
        return tuple(None if bar is None else _Refuse.apply(bar, *depends_on) for bar in bars)

    return refusing


class _LogDet(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, t: Tensor, tau: Tensor, p: Tensor, q: Tensor, mass: Tensor, diag: Tensor, factored: Factored
    ) -> Tensor:
        ctx.save_for_backward(t, tau, p, q, mass, diag)
        ctx.factored = factored
        return factored.d.log().sum(-1)

    @staticmethod
    @_once
    def backward(ctx: Any, saved: tuple[Tensor, ...], g: Tensor) -> tuple[Any, ...]:
        t, tau, p, q, mass, diag = saved
        decay, backend = ctx.factored.decay, ctx.factored.backend
        p_bar, q_bar, mass_bar, diag_bar, gap_bar = _logdet_bars(decay, p, q, mass, diag, g, backend)
        t_bar, tau_bar = _bars_of_gaps(t, tau, gap_bar)
        kinks = mass.shape[-1] == 0 and (t.is_cuda or bool((torch.diff(t) == 0).any()))  # CUDA is not waited for
        if kinks:
            turned = _turned_ties(t)
            p_turned, q_turned, diag_turned = (_pick(part, turned) for part in (p, q, diag))
            others = _logdet_bars(decay, p_turned, q_turned, mass, diag_turned, g, backend)
            t_bar = (t_bar + _pick(_bars_of_gaps(t, tau, others[-1])[0], turned)) / 2
        return t_bar, tau_bar, p_bar, q_bar, mass_bar, diag_bar, None


class _Multiply(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        t: Tensor,
        tau: Tensor,
        p: Tensor,
        q: Tensor,
        mass: Tensor,
        diag: Tensor,
        factored: Factored,
        inverse: bool,
    ) -> Tensor:
        root = factored.d.sqrt()[..., None]
        y = factored.sweep(x, inverse=True) / root if inverse else factored.sweep(root * x)
        ctx.save_for_backward(x, y, t, tau, p, q, mass, diag)
        ctx.factored, ctx.inverse = factored, inverse
        return y

    @staticmethod
    @_once
    def backward(ctx: Any, saved: tuple[Tensor, ...], g: Tensor) -> tuple[Any, ...]:
        x, y, t, tau, p, q, mass, diag = saved
        f: Factored = ctx.factored
        root = f.d.sqrt()[..., None]
        if ctx.inverse:  # L (root y) = x
            x_bar = f.sweep(g / root, transposed=True, inverse=True)
            left, right, d_bar = -x_bar, root * y, -0.5 * (g * y).sum(-1) / f.d
        else:  # y = L (root x)
            pulled = f.sweep(g, transposed=True)
            x_bar, left, right, d_bar = root * pulled, g, root * x, 0.5 * (pulled * x / root).sum(-1)
        p_bar, z_bar, *others = _solve_ops.sweep_pullback(f.decay, p, f.z, mass, left, right, f.backend)
        d, z, states = _solve_ops.factor(f.decay, p, q, mass, diag, True, f.backend)
        bars = _solve_ops.factor_pullback(f.decay, p, mass, d, z, states, d_bar, z_bar, f.backend)
        p_bar, q_bar, mass_bar, diag_bar = bars[0] + p_bar, bars[1], bars[2] + others[0], bars[3]
        t_bar, tau_bar = _bars_of_gaps(t, tau, bars[4] + others[1])
        return x_bar, t_bar, tau_bar, p_bar, q_bar, mass_bar, diag_bar, None, None


def _logdet_bars(
    decay: Tensor, p: Tensor, q: Tensor, mass: Tensor, diag: Tensor, g: Tensor, backend: str
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    d, z, states = _solve_ops.factor(decay, p, q, mass, diag, True, backend)
    result: tuple[Tensor, Tensor, Tensor, Tensor, Tensor] = _solve_ops.factor_pullback(
        decay, p, mass, d, z, states, g[:, None] / d, torch.zeros_like(z), backend
    )
    return result


def _bars_of_gaps(t: Tensor, tau: Tensor, gap_bar: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of the positions and of tau. The first gap_bar is 0: nothing lies before the first point."""
    after = torch.nn.functional.pad(gap_bar[:, 1:], (0, 1))
    u = (torch.diff(t) / tau[:, None]).clamp(max=BEYOND)
    tau_bar = (gap_bar[:, 1:] * u).sum(-1) / tau
    return (after - gap_bar) / tau[:, None], tau_bar


def _turned_ties(t: Tensor) -> Tensor:
    """The indices (h, n) that turn every run of equal positions round."""
    index = torch.arange(t.shape[-1], device=t.device).expand(t.shape)
    edge = torch.ones_like(t[:, :1], dtype=torch.bool)
    apart = torch.diff(t) != 0
    begin = torch.where(torch.cat([edge, apart], -1), index, 0).cummax(-1).values
    last = torch.where(torch.cat([apart, edge], -1), index, t.shape[-1]).flip(-1).cummin(-1).values.flip(-1)
    return begin + last - index


def _pick(x: Tensor, index: Tensor) -> Tensor:
    """x (h, n) or (h, n, r) at the points index (h, n)."""
    return x.gather(1, index) if x.dim() == 2 else in_order(x, index)


def _halves_of_degree(degree: int, x: Tensor, matrix: Matrix) -> tuple[Tensor, Tensor]:
    even, odd = scan(x, matrix, odd=True, degree=degree)
    return (even - odd) / 2, (even + odd) / 2


class _Halves(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, *inputs: Any) -> tuple[Tensor, Tensor]:
        matrix = Matrix.of(inputs)
        left, right = _halves_of_degree(0, x, matrix)
        ctx.layout, ctx.backend = inputs[-2:]
        ctx.save_for_backward(x, left, right, *matrix.tensors)
        return left, right

    @staticmethod
    def backward(ctx: Any, u: Tensor, v: Tensor) -> tuple[Any, ...]:
        x, left, right, *tensors = ctx.saved_tensors
        matrix = Matrix.of((*tensors, ctx.layout, ctx.backend))
        from_left, from_right = halves(torch.cat([u, v], 1), matrix.mT)
        of_u, of_v = from_right.chunk(2, 1)[0], from_left.chunk(2, 1)[1]
        rate = 1 / matrix.tau[:, None]
        t_bar = ((right * v - left * u).sum(1) * rate).to(matrix.target.dtype)
        s_bar = ((x * (of_u - of_v)).sum(1) * rate).to(matrix.source.dtype)
        tau_bar = None
        if ctx.needs_input_grad[3]:
            of_left, of_right = _halves_of_degree(1, x, matrix)
            tau_bar = (of_left * u + of_right * v).sum((1, 2)) / matrix.tau
        return of_u + of_v, t_bar, s_bar, tau_bar, *(None,) * 6
