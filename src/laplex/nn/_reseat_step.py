"""Anchors that jump during training: a step that gradient descent cannot take, kept only if the loss falls."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor
from torch.nn import functional

from laplex._checks.counts import integer, is_number
from laplex.nn._fitting import Fit, Snapshot
from laplex.nn._linear import LaplexLinear

STEPS = (3.0, 10.0, 30.0, 100.0)


def reseat_step(
    layer: LaplexLinear, loss: Callable[[], Tensor], *, steps: Sequence[float] = STEPS, sweeps: int = 2
) -> tuple[float, float]:
    """Move a layer's anchors to better places, anywhere on the line, if that lowers the loss.

    With W the layer's weight and G the gradient of the loss with respect to it, the anchors are re-seated for the
    target W - step G / h, where h_j is the mean of x_j^2, for each of the given steps. The best result is kept if the
    loss falls; otherwise the layer stays as it is, to the bit. W is formed: this takes as much memory as a dense
    layer, and as much time as a few passes over the examples.

    Optimizers keep averages of gradients, which belong to the old places. Call this rarely, every few epochs, and not
    in the last third of training.

    Args:
        layer: a :class:`LaplexLinear` without phases.
        loss: computes the loss from the layer, a tensor with one element, over enough examples that the step is not
            noise. It is called once with gradients, and then once for every step.
        steps: step sizes, finite numbers, in units of W / G.
        sweeps: how often all kernels are re-seated for each target.

    Returns:
        The loss before and after.
    """
    where = "laplex.nn.reseat_step"
    _check_layer(where, layer)
    integer(where, "sweeps", sweeps)
    _check_steps(where, steps)
    if not callable(loss):
        raise TypeError(f"{where}: `loss` must be a function without arguments, got {type(loss).__name__}; pass one")
    before, gradient, importance = _gradient(where, layer, loss)
    if not 0 < float(importance.mean()) < math.inf:
        return before, before  # the layer got zeros or nothing: no place is better than another
    weight = layer.weight.detach()
    first = best = Snapshot(0.0, *(parameter.detach().clone() for parameter in (layer.a, layer.b, layer.mix)))
    lowest = before
    try:
        for step in steps:
            target = weight - step * gradient / importance.clamp_min(1e-6 * float(importance.mean()))
            first.write_to(layer)
            snapshot = _fit(layer, target, importance, sweeps)
            snapshot.write_to(layer)
            with torch.no_grad():
                after = float(loss())
            if after < lowest:
                lowest, best = after, snapshot
    finally:  # even if the loss raises, the layer is the best so far
        best.write_to(layer)
    return before, lowest


@torch.no_grad()
def _fit(layer: LaplexLinear, target: Tensor, importance: Tensor, sweeps: int) -> Snapshot:
    state = Fit(target, importance / importance.mean(), layer)
    for _ in range(sweeps):
        state.sweep(range(layer.kernels))
    return state.snapshot()


def _gradient(where: str, layer: LaplexLinear, loss: Callable[[], Tensor]) -> tuple[float, Tensor, Tensor]:
    """The loss, its gradient with respect to W, and the mean of x^2 over the layer's inputs."""
    weight = layer.weight.detach().requires_grad_()
    squares: list[Tensor] = []
    counts: list[int] = []

    def dense(x: Tensor) -> Tensor:
        rows = x.detach().reshape(-1, layer.in_features)
        squares.append(rows.abs().to(layer.b.dtype).square().sum(0))  # half precision would overflow
        counts.append(len(rows))
        return functional.linear(x, weight.to(x.dtype), None if layer.bias is None else layer.bias.to(x.dtype))

    replaced = vars(layer).get("forward")  # some libraries wrap a module by setting forward on the instance
    layer.forward = dense  # type: ignore[method-assign]
    try:
        with torch.enable_grad():
            total = loss()
            _check_loss(where, total)
            (gradient,) = torch.autograd.grad(total, weight, allow_unused=True)
    finally:
        del layer.forward
        if replaced is not None:
            layer.forward = replaced  # type: ignore[method-assign]
    if gradient is None:
        raise ValueError(_independent(where))
    return float(total.detach()), gradient, sum(squares, torch.zeros_like(layer.b[0])) / max(sum(counts), 1)


def _check_layer(where: str, layer: object) -> None:
    if not isinstance(layer, LaplexLinear):
        raise TypeError(f"{where}: `layer` must be a LaplexLinear, got {type(layer).__name__}; pass one")
    if layer.phi is not None:
        raise ValueError(f"{where}: `layer` must have no phases, got some; a place is searched for without them")


def _check_loss(where: str, total: object) -> None:
    if not isinstance(total, Tensor) or total.numel() != 1:
        got = f"shape {tuple(total.shape)}" if isinstance(total, Tensor) else type(total).__name__
        raise TypeError(f"{where}: `loss` must return a tensor of one element, got {got}; return its mean")
    if not total.requires_grad:
        raise ValueError(_independent(where))


def _independent(where: str) -> str:
    return (
        f"{where}: `loss` must be computed from the layer, got one that does not depend on it, or not differentiably; "
        "call the layer in it, outside of torch.no_grad() and torch.inference_mode()"
    )


def _check_steps(where: str, steps: object) -> None:
    values = steps if isinstance(steps, Sequence) and not isinstance(steps, str) else [None]
    if not all(is_number(value) and math.isfinite(value) for value in values):
        raise ValueError(f"{where}: `steps` must be a sequence of finite numbers, got {steps!r}; leave it out")
