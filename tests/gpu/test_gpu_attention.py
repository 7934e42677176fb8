"""On a CUDA device: attention by distances, compared with the CPU, values and gradients; the same bits every time."""

import pytest
import torch

from laplex.nn import LaplaceAttention, laplace_attention

pytestmark = pytest.mark.gpu


def results(device, n, case, dtype=torch.float32):
    """Values and gradients of one call, on a device."""
    torch.manual_seed(0)
    q, k, v, scale = torch.randn(3, n, 1), torch.randn(3, n + 7, 1), torch.randn(3, n + 7, 5), torch.tensor([0.1, 1, 5])
    if case == "ties":
        q, k = q.round(), k.round()
    if case == "far":
        q[:, ::3] *= 1e6
    mask = (torch.rand(3, n + 7) < 0.3).to(device) if case == "masked" else None
    leaves = [tensor.to(device, dtype).requires_grad_() for tensor in (q, k, v, scale)]
    y = laplace_attention(*leaves, key_padding_mask=mask)
    g = torch.linspace(-1, 1, y.numel()).reshape(y.shape).to(device, dtype)
    return [y.detach().cpu(), *(bar.cpu() for bar in torch.autograd.grad(y, leaves, g))]


@pytest.mark.parametrize("n", [5, 300, 5000])
@pytest.mark.parametrize(
    ("case", "dtype", "limit"),
    [
        *[(case, torch.float64, 1e-11) for case in ("generic", "ties", "far", "masked")],
        # Of ties the gradient in q is a small difference of large sums: in float32 two right answers differ by more.
        *[(case, torch.float32, 2e-6) for case in ("generic", "far", "masked")],
    ],
)
def test_as_on_the_cpu(n, case, dtype, limit):
    ours, theirs = (results(device, n, case, dtype) for device in ("cuda", "cpu"))
    for name, one, other in zip(("y", "q", "k", "v", "scale"), ours, theirs, strict=True):
        assert float((one - other).norm()) <= limit * float(other.norm()), name


def test_the_same_bits_every_time():
    first, second = (results("cuda", 3000, "ties") for _ in range(2))
    assert all(torch.equal(one, other) for one, other in zip(first, second, strict=True))


def test_a_call_does_not_wait():
    attention, x = LaplaceAttention(16, 4, device="cuda"), torch.randn(2, 100, 16, device="cuda")
    mask = torch.zeros(2, 100, dtype=torch.bool, device="cuda")
    attention(x, key_padding_mask=mask).sum().backward()
    torch.cuda.set_sync_debug_mode("error")
    try:
        attention(x, key_padding_mask=mask).sum().backward()
    finally:
        torch.cuda.set_sync_debug_mode("default")


def test_what_is_not_finite_becomes_nan():
    q, k, v = torch.randn(2, 9, 1), torch.randn(2, 9, 1), torch.randn(2, 9, 3)
    k[1, 4] = torch.nan
    y = laplace_attention(q.cuda(), k.cuda(), v.cuda())
    assert y[0].isfinite().all()
    assert y[1].isnan().all()


def test_training_under_autocast_and_compiled():
    attention, x = LaplaceAttention(16, 4, device="cuda"), torch.randn(2, 500, 16, device="cuda")
    with torch.autocast("cuda", torch.bfloat16):
        attention(x).float().square().mean().backward()
    assert all(parameter.grad.isfinite().all() for parameter in attention.parameters())
    compiled = torch.compile(attention, fullgraph=True)
    torch.testing.assert_close(compiled(x), attention(x), rtol=1e-4, atol=1e-5)
