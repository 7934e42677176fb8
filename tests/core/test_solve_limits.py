"""Gram matrices that are nearly singular: what is solved, and what is refused."""

import warnings

import pytest
import torch

import laplex
from helpers import error
from laplex import LaplaceOperator, _backends
from systems import dense, normal, operator

PHASED = pytest.mark.parametrize("phased", [False, True])


@pytest.fixture
def on(scan_backend, monkeypatch):
    """All that runs, runs on this backend."""
    monkeypatch.setattr(_backends, "planner_of_sides", lambda device: scan_backend)


@pytest.mark.parametrize("scale", [1e-6, 1.0, 1e12])
@PHASED
def test_a_pivot_without_a_digit(scale, phased, on):
    """d = 1e-17 of the diagonal is positive, and nothing but rounding errors."""
    a, weight = torch.tensor([0.3, 1.0, 1.0, 1.0]).double(), torch.full((1,), scale).double()
    phases = {"phi": torch.zeros(4).double(), "psi": torch.zeros(1).double()} if phased else {}
    M = LaplaceOperator(a, torch.ones(1).double(), **phases).gram(weight)
    for call in (lambda: M.solve(normal(4), 1e-17 * scale), lambda: M.logdet(1e-17 * scale)):
        with pytest.raises(ValueError, match="not positive definite in float64"):
            call()


def assert_solves_beside(a, b, phased, smallest):
    """M of these anchors, which is singular, is solved with a diagonal so small beside its own."""
    inputs = {"a": a, "b": b, "tau": 1.0, "weight": 10 ** (10 * torch.rand(10).double() - 5)}
    inputs |= {"phi": normal(30), "psi": normal(10)} if phased else {}
    M = operator(**inputs)
    diag = smallest * M.diagonal().max()
    matrix, y = dense(**inputs, diag=diag), normal(30)
    x = M.solve(y, diag)
    scale = torch.linalg.matrix_norm(matrix, 2) * x.norm() + y.norm()
    assert float((matrix @ x - y).norm() / scale) <= 1e-14


@pytest.mark.parametrize(("phased", "smallest"), [(False, 1e-13), (True, 1e-6)])
@pytest.mark.parametrize("span", [0.01, 1.0, 30.0])
def test_how_small_a_diagonal_may_be(phased, smallest, span, on):
    """As GramOperator promises."""
    for _ in range(5):
        assert_solves_beside(torch.rand(30).double() * span, torch.rand(10).double() * span, phased, smallest)


def in_clusters(count, *sizes):
    centres = 3 * normal(count)
    return [centres[torch.randint(0, count, (size,))] + 1e-6 * normal(size) for size in sizes]


@pytest.mark.parametrize(("phased", "smallest"), [(False, 1e-13), (True, 1e-6)])
def test_how_small_it_may_be_beside_clusters(phased, smallest, on, scan_backend):
    """Here maps that are composed in parallel lose the most."""
    if scan_backend == "torch":
        smallest = max(smallest, 1e-11)
    for _ in range(5):
        assert_solves_beside(*in_clusters(5, 30, 10), phased, smallest)


@pytest.mark.parametrize(("phased", "smallest"), [(False, 1e-8), (True, 1e-4)])
def test_solutions_are_as_good_as_the_kernel(phased, smallest, on):
    """x is known to more digits than the condition number of M + diag, 1 / smallest, leaves to a dense solve of it."""
    a, b, weight = torch.rand(60).double() * 30, torch.arange(20) * 1.5 + torch.rand(20).double() / 2, torch.rand(20)
    inputs = {"a": a, "b": b, "tau": 1.0, "weight": weight.double() + 0.1}
    inputs |= {"phi": normal(60), "psi": normal(20)} if phased else {}
    M, y = operator(**inputs), normal(60)
    diag = smallest * float(M.diagonal().max())
    K = M.kernel.to_dense()  # well conditioned, as M + diag is not; so by the formula of Woodbury:
    want = (y - K @ torch.linalg.solve(K.mT @ K + torch.diag(diag / inputs["weight"]), K.mT @ y)) / diag
    assert error(M.solve(y, diag), want) <= 1e-13


def residual(M, diag):
    """That of M + diag and some y, over |K| |K^T| |x|."""
    y = normal(M.shape[-1])
    x = M.solve(y, diag)
    scale = (LaplaceOperator(M.kernel.a, M.kernel.b).gram() @ x.abs()).norm()
    return float((M @ x + diag * x - y).norm() / scale)


@PHASED
def test_the_residual_of_a_large_system(phased, on):
    """Maps that are composed in parallel lose digits; what they lose is found again."""
    n, k = 100_000, 80_000
    phases = {"phi": torch.randn(n), "psi": torch.randn(k)} if phased else {}
    assert residual(LaplaceOperator(torch.randn(n), torch.randn(k), **phases).gram(), 0.5) <= 1e-17


@pytest.mark.parametrize(("phased", "smallest"), [(False, 1e-9), (True, 1e-6)])
def test_the_residual_of_a_large_system_in_clusters(phased, smallest, on):
    n, k = 100_000, 80_000
    phases = {"phi": normal(n), "psi": normal(k)} if phased else {}
    M = LaplaceOperator(*in_clusters(50, n, k), **phases).gram()
    assert residual(M, smallest * float(M.diagonal().max())) <= 1e-13


@PHASED
def test_large_samples_are_white(phased, on):
    n, k = 20_000, 15_000
    phases = {"phi": normal(n), "psi": normal(k)} if phased else {}
    M, noise = LaplaceOperator(normal(n), normal(k), **phases).gram(), normal(n)
    C = M.cholesky(0.5)
    assert error(C.solve(C @ noise), noise) <= 1e-12


@PHASED
def test_a_log_determinant_that_lost_digits_says_so(phased):
    a, b = torch.rand(60).double() * 3, torch.rand(20).double() * 3
    phases = {"phi": normal(60), "psi": normal(20)} if phased else {}
    M = LaplaceOperator(a, b, **phases).gram()
    with pytest.warns(
        laplex.PrecisionWarning, match=r"GramOperator.logdet: the matrix is nearly singular: errors of up"
    ):
        M.logdet(1e-10 * float(M.diagonal().max()))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        M.logdet(1e-2)
        LaplaceOperator(a, phi=phases.get("phi")).logdet(1e-9)  # K itself keeps its digits
