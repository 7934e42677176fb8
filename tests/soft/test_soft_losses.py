"""Losses against their dense formulas in float64, their limits, gradients and messages."""

import math

import dense_soft
import pytest
import scipy.stats
import torch
from torch.autograd import gradcheck, gradgradcheck

from laplex import soft

TAU = 0.4


def pair(n=9, batch=3):
    return torch.randn(batch, n, dtype=torch.float64), torch.randn(batch, n, dtype=torch.float64)


def dense_spearman(x, y):
    ranks = torch.stack([dense_soft.rank(x, TAU), torch.from_numpy(scipy.stats.rankdata(y.numpy(), axis=-1))], -2)
    return 1 - torch.stack([torch.corrcoef(rows)[0, 1] for rows in ranks])


def dense_ndcg(scores, relevance):
    gains, best = 2**relevance - 1, 2 ** relevance.sort(-1, descending=True).values - 1
    places = torch.arange(1, scores.shape[-1] + 1)
    return 1 - (gains / torch.log2(1 + dense_soft.rank(-scores, TAU))).sum(-1) / (best / torch.log2(1 + places)).sum(-1)


def dense_cross_entropy(x, order):
    return -dense_soft.permutation(x, TAU).gather(-1, order[..., None])[..., 0].log().mean(-1)


def test_spearman():
    x, y = pair()
    y[0, :4] = 1.0
    torch.testing.assert_close(soft.spearman(x, y, tau=TAU), dense_spearman(x, y))
    torch.testing.assert_close(soft.spearman(x.mT, y.mT, 0, tau=TAU), soft.spearman(x, y, tau=TAU))
    exact = [1 - scipy.stats.spearmanr(*rows).statistic for rows in zip(x, y, strict=True)]
    torch.testing.assert_close(soft.spearman(x, y, tau=1e-9), torch.tensor(exact, dtype=torch.float64))


def test_spearman_of_equal_numbers():
    x = torch.ones(4, requires_grad=True)
    loss = soft.spearman(x, torch.arange(4.0), tau=TAU)
    loss.backward()
    assert loss == 1
    assert x.grad.equal(torch.zeros(4))


def test_spearman_of_millions_of_float32_numbers():
    """The product of the sums of squares of their ranks is beyond the largest float32 number."""
    x = torch.arange(6_100_000.0)
    assert float(soft.spearman(x, x, tau=1e-9)) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize("tau", [1e2, 1e4, 1e8])
def test_spearman_of_a_large_tau_keeps_its_digits_in_float32(tau):
    """All ranks are close to the middle; their distances from it decide. They become proportional to those of x."""
    x = torch.randn(1000, requires_grad=True)
    y = x.detach() + torch.randn(1000)
    wide = x.detach().double().requires_grad_()
    loss, exact = soft.spearman(x, y, tau=tau), soft.spearman(wide, y, tau=tau)
    assert (loss.dtype, exact.dtype) == (torch.float32, torch.float64)
    torch.testing.assert_close(loss.double(), exact, rtol=1e-6, atol=0)
    (bar,), (exact_bar,) = torch.autograd.grad(loss, x), torch.autograd.grad(exact, wide)
    assert (bar - exact_bar).norm() <= 1e-6 * exact_bar.norm()
    ranks = torch.from_numpy(scipy.stats.rankdata(y.numpy()))
    limit = 1 - float(torch.corrcoef(torch.stack([wide.detach(), ranks]))[0, 1])
    assert float(loss.detach()) == pytest.approx(limit, rel=10 / tau + 1e-6)


