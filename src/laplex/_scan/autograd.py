r"""The derivative of the ordered scan, in terms of the ordered scan.

Write t, s for the target and source anchors. For one matrix, with u_ij = |t_i - s_j| / tau and a degree m,

    A_m = u^m exp(-u),      B_m = sign(s_j - t_i) u^m exp(-u),      scan(x; t, s) = (A_m x, B_m x)

    transposed:  A_m(s, t) = A_m(t, s)^T,   B_m(s, t) = -B_m(t, s)^T

E = A_0 is the kernel and S = B_0 its odd part. Degree 1 exists for tau alone. Write N_m for A_m without ties:
N_0 = E - T with T_ij = [t_i = s_j], and N_1 = A_1, which is 0 at ties. Moving a target or a source changes N_m only; at
a tie every derivative is 0:

    dA_m/dt_i = (B_m - m B_{m-1}) / tau     dB_m/dt_i = (N_m - m N_{m-1}) / tau     (row i; for s_j: the opposite)
    dA_0/dtau = A_1 / tau                   dB_0/dtau = B_1 / tau

Hence, for cotangents (g, f) of (A_m x, B_m x), where a matrix in front of g or f stands for the transposed scan,

    x_bar = A_m g - B_m f
    t_bar = 1/tau sum over rows (g * (B_m - m B_{m-1}) x + f * (N_m - m N_{m-1}) x)
    s_bar = 1/tau sum over rows x * ((B_m - m B_{m-1}) g - (N_m - m N_{m-1}) f)
    tau_bar = 1/tau sum over rows and targets (g * A_1 x + f * B_1 x)                for m = 0

f and degree 1 appear only when a derivative is differentiated again, so the first backward is one transposed scan.
Every term of A_1 x has the sign of x: nothing cancels, however far apart the anchors lie. For m = 1, which only second
derivatives need, changing tau is the same as scaling all anchors (Euler's identity): dt = -t dtau / tau and
ds = -s dtau / tau give

    tau_bar = -1/tau (t . t_bar + s . s_bar)

with positions measured from a common centre, in float64. This sum cancels where anchors span very many tau. Forward
mode is the same:

    d(A_m x) = A_m dx + 1/tau (dt * (B_m - m B_{m-1}) x - (B_m - m B_{m-1}) (ds * x)) + dtau/tau A_1 x     (m = 0)

Every product below is a call of the same differentiable ``scan``, so all orders of derivative follow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from laplex import _checks
from laplex._eager import apart, forward_mode_again
from laplex._scan import ops
from laplex._scan.order import Matrix
from laplex._shapes import flat, flat_rows

# Of the arguments of the Functions: x, anchors, tau and the order's four; layout, backend, odd, degree follow.
TENSORS = 8


def scan(x: Tensor, matrix: Matrix, *, odd: bool, degree: int = 0) -> tuple[Tensor, Tensor]:
    """Differentiable (A x, B x) of a degree: x (*X, k), target (*H, n), source (*H, k), tau H -> (*X, n) twice.

    x counts as (h, m, k), h = prod(H). The second result is (*X, 0) unless ``odd``.
    """
    if torch.compiler.is_compiling():  # cannot trace a Function that has a jvp or takes a tensor twice
        _checks.no_transform_in_a_graph()
        inputs = x, *matrix.flat
        return _Scan.apply(*apart(inputs[:TENSORS]), *inputs[TENSORS:], odd, degree)  # type: ignore[no-any-return]
    if torch._C._are_functorch_transforms_active():
        return _TransformableScan.apply(x, *matrix.flat, odd, degree)  # type: ignore[no-any-return]
    if differentiates(x, matrix.target, matrix.source, matrix.tau):
        return _EagerScan.apply(x, *matrix[:3], matrix.order, matrix.backend, odd, degree)  # type: ignore[no-any-return]
    return ops.run_scan(x, matrix, odd=odd, degree=degree)


def differentiates(*tensors: Tensor) -> bool:
    """Whether autograd watches: in reverse mode, or possibly in forward mode, which does not show on a tensor."""
    reverse = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    return reverse or forward_ad._current_level >= 0


def builds_graph() -> bool:
    """Whether the results of a backward may be differentiated in turn; those of a compiled one never are."""
    if torch.compiler.is_compiling():
        return False
    return torch.is_grad_enabled() or torch._C._are_functorch_transforms_active()


def bars_through(
    function: Callable[..., Tensor], inputs: tuple[Tensor | None, ...], g: Tensor, needed: Sequence[bool]
) -> list[Tensor | None]:
    """The gradients of sum(g * function(*inputs)) that are needed, by autograd, so that they can be differentiated."""
    if not any(needed):
        return [None] * len(inputs)
    with torch.enable_grad():  # views: one tensor given twice has two gradients
        leaves = [None if tensor is None else tensor.view_as(tensor) for tensor in inputs]
        y = function(*leaves)
    variables = [leaf for leaf, need in zip(leaves, needed, strict=True) if need and leaf is not None]
    bars = iter(torch.autograd.grad(y, variables, g, create_graph=builds_graph(), materialize_grads=True))
    return [next(bars) if need and leaf is not None else None for leaf, need in zip(leaves, needed, strict=True)]


def ties(x: Tensor, target: Tensor, source: Tensor) -> Tensor:
    """T x: x (*X, k) -> (*X, n), the sum of x over the sources equal to each target. For derivatives of S x only."""
    n, k = target.shape[-1], source.shape[-1]
    if x.numel() == 0 or target.numel() == 0:
        return x.new_zeros((*x.shape[:-1], n))
    anchors = flat(torch.cat([target, source], -1).detach(), 2)
    values, order = anchors.sort(-1)
    starts = torch.nn.functional.pad(values[:, 1:] != values[:, :-1], (1, 0))
    group = torch.empty_like(order).scatter(-1, order, starts.cumsum(-1))  # equal anchors share a number
    rows = x.reshape(group.shape[0], x.numel() // (group.shape[0] * k), k)  # -1 fails in a vmap of size 0
    group = group[:, None, :].expand(-1, rows.shape[1], -1)
    sums = rows.new_zeros(group.shape).scatter_add(-1, group[..., n:], rows)
    return sums.gather(-1, group[..., :n]).reshape(*x.shape[:-1], n)


class _Scan(torch.autograd.Function):
    """Reverse mode, vmap; all orders."""

    @staticmethod
    def forward(  # spelled out: torch.compile counts the parameters
        x: Tensor,
        target: Tensor,
        source: Tensor,
        tau: Tensor,
        target_index: Tensor,
        target_values: Tensor,
        source_index: Tensor,
        source_values: Tensor,
        layout: str,
        backend: str,
        odd: bool,
        degree: int,
    ) -> tuple[Tensor, Tensor]:
        order = target_index, target_values, source_index, source_values
        sums: tuple[Tensor, Tensor] = ops.scan(x, target, source, tau, *order, layout, backend, odd, degree)
        return sums

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        ctx.layout, ctx.backend, ctx.odd, ctx.degree = inputs[TENSORS:]
        ctx.set_materialize_grads(False)
        if not ctx.odd or torch.compiler.is_compiling():
            ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*inputs[:TENSORS], output[1])

    @staticmethod
    def backward(ctx: Any, g: Tensor | None, f: Tensor | None) -> tuple[Tensor | None, ...]:
        x, *tensors, odd_x = _unwrapped(ctx.saved_tensors)  # read once: torch.utils.checkpoint counts
        matrix = ops.matrix_from((*tensors, ctx.layout, ctx.backend))
        return *_bars(ctx, g, f, x, odd_x, matrix), *(None,) * 8

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], *arguments: Any
    ) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
        tensors, (layout, backend, odd, degree) = list(arguments[:TENSORS]), arguments[TENSORS:]
        if all(dim is None for dim in in_dims[1:TENSORS]):  # only x is batched: more rows, behind the dimensions H
            dim = tensors[3].dim()
            matrix = ops.matrix_from((*tensors[1:], layout, backend))
            return scan(tensors[0].movedim(in_dims[0], dim), matrix, odd=odd, degree=degree), (dim, dim)
        size = info.batch_size
        x, *others = (
            v.movedim(dim, 0) if dim is not None else v.expand(size, *v.shape)
            for v, dim in zip(tensors, in_dims, strict=False)
        )
        return scan(x, ops.matrix_from((*others, layout, backend)), odd=odd, degree=degree), (0, 0)


def _bars(ctx: Any, g: Any, f: Any, x: Tensor, odd_x: Tensor, matrix: Matrix) -> tuple[Tensor | None, ...]:
    """The gradients of x, targets, sources and tau that are needed."""
    needs = need_x, need_t, need_s, need_tau = ctx.needs_input_grad[:4]
    f = None if not ctx.odd or torch.compiler.is_compiling() else f  # torch.compile gives zeros where there is none
    if g is None and f is None:
        return None, None, None, None
    if f is not None or g is None or ctx.degree or builds_graph() or (need_t and not ctx.odd):
        known = odd_x if ctx.odd else None
        bars: Any = _pullback(_Cotangents(g, f, known), x, matrix, needs[1:], ctx.degree)
    elif need_t or need_s or need_tau:
        bars = ops.run_pullback(g, x, odd_x, matrix, to_tau=need_tau)
    else:
        bars = ops.run_scan(g, matrix.mT, odd=False)[0], None, None, None
    return (
        _as(bars[0], x, need_x),
        _as(bars[1], matrix.target, need_t),
        _as(bars[2], matrix.source, need_s),
        _as(bars[3], matrix.tau, need_tau),
    )


def _unwrapped(saved: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Saved tensors without the wrappers of transforms that have ended. torch.func.vjp pulls back after its transform
    has ended, and a wrapper hides whether the tensor inside requires a gradient."""
    if torch.compiler.is_compiling() or torch._C._has_storage(saved[-1]):  # a transform wraps all of them
        return saved
    return tuple(map(_without_dead_wrappers, saved))


