"""Values against the definitions in float64, for every case, softness, dtype and dimension."""

import math

import dense_soft
import pytest
import torch
from dense_soft import CASES, SOFTNESS, spread

from laplex import soft

ERRORS = {torch.float32: 5e-7, torch.float64: 5e-15}


@pytest.fixture(params=CASES)
def case(request):
    return CASES[request.param]


@pytest.fixture(params=SOFTNESS)
def softness(request):
    return request.param


@pytest.fixture(params=ERRORS, ids=str)
def dtype(request):
    return request.param


def assert_near(value, expected, scale, dtype):
    assert value.dtype == dtype
    assert value.shape == expected.shape
    assert (value.double() - expected).abs().max() <= ERRORS[dtype] * scale


def test_sort(case, softness, dtype):
    x, tau = case.to(dtype), softness * spread(case)
    scale = float(x.abs().max())
    for descending in (False, True):
        values, permutation = soft.sort(x, tau=tau, descending=descending)
        assert_near(values, dense_soft.sort(x.double(), tau, descending=descending), scale, dtype)
        dense = dense_soft.permutation(x.double(), tau, descending=descending)
        assert_near(permutation.to_dense(), dense, 1, dtype)


def test_topk(case, softness, dtype):
    x, tau = case.to(dtype), softness * spread(case)
    k = math.ceil(len(x) / 3)
    for largest in (False, True):
        values = soft.topk(x, k, tau=tau, largest=largest).values
        expected = dense_soft.sort(x.double(), tau, descending=largest)[:k]
        assert_near(values, expected, float(x.abs().max()), dtype)


def test_rank(case, softness, dtype):
    x, tau, n = case.to(dtype), softness * spread(case), len(case)
    expected = dense_soft.rank(x.double(), tau)
    assert_near(soft.rank(x, tau=tau), expected, n, dtype)
    assert_near(soft.rank(x, tau=tau, descending=True), n + 1 - expected, n, dtype)
    assert float(soft.rank(x, tau=tau).double().sum()) == pytest.approx(n * (n + 1) / 2, rel=ERRORS[dtype])


@pytest.mark.parametrize("q", [1e-3, 0.21, 0.5, 0.87, 0.999])
def test_quantile(case, softness, dtype, q):
    """A threshold is judged by the sum there: where that is flat, no digit of the threshold matters."""
    x, tau = case.to(dtype).double(), softness * spread(case)
    b = soft.quantile(x.to(dtype), q, tau=tau)
    assert (b.dtype, b.shape) == (dtype, ())
    expected = dense_soft.threshold(x, torch.ones_like(x), (1 - q) * len(x), tau)
    level = float(dense_soft.distribution((b.double() - x) / tau).mean())
    rounding = 5 * torch.finfo(dtype).eps * max(float(x.abs().max()), abs(float(b)))
    assert abs(float(b) - float(expected)) <= rounding or abs(level - q) <= 1e-14


@pytest.mark.parametrize("share", [1e-3, 0.21, 0.5, 0.87, 0.999])
def test_topk_mask(case, softness, dtype, share):
    x, tau, k = case.to(dtype), softness * spread(case), share * len(case)
    mask = soft.topk_mask(x, k, tau=tau)
    assert float(mask.double().sum()) == pytest.approx(k, rel=5e-7 if dtype == torch.float32 else 1e-13)
    centered = x.double() - float(soft.quantile(x.double(), 1 - share, tau=tau))
    b = dense_soft.threshold(centered, torch.ones_like(centered), k, tau)
    expected = dense_soft.distribution((centered - b) / tau)
    resolution = 2 * torch.finfo(torch.float64).eps * float(x.abs().max()) / tau  # of the oracle
    assert (mask - expected).abs().max() <= ERRORS[dtype] + resolution


@pytest.mark.parametrize("dim", [0, 1, 2, -1, -2, -3])
def test_every_dimension(dim):
    x = torch.randn(3, 5, 4, dtype=torch.float64)
    rows = x.movedim(dim, -1)
    tau = torch.rand(rows.shape[:-1], dtype=torch.float64) + 0.1
    weights = torch.rand_like(x)
    expected = {
        "sort": (soft.sort(x, dim, tau=tau).values, dense_soft.sort(rows, tau).movedim(-1, dim)),
        "rank": (soft.rank(x, dim, tau=tau), dense_soft.rank(rows, tau).movedim(-1, dim)),
        "topk": (soft.topk(x, 2, dim, tau=tau).values, soft.topk(rows, 2, tau=tau).values.movedim(-1, dim)),
        "topk_mask": (soft.topk_mask(x, 1.5, dim, tau=tau), soft.topk_mask(rows, 1.5, tau=tau).movedim(-1, dim)),
        "quantile": (
            soft.quantile(x, 0.3, dim, tau=tau, weights=weights),
            soft.quantile(rows, 0.3, tau=tau, weights=weights.movedim(dim, -1)),
        ),
        "median": (soft.median(x, dim, tau=tau), soft.quantile(rows, 0.5, tau=tau)),
    }
    for name, (value, wanted) in expected.items():
        torch.testing.assert_close(value, wanted, msg=name)


