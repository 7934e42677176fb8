"""Which way a call of ``laplex.linear`` takes: its checks and its choice, made once for every form of its arguments.

A layer calls with the same shapes, dtypes and devices again and again. The checks look at nothing else (values are
checked where they are read), and take as long as several launches. Only the first call of a form warns.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from laplex import _backends, _checks
from laplex._backends import Backend
from laplex._backends.cost import Work
from laplex._eager import is_dtensor, plain, plainly_eager

MOST_ROUTES = 512
_has_storage = torch._C._has_storage
_routes: dict[Any, Route] = {}  # by the form of the arguments
steps: dict[Any, Any] = {}  # of layers, by the form of their inputs: ``laplex._layer``; None where there is none


class Route(NamedTuple):
    """The way of a call."""

    batch: tuple[int, ...]  # H, of the matrices
    backend: Backend
    direct: bool  # the matrix is formed of the tensors as they are: none has to be expanded or converted


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


def find_route(arguments: Arguments) -> Route:
    """The route of a call, or an error that says what is wrong with an argument."""
    if not plainly_eager() or forward_ad._current_level >= 0:
        return _check_and_choose(arguments)
    try:
        key = (*map(_form, arguments[:7]), arguments.plan is None, arguments.backend, torch.is_grad_enabled())
        route = _routes.get(key)
    except TypeError:  # something that cannot be a key, so it is not a valid argument
        return _check_and_choose(arguments)
    if route is None:
        route = _check_and_choose(arguments)
        if len(_routes) >= MOST_ROUTES:
            _routes.clear()
        _routes[key] = route
    return route


def forget() -> None:
    """Forget all routes: for tests that change what backends can do."""
    _routes.clear()
    steps.clear()


def _form(value: Any) -> Any:
    """All that a check may look at."""
    if isinstance(value, Tensor):
        return (
            value.shape, value.dtype, value.device, value.layout, value.requires_grad, value.is_contiguous(),
            type(value), _has_storage(value), value.is_neg(), value._is_zerotensor(),
        )  # fmt: skip
    return type(value), value


def _check_and_choose(arguments: Arguments) -> Route:
    where = "laplex.linear"
    x, a, b, tau, weight, phi, psi, plan, backend = arguments
    for name, value in zip(Arguments._fields, arguments, strict=True):
        if is_dtensor(value):
            raise TypeError(
                f"{where}: `x` must be a DTensor where `{name}` is one, got {type(x).__name__}; use distribute_tensor"
            )
    _checks.anchor_pair(where, a, b)
    _checks.length_scale(where, tau, a)
    batch = _checks.batch_shape(where, a, b, tau)
    _checks.phases(where, a, b, phi, psi)
    _checks.sum_weight(where, weight, a, batch)
    _checks.operand(where, x, b, batch if weight is None else ())
    if backend is None:
        _backends.tell_without_core(a.device, x.numel() + math.prod(x.shape[:-1]) * a.shape[-1])
    gradients = _trains(arguments)
    work = Work.from_operands(
        (x, a, b), batch, summed=weight is not None, gradients=gradients, planned=plan is not None
    )
    table = _backends.choose(a.device, a.shape[-1], b.shape[-1], backend, work)
    return Route(batch, table, table.form is not None and gradients and _is_direct(arguments, batch, table.reads_half))


def _trains(arguments: Arguments) -> bool:
    """Whether a gradient will be needed."""
    return torch.is_grad_enabled() and any([isinstance(value, Tensor) and value.requires_grad for value in arguments])


def _is_direct(arguments: Arguments, batch: tuple[int, ...], reads_half: bool) -> bool:
    """Whether the matrix can be formed, for gradients, of the tensors as they are."""
    x, a, b, tau, weight, phi, psi, _, _ = arguments
    tensors = [value for value in (x, a, b, tau, weight, phi, psi) if isinstance(value, Tensor)]
    if not plainly_eager() or forward_ad._current_level >= 0:
        return False
    if not all(map(plain, tensors)) or x.is_complex():
        return False
    if any(value.numel() == 0 for value in tensors) or len(batch) > 1 or (batch and weight is None):
        return False
    if x.dtype.itemsize < 4 and not reads_half:
        return False
    shapes = [value.shape[:-1] for value in (a, b, phi) if value is not None]
    shapes += [value.shape for value in (weight, tau) if isinstance(value, Tensor)]
    return all(shape == batch for shape in shapes)
