"""torch.compile takes every function as one graph."""

import pytest
import torch

from laplex import stats

CALLS = {
    "kde": lambda x: stats.kde(x, x[..., :4] + 0.1, tau=0.3),
    "kde left out": lambda x: stats.kde(x, tau=0.3, weights=torch.linspace(0, 1, 9)),
    "local_linear": lambda x: stats.local_linear(x, x.sin(), tau=0.3),
    "mmd": lambda x: stats.mmd(x[0], x[1:], tau=0.3, unbiased=True),
    "energy_distance": lambda x: stats.energy_distance(x[0], x[1:]),
}


@pytest.mark.usefixtures("unpoisoned")
def test_a_bandwidth_breaks_the_graph():
    """To trace its search would take minutes."""
    torch._dynamo.reset()
    x = torch.randn(50)
    compiled = torch.compile(lambda x: stats.bandwidth(2 * x) / 2, backend="aot_eager")
    torch.testing.assert_close(compiled(x), stats.bandwidth(2 * x) / 2)


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


@pytest.mark.usefixtures("unpoisoned")
def test_inductor_with_strided_samples():
    torch._dynamo.reset()

    def values(x):
        return stats.kde(x, tau=0.1), stats.nadaraya_watson(x, x.sin(), tau=0.1), stats.energy_distance(x[0], x[1:])

    x = torch.randn(9, 3).T
    torch.testing.assert_close(torch.compile(values)(x), values(x))
