"""Cotangents of likelihoods and predictions that are no plain memory: lazily negated ones, and batches of them."""

import pytest
import torch

from laplex import gp

KERNELS = {
    "matern32": gp.Matern32,
    "sho": lambda scale: gp.SHO(scale, scale / 9),
    "sum with a line": lambda scale: gp.Exponential(scale) + gp.Linear(scale),
    "product": lambda scale: gp.Matern32(scale) * gp.Matern32(2 * scale),
}


def likelihood(kernel, t, diag, y):
    return gp.GaussianProcess(kernel, t, diag=diag).log_likelihood(y)


def of_lists(kernel, *parts):
    return likelihood(kernel, *([part[0, :7], part[1]] for part in parts))


def over_exposures(kernel, t, diag, y):
    return gp.GaussianProcess(kernel, t, diag=diag, exposure=0.5).log_likelihood(y)


def prediction(kernel, t, diag, y):
    return gp.GaussianProcess(kernel, t, diag=diag).predict(y, torch.linspace(0, 5, 4, dtype=t.dtype).expand(2, 4))


RESULTS = likelihood, of_lists, over_exposures, prediction
CASES = {f"{result.__name__} of {name}": (result, name) for result in RESULTS for name in KERNELS}
del CASES["over_exposures of sum with a line"]  # which is not defined


@pytest.fixture(params=CASES.values(), ids=CASES)
def taken(request):
    """A result, and the inputs that require gradients."""
    result, name = request.param
    t, y = 5 * torch.rand(2, 9, dtype=torch.float64), torch.randn(2, 9, dtype=torch.float64)
    inputs = t, torch.full_like(t, 0.1), y, torch.tensor(1.3, dtype=torch.float64)
    t, diag, y, scale = (part.requires_grad_() for part in inputs)
    return result(KERNELS[name](scale), t, diag, y), inputs


@pytest.mark.parametrize("create_graph", [False, True])
def test_lazily_negated(taken, create_graph):
    value, inputs = taken
    g = torch.randn_like(value)
    got = torch.autograd.grad(value, inputs, torch._neg_view(g), retain_graph=True, create_graph=create_graph)
    for bar, exact in zip(got, torch.autograd.grad(value, inputs, -g), strict=True):
        torch.testing.assert_close(bar, exact)


def test_batched(taken):
    value, inputs = taken
    g = torch.randn(3, *value.shape, dtype=torch.float64)
    together = torch.autograd.grad(value, inputs, g, is_grads_batched=True, retain_graph=True)
    apart = [torch.autograd.grad(value, inputs, each, retain_graph=True) for each in g]
    for bars, exact in zip(together, zip(*apart, strict=True), strict=True):
        torch.testing.assert_close(bars, torch.stack(exact))


def test_vectorized_jacobians():
    t, y = 5 * torch.rand(2, 9, dtype=torch.float64), torch.randn(2, 9, dtype=torch.float64)
    process = gp.GaussianProcess(gp.Matern32(1.3), t, diag=0.1)
    together, apart = (
        torch.autograd.functional.jacobian(process.log_likelihood, y, vectorize=vectorize)
        for vectorize in (True, False)
    )
    torch.testing.assert_close(together, apart)


def test_one_value_is_negated():
    """As by the imaginary part of a conjugate."""
    t, y = 5 * torch.rand(9, dtype=torch.float64), torch.randn(9, dtype=torch.float64, requires_grad=True)
    value = gp.GaussianProcess(gp.Matern32(1.3), t, diag=0.1).log_likelihood(y)
    (want,) = torch.autograd.grad(-value, y, retain_graph=True)
    negative = torch.complex(torch.zeros_like(value), value).conj().imag
    torch.testing.assert_close(torch.autograd.grad(negative, y)[0], want)
