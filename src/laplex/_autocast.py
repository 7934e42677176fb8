"""Autocast: x is cast as ``torch.nn.functional.linear`` casts it; anchors, tau, phases and sums keep their dtype."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Tensor])
CAST = (torch.float16, torch.bfloat16, torch.float32)  # float64 and complex are not cast
# Those that have autocast. torch.amp.is_autocast_available would say, but torch.compile of torch 2.11 cannot trace it.
DEVICES = ("cpu", "cuda", "xpu", "mps")


def cast(x: Tensor) -> Tensor:
    """x in autocast's dtype for its device, if autocast is on."""
    if not torch._C._is_any_autocast_enabled() or not isinstance(x, Tensor):  # what is not a tensor is refused later
        return x
    device = x.device.type
    if x.dtype not in CAST or device not in DEVICES or not torch.is_autocast_enabled(device):
        return x
    return x.to(torch.get_autocast_dtype(device))


def off(device: torch.device) -> AbstractContextManager[object]:
    """A context in which autocast is off, so that :func:`cast` returns x unchanged."""
    if torch._C._is_any_autocast_enabled() and device.type in DEVICES:
        return torch.autocast(device.type, enabled=False)
    return nullcontext()


def casting(function: F) -> F:
    """A decorator: the function gets its operand cast, and computes as if autocast were off."""

    @functools.wraps(function)
    def call(x: Any, *args: Any, **options: Any) -> Any:
        if not torch._C._is_any_autocast_enabled() or not isinstance(x, Tensor):
            return function(x, *args, **options)
        x = cast(x)
        with off(x.device):
            return function(x, *args, **options)

    return call  # type: ignore[return-value]


def unaffected(function: Callable[P, R]) -> Callable[P, R]:
    """A decorator: the function computes as if autocast were off. Fits and searches need all digits of float32."""

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        with ExitStack() as stack:
            for kind in ("cpu", "cuda") if torch._C._is_any_autocast_enabled() else ():
                stack.enter_context(torch.autocast(kind, enabled=False))
            return function(*args, **kwargs)

    return call
