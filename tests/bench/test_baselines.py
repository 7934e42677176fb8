"""Every baseline computes the product it is compared on; a wrong rival would flatter laplex."""

import pytest
import torch

from benchmarks.inputs import suited_to
from laplex import LaplaceOperator, reference, testing
from laplex.testing import Problem
from paper.methods.products import BASELINES, Baseline

EXACT = [
    name
    for name, baseline in BASELINES.items()
    if not (baseline.yardstick or baseline.solves) and baseline.computes == "product"
]
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-12}


def draw(n: int, k: int, dtype: torch.dtype) -> Problem:
    return testing.draw(n, k, rows=3, tau=0.7, seed=1, dtype=dtype)


def usable(name: str) -> Baseline:
    baseline = BASELINES[name]
    if baseline.needs is not None:
        pytest.importorskip(baseline.needs)
    return baseline


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", EXACT)
def test_agrees_with_the_definition(name: str, dtype: torch.dtype) -> None:
    baseline = usable(name)
    problem = suited_to(draw(101, 101, dtype), baseline)
    got = baseline.prepare(problem.a, problem.b, problem.tau)(problem.x)
    assert got.shape == (3, 101)
    assert testing.relative_error(got, testing.product(problem)) < TOLERANCE[dtype]


RECTANGULAR = [name for name in EXACT if BASELINES[name].anchors != "grid" and not BASELINES[name].symmetric]


@pytest.mark.parametrize("name", RECTANGULAR)
def test_rectangular_with_ties_and_columns_beyond_both_ends(name: str) -> None:
    baseline = usable(name)
    problem = draw(40, 63, torch.float64)
    problem.b[:3] = problem.a[5]
    problem.b[3:6], problem.b[6:9] = problem.a.max() + 1.0, problem.a.min() - 1.0
    problem = suited_to(problem, baseline)
    got = baseline.prepare(problem.a, problem.b, problem.tau)(problem.x)
    assert testing.relative_error(got, testing.product(problem)) < 1e-12


@pytest.mark.parametrize("name", EXACT)
def test_set_up_is_kept_for_another_input(name: str) -> None:
    baseline = usable(name)
    problem = suited_to(draw(33, 33, torch.float64), baseline)
    apply = baseline.prepare(problem.a, problem.b, problem.tau)
    first = apply(problem.x)
    torch.testing.assert_close(apply(-2 * problem.x), -2 * first, rtol=1e-12, atol=1e-12)


def test_logcumsumexp_takes_zeros() -> None:
    problem = draw(20, 30, torch.float64)
    problem.x[:, ::2] = 0.0
    problem.x[1] = 0.0
    got = BASELINES["logcumsumexp"].prepare(problem.a, problem.b, problem.tau)(problem.x)
    torch.testing.assert_close(got, testing.product(problem), rtol=1e-12, atol=1e-12)


def test_logcumsumexp_on_the_example_where_the_theorem_of_the_paper_loses_columns() -> None:
    a, b = torch.tensor([0.0, 1.0, 2.0]).double(), torch.tensor([0.5, 3.0]).double()
    got = BASELINES["logcumsumexp"].prepare(a, b, 1.0)(torch.ones(1, 2, dtype=torch.float64))
    torch.testing.assert_close(got, torch.tensor([[0.656, 0.742, 0.591]]).double(), atol=5e-4, rtol=0)


def test_yardsticks_run_on_the_long_side() -> None:
    problem = draw(50, 20, torch.float32)
    for name in ("fft", "fft-complex", "copy", "copy-into"):
        baseline = BASELINES[name]
        fitted = suited_to(problem, baseline)
        assert baseline.prepare(fitted.a, fitted.b, fitted.tau)(fitted.x).shape == (3, 50)


def test_celerite_multiplies_by_the_symmetric_matrix_with_ties() -> None:
    problem = draw(40, 40, torch.float64)
    problem.a[:3] = problem.a[5]
    problem = suited_to(problem, usable("celerite2-symmetric"))
    assert problem.b is problem.a
    got = BASELINES["celerite2-symmetric"].prepare(problem.a, problem.b, problem.tau)(problem.x)
    assert testing.relative_error(got, testing.product(problem)) < 1e-12


def test_nn_linear_has_the_matrix_as_its_weight() -> None:
    problem = draw(20, 33, torch.float64)
    layer = BASELINES["nn.Linear"].prepare(problem.a, problem.b, problem.tau)
    assert isinstance(layer, torch.nn.Linear)
    torch.testing.assert_close(layer.weight, reference.kernel(problem.a, problem.b, problem.tau))
    assert not layer.weight.requires_grad


def test_celerite_solves() -> None:
    problem = suited_to(draw(50, 50, torch.float64), usable("celerite2-solve"))
    x = BASELINES["celerite2-solve"].prepare(problem.a, problem.a, problem.tau)(problem.cotangent)
    matrix = reference.kernel(problem.a, problem.a, problem.tau) + 0.1 * torch.eye(50, dtype=torch.float64)
    assert testing.relative_error(x, torch.linalg.solve(matrix, problem.cotangent.mT).mT) < 1e-12


def test_celerite_agrees_with_our_solves() -> None:
    problem = suited_to(draw(500, 500, torch.float64), usable("celerite2-solve"))
    theirs = BASELINES["celerite2-solve"].prepare(problem.a, problem.a, problem.tau)(problem.cotangent)
    ours = LaplaceOperator(problem.a, tau=problem.tau).solve(problem.cotangent.mT, 0.1).mT
    assert testing.relative_error(ours, theirs) < 1e-11


def test_dense_gram() -> None:
    problem = draw(20, 33, torch.float64)
    got = BASELINES["dense-gram"].prepare(problem.a, problem.b, problem.tau)(problem.x)
    assert testing.relative_error(got, reference.gram(problem.a, problem.b, problem.x, problem.tau)) < 1e-14
