"""A layer's product as one node of autograd's graph if a backend offers that, else by ``laplex.linear``.

The single node is for what layers do most: eager training. Everything else (torch.compile, torch.func, forward mode,
derivatives of derivatives, frozen anchors, odd dtypes) is composed of functions that have all derivatives.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from laplex import _autocast, _route
from laplex._eager import plain, plainly_eager
from laplex._functional import linear
from laplex._layer.inputs import ONES, Factors, Inputs, Settings
from laplex._layer.scaled import scaled
from laplex._plan import Plan
from laplex._precision import allows_tf32
from laplex._scan.autograd import bars_through, builds_graph


def layer_product(
    x: Tensor,
    a: Tensor,
    b: Tensor,
    tau: Tensor,
    mix: Tensor,
    bias: Tensor | None,
    phi: Tensor | None,
    psi: Tensor | None,
    plan: Plan | None = None,
    factors: Factors | None = None,
) -> Tensor:
    """y = x W^T + bias with W = sum over r of mix_r K(a_r, b_r; tau_r): x (..., k) to (..., n), in the dtype of x.

    Args:
        x, a, b, tau, mix, phi, psi: as in :func:`laplex.linear`, where mix is called weight.
        bias (n,): None for none.
        plan: a plan of the anchors, or None.
        factors: by which the gradients of parameters are multiplied; None for 1.
    """
    inputs, factors = Inputs(x, a, b, tau, mix, bias, phi, psi), ONES if factors is None else factors
    if plan is None and plainly_eager() and torch.is_grad_enabled() and forward_ad._current_level < 0:
        if torch._C._is_any_autocast_enabled():
            inputs = inputs._replace(x=_autocast.cast(x))
        step = _find(inputs, factors)
        if step is not None:
            return _Step.apply(step, *inputs)  # type: ignore[no-any-return]
    return composed(inputs, plan, factors)


def composed(inputs: Inputs, plan: Plan | None, factors: Factors) -> Tensor:
    """The same product, computed by ``laplex.linear``."""
    x, a, b, tau, mix, bias, phi, psi = inputs
    a, b, tau, mix, phi, psi = map(scaled, (a, b, tau, mix, phi, psi), factors.each)
    y = linear(x, a, b, tau, weight=mix, phi=phi, psi=psi, plan=plan)
    return y if bias is None else y + bias.to(y.dtype)


def _find(inputs: Inputs, factors: Factors) -> Any:
    """The step for inputs of this form, or None if there is none. Checks and choice happen once per form."""
    try:
        key = (*map(_form, inputs), factors, allows_tf32())
        step = _route.steps.get(key, UNKNOWN)
    except TypeError:  # it cannot be a key, so it is not a valid argument
        return None
    if step is not UNKNOWN:
        return step
    step = _choose(inputs, factors)
    if len(_route.steps) >= _route.MOST_ROUTES:
        _route.steps.clear()
    _route.steps[key] = step
    return step


def _form(value: Any) -> Any:
    """Everything that a step depends on. Torch's dispatch keys tell plain tensors from all others."""
    if type(value) in PLAIN:
        return (
            value.shape, value.dtype, value.device, value.requires_grad, value.is_contiguous(),
            torch._C._dispatch_keys(value).raw_repr(),
        )  # fmt: skip
    return None if value is None else type(value)


PLAIN = (Tensor, torch.nn.Parameter)
UNKNOWN = object()  # stands for a step that was not looked for yet, since None is an answer, too


def _choose(inputs: Inputs, factors: Factors) -> Any:
    """The step of a backend that has one for these inputs."""
    x, a, b, tau, mix, bias, phi, psi = inputs
    given = inputs.given
    if not all(type(tensor) in PLAIN and plain(tensor) for tensor in given) or x.is_complex():
        return None
    if any(tensor.numel() == 0 for tensor in given) or not (a.requires_grad and b.requires_grad):
        return None
    route = _route.find_route(_route.Arguments(x, a, b, tau, mix, phi, psi, None, None))
    r, n = route.batch, a.shape[-1]
    same = a.shape[:-1] == b.shape[:-1] == tau.shape == mix.shape == r and len(r) == 1
    if not same or (phi is not None and phi.shape[:-1] != r) or not all(map(_is_parameter, given[1:])):
        return None
    if bias is not None and (bias.shape != (n,) or bias.device != x.device):
        return None
    if route.backend.step is None:
        return None
    present = tuple(tensor is not None for tensor in inputs)
    needs = tuple(tensor is not None and tensor.requires_grad for tensor in inputs)
    numbers = Factors(*map(float, factors))  # an integer would compile a different program
    return route.backend.step(Settings(route.backend, present, needs, numbers), inputs)


def _is_parameter(tensor: Tensor) -> bool:
    """Whether programs can read the tensor as it is."""
    return tensor.dtype in (torch.float32, torch.float64) and tensor.is_contiguous()


class _Step(torch.autograd.Function):
    """A Function in the older form, because binding arguments for ``setup_context`` takes as long as a launch."""

    @staticmethod
    def forward(ctx: Any, step: Any, *tensors: Any) -> Tensor:
        given = Inputs(*tensors).given
        with _autocast.off(given[0].device):
            y, inner = step.forward(given)
        ctx.step, ctx.places = step, inner.places
        ctx.save_for_backward(*given, *inner.tensors)
        return y  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        saved, step = ctx.saved_tensors, ctx.step
        settings = step.settings
        count = sum(settings.present)
        with _autocast.off(g.device):  # backward may run where autocast is on
            if builds_graph() or not plain(g):
                inputs, _ = settings.inputs(saved[:count])
                return None, *_by_composition(inputs, g, settings)
            return None, *step.backward(g, saved[:count], saved[count:], ctx.places)


def _by_composition(inputs: Inputs, g: Tensor, settings: Settings) -> list[Tensor | None]:
    """The gradients as differentiable tensors."""

    def function(*tensors: Any) -> Tensor:
        return composed(Inputs(*tensors), None, settings.factors)

    return bars_through(function, inputs, g, settings.needs)