def _without_dead_wrappers(tensor: Tensor) -> Tensor:
    inner = torch._C._functorch.unwrap_if_dead(tensor)
    return tensor if inner is tensor else _without_dead_wrappers(inner)


def _as(bar: Any, value: Tensor, needed: bool) -> Tensor | None:
    """The gradient in its value's dtype. Even a conversion that does nothing takes a good part of a small step."""
    if not needed:
        return None
    return bar if bar.dtype == value.dtype else bar.to(value.dtype)  # type: ignore[no-any-return]


class _Cotangents(NamedTuple):
    """Cotangents of A x and B x, and B x itself of degree 0 if it was saved."""

    g: Any
    f: Any
    odd_x: Tensor | None


def _pullback(
    cotangents: _Cotangents, x: Any, matrix: Matrix, needs: tuple[bool, bool, bool], degree: int
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """x_bar, t_bar, s_bar, tau_bar by differentiable products; ``ops.run_pullback`` is the same for g alone, fused."""
    (g, f, odd_x), (t, s, tau) = cotangents, matrix[:3]
    need_t, need_s, need_tau = needs
    by_euler = need_tau and degree == 1
    if by_euler:  # the terms of t and s cancel almost entirely: round nothing before they are added
        need_t = need_s = True
        odd_x = None
        x, g, f = (None if v is None else v.double() for v in (x, g, f))
    forward, transposed = _Sums(matrix, degree), _Sums(matrix.mT, degree)
    x_bar: Any = 0
    pull_t: Any = 0  # tau * t_bar before the sum over rows
    pull_s: Any = 0
    if g is not None:
        x_bar, pull_s = transposed.even(g, slope=need_s)
        if need_t:
            pull_t = g * (forward.even(x, slope=True)[1] if odd_x is None or degree else odd_x)
    if f is not None:
        odd_f, slope = transposed.odd(f, slope=need_s)
        x_bar, pull_s = x_bar - odd_f, pull_s - slope if need_s else 0
        if need_t:
            pull_t = pull_t + f * forward.odd(x, slope=True)[1]
    t_bar: Any = _row_sum(pull_t, tau, t) if need_t else None
    s_bar: Any = _row_sum(x * pull_s, tau, s) if need_s else None
    if by_euler:
        return x_bar, t_bar, s_bar, _tau_by_euler(matrix, t_bar, s_bar)
    return x_bar, t_bar, s_bar, _tau_bar(g, f, x, matrix) if need_tau else None


def _tau_bar(g: Any, f: Any, x: Tensor, matrix: Matrix) -> Tensor:
    even, odd = scan(x, matrix, odd=f is not None, degree=1)
    stretch: Any = (0 if g is None else g * even) + (0 if f is None else f * odd)
    tau = matrix.tau
    return _over(flat_rows(stretch, tau).sum((1, 2), dtype=torch.float64).reshape(tau.shape), tau)


class _Sums:
    """A x and B x of a degree, and tau times their derivatives in the targets; for derivatives of derivatives."""

    def __init__(self, matrix: Matrix, degree: int) -> None:
        self.matrix, self.degree = matrix, degree

    def scan(self, v: Tensor, degree: int, *, odd: bool) -> tuple[Tensor, Tensor]:
        return scan(v, self.matrix, odd=odd, degree=degree)

    def even(self, v: Tensor, *, slope: bool) -> tuple[Tensor, Tensor]:
        """A_m v, and its slope (B_m - m B_{m-1}) v on request."""
        even, odd = self.scan(v, self.degree, odd=slope)
        return even, odd - self.scan(v, 0, odd=True)[1] if slope and self.degree else odd

    def odd(self, v: Tensor, *, slope: bool) -> tuple[Tensor, Tensor]:
        """B_m v, and its slope (N_m - m N_{m-1}) v on request.

        The slope subtracts the ties, which may be almost the whole sum, so v is not rounded before that.
        """
        if not slope:
            return self.scan(v, self.degree, odd=True)[::-1]
        v = v.double()
        even, odd = self.scan(v, self.degree, odd=True)
        tied = _ties(v, self.matrix)
        return odd, even - (self.scan(v, 0, odd=False)[0] - tied) if self.degree else even - tied


class _TransformableScan(_Scan):
    """The same with forward mode, for torch.func."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        _Scan.setup_context(ctx, inputs, output)
        ctx.save_for_forward(*inputs[:TENSORS])

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Tensor, Tensor | None]:
        saved = ctx.saved_tensors
        with forward_mode_again(saved[:4]) as (x, *anchors):
            matrix = ops.matrix_from((*anchors, *saved[4:TENSORS], ctx.layout, ctx.backend))
            return _pushforward(ctx, x, matrix, tangents[:4])


def _pushforward(ctx: Any, x: Tensor, matrix: Matrix, tangents: Any) -> tuple[Tensor, Tensor | None]:
    """The tangents of A x and B x."""
    t, s, tau = matrix[:3]
    dx, dt, ds, dtau = tangents
    even_dtype, odd_dtype = x.dtype, torch.promote_types(x.dtype, torch.float32)
    sums = _Sums(matrix, ctx.degree)
    d_even: Any = 0
    d_odd: Any = 0
    if dtau is not None and ctx.degree:  # the anchors' terms cancel almost entirely: round nothing before
        x, dx = x.double(), None if dx is None else dx.double()
        centre = _centre(matrix)
        stretch = (dtau / tau)[..., None]
        dt = (0 if dt is None else dt) - (t.double() - centre) * stretch
        ds = (0 if ds is None else ds) - (s.double() - centre) * stretch
    elif dtau is not None:
        push = (dtau / tau)[..., None]
        even, odd = sums.scan(x, 1, odd=ctx.odd)
        d_even = _to_rows(push.expand(t.shape), even) * even
        d_odd = _to_rows(push.expand(t.shape), odd) * odd if ctx.odd else 0
    if dx is not None:
        even, odd = sums.scan(dx, ctx.degree, odd=ctx.odd)
        d_even, d_odd = d_even + even, d_odd + odd
    if dt is not None:
        _, slope = sums.even(x, slope=True)
        d_even = d_even + _to_rows(dt / tau[..., None], slope) * slope
        if ctx.odd:
            _, slope = sums.odd(x, slope=True)
            d_odd = d_odd + _to_rows(dt / tau[..., None], slope) * slope
    if ds is not None:
        moved = _to_rows(ds / tau[..., None], x) * x
        d_even = d_even - sums.even(moved, slope=True)[1]
        d_odd = d_odd - sums.odd(moved, slope=True)[1] if ctx.odd else 0
    return d_even.to(even_dtype), d_odd.to(odd_dtype) if ctx.odd else None


class _EagerScan(torch.autograd.Function):
    """Reverse and forward mode outside of torch.compile and torch.func, all orders.

    In the older form of Functions, because binding arguments for ``setup_context`` takes longer than a small product.
    The order is passed as it is, because nobody differentiates it; it lives as long as the graph.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, *inputs: Any) -> tuple[Tensor, Tensor]:
        *fields, ctx.odd, ctx.degree = inputs
        matrix = Matrix(*fields)
        ctx.order, ctx.backend = matrix.order, matrix.backend
        output = ops.run_scan(x, matrix, odd=ctx.odd, degree=ctx.degree)
        ctx.set_materialize_grads(False)
        if not ctx.odd:
            ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(x, *matrix[:3], output[1])
        if forward_ad._current_level >= 0:
            ctx.save_for_forward(x, *matrix[:3])
        return output

    @staticmethod
    def backward(ctx: Any, g: Tensor | None, f: Tensor | None) -> tuple[Tensor | None, ...]:
        x, target, source, tau, odd_x = ctx.saved_tensors  # read once: torch.utils.checkpoint counts
        matrix = Matrix(target, source, tau, ctx.order, ctx.backend)
        return *_bars(ctx, g, f, x, odd_x, matrix), None, None, None, None

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Tensor, Tensor | None]:
        x, target, source, tau = ctx.saved_tensors[:4]
        return _pushforward(ctx, x, Matrix(target, source, tau, ctx.order, ctx.backend), tangents[:4])


