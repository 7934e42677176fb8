"""What `laplex.soft` computes, from the definitions: dense, in float64, for autograd. And a table of cases."""

import torch

CASES = {
    "one": torch.tensor([3.0]),
    "two": torch.tensor([2.0, 1.0]),
    "ties": torch.tensor([1.0, 3.0, 2.0, 3.0, 2.0, 3.0]),
    "equal": torch.full((7,), 5.0),
    "sorted": torch.arange(20.0),
    "reversed": -torch.arange(20.0),
    "clustered": torch.tensor([0.0, 100.0, -50.0]).repeat(7) + torch.linspace(0.0, 1e-2, 21),
    "normal": torch.randn(50, generator=torch.Generator().manual_seed(1)),
    "tiny": 1e-6 * torch.randn(50, generator=torch.Generator().manual_seed(2)),
    "large": 1e6 * torch.randn(50, generator=torch.Generator().manual_seed(3)),
    "far": 1e6 + torch.randn(50, generator=torch.Generator().manual_seed(4)),
}
SOFTNESS = [1e-12, 1e-3, 0.1, 1.0, 10.0, 1e8]  # in units of the spread


def spread(x):
    """The standard deviation of the numbers, or 1 where it is 0."""
    return float(x.double().std(correction=0)) or 1.0


def distribution(u):
    tail = torch.exp(-u.abs()) / 2
    return torch.where(u < 0, tail, 1 - tail)


def differences(a, x):
    return a[..., :, None] - x[..., None, :]


def permutation(x, tau, *, descending=False):
    ordered = x.sort(-1, descending=descending).values
    return torch.softmax(
        -differences(ordered, x).abs() / torch.as_tensor(tau, dtype=torch.float64)[..., None, None], -1
    )


def sort(x, tau, *, descending=False):
    return (permutation(x, tau, descending=descending) @ x[..., None])[..., 0]


def rank(x, tau):
    return 0.5 + distribution(differences(x, x) / torch.as_tensor(tau, dtype=torch.float64)[..., None, None]).sum(-1)


def threshold(x, weights, k, tau):
    """The b with sum of weights F((x - b) / tau) = k for one row, by bisection. No derivatives."""
    low, high = x.min() - 800 * tau, x.max() + 800 * tau
    for _ in range(2000):
        b = (low + high) / 2
        if b in (low, high):
            break
        low, high = (b, high) if (weights * distribution((x - b) / tau)).sum() > k else (low, b)
    return b


def differentiable_threshold(x, weights, k, tau):
    """The same with first derivatives, by the implicit function theorem."""
    b = threshold(x.detach(), weights.detach(), k.detach(), tau.detach())
    u = (x - b) / tau
    density = (weights * torch.exp(-u.abs())).sum().detach() / (2 * tau.detach())
    return b + ((weights * distribution(u)).sum() - k) / density
