"""Products of very many small matrices."""

from __future__ import annotations

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
