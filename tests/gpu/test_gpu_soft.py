"""On a CUDA device: soft ranks, sorts and masks, compared with the CPU in float64, values and gradients."""

import pytest
import torch

from laplex import soft

pytestmark = pytest.mark.gpu
CALLS = {
    "sort": lambda x: soft.sort(x, tau=0.1).values,
    "sort down": lambda x: soft.sort(x, tau=0.1, descending=True).values,
    "topk": lambda x: soft.topk(x, 1 + x.shape[-1] // 3, tau=0.1).values,
    "rank": lambda x: soft.rank(x, tau=0.1),
    "rank down": lambda x: soft.rank(x, tau=0.1, descending=True),
    "topk_mask": lambda x: soft.topk_mask(x, 0.3 * x.shape[-1], tau=0.1),
}
SHAPES = (1, 1), (5, 100), (3, 1000), (3, 1500), (2, 5000), (1, 700_001)
ERRORS = {torch.float32: 5e-7, torch.float64: 1e-12}


def numbers(kind, shape):
    """Groups of equal numbers far from each other, or all different: if near ones were equal, how these share a
    gradient would depend on the order that a sort gives them."""
    torch.manual_seed(0)
    if kind == "ties":
        return torch.randint(0, 7, shape).float() * 1e3
    return 6 * torch.rand(shape).argsort(-1) / shape[-1] - 3


@pytest.mark.parametrize("kind", ["different", "ties"])
@pytest.mark.parametrize("dtype", ERRORS, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", CALLS)
def test_as_on_the_cpu(name, shape, dtype, kind):
    x, results = numbers(kind, shape), []
    for here in (x.to("cuda", dtype).requires_grad_(), x.double().requires_grad_()):
        value = CALLS[name](here)
        torch.manual_seed(1)
        g = torch.randn(value.shape, dtype=torch.float32).to(value)
        results.append((value.detach(), torch.autograd.grad(value, here, g)[0]))
    for ours, exact in zip(*results, strict=True):
        scale = max(float(exact.abs().max()), 1.0)
        assert (ours.cpu().double() - exact).abs().max() <= ERRORS[dtype] * scale


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("n", [1000, 100_000])
def test_the_same_bits_again(name, n):
    x = torch.randn(2, n, device="cuda", requires_grad=True)
    bars = [torch.autograd.grad(CALLS[name](x).square().sum(), x)[0] for _ in range(2)]
    assert bars[0].equal(bars[1])


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("n", [1000, 100_000])
def test_not_finite_is_nan(name, n):
    x = torch.randn(2, n, device="cuda")
    x[1, 3] = float("nan")
    result = CALLS[name](x)
    assert result[0].isfinite().all()
    assert result[1].isnan().all()
