"""Cotangents that are no plain memory, lazily negated ones and batches of them; and batches of what is differentiated.

``soft`` and ``gp`` have such tests of their own.
"""

import pytest
import torch

import laplex
from laplex import LaplaceOperator, nn, stats


def rand(*shape):
    return torch.rand(*shape, dtype=torch.float64) + 0.3


def randn(*shape):
    return torch.randn(*shape, dtype=torch.float64)


def operator(a, tau):
    return LaplaceOperator(a, tau=tau)


def gram_of(a, b, tau):
    return LaplaceOperator(a, b, tau).gram()


def weighted_gram(a, b, tau, weight, phi, psi):
    return laplex.gram(a, b, tau=tau, weight=weight, phi=phi, psi=psi)


def mixed(x, a, b, tau, weight):
    return laplex.linear(x, a, b, tau, weight=weight)


def turned(x, a, b, tau, weight, phi, psi):
    return laplex.linear(x, a, b, tau, weight=weight, phi=phi, psi=psi)


def layer(kernels):
    module = nn.LaplexLinear(6, 7, kernels=kernels, dtype=torch.float64)
    names = [name for name, _ in module.named_parameters()]

    def product(x, *parameters):
        return torch.func.functional_call(module, dict(zip(names, parameters, strict=True)), (x,))

    return product, lambda: (randn(4, 6), *(part.detach() for part in module.parameters()))


PRODUCTS = {
    "linear": (laplex.linear, lambda: (randn(4, 6), randn(7), randn(6), rand(()))),
    "linear of many": (laplex.linear, lambda: (randn(1, 300), randn(200), randn(300), rand(()))),
    "linear in float32": (laplex.linear, lambda: [part.float() for part in PRODUCTS["linear"][1]()]),
    "a sum of kernels": (mixed, lambda: (randn(4, 6), randn(3, 7), randn(3, 6), rand(3), rand(3))),
    "phases": (turned, lambda: (*PRODUCTS["a sum of kernels"][1](), randn(3, 7), randn(3, 6))),
    "operator": (
        lambda a, b, tau, x: LaplaceOperator(a, b, tau) @ x,
        lambda: (randn(7), randn(6), rand(()), randn(6)),
    ),
    "gram": (lambda a, b, tau: laplex.gram(a, b, tau=tau), lambda: (randn(7), randn(6), rand(()))),
    "gram with phases": (weighted_gram, lambda: (randn(7), randn(6), rand(()), rand(6), randn(7), randn(6))),
    "layer": layer(1),
    "layer of several kernels": layer(3),
    "attention": (nn.laplace_attention, lambda: (randn(2, 5, 1), randn(2, 6, 1), randn(2, 6, 3), rand(2))),
    "kde": (lambda x, points, tau: stats.kde(x, points, tau=tau), lambda: (randn(9), randn(8), rand(()))),
    "mmd": (lambda x, y, tau: stats.mmd(x, y, tau=tau), lambda: (randn(9), randn(8), rand(()))),
    "energy_distance": (stats.energy_distance, lambda: (randn(9), randn(8))),
    "crps": (stats.crps, lambda: (randn(3, 9), randn(3))),
    "local_linear": (
        lambda x, y, points, tau: stats.local_linear(x, y, points, tau=tau),
        lambda: (randn(9), randn(9), randn(8), rand(())),
    ),
}
SOLVES = {
    "solve": (lambda a, tau, y, diag: operator(a, tau).solve(y, diag), lambda: (randn(7), rand(()), randn(7), rand(7))),
    "logdet": (lambda a, tau, diag: operator(a, tau).logdet(diag), lambda: (randn(7), rand(()), rand(7))),
    "solve of a Gram matrix": (
        lambda a, b, tau, y, diag: gram_of(a, b, tau).solve(y, diag),
        lambda: (randn(7), randn(6), rand(()), randn(7), rand(7)),
    ),
    "logdet of a Gram matrix": (
        lambda a, b, tau, diag: gram_of(a, b, tau).logdet(diag),
        lambda: (randn(7), randn(6), rand(()), rand(7)),
    ),
    "factor": (lambda a, tau, y: operator(a, tau).cholesky(0.1) @ y, lambda: (randn(7), rand(()), randn(7))),
    "inverse factor": (
        lambda a, tau, y: operator(a, tau).cholesky(0.1).solve(y),
        lambda: (randn(7), rand(()), randn(7)),
    ),
}
ALL = PRODUCTS | SOLVES


def taken(name):
    """A function's result, and its inputs, which require gradients."""
    function, make = ALL[name]
    inputs = [part.clone().requires_grad_() for part in make()]
    return function(*inputs), inputs


def assert_close(got, want, name):
    tolerances = {"rtol": 1e-4, "atol": 1e-5} if "float32" in name else {"rtol": 1e-10, "atol": 1e-11}
    for one, other in zip(got, want, strict=True):
        torch.testing.assert_close(one, other, **tolerances)


@pytest.mark.parametrize("name", ALL)
def test_lazily_negated(name):
    y, inputs = taken(name)
    g = torch.randn_like(y)
    options = {"retain_graph": True, "materialize_grads": True}
    want = torch.autograd.grad(y, inputs, -g, **options)
    assert_close(torch.autograd.grad(y, inputs, torch._neg_view(g), **options), want, name)
    assert_close(torch.autograd.grad(y, inputs, torch._neg_view(g), create_graph=True, **options), want, name)


@pytest.mark.parametrize("name", ALL)
def test_batched(name):
    y, inputs = taken(name)
    g = torch.randn(3, *y.shape, dtype=y.dtype)
    options = {"retain_graph": True, "materialize_grads": True}
    together = torch.autograd.grad(y, inputs, g, is_grads_batched=True, **options)
    apart = [torch.autograd.grad(y, inputs, each, **options) for each in g]
    assert_close(together, [torch.stack(bars) for bars in zip(*apart, strict=True)], name)


@pytest.mark.parametrize("name", PRODUCTS)
def test_batches_of_what_is_differentiated(name):
    """Within vmap a tensor does not say that something around it differentiates it."""
    y, inputs = taken(name)
    function, g = PRODUCTS[name][0], torch.randn_like(y)
    batches = [torch.stack([part.detach(), part.detach()]) for part in inputs]

    def loss(*batches):
        return torch.vmap(lambda *parts: (g * function(*parts)).sum())(*batches).sum()

    got = torch.func.grad(loss, tuple(range(len(inputs))))(*batches)
    want = torch.autograd.grad(y, inputs, g, materialize_grads=True)
    assert_close(got, [torch.stack([bar, bar]) for bar in want], name)
