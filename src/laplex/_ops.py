"""The two operators PyTorch sees: their schemas, shapes and registrations, in one import-light file.

    laplex::plan(a, b, layout)                        -> row_index, col_index     the order of the anchors
    laplex::scan(x, target, source, tau, ..., odd)    -> even, odd                the ordered scan

An index is an int32 tensor (h, c, size); c tells what it holds:

    3  order, below, upto    a side of a merged plan
    1  order                 the short side of a short-axis plan
    2  below, upto           the long side of a short-axis plan, in the caller's order
    0  nothing               the dense backend needs no order

``order`` sorts the side. ``below`` and ``upto`` count the other side's anchors that are < and <= each anchor, so a tie is
``below < upto``. ``scan`` multiplies by K(target, source): swap the two sides, with their indices, for the transpose.

The kernels are opaque to autograd: derivatives are made of the same operators in ``_autograd``.
"""

from __future__ import annotations

import importlib
from types import ModuleType

import torch
from torch import Tensor

_CHANNELS = {"merged": (3, 3), "short_rows": (1, 2), "short_cols": (2, 1)}
_MODULES = {
    "torch": "laplex._kernels.torch_scan",
    "cpp": "laplex._kernels.cpp_scan",
    "dense": "laplex._kernels.dense",
}

_library = torch.library.Library("laplex", "DEF")
_library.define(
    "plan(Tensor a, Tensor b, str layout, str backend) -> (Tensor, Tensor)", tags=(torch.Tag.pt2_compliant_tag,)
)
_library.define(
    "scan(Tensor x, Tensor target, Tensor source, Tensor tau, Tensor target_index, Tensor source_index, bool odd, "
    "str backend) -> (Tensor, Tensor)",
    tags=(torch.Tag.pt2_compliant_tag,),
)

plan = torch.ops.laplex.plan.default
scan = torch.ops.laplex.scan.default


def kernels(backend: str) -> ModuleType:
    """The module of kernels that a backend's name stands for."""
    return importlib.import_module(_MODULES[backend])


@torch.library.impl(_library, "plan", "CompositeExplicitAutograd")
def _plan(a: Tensor, b: Tensor, layout: str, backend: str) -> tuple[Tensor, Tensor]:
    result: tuple[Tensor, Tensor] = kernels(backend).plan(a.detach(), b.detach(), layout)
    return result


@torch.library.register_fake("laplex::plan", lib=_library)
def _plan_fake(a: Tensor, b: Tensor, layout: str, backend: str) -> tuple[Tensor, Tensor]:
    rows, cols = _CHANNELS[layout]
    return (
        a.new_empty((a.shape[0], rows, a.shape[1]), dtype=torch.int32),
        a.new_empty((b.shape[0], cols, b.shape[1]), dtype=torch.int32),
    )


@torch.library.register_vmap("laplex::plan", lib=_library)
def _plan_vmap(
    info: object, in_dims: tuple[int | None, ...], a: Tensor, b: Tensor, layout: str, backend: str
) -> tuple[tuple[Tensor, Tensor], tuple[int, int]]:
    size = info.batch_size  # type: ignore[attr-defined]
    sides = [
        side.movedim(dim, 0) if dim is not None else side.expand(size, *side.shape)
        for side, dim in zip((a, b), in_dims, strict=False)
    ]
    indices = plan(*(side.flatten(0, 1) for side in sides), layout, backend)
    rows, cols = (index.unflatten(0, (size, -1)) for index in indices)
    return (rows, cols), (0, 0)


@torch.library.impl(_library, "scan", "CompositeExplicitAutograd")
def _scan(
    x: Tensor,
    target: Tensor,
    source: Tensor,
    tau: Tensor,
    target_index: Tensor,
    source_index: Tensor,
    odd: bool,
    backend: str,
) -> tuple[Tensor, Tensor]:
    if x.numel() == 0 or target.numel() == 0:
        even = x.new_zeros((*x.shape[:2], target.shape[-1]))
        return even, torch.zeros_like(even) if odd else x.new_empty((*x.shape[:2], 0))
    with torch.autocast(x.device.type, enabled=False):  # inside the kernels precision is ours to choose
        result: tuple[Tensor, Tensor] = kernels(backend).scan(
            x, target, source, tau, target_index, source_index, odd
        )
    return result


@torch.library.register_fake("laplex::scan", lib=_library)
def _scan_fake(
    x: Tensor,
    target: Tensor,
    source: Tensor,
    tau: Tensor,
    target_index: Tensor,
    source_index: Tensor,
    odd: bool,
    backend: str,
) -> tuple[Tensor, Tensor]:
    h, m, _ = x.shape
    n = target.shape[-1]
    return x.new_empty((h, m, n)), x.new_empty((h, m, n if odd else 0))
