"""Autocast changes nothing: sorts and ranks need all digits of float32, forward and backward."""

import pytest
import torch

from laplex import soft

CALLS = {
    "sort": lambda x, tau: soft.sort(x, tau=tau).values,
    "topk": lambda x, tau: soft.topk(x, 7, tau=tau).values,
    "product": lambda x, tau: soft.argsort(x, tau=tau) @ x.cos(),
    "transposed product": lambda x, tau: soft.argsort(x, tau=tau).mT @ x.cos(),
    "rank": lambda x, tau: soft.rank(x, tau=tau),
    "softsort ranks": lambda x, tau: soft.rank(x, tau=tau, method="softsort"),
    "mask": lambda x, tau: soft.topk_mask(x, 7, tau=tau),
    "cross_entropy": lambda x, tau: soft.cross_entropy(x, torch.arange(50).expand(2, 50), tau=tau),
    "spearman": lambda x, tau: soft.spearman(x, torch.arange(50.0).expand(2, 50), tau=tau),
}


@pytest.mark.usefixtures("backend")
@pytest.mark.parametrize("graph", [False, True], ids=["first", "for second derivatives"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_autocast_changes_nothing(name, dtype, graph):
    x = 1e5 * torch.randn(2, 50)
    tau = torch.full((2,), 1e4, dtype=torch.float64)

    def outcome():
        leaves = x.clone().requires_grad_(), tau.clone().requires_grad_()
        y = CALLS[name](*leaves)
        loss = (y * torch.linspace(-1, 1, y.numel()).view(y.shape)).sum()
        return y, *torch.autograd.grad(loss, leaves, create_graph=graph)

    with torch.autocast("cpu", dtype=dtype):
        got = outcome()
    for one, want in zip(got, outcome(), strict=True):
        assert one.dtype == want.dtype
        torch.testing.assert_close(one, want, rtol=0, atol=0)
