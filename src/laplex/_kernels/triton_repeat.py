"""A product launched again: for small sizes the checks and the Python around two launches take longer than they do."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from laplex import _ops
from laplex._kernels import triton_scan
from laplex._shapes import flat_rows


class Repeat:
    """E x for other x of one form, device and stream, with the order, the anchors and tau of a product done before."""

    def __init__(
        self, kernels: tuple[Any, Any], schedule: triton_scan.Schedule, held: tuple[Tensor, ...], n: int
    ) -> None:
        self.kernels = [(kernel.run, kernel.function, kernel.packed_metadata) for kernel in kernels]
        self.grid, self.scratch, self.n = schedule.grid, schedule.scratch, n
        self.held = held  # tau, entries and positions: their addresses are good while they live
        self.addresses = [tensor.data_ptr() for tensor in held]
        self.numbers = [(*sizes, *flags) for sizes, flags in (schedule.reduce, schedule.scan)]

    def __call__(self, x: Tensor) -> Tensor:
        even = x.new_empty((*x.shape[:-1], self.n))
        scratch = x.new_empty(self.scratch, dtype=torch.float64)  # one a call: another thread may be between its two
        stream = torch._C._cuda_getCurrentRawStream(x.device.index)
        at_x, at_even, at_scratch = x.data_ptr(), even.data_ptr(), scratch.data_ptr()
        (reduce, function, metadata), (scan, scan_function, scan_metadata) = self.kernels
        reduce(
            *self.grid, stream, function, metadata, None, None, None,
            at_x, at_x, *self.addresses, at_scratch, *self.numbers[0],
        )  # fmt: skip
        scan(
            *self.grid, stream, scan_function, scan_metadata, None, None, None,
            at_x, at_even, *self.addresses, at_scratch, at_even, at_scratch, *self.numbers[1],
        )  # fmt: skip
        return even


def repeat_of(x: Tensor, even: Tensor, tau: Tensor, order: _ops.Planned) -> Repeat | None:
    """What does again what made ``even`` of x, if that was two launches on the device at hand."""
    rows, out = flat_rows(x, tau), flat_rows(even, tau)
    first = _ops.holds_entries(order[0])
    entry, position = order[:2] if first else order[2:]
    held = tau, entry, position
    plain = x.is_cuda and x.is_contiguous() and even.is_contiguous() and all(part.is_contiguous() for part in held)
    if not plain or position.shape[-1] == 0 or x.device.index != torch.cuda.current_device():
        return None
    in_order = entry.shape[-1] < _ops.padded(out.shape[-1] + rows.shape[-1])
    schedule = triton_scan.schedule(
        rows.shape, rows.stride(), out.shape, out.stride(), out.stride(), x.dtype,
        first, in_order, checked=False, odd=False, pull=False,
    )  # fmt: skip
    if schedule.carried or schedule.staged:
        return None
    kernels = triton_scan.compiled(schedule, x, position)
    return None if kernels is None else Repeat(kernels, schedule, held, out.shape[-1])
