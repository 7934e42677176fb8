r"""The derivative of the Gram matrix: once by a fused operator, further by a composite of scans.

``_gram.sums`` has the formulas of the operator and of its derivative, which reads the cotangent once. Where that is
to be differentiated in turn, or in forward mode, or under torch.func, the same matrix is made of differentiable parts.

There ties need care. In the dense definition K_ik with a_i = b_k is a constant, 1, whatever order of derivative. So of
a b that ties with a_i, M_ij keeps the factor exp(-|a_j - b| / tau) alone: it moves with b, not with a_i. Beside the
strict sums L, R at half of tau and the strict mass between, for a_i > a_j and D = exp(-(a_i - a_j) / tau),

    M_ij = D (L_j + R_i + mass strictly between + sum over b = a_j of w e^{(b - a_j) / tau}
                                                + sum over b = a_i of w e^{(a_i - b) / tau})

whose exponents are 0 but not constant. For a_i = a_j, M_ij = D (L_j + R_i) + sum over b = a_i of w.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from laplex import _checks
from laplex._gram.sums import ENDLESS, exact_parts
from laplex._scan import ops as _ops
from laplex._scan.autograd import differentiates, not_again, scan, ties
from laplex._shapes import apart, plain, plainly_eager


def gram(
    weight: Tensor,
    phase: tuple[Tensor, ...],
    target: Tensor,
    source: Tensor,
    tau: Tensor,
    order: _ops.Planned,
    *,
    backend: str,
) -> Tensor:
    """Differentiable M (h, m, n, n) in the dtype of weight (h, m, k); phase: phi (h, n) and psi (h, k), or nothing."""
    if backend == "triton" and _here_and_now(weight, target, source, tau, *phase):
        if differentiates(weight, target, source, tau, *phase):
            return _FusedGram.apply(weight, target, source, tau, *order, *phase)[0]  # type: ignore[no-any-return]
        return _kernels("sums").gram(weight, phase, target, source, tau, order)[0]  # type: ignore[no-any-return]
    channels, direction = _channels(weight, phase, target)
    inputs = channels, direction, target, source, tau, *order
    dtype = weight.dtype
    if torch.compiler.is_compiling():  # traces no Function that takes a tensor twice
        _checks.no_transform_in_a_graph()
        return _Gram.apply(*apart(inputs), dtype, backend)[0]  # type: ignore[no-any-return]
    if torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0:
        return _composite(*inputs, dtype=dtype, backend=backend)
    if differentiates(channels, direction, target, source, tau):
        return _Gram.apply(*inputs, dtype, backend)[0]  # type: ignore[no-any-return]
    return _ops.gram(*inputs, dtype, backend)[0]  # type: ignore[no-any-return]


def _here_and_now(*tensors: Tensor) -> bool:
    """Whether kernels may be launched on these very numbers, and there are some, and not too many at once."""
    if not plainly_eager() or forward_ad._current_level >= 0 or tensors[0].shape[0] > _ops.LAUNCH_AXIS:
        return False
    return all(plain(tensor) and tensor.numel() > 0 for tensor in tensors)


def _kernels(part: str) -> ModuleType:
    """The fused kernels of the GPU, which import triton: not before they are needed."""
    return importlib.import_module(f"laplex._triton.gram.{part}")


def _channels(weight: Tensor, phase: tuple[Tensor, ...], target: Tensor) -> tuple[Tensor, Tensor]:
    """weight (h, m, channels, k) and direction (h, 2 or 0, n), in float64; fused kernels make them on the way."""
    weight = weight.double()
    if not phase:
        return weight[:, :, None], target.new_empty((target.shape[0], 0, target.shape[1]), dtype=torch.float64)
    phi, turn = phase[0].double(), 2 * phase[1].double()[:, None]
    direction = torch.stack([phi.cos(), phi.sin()], 1)
    return torch.stack([weight, weight * turn.cos(), weight * turn.sin()], 2), direction


class _FusedGram(torch.autograd.Function):
    """Reverse mode on the GPU, all orders; M and its first derivative without anything as long as the columns."""

    @staticmethod
    def forward(
        weight: Tensor,
        target: Tensor,
        source: Tensor,
        tau: Tensor,
        target_index: Tensor,
        target_values: Tensor,
        source_index: Tensor,
        source_values: Tensor,
        *phase: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor]:
        order = target_index, target_values, source_index, source_values
        made: tuple[Tensor, Tensor, Tensor] = _kernels("sums").gram(weight, phase, target, source, tau, order)
        return made

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*output[1:])
        ctx.save_for_backward(*inputs, *output[1:])

    @staticmethod
    def backward(ctx: Any, g: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
        needs = ctx.needs_input_grad
        if g is None:
            return (None,) * len(needs)
        *inputs, sums, direction = ctx.saved_tensors
        if torch.is_grad_enabled() or not plainly_eager() or not plain(g):
            return tuple(_composite_bars(inputs, g, needs))
        (weight, t, s, tau), phase = inputs[:4], tuple(inputs[8:])
        need = *needs[:4], *(needs[8:] or (False, False))
        bars = _kernels("pull").pullback(g, sums, direction, weight, phase, t, s, tau, need)
        weight_bar, t_bar, s_bar, tau_bar, phi_bar, psi_bar = bars
        found = [weight_bar, t_bar.to(t.dtype), s_bar, tau_bar, None, None, None, None]
        found += [phi_bar.to(phase[0].dtype), psi_bar] if phase else []
        return tuple(bar if needed else None for bar, needed in zip(found, needs, strict=True))


def _composite_bars(inputs: list[Tensor], g: Tensor, needs: tuple[bool, ...]) -> list[Tensor | None]:
    """The bars of what ``_FusedGram`` was given, differentiable."""
    again = torch.is_grad_enabled()
    with torch.enable_grad():
        leaves = apart(inputs)
        weight, target, source, tau, *others = leaves
        channels, direction = _channels(weight, tuple(others[4:]), target)
        order = inputs[4:8]
        made = _composite(channels, direction, target, source, tau, *order, dtype=weight.dtype, backend="triton")
        wanted = [leaf for leaf, needed in zip(leaves, needs, strict=True) if needed]
        found = iter(torch.autograd.grad(made, wanted, g, create_graph=again, materialize_grads=True))
    return [next(found) if needed else None for needed in needs]


class _Gram(torch.autograd.Function):
    """Reverse mode, all orders."""

    @staticmethod
    def forward(  # spelled out: torch.compile counts the parameters
        weight: Tensor,
        direction: Tensor,
        target: Tensor,
        source: Tensor,
        tau: Tensor,
        target_index: Tensor,
        target_values: Tensor,
        source_index: Tensor,
        source_values: Tensor,
        dtype: torch.dtype,
        backend: str,
    ) -> tuple[Tensor, Tensor]:
        order = target_index, target_values, source_index, source_values
        result: tuple[Tensor, Tensor] = _ops.gram(weight, direction, target, source, tau, *order, dtype, backend)
        return result

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        *tensors, ctx.dtype, ctx.backend = inputs
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*tensors, output[1])

    @staticmethod
    def backward(ctx: Any, g: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
        need = ctx.needs_input_grad[:5]
        if g is None:
            return (None,) * 11
        if not not_again():
            return *_composite_pullback(ctx, g, need), *(None,) * 6
        weight, direction, t, s, tau, *order, sums = ctx.saved_tensors
        to_source, to_tau = need[0] or need[3], need[4]
        bars = _ops.gram_pullback(g, sums, weight, direction, t, s, tau, *order, to_source, to_tau, ctx.backend)
        bars = bars[0], bars[1], bars[2].to(t.dtype), bars[3].to(s.dtype), bars[4]
        return *(bar if needed else None for bar, needed in zip(bars, need, strict=True)), *(None,) * 6


def _composite_pullback(ctx: Any, g: Tensor, need: tuple[bool, ...]) -> list[Tensor | None]:
    """The same bars, differentiable."""
    again = torch.is_grad_enabled()
    *tensors, _ = ctx.saved_tensors
    with torch.enable_grad():
        leaves = apart(tensors[:5])
        wanted = [leaf for leaf, needed in zip(leaves, need, strict=True) if needed]
        made = _composite(*(leaves + tensors[5:]), dtype=ctx.dtype, backend=ctx.backend)
        found = iter(torch.autograd.grad(made, wanted, g, create_graph=again, materialize_grads=True))
    return [next(found) if needed else None for needed in need]


def _composite(
    weight: Tensor,
    direction: Tensor,
    target: Tensor,
    source: Tensor,
    tau: Tensor,
    target_index: Tensor,
    target_values: Tensor,
    source_index: Tensor,
    source_values: Tensor,
    *,
    dtype: torch.dtype,
    backend: str,
) -> Tensor:
    """M of differentiable parts; several tensors of its size."""
    order = target_index, target_values, source_index, source_values
    channels, n = weight.shape[-2], target.shape[-1]
    a = target.double()
    gap = a[..., :, None] - a[..., None, :]
    row_is_right, equal = _pairwise(gap >= 0), _pairwise(gap == 0)
    decay = _pairwise(torch.exp(-torch.where(gap >= 0, gap, -gap) / tau[..., None, None]))

    left, right = _strict_sums(weight, target, source, tau, order, backend)
    tied_left, tied_right, tied = _tied_sums(weight, target, source, tau)
    up_to = _endless_sums(weight, target, source, tau, order, backend)
    between = (up_to[..., :, None] - up_to[..., None, :]).sum(-3)
    between = torch.where(row_is_right, between, -between) - (tied[..., :, None] + tied[..., None, :]) / 2

    def of_left(v: Tensor) -> Tensor:
        return torch.where(row_is_right, v[..., None, :], v[..., :, None])

    def of_right(v: Tensor) -> Tensor:
        return torch.where(row_is_right, v[..., :, None], v[..., None, :])

    apart = decay * (of_left(tied_left) + between + of_right(tied_right))
    made = decay * (of_left(left) + of_right(right)) + torch.where(equal, tied[..., :, None], apart)
    if channels == 3:
        made = made * _turns(direction)
    return made.sum(-3).to(dtype).reshape(*weight.shape[:-2], n, n)


def _pairwise(of_kernels: Tensor) -> Tensor:
    """(h, n, n) beside (h, m, channels, n, n)."""
    return of_kernels[..., None, None, :, :]


def _strict_sums(
    weight: Tensor, target: Tensor, source: Tensor, tau: Tensor, order: _ops.Planned, backend: str
) -> tuple[Tensor, Tensor]:
    """L and R at half of tau, (h, m, channels, n)."""
    even, odd = scan(weight, target, source, tau / 2, *order, odd=True, backend=backend)
    near = even - ties(weight, target, source)
    return (near - odd) / 2, (near + odd) / 2


def _tied_sums(weight: Tensor, target: Tensor, source: Tensor, tau: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The weights that tie with each anchor: three times the same sum, moving left with b, right with b, and not."""
    t_step, s_step = (
        ((anchors - anchors.detach()).double() / tau[..., None])[..., None, None, :] for anchors in (target, source)
    )
    left = ties(weight * s_step.exp(), target, source) * (-t_step).exp()
    right = ties(weight * (-s_step).exp(), target, source) * t_step.exp()
    return left, right, ties(weight, target, source)


def _endless_sums(
    weight: Tensor, target: Tensor, source: Tensor, tau: Tensor, order: _ops.Planned, backend: str
) -> Tensor:
    """The mass up to each anchor, half of what ties with it, in two parts: (h, m, channels, 2, n)."""
    endless = torch.full_like(tau.detach(), ENDLESS)
    parts = exact_parts(weight)
    _, odd = scan(parts, target.detach(), source.detach(), endless, *order, odd=True, backend=backend)
    return -odd / 2


def _turns(direction: Tensor) -> Tensor:
    """(h, 1, 3, n, n): half the cosine of the difference, half the cosine and the sine of the sum."""
    cos, sin = direction.unbind(-2)
    cos_cos, sin_sin = cos[..., :, None] * cos[..., None, :], sin[..., :, None] * sin[..., None, :]
    sin_cos = sin[..., :, None] * cos[..., None, :]
    return torch.stack([cos_cos + sin_sin, cos_cos - sin_sin, sin_cos + sin_cos.mT], -3)[..., None, :, :, :] / 2
