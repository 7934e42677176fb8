"""Solves on a GPU: the same numbers as on the CPU, and NaN in place of errors."""

import pytest
import torch

from cases import named
from helpers import all_nan, error, wide
from laplex import LaplaceOperator
from systems import KINDS, condition, dense, inputs_of, normal, operator

pytestmark = pytest.mark.gpu


@named("generic", "ties_everywhere", "short_rows", "short_cols", "batched", "one_point")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("phased", [False, True])
def test_values_and_gradients(case, kind, phased):
    inputs = inputs_of(case, kind, phased)
    y = normal(*inputs["diag"].shape, 2)
    tolerance = 1e-13 * condition(dense(**inputs))
    results = []
    for device in ("cpu", "cuda"):
        leaves = {name: value.detach().to(device).requires_grad_() for name, value in inputs.items()}
        right = y.to(device).requires_grad_()
        matrix, diag = operator(**leaves), leaves["diag"]
        values = matrix.solve(right, diag), matrix.logdet(diag), matrix.cholesky(diag) @ right
        total = sum(value.sin().sum() for value in values[:2])
        results.append([value.cpu() for value in (*values, *torch.autograd.grad(total, (right, *leaves.values())))])
    largest = torch.cat([value.flatten() for value in results[0]])  # some gradients are 0, and rounding is all there is
    for here, there in zip(*results):
        assert error(there, here, None if float(here.norm()) > 1e-15 * float(largest.norm()) else largest) <= tolerance


def test_large():
    a, b, y = torch.randn(100_000, device="cuda"), torch.randn(80_000, device="cuda"), torch.randn(100_000).cuda()
    for A in (LaplaceOperator(a), LaplaceOperator(a, b).gram()):
        x = A.solve(wide(y), 0.5)
        scale = float((A @ x.abs()).norm())
        assert float((A @ x + 0.5 * x - wide(y)).norm()) <= 1e-15 * scale + 1e-12 * float(y.norm())


@pytest.mark.parametrize("layout", [(300, 200_000), (20_000, 15_000)])
def test_the_same_bits_every_time(layout):
    """Many columns in a gap between rows: no sum of theirs may depend on who comes first."""
    a, b, y = (torch.randn(size, device="cuda", dtype=torch.float64) for size in (*layout, layout[0]))
    weight = torch.rand(layout[1], device="cuda", dtype=torch.float64, requires_grad=True)

    def results():
        M = LaplaceOperator(a, b).gram(weight)
        logdet = M.logdet(0.1)
        return M.solve(y, 0.1), logdet, M.cholesky(0.1) @ y, *torch.autograd.grad(logdet, weight)

    first = results()
    for _ in range(5):
        assert all(torch.equal(one, other) for one, other in zip(first, results()))


def test_faults_are_nan():
    a = torch.randn(50, device="cuda")
    y = torch.randn(50, device="cuda")
    tied = torch.cat([a, a[:1]])
    assert all_nan(LaplaceOperator(tied).solve(torch.ones_like(tied)), LaplaceOperator(tied).logdet())
    assert all_nan(LaplaceOperator(a).solve(y, -1.0), LaplaceOperator(a).logdet(torch.tensor(0.0, device="cuda")))
    M = LaplaceOperator(a, a + 1).gram(-torch.ones_like(a))
    assert all_nan(M.solve(y, 1.0), M.logdet(1.0))


@pytest.mark.parametrize(("value", "place"), [(torch.inf, -1), (-torch.inf, 0), (torch.nan, -1)])
@pytest.mark.parametrize("name", ["a", "b"])
def test_anchors_that_are_no_longer_finite_are_nan(value, place, name):
    anchors, y = {"a": torch.randn(50, device="cuda"), "b": torch.randn(40, device="cuda")}, torch.ones(50).cuda()
    operators = [LaplaceOperator(**anchors).gram()] + [LaplaceOperator(anchors["a"])] * (name == "a")
    anchors[name][anchors[name].argsort()[place]] = value
    for A in operators:
        assert all_nan(A.solve(y, 0.1), A.logdet(0.1), A.cholesky(0.1) @ y)


@pytest.mark.parametrize("tau", [0.0, -1.0, torch.nan, torch.inf, 1e-308], ids=str)
def test_a_tau_that_is_no_length_is_nan(tau):
    a, b, y = torch.randn(50, device="cuda"), torch.randn(40, device="cuda"), torch.ones(50).cuda()
    tau = torch.tensor(tau, device="cuda", dtype=torch.float64)
    for A in (LaplaceOperator(a, tau=tau), LaplaceOperator(a, b, tau).gram()):
        assert all_nan(A.solve(y, 0.1), A.logdet(0.1), A.cholesky(0.1) @ y)


def test_phases_that_are_not_finite_are_nan():
    a, y = torch.randn(50, device="cuda") * 1000, torch.randn(50, device="cuda")
    bad = torch.randn(50, device="cuda")
    bad[7] = torch.inf
    K = LaplaceOperator(a, phi=bad)
    assert all_nan(K.solve(y, 0.1), K.logdet(0.1), K.cholesky(0.1) @ y)
    for phases in ({"phi": bad, "psi": a}, {"phi": a, "psi": bad}):
        M = LaplaceOperator(a, a + 1, **phases).gram()
        assert all_nan(M.solve(y, 0.1), M.logdet(0.1), M.cholesky(0.1) @ y)
