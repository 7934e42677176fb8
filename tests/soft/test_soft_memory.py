"""Nothing of size n x n, forward and backward, at a size where it would not fit."""

import pytest
import torch

from laplex import soft
from test_memory import NothingAsLargeAs

N = 20_000
CALLS = {
    "sort": lambda x, tau: soft.sort(x, tau=tau).values,
    "topk": lambda x, tau: soft.topk(x, N // 2, tau=tau).values,
    "permuted back": lambda x, tau: soft.sort(x, tau=tau).permutation.mT @ x,
    "log_diagonal": lambda x, tau: soft.sort(x, tau=tau).permutation.log_diagonal() / N,
    "rank": lambda x, tau: soft.rank(x, tau=tau) / N,
    "topk_mask": lambda x, tau: soft.topk_mask(x, 300, tau=tau),
    "median": lambda x, tau: soft.median(x, tau=tau),
}


@pytest.mark.parametrize("name", CALLS)
def test_forward_and_backward(name):
    x, tau = torch.randn(N, requires_grad=True), torch.tensor(0.1, requires_grad=True)
    with NothingAsLargeAs(20 * N):
        bars = torch.autograd.grad(CALLS[name](x, tau).square().sum(), (x, tau))
    assert all(bar.isfinite().all() for bar in bars)


@pytest.mark.parametrize("name", ["sort", "rank", "topk_mask"])
def test_large_and_small_sizes_agree(name):
    """Far from the others 100 numbers have the values and ranks that they have alone."""
    x = torch.randn(100, dtype=torch.float64)
    crowd = torch.cat([x, 1e6 + torch.randn(N - 100, dtype=torch.float64)])
    tau = torch.tensor(0.1)
    if name == "topk_mask":
        alone, among = soft.topk_mask(x, 30, tau=tau), soft.topk_mask(crowd, N - 70, tau=tau)[:100]
    else:
        alone, among = CALLS[name](x, tau), CALLS[name](crowd, tau)[:100]
    torch.testing.assert_close(among, alone, rtol=1e-9, atol=1e-9)
