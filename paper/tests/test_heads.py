"""Heads with few parameters: what they compute, how many parameters they have, and what a budget buys."""

import pytest
import torch
from torch import nn

from laplex.nn import LaplexLinear
from paper.methods import heads
from paper.methods.heads import (
    KroneckerSum,
    LaplexProjectionHead,
    LowRankLinear,
    PCAHead,
    SeededProjectionHead,
    count,
    size_for_budget,
)

IN, OUT = 24, 10
MAKERS = {
    "full": lambda size: nn.Linear(IN, OUT),
    "laplex": lambda size: LaplexLinear(IN, OUT, kernels=size),
    "laplex-phased": lambda size: LaplexLinear(IN, OUT, kernels=size, phase=True),
    "low-rank": lambda size: LowRankLinear(IN, OUT, size),
    "kronecker": lambda size: KroneckerSum(IN, OUT, size),
    "seeded": lambda size: SeededProjectionHead(IN, OUT, size, seed=0),
    "pca": lambda size: PCAHead(torch.randn(50, IN), OUT, size),
    "pca-stored": lambda size: PCAHead(torch.randn(50, IN), OUT, size),
    "laplex-projection": lambda size: LaplexProjectionHead(IN, OUT, size),
}


# --- Parameters ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("method", heads.METHODS)
def test_the_count_is_that_of_the_module(method, size):
    head = MAKERS[method](size)
    errors = count(method, IN, OUT, size)
    assert errors.trained == sum(parameter.numel() for parameter in head.parameters())
    constants = [value.numel() for name, value in head.state_dict().items() if "tau" not in name]  # tau is 1
    assert errors.stored == sum(constants)


@pytest.mark.parametrize("method", heads.METHODS)
def test_every_head_maps_batches_and_trains(method):
    head, x = MAKERS[method](2), torch.randn(3, 4, IN)
    scores = head(x)
    assert scores.shape == (3, 4, OUT)
    scores.square().sum().backward()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in head.parameters())


def test_the_counts_of_the_paper():
    assert [count("laplex", 768, 1000, r).trained for r in (4, 8, 16)] == [8076, 15152, 29304]
    assert count("full", 768, 1000, 0).trained == 769_000
    # MaxViT-T: both layers of its MLP.
    assert [count("laplex", 512, 1000, r, hidden=512).trained for r in (4, 8, 16)] == [11_664, 21_816, 42_120]
    assert count("full", 512, 1000, 0, hidden=512) == (775_656, 775_656)


@pytest.mark.parametrize("method", [name for name in heads.LAYERS if name != "full"])
def test_a_budget_buys_two_layers_of_the_same_size(method):
    budget = count("laplex", IN, OUT, 5, hidden=7).trained
    size = size_for_budget(method, IN, OUT, budget, hidden=7)
    fits, exceeds = (count(method, IN, 7, n).trained + count(method, 7, OUT, n).trained for n in (size, size + 1))
    assert fits <= budget < exceeds
    assert count(method, IN, OUT, size, hidden=7).trained == fits


@pytest.mark.parametrize("method", [name for name in heads.METHODS if name != "full"])
@pytest.mark.parametrize("rank", [2, 5])
def test_a_budget_buys_the_largest_head_within_it(method, rank):
    budget = count("laplex", IN, OUT, rank).trained
    size = size_for_budget(method, IN, OUT, budget)
    numbers = [
        getattr(count(method, IN, OUT, n), "stored" if method == "pca-stored" else "trained") for n in (size, size + 1)
    ]
    assert numbers[0] <= budget < numbers[1]


def test_laplex_and_low_rank_have_the_same_rank_within_a_budget():
    for shape in ((768, 1000), (384, 150), (1280, 200)):
        for rank in (1, 2, 4, 8, 16):
            budget = count("laplex", *shape, rank).trained
            assert size_for_budget("laplex", *shape, budget) == size_for_budget("low-rank", *shape, budget) == rank


def test_a_budget_that_buys_nothing_is_refused():
    message = "size_for_budget: `budget` must be at least 4, the parameters of the smallest head"
    with pytest.raises(ValueError, match=message):
        size_for_budget("seeded", 3, 2, 3)


