"""laplex.testing: its problems, its truth, its errors, and the order of its turns. Times here are never looked at."""

import doctest
import math
from dataclasses import replace
from functools import partial

import pytest
import torch

from laplex import linear, reference, testing
from laplex.testing import _machine, _oracle, _problem

KINDS = [{}, {"phases": True}, {"matrices": 3}, {"matrices": 2, "phases": True}]
INSTANT = testing.Budget(min_s=0.0, min_samples=2, max_s=0.1, turn_s=0.0)


def dense(problem):
    """The whole answer, in one piece, and its gradients."""
    names = [name for name in ("x", "a", "b", "phi", "psi") if getattr(problem, name) is not None]
    leaves = {name: getattr(problem, name).double().requires_grad_() for name in names}
    weight = None if problem.weight is None else problem.weight.double()
    y = reference.linear(**leaves, tau=problem.tau, weight=weight)
    return y.detach(), dict(zip(leaves, torch.autograd.grad(y, list(leaves.values()), problem.cotangent.double())))


@pytest.mark.parametrize("module", [testing, _problem, _oracle, _machine], ids=lambda module: module.__name__)
def test_examples(module):
    assert doctest.testmod(module).failed == 0


@pytest.mark.parametrize("options", KINDS, ids=str)
def test_products_and_gradients_are_those_of_the_definition(options, monkeypatch):
    monkeypatch.setattr(_oracle, "SLICE", 70)  # so that there are many slices
    problem = testing.draw(13, 29, rows=3, tau=0.6, dtype=torch.float64, **options)
    y, gradients = dense(problem)
    rows, cols = torch.tensor([1, 2, 12]), torch.tensor([0, 28])
    torch.testing.assert_close(testing.product(problem), y)
    torch.testing.assert_close(testing.product(problem, rows), y[:, rows])
    everywhere, sampled = testing.gradients(problem), testing.gradients(problem, rows, cols)
    assert everywhere.keys() == sampled.keys() == gradients.keys()
    for name, truth in gradients.items():
        torch.testing.assert_close(everywhere[name], truth)
        torch.testing.assert_close(sampled[name], truth[..., rows if name in ("a", "phi") else cols])


def test_a_problem_is_what_linear_takes():
    problem = testing.draw(40, 30, rows=2, phases=True, matrices=2, dtype=torch.float64)
    assert testing.relative_error(linear(**problem.arguments), testing.product(problem)) < 1e-14
    turned = problem.mT.mT
    assert all(getattr(turned, name) is value for name, value in problem.arguments.items())


def test_a_problem_is_the_same_every_time():
    one, other, third = testing.draw(5, 4, rows=2), testing.draw(5, 4, rows=2, phases=True), testing.draw(5, 4, seed=1)
    assert torch.equal(one.a, other.a)
    assert not torch.equal(one.a, third.a)
    half = testing.draw(5, 4, rows=2, dtype=torch.bfloat16)
    assert (half.x.dtype, half.a.dtype) == (torch.bfloat16, torch.float32)
    torch.testing.assert_close(half.x, one.x.bfloat16())


def test_sums_are_right_to_the_last_bits():
    problem = testing.draw(5, 5000, rows=2, dtype=torch.float64)
    got = testing.product(problem, torch.tensor([3]))
    a, b = float(problem.a[3]), problem.b.tolist()
    for row in range(2):
        terms = [math.exp(-abs(a - bj)) * xj for bj, xj in zip(b, problem.x[row].tolist())]
        assert float(got[row, 0]) == pytest.approx(math.fsum(terms), rel=2e-15 * math.sqrt(len(b)))


@pytest.mark.parametrize("run", [testing.product, testing.gram, testing.gradients])
def test_no_more_than_a_slice_is_formed(run, monkeypatch):
    formed = []
    kernel = reference.kernel

    def spy(a, b, *args, **options):
        formed.append(a.numel() * b.numel())
        return kernel(a, b, *args, **options)

    monkeypatch.setattr(_oracle.reference, "kernel", spy)
    monkeypatch.setattr(_oracle, "SLICE", 1000)
    run(testing.draw(20, 1500))
    assert max(formed) <= 1000


