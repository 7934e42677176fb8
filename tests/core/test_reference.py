"""The oracle itself against loops written from the formula."""

import math

import pytest
import torch

from cases import SMALL, every
from helpers import error
from laplex import reference


def entry(a, b, tau, phi=0.0, psi=0.0):
    return math.exp(-abs(a - b) / tau) * math.cos(phi - psi)


@every([case for case in SMALL if case()[0].dim() == 1])
@pytest.mark.parametrize("phased", [False, True])
def test_kernel_and_linear_against_loops(case, phased):
    a, b, tau = case()
    n, k, m = len(a), len(b), 2
    phi, psi = (torch.randn(n).double(), torch.randn(k).double()) if phased else (None, None)
    x = torch.randn(m, k).double()
    y = torch.zeros(m, n).double()
    dense = torch.zeros(n, k).double()
    for i in range(n):
        for j in range(k):
            angles = (float(phi[i]), float(psi[j])) if phased else ()
            dense[i, j] = entry(float(a[i]), float(b[j]), tau, *angles)
            for row in range(m):
                y[row, i] += dense[i, j] * x[row, j]
    assert error(reference.kernel(a, b, tau, phi=phi, psi=psi), dense) < 1e-15
    assert error(reference.linear(x, a, b, tau, phi=phi, psi=psi), y) < 1e-14


def test_a_batch_of_matrices_is_the_matrices_one_by_one():
    a, b, tau = torch.randn(3, 5).double(), torch.randn(3, 4).double(), torch.rand(3).double() + 0.1
    phi, psi, x = torch.randn(3, 5).double(), torch.randn(3, 4).double(), torch.randn(3, 2, 4).double()
    batched = reference.linear(x, a, b, tau, phi=phi, psi=psi)
    for h in range(3):
        one = reference.linear(x[h], a[h], b[h], float(tau[h]), phi=phi[h], psi=psi[h])
        assert error(batched[h], one) < 1e-15


def test_the_example_of_the_package():
    e = math.exp(-1)
    want = torch.tensor([[1, e, e**3], [e, 1, e**2], [e**2, e, e]])
    torch.testing.assert_close(reference.kernel(torch.tensor([0.0, 1, 2]), torch.tensor([0.0, 1, 3])), want)


def test_the_derivative_at_a_tie_is_zero():
    a = torch.zeros(1).double().requires_grad_()
    b = torch.zeros(1).double()
    (first,) = torch.autograd.grad(reference.kernel(a, b).sum(), a, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), a)
    assert first.item() == 0.0
    assert second.item() == 0.0
