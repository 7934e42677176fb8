"""Observations that are means over exposures, compared with double integrals of the kernel."""

import numpy as np
import pytest
import torch

from laplex import gp

NODES, WEIGHTS = (torch.from_numpy(part) for part in np.polynomial.legendre.leggauss(120))
KERNELS = {
    "exponential": lambda: gp.Exponential(1.3, 0.8),
    "matern32": lambda: gp.Matern32(2.0),
    "matern52": lambda: gp.Matern52(2.0),
    "sum": lambda: gp.SHO(2.0, 3.0) + gp.Exponential(1.0),
    "critical": lambda: gp.SHO(2.0, 0.5),
    "product": lambda: gp.Matern32(2.0) * gp.Cosine(3.0),
    "multiple": lambda: 0.3 * gp.Matern32(1.0) + gp.Constant(0.5),
    "carma": lambda: gp.CARMA(torch.tensor([0.5, 0.8, 1.1]).double(), torch.tensor([1.0, 0.3]).double()),
}
EXPOSURES = {
    "short": lambda n: torch.full((n,), 0.2).double(),
    "overlapping": lambda n: 0.1 + 2 * torch.rand(n).double(),
    "one long": lambda n: torch.cat([torch.tensor([9.0]), torch.full((n - 1,), 0.3)]).double(),
}
kernels = pytest.mark.parametrize("make", KERNELS.values(), ids=KERNELS)


def integral(kernel, upper):
    """The integral of k from 0 to upper, which may be negative."""
    points = upper[..., None] * (NODES + 1) / 2
    return (kernel.evaluate(points.abs()) * WEIGHTS).sum(-1) * upper / 2


def double_integral(kernel, upper):
    """The integral over u from 0 to upper of (upper - u) k(u)."""
    points = upper[..., None] * (NODES + 1) / 2
    return ((upper[..., None] - points) * kernel.evaluate(points) * WEIGHTS).sum(-1) * upper / 2


def dense(kernel, t, exposure):
    """The covariance of means over exposures."""
    start, end = t - exposure / 2, t + exposure / 2

    def part(one, other):
        return double_integral(kernel, (one[:, None] - other).abs())

    sums = part(end, start) - part(start, start) - part(end, end) + part(start, end)
    return sums / (exposure[:, None] * exposure)


def cross(kernel, new, t, exposure):
    """The covariance of the process at new times with means over exposures."""
    ends = integral(kernel, t + exposure / 2 - new[:, None])
    return (ends - integral(kernel, t - exposure / 2 - new[:, None])) / exposure


def series(n=14):
    torch.manual_seed(3)
    return 10 * torch.rand(n).double(), torch.randn(n).double()


@kernels
@pytest.mark.parametrize("exposures", EXPOSURES.values(), ids=EXPOSURES)
def test_likelihood_and_predictions(make, exposures):
    (t, y), kernel = series(), make()
    exposure, new = exposures(len(t)), torch.linspace(-3, 14, 31).double()
    process = gp.GaussianProcess(kernel, t, diag=0.1, exposure=exposure)
    matrix = dense(kernel, t, exposure) + 0.1 * torch.eye(len(t)).double()
    want = torch.distributions.MultivariateNormal(torch.zeros_like(y), matrix).log_prob(y)
    torch.testing.assert_close(process.log_likelihood(y), want, rtol=1e-9, atol=1e-9)
    seen = cross(kernel, new, t, exposure)
    mean, variance = process.predict(y, new, return_var=True)
    torch.testing.assert_close(mean, seen @ torch.linalg.solve(matrix, y), rtol=1e-8, atol=1e-9)
    removed = (seen @ torch.linalg.solve(matrix, seen.mT)).diagonal()
    torch.testing.assert_close(variance, kernel(new).diagonal() - removed, rtol=1e-8, atol=1e-9)
    torch.testing.assert_close(process.apply_inverse(y), torch.linalg.solve(matrix, y), rtol=1e-8, atol=1e-9)
    lower = process.dot_tril(torch.eye(len(t)).double())
    torch.testing.assert_close(lower @ lower.mT, matrix, rtol=1e-9, atol=1e-9)


def test_a_term_of_a_sum():
    (t, y), one, two = series(), gp.SHO(2.0, 3.0), gp.Exponential(1.0)
    exposure, new = torch.full_like(t, 1.5), torch.linspace(-1, 11, 13).double()
    process = gp.GaussianProcess(one + two, t, diag=0.1, exposure=1.5)
    matrix = dense(one + two, t, exposure) + 0.1 * torch.eye(len(t)).double()
    want = cross(one, new, t, exposure) @ torch.linalg.solve(matrix, y)
    torch.testing.assert_close(process.predict(y, new, kernel=one), want, rtol=1e-9, atol=1e-9)


def test_exposures_that_shrink_to_points():
    t, y = series()
    points = gp.GaussianProcess(gp.Matern32(2.0), t, diag=0.1)
    short = gp.GaussianProcess(gp.Matern32(2.0), t, diag=0.1, exposure=1e-4)
    torch.testing.assert_close(short.log_likelihood(y), points.log_likelihood(y), rtol=1e-5, atol=0)


