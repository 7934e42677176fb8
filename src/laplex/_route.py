"""Which way a call of ``laplex.linear`` takes: its checks and its choice, made once for every form of its arguments.

A layer calls with the same shapes, dtypes and devices again and again. The checks look at nothing else (values are
checked where they are read), and take as long as several launches. Warnings are of the first call of a form.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from laplex import _backends, _checks
from laplex._backends.cost import Work
from laplex._eager import plain, plainly_eager

MOST_KEPT = 512  # forms
_has_storage = torch._C._has_storage
_kept: dict[Any, Route] = {}


class Route(NamedTuple):
    """The way of a call."""

    batch: tuple[int, ...]  # H, of the matrices
    backend: str
    forms: bool  # the backend forms the matrix
    direct: bool  # it does so with the tensors as they are: none has to be expanded or converted
    kept: dict[Any, Any]  # what the backend keeps for calls of this form


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
    return torch.is_grad_enabled() and any([isinstance(value, Tensor) and value.requires_grad for value in given])


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
        return (
            value.shape, value.dtype, value.device, value.layout, value.requires_grad, value.is_contiguous(),
            type(value), _has_storage(value), value.is_neg(), value._is_zerotensor(),
        )  # fmt: skip
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
    how = {"summed": weight is not None, "gradients": trained(given), "planned": plan is not None}
    work = Work.from_operands((x, a, b), batch, **how)
    chosen = _backends.choose(a.device, a.shape[-1], b.shape[-1], backend, work)
    table = _backends.load(chosen, a.device.type)
    forms = table.form is not None
    return Route(batch, chosen, forms, forms and _is_direct(given, batch, table.reads_half), {})


def _is_direct(given: Arguments, batch: tuple[int, ...], reads_half: bool) -> bool:
    """Whether the matrix is formed, for gradients, of the tensors as they are."""
    x, a, b, tau, weight, phi, psi, _, _ = given
    tensors = [value for value in (x, a, b, tau, weight, phi, psi) if isinstance(value, Tensor)]
    if not trained(given) or not plainly_eager() or forward_ad._current_level >= 0:
        return False
    if not all(map(plain, tensors)) or x.is_complex():
        return False
    if any(value.numel() == 0 for value in tensors) or len(batch) > 1 or (batch and weight is None):
        return False
    if x.dtype.itemsize < 4 and not reads_half:
        return False
    of_batch = [value.shape[:-1] for value in (a, b, phi) if value is not None]
    of_batch += [value.shape for value in (weight, tau) if isinstance(value, Tensor)]
    return all(shape == batch for shape in of_batch)
