"""Tau's gradient in the Triton backend, under Triton's interpreter."""

import pytest
import torch

import laplex
import test_tau
from cases import named
from helpers import all_nan, assert_distance_sums, assert_pullback, emptied, flat, make_order
from laplex._triton import tuning

pytestmark = pytest.mark.usefixtures("tiles")
NAMES = ("far_a_1e+18", "far_b_1e+30", "few_in_clusters")


@named(
    "generic", "ties_everywhere", "all_tied", "tiny_tau_ties", "clustered", "huge_tau", "largest_floats", "batched_ties"
)
def test_distance_sums(case, dtype):
    """With the values kept, and transposed with values to be checked."""
    a, b, tau = flat(*case(dtype))
    order = make_order(a, b, "joined", "triton")
    assert_distance_sums(torch.randn(*b.shape[:1], 2, b.shape[1], dtype=dtype), a, b, tau, order, "triton")
    back = emptied(order).mT
    assert_distance_sums(torch.randn(*a.shape[:1], 2, a.shape[1], dtype=dtype), b, a, tau, back, "triton")


@pytest.mark.parametrize("name", NAMES)
def test_of_a_product(name, dtype):
    test_tau.test_of_a_product(name, False, dtype, "triton")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("phased", [False, True])
def test_of_a_gram_matrix(name, phased, dtype):
    test_tau.test_of_a_gram_matrix(name, phased, dtype, "triton")


@pytest.mark.parametrize(("n", "k"), [(5, 90), (90, 5)])
def test_by_a_table_of_the_short_side(n, k, dtype, monkeypatch):
    """With the rest of the pullback where the targets are short, by itself where the sources are."""
    monkeypatch.setattr(tuning, "TABLE_FROM", 0)
    a, b, tau = flat(torch.randn(2, n, dtype=dtype), torch.randn(2, k, dtype=dtype), 0.7)
    a[:, 0], b[:, :2] = 1e30, a[:, 1:3]  # one far, some tied
    order = make_order(a, b, "joined", "triton")
    assert_pullback(torch.randn(2, 3, n, dtype=dtype), torch.randn(2, 3, k, dtype=dtype), a, b, tau, order, "triton")


def test_a_plan_that_does_not_hold_is_nan():
    a, b, tau = torch.randn(40), torch.randn(35), torch.tensor(0.7, requires_grad=True)
    plan = laplex.Plan(a, b, backend="triton")
    y = laplex.linear(torch.randn(2, 35), a.flip(0).contiguous(), b, tau, plan=plan, backend="triton")
    assert all_nan(*torch.autograd.grad(y.sum(), tau))
