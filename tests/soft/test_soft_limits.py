"""Sums that hold for every tau, and what remains as tau goes to 0: torch.sort, torch.topk, scipy's ranks."""

import math

import pytest
import scipy.stats
import torch
from dense_soft import CASES

from laplex import soft

NONE = 1e-300


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("name", CASES)
class TestWithoutSoftness:
    def test_sort(self, name, dtype):
        x = CASES[name].to(dtype)
        for descending in (False, True):
            expected = x.sort(descending=descending).values
            torch.testing.assert_close(soft.sort(x, tau=NONE, descending=descending).values, expected)
            assert soft.sort(x, tau=1.0, descending=descending, hard=True).values.equal(expected)

    def test_rank(self, name, dtype):
        x = CASES[name].to(dtype)
        expected = torch.from_numpy(scipy.stats.rankdata(x.numpy(), method="average")).to(dtype)
        assert soft.rank(x, tau=NONE).equal(expected)
        assert soft.rank(x, tau=NONE, descending=True).equal(len(x) + 1 - expected)

    def test_topk(self, name, dtype):
        x = CASES[name].to(dtype)
        for k in range(1, len(x) + 1):
            for largest in (False, True):
                expected = x.topk(k, largest=largest).values
                torch.testing.assert_close(soft.topk(x, k, tau=NONE, largest=largest).values, expected)
                assert soft.topk(x, k, tau=1.0, largest=largest, hard=True).values.equal(expected)

    def test_topk_mask(self, name, dtype):
        x = CASES[name].to(dtype)
        for k in range(len(x) + 1):
            ordered = x.sort(descending=True).values
            sure = k in (0, len(x)) or ordered[k - 1] != ordered[k]
            mask = soft.topk_mask(x, k, tau=NONE)
            assert float(mask.sum()) == pytest.approx(k)
            if sure:
                expected = torch.zeros_like(x).scatter(0, x.topk(k).indices, 1.0)
                assert mask.equal(expected)

    def test_median(self, name, dtype):
        x = CASES[name].to(dtype).double()
        torch.testing.assert_close(soft.median(x, tau=NONE), x.quantile(0.5))


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e4, 1e6])
@pytest.mark.parametrize("tau", [1e-10, 0.1, 1e3])
@pytest.mark.parametrize("k", [1, 300, 300.5, 999])
def test_masks_sum_to_k_in_float32(scale, tau, k):
    mask = soft.topk_mask(scale * torch.randn(1000), k, tau=tau)
    assert mask.min() >= 0
    assert mask.max() <= 1
    assert float(mask.double().sum()) == pytest.approx(k, rel=1e-6)


def test_masks_of_ties_far_from_zero():
    """The threshold is within 1e-10 of 1e6, where float64 numbers are 1e-10 apart."""
    x = torch.tensor([0.0, 1e6, 1e6, 1e6])
    torch.testing.assert_close(soft.topk_mask(x, 1.5, tau=1e-10), torch.tensor([0.0, 0.5, 0.5, 0.5]))


def test_masks_of_none_and_all():
    x = torch.randn(3, 7)
    mask = soft.topk_mask(x, torch.tensor([0.0, 3.5, 7.0]), tau=0.3)
    assert mask[0].equal(torch.zeros(7))
    assert mask[2].equal(torch.ones(7))
    assert float(mask[1].sum()) == pytest.approx(3.5)


def test_a_tiny_share():
    """A threshold of 1e-20 lies in the tail: log(2e-20) tau below a single number."""
    x = torch.tensor([1.0], dtype=torch.float64)
    low, high = soft.quantile(x, 1e-20, tau=0.1), soft.topk_mask(x, 1e-20, tau=0.1)
    torch.testing.assert_close(low, 1 + 0.1 * torch.tensor([2e-20], dtype=torch.float64).log()[0])
    torch.testing.assert_close(high, torch.tensor([1e-20], dtype=torch.float64), rtol=1e-12, atol=0)


def test_weights_count_numbers():
    x, weights = torch.randn(6, dtype=torch.float64), torch.tensor([1, 2, 0, 3, 1, 2])
    repeated = x.repeat_interleave(weights)
    for q in (0.01, 0.3, 0.5, 0.99):
        for tau in (1e-3, 0.5):
            weighted = soft.quantile(x, q, tau=tau, weights=weights)
            torch.testing.assert_close(weighted, soft.quantile(repeated, q, tau=tau))
    assert soft.median(x, tau=1e-6, weights=torch.eye(6)[2]) == x[2]


@pytest.mark.parametrize("unit", [1e-310, 1e-160, 1e307])
@pytest.mark.parametrize("tau", [1e-3, 0.5])
def test_only_ratios_of_weights_matter(unit, tau):
    """Their sum may be below or beyond all numbers."""
    x = torch.tensor([5.0, 1.0, 3.0, 2.0, 4.0, 9.0, 7.0, 8.0], dtype=torch.float64)
    for weights in (torch.full((8,), 10.0), torch.tensor([1.0, 2.0, 0.0, 9.0, 4.0, 6.0, 5.0, 9.0])):
        weights = weights.double()
        for q in (0.3, 0.5):
            got, want = (soft.quantile(x, q, tau=tau, weights=each) for each in (weights * unit, weights))
            torch.testing.assert_close(got, want, rtol=1e-12, atol=0)


