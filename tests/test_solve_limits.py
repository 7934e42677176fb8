"""Gram matrices that are nearly singular: what is solved, and what is refused."""

import pytest
import torch

from helpers import error
from laplex import LaplaceOperator, backends
from systems import dense, normal, operator

PHASED = pytest.mark.parametrize("phased", [False, True])


@pytest.fixture
def on(scan_backend, monkeypatch):
    """All that runs, runs on this backend."""
    monkeypatch.setattr(backends, "planner_of_sides", lambda device: scan_backend)


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


@pytest.mark.parametrize(("phased", "smallest", "lost"), [(False, 1e-13, 1e-14), (True, 1e-6, 1e-8)])
@pytest.mark.parametrize("span", [0.01, 1.0, 30.0])
def test_how_small_a_diagonal_may_be(phased, smallest, lost, span, on, scan_backend):
    """Beside a singular M, as GramOperator promises. Maps that are composed in parallel lose more."""
    lost = max(lost, 1e-8) if scan_backend == "torch" else lost
    for _ in range(5):
        inputs = {"a": torch.rand(30).double() * span, "b": torch.rand(10).double() * span, "tau": 1.0}
        inputs |= {"weight": 10 ** (10 * torch.rand(10).double() - 5)}
        inputs |= {"phi": normal(30), "psi": normal(10)} if phased else {}
        M = operator(**inputs)
        diag = smallest * M.diagonal().max()
        matrix, y = dense(**inputs, diag=diag), normal(30)
        x = M.solve(y, diag)
        scale = torch.linalg.matrix_norm(matrix, 2) * x.norm() + y.norm()
        assert float((matrix @ x - y).norm() / scale) <= lost


@PHASED
def test_the_residual_of_a_large_system(phased, on):
    """Maps that are composed in parallel lose digits; what they lose is found again."""
    n, k = 100_000, 80_000
    phases = {"phi": torch.randn(n), "psi": torch.randn(k)} if phased else {}
    M, y = LaplaceOperator(torch.randn(n), torch.randn(k), **phases).gram(), normal(n)
    x = M.solve(y, 0.5)
    scale = (LaplaceOperator(M.kernel.a, M.kernel.b).gram() @ x.abs()).norm()
    assert float((M @ x + 0.5 * x - y).norm() / scale) <= 1e-17


@PHASED
def test_large_samples_are_white(phased, on):
    n, k = 20_000, 15_000
    phases = {"phi": normal(n), "psi": normal(k)} if phased else {}
    M, noise = LaplaceOperator(normal(n), normal(k), **phases).gram(), normal(n)
    C = M.cholesky(0.5)
    assert error(C.solve(C @ noise), noise) <= 1e-12
