"""Few parallel regions a call: on a busy machine each may wait for a slice of the scheduler's, some 10 ms."""

import pytest
import torch

import laplex
from helpers import error, oracle
from laplex import _core


@pytest.fixture(autouse=True)
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def opened(call):
    """How many parallel regions a call opens, and how many sides it sorts."""
    regions, sorts = _core.tally()
    call()
    after = _core.tally()
    return after[0] - regions, after[1] - sorts


def anchors(n):
    return torch.randn(n), torch.randn(n)


def test_small_products_open_no_parallel_region():
    a, b = anchors(10_000)
    x, plan = torch.randn(10_000), laplex.Plan(a, b)
    assert opened(lambda: laplex.Plan(a, b))[0] == 0
    assert opened(lambda: laplex.linear(x, a, b, 0.5, plan=plan))[0] == 0
    K = laplex.LaplaceOperator(a, tau=0.5)
    assert opened(lambda: K.solve(x, 0.1))[0] == 0
    a.requires_grad_()
    assert opened(lambda: laplex.linear(x, a, b, 0.5, plan=plan).sum().backward())[0] == 0


def test_medium_products_open_one_only_while_no_thread_begins_late():
    a, b = anchors(1 << 14)
    x, plan = torch.randn(1 << 14), laplex.Plan(a, b)
    product = laplex.linear(x, a, b, 0.5, plan=plan)
    try:
        _core.set_late_at(0.0)  # no thread was ever late
        assert opened(lambda: laplex.linear(x, a, b, 0.5, plan=plan))[0] > 0
        _core.set_late_at(1e300)  # and now one just was
        assert opened(lambda: laplex.linear(x, a, b, 0.5, plan=plan))[0] == 0
        assert torch.equal(laplex.linear(x, a, b, 0.5, plan=plan), product)
    finally:
        _core.set_late_at(0.0)


@pytest.mark.parametrize(("m", "regions"), [(1, 2), (64, 1)])
def test_large_products_open_few(m, regions):
    a, b = anchors(100_000)
    x, plan = torch.randn(m, 100_000), laplex.Plan(a, b)
    assert opened(lambda: laplex.linear(x, a, b, 0.5, plan=plan))[0] == regions


@pytest.mark.parametrize(("n", "k"), [(100_000, 1000), (1000, 100_000)])
def test_short_axes_open_one_region_for_all_rows(n, k):
    a, b = torch.randn(n), torch.randn(k)
    x, plan = torch.randn(64, k), laplex.Plan(a, b)
    assert opened(lambda: laplex.linear(x, a, b, 0.5, plan=plan))[0] == 1


def test_a_training_step_of_many_rows_opens_few():
    a, b = (side.requires_grad_() for side in anchors(20_000))
    x, plan = torch.randn(64, 20_000, requires_grad=True), laplex.Plan(a, b)
    y = laplex.linear(x, a, b, 0.5, plan=plan)
    assert opened(lambda: y.sum().backward())[0] <= 2  # the sums, and the anchors' gradient


def test_one_thread_is_followed():
    torch.set_num_threads(1)
    a, b = anchors(100_000)
    assert opened(lambda: laplex.linear(torch.randn(8, 100_000), a, b, 0.5))[0] == 0


@pytest.mark.parametrize(
    ("first", "second", "sorts"), [("in order", "in order", 0), ("any", "in order", 1), ("any", "any", 2)]
)
def test_anchors_in_order_are_not_sorted(first, second, sorts):
    a, b = (side.sort().values if kind == "in order" else side for side, kind in zip(anchors(3000), (first, second)))
    assert opened(lambda: laplex.Plan(a, b))[1] == sorts
    x = torch.randn(2, 3000)
    assert error(laplex.linear(x, a, b, 0.5), oracle(x, a, b, 0.5)) <= 2e-7


def test_one_side_that_is_both_is_sorted_once():
    a = torch.randint(0, 900, (3000,)).float()  # with ties
    assert opened(lambda: laplex.Plan(a, a))[1] == 1
    column = torch.randn(3000, 2)[:, 0]
    assert opened(lambda: laplex.Plan(column, column))[1] == 1
    for one, two in zip(laplex.Plan(a, a)._order.tensors, laplex.Plan(a, a.clone())._order.tensors, strict=True):
        assert torch.equal(one, two)


def test_a_plan_of_some_anchors_moved_is_noticed_wherever_they_are():
    """The first are as they were: that others moved is seen on the way."""
    a, b = anchors(40_000)
    plan = laplex.Plan(a, b)
    for m in (1, 20):
        x = torch.randn(m, 40_000)
        moved = a.clone()
        moved[-1] = torch.nextafter(moved[-1], torch.tensor(torch.inf))
        rows = slice(39_990, None)
        y = laplex.linear(x, moved, b, 1e-6, plan=plan)[:, rows]
        assert error(y, oracle(x, moved[rows], b, 1e-6)) <= 2e-7
