"""Gradients, by name, against autograd through the dense definitions in float64; at ties, and for weights of 0."""

import dense_stats as dense
import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck
from torch.func import jacfwd, jacrev

from laplex import stats


def leaves(n=9, m=7, batch=3, tied=False):
    """Everything that can be trained. Tied: samples and points are equal to others, and weights are 0."""
    inputs = {
        "x": torch.randn(batch, n, dtype=torch.float64),
        "y": torch.randn(batch, m, dtype=torch.float64) + 0.3,
        "z": torch.randn(batch, n, dtype=torch.float64) + 10,
        "o": torch.randn(batch, dtype=torch.float64),
        "tau": 0.3 + torch.rand(batch, dtype=torch.float64),
        "w": 0.1 + torch.rand(batch, n, dtype=torch.float64),
        "v": 0.1 + torch.rand(batch, m, dtype=torch.float64),
    }
    if tied:
        inputs["x"][:, 4:6] = inputs["x"][:, :1]
        inputs["y"][:, :3] = inputs["x"][:, :3]
        inputs["o"][:] = inputs["x"][:, 0]
    return {name: value.requires_grad_() for name, value in inputs.items()}


def ones(x):
    return torch.ones_like(x)


PAIRS = {  # arguments, ours, the definition
    "kde": ("x y tau w", lambda x, y, tau, w: stats.kde(x, y, tau=tau, weights=w), dense.kde),
    "kde plain": (
        "x y tau",
        lambda x, y, tau: stats.kde(x, y, tau=tau),
        lambda x, y, tau: dense.kde(x, y, tau, ones(x)),
    ),
    "kde left out": ("x tau w", lambda x, tau, w: stats.kde(x, tau=tau, weights=w), dense.kde_left_out),
    "kde left out plain": (
        "x tau",
        lambda x, tau: stats.kde(x, tau=tau),
        lambda x, tau: dense.kde_left_out(x, tau, ones(x)),
    ),
    "nadaraya_watson": (
        "x z y tau w",
        lambda x, z, y, tau, w: stats.nadaraya_watson(x, z, y, tau=tau, weights=w),
        dense.nadaraya_watson,
    ),
    "nadaraya_watson left out": (
        "x z tau w",
        lambda x, z, tau, w: stats.nadaraya_watson(x, z, tau=tau, weights=w),
        lambda x, z, tau, w: dense.nadaraya_watson(x, z, x, tau, w, left_out=True),
    ),
    "local_linear": (
        "x z y tau w",
        lambda x, z, y, tau, w: stats.local_linear(x, z, y, tau=tau, weights=w),
        dense.local_linear,
    ),
    "local_linear left out": (
        "x z tau w",
        lambda x, z, tau, w: stats.local_linear(x, z, tau=tau, weights=w),
        lambda x, z, tau, w: dense.local_linear(x, z, x, tau, w, left_out=True),
    ),
    "mmd": (
        "x y tau w v",
        lambda x, y, tau, w, v: stats.mmd(x, y, tau=tau, weights_x=w, weights_y=v),
        dense.mmd,
    ),
    "mmd unbiased": (
        "x y tau w v",
        lambda x, y, tau, w, v: stats.mmd(x, y, tau=tau, weights_x=w, weights_y=v, unbiased=True),
        lambda x, y, tau, w, v: dense.mmd(x, y, tau, w, v, unbiased=True),
    ),
    "mmd plain": (
        "x y tau",
        lambda x, y, tau: stats.mmd(x, y, tau=tau, unbiased=True),
        lambda x, y, tau: dense.mmd(x, y, tau, ones(x), ones(y), unbiased=True),
    ),
    "energy_distance": (
        "x y w v",
        lambda x, y, w, v: stats.energy_distance(x, y, weights_x=w, weights_y=v),
        dense.energy_distance,
    ),
    "energy_distance unbiased": (
        "x y w v",
        lambda x, y, w, v: stats.energy_distance(x, y, weights_x=w, weights_y=v, unbiased=True),
        lambda x, y, w, v: dense.energy_distance(x, y, w, v, unbiased=True),
    ),
    "crps": ("o x w", lambda o, x, w: stats.crps(o, x, weights=w), dense.crps),
    "crps unbiased": (
        "o x w",
        lambda o, x, w: stats.crps(o, x, weights=w, unbiased=True),
        lambda o, x, w: dense.crps(o, x, w, unbiased=True),
    ),
}


