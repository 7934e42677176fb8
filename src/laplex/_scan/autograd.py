r"""The derivative of the ordered scan, in terms of the ordered scan.

Write t, s for the target and source anchors, and for one kernel, with u_ij = |t_i - s_j| / tau and a degree m,

    A_m = u^m exp(-u),      B_m = sign(s_j - t_i) u^m exp(-u),      scan(x; t, s) = (A_m x, B_m x)

    swapped:  A_m(s, t) = A_m(t, s)^T,   B_m(s, t) = -B_m(t, s)^T

E = A_0 is the kernel and S = B_0 its odd part. The degree 1 is there for tau alone. Write N_m for A_m off ties:
N_0 = E - T with T_ij = [t_i = s_j], and N_1 = A_1, which is 0 at ties. Moving a target or a source changes N_m only; at
a tie every derivative is 0:

    dA_m/dt_i = (B_m - m B_{m-1}) / tau     dB_m/dt_i = (N_m - m N_{m-1}) / tau     (row i; for s_j: the opposite)
    dA_0/dtau = A_1 / tau                   dB_0/dtau = B_1 / tau

Hence, for cotangents (g, f) of (A_m x, B_m x), where a g or f behind a matrix means the swapped scan of it,

    x_bar = A_m g - B_m f
    t_bar = 1/tau sum over rows (g * (B_m - m B_{m-1}) x + f * (N_m - m N_{m-1}) x)
    s_bar = 1/tau sum over rows x * ((B_m - m B_{m-1}) g - (N_m - m N_{m-1}) f)
    tau_bar = 1/tau sum over rows and targets (g * A_1 x + f * B_1 x)                for m = 0

f, and the degree 1, appear only when a derivative is differentiated again, so the first backward is one swapped scan.
Every term of A_1 x has the sign of x: however far apart anchors lie, nothing cancels. For m = 1, which only second
derivatives ask for, tau moves as all anchors do (Euler): dt = -t dtau / tau, ds = -s dtau / tau,

    tau_bar = -1/tau (t . t_bar + s . s_bar)

from a common centre, and in float64; that sum cancels where anchors span very many tau. Forward mode is the same:

    d(A_m x) = A_m dx + 1/tau (dt * (B_m - m B_{m-1}) x - (B_m - m B_{m-1}) (ds * x)) + dtau/tau A_1 x     (m = 0)

Every product below is a call of the same differentiable ``scan``, so all orders of derivative follow.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from laplex import _checks
from laplex._scan import ops as _ops
from laplex._shapes import apart, flat, flat_rows


def scan(
    x: Tensor,
    target: Tensor,
    source: Tensor,
    tau: Tensor,
    target_index: Tensor,
    target_values: Tensor,
    source_index: Tensor,
    source_values: Tensor,
    *,
    odd: bool,
    backend: str,
    degree: int = 0,
) -> tuple[Tensor, Tensor]:
    """Differentiable (A x, B x) of a degree: x (*X, k), target (*H, n), source (*H, k), tau H -> (*X, n) twice.

    x counts as (h, m, k), h = prod(H). The second result is (*X, 0) unless ``odd``.
    """
    inputs = x, target, source, tau, target_index, target_values, source_index, source_values, odd, degree, backend
    if torch.compiler.is_compiling():  # traces no Function with a jvp of its own, nor one that takes a tensor twice
        _checks.no_transform_in_a_graph()
        return _Scan.apply(*apart(inputs[:8]), *inputs[8:])  # type: ignore[no-any-return]
    if torch._C._are_functorch_transforms_active():
        return _TransformableScan.apply(*inputs)  # type: ignore[no-any-return]
    if differentiates(x, target, source, tau):
        return _EagerScan.apply(*inputs)  # type: ignore[no-any-return]
    return _ops.run_scan(*inputs)


def differentiates(*tensors: Tensor) -> bool:
    """Whether autograd watches: in reverse mode, or perhaps in forward mode, which does not show on a tensor."""
    reverse = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in tensors)
    return reverse or forward_ad._current_level >= 0


def not_again() -> bool:
    """Whether what a backward makes is not differentiated in turn; what is compiled never is."""
    if torch.compiler.is_compiling():
        return True
    return not (torch.is_grad_enabled() or torch._C._are_functorch_transforms_active())


def ties(x: Tensor, target: Tensor, source: Tensor) -> Tensor:
    """T x: x (*X, k) -> (*X, n), the sum of x over the sources equal to each target. For derivatives of S x only."""
    n, k = target.shape[-1], source.shape[-1]
    if x.numel() == 0 or target.numel() == 0:
        return x.new_zeros((*x.shape[:-1], n))
    anchors = flat(torch.cat([target, source], -1).detach(), 2)
    values, order = anchors.sort(-1)
    starts = torch.nn.functional.pad(values[:, 1:] != values[:, :-1], (1, 0))
    group = torch.empty_like(order).scatter(-1, order, starts.cumsum(-1))  # equal anchors share a number
    rows = x.reshape(group.shape[0], x.numel() // (group.shape[0] * k), k)  # not -1: vmap may be over a size of 0
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
        odd: bool,
        degree: int,
        backend: str,
    ) -> tuple[Tensor, Tensor]:
        order = target_index, target_values, source_index, source_values
        result: tuple[Tensor, Tensor] = _ops.scan(x, target, source, tau, *order, odd, degree, backend)
        return result

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        *tensors, ctx.odd, ctx.degree, ctx.backend = inputs
        ctx.set_materialize_grads(False)
        if not ctx.odd or torch.compiler.is_compiling():
            ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*tensors, output[1])

    @staticmethod
    def backward(ctx: Any, g: Tensor | None, f: Tensor | None) -> tuple[Tensor | None, ...]:
        saved = _unwrapped(ctx.saved_tensors)  # once: torch.utils.checkpoint counts
        x, t, s, tau, *order, odd_x = saved
        need_x, need_t, need_s, need_tau = ctx.needs_input_grad[:4]
        f = None if not ctx.odd or torch.compiler.is_compiling() else f  # which makes zeros where there is none
        if g is None and f is None:
            return (None,) * 11
        fused = not_again() and g is not None and f is None and ctx.degree == 0
        t_bar: Any = None
        s_bar: Any = None
        tau_bar: Any = None
        if fused and not (need_t or need_s or need_tau):
            x_bar, _ = _ops.run_scan(g, s, t, tau, *order[2:], *order[:2], False, 0, ctx.backend)
        elif fused and (ctx.odd or not need_t):
            inputs = g, x, odd_x, t, s, tau, *order
            x_bar, t_bar, s_bar, tau_bar = _ops.run_pullback(*inputs, need_tau, ctx.backend)
        else:
            known = (*saved[:-1], odd_x if ctx.odd else None)
            x_bar, t_bar, s_bar, tau_bar = _pullback(known, g, f, (need_t, need_s, need_tau), ctx.degree, ctx.backend)
        bars = _as(x_bar, x, need_x), _as(t_bar, t, need_t), _as(s_bar, s, need_s), _as(tau_bar, tau, need_tau)
        return *bars, *(None,) * 7

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], *arguments: Any
    ) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
        tensors, (odd, degree, backend) = list(arguments[:8]), arguments[8:]
        if all(dim is None for dim in in_dims[1:8]):  # only x is: more rows, behind the dimensions of the kernels
            at = tensors[3].dim()
            tensors[0] = tensors[0].movedim(in_dims[0], at)
            return scan(*tensors, odd=odd, degree=degree, backend=backend), (at, at)
        size = info.batch_size
        fronted = [
            v.movedim(dim, 0) if dim is not None else v.expand(size, *v.shape)
            for v, dim in zip(tensors, in_dims, strict=False)
        ]
        return scan(*fronted, odd=odd, degree=degree, backend=backend), (0, 0)


def _unwrapped(saved: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Saved tensors without the wrappers of transforms that have ended: torch.func.vjp pulls back after its transform,
    and a wrapper hides whether the tensor inside requires a gradient."""
    if torch.compiler.is_compiling() or torch._C._has_storage(saved[-1]):  # a transform wraps all of them
        return saved
    return tuple(map(_without_dead_wrappers, saved))


