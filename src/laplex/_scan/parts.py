"""Batches of more matrices than one launch, or the memory, has room for: in parts, one after the other."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from laplex._scan import results
from laplex._scan.order import Matrix
from laplex._shapes import flat, flat_rows


def batch_parts(matrix: Matrix, most: int = 1 << 62) -> list[tuple[slice, Matrix]]:
    """Parts of the batch that fit one launch, with at most so many matrices."""
    most = min(most, results.LAUNCH_AXIS)
    anchors = flat(matrix.target, 2), flat(matrix.source, 2), flat(matrix.tau, 1)
    tensors = *anchors, *matrix.order.tensors
    parts = [slice(at, at + most) for at in range(0, anchors[2].shape[0], most)]
    how = matrix.order.layout, matrix.backend
    return [(part, Matrix.from_flat((*(tensor[part] for tensor in tensors), *how))) for part in parts]


def scan_in_parts(
    scan: Callable[..., tuple[Tensor, ...]], x: Tensor, matrix: Matrix, *, odd: bool, degree: int
) -> tuple[Tensor, Tensor]:
    """What ``scan`` gives for a batch of any size."""
    rows = flat_rows(x, matrix.tau)
    made = [scan(rows[part], of_part, odd=odd, degree=degree) for part, of_part in batch_parts(matrix)]
    even, odd_part = (torch.cat(parts) for parts in zip(*made, strict=True))
    return even.reshape(*x.shape[:-1], even.shape[-1]), odd_part.reshape(*x.shape[:-1], odd_part.shape[-1])