def test_weights_in_any_unit_split_evenly():
    """At 1/2 the distribution function is flat, but for the tails of both neighbours, which are equal at the median:
    4 e^-(b - 2) / tau = 41 e^-(3 - b) / tau. Rounded weights would move it towards one of the neighbours."""
    x, weights = torch.tensor([0.0, 1.0, 2.0, 3.0]).double(), torch.tensor([14.0, 23.0, 4.0, 41.0]).double()
    for unit in (1.0, 2.0**-1030, 2.0**1018):
        median = soft.median(x, tau=1e-4, weights=unit * weights)
        assert float(median) == pytest.approx(2.5 + 1e-4 / 2 * math.log(4 / 41), rel=1e-9)


def test_gradients_in_weights_of_any_unit():
    x, weights = torch.randn(2, 6).double()[0], torch.rand(6).double() + 0.1

    def derivatives(unit):
        each = (unit * weights).requires_grad_()
        (first,) = torch.autograd.grad(soft.quantile(x, 0.3, tau=0.5, weights=each), each, create_graph=True)
        (second,) = torch.autograd.grad(first[0], each)
        return unit * first.detach(), unit**2 * second

    for got, want in zip(derivatives(1e100), derivatives(1.0), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-12)


def test_numbers_without_weight_in_a_gap():
    x = torch.tensor([0.0, 1e4, 2e4], dtype=torch.float64)
    assert 0 <= soft.median(x, tau=1.0, weights=torch.tensor([1.0, 0.0, 1.0])) <= 2e4


@pytest.mark.parametrize("tau", [1e2, 1e8, 1e14, 1e16, 1e20, 1e100, 1e300])
def test_the_median_of_a_huge_tau_is_the_mean(tau):
    x = torch.tensor([1.0, 2.0, 3.0, 4.0, 7.0], dtype=torch.float64, requires_grad=True)
    weights = torch.tensor([1.0, 0.0, 2.0, 1.0, 1.0], dtype=torch.float64)
    for value, mean, share in (
        (soft.median(x, tau=tau), 3.4, torch.full_like(weights, 0.2)),
        (soft.median(x, tau=tau, weights=weights), 18 / 5, weights / 5),
    ):
        assert float(value.detach()) == pytest.approx(mean, rel=20 / tau + 1e-14)
        (bar,) = torch.autograd.grad(value, x)
        torch.testing.assert_close(bar, share, rtol=20 / tau + 1e-14, atol=0)


FEW = torch.tensor([0.1, 0.5, 0.2, 0.9, 0.7], dtype=torch.float64)


def tail(x, k, tau):
    """The mask where the threshold is above all numbers, as it is for a small k."""
    return k * torch.softmax(x / tau, -1)


def composed(x, k, tau):
    """By products, which vmap, compilation and forward mode take."""
    return torch.vmap(lambda x: soft.topk_mask(x, k, tau=tau))(x[None])[0]


@pytest.mark.parametrize("k", [10.0**i for i in range(-14, -6)])
@pytest.mark.parametrize("tau", [0.1, 2.0, 100.0])
def test_tiny_counts_keep_their_digits(k, tau):
    for mask in (composed, lambda x, k, tau: soft.topk_mask(x, k, tau=tau)):
        torch.testing.assert_close(mask(FEW, k, tau), tail(FEW, k, tau), rtol=1e-13, atol=0)
        torch.testing.assert_close(1 - mask(FEW, 5 - k, tau), tail(-FEW, k, tau), rtol=0, atol=1e-15)


def derivatives(mask, k):
    """Of the first and the second order, in x and k."""
    direction = torch.tensor([0.3, -0.2, 1.0, 0.5, -0.7], dtype=torch.float64)
    x, k = FEW.clone().requires_grad_(), torch.tensor(k, dtype=torch.float64, requires_grad=True)
    first = torch.autograd.grad((direction * mask(x, k)).sum(), (x, k), create_graph=True)
    return *(bar.detach() for bar in first), *torch.autograd.grad((first[0] * direction).sum(), (x, k))


@pytest.mark.parametrize("k", [1e-13, 1e-10, 1e-7])
@pytest.mark.parametrize("tau", [0.1, 2.0])
def test_derivatives_of_tiny_counts_keep_their_digits(k, tau):
    pairs = (k, lambda x, k: tail(x, k, tau)), (5 - k, lambda x, k: 1 - tail(-x, 5 - k, tau))
    for count, exact in pairs:
        got = derivatives(lambda x, k: soft.topk_mask(x, k, tau=tau), count)
        for bar, want in zip(got, derivatives(exact, count), strict=True):
            torch.testing.assert_close(bar, want, rtol=1e-11, atol=1e-13 * float(want.abs().max()))


@pytest.mark.parametrize("q", [1e-12, 1e-10, 1e-8, 1e-6])
@pytest.mark.parametrize("tau", [2.0, 100.0])
def test_quantiles_of_tiny_shares_keep_their_digits(q, tau):
    """The threshold is below all numbers."""
    want = tau * (math.log(2 * q * len(FEW)) - torch.logsumexp(-FEW / tau, 0))
    torch.testing.assert_close(soft.quantile(FEW, q, tau=tau) / tau, want / tau, rtol=0, atol=1e-14)