def test_rows_of_a_batch_are_independent():
    x = torch.randn(2, 3, 7, dtype=torch.float64)
    tau, k, q = torch.rand(2, 3) + 0.1, 1 + 5 * torch.rand(2, 3), 0.1 + 0.8 * torch.rand(2, 3)
    weights = torch.rand_like(x)
    mask, quantile = soft.topk_mask(x, k, tau=tau), soft.quantile(x, q, tau=tau, weights=weights)
    for i in range(2):
        for j in range(3):
            torch.testing.assert_close(mask[i, j], soft.topk_mask(x[i, j], k[i, j], tau=tau[i, j]))
            total = weights[i, j].sum()
            b = dense_soft.threshold(x[i, j], weights[i, j], (1 - q[i, j].double()) * total, tau[i, j].double())
            assert float(quantile[i, j]) == pytest.approx(float(b), abs=1e-12)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_in_is_half_precision_out(dtype):
    x = torch.randn(4, 9).to(dtype).requires_grad_()
    calls = {
        "sort": lambda v: soft.sort(v, tau=0.3).values,
        "topk": lambda v: soft.topk(v, 3, tau=0.3).values,
        "rank": lambda v: soft.rank(v, tau=0.3),
        "topk_mask": lambda v: soft.topk_mask(v, 3, tau=0.3),
        "quantile": lambda v: soft.quantile(v, 0.4, tau=0.3),
    }
    for name, call in calls.items():
        value, expected = call(x), call(x.detach().double())
        assert value.dtype == dtype, name
        torch.testing.assert_close(value.double(), expected, rtol=torch.finfo(dtype).eps, atol=1e-6, msg=name)
        (bar,) = torch.autograd.grad(value.double().square().sum(), x)
        assert bar.dtype == dtype, name
        assert bar.isfinite().all(), name


def test_no_rows():
    x = torch.zeros(0, 4)
    assert soft.sort(x, tau=1.0).values.shape == soft.rank(x, tau=1.0).shape == (0, 4)
    assert soft.topk_mask(x, 2, tau=1.0).shape == (0, 4)
    assert soft.quantile(x, 0.5, tau=1.0).shape == (0,)


def test_automatic_softness_is_the_spread_over_the_cube_root():
    x = torch.tensor([[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 1e9], [2.0] * 7 + [6.0], [1.0] * 8])
    tau = torch.tensor([(6.0 - 1.0) / 1.349, 2.0, 1.0]) / 2  # the quartiles; half the range; 1
    torch.testing.assert_close(soft.rank(x, tau="auto"), soft.rank(x, tau=tau))
    torch.testing.assert_close(soft.sort(x, tau="auto").values, soft.sort(x, tau=tau).values)
    assert soft.rank(torch.tensor([4.0]), tau="auto") == 1


@pytest.mark.parametrize("n", [10, 100, 10_000, 1_000_000])
def test_automatic_softness_is_soft_for_every_n(n):
    """About n^(2/3) neighbours are mixed, and ranks move by less than the sampling error of a rank, sqrt(n) / 2."""
    x = torch.randn(n, dtype=torch.float64)
    mixed = soft.sort(x, tau="auto").permutation.row_sums.median() / n ** (2 / 3)
    assert 0.1 < mixed < 2
    hard = x.argsort().argsort() + 1
    assert (soft.rank(x, tau="auto") - hard).square().mean().sqrt() < math.sqrt(n) / 2


def test_automatic_softness_scales_with_the_numbers():
    x = torch.randn(30, dtype=torch.float64)
    for scale in (1e-6, 1e6):
        torch.testing.assert_close(soft.rank(scale * x, tau="auto"), soft.rank(x, tau="auto"))


def test_softsort_ranks(case, softness, dtype):
    x, tau, n = case.to(dtype), softness * spread(case), len(case)
    wide = x.double()
    places = torch.arange(1.0, n + 1, dtype=torch.float64)
    weights = torch.softmax(-dense_soft.differences(wide, wide.sort().values).abs() / tau, -1)
    assert_near(soft.rank(x, tau=tau, method="softsort"), weights @ places, n, dtype)
    assert_near(soft.rank(x, tau=tau, method="softsort", descending=True), n + 1 - weights @ places, n, dtype)


def test_a_mask_where_lapsum_in_torch_fails():
    """Numbers of scale 1e4 with tau = 0.1 in float32: sums of exp(x / tau) would overflow."""
    x = 1e4 * torch.randn(1000)
    mask = soft.topk_mask(x, 300, tau=0.1)
    assert float(mask.double().sum()) == pytest.approx(300, rel=1e-6)
    assert mask.round().equal(torch.zeros(1000).scatter(0, x.topk(300).indices, 1.0))


@pytest.mark.parametrize("shape", [(5,), (2, 5), (2, 3, 5)])
def test_results_can_be_changed_in_place(shape):
    x = torch.randn(shape, requires_grad=True)
    for result in (soft.rank(x, tau=0.3), soft.sort(x, tau=0.3).values, soft.topk_mask(x, 2, tau=0.3)):
        result.mul_(2).sum().backward()
