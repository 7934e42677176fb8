"""torch.compile takes every function as one graph."""

import pytest
import torch

from laplex import soft

CALLS = {
    "sort": lambda x: soft.sort(x, tau=0.3).values,
    "rank": lambda x: soft.rank(x, tau=0.3),
    "softsort rank": lambda x: soft.rank(x, tau=0.3, method="softsort"),
    "topk_mask": lambda x: soft.topk_mask(x, 3, tau=0.3),
    "median": lambda x: soft.median(x, tau=0.3),
}


@pytest.mark.usefixtures("unpoisoned")
@pytest.mark.parametrize("name", CALLS)
def test_one_graph(name):
    torch._dynamo.reset()
    x = torch.randn(3, 9, requires_grad=True)
    expected = CALLS[name](x)
    compiled = torch.compile(CALLS[name], backend="aot_eager", fullgraph=True)(x)
    torch.testing.assert_close(compiled, expected)
    bars = [torch.autograd.grad(value.square().sum(), x)[0] for value in (compiled, expected)]
    torch.testing.assert_close(*bars)
