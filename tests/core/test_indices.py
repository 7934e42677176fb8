"""Parts of lazy matrices: rows and columns, and matrices of a batch."""

import numpy as np
import pytest
import torch

from helpers import error
from laplex import LaplaceOperator
from systems import normal


def close(got, want):
    assert error(got, want) <= 1e-14


def positive(*shape):
    return torch.rand(*shape, dtype=torch.float64) + 0.5


def test_one_index_of_a_matrix_selects_rows():
    K = LaplaceOperator(normal(7), normal(5))
    dense = K.to_dense()
    for index, want in ((3, dense[3:4]), (-1, dense[-1:]), (slice(0, 2), dense[:2]), ([4, 1], dense[[4, 1]])):
        part = K[index]
        assert isinstance(part, LaplaceOperator)
        assert torch.equal(part.to_dense(), want)
    assert len(list(K)) == 7
    assert LaplaceOperator(normal(4))[:]._symmetric


BROADCAST = LaplaceOperator(normal(3, 1, 5), normal(2, 4), positive(2), phi=normal(3, 1, 5), psi=normal(2, 4))
INDICES = [1, -1, np.int64(2), torch.tensor(1), slice(1, None), [2, 0], torch.tensor([True, False, True])]


@pytest.mark.parametrize("index", INDICES, ids=repr)
@pytest.mark.parametrize("kind", ["kernel", "symmetric", "gram", "sum"])
def test_one_index_of_a_batch_selects_matrices(index, kind):
    K = BROADCAST
    if kind == "symmetric":
        K = LaplaceOperator(normal(3, 2, 5), phi=normal(3, 2, 5))
    if kind in ("gram", "sum"):
        K = K.gram(positive(2, 4))
    if kind == "sum":
        K = (positive(3, 1) * K - K / 2).add_diagonal(positive(2, 5))
    part = K[index]
    assert type(part) is type(K)
    close(part.to_dense(), K.to_dense()[index])
    if kind == "symmetric":
        assert part._symmetric


@pytest.mark.parametrize("index", [3, -4, [0, 3]], ids=str)
def test_matrices_out_of_range(index):
    for K in (BROADCAST, BROADCAST.gram(), 2 * BROADCAST):
        with pytest.raises(IndexError):
            K[index]


@pytest.mark.parametrize("key", [..., None, "rows", (0,), (0, 1, 2), (..., 0), [[0, 1], [1, 0]]], ids=repr)
def test_other_indices(key):
    for K in (BROADCAST, BROADCAST.gram(), 2 * BROADCAST):
        with pytest.raises(TypeError, match=rf"{type(K).__name__}: index with K\[rows, cols\], got .*; "):
            K[key]


def test_parts_of_gram_matrices():
    M = LaplaceOperator(normal(6), normal(9)).gram(positive(9))
    close(M[1:4, 1:4].to_dense(), M.to_dense()[1:4, 1:4])
    close(M[:].to_dense(), M.to_dense())
    for key in (2, slice(0, 2), (slice(0, 2), slice(None)), ([0, 1], [1, 0])):
        with pytest.raises(ValueError, match=r"a part must have the same rows and columns, M\[rows, rows\].*to_dense"):
            M[key]


def test_parts_with_a_diagonal():
    A = LaplaceOperator(normal(6)).add_diagonal(positive(6))
    mask = torch.tensor([True, False, True, True, False, False])
    close(A[mask, mask].to_dense(), A.to_dense()[mask][:, mask])
    repeated, twice = [1, 1], [5, -1]
    for key in ((0, slice(None)), 0, ([0, 1], [1, 0]), (repeated, repeated), (twice, twice)):
        with pytest.raises(ValueError, match=r"A\[rows, rows\], without repetitions; index first and then add the"):
            A[key]