# --- What each computes ----------------------------------------------------------------------------------------------


def dense_of(head, in_features=IN):
    """The matrix of a head, by its values at the unit vectors."""
    eye = torch.eye(in_features, dtype=next(head.parameters()).dtype)
    return (head(eye) - head(torch.zeros_like(eye))).detach().mT


def test_low_rank_has_its_rank():
    head = LowRankLinear(IN, OUT, 3, dtype=torch.float64)
    assert torch.linalg.matrix_rank(dense_of(head)) == 3
    assert torch.equal(head.bias, torch.zeros(OUT, dtype=torch.float64))
    assert LowRankLinear(IN, OUT, 3, bias=False).bias is None


def test_low_rank_from_a_weight_is_the_best_approximation():
    weight, bias = torch.randn(OUT, IN, dtype=torch.float64), torch.randn(OUT, dtype=torch.float64)
    singular = torch.linalg.svdvals(weight)
    for rank in (1, 4, OUT):
        head = LowRankLinear.from_weight(weight, rank, bias)
        error = (dense_of(head) - weight).square().sum()
        torch.testing.assert_close(error, singular[rank:].square().sum(), rtol=1e-9, atol=1e-20)
        assert torch.equal(head.bias, bias)


def test_low_rank_from_a_weight_may_have_more_than_its_rank():
    weight = torch.randn(OUT, IN, dtype=torch.float64)
    head = LowRankLinear.from_weight(weight, OUT + 2)
    assert head.bias is None
    torch.testing.assert_close(dense_of(head), weight)
    head(torch.randn(5, IN, dtype=torch.float64)).square().sum().backward()
    assert head.left.grad[:, OUT:].abs().min() > 0  # what was added can be trained


@pytest.mark.parametrize("shape", [(24, 10), (7, 5), (16, 16), (1, 6)])
def test_a_sum_of_kronecker_products(shape):
    head = KroneckerSum(*shape, 3).double()
    want = sum(torch.kron(a, b) for a, b in zip(head.left, head.right, strict=True))
    torch.testing.assert_close(head.to_dense(), want)
    torch.testing.assert_close(dense_of(head, shape[0]), want.detach())


def test_kronecker_factors_have_the_fewest_parameters():
    assert heads.kronecker_shape(16, 16) == (4, 4)
    p, q = heads.kronecker_shape(1280, 200)
    assert p * q + (200 // p) * (1280 // q) == 1012  # 256 000 entries are 500 x 512 or 512 x 500


def test_a_seeded_projection_is_drawn_again_and_not_saved():
    first, again, other = (SeededProjectionHead(IN, OUT, 4, seed) for seed in (7, 7, 8))
    assert set(first.state_dict()) == {"head.weight", "head.bias"}
    again.load_state_dict(first.state_dict())
    x = torch.randn(3, IN)
    assert torch.equal(first(x), again(x))
    assert not torch.equal(first.projection, other.projection)


def test_pca_keeps_the_directions_of_largest_variance():
    scales = torch.linspace(5, 0.1, IN, dtype=torch.float64)
    turn, _ = torch.linalg.qr(torch.randn(IN, IN, dtype=torch.float64))
    x = torch.randn(4000, IN, dtype=torch.float64) * scales @ turn + 3.0
    head = PCAHead(x, OUT, 4)
    centred = x - x.mean(0)
    share = (centred @ head.directions.mT).square().sum() / centred.square().sum()
    best = torch.linalg.svdvals(centred).square()
    torch.testing.assert_close(share, best[:4].sum() / best.sum())
    torch.testing.assert_close(head.directions @ head.directions.mT, torch.eye(4, dtype=torch.float64))


def test_the_laplex_projection_is_a_kernel_and_a_dense_head():
    head = LaplexProjectionHead(IN, OUT, 4)
    torch.testing.assert_close(
        dense_of(head), (head.head.weight @ head.projection.to_dense()).detach(), rtol=1e-4, atol=1e-5
    )
