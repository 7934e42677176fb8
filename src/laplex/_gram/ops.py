"""The operators of Gram matrices that PyTorch sees: schemas, fakes and registrations.

    laplex::gram(weight, direction, matrix, dtype)                                  -> M, sums
    laplex::gram_pullback(g, sums, weight, direction, matrix, to_source, to_tau)    -> weight_bar, direction_bar, t_bar,
                                                                                       s_bar, tau_bar

``matrix`` stands for the nine arguments of ``Matrix.flat``; ``laplex._gram`` says what the tensors are. Autograd does
not look into the operators.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from laplex._gram import sums as gram_sums
from laplex._gram.sums import Columns
from laplex._scan.ops import MATRIX, matrix_from
from laplex._scan.order import Matrix

_library = torch.library.Library("laplex", "FRAGMENT")
for _schema in (
    f"gram(Tensor weight, Tensor direction, {MATRIX}, ScalarType dtype) -> (Tensor, Tensor)",
    f"gram_pullback(Tensor g, Tensor sums, Tensor weight, Tensor direction, {MATRIX}, bool to_source, bool to_tau) "
    "-> (Tensor, Tensor, Tensor, Tensor, Tensor)",
):
    _library.define(_schema, tags=(torch.Tag.pt2_compliant_tag,))

gram = torch.ops.laplex.gram.default
gram_pullback = torch.ops.laplex.gram_pullback.default
Gradients = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


@torch.library.impl(_library, "gram", "CompositeExplicitAutograd")
def _gram(weight: Tensor, direction: Tensor, *inputs: Any) -> tuple[Tensor, Tensor]:
    *flat_matrix, dtype = inputs
    matrix = matrix_from(flat_matrix)
    if weight.numel() == 0 or matrix.target.numel() == 0:
        results, sums = _matrix_like(weight, matrix, dtype)
        return results.zero_(), sums.zero_()
    return gram_sums.gram(Columns(weight.contiguous(), direction), matrix, dtype)


@torch.library.register_fake("laplex::gram", lib=_library)
def _gram_fake(weight: Tensor, direction: Tensor, *inputs: Any) -> tuple[Tensor, Tensor]:
    *flat_matrix, dtype = inputs
    return _matrix_like(weight, matrix_from(flat_matrix), dtype)


@torch.library.impl(_library, "gram_pullback", "CompositeExplicitAutograd")
def _gram_pullback(g: Tensor, sums: Tensor, weight: Tensor, direction: Tensor, *inputs: Any) -> Gradients:
    *flat_matrix, to_source, to_tau = inputs
    matrix, columns = matrix_from(flat_matrix), Columns(weight.contiguous(), direction)
    if weight.numel() == 0 or matrix.target.numel() == 0:
        results = _gradients_like(columns, matrix, to_source, to_tau)
        return results[0].zero_(), results[1].zero_(), results[2].zero_(), results[3].zero_(), results[4].zero_()
    return gram_sums.pullback(g, sums, columns, matrix, to_source=to_source, to_tau=to_tau)


@torch.library.register_fake("laplex::gram_pullback", lib=_library)
def _gram_pullback_fake(g: Tensor, sums: Tensor, weight: Tensor, direction: Tensor, *inputs: Any) -> Gradients:
    *flat_matrix, to_source, to_tau = inputs
    return _gradients_like(Columns(weight, direction), matrix_from(flat_matrix), to_source, to_tau)


def _matrix_like(weight: Tensor, matrix: Matrix, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    h, m, channels, _ = weight.shape
    n = matrix.target.shape[-1]
    return weight.new_empty((h, m, n, n), dtype=dtype), weight.new_empty((h, m, channels, 4, n))


def _gradients_like(columns: Columns, matrix: Matrix, to_source: bool, to_tau: bool) -> Gradients:
    """All in float64."""
    weight, direction = columns
    weight_shape, source_shape = (weight.shape, matrix.source.shape) if to_source else ((0,), (0,))
    shapes = weight_shape, direction.shape, matrix.target.shape, source_shape
    weight_bar, direction_bar, t_bar, s_bar = (weight.new_empty(shape) for shape in shapes)
    return weight_bar, direction_bar, t_bar, s_bar, matrix.tau.new_empty(matrix.tau.shape if to_tau else (0,))