@pytest.fixture(params=PAIRS)
def pair(request):
    names, ours, definition = PAIRS[request.param]
    return names.split(), ours, definition


def gradients(function, inputs, names, direction):
    value = function(*(inputs[name] for name in names))
    bars = torch.autograd.grad((value.double() * direction).sum(), [inputs[name] for name in names])
    return dict(zip(names, bars, strict=True))


@pytest.mark.parametrize("tied", [False, True])
def test_gradients(pair, tied):
    names, ours, definition = pair
    inputs = leaves(tied=tied)
    direction = torch.randn_like(definition(*(inputs[name] for name in names)))
    expected = gradients(definition, inputs, names, direction)
    for name, bar in gradients(ours, inputs, names, direction).items():
        torch.testing.assert_close(
            bar, expected[name], rtol=1e-9, atol=1e-9, msg=lambda text, name=name: f"{name} {text}"
        )


def dense_sums(x, y, tau, w, z=None):
    """The density, or the mean of z, without logarithms of weights, which may be 0."""
    kernel = torch.exp(-dense.distances(y, x) / tau[..., None, None])
    sums = (kernel * w[..., None, :]).sum(-1)
    if z is None:
        return (sums / (2 * tau[..., None] * w.sum(-1, keepdim=True))).log()
    return (kernel * (w * z)[..., None, :]).sum(-1) / sums


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("mean", [False, True])
def test_gradients_where_weights_are_zero(mean, tied):
    """A sample of weight 0 has a gradient for its weight: it is what a little weight there would change."""
    inputs = leaves(tied=tied)
    with torch.no_grad():
        inputs["w"][:, ::3] = 0
    names = ["x", "y", "tau", "w", *(["z"] if mean else [])]

    def ours(x, y, tau, w, z=None):
        return stats.kde(x, y, tau=tau, weights=w) if z is None else stats.nadaraya_watson(x, z, y, tau=tau, weights=w)

    direction = torch.randn(3, 7, dtype=torch.float64)
    expected = gradients(dense_sums, inputs, names, direction)
    for name, bar in gradients(ours, inputs, names, direction).items():
        torch.testing.assert_close(bar, expected[name], rtol=1e-9, atol=1e-9, msg=name)


ESTIMATES = {
    "kde": lambda x, y, p, tau, w: stats.kde(x, p, tau=tau, weights=w),
    "nadaraya_watson": lambda x, y, p, tau, w: stats.nadaraya_watson(x, y, p, tau=tau, weights=w),
    "local_linear": lambda x, y, p, tau, w: stats.local_linear(x, y, p, tau=tau, weights=w),
}


@pytest.mark.parametrize("order", [2, 3])
@pytest.mark.parametrize("gap", [100.0, 300.0, 400.0, 450.0, 500.0, 800.0])
@pytest.mark.parametrize("place", [0.35, 0.7, 1.5, 2.5])
@pytest.mark.parametrize("name", ESTIMATES)
def test_higher_derivatives_beside_a_weight_of_zero(name, place, gap, order):
    """They are those without its sample, at which sums of weights are as small as e^-gap: here to 1e-195, where they
    are still divided by, and below."""
    x = gap * torch.tensor([0.0, 1.0, 2.0], dtype=torch.float64)
    y, w = torch.tensor([1.0, 5.0, 2.0], dtype=torch.float64), torch.tensor([0.5, 0.0, 0.7], dtype=torch.float64)
    p, tau = torch.tensor([place * gap], dtype=torch.float64), torch.tensor(1.0, dtype=torch.float64)

    def derivatives(keep):
        """All mixed ones in the places of the samples, their values, the point and tau."""
        n = len(keep)

        def estimate(v):
            return ESTIMATES[name](v[:n], v[n : 2 * n], v[2 * n : -1], v[-1], w[keep])[0]

        for _ in range(order):
            estimate = jacrev(estimate)
        return estimate(torch.cat([x[keep], y[keep], p, tau[None]]))

    got, want = derivatives([0, 1, 2]), derivatives([0, 2])
    assert got.isfinite().all()
    for dim in range(order):
        got, want = got.index_select(dim, torch.tensor([0, 2, 3, 5, 6])), want.narrow(dim, 0, 5)
    torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-13)  # those in tau have the rounding errors of gap / tau


