r"""The derivative of the Gram matrix: the first by a fused operator, higher ones by a composite of scans.

``laplex._gram`` has the formulas of the operator and of its derivative, which reads the cotangent once. Where that
derivative is to be differentiated in turn, in forward mode and under torch.func, the same matrix is made of
differentiable parts instead.

There ties need care. In the dense definition K_ik with a_i = b_k is a constant, 1, in every order of derivative. So of
a b that ties with a_i, M_ij keeps the factor exp(-|a_j - b| / tau) alone: it moves with b, not with a_i. With the
strict sums L, R at half of tau and the strict mass between, for a_i > a_j and D = exp(-(a_i - a_j) / tau),

    M_ij = D (L_j + R_i + mass strictly between + sum over b = a_j of w e^{(b - a_j) / tau}
                                                + sum over b = a_i of w e^{(a_i - b) / tau})

whose exponents are 0 but not constant. For a_i = a_j, M_ij = D (L_j + R_i) + sum over b = a_i of w.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from laplex import _checks
from laplex._eager import apart, plain, plainly_eager
from laplex._gram import ops
from laplex._gram.sums import ENDLESS, Columns, exact_parts
from laplex._scan.autograd import bars_through, builds_graph, differentiates, scan, ties
from laplex._scan.ops import matrix_from
from laplex._scan.order import Matrix
from laplex._scan.results import LAUNCH_AXIS


def gram(weight: Tensor, phase: tuple[Tensor, ...], matrix: Matrix) -> Tensor:
    """Differentiable M (h, m, n, n) in the dtype of weight (h, m, k); phase: phi (h, n) and psi (h, k), or nothing."""
    target, source, tau = matrix[:3]
    fused = matrix.backend.fused_gram
    if fused is not None and _here_and_now(weight, target, source, tau, *phase):
        if differentiates(weight, target, source, tau, *phase):
            return _FusedGram.apply(weight, *matrix.flat, *phase)[0]  # type: ignore[no-any-return]
        return fused.gram(weight, phase, matrix)[0]  # type: ignore[no-any-return]
    columns = _columns(weight, phase, target)
    dtype = weight.dtype
    if torch.compiler.is_compiling():  # traces no Function that takes a tensor twice
        _checks.no_transform_in_a_graph()
        views = apart((*columns, *matrix.tensors))
        return _Gram.apply(*views, matrix.order.layout, matrix.backend.name, dtype)[0]  # type: ignore[no-any-return]
    if torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0:
        return _composite(columns, matrix, dtype)
    if differentiates(*columns, target, source, tau):
        return _Gram.apply(*columns, *matrix.flat, dtype)[0]  # type: ignore[no-any-return]
    return ops.gram(*columns, *matrix.flat, dtype)[0]  # type: ignore[no-any-return]


def _here_and_now(*tensors: Tensor) -> bool:
    """Whether programs can be launched on these tensors: eagerly, none of them empty, the batch in one launch."""
    if not plainly_eager() or forward_ad._current_level >= 0 or tensors[0].shape[0] > LAUNCH_AXIS:
        return False
    return all(plain(tensor) and tensor.numel() > 0 for tensor in tensors)


def _columns(weight: Tensor, phase: tuple[Tensor, ...], target: Tensor) -> Columns:
    """weight (h, m, channels, k) and direction (h, 2 or 0, n), in float64; fused programs make them in registers."""
    weight = weight.double()
    if not phase:
        direction = target.new_empty((target.shape[0], 0, target.shape[1]), dtype=torch.float64)
        return Columns(weight[:, :, None], direction)
    phi, turn = phase[0].double(), 2 * phase[1].double()[:, None]
    direction = torch.stack([phi.cos(), phi.sin()], 1)
    return Columns(torch.stack([weight, weight * turn.cos(), weight * turn.sin()], 2), direction)


class _FusedGram(torch.autograd.Function):
    """Reverse mode on the GPU, all orders; M and its first derivative without other tensors as long as the columns."""

    @staticmethod
    def forward(ctx: Any, weight: Tensor, *inputs: Any) -> tuple[Tensor, Tensor, Tensor]:
        matrix, phase = matrix_from(inputs[:9]), inputs[9:]
        fused: Any = matrix.backend.fused_gram
        results: tuple[Tensor, Tensor, Tensor] = fused.gram(weight, phase, matrix)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*results[1:])
        ctx.layout, ctx.backend = inputs[7:9]
        ctx.save_for_backward(weight, *phase, *results[1:], *matrix.tensors)
        return results

    @staticmethod
    def backward(ctx: Any, g: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
        needs = ctx.needs_input_grad
        if g is None:
            return (None,) * len(needs)
        weight, *others = ctx.saved_tensors
        *phase, sums, direction = others[:-7]
        matrix = matrix_from((*others[-7:], ctx.layout, ctx.backend))
        need = *needs[:4], *(needs[10:] or (False, False))
        if torch.is_grad_enabled() or not plainly_eager() or not plain(g):

            def function(weight: Tensor, target: Tensor, source: Tensor, tau: Tensor, *phase: Tensor) -> Tensor:
                moved = matrix._replace(target=target, source=source, tau=tau)
                return _composite(_columns(weight, phase, target), moved, weight.dtype)

            bars = bars_through(function, (weight, *matrix[:3], *phase), g, need[: 4 + len(phase)])
            bars += [None] * (6 - len(bars))
        else:
            fused: Any = matrix.backend.fused_gram
            bars = fused.pullback(g, (sums, direction), weight, tuple(phase), matrix, need)
        weight_bar, t_bar, s_bar, tau_bar, phi_bar, psi_bar = bars
        in_order = weight_bar, t_bar, s_bar, tau_bar, *(None,) * 6, *((phi_bar, psi_bar) if phase else ())
        return tuple(bar if needed else None for bar, needed in zip(in_order, needs, strict=True))


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
        layout: str,
        backend: str,
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor]:
        order = target_index, target_values, source_index, source_values
        results: tuple[Tensor, Tensor] = ops.gram(
            weight, direction, target, source, tau, *order, layout, backend, dtype
        )
        return results

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
        *tensors, ctx.layout, ctx.backend, ctx.dtype = inputs
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*tensors, output[1])

    @staticmethod
    def backward(ctx: Any, g: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
        need = ctx.needs_input_grad[:5]
        if g is None:
            return (None,) * 12
        weight, direction, *tensors, sums = ctx.saved_tensors
        if builds_graph():

            def function(weight: Tensor, direction: Tensor, *anchors: Tensor) -> Tensor:
                matrix = matrix_from((*anchors, *tensors[3:], ctx.layout, ctx.backend))
                return _composite(Columns(weight, direction), matrix, ctx.dtype)

            return *bars_through(function, (weight, direction, *tensors[:3]), g, need), *(None,) * 7
        to_source, to_tau = need[0] or need[3], need[4]
        options = ctx.layout, ctx.backend, to_source, to_tau
        bars = ops.gram_pullback(g, sums, weight, direction, *tensors, *options)
        bars = bars[0], bars[1], bars[2].to(tensors[0].dtype), bars[3].to(tensors[1].dtype), bars[4]
        return *(bar if needed else None for bar, needed in zip(bars, need, strict=True)), *(None,) * 7


def _composite(columns: Columns, matrix: Matrix, dtype: torch.dtype) -> Tensor:
    """M of differentiable parts; several tensors of its size."""
    (weight, direction), (target, _, tau) = columns, matrix[:3]
    channels, n = weight.shape[-2], target.shape[-1]
    a = target.double()
    gap = a[..., :, None] - a[..., None, :]
    row_is_right, equal = _pairwise(gap >= 0), _pairwise(gap == 0)
    decay = _pairwise(torch.exp(-torch.where(gap >= 0, gap, -gap) / tau[..., None, None]))

    left, right = _strict_sums(weight, matrix)
    tied_left, tied_right, tied = _tied_sums(weight, matrix)
    up_to = _endless_sums(weight, matrix)
    between = (up_to[..., :, None] - up_to[..., None, :]).sum(-3)
    between = torch.where(row_is_right, between, -between) - (tied[..., :, None] + tied[..., None, :]) / 2

    def pick_left(v: Tensor) -> Tensor:
        return torch.where(row_is_right, v[..., None, :], v[..., :, None])

    def pick_right(v: Tensor) -> Tensor:
        return torch.where(row_is_right, v[..., :, None], v[..., None, :])

    unequal = decay * (pick_left(tied_left) + between + pick_right(tied_right))
    entries = decay * (pick_left(left) + pick_right(right)) + torch.where(equal, tied[..., :, None], unequal)
    if channels == 3:
        entries = entries * _turns(direction)
    return entries.sum(-3).to(dtype).reshape(*weight.shape[:-2], n, n)


def _pairwise(entries: Tensor) -> Tensor:
    """(h, n, n), to broadcast with (h, m, channels, n, n)."""
    return entries[..., None, None, :, :]


def _strict_sums(weight: Tensor, matrix: Matrix) -> tuple[Tensor, Tensor]:
    """L and R at half of tau, (h, m, channels, n)."""
    even, odd = scan(weight, matrix._replace(tau=matrix.tau / 2), odd=True)
    near = even - ties(weight, *matrix[:2])
    return (near - odd) / 2, (near + odd) / 2


def _tied_sums(weight: Tensor, matrix: Matrix) -> tuple[Tensor, Tensor, Tensor]:
    """The weights that tie with each anchor: the same sum three times, moving left with b, right with b, and not."""
    target, source, tau = matrix[:3]
    t_step, s_step = (
        ((anchors - anchors.detach()).double() / tau[..., None])[..., None, None, :] for anchors in (target, source)
    )
    left = ties(weight * s_step.exp(), target, source) * (-t_step).exp()
    right = ties(weight * (-s_step).exp(), target, source) * t_step.exp()
    return left, right, ties(weight, target, source)


def _endless_sums(weight: Tensor, matrix: Matrix) -> Tensor:
    """The mass up to each anchor, with half of what ties with it, in two parts: (h, m, channels, 2, n)."""
    target, source, tau = (part.detach() for part in matrix[:3])
    endless = matrix._replace(target=target, source=source, tau=torch.full_like(tau, ENDLESS))
    _, odd = scan(exact_parts(weight), endless, odd=True)
    return -odd / 2


def _turns(direction: Tensor) -> Tensor:
    """(h, 1, 3, n, n): half the cosine of the difference, half the cosine and the sine of the sum."""
    cos, sin = direction.unbind(-2)
    cos_cos, sin_sin = cos[..., :, None] * cos[..., None, :], sin[..., :, None] * sin[..., None, :]
    sin_cos = sin[..., :, None] * cos[..., None, :]
    return torch.stack([cos_cos + sin_sin, cos_cos - sin_sin, sin_cos + sin_cos.mT], -3)[..., None, :, :, :] / 2