def test_gradients():
    t, y = series(7)

    def value(scale, noise, t, exposure):
        process = gp.GaussianProcess(gp.Matern32(scale) + gp.Exponential(1.0), t, diag=noise, exposure=exposure)
        return process.log_likelihood(y), process.predict(y, torch.linspace(0, 9, 3).double())

    exposure = 0.3 + torch.rand(7).double()
    inputs = [torch.tensor(1.7).double(), torch.tensor(0.2).double(), t, exposure]
    assert torch.autograd.gradcheck(value, [one.requires_grad_() for one in inputs])


def test_batches_and_samples():
    torch.manual_seed(0)
    t, y = torch.rand(3, 8).double() * 5, torch.randn(3, 8).double()
    process = gp.GaussianProcess(gp.Matern32(torch.tensor([1.0, 2.0, 3.0])), t, diag=0.1, exposure=0.7)
    each = [
        gp.GaussianProcess(gp.Matern32(scale), t[i], diag=0.1, exposure=0.7).log_likelihood(y[i])
        for i, scale in enumerate((1.0, 2.0, 3.0))
    ]
    torch.testing.assert_close(process.log_likelihood(y), torch.stack(each))
    draws = process.sample(4000)
    assert draws.shape == (4000, 3, 8)
    want = dense(gp.Matern32(1.0), t[0], torch.full((8,), 0.7).double()) + 0.1 * torch.eye(8).double()
    torch.testing.assert_close(torch.cov(draws[:, 0].mT), want, rtol=0, atol=5 * 1.1 / 4000**0.5)


ERRORS = {
    "zero": ({"exposure": 0.0}, "`exposure` must be positive and finite, got 0"),
    "shape": ({"exposure": torch.ones(3)}, r"`exposure` must be a number, or broadcast to the shape \(14,\)"),
    "bands": ({"exposure": 1.0, "band": torch.zeros(14, dtype=torch.int64)}, "`exposure` cannot be used with"),
}


@pytest.mark.parametrize(("options", "message"), ERRORS.values(), ids=ERRORS)
def test_bad_exposures(options, message):
    with pytest.raises(ValueError, match=message):
        gp.GaussianProcess(gp.Matern32(1.0), series()[0], diag=0.1, **options)


def test_what_is_not_defined():
    t, y = series()
    given = gp.GaussianProcess(gp.Matern32(1.0), t, diag=0.1, exposure=1.0).condition(y)
    for call in (given.covariance, given.sample):
        with pytest.raises(ValueError, match="is not defined for observations over exposures; mean and variance are"):
            call()
    trend = gp.GaussianProcess(gp.Linear(), t, diag=0.1, exposure=1.0)
    with pytest.raises(ValueError, match="observations over an exposure are not defined for Linear"):
        trend.log_likelihood(y)


@pytest.mark.parametrize("mapped", ["t", "exposure"])
def test_mapped_times_and_exposures_are_refused(mapped):
    values = {"t": torch.rand(3, 5).double(), "exposure": torch.full((3, 5), 0.1).double()}
    fixed = {name: value[0] for name, value in values.items() if name != mapped}

    def likelihood(value):
        given = {mapped: value} | fixed
        return gp.GaussianProcess(gp.Matern32(1.0), given["t"], diag=0.1, exposure=given["exposure"]).log_likelihood(
            torch.ones(5).double()
        )

    with pytest.raises(RuntimeError, match=r"times and `exposure` must not be mapped by torch.func.vmap, .* batch"):
        torch.func.vmap(likelihood)(values[mapped])


@pytest.mark.parametrize(
    ("kernel", "n", "scale", "exposure", "size"),
    [
        (gp.Matern52, 100, 50.0, 1e-3, 1.0),
        (gp.Matern52, 100, 2.0, 1e-4, 1.0),
        (gp.Matern52, 500, 200.0, 6.8e-4, 1e4),
        (gp.Matern32, 500, 2.0, 0.03, 1e4),
        (gp.Exponential, 500, 2.0, 0.03, 1.0),
    ],
)
def test_gradients_for_short_exposures_and_large_values(kernel, n, scale, exposure, size):
    t = 0.0204 * torch.arange(n).double()
    y = size * torch.sin(t)

    def likelihood(numbers):
        process = gp.GaussianProcess(kernel(numbers[0]), t, yerr=0.3, exposure=numbers[1])
        return process.log_likelihood(y)

    numbers = torch.tensor([scale, exposure], dtype=torch.float64)
    got, want = torch.func.jacrev(likelihood)(numbers), torch.func.jacfwd(likelihood)(numbers)
    (plain,) = torch.autograd.grad(likelihood(numbers.requires_grad_()), numbers)
    rounding = 1e-13 * size**2 * n / numbers.detach()  # of the terms, which nearly cancel where an exposure is short
    for gradient in (got, plain):
        assert bool(((gradient - want).abs() <= 1e-9 * want.abs() + rounding).all())


def test_second_derivatives_for_short_exposures():
    t = 0.02 * torch.arange(30).double()

    def likelihood(scale):
        return gp.GaussianProcess(gp.Matern52(scale), t, yerr=0.3, exposure=1e-4).log_likelihood(torch.sin(t))

    scale = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(likelihood(scale), scale, create_graph=True)
    (got,) = torch.autograd.grad(slope, scale)
    want = torch.func.jacfwd(torch.func.jacfwd(likelihood))(scale.detach())
    assert float((got - want).abs()) <= 1e-7 * float(want.abs())