def test_gradients_in_float32(pair):
    names, ours, definition = pair
    rounded = {name: value.detach().float().requires_grad_() for name, value in leaves().items()}
    exact = {name: value.detach().double().requires_grad_() for name, value in rounded.items()}
    direction = torch.randn_like(definition(*(exact[name] for name in names)))
    expected = gradients(definition, exact, names, direction)
    for name, bar in gradients(ours, rounded, names, direction).items():
        assert bar.dtype == torch.float32, name
        assert (bar - expected[name]).abs().max() <= 5e-7 * (1 + expected[name].abs().max()), name


def test_both_orders_of_derivative(pair):
    names, ours, _ = pair
    inputs = [leaves(5, 4, 2)[name] for name in names]
    assert gradcheck(ours, inputs, check_forward_ad=True)
    assert gradgradcheck(ours, inputs)


def test_transforms(pair):
    names, ours, _ = pair
    inputs = leaves(6, 5, 4)
    values = [inputs[name].detach() for name in names]
    torch.testing.assert_close(torch.func.vmap(ours)(*values), ours(*values))
    tangents = tuple(torch.randn_like(value) for value in values)
    value, tangent = torch.func.jvp(ours, tuple(values), tangents)
    direction = torch.randn_like(value)
    bars = torch.func.vjp(ours, *values)[1](direction)
    pulled = sum((bar * change).sum() for bar, change in zip(bars, tangents, strict=True))
    torch.testing.assert_close((direction * tangent).sum(), pulled)


def test_forward_mode_over_forward_mode(pair):
    """torch runs a Function's jvp with forward mode off, which alone would make the outer derivative 0."""
    names, ours, _ = pair
    inputs = leaves(4, 3, 2)
    values = tuple(inputs[name].detach() for name in names)
    direction = torch.randn_like(ours(*values))
    places = tuple(range(len(values)))

    def loss(*values):
        return (direction * ours(*values)).sum()

    got = jacfwd(jacfwd(loss, places), places)(*values)
    torch.testing.assert_close(got, torch.autograd.functional.hessian(loss, values))


def test_third_derivatives_of_the_mmd_by_forward_mode_alone():
    x, y = torch.randn(4, dtype=torch.float64), torch.randn(3, dtype=torch.float64)

    def loss(x):
        return stats.mmd(x, y, tau=0.5, unbiased=True)

    torch.testing.assert_close(jacfwd(jacfwd(jacfwd(loss)))(x), jacrev(jacrev(jacrev(loss)))(x))


def test_gradients_far_away():
    """1e6 tau from all samples the slope of the log density is -1 / tau, and only the nearest samples matter."""
    x = torch.tensor([0.0, 1.0, 5.0], dtype=torch.float64, requires_grad=True)
    p = torch.tensor([1e6], dtype=torch.float64, requires_grad=True)
    p_bar, x_bar = torch.autograd.grad(stats.kde(x, p, tau=1.0).sum(), (p, x))
    assert float(p_bar) == pytest.approx(-1.0)
    torch.testing.assert_close(x_bar, torch.softmax(x, 0))


def test_draws_have_gradients():
    x = torch.randn(50, dtype=torch.float64, requires_grad=True)
    tau = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    draws = [
        stats.kde_sample(x, 1000, tau=scale * tau, generator=torch.Generator().manual_seed(0)) for scale in (1.0, 2.0)
    ]
    x_bar, tau_bar = torch.autograd.grad(draws[0].sum(), (x, tau))
    assert float(x_bar.sum()) == pytest.approx(1000)
    noise = (draws[1] - draws[0]) / tau  # the same samples and the same noise, once more
    assert float(tau_bar) == pytest.approx(float(noise.sum().detach()))