def _to_rows(factors: Tensor, rows: Tensor) -> Tensor:
    """(*H, n) as a factor of rows (*X, n) that count as (h, m, n)."""
    n = rows.shape[-1]
    h = math.prod(factors.shape[:-1])
    spread = factors.to(rows.dtype).reshape(h, 1, n)
    return spread.expand(-1, rows.numel() // max(h * n, 1), -1).reshape(rows.shape) if h != 1 else spread.reshape(n)


def _row_sum(pull: Tensor, tau: Tensor, anchors: Tensor) -> Tensor:
    """(*X, n) to (*H, n): the sum over rows, over tau."""
    return flat_rows(pull, tau).sum(1).reshape(anchors.shape) / tau[..., None]


def _ties(v: Tensor, matrix: Matrix) -> Tensor:
    """T v; the backend has its own way if not all sources are here."""
    return ties(v, *matrix[:2]) if matrix.backend.ties is None else matrix.backend.ties(v, matrix)


def _centre(matrix: Matrix) -> Tensor:
    """A point among the anchors, (*H, 1), to measure positions from. Any point would do: it is not differentiated."""
    if matrix.backend.centre is not None:
        return matrix.backend.centre(matrix)
    return torch.cat(matrix[:2], -1).detach().mean(-1, keepdim=True, dtype=torch.float64)


def _tau_by_euler(matrix: Matrix, t_bar: Tensor, s_bar: Tensor) -> Tensor:
    t, s = matrix.target, matrix.source
    centre = _centre(matrix)
    t_terms, s_terms = ((v.double() - centre) * bar.double() for v, bar in ((t, t_bar), (s, s_bar)))
    return -_over(t_terms.sum(-1) + s_terms.sum(-1), matrix.tau)


def _over(value: Tensor, tau: Tensor) -> Tensor:
    """value / tau, both of shape H. Not of scalars, which torch cannot divide in a vmap of size 0."""
    return (value[..., None] / tau[..., None])[..., 0]
