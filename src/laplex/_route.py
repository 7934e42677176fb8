"""Which way a call of ``laplex.linear`` takes: its checks and its choice, made once for every form of its arguments.

A layer calls with the same shapes, dtypes and devices again and again. The checks look at nothing else (values are
checked where they are read), and take as long as several launches.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from laplex import _backends, _checks
from laplex._backends.cost import Work
from laplex._eager import plainly_eager

MOST_KEPT = 512  # forms
_kept: dict[Any, Route] = {}


class Route(NamedTuple):
    """The batch H of the matrices, the backend, whether it forms the matrix, and what it keeps for this form of call."""

    batch: tuple[int, ...]
    backend: str
    forms: bool
    kept: dict[Any, Any]


class Arguments(NamedTuple):
    """Those of ``laplex.linear``, in its order."""

    x: Any
    a: Any
    b: Any
    tau: Any
    weight: Any
    phi: Any
    psi: Any
    plan: Any
    backend: Any


def route(given: Arguments) -> Route:
    """The route of a call, or an error that says what is wrong with an argument."""
    if not plainly_eager() or forward_ad._current_level >= 0:
        return _found(given)
    try:
        key = (*map(_form, given[:7]), given.plan is None, given.backend, torch.is_grad_enabled())
        known = _kept.get(key)
    except TypeError:  # something that cannot be a key, so it is no valid argument
        return _found(given)
    if known is None:
        known = _found(given)
        if len(_kept) >= MOST_KEPT:
            _kept.clear()
        _kept[key] = known
    return known


def trained(given: Arguments) -> bool:
    """Whether a gradient is wanted."""
    if not torch.is_grad_enabled():
        return False
    for value in given:  # a generator would take twice as long
        if isinstance(value, Tensor) and value.requires_grad:
            return True
    return False


def whole(given: Arguments) -> tuple[Any, ...]:
    """The arguments of ``_backends.whole_call``."""
    x, a, b, tau, weight, phi, psi, plan, _ = given
    inputs = tuple(value for value in (x, weight, phi, psi) if value is not None)
    return _backends.Call("linear", weight is not None, phi is not None), tau, inputs, a, b, plan


def forget() -> None:
    """Find every route anew: for tests that change what backends can do."""
    _kept.clear()


def _form(value: Any) -> Any:
    """All that a check may look at."""
    if isinstance(value, Tensor):
        return value.shape, value.dtype, value.device, value.layout, value.requires_grad, value.is_contiguous()
    return type(value), value


def _found(given: Arguments) -> Route:
    where = "laplex.linear"
    x, a, b, tau, weight, phi, psi, plan, backend = given
    _checks.anchor_pair(where, a, b)
    _checks.length_scale(where, tau, a)
    batch = _checks.batch_shape(where, a, b, tau)
    _checks.phases(where, a, b, phi, psi)
    _checks.sum_weight(where, weight, a, batch)
    _checks.operand(where, x, b, batch if weight is None else ())
    if backend is None:
        _backends.tell_without_core(a.device, math.prod(x.shape[:-1]) * (a.shape[-1] + b.shape[-1]))
    work = Work.of((x, a, b), batch, weight is not None, plan is not None, (tau, weight, phi, psi))
    chosen = _backends.choose(a.device, a.shape[-1], b.shape[-1], backend, work)
    return Route(batch, chosen, _backends.load(chosen, a.device.type).form is not None, {})
