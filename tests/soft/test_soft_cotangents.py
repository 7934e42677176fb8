"""Cotangents that are no plain memory: lazily negated ones, and batches of them."""

import pytest
import torch

from laplex import soft

FUNCTIONS = {
    "sort": lambda x, tau: soft.sort(x, tau=tau).values,
    "descending sort": lambda x, tau: soft.sort(x, tau=tau, descending=True).values,
    "topk": lambda x, tau: soft.topk(x, 3, tau=tau).values,
    "product": lambda x, tau: soft.sort(x, tau=tau).permutation @ torch.arange(6.0).to(x).expand(x.shape),
    "rank": lambda x, tau: soft.rank(x, tau=tau),
    "descending rank": lambda x, tau: soft.rank(x, tau=tau, descending=True),
    "softsort's rank": lambda x, tau: soft.rank(x, tau=tau, method="softsort"),
    "mask": lambda x, tau: soft.topk_mask(x, 2, tau=tau),
    "quantile": lambda x, tau: soft.quantile(x, 0.3, tau=tau),
    "hard mask": lambda x, tau: soft.topk_mask(x, 2, tau=tau, hard=True),
}


@pytest.fixture(params=[(6,), (2, 6)], ids=str)
def x(request):
    return torch.randn(request.param, dtype=torch.float64)


def taken(name, x, trained):
    """The function's result, and its inputs that require gradients."""
    x, tau = x.clone().requires_grad_(), torch.tensor(0.3, dtype=torch.float64)
    inputs = (x, tau.requires_grad_()) if trained else (x,)
    return FUNCTIONS[name](x, tau), inputs


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("trained", [False, True], ids=["x", "x and tau"])
@pytest.mark.parametrize("create_graph", [False, True])
def test_lazily_negated(name, x, trained, create_graph):
    y, inputs = taken(name, x, trained)
    g = torch.randn_like(y)
    options = {"create_graph": create_graph, "retain_graph": True}
    ours = torch.autograd.grad(y, inputs, torch._neg_view(g), **options)
    for bar, exact in zip(ours, torch.autograd.grad(y, inputs, g.neg(), **options), strict=True):
        torch.testing.assert_close(bar, exact)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("trained", [False, True], ids=["x", "x and tau"])
def test_batched(name, x, trained):
    y, inputs = taken(name, x, trained)
    g = torch.randn(3, *y.shape, dtype=y.dtype)
    together = torch.autograd.grad(y, inputs, g, is_grads_batched=True, retain_graph=True)
    apart = [torch.autograd.grad(y, inputs, each, retain_graph=True) for each in g]
    for bars, exact in zip(together, zip(*apart, strict=True), strict=True):
        torch.testing.assert_close(bars, torch.stack(exact))
