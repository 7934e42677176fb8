"""What `laplex.stats` computes, from the definitions: dense, in float64, for autograd. And a table of cases."""

import math

import torch


def normal(n, seed, scale=1.0, shift=0.0):
    return scale * torch.randn(n, generator=torch.Generator().manual_seed(seed)) + shift


# Two samples, and weights of the first with zeros among them.
CASES = {
    "one each": (torch.tensor([3.0]), torch.tensor([2.0])),
    "two and one": (torch.tensor([2.0, 1.0]), torch.tensor([1.5])),
    "ties": (torch.tensor([1.0, 3.0, 2.0, 3.0, 2.0, 3.0]), torch.tensor([2.0, 3.0, 5.0, 5.0])),
    "all equal": (torch.full((7,), 5.0), torch.full((4,), 5.0)),
    "the same": (normal(20, 1), normal(20, 1)),
    "apart": (torch.arange(20.0), 100.0 + torch.arange(15.0)),
    "clustered": (torch.tensor([0.0, 100.0, -50.0]).repeat(7) + torch.linspace(0.0, 1e-2, 21), normal(30, 2, 60.0)),
    "normal": (normal(50, 3), normal(40, 4)),
    "tiny": (normal(50, 5, 1e-6), normal(40, 6, 1e-6)),
    "large": (normal(50, 7, 1e6), normal(40, 8, 1e6)),
    "shifted": (normal(50, 9, 1.0, 1e6), normal(40, 10, 1.0, 1e6)),
}
LENGTHS = [1e-3, 0.1, 1.0, 100.0]  # tau in units of the spread


def spread(x):
    """The standard deviation of the numbers, or 1 where it is 0."""
    return float(x.double().std(correction=0)) or 1.0


def weights_with_zeros(n, seed=0):
    weights = torch.rand(n, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    weights[1::5] = 0
    return weights


def ones(x):
    return torch.ones_like(x, dtype=torch.float64)


def distances(a, b):
    return (a[..., :, None] - b[..., None, :]).abs()


def log_kernel(x, p, tau, w, *, left_out=False):
    """log of w_j exp(-|p_i - x_j| / tau), and -inf on the diagonal if every sample is left out at its own place."""
    logs = w.log()[..., None, :] - distances(p, x) / torch.as_tensor(tau, dtype=torch.float64)[..., None, None]
    if left_out:
        logs = logs.masked_fill(torch.eye(x.shape[-1], dtype=torch.bool), -math.inf)
    return logs


def kde(x, p, tau, w):
    tau = torch.as_tensor(tau, dtype=torch.float64)
    total = 2 * tau[..., None] * w.sum(-1, keepdim=True)
    return torch.logsumexp(log_kernel(x, p, tau, w), -1) - total.log()


def kde_left_out(x, tau, w):
    tau, n = torch.as_tensor(tau, dtype=torch.float64), x.shape[-1]
    others = (w[..., None, :] * (1 - torch.eye(n, dtype=torch.float64))).sum(-1)
    return torch.logsumexp(log_kernel(x, x, tau, w, left_out=True), -1) - (2 * tau[..., None] * others).log()


def shares(x, p, tau, w, left_out):
    return torch.softmax(log_kernel(x, p, tau, w, left_out=left_out), -1)


def nadaraya_watson(x, y, p, tau, w, *, left_out=False):
    return (shares(x, p, tau, w, left_out) * y[..., None, :]).sum(-1)


def local_variance(x, p, tau, w, *, left_out=False):
    """The variance of the samples as a point sees them, in units of tau^2."""
    weight, z = shares(x, p, tau, w, left_out), (x[..., None, :] - p[..., :, None]) / tau
    return (weight * (z - (weight * z).sum(-1, keepdim=True)) ** 2).sum(-1)


def local_linear(x, y, p, tau, w, *, left_out=False):
    weight = shares(x, p, tau, w, left_out)
    z, y = x[..., None, :] - p[..., :, None], y[..., None, :]
    mean_z, mean_y = (weight * z).sum(-1, keepdim=True), (weight * y).sum(-1, keepdim=True)
    variance = (weight * (z - mean_z) ** 2).sum(-1)
    covariance = (weight * (z - mean_z) * (y - mean_y)).sum(-1)
    return mean_y[..., 0] - mean_z[..., 0] * covariance / variance


def _pairs(kernel, w, unbiased):
    """The weighted mean of a kernel over pairs, all of them or those of different samples."""
    w = w / w.sum(-1, keepdim=True)
    products = w[..., :, None] * w[..., None, :]
    if unbiased:
        products = products * (1 - torch.eye(w.shape[-1], dtype=torch.float64))
    return (products * kernel).sum((-2, -1)) / products.sum((-2, -1))


def _across(kernel, w, v):
    w, v = w / w.sum(-1, keepdim=True), v / v.sum(-1, keepdim=True)
    return (w[..., :, None] * v[..., None, :] * kernel).sum((-2, -1))


def mmd(x, y, tau, w, v, *, unbiased=False):
    tau = torch.as_tensor(tau, dtype=torch.float64)[..., None, None]

    def kernel(a, b):
        return torch.exp(-distances(a, b) / tau)

    within = _pairs(kernel(x, x), w, unbiased) + _pairs(kernel(y, y), v, unbiased)
    return within - 2 * _across(kernel(x, y), w, v)


def energy_distance(x, y, w, v, *, unbiased=False):
    within = _pairs(distances(x, x), w, unbiased) + _pairs(distances(y, y), v, unbiased)
    return 2 * _across(distances(x, y), w, v) - within


def crps(observation, ensemble, w, *, unbiased=False):
    to_observation = _across(distances(ensemble, observation[..., None]), w, torch.ones_like(observation)[..., None])
    return to_observation - _pairs(distances(ensemble, ensemble), w, unbiased) / 2
