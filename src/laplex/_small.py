"""Very many small matrices: products, and what is made of vectors and blocks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

MOST_TERMS = 8  # of a sum that is written out


def product(a: Tensor, b: Tensor) -> Tensor:
    """a @ b for a (..., i, k) and b (..., k, j) with small i, j and k.

    A GPU's batched products are made for larger matrices: for millions of 2 x 2 they took most of the time of a
    prediction. Here k multiplications of all numbers at once do it.
    """
    terms = a.shape[-1]
    if not a.is_cuda or not 0 < terms <= MOST_TERMS:
        return a @ b
    total = a[..., :, :1] * b[..., :1, :]
    for k in range(1, terms):
        total = torch.addcmul(total, a[..., :, k : k + 1], b[..., k : k + 1, :])
    return total


def times(matrix: Tensor, vector: Tensor) -> Tensor:
    """Matrices (..., i, k) times vectors (..., k)."""
    return product(matrix, vector[..., None])[..., 0]


def outer(one: Tensor, two: Tensor) -> Tensor:
    """Vectors (..., i) times transposed vectors (..., j): matrices (..., i, j)."""
    return one[..., :, None] * two[..., None, :]


def symmetric(matrix: Tensor) -> Tensor:
    """The symmetric part of matrices (..., i, i)."""
    return (matrix + matrix.mT) / 2


def block_diagonal(blocks: Sequence[Tensor]) -> Tensor:
    """Matrices (..., s, s) with square blocks (..., s_i, s_i) on the diagonal, and 0 elsewhere."""
    size, first, rows = sum(block.shape[-1] for block in blocks), 0, []
    for block in blocks:
        last = first + block.shape[-1]
        rows.append(torch.nn.functional.pad(block, (first, size - last)))
        first = last
    return torch.cat(rows, -2)
