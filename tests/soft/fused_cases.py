"""Fused soft ranks, sorts and masks of any backend, compared with the definitions in float64.

A module is that of a backend: ``laplex._sorted`` says what it has. Errors are judged on the scale of the terms that
are added: where a gradient cancels, no digit of it is better than that.
"""

import dense_soft
import torch

ERRORS = {torch.float32: 5e-7, torch.float64: 2e-14}
WHERE = "laplex.soft.test"


def rows_of(case, dtype):
    """The numbers of a case, and the same reversed, in two rows."""
    x = dense_soft.CASES[case].to(dtype)
    return torch.stack([x, x.flip(0)])


def lengths(x, softness):
    tau = softness * dense_soft.spread(x[0])
    return torch.tensor([tau, 2 * tau], dtype=torch.float64)


def assert_near(name, value, expected, scale, dtype=None):
    """``dtype`` is that of the numbers, where the value is float64 for any."""
    assert value.shape == expected.shape, name
    error = float((value.double() - expected).abs().max())
    assert error <= ERRORS[dtype or value.dtype] * float(scale), (name, error, float(scale))


def assert_ranks(module, x, tau, descending):
    n, wide, each = x.shape[-1], x.double(), tau[:, None, None]
    ranks, sorted_x, order = module.ranks(WHERE, x, tau, descending)
    expected = dense_soft.rank(wide, tau)
    assert_near("ranks", ranks, n + 1 - expected if descending else expected, n)
    assert sorted_x.equal(x.sort(-1).values)
    assert order.long().equal(x.sort(dim=-1, stable=True).indices)
    g = torch.randn_like(x)
    (x_bar,) = module.pull_ranks(g, sorted_x, order, tau, descending)
    slopes = torch.exp(-dense_soft.differences(wide, wide).abs() / each) / (2 * each)
    terms = slopes * dense_soft.differences(g.double(), g.double())
    sign = -1 if descending else 1
    scale = (slopes * (g.double().abs()[..., None] + g.double().abs()[..., None, :])).sum(-1).max()
    assert_near("ranks' x_bar", x_bar, sign * terms.sum(-1), scale)


def assert_values(module, x, tau, descending):
    wide = x.double().clone().requires_grad_()
    values, sorted_x, order, factors = module.values(WHERE, x, tau, descending, x.shape[-1])
    targets = wide.gather(-1, order.long())  # of equal numbers, which is at which place is the backend's choice
    targets = targets.flip(-1) if descending else targets
    weights = torch.softmax(-dense_soft.differences(targets, wide).abs() / tau[:, None, None], -1)
    expected = (weights @ wide[..., None])[..., 0]
    assert_near("values", values, expected.detach(), x.abs().max())
    g = torch.randn_like(x)
    (bar,) = torch.autograd.grad(expected, wide, g.double())
    (x_bar,) = module.pull_values(g, sorted_x, order, factors, tau, descending)
    rounding = 1 + x.double().abs().max() / tau.min() * (x.dtype == torch.float64)  # of the definition, in float64
    assert_near("values' x_bar", x_bar, bar, 4 * g.abs().max() * rounding)


def assert_mask(module, x, tau, share):
    n, wide = x.shape[-1], x.double()
    k = torch.tensor([share * n, 0.5 * share * n], dtype=torch.float64)
    mask, threshold = module.mask(WHERE, x, k, tau)
    assert torch.allclose(
        mask.double().sum(-1), k, rtol=ERRORS[x.dtype] * (1 if x.dtype == torch.float32 else 10), atol=0
    )
    anchor, offset, nearest = (column[:, None] for column in threshold.unbind(-1))
    u = (wide - anchor - offset) / tau[:, None]
    assert_near("mask", mask, dense_soft.distribution(u), 1)
    assert ((u.abs().amin(-1, keepdim=True) - nearest).abs() <= 1e-9 * (1 + nearest)).all()
    g = torch.randn_like(x)
    x_bar, k_bar, tau_bar = module.pull_mask(g, x, k, tau, threshold)
    q = torch.softmax(-u.abs(), -1)
    density, mean = torch.exp(-u.abs()) / (2 * tau[:, None]), (q * g).sum(-1, keepdim=True)
    highest = g.abs().max()
    resolution = 1 + 4e-16 * nearest.max() / ERRORS[x.dtype]  # a distance over tau of 1e10 has no digit beyond 1e-6
    assert_near("mask's k_bar", k_bar, mean[:, 0], resolution * highest, x.dtype)
    assert_near("mask's x_bar", x_bar, density * (g - mean), density.max() * highest)
    stretch = ((q * u).sum(-1, keepdim=True) - u) * density * g
    scale = (1 + u.abs() * density * tau[:, None]).sum() * highest / tau.min()
    assert_near("mask's tau_bar", tau_bar, stretch.sum(-1), scale, x.dtype)
