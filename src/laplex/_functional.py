"""Products with K(a, b), as functions: docstring, checks, plan, scan."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from laplex import _autocast, _checks, _dispatch
from laplex._gram import autograd as _autograd_gram
from laplex._plan import Plan, build, choose_layout, no_order
from laplex._scan.autograd import scan
from laplex._scan.ops import Planned
from laplex._shapes import flat_anchors, flat_tau, fold, unfold
from laplex._triton.launch import constant
from laplex._triton.replay import Repeats


def linear(
    x: Tensor,
    a: Tensor,
    b: Tensor,
    tau: float | Tensor = 1.0,
    *,
    phi: Tensor | None = None,
    psi: Tensor | None = None,
    plan: Plan | None = None,
    backend: str | None = None,
) -> Tensor:
    r"""y = x K^T, as ``torch.nn.functional.linear`` with the weight K(a, b), in O((n + k) log(n + k)).

        K[i, j] = exp(-|a_i - b_j| / tau) * cos(phi_i - psi_j)

    Differentiable to any order in x, a, b, tau, phi and psi, in reverse and forward mode. Where a_i = b_j the
    derivative through |a_i - b_j| is 0. Second derivatives in tau lose digits, in the end all of them, where anchors
    span very many tau, because they are found by a sum that cancels; first derivatives do not.

    Args:
        x (..., k): what is multiplied: float16, bfloat16, float32, float64 or complex. With batched anchors (*H, m, k),
            or anything that broadcasts to it.
        a (*H, n): row anchors, float32 or float64, in any order. Leading dimensions H are independent kernels.
        b (*H, k): column anchors, same dtype.
        tau: positive length scale: a number, or a tensor of one element, or one that broadcasts to H (one a kernel).
        phi (*H, n), psi (*H, k): phases, both or neither.
        plan: a :class:`laplex.Plan` of these anchors, to skip the sort.
        backend: "torch", "cpp", "triton" or "dense"; None lets device and sizes choose: :func:`laplex.backends.which`.

    Returns:
        y (..., n), or (*H, m, n) with batched anchors, in the dtype of x; under autocast, as F.linear does, x is cast
        to its dtype before, unless float64 or complex, and all else is left alone. Sums are carried in float64
        (on CUDA, for float32 and many points, between tiles of a few hundred points). With phases, whose cosines and
        sines are rounded, too, float32 results are within 3 * 2^-23 (there, 5 * 2^-23) of the terms' sum of sizes,
        sum_j exp(-|a_i - b_j| / tau) |x_j|: small results of large terms lose digits. On CUDA nothing
        waits for the device: where anchors or tau are not finite, tau not positive, or a plan not of these anchors, the
        whole of y (of that kernel, with batched anchors) is NaN instead of an error.

    Example:
        >>> a, b, x = torch.randn(1000), torch.randn(500), torch.randn(8, 500)
        >>> laplex.linear(x, a, b, tau=0.5).shape
        torch.Size([8, 1000])
    """
    x = _autocast.cast(x)
    if phi is None and psi is None and backend is None:
        again = _again("linear", tau, (x,), a, b, plan)
        if again is not None:
            return again
    where = "laplex.linear"
    _checks.anchor_pair(where, a, b)
    _checks.length_scale(where, tau, a)
    batch = _checks.batch_shape(where, a, b, tau)
    _checks.phases(where, a, b, phi, psi)
    _checks.operand(where, x, b, batch)
    phase = None
    if phi is not None and psi is not None:
        phase = flat_anchors(phi, batch), flat_anchors(psi, batch)

    if backend is None:
        _dispatch.tell_without_core(a.device, math.prod(x.shape[:-1]) * (a.shape[-1] + b.shape[-1]))

    def product() -> Tensor:
        rows, cols = flat_anchors(a, batch), flat_anchors(b, batch)
        order, chosen = _order(where, a, b, batch, plan, backend)
        tau_flat = constant(flat_tau(tau, batch, a.device))  # of a number; no other tau is repeated
        if not batch:
            return _product(x, rows, cols, tau_flat, phase, order, chosen)
        folded, folding = fold(x, batch)
        return unfold(_product(folded, rows, cols, tau_flat, phase, order, chosen), folding)

    if phase is None and backend is None and not batch:
        return _remembered("linear", product, tau, (x,), a, b, plan)
    return product()


_whole = Repeats()  # products without a plan, whatever the anchors


def _again(
    what: str, tau: float | Tensor, inputs: tuple[Tensor, ...], a: Tensor, b: Tensor, plan: Plan | None
) -> Tensor | None:
    """The product as one of its form was launched before on the GPU, where nothing is left to check."""
    if torch.compiler.is_compiling():
        return None
    if plan is None:
        inputs = *inputs, a, b
        repeats = _whole
    elif isinstance(plan, Plan) and plan._repeats.kept and plan._knows(a, b):
        repeats = plan._repeats
    else:
        return None
    kept = repeats.find(what, tau, *inputs) if repeats.kept else None
    return None if kept is None else kept(*inputs)[0]


def _remembered(
    what: str,
    product: Callable[[], Tensor],
    tau: float | Tensor,
    inputs: tuple[Tensor, ...],
    a: Tensor,
    b: Tensor,
    plan: Plan | None,
) -> Tensor:
    """The product, remembered for :func:`_again`."""
    if torch.compiler.is_compiling():
        return product()
    if plan is None:
        return _whole.do(what, product, tau, *inputs, a, b)
    if isinstance(plan, Plan) and plan._knows(a, b):
        return plan._repeats.do(what, product, tau, *inputs, constant=(a, b, *plan._order))
    return product()


def gram(
    a: Tensor,
    b: Tensor,
    weight: Tensor | None = None,
    tau: float | Tensor = 1.0,
    *,
    phi: Tensor | None = None,
    psi: Tensor | None = None,
    plan: Plan | None = None,
    backend: str | None = None,
) -> Tensor:
    r"""M = K diag(weight) K^T, the weighted Gram matrix of the rows of K(a, b), in O(n^2 + (n + k) log(n + k)).

        M[i, j] = sum over l of weight_l K[i, l] K[j, l]
        K[i, l] = exp(-|a_i - b_l| / tau) * cos(phi_i - psi_l)

    Differentiable to any order in weight, a, b, tau, phi and psi. Where a_i = b_l the derivative through |a_i - b_l| is
    0. Nothing of size n * k is formed, and nothing of size n * n but M, nor in its gradient; derivatives of the
    gradient, forward mode and torch.func hold several n * n.

    Args:
        a (*H, n): row anchors, float32 or float64, in any order. Leading dimensions H are independent kernels.
        b (*H, k): column anchors, same dtype.
        weight (k,) or (..., k): float32 or float64, of any sign; None for ones. Weights below some 1e-28 of the largest
            are lost, and where the sum of |weight| passes 2^1023 all overflows. Several weights share the sort. With
            batched anchors (k,), the same for all, or (*H, m, k), or anything that broadcasts to it.
        tau: positive length scale: a number, or a tensor of one element, or one that broadcasts to H (one a kernel).
        phi (*H, n), psi (*H, k): phases, both or neither.
        plan: a :class:`laplex.Plan` of these anchors, to skip the sort.
        backend: "torch", "cpp", "triton" or "dense"; None lets device and sizes choose.

    Returns:
        M (*H, n, n) for one weight, else (..., n, n) or (*H, m, n, n); symmetric to the bit; in the dtype of the
        weight, of the anchors without. All is computed in float64; the gradient of the weight is rounded as the
        cotangent is, so that for a column many tau from every row nothing of it is right. On CUDA nothing waits for
        the device; a fault makes M NaN, as it does in :func:`linear`.

    Example:
        >>> a, b, weight = torch.randn(100), torch.randn(50_000), torch.rand(50_000)
        >>> laplex.gram(a, b, weight, tau=0.5).shape
        torch.Size([100, 100])
    """
    given = tuple(tensor for tensor in (weight, phi, psi) if tensor is not None)
    what = f"gram of {len(given)}"
    if weight is not None and backend is None:
        again = _again(what, tau, given, a, b, plan)
        if again is not None:
            return again
    where = "laplex.gram"
    _checks.anchor_pair(where, a, b)
    _checks.length_scale(where, tau, a, _checks.SMALLEST_TAU_OF_SQUARES)
    batch = _checks.batch_shape(where, a, b, tau)
    _checks.phases(where, a, b, phi, psi)
    _checks.gram_weight(where, weight, b, batch)
    if backend is None:
        _dispatch.tell_without_core(a.device, a.shape[-1] ** 2 + b.shape[-1])
    product = partial(_gram, where, a, b, weight, tau, phi, psi, plan, backend, batch)
    if weight is not None and backend is None and not batch:
        return _remembered(what, product, tau, given, a, b, plan)
    return product()


def _gram(
    where: str,
    a: Tensor,
    b: Tensor,
    weight: Tensor | None,
    tau: float | Tensor,
    phi: Tensor | None,
    psi: Tensor | None,
    plan: Plan | None,
    backend: str | None,
    batch: tuple[int, ...],
) -> Tensor:
    """The Gram matrix of arguments that were checked."""
    order, chosen = _order(where, a, b, batch, plan, backend)
    given = a.new_ones(()).expand(b.shape[-1]) if weight is None else weight
    if not batch:  # one kernel: views, as few as can be
        one = tuple(side.unsqueeze(0) for side in (a, b, phi, psi) if side is not None)  # phases: both or neither
        m, tau_flat = math.prod(given.shape[:-1]), constant(flat_tau(tau, (), a.device)).reshape(1)
        made = _autograd_gram.gram(
            given.reshape(1, m, given.shape[-1]), one[2:], one[0], one[1], tau_flat, order, backend=chosen
        )
        return made.reshape(*given.shape[:-1], *made.shape[-2:])
    folded, folding = fold(given if given.dim() > 1 else given[None], batch)
    rows, cols, *phase = (flat_anchors(side, batch) for side in (a, b, phi, psi) if side is not None)
    tau_flat = flat_tau(tau, batch, a.device)
    made = _autograd_gram.gram(folded, tuple(phase), rows, cols, tau_flat, order, backend=chosen)
    n = a.shape[-1]
    matrices = unfold(made.reshape(*made.shape[:2], n * n), folding)
    matrices = matrices.reshape(*matrices.shape[:-1], n, n)  # a view: only what leads was permuted
    return matrices if given.dim() > 1 else matrices.squeeze(-3)


def _order(
    where: str, a: Tensor, b: Tensor, batch: tuple[int, ...], plan: Plan | None, backend: str | None
) -> tuple[Planned, str]:
    """The order of the anchors, of the plan if there is one, and the backend that will use it."""
    n, k = a.shape[-1], b.shape[-1]
    chosen = _dispatch.choose(a.device, n, k, backend)
    if plan is None:
        rows, cols = flat_anchors(a, batch), flat_anchors(b, batch)
        dense = chosen == "dense"
        return no_order(rows, cols) if dense else build(rows, cols, choose_layout(n, k, chosen), chosen), chosen
    if not isinstance(plan, Plan):
        raise TypeError(_checks.not_a_plan(where, plan))
    plan._check_shape(where, (*batch, n, k), a.device)
    if backend is None and chosen != "dense":
        chosen = plan.backend
    if chosen != "dense" and (chosen == "triton") != (plan.backend == "triton"):
        raise ValueError(_checks.other_backend(where, chosen, plan.backend))
    return plan._order_for(a, b), chosen


def _product(
    x: Tensor,
    a: Tensor,
    b: Tensor,
    tau: Tensor,
    phase: tuple[Tensor, Tensor] | None,
    order: Planned,
    backend: str,
) -> Tensor:
    """x (h, m, k), or (..., k) for one kernel, to (..., n) in the dtype of x. Parts and phases stack around a scan."""
    if x.is_complex():
        parts = _stack(x.real, x.imag, a)
        return torch.complex(*_unstack(_product(parts, a, b, tau, phase, order, backend), a))
    wide = x.to(torch.float32) if x.dtype.itemsize < 4 and (phase is not None or backend != "triton") else x
    if phase is not None:  # cos(phi - psi) = cos phi cos psi + sin phi sin psi
        phi, psi = (_angle(part, a, wide) for part in phase)
        wide = _stack(wide * psi.cos().to(wide.dtype), wide * psi.sin().to(wide.dtype), a)
    # Saved for the gradient of a; recomputed if it turns out to be needed.
    odd = torch.is_grad_enabled() and a.requires_grad
    y, _ = scan(wide, a, b, tau, *order, odd=odd, backend=backend)
    if phase is not None:
        of_cos, of_sin = _unstack(y, a)
        y = of_cos * phi.cos().to(y.dtype) + of_sin * phi.sin().to(y.dtype)
    return y if y.dtype == x.dtype else y.to(x.dtype)


def _angle(phase: Tensor, a: Tensor, x: Tensor) -> Tensor:
    """Phases beside the rows of x, (..., k) or (h, ..., k), at least as precise as x."""
    angle = phase.to(torch.promote_types(phase.dtype, x.dtype))
    return angle if a.dim() == 1 else angle.reshape(a.shape[0], *[1] * (x.dim() - 2), phase.shape[-1])


def _stack(one: Tensor, two: Tensor, a: Tensor) -> Tensor:
    """Two operands as more rows of one: in front of (..., k) for one kernel, of m in (h, m, k) for several."""
    return torch.stack([one, two], a.dim() - 1)


def _unstack(y: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
    one, two = y.unbind(a.dim() - 1)
    return one, two
