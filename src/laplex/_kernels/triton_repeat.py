"""Products launched again: the checks and the Python around a few launches take longer than they do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from laplex._kernels.triton_launch import Record, recorded, run
from laplex._shapes import plain, plainly_eager

REPEATS_KEPT = 64  # forms


class Repeat:
    """y of other inputs of one form, device and stream, with all else as in a product done before."""

    def __init__(self, record: Record, inputs: tuple[Tensor, ...], y: Tensor) -> None:
        self.shape, self.dtype = y.shape, y.dtype
        self.fresh = [(tensor.shape, tensor.dtype) for tensor in record.fresh]
        roles = {tensor.data_ptr(): place for place, tensor in enumerate((*inputs, y, *record.fresh))}
        self.launches = []
        self.held = []  # what is no input, nor made in the call: the addresses are good while they live
        for compiled, grid, tensors, numbers in record.launches or []:
            where = [(roles.get(tensor.data_ptr(), -1), tensor.data_ptr()) for tensor in tensors]
            self.held += [tensor for tensor, (role, _) in zip(tensors, where, strict=True) if role < 0]
            self.launches.append((compiled, grid, where, numbers))

    def __call__(self, *inputs: Tensor) -> Tensor:
        x = inputs[0]
        y = x.new_empty(self.shape, dtype=self.dtype)
        memory = [x.new_empty(shape, dtype=dtype) for shape, dtype in self.fresh]  # another thread may be at it, too
        at = [tensor.data_ptr() for tensor in (*inputs, y, *memory)]
        stream = torch._C._cuda_getCurrentRawStream(x.device.index)
        for compiled, grid, where, numbers in self.launches:
            run(compiled, grid, stream, [held if role < 0 else at[role] for role, held in where], numbers)
        return y


class Repeats:
    """Repeats of products by the form of their inputs and tau; None where a product was more than launches."""

    def __init__(self) -> None:
        self.kept: dict[Any, Repeat | None] = {}

    def find(self, tau: object, *inputs: Tensor) -> Repeat | None:
        """What does the product again, without the checks that passed."""
        return self.kept.get(_form(tau, inputs)) if self.kept and _repeatable(tau, inputs) else None

    def do(self, product: Callable[[], Tensor], tau: object, *inputs: Tensor) -> Tensor:
        """The product; the first of its form is remembered."""
        if not _repeatable(tau, inputs):
            return product()
        form = _form(tau, inputs)
        if form in self.kept:  # it was tried
            return product()
        with recorded() as record:
            y = product()
            if len(self.kept) >= REPEATS_KEPT:
                del self.kept[next(iter(self.kept))]
            self.kept[form] = _repeat_of(record, inputs, y)
        return y


def _repeatable(tau: object, inputs: tuple[Tensor, ...]) -> bool:
    """On the GPU, no derivative asked for, nothing traced, transformed or captured: a graph would keep addresses."""
    x = inputs[0]
    if type(tau) is not float or not isinstance(x, Tensor) or not x.is_cuda or forward_ad._current_level >= 0:
        return False
    if not plainly_eager() or not all(plain(tensor) and tensor.is_contiguous() for tensor in inputs):
        return False
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in inputs):
        return False
    return not torch.cuda.is_current_stream_capturing()


def _form(tau: object, inputs: tuple[Tensor, ...]) -> tuple[Any, ...]:
    """What launches depend on. The stream: tau was written on it; the device at hand: they go there."""
    index = inputs[0].device.index
    where = torch._C._cuda_getCurrentRawStream(index), torch._C._cuda_getDevice()
    return tau, where, *[(tensor.shape, tensor.dtype, tensor.device) for tensor in inputs]


def _repeat_of(record: Record, inputs: tuple[Tensor, ...], y: Tensor) -> Repeat | None:
    """If it was nothing but launches of compiled kernels, on the device at hand."""
    if not record.launches or any(compiled is None for compiled, *_ in record.launches) or y.numel() == 0:
        return None
    here = inputs[0].device.index == torch.cuda.current_device()
    return Repeat(record, inputs, y) if here and y.is_contiguous() else None