def test_ndcg():
    scores, relevance = pair()[0], torch.randint(4, (3, 9)).double()
    torch.testing.assert_close(soft.ndcg(scores, relevance, tau=TAU), dense_ndcg(scores, relevance))
    torch.testing.assert_close(soft.ndcg(scores.mT, relevance.mT, 0, tau=TAU), dense_ndcg(scores, relevance))
    assert soft.ndcg(scores, 0 * relevance, tau=TAU).equal(torch.ones(3, dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("unit", [1e-30, 1e-9, 1e-3, 1.0])
def test_ndcg_of_small_relevances_keeps_its_digits(unit, dtype):
    """2^r - 1 is r log 2 where r is small, and the logarithm cancels."""
    scores = torch.tensor([0.2, 3.0, 1.0, 0.5], dtype=dtype)
    grades = torch.tensor([3.0, 0.0, 2.0, 1.0], dtype=dtype) * unit
    ranks = torch.tensor([4.0, 1.0, 2.0, 3.0], dtype=torch.float64)
    gains = torch.expm1(grades.double() * math.log(2))
    best = gains.sort(descending=True).values / torch.log2(torch.arange(2.0, 6.0).double())
    want = 1 - (gains / torch.log2(1 + ranks)).sum() / best.sum()
    torch.testing.assert_close(
        soft.ndcg(scores, grades, tau=1e-9), want.to(dtype), rtol=4e-6 if dtype == torch.float32 else 1e-13, atol=0
    )


def test_ndcg_of_large_relevances():
    """Beside 2^1000 the smaller gains are nothing, and nothing overflows."""
    scores = torch.tensor([0.2, 3.0, 1.0])
    for relevance in ([1e3, 1.0, 0.0], [1e30, 1.0, 0.0]):
        loss = soft.ndcg(scores, torch.tensor(relevance), tau=1e-9)
        assert float(loss) == pytest.approx(1 - 1 / math.log2(4))


def test_ndcg_has_the_gradients_of_its_formula_in_relevances():
    scores, relevance = pair()[0], 3 * torch.rand(3, 9, dtype=torch.float64)
    relevance[:, 4] = 0
    relevance.requires_grad_()
    losses = soft.ndcg(scores, relevance, tau=TAU), dense_ndcg(scores, relevance)
    torch.testing.assert_close(*(torch.autograd.grad(loss.sum(), relevance)[0] for loss in losses))
    assert gradgradcheck(lambda r: soft.ndcg(scores, r, tau=TAU), 0.1 + relevance)


@pytest.mark.parametrize("k", [1, 3, 9, None])
def test_ndcg_without_softness(k):
    metrics = pytest.importorskip("sklearn.metrics")
    scores, relevance = pair()[0], torch.randint(4, (3, 9)).double()
    for loss, s, r in zip(soft.ndcg(scores, relevance, tau=1e-9, k=k), scores, relevance, strict=True):
        assert float(loss) == pytest.approx(1 - metrics.ndcg_score([2 ** r.numpy() - 1], [s.numpy()], k=k))


def test_cross_entropy():
    x, y = pair()
    order = y.argsort(-1)
    torch.testing.assert_close(soft.cross_entropy(x, order, tau=TAU), dense_cross_entropy(x, order))
    torch.testing.assert_close(soft.cross_entropy(x.mT, order.mT, 0, tau=TAU), dense_cross_entropy(x, order))
    down = soft.cross_entropy(x, order.flip(-1), tau=TAU, descending=True)
    torch.testing.assert_close(down, dense_cross_entropy(x, order))


@pytest.mark.parametrize("m", [1, 2, 9, 30])
def test_quantile_normalize(m):
    x, target = pair()[0], torch.randn(3, m, dtype=torch.float64)
    result = soft.quantile_normalize(x, target, tau=TAU)
    position = (dense_soft.rank(x, TAU) - 0.5) * m / 9 - 0.5
    for row, places, goal in zip(result, position, target, strict=True):
        index = torch.arange(m, dtype=torch.float64)
        hats = (1 - (places.clamp(0, m - 1)[:, None] - index).abs()).clamp(min=0)
        torch.testing.assert_close(row, hats @ goal.sort().values)
    torch.testing.assert_close(soft.quantile_normalize(x.mT, target.mT, 0, tau=TAU), result.mT)
    shared = soft.quantile_normalize(x, target[0], tau=TAU)
    torch.testing.assert_close(shared, soft.quantile_normalize(x, target[:1].expand(3, m), tau=TAU))


def test_quantile_normalize_without_softness():
    x, target = torch.randn(20), torch.rand(20)
    expected = target.sort().values[x.argsort().argsort()]
    torch.testing.assert_close(soft.quantile_normalize(x, target, tau=1e-9), expected)


def test_quantile_normalize_of_many_numbers():
    """Ranks of many numbers, rounded to float32, would have no digits left for the place between two targets."""
    x, target = torch.randn(300_000), torch.randn(300_000)
    want = soft.quantile_normalize(x.double(), target.double(), tau=0.01)
    torch.testing.assert_close(soft.quantile_normalize(x, target, tau=0.01).double(), want, rtol=1e-6, atol=1e-6)


def test_gradients():
    x, y = pair(6, 2)
    tau = torch.tensor([0.4, 0.7], dtype=torch.float64, requires_grad=True)
    order, relevance = y.argsort(-1), torch.randint(4, (2, 6)).double()
    x.requires_grad_()
    y.requires_grad_()
    assert gradcheck(lambda v, t: soft.spearman(v, y.detach(), tau=t), (x, tau))
    assert gradcheck(lambda v, t: soft.ndcg(v, relevance, tau=t), (x, tau))
    assert gradcheck(lambda v, t: soft.ndcg(v, relevance, tau=t, k=2), (x, tau))
    assert gradcheck(lambda v, t: soft.cross_entropy(v, order, tau=t), (x, tau))
    assert gradcheck(lambda v, goal, t: soft.quantile_normalize(v, goal, tau=t), (x, y, tau))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_dtypes(dtype):
    x, y = (value.to(dtype) for value in pair())
    assert soft.spearman(x, y, tau=TAU).dtype == dtype
    assert soft.ndcg(x, y.abs(), tau=TAU).dtype == dtype
    assert soft.cross_entropy(x, y.argsort(-1), tau=TAU).dtype == dtype
    assert soft.quantile_normalize(x, y, tau=TAU).dtype == dtype


def test_ranks_within_a_loss_are_not_rounded_to_half_precision():
    x = torch.randn(1000).bfloat16()
    y = x.double() + torch.randn(1000)
    for loss, exact in (
        (soft.spearman(x, y, tau=TAU), soft.spearman(x.double(), y, tau=TAU)),
        (soft.ndcg(x, y.clamp(0, 3), tau=TAU, k=10), soft.ndcg(x.double(), y.clamp(0, 3), tau=TAU, k=10)),
    ):
        assert float(loss) == pytest.approx(float(exact), rel=4e-3)


def test_a_loss_orders_numbers():
    x, y = (value[0].requires_grad_() for value in pair(30))
    optimizer = torch.optim.Adam([x], lr=0.05)
    for _ in range(300):
        optimizer.zero_grad()
        soft.spearman(x, y.detach(), tau=0.2).backward()
        optimizer.step()
    assert soft.spearman(x, y, tau=1e-9) < 0.01


def test_messages():
    x, y = pair()
    with pytest.raises(ValueError, match=r"spearman: `y` must be a tensor with the shape \(3, 9\) of `x`"):
        soft.spearman(x, y[0], tau=TAU)
    with pytest.raises(ValueError, match=r"ndcg: `relevance` must be a tensor with the shape \(3, 9\).*got list"):
        soft.ndcg(x, [1.0], tau=TAU)
    with pytest.raises(ValueError, match=r"ndcg: `k` must be at most 9, the size of `dim`, got 10; use a sm"):
        soft.ndcg(x, y.abs(), tau=TAU, k=10)
    with pytest.raises(ValueError, match=r"cross_entropy: `order` must be a tensor with the shape"):
        soft.cross_entropy(x, y[0].argsort(), tau=TAU)
    with pytest.raises(
        TypeError, match=r"cross_entropy: `order` must have indices of torch\.int64, got torch\.float64"
    ):
        soft.cross_entropy(x, y, tau=TAU)
    with pytest.raises(
        ValueError, match=r"quantile_normalize: `target` must have one dimension, or the shape \(3, 9\)"
    ):
        soft.quantile_normalize(x, y[:2], tau=TAU)
    with pytest.raises(TypeError, match=r"quantile_normalize: `target` must be a floating-point tensor, got list"):
        soft.quantile_normalize(x, [1.0], tau=TAU)


def test_spearman_of_labels():
    """Booleans are ranked as 0 and 1."""
    x, labels = torch.randn(3, 8), torch.rand(3, 8) < 0.5
    torch.testing.assert_close(soft.spearman(x, labels, tau=0.1), soft.spearman(x, labels.float(), tau=0.1))
