"""Nothing of size n x m, forward and backward, at a size where it would not fit."""

import pytest
import torch

from laplex import stats
from test_memory import NothingAsLargeAs

N = 20_000
CALLS = {
    "kde": lambda x, y, tau: stats.kde(x, y, tau=tau),
    "kde left out": lambda x, y, tau: stats.kde(x, tau=tau),
    "weighted": lambda x, y, tau: stats.kde(x, y, tau=tau, weights=torch.rand(N)),
    "nadaraya_watson": lambda x, y, tau: stats.nadaraya_watson(x, y, y, tau=tau),
    "local_linear": lambda x, y, tau: stats.local_linear(x, y, tau=tau),
    "mmd": lambda x, y, tau: stats.mmd(x, y, tau=tau, unbiased=True),
    "energy_distance": lambda x, y, tau: stats.energy_distance(x, y) * tau,
    "crps": lambda x, y, tau: stats.crps(y[0], x) * tau,
    "sliced": lambda x, y, tau: stats.sliced_mmd(x[:, None], y[:, None], tau=tau, projections=2),
}


@pytest.mark.parametrize("name", CALLS)
def test_forward_and_backward(name):
    x, y = torch.randn(N, requires_grad=True), torch.randn(N, requires_grad=True)
    tau = torch.tensor(0.1, requires_grad=True)
    with NothingAsLargeAs(20 * N):
        bars = torch.autograd.grad(CALLS[name](x, y, tau).square().sum(), (x, y, tau), allow_unused=True)
    assert all(bar.isfinite().all() for bar in bars if bar is not None)


def test_permutations_come_in_blocks():
    with NothingAsLargeAs(1 << 20):
        stats.permutation_test(torch.randn(N), torch.randn(N), tau=0.1, permutations=30)


def test_large_and_small_sizes_agree():
    """Far from the others 100 numbers have the densities that they have alone, but for the number of samples."""
    x, p = torch.randn(100, dtype=torch.float64), torch.randn(50, dtype=torch.float64)
    crowd = torch.cat([x, 1e6 + torch.randn(N - 100, dtype=torch.float64)])
    alone, among = stats.kde(x, p, tau=0.1), stats.kde(crowd, p, tau=0.1)
    torch.testing.assert_close(among, alone + torch.tensor(100 / N, dtype=torch.float64).log(), rtol=1e-12, atol=1e-12)
