"""On a CUDA device: kernel statistics, compared with the CPU, values and gradients; the same bits every time."""

import pytest
import torch

from laplex import stats

pytestmark = pytest.mark.gpu

CALLS = {
    "kde": lambda x, y, w, tau: stats.kde(x, y, tau=tau, weights=w),
    "kde left out": lambda x, y, w, tau: stats.kde(x, tau=tau, weights=w),
    "nadaraya_watson": lambda x, y, w, tau: stats.nadaraya_watson(x, x.sin(), y, tau=tau, weights=w),
    "local_linear": lambda x, y, w, tau: stats.local_linear(x, x.sin(), y, tau=tau, weights=w),
    "mmd": lambda x, y, w, tau: stats.mmd(x, y, tau=tau, weights_x=w, unbiased=True),
    "energy_distance": lambda x, y, w, tau: stats.energy_distance(x, y, weights_x=w) * tau,
}


def results(call, device, dtype=torch.float64):
    """The value and its gradients, by name, from a device."""
    torch.manual_seed(0)
    inputs = {
        "x": torch.randn(3, 700),
        "y": torch.randn(3, 500),
        "w": 0.1 + torch.rand(3, 700),
        "tau": torch.rand(3) + 0.2,
    }
    inputs["y"][:, :50] = inputs["x"][:, :50]
    leaves = {name: value.to(device, dtype).requires_grad_() for name, value in inputs.items()}
    value = call(*leaves.values())
    bars = torch.autograd.grad(value.sum(), list(leaves.values()), allow_unused=True)
    named = {"value": value, **dict(zip(leaves, bars, strict=True))}
    return {name: part.detach().cpu() for name, part in named.items() if part is not None}


@pytest.mark.parametrize("name", CALLS)
def test_as_on_the_cpu(name):
    on_cpu = results(CALLS[name], "cpu")
    for part, value in results(CALLS[name], "cuda").items():
        torch.testing.assert_close(value, on_cpu[part], rtol=1e-9, atol=1e-9, msg=f"{name}: {part}")


@pytest.mark.parametrize("name", CALLS)
def test_the_same_bits(name):
    first, second = (results(CALLS[name], "cuda", torch.float32) for _ in range(2))
    assert all(torch.equal(first[part], second[part]) for part in first)


def test_permutations():
    x, y = torch.randn(300, device="cuda"), torch.randn(200, device="cuda") + 1
    generator = torch.Generator("cuda").manual_seed(0)
    test = stats.permutation_test(x, y, tau=0.5, generator=generator)
    assert float(test.p_value) == pytest.approx(0.001)
    torch.testing.assert_close(test.statistic.cpu(), stats.mmd(x.cpu(), y.cpu(), tau=0.5))
    assert float(stats.bandwidth(x)) == pytest.approx(float(stats.bandwidth(x.cpu())), rel=1e-2)
