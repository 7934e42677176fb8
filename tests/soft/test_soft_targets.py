"""What the losses are compared with: targets that are not finite, negative, huge or out of range."""

import math

import pytest
import torch

from laplex import soft


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_targets_that_are_not_finite(value):
    x, y = torch.tensor([1.0, 2.0]), torch.tensor([value, 0.0])
    with pytest.raises(ValueError, match=r"soft.spearman: `y` must be finite"):
        soft.spearman(x, y, tau=0.1)
    with pytest.raises(ValueError, match=r"soft.ndcg: `relevance` must be finite"):
        soft.ndcg(x, y, tau=0.1)


def test_negative_relevance():
    with pytest.raises(ValueError, match=r"soft.ndcg: `relevance` must not be negative, got -3"):
        soft.ndcg(torch.tensor([1.0, 2.0]), torch.tensor([-3.0, -1.0]), tau=0.1)


def test_relevance_whose_gain_overflows():
    scores = torch.tensor([1.0, 2.0])
    near, far = (soft.ndcg(scores, torch.tensor([grade, 0.0]), tau=0.1) for grade in (60.0, 500.0))
    torch.testing.assert_close(far, near)


@pytest.mark.parametrize("order", [[0, 4], [-1, 0]])
def test_an_order_out_of_range(order):
    with pytest.raises(ValueError, match=r"soft.cross_entropy: `order` must have indices from 0 to 1, got"):
        soft.cross_entropy(torch.tensor([1.0, 2.0]), torch.tensor(order), tau=0.1)


@pytest.mark.parametrize("dim", [None, (0,), "a", 1.0, True])
def test_a_dimension_that_is_no_integer(dim):
    with pytest.raises(TypeError, match=r"soft.rank: `dim` must be an integer, got"):
        soft.rank(torch.zeros(3), dim, tau=1.0)
