"""The lazy matrix P: products, transposed products, entries, and the matrix itself."""

import itertools

import dense_soft
import pytest
import torch

from laplex import _compiled, soft


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
    few = soft.topk(torch.randn(3, 8), 2, tau=0.4).permutation
    assert repr(few.mT) == "TransposedPermutation(3 x 8 x 2, torch.float32, device=cpu)"
    assert repr(few.mT.mT) == "SoftPermutation(3 x 2 x 8, torch.float32, device=cpu)"


def test_the_transpose_has_all_that_the_matrix_has(scores):
    P = soft.topk(scores, 3, tau=0.4).permutation
    dense = P.to_dense().mT
    assert P.mT.shape == dense.shape
    torch.testing.assert_close(P.mT.to_dense(), dense)
    rows, cols = torch.tensor([5, -1, 0]), torch.tensor([2, 0, 1])
    torch.testing.assert_close(P.mT[rows, cols], dense[..., rows, cols])
    torch.testing.assert_close(P.mT.log_diagonal(), dense.diagonal(dim1=-2, dim2=-1).log())
    assert P.mT.mT is P
    with pytest.raises(TypeError, match="with a tensor of indices"):
        P.mT[rows]


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("m", [3, 8])
def test_gradients_of_products(scores, descending, m):
    """Of the scores, of tau and of what is multiplied, by P and by its transpose."""
    tau = torch.rand(scores.shape[:-1], dtype=torch.float64) + 0.3
    v = torch.randn(*scores.shape, 2, dtype=torch.float64)
    bars = []
    for dense in (True, False):
        inputs = [part.clone().requires_grad_() for part in (scores, tau, v)]
        P = soft.topk(inputs[0], m, tau=inputs[1], largest=descending).permutation
        P = P.to_dense() if dense else P
        loss = (P @ inputs[2]).sin().sum() + (P.mT @ inputs[2][..., :m, :]).cos().sum()
        bars.append(torch.autograd.grad(loss, inputs))
    for ours, exact in zip(*bars, strict=True):
        torch.testing.assert_close(ours, exact)


@pytest.mark.skipif(bool(_compiled.MISSING), reason="the core counts sorts")
def test_products_share_the_order_that_the_sort_found():
    x, v = torch.randn(1000, requires_grad=True), torch.randn(1000, 2)
    values, P = soft.sort(x, tau=0.1)
    sorts = _compiled.core.tally()[1]
    product, back = P @ v, P.mT @ v
    (values.sum() + product.square().sum() + back.square().sum()).backward()
    assert _compiled.core.tally()[1] == sorts


def test_products_without_gradients_share_the_row_sums(monkeypatch):
    x = torch.randn(1000)
    P = soft.sort(x, tau=0.1, descending=True).permutation
    expected = torch.exp(-(P.targets[:, None] - x).abs() / 0.1).sum(-1)
    torch.testing.assert_close(P.row_sums, expected)
    shapes = []
    product = P._product
    monkeypatch.setattr(P, "_product", lambda rows: shapes.append(rows.shape) or product(rows))
    assert (P @ torch.randn(1000)).shape == (1000,)
    assert shapes == [(1, 1000)]


@pytest.mark.parametrize("order", ["values first", "product first"])
def test_two_backward_passes_through_one_sort(order):
    x, v = torch.randn(30, dtype=torch.float64, requires_grad=True), torch.randn(30, dtype=torch.float64)
    values, P = soft.sort(x, tau=0.3)
    losses = [values.square().sum(), (P @ v).square().sum()]
    together = torch.autograd.grad(sum(losses), x, retain_graph=True)[0]
    for loss in losses if order == "values first" else losses[::-1]:
        loss.backward()
    torch.testing.assert_close(x.grad, together)
    (P @ v).square().sum().backward()  # of a product made after its order's graph was freed


@pytest.mark.parametrize("largest", [False, True])
@pytest.mark.parametrize("batch", [(), (2, 3)], ids=str)
def test_few_rows(batch, largest, monkeypatch):
    """Few rows of many are multiplied by what is not brought into order."""
    x, tau = torch.randn(*batch, 100, dtype=torch.float64), torch.rand(batch, dtype=torch.float64) + 0.3
    v, u = torch.randn(*batch, 100, 2, dtype=torch.float64), torch.randn(*batch, 3, 2, dtype=torch.float64)
    monkeypatch.setattr(torch, "take_along_dim", None)
    results = []
    for dense in (True, False):
        inputs = [part.clone().requires_grad_() for part in (x, tau, v, u)]
        P = soft.topk(inputs[0], 3, tau=inputs[1], largest=largest).permutation
        assert P._is_short
        P = P.to_dense() if dense else P
        products = P @ inputs[2], P.mT @ inputs[3]
        results.append((*products, *torch.autograd.grad(sum(part.sin().sum() for part in products), inputs)))
    P = soft.topk(x, 3, tau=tau, largest=largest).permutation
    results.append((P @ v, P.mT @ u))
    for exact, ours, without_graph in itertools.zip_longest(*results):
        torch.testing.assert_close(ours, exact)
        if without_graph is not None:
            torch.testing.assert_close(without_graph, exact)


@pytest.mark.parametrize("rows", [2, 8])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_no_columns(scores, rows, requires_grad):
    P = soft.topk(scores.requires_grad_(requires_grad), rows, tau=0.4).permutation
    assert (P @ scores.new_ones((*scores.shape, 0))).shape == (*P.shape[:-1], 0)
    assert (P.mT @ scores.new_ones((*P.shape[:-1], 0))).shape == (*scores.shape, 0)


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_products_of_half_precision_are_those_of_float32(dtype):
    """Rows add up to 1, so P v is within the range of v, though the sums that are divided are not."""
    for P in (soft.argsort(torch.zeros(100, dtype=dtype), tau=1.0), soft.argsort(torch.randn(5000), tau=1.0)):
        v = 1000 + torch.randn(P.shape[-1], 2).to(dtype)
        for matrix in (P, P.mT):
            assert (matrix @ v).dtype == torch.float32
            torch.testing.assert_close(matrix @ v, matrix @ v.float(), rtol=1e-6, atol=0)
