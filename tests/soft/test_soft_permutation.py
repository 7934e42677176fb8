"""The lazy matrix P: products, transposed products, entries, and the matrix itself."""

import dense_soft
import pytest
import torch

from laplex import soft


@pytest.fixture(params=[(), (3,), (2, 3)], ids=str)
def scores(request):
    return torch.randn(*request.param, 8, dtype=torch.float64)


def both(scores, tau=0.4):
    return soft.sort(scores, tau=tau).permutation, dense_soft.permutation(scores, tau)


def test_products(scores):
    P, dense = both(scores)
    assert P.shape == dense.shape
    v, columns = torch.randn_like(scores), torch.randn(*scores.shape, 3, dtype=torch.float64)
    torch.testing.assert_close(P @ v, (dense @ v[..., None])[..., 0])
    torch.testing.assert_close(P @ columns, dense @ columns)
    torch.testing.assert_close(P.mT @ v, (dense.mT @ v[..., None])[..., 0])
    torch.testing.assert_close(P.mT @ columns, dense.mT @ columns)


def test_a_rectangle(scores):
    P = soft.topk(scores, 3, tau=0.4).permutation
    dense = dense_soft.permutation(scores, 0.4, descending=True)[..., :3, :]
    torch.testing.assert_close(P.to_dense(), dense)
    v = torch.randn(*scores.shape[:-1], 3, dtype=torch.float64)
    torch.testing.assert_close(P.mT @ v, (dense.mT @ v[..., None])[..., 0])
    torch.testing.assert_close(P.log_diagonal(), dense.diagonal(dim1=-2, dim2=-1).log())


def test_entries(scores):
    P, dense = both(scores)
    rows, cols = torch.tensor([0, 3, -1]), torch.tensor([5, 5, 0])
    torch.testing.assert_close(P[rows, cols], dense[..., rows, cols])
    torch.testing.assert_close(P[2, 7], dense[..., 2, 7])
    torch.testing.assert_close(P[rows[:, None], cols], dense[..., rows[:, None], cols])
    torch.testing.assert_close(P.log_diagonal(), dense.diagonal(dim1=-2, dim2=-1).log())
    torch.testing.assert_close(P.to_dense(), dense)


def test_rows_sum_to_one_and_sums_are_at_least_one(scores):
    P, _ = both(scores)
    torch.testing.assert_close(P @ torch.ones_like(scores), torch.ones_like(scores))
    assert (P.row_sums >= 1).all()


def test_a_tiny_tau_in_float32():
    x = torch.tensor([3.0, 1.0, 2.0])
    P = soft.sort(x, tau=1e-60).permutation  # 0 in float32
    assert P.to_dense().equal(torch.tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]))
    assert P[torch.arange(3), torch.tensor([1, 2, 0])].equal(torch.ones(3))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64, torch.complex64], ids=str)
def test_values_of_another_dtype(dtype):
    """The row sums keep the dtype of the scores, whatever comes first."""
    x = torch.randn(20)
    P = soft.argsort(x, tau=0.4)
    v = torch.randn(20).to(dtype)
    expected = dense_soft.permutation(x.double(), 0.4).to(torch.complex128) @ v.to(torch.complex128)
    assert ((P @ v).to(torch.complex128) - expected).abs().max() < (2e-3 if dtype == torch.float16 else 1e-6)
    assert P.row_sums.dtype == torch.float32


def test_one_vector_for_a_batch():
    P, dense = both(torch.randn(3, 8, dtype=torch.float64))
    v = torch.randn(1, 8, dtype=torch.float64)
    torch.testing.assert_close(P @ v, dense @ v[0])


def test_repr():
    P, _ = both(torch.randn(3, 8, dtype=torch.float64))
    assert repr(P) == "SoftPermutation(3 x 8 x 8, torch.float64, device=cpu)"