def _without_dead_wrappers(tensor: Tensor) -> Tensor:
    inner = torch._C._functorch.unwrap_if_dead(tensor)
    return tensor if inner is tensor else _without_dead_wrappers(inner)


def _as(bar: Any, value: Tensor, needed: bool) -> Tensor | None:
    """The gradient in its value's dtype; asked first, for a conversion to the same is no small part of a step."""
    if not needed:
        return None
    return bar if bar.dtype == value.dtype else bar.to(value.dtype)  # type: ignore[no-any-return]


def _pullback(
    saved: tuple[Any, ...], g: Any, f: Any, needs: tuple[bool, bool, bool], degree: int, backend: str
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """x_bar, t_bar, s_bar, tau_bar by differentiable products; ``_ops.pullback`` is the same for g alone, fused."""
    x, t, s, tau, *order, odd_x = saved
    need_t, need_s, need_tau = needs
    by_euler = need_tau and degree == 1
    if by_euler:  # the anchors' pulls all but cancel there: nothing may be rounded before
        need_t = need_s = True
        odd_x = None
        x, g, f = (None if v is None else v.double() for v in (x, g, f))
    forward = _Sums((t, s, tau, *order), degree, backend)
    swapped = _Sums((s, t, tau, *order[2:], *order[:2]), degree, backend)
    x_bar: Any = 0
    pull_t: Any = 0  # tau * t_bar before the sum over rows
    pull_s: Any = 0
    if g is not None:
        x_bar, pull_s = swapped.even(g, slope=need_s)
        if need_t:
            pull_t = g * (forward.even(x, slope=True)[1] if odd_x is None or degree else odd_x)
    if f is not None:
        odd_f, slope = swapped.odd(f, slope=need_s)
        x_bar, pull_s = x_bar - odd_f, pull_s - slope if need_s else 0
        if need_t:
            pull_t = pull_t + f * forward.odd(x, slope=True)[1]
    t_bar: Any = _row_sum(pull_t, tau, t) if need_t else None
    s_bar: Any = _row_sum(x * pull_s, tau, s) if need_s else None
    if by_euler:
        return x_bar, t_bar, s_bar, _tau_by_euler(t, s, tau, t_bar, s_bar)
    if not need_tau:
        return x_bar, t_bar, s_bar, None
    even, odd = scan(x, t, s, tau, *order, odd=f is not None, degree=1, backend=backend)
    stretch: Any = (0 if g is None else g * even) + (0 if f is None else f * odd)
    summed = flat_rows(stretch, tau).sum((1, 2), dtype=torch.float64).reshape(tau.shape)
    return x_bar, t_bar, s_bar, _over(summed, tau)


class _Sums:
    """A x and B x of a degree, and tau times what moving the targets does to them; for derivatives of derivatives."""

    def __init__(self, anchors: tuple[Tensor, ...], degree: int, backend: str) -> None:
        self.anchors, self.degree, self.backend = anchors, degree, backend

    def scan(self, v: Tensor, degree: int, *, odd: bool) -> tuple[Tensor, Tensor]:
        return scan(v, *self.anchors, odd=odd, degree=degree, backend=self.backend)

    def even(self, v: Tensor, *, slope: bool) -> tuple[Tensor, Tensor]:
        """A_m v, and its slope (B_m - m B_{m-1}) v if that is asked for."""
        even, odd = self.scan(v, self.degree, odd=slope)
        return even, odd - self.scan(v, 0, odd=True)[1] if slope and self.degree else odd

    def odd(self, v: Tensor, *, slope: bool) -> tuple[Tensor, Tensor]:
        """B_m v, and its slope (N_m - m N_{m-1}) v if that is asked for.

        There ties are subtracted, and may be all but everything: nothing may be rounded before.
        """
        if not slope:
            return self.scan(v, self.degree, odd=True)[::-1]
        v = v.double()
        even, odd = self.scan(v, self.degree, odd=True)
        tied = ties(v, *self.anchors[:2])
        return odd, even - (self.scan(v, 0, odd=False)[0] - tied) if self.degree else even - tied


class _TransformableScan(_Scan):
    """The same with forward mode, for torch.func."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        _Scan.setup_context(ctx, inputs, output)
        ctx.save_for_forward(*inputs[:8])

    @staticmethod
    def jvp(ctx: Any, *tangents: Any) -> tuple[Tensor, Tensor | None]:
        if torch._C._are_functorch_transforms_active():
            # torch runs a Function's jvp with forward mode off, so an outer forward mode would silently see constants
            # (pytorch#197867). Turned on again, the saved tensors must show their primal at this level.
            with forward_ad._set_fwd_grad_enabled(True):
                primals = [forward_ad.unpack_dual(v, level=0).primal for v in ctx.saved_tensors[:4]]
                return _pushforward(ctx, primals, tangents)
        return _pushforward(ctx, ctx.saved_tensors[:4], tangents)


def _pushforward(ctx: Any, primals: Any, tangents: Any) -> tuple[Tensor, Tensor | None]:
    """The tangents of A x and B x."""
    x, t, s, tau = primals
    dx, dt, ds, dtau = tangents[:4]
    even_dtype, odd_dtype = x.dtype, torch.promote_types(x.dtype, torch.float32)
    sums = _Sums((t, s, tau, *ctx.saved_tensors[4:]), ctx.degree, ctx.backend)
    d_even: Any = 0
    d_odd: Any = 0
    if dtau is not None and ctx.degree:  # what moves the anchors all but cancels: nothing may be rounded before
        x, dx = x.double(), None if dx is None else dx.double()
        centre = _centre(t, s)
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


class _EagerScan(_TransformableScan):
    """The same, called in the older form: binding arguments for ``setup_context`` costs more than a small product."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor]:
        output = _ops.run_scan(*inputs)
        _Scan.setup_context(ctx, inputs, output)
        if forward_ad._current_level >= 0:
            ctx.save_for_forward(*inputs[:8])
        return output

    setup_context = torch.autograd.Function.setup_context


def _to_rows(of_anchors: Tensor, rows: Tensor) -> Tensor:
    """(*H, n) to what multiplies rows (*X, n) that count as (h, m, n)."""
    n = rows.shape[-1]
    h = math.prod(of_anchors.shape[:-1])
    spread = of_anchors.to(rows.dtype).reshape(h, 1, n)
    return spread.expand(-1, rows.numel() // max(h * n, 1), -1).reshape(rows.shape) if h != 1 else spread.reshape(n)


def _row_sum(pull: Tensor, tau: Tensor, anchors: Tensor) -> Tensor:
    """(*X, n) to (*H, n): the sum over rows, over tau."""
    return flat_rows(pull, tau).sum(1).reshape(anchors.shape) / tau[..., None]


def _centre(t: Tensor, s: Tensor) -> Tensor:
    """A point amid the anchors, (*H, 1), to measure them from; any would do, so it is not differentiated."""
    return torch.cat([t, s], -1).detach().mean(-1, keepdim=True, dtype=torch.float64)


def _tau_by_euler(t: Tensor, s: Tensor, tau: Tensor, t_bar: Tensor, s_bar: Tensor) -> Tensor:
    centre = _centre(t, s)
    of_t, of_s = ((v.double() - centre) * bar.double() for v, bar in ((t, t_bar), (s, s_bar)))
    return -_over(of_t.sum(-1) + of_s.sum(-1), tau)


def _over(value: Tensor, tau: Tensor) -> Tensor:
    """value / tau, both of the kernels' shape; not of scalars, which torch cannot divide in a vmap of size 0."""
    return (value[..., None] / tau[..., None])[..., 0]
