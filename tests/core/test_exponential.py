"""Exponentials of small matrices: every derivative, in every mode, is that of torch's function, with more digits."""

import pytest
import torch
from torch.func import hessian, jacfwd, jacrev, vmap

from helpers import error
from laplex._exponential import exponential

X = torch.randn(2, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


def combined(function):
    """A scalar function of two numbers."""

    def value(z):
        return (function(X[0] * z[0] + X * z[1]).sin() * X).sum()

    return value


def second_by_double_backward(value, z, **options):
    z = z.clone().requires_grad_()
    jacobian = torch.autograd.functional.jacobian(value, z, create_graph=True, **options)
    return torch.stack([torch.autograd.grad(one, z, retain_graph=True)[0] for one in jacobian])


MODES = {
    "forward": jacfwd,
    "reverse": jacrev,
    "hessian": hessian,
    "forward twice": lambda f: jacfwd(jacfwd(f)),
    "reverse over forward": lambda f: jacrev(jacfwd(f)),
    "reverse twice": lambda f: jacrev(jacrev(f)),
    "double backward": lambda f: lambda z: second_by_double_backward(f, z),
    "double backward of a batch": lambda f: lambda z: second_by_double_backward(f, z, vectorize=True),
    "vmap": lambda f: lambda z: vmap(f)(torch.stack([z, 2 * z])),
    "vmap of gradients": lambda f: lambda z: vmap(torch.func.grad(f))(torch.stack([z, 2 * z])),
}


@pytest.mark.parametrize("mode", MODES)
def test_derivatives(mode):
    z = torch.tensor([0.3, -0.8], dtype=torch.float64)
    got, want = (MODES[mode](combined(function))(z) for function in (exponential, torch.linalg.matrix_exp))
    assert error(got, want) <= 1e-13


def test_gradgradcheck():
    assert torch.autograd.gradgradcheck(lambda x: exponential(x).sin(), X.clone().requires_grad_())


@pytest.mark.parametrize("size", [0.0, 1e-200, 1.0, 1e8, 1e200])
def test_digits_do_not_depend_on_the_size_of_a_gradient(size):
    x = X.clone().requires_grad_()
    (got,) = torch.autograd.grad(exponential(x), x, size * X)
    (want,) = torch.autograd.grad(torch.linalg.matrix_exp(x), x, X)
    assert error(got / (size or 1.0), want if size else torch.zeros_like(want)) <= 1e-14


def test_a_gradient_that_is_not_finite():
    x = X.clone().requires_grad_()
    (got,) = torch.autograd.grad(exponential(x), x, torch.full_like(X, torch.inf))
    assert got.isnan().any()


@pytest.mark.usefixtures("unpoisoned")
def test_compiled():
    x = X.clone().requires_grad_()
    compiled = torch.compile(lambda x: exponential(x).sin().sum(), backend="aot_eager", fullgraph=True)
    got, want = (torch.autograd.grad(f(x), x)[0] for f in (compiled, lambda x: exponential(x).sin().sum()))
    assert error(got, want) <= 1e-14


def test_nothing_at_all():
    assert exponential(X[:0]).shape == (0, 3, 3)
