"""Batches of more matrices than one launch, or the memory, has room for: in parts, one after the other."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from laplex._scan import results
from laplex._scan.order import Matrix, Order
from laplex._shapes import flat, flat_rows


def batch_parts(matrix: Matrix, most: int = 1 << 62) -> list[tuple[slice, Matrix]]:
    """Parts of the batch that fit one launch, with at most ``most`` matrices each."""
    most = min(most, results.LAUNCH_AXIS)
    anchors = flat(matrix.target, 2), flat(matrix.source, 2), flat(matrix.tau, 1)
    parts = [slice(first, first + most) for first in range(0, anchors[2].shape[0], most)]
    return [(part, _part(matrix, anchors, part)) for part in parts]


def _part(matrix: Matrix, anchors: tuple[Tensor, Tensor, Tensor], part: slice) -> Matrix:
    target, source, tau = anchors
    order = Order.from_tensors([tensor[part] for tensor in matrix.order.tensors], matrix.order.layout)
    return Matrix(target[part], source[part], tau[part], order, matrix.backend)


def scan_in_parts(
    scan: Callable[..., tuple[Tensor, ...]], x: Tensor, matrix: Matrix, *, odd: bool, degree: int
) -> tuple[Tensor, Tensor]:
    """What ``scan`` gives for a batch of any size."""
    rows = flat_rows(x, matrix.tau)
    sums = [scan(rows[part], matrices, odd=odd, degree=degree) for part, matrices in batch_parts(matrix)]
    even, odd_part = (torch.cat(parts) for parts in zip(*sums, strict=True))
    return even.reshape(*x.shape[:-1], even.shape[-1]), odd_part.reshape(*x.shape[:-1], odd_part.shape[-1])