def test_gram_matrices(monkeypatch):
    monkeypatch.setattr(_oracle, "SLICE", 50)
    problem = testing.draw(11, 17, rows=2, dtype=torch.float64)
    truth = reference.gram(problem.a, problem.b, problem.x)
    rows = torch.tensor([0, 7])
    torch.testing.assert_close(testing.gram(problem), truth)
    torch.testing.assert_close(testing.gram(problem, rows), truth[:, rows])


@pytest.mark.parametrize("options", [{}, {"phases": True, "matrices": 3}], ids=["plain", "sum"])
@pytest.mark.parametrize(("n", "k"), [(0, 4), (4, 0), (0, 0)])
def test_empty_sides(n, k, options):
    problem = testing.draw(n, k, rows=2, **options)
    torch.testing.assert_close(testing.product(problem), torch.zeros(2, n).double())
    torch.testing.assert_close(testing.gram(problem), torch.zeros(2, n, n).double())
    for name, gradient in testing.gradients(problem).items():
        torch.testing.assert_close(gradient, torch.zeros_like(getattr(problem, name)).double())
    assert {"x", "a", "b"} <= testing.gradients(problem).keys()


def test_sizes_are_sums_of_absolute_terms():
    problem = testing.draw(6, 5, rows=2, dtype=torch.float64, phases=True)
    torch.testing.assert_close(testing.sizes(problem), problem.x.abs() @ reference.kernel(problem.a, problem.b).mT)


def test_errors():
    truth = torch.tensor([3.0, -4.0], dtype=torch.float64)
    got = truth + torch.tensor([0.0, 0.5], dtype=torch.float64)
    assert testing.relative_error(got, truth) == pytest.approx(0.1)
    assert testing.largest_error(got, truth) == pytest.approx(0.125)
    assert testing.term_error(got, truth, torch.tensor([3.0, 50.0]).double()) == pytest.approx(0.01)
    assert testing.relative_error(got - truth, 0 * truth) == pytest.approx(0.5)
    for sizes in (truth.abs(), 0 * truth):
        assert math.isnan(testing.term_error(got * math.nan, truth, sizes))
    for error in (testing.relative_error, testing.largest_error):
        assert math.isnan(error(got * math.nan, truth))
    assert testing.largest_error(torch.zeros(2), truth * 1e-46) < 1e-6  # smaller than any float32


def test_a_sample_is_all_or_some_of_it():
    assert torch.equal(testing.sample(5, 5), torch.arange(5))
    some = testing.sample(10_000, 50)
    assert 40 < len(some) <= 50
    assert torch.equal(some, testing.sample(10_000, 50))


def test_calls_take_turns():
    turns = []
    calls = {name: partial(turns.append, name) for name in "ab"}
    times = testing.interleave(calls, budget=INSTANT, cold=True)
    assert turns[:4] == ["a", "a", "b", "b"]  # one untimed and one timed call each
    assert times["a"].samples == 2
    turns.clear()
    times = testing.interleave(calls, budget=replace(INSTANT, min_samples=4))
    assert turns == ["a", "b"] * 5  # first to see how long a call takes
    assert times["b"].samples == 4


def test_percentiles():
    times = testing.Times.summary([5.0, 1.0, 2.0, 3.0, 4.0])
    assert (times.p20, times.median, times.p80) == pytest.approx((1.8, 3.0, 4.2))
    assert testing.Times.summary([2.0]) == testing.Times(2.0, 2.0, 2.0, 1)


def test_peak_memory_of_the_host():
    assert (36 << 20) < testing.peak_bytes(lambda: torch.ones(10 << 20)) < (60 << 20)


def test_the_machine_is_described():
    described = testing.describe()
    assert described["torch"] == torch.__version__
    assert described["cpu"]
    assert testing.busy(0.0) == ""
    assert testing.busy(1e3).startswith("The machine is busy (load 1000.0 on ")


def test_the_share_of_other_processes(monkeypatch, tmp_path):
    clocks = iter([(0.0, 100.0, 10.0), (2.0, 103.0, 11.0)])
    monkeypatch.setattr(_machine, "_clocks", lambda: next(clocks))
    monkeypatch.setattr(_machine.os, "cpu_count", lambda: 2)
    assert testing.OtherProcesses().share() == 0.5
    monkeypatch.undo()
    monkeypatch.setattr(_machine, "STAT", tmp_path / "none")
    assert testing.OtherProcesses().share() is None
