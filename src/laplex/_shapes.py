"""Fold any broadcast of batch and kernels into (kernels, rows, size) and back. One kernel needs no folding."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter


class Folding(NamedTuple):
    """How x (*F, m, k) was folded: F broadcast with H, then the kernel dimensions brought to the front."""

    lead: tuple[int, ...]  # broadcast of F and H
    front: tuple[int, ...]  # permutation of lead: kernel dimensions first, then dimensions all kernels share
    rows: int  # m


def fold(x: Tensor, batch: tuple[int, ...]) -> tuple[Tensor, Folding]:
    """x (*F, m, k) -> (h, rows, k), h = prod(H). A dimension in which the kernels do not differ becomes rows."""
    lead = tuple(torch.broadcast_shapes(x.shape[:-2], batch))
    kernels = (1,) * (len(lead) - len(batch)) + batch
    axes = range(len(lead))
    front = (*[d for d in axes if kernels[d] != 1], *[d for d in axes if kernels[d] == 1])
    last = len(lead)
    rows = x.shape[-2] * math.prod([size for size, of in zip(lead, kernels, strict=True) if of == 1])
    folded = x.expand(*lead, *x.shape[-2:]).permute(*front, last, last + 1)
    return folded.reshape(math.prod(batch), rows, x.shape[-1]), Folding(lead, front, x.shape[-2])


def unfold(y: Tensor, folding: Folding) -> Tensor:
    """(h, rows, n) -> (*F, m, n): the inverse of :func:`fold`, for another last size."""
    lead, front, m = folding
    back = [front.index(d) for d in range(len(front))]
    last = len(front)
    return y.reshape(*[lead[d] for d in front], m, y.shape[-1]).permute(*back, last, last + 1)


def flat_anchors(values: Tensor, batch: tuple[int, ...]) -> Tensor:
    """(*H', n) -> (h, n), where H' broadcasts to H; a single kernel's stay (n,)."""
    if not batch:
        return values
    n = values.shape[-1]
    return values.expand(*batch, n).reshape(math.prod(batch), n)


def flat_tau(tau: float | Tensor, batch: tuple[int, ...], device: torch.device) -> Tensor:
    """(h,), or () for a single kernel, in float64: a float32 tau is exact there, and a Python number loses nothing."""
    shape = (math.prod(batch),) if batch else ()
    if isinstance(tau, Tensor):
        return beside(tau, 0).to(torch.float64).expand(batch).reshape(shape)
    if device.type == "cuda" and plainly_eager() and not _passing():
        stream = torch._C._cuda_getCurrentRawStream(-1 if device.index is None else device.index)
        return _number_on(float(tau), shape, device, stream)
    return torch.full(shape, float(tau), dtype=torch.float64, device=device)


def beside(tau: Tensor, dims: int) -> Tensor:
    """tau to divide (*H, ...) by, with ``dims`` dimensions behind H; one element is a number, whatever its shape."""
    return tau.reshape((1,) * dims) if tau.numel() == 1 else tau[(..., *[None] * dims)]


@functools.lru_cache(maxsize=64)
def _number_on(value: float, shape: tuple[int, ...], device: torch.device, stream: int) -> Tensor:
    """A number, kept for what runs on one stream: to fill it in anew would be one launch more in every call."""
    return torch.full(shape, value, dtype=torch.float64, device=device)


def _passing() -> bool:
    """Whether what is made here is no ordinary tensor, good for later calls, too."""
    return torch.is_inference_mode_enabled() or torch.cuda.is_current_stream_capturing()


def plainly_eager() -> bool:
    """Whether calls do their work here and now: no graph is made, nothing transforms or watches them."""
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return False
    return not (torch._C._is_tracing() or torch._C._len_torch_dispatch_stack() > 0)


def always(condition: bool | torch.SymBool) -> bool:
    """Whether a condition on sizes holds. In what is exported: whether it does for all sizes that may come, for a graph
    that was made by one answer refuses the sizes of the other."""
    if not torch.compiler.is_exporting():
        return bool(condition)
    from torch.fx.experimental.symbolic_shapes import statically_known_true  # slow to import

    return statically_known_true(condition)


def plain(x: Tensor) -> bool:
    """Whether x is a tensor as any, whose numbers lie at its address: no subclass, no view that negates, no zeros
    without memory, not on meta, no wrapper of a transform, not even of one that has ended: those have no storage."""
    if type(x) is not Tensor and type(x) is not Parameter:
        return False
    return torch._C._has_storage(x) and not (x.is_neg() or x.is_meta or x._is_zerotensor())


def apart(tensors: Iterable[Tensor]) -> list[Tensor]:
    """The same as views, no two of them one tensor, even if one is a and b."""
    return [tensor.view_as(tensor) for tensor in tensors]


def flat(tensor: Tensor, dims: int) -> Tensor:
    """(*H, ...) -> (h, ...), with ``dims`` dimensions in all."""
    if tensor.dim() == dims:
        return tensor
    keep = tensor.dim() - dims + 1
    return tensor.reshape(math.prod(tensor.shape[:keep]), *tensor.shape[keep:])


def flat_rows(x: Tensor, tau: Tensor) -> Tensor:
    """x (*X, k) -> (h, m, k) for tau of h elements."""
    return x.reshape(tau.numel(), x.numel() // max(tau.numel() * x.shape[-1], 1), x.shape[-1])


def in_parts(run: Callable[..., tuple[Tensor, ...]], at_once: int, *tensors: Tensor) -> Any:
    """What a function makes of tensors that all begin with the kernels, (h, ...), no more of them at once than can."""
    h = tensors[0].shape[0]
    if h <= at_once:
        return run(*tensors)
    made = [run(*(tensor[at : at + at_once] for tensor in tensors)) for at in range(0, h, at_once)]
    return tuple(torch.cat(parts) for parts in zip(*made, strict=True))
