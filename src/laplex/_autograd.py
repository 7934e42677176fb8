r"""The derivative of the ordered scan, in terms of the ordered scan.

Write t, s for the target and source anchors, and for one kernel, with d_ij = exp(-|t_i - s_j| / tau),

    E = N + T,   N_ij = d_ij off ties (0 at ties),   T_ij = [t_i = s_j],   S_ij = sign(s_j - t_i) d_ij

    scan(x; t, s) = (E x, S x)          swapped:  E(s, t) = E(t, s)^T,   S(s, t) = -S(t, s)^T

Moving a target or a source changes the strict sums only; at a tie every derivative is 0:

    dN/dt_i = S / tau      dS/dt_i = N / tau      dT/dt_i = 0          (row i)
    dN/ds_j = -S / tau     dS/ds_j = -N / tau     dT/ds_j = 0          (column j)

Hence, for cotangents (g, f) of (E x, S x), and with (Eg, Sg) = scan(g; s, t), (Ef, Sf) = scan(f; s, t), Nf = Ef - Tf:

    x_bar = E^T g + S^T f                          =  Eg - Sf
    t_bar = 1/tau sum over rows (g * S x + f * N x)
    s_bar = -1/tau sum over rows x * (S^T g + N^T f)  =  1/tau sum over rows x * (Sg - Nf)

f appears only when a derivative is differentiated again, so the first backward is one swapped scan. tau enters through
t / tau and s / tau alone, so moving tau is moving all anchors (Euler):  dt = -t dtau / tau, ds = -s dtau / tau,

    tau_bar = -1/tau (t . t_bar + s . s_bar)

The kernel depends on differences of anchors, so a common centre may be subtracted from t and s there, and is: sum t_bar
+ sum s_bar = 0, and a large offset would cancel badly. Forward mode is the same two products:

    d(E x) = E dx + 1/tau (dt * S x - S (ds * x))          d(S x) = S dx + 1/tau (dt * N x - N (ds * x))

Every product below is a call of the same differentiable ``scan``, so all orders of derivative follow.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from laplex import _ops
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
) -> tuple[Tensor, Tensor]:
    """Differentiable (E x, S x): x (*X, k), target (*H, n), source (*H, k), tau H -> (*X, n) twice.

    x counts as (h, m, k), h = prod(H). The second result is (*X, 0) unless ``odd``.
    """
    inputs = x, target, source, tau, target_index, target_values, source_index, source_values, odd, backend
    if torch.compiler.is_compiling():  # traces no Function with a jvp of its own, nor one that takes a tensor twice
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
        backend: str,
    ) -> tuple[Tensor, Tensor]:
        result: tuple[Tensor, Tensor] = _ops.scan(
            x, target, source, tau, target_index, target_values, source_index, source_values, odd, backend
        )
        return result

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        *tensors, ctx.odd, ctx.backend = inputs
        ctx.set_materialize_grads(False)
        if not ctx.odd:
            ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*tensors, output[1])

    @staticmethod
    def backward(ctx: Any, g: Tensor | None, f: Tensor | None) -> tuple[Tensor | None, ...]:
        saved = _unwrapped(ctx.saved_tensors)  # once: torch.utils.checkpoint counts
        x, t, s, tau, *order, odd_x = saved
        need_x, need_t, need_s, need_tau = ctx.needs_input_grad[:4]
        f = f if ctx.odd else None
        if g is None and f is None:
            return (None,) * 10
        once = not torch.is_grad_enabled() and not torch._C._are_functorch_transforms_active()
        t_bar: Any = None
        s_bar: Any = None
        tau_bar = None
        if need_tau:  # the anchors' pulls all but cancel there: nothing may be rounded before
            g, f = (None if v is None else v.double() for v in (g, f))
            x_bar, t_bar, s_bar = _pullback((x.double(), *saved[1:-1], None), g, f, True, True, ctx.backend)
            tau_bar = bar_of_tau(t, s, tau, t_bar, s_bar)
        elif once and f is None and not (need_t or need_s):
            x_bar, _ = _ops.run_scan(g, s, t, tau, *order[2:], *order[:2], False, ctx.backend)
        elif once and g is not None and f is None and (ctx.odd or not need_t):
            x_bar, t_bar, s_bar = _ops.run_pullback(g, x, odd_x, t, s, tau, *order, ctx.backend)
        else:
            x_bar, t_bar, s_bar = _pullback(
                (*saved[:-1], odd_x if ctx.odd else None), g, f, need_t, need_s, ctx.backend
            )
        bars = _as(x_bar, x, need_x), _as(t_bar, t, need_t), _as(s_bar, s, need_s), tau_bar
        return *bars, None, None, None, None, None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], *arguments: Any
    ) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
        tensors, odd, backend = list(arguments[:8]), arguments[8], arguments[9]
        if all(dim is None for dim in in_dims[1:8]):  # only x is: more rows, behind the dimensions of the kernels
            at = tensors[3].dim()
            return scan(tensors[0].movedim(in_dims[0], at), *tensors[1:], odd=odd, backend=backend), (at, at)
        size = info.batch_size
        fronted = [
            v.movedim(dim, 0) if dim is not None else v.expand(size, *v.shape)
            for v, dim in zip(tensors, in_dims, strict=False)
        ]
        return scan(*fronted, odd=odd, backend=backend), (0, 0)


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
    saved: tuple[Any, ...], g: Tensor | None, f: Tensor | None, need_t: bool, need_s: bool, backend: str
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """x_bar, t_bar, s_bar by differentiable products; ``_ops.pullback`` is the same for f = None, fused."""
    x, t, s, tau, *order, odd_x = saved

    def forward(v: Tensor, odd: bool) -> tuple[Tensor, Tensor]:
        return scan(v, t, s, tau, *order, odd=odd, backend=backend)

    def swapped(v: Tensor, odd: bool) -> tuple[Tensor, Tensor]:
        return scan(v, s, t, tau, *order[2:], *order[:2], odd=odd, backend=backend)

    x_bar: Any = 0
    pull_t: Any = 0  # tau * t_bar before the sum over rows
    pull_s: Any = 0
    if g is not None:
        x_bar, odd_g = swapped(g, odd=need_s)
        pull_s = odd_g if need_s else 0
        if need_t:
            pull_t = g * (forward(x, odd=True)[1] if odd_x is None else odd_x)
    if f is not None:  # ties are subtracted, and may be all but everything: nothing may be rounded before
        f, x = f.double(), x.double()
        even_f, odd_f = swapped(f, odd=True)
        x_bar = x_bar - odd_f
        if need_s:
            pull_s = pull_s - (even_f - ties(f, s, t))
        if need_t:
            pull_t = pull_t + f * (forward(x, odd=False)[0] - ties(x, t, s))
    return x_bar, _row_sum(pull_t, tau, t) if need_t else None, _row_sum(x * pull_s, tau, s) if need_s else None


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
    """The tangents of E x and S x."""
    x, t, s, tau = primals
    dx, dt, ds, dtau = tangents[:4]
    order = ctx.saved_tensors[4:]
    even_dtype, odd_dtype = x.dtype, torch.promote_types(x.dtype, torch.float32)
    if dtau is not None:  # what moves the anchors all but cancels: nothing may be rounded before
        x, dx = x.double(), None if dx is None else dx.double()
        centre = _centre(t, s)
        stretch = (dtau / tau)[..., None]
        dt = (0 if dt is None else dt) - (t.double() - centre) * stretch
        ds = (0 if ds is None else ds) - (s.double() - centre) * stretch

    def product(v: Tensor) -> tuple[Tensor, Tensor, Any]:
        v = v.double() if ctx.odd else v  # ties are subtracted, and may be all but everything
        even, odd = scan(v, t, s, tau, *order, odd=True, backend=ctx.backend)
        return even, odd, even - ties(v, t, s) if ctx.odd else 0

    d_even: Any = 0
    d_odd: Any = 0
    if dx is not None:
        d_even, d_odd, _ = product(dx)
    if dt is not None:
        _, odd, near = product(x)
        push = _to_rows(dt / tau[..., None], odd)
        d_even, d_odd = d_even + push * odd, d_odd + push * near
    if ds is not None:
        _, odd, near = product(_to_rows(ds / tau[..., None], x) * x)
        d_even, d_odd = d_even - odd, d_odd - near
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


def bar_of_tau(t: Tensor, s: Tensor, tau: Tensor, t_bar: Tensor, s_bar: Tensor) -> Tensor:
    centre = _centre(t, s)
    of_t, of_s = ((v.double() - centre) * bar.double() for v, bar in ((t, t_bar), (s, s_bar)))
    pulled = of_t.sum(-1, keepdim=True) + of_s.sum(-1, keepdim=True)
    return -(pulled / tau[..., None])[..., 0]  # of no scalars: torch cannot divide those in a vmap of size 0
