"""The base of all modules with anchors: anchors are never in half precision, and frozen ones are sorted once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn

from laplex import _checks
from laplex._eager import plainly_eager
from laplex._errors import StalePlanError
from laplex._flops import tell_counters
from laplex._functional import linear
from laplex._plan import Plan


class Anchored(nn.Module):
    """A module whose floating-point tensors stay in float32 or float64, and which keeps a plan of frozen anchors."""

    _plan: Plan | None

    def __init__(self) -> None:
        super().__init__()
        self._plan = None

    def _product(self, x: Tensor, a: Tensor, b: Tensor, tau: Tensor, **rest: Any) -> Tensor:
        """The product of :func:`laplex.linear`, with a plan if the anchors are frozen."""
        return self._planned(lambda plan: linear(x, a, b, tau, plan=plan, **rest), a, b)

    def _planned(self, product: Callable[[Plan | None], Tensor], a: Tensor, b: Tensor) -> Tensor:
        """Call a product of the anchors a and b, with a plan if they are frozen."""
        if not plainly_eager():
            tell_counters()
        plan = self._frozen_plan(a, b)
        if plan is None:
            return product(None)
        try:
            return product(plan)
        except StalePlanError:  # the anchors were written through ``.data``, as some averages of weights are
            return product(self._new_plan(a, b))

    def _frozen_plan(self, a: Tensor, b: Tensor) -> Plan | None:
        """The plan of anchors that are not trained, rebuilt when they change; None if it would not help.

        Trained anchors have a different order at every step. While a graph is traced, values are not known. A CUDA
        graph sorts by itself: it would need this plan as long as it lives, and building one waits for the device.
        """
        if not plainly_eager() or a.is_meta:
            if torch.onnx.is_in_onnx_export():
                raise RuntimeError(_checks.not_exported(self, "torch.onnx.export"))
            return None
        if a.requires_grad or b.requires_grad:
            self._plan = None  # a fused optimizer moves the anchors, and torch does not count its writes
            return None
        if a.is_cuda and torch.cuda.is_current_stream_capturing():
            return None
        if a is not self.a:  # a copy, made for one call
            return None
        plan = self._plan  # one look: another thread may replace it
        if plan is None or not plan._knows(a, b):
            plan = self._new_plan(a, b)
        return plan

    def _new_plan(self, a: Tensor, b: Tensor) -> Plan:
        plan = Plan(a, b)
        if a.is_cuda:  # other threads, with other streams, may use it at once
            torch.cuda.current_stream(a.device).synchronize()
        self._plan = plan
        return plan

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Convert as every module does, but never to less than float32."""
        self._plan = None
        super()._apply(never_to_half(fn), recurse)
        return self

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """Load as every module does, but convert assigned tensors to at least float32."""
        self._plan = None  # it has weak references to the anchors, and torch cannot swap tensors that have any
        for key in (prefix + name for name in (*self._parameters, *self._buffers)):
            value = state_dict.get(key)
            if isinstance(value, Tensor) and _is_half(value):
                state_dict[key] = value.float()
        super()._load_from_state_dict(state_dict, prefix, *args)

    def __prepare_scriptable__(self) -> Self:
        """Called by torch.jit.script before it compiles the module."""
        raise RuntimeError(_checks.not_exported(self, "torch.jit.script"))

    def __getstate__(self) -> dict[str, Any]:
        """The state for copies and pickles, without the plan, which identifies its anchors by address."""
        return {**self.__dict__, "_plan": None}


def never_to_half(fn: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """A conversion of tensors like ``fn`` that gives float32 where ``fn`` would give half precision."""

    def convert(tensor: Tensor) -> Tensor:
        converted = fn(tensor)
        return tensor.to(converted.device, torch.float32) if _is_half(converted) else converted

    return convert


def in_single(*tensors: Any) -> Any:
    """The tensors of a layer, in float32 if FSDP or ``functional_call`` has put ones of half precision in their places.

    Some may be None, but not the first, which tells the precision of all.
    """
    return tensors if not _is_half(tensors[0]) else [None if tensor is None else tensor.float() for tensor in tensors]


def _is_half(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and tensor.dtype.itemsize < 4


def uniform(like: Tensor, generator: torch.Generator | None, dtype: torch.dtype | None = None) -> Tensor:
    """Random numbers in [0, 1) with a tensor's shape, on its device, drawn on the generator's device."""
    device = like.device if generator is None else generator.device
    return torch.rand(like.shape, generator=generator, device=device, dtype=dtype or like.dtype).to(like.device)
