"""Means, variances, covariances, samples and solves, against dense formulas."""

from functools import partial

import pytest
import torch

import laplex
from laplex import gp
from processes import (
    FEW,
    KERNEL,
    allowance,
    as_tensor,
    assert_close,
    density,
    every_kernel,
    every_times,
    named_kernels,
    named_times,
    observed,
    posterior,
    seeded,
    uniform,
    with_noise,
)

pytestmark = pytest.mark.filterwarnings("ignore::laplex.PrecisionWarning")


def new_times(t):
    """Times of predictions: new, between, observed, just beside observed, before and after all, and far away; mixed."""
    low, high = float(t.min()), float(t.max())
    span = max(high - low, 1.0)
    inside = low + span * torch.rand(9, generator=seeded(11), dtype=torch.float64)
    outside = as_tensor([low - 0.3, high + 0.7, low - 40.0, high + 1e5])
    neighbours = torch.nextafter(t[:3], t.new_tensor(torch.inf))
    new = torch.cat([inside, t[:5], neighbours, outside])
    return new[torch.randperm(len(new), generator=seeded(12))]


def expected(kernel, t, diag, residual, new, part=None):
    """Mean and covariance at new times, of the process or of a part of it."""
    part = kernel if part is None else part
    return posterior(with_noise(kernel, t, diag), part(new, t), part(new), residual)


def tolerance_of(kernel, t, diag, new, case=None):
    return allowance(with_noise(kernel, t, diag), case, torch.cat([t, new], -1))


# --- Mean, variance, covariance ---------------------------------------------------------------------------------------


@every_times()
@every_kernel()
def test_every_kernel_at_every_times(case, times):
    t = times()
    diag, y = observed(t)
    kernel, new = case.kernel(times.origin), new_times(t)
    mean, covariance = expected(kernel, t, diag, y, new)
    given = gp.GaussianProcess(kernel, t, diag=diag).condition(y)
    tolerance, size = tolerance_of(kernel, t, diag, new, case), float(kernel(new).diagonal().max())
    assert_close(given.mean(new), mean, tolerance, y.abs().max())
    assert_close(given.variance(new), covariance.diagonal().clamp(min=0), tolerance, size)
    assert_close(given.covariance(new), covariance, tolerance, size)


@named_times("unsorted", "equal_and_close", "one_point")
@named_kernels(*FEW)
def test_both_paths(case, times, chain_path):
    t = times()
    diag, y = observed(t)
    kernel, new = case.kernel(times.origin), new_times(t)
    mean, covariance = expected(kernel, t, diag, y, new)
    predicted = gp.GaussianProcess(kernel, t, diag=diag).predict(y, new, return_var=True)
    tolerance, size = tolerance_of(kernel, t, diag, new), float(kernel(new).diagonal().max())
    assert_close(predicted.mean, mean, tolerance, y.abs().max())
    assert_close(predicted.variance, covariance.diagonal(), tolerance, size)


@every_kernel()
def test_at_the_observed_times(case):
    t = uniform(seeded(1), 25)
    diag, y = observed(t)
    kernel = case.kernel()
    process = gp.GaussianProcess(kernel, t, diag=diag)
    mean, covariance = expected(kernel, t, diag, y, t)
    tolerance, size = allowance(with_noise(kernel, t, diag)), float(kernel(t).diagonal().max())
    assert_close(process.predict(y), mean, tolerance, y.abs().max())
    assert_close(process.predict(y, return_var=True).variance, covariance.diagonal(), tolerance, size)
    assert_close(process.predict(y, return_cov=True).variance, covariance, tolerance, size)
    assert_close(process.predict(y, t), mean, tolerance, y.abs().max())  # given as new ones, too


def test_a_conditional_is_asked_again_and_again():
    t = uniform(seeded(1), 25)
    diag, y = observed(t)
    kernel = KERNEL["sum"].kernel()
    given = gp.GaussianProcess(kernel, t, diag=diag).condition(y)
    first = given.mean(t[:3]), given.variance(t[:3]), given.covariance(t[:3])
    for size in (1, 7, 40):
        new = 14 * torch.rand(size, generator=seeded(size), dtype=torch.float64) - 2
        mean, covariance = expected(kernel, t, diag, y, new)
        tolerance = allowance(with_noise(kernel, t, diag))
        assert_close(given.mean(new), mean, tolerance, 1.0)
        assert_close(given.variance(new), covariance.diagonal(), tolerance, 1.0)
        given.sample(3, new, generator=seeded(0))
    again = given.mean(t[:3]), given.variance(t[:3]), given.covariance(t[:3])
    assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))


def test_variances_are_never_negative():
    t = torch.linspace(0, 1, 200, dtype=torch.float64)
    process = gp.GaussianProcess(gp.Matern52(10.0), t, diag=1e-10)
    assert float(process.condition(torch.sin(t)).variance(torch.linspace(-0.1, 1.1, 700).double()).min()) >= 0


def test_results_have_the_dtype_of_y():
    t = uniform(seeded(1), 25)
    diag, y = observed(t)
    kernel, low = KERNEL["sum"].kernel(), y.float()
    process = gp.GaussianProcess(kernel, t, diag=diag)
    given = process.condition(low)
    new = uniform(seeded(2), 4)
    mean, covariance = expected(kernel, t, diag, low.double(), new)
    for got, want in ((given.mean(new), mean), (given.covariance(new), covariance)):
        assert got.dtype == torch.float32
        assert_close(got.double(), want, 1e-6)
    assert given.variance(new).dtype == given.sample(2, new).dtype == torch.float32
    assert process.apply_inverse(low).dtype == process.dot_tril(low).dtype == torch.float32
    assert process.leave_one_out(low).mean.dtype == torch.float32


# --- Components -------------------------------------------------------------------------------------------------------


def test_components_of_a_sum():
    one, two, three = gp.Matern32(2.0), 0.5 * gp.SHO(1.7, 4.0), gp.Exponential(0.4) * gp.Cosine(3.0)
    kernel, t = one + two + three, uniform(seeded(1), 25)
    diag, y = observed(t)
    given, new = gp.GaussianProcess(kernel, t, diag=diag).condition(y), new_times(t)
    tolerance = allowance(with_noise(kernel, t, diag))
    for part in (one, two, three, one + two, three + one, kernel):
        mean, covariance = expected(kernel, t, diag, y, new, part)
        assert_close(given.mean(new, kernel=part), mean, tolerance, 1.0)
        assert_close(given.variance(new, kernel=part), covariance.diagonal(), tolerance, 1.0)
        assert_close(given.covariance(new, kernel=part), covariance, tolerance, 1.0)
    total = sum(given.mean(new, kernel=part) for part in (one, two, three))
    assert_close(total, given.mean(new), tolerance, 1.0)


def test_components_at_observed_times():
    one, two = gp.Matern32(2.0), gp.SHO(1.7, 4.0)
    t = uniform(seeded(1), 25)
    diag, y = observed(t)
    process = gp.GaussianProcess(one + two, t, diag=diag, mean=0.5)
    mean, _ = expected(one + two, t, diag, y - 0.5, t, one)
    tolerance = allowance(with_noise(one + two, t, diag))
    assert_close(process.predict(y, kernel=one, include_mean=False), mean, tolerance, 1.0)
    assert_close(process.predict(y, kernel=one), mean + 0.5, tolerance, 1.0)


def test_the_same_kernel_twice_counts_twice():
    one = gp.Matern32(2.0)
    t = uniform(seeded(1), 15)
    diag, y = observed(t)
    mean, _ = expected(one + one, t, diag, y, t)
    got = gp.GaussianProcess(one + one, t, diag=diag).predict(y)
    assert_close(got, mean, allowance(with_noise(one + one, t, diag)), 1.0)


# --- Means ------------------------------------------------------------------------------------------------------------


class Line(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.slope = torch.nn.Parameter(as_tensor(0.3))

    def forward(self, t):
        return 1.2 + self.slope * t


@pytest.mark.parametrize(
    "mean", [0.7, as_tensor(0.7), torch.sin, Line()], ids=["number", "tensor", "function", "module"]
)
def test_means_at_observed_and_new_times(mean):
    t, new = uniform(seeded(1), 25), uniform(seeded(2), 6)
    diag, y = observed(t)
    kernel = KERNEL["matern52"].kernel()
    there = mean if callable(mean) else lambda t: torch.full_like(t, float(mean))
    process = gp.GaussianProcess(kernel, t, diag=diag, mean=mean)
    tolerance = allowance(with_noise(kernel, t, diag))
    for at_new in (new, t):
        want, _ = expected(kernel, t, diag, y - there(t), at_new)
        assert_close(process.predict(y, at_new), want + there(at_new), tolerance, 2.0)
        assert_close(process.predict(y, at_new, include_mean=False), want, tolerance, 2.0)


def test_a_tensor_of_means_at_observed_times():
    t = uniform(seeded(1), 25)
    diag, y = observed(t)
    kernel, mean = KERNEL["matern52"].kernel(), torch.cos(t)
    process = gp.GaussianProcess(kernel, t, diag=diag, mean=mean)
    want, _ = expected(kernel, t, diag, y - mean, t)
    tolerance = allowance(with_noise(kernel, t, diag))
    assert_close(process.predict(y), want + mean, tolerance, 1.0)
    new = uniform(seeded(2), 6)
    want, _ = expected(kernel, t, diag, y - mean, new)
    assert_close(process.predict(y, new, include_mean=False), want, tolerance, 1.0)


# --- Leave one out ----------------------------------------------------------------------------------------------------


@named_times("unsorted", "duplicates", "one_point", "two_points")
@named_kernels(*FEW)
def test_leave_one_out(case, times, chain_path):
    """Every observation is predicted from the others, by processes of n - 1 points."""
    t = times()
    diag, y = observed(t)
    kernel = case.kernel()
    predicted = gp.GaussianProcess(kernel, t, diag=diag, mean=0.4).leave_one_out(y)
    matrix = with_noise(kernel, t, diag)
    for i in range(len(t)):
        rest = torch.arange(len(t)) != i
        mean, variance = torch.zeros(1).double(), matrix[i : i + 1, i : i + 1]
        if len(t) > 1:
            inner, cross = matrix[rest][:, rest], matrix[i : i + 1, rest]
            mean, variance = posterior(inner, cross, variance, y[rest] - 0.4)
        assert_close(predicted.mean[i], mean[0] + 0.4, allowance(matrix), 1.0)
        assert_close(predicted.variance[i], variance[0, 0], allowance(matrix), matrix[i, i])


# --- Solves and factors -----------------------------------------------------------------------------------------------


@every_times()
@named_kernels(*FEW, "many_states", "cosine")
def test_apply_inverse_and_dot_tril(case, times, chain_path):
    t = times()
    diag, y = observed(t)
    kernel = case.kernel(times.origin)
    process, matrix = gp.GaussianProcess(kernel, t, diag=diag), with_noise(kernel, t, diag)
    tolerance, columns = allowance(matrix, case, t), torch.stack([y, y.cos(), t - times.origin], -1)
    order = torch.argsort(t, stable=True)
    factor = torch.empty_like(matrix)  # lower triangular in the order of time, in the caller's order
    factor[order[:, None], order] = torch.linalg.cholesky(matrix[order][:, order])
    for one in (y, columns):
        assert_close(process.apply_inverse(one), torch.linalg.solve(matrix, one), tolerance)
        assert_close(process.dot_tril(one), factor @ one, tolerance)


def test_solves_of_batches():
    t = uniform(seeded(1), 2, 3, 15)
    diag, y = observed(t)
    kernel = gp.Matern32(as_tensor([1.0, 2.0, 3.0]))
    process, matrix = gp.GaussianProcess(kernel, t, diag=diag), with_noise(kernel, t, diag)
    assert_close(process.apply_inverse(y), torch.linalg.solve(matrix, y), allowance(matrix))
    columns = torch.stack([y, y.sin()], -1)
    assert_close(process.apply_inverse(columns), torch.linalg.solve(matrix, columns), allowance(matrix))
    twice = process.dot_tril(torch.eye(15, dtype=torch.float64).expand(2, 3, 15, 15))
    assert_close(twice @ twice.mT, matrix, 1e-13)


# --- Samples ----------------------------------------------------------------------------------------------------------

DRAWS = 40_000


def assert_moments(draws, mean, covariance):
    """Mean and covariance of draws (size, n), to within five of their standard errors."""
    size = len(draws)
    deviation = covariance.diagonal().clamp(min=0).sqrt()
    assert bool(((draws.mean(0) - mean).abs() <= 5 * deviation / size**0.5 + 1e-4).all())
    spread = (deviation[:, None].square() * deviation.square() + covariance.square()).sqrt() / size**0.5
    centered = draws - mean
    assert bool(((centered.mT @ centered / size - covariance).abs() <= 5 * spread + 1e-6).all())


@named_kernels(*FEW)
def test_moments_of_samples(case):
    t = torch.cat([uniform(seeded(1), 6), as_tensor([1.0, 1.0])])
    diag, _ = observed(t)
    process = gp.GaussianProcess(case.kernel(), t, diag=diag, mean=torch.sin)
    draws = process.sample(DRAWS, generator=seeded(3))
    assert_moments(draws, torch.sin(t), with_noise(case.kernel(), t, diag))


@named_kernels(*FEW)
def test_moments_of_conditional_samples(case):
    t, new = uniform(seeded(1), 9), uniform(seeded(2), 5)
    new = torch.cat([new, t[:2], new[:1]])
    diag, y = observed(t)
    kernel = case.kernel()
    draws = gp.GaussianProcess(kernel, t, diag=diag, mean=0.3).condition(y).sample(DRAWS, new, generator=seeded(4))
    mean, covariance = expected(kernel, t, diag, y - 0.3, new)
    assert_moments(draws, mean + 0.3, covariance)


def test_moments_of_a_component():
    one, two = gp.Matern32(2.0), gp.SHO(1.7, 4.0)
    t, new = uniform(seeded(1), 9), uniform(seeded(2), 5)
    diag, y = observed(t)
    given = gp.GaussianProcess(one + two, t, diag=diag).condition(y)
    draws = given.sample(DRAWS, new, kernel=two, generator=seeded(4))
    assert_moments(draws, *expected(one + two, t, diag, y, new, two))


def test_samples_have_shapes_seeds_and_means():
    t = uniform(seeded(1), 2, 7)
    diag, y = observed(t)
    process = gp.GaussianProcess(gp.Matern32(1.0), t, diag=diag, mean=100.0)
    given = process.condition(y + 100)
    assert process.sample().shape == (2, 7)
    assert given.sample(t=t[:, :3]).shape == (2, 3)
    for sample, shape in ((process.sample, (2, 7)), (partial(given.sample, t=t[:, :3]), (2, 3))):
        one, two = (sample(4, generator=seeded(9)) for _ in range(2))
        assert one.shape == (4, *shape)
        assert torch.equal(one, two)
        assert_close(sample(4, generator=seeded(9), include_mean=False), one - 100.0, 1e-12)


def test_samples_without_a_generator_follow_the_global_seed():
    process = gp.GaussianProcess(gp.Matern32(1.0), uniform(seeded(1), 7), diag=0.1)
    draws = []
    for _ in range(2):
        torch.manual_seed(5)
        draws.append(process.sample(3))
    assert torch.equal(*draws)


def test_samples_are_differentiable():
    """The derivative of a draw in sigma is the draw over sigma, without noise."""
    t, sigma = uniform(seeded(1), 6), as_tensor(1.3).requires_grad_()
    draw = gp.GaussianProcess(gp.Matern32(1.0, sigma), t, diag=0.0).sample(generator=seeded(2))
    (bar,) = torch.autograd.grad(draw.sum(), sigma)
    assert_close(bar, draw.sum().detach() / 1.3, 1e-10)


# --- Batches and ragged series ----------------------------------------------------------------------------------------


def test_predictions_of_batches():
    t, new = uniform(seeded(1), 3, 12), uniform(seeded(2), 3, 5)
    diag, y = observed(t)
    scale = as_tensor([0.5, 1.0, 2.0])
    given = gp.GaussianProcess(gp.Matern52(scale), t, diag=diag).condition(y)
    for asked in (new, new[0], None):
        mean, variance, covariance = given.mean(asked), given.variance(asked), given.covariance(asked)
        for i in range(3):
            times = t[i] if asked is None else asked[i] if asked.dim() == 2 else asked
            want, matrix = expected(gp.Matern52(scale[i]), t[i], diag[i], y[i], times)
            tolerance = allowance(with_noise(gp.Matern52(scale[i]), t[i], diag[i]))
            assert_close(mean[i], want, tolerance, 1.0)
            assert_close(variance[i], matrix.diagonal(), tolerance, 1.0)
            assert_close(covariance[i], matrix, tolerance, 1.0)


@named_kernels(*FEW)
def test_predictions_of_series_of_different_sizes(case, chain_path):
    t = [uniform(seeded(size), size) for size in (5, 1, 12)]
    new = [uniform(seeded(20 + size), size) for size in (2, 6, 3)]
    diag, y = zip(*(observed(one) for one in t), strict=True)
    process = gp.GaussianProcess(case.kernel(), t, diag=list(diag), mean=torch.sin)
    given = process.condition(list(y))
    left_out = process.leave_one_out(list(y))
    for asked in (new, None):
        means, variances = given.mean(asked), given.variance(asked)
        for i, times in enumerate(t if asked is None else asked):
            want, matrix = expected(case.kernel(), t[i], diag[i], y[i] - torch.sin(t[i]), times)
            tolerance, size = allowance(with_noise(case.kernel(), t[i], diag[i])), float(case.kernel()(times).max())
            assert_close(means[i], want + torch.sin(times), tolerance, 1.0)
            assert_close(variances[i], matrix.diagonal(), tolerance, size)
    for i in range(3):
        alone = gp.GaussianProcess(case.kernel(), t[i], diag=diag[i], mean=torch.sin).leave_one_out(y[i])
        assert_close(left_out.mean[i], alone.mean, 1e-11, 1.0)
        assert_close(left_out.variance[i], alone.variance, 1e-11)


def test_samples_of_series_of_different_sizes():
    t, new = ([uniform(seeded(size), size) for size in sizes] for sizes in ((5, 1, 12), (2, 6, 3)))
    process = gp.GaussianProcess(gp.Matern32(1.0), t, diag=0.1, mean=torch.sin)
    draws = process.sample(DRAWS, generator=seeded(1))
    assert [one.shape for one in draws] == [(DRAWS, 5), (DRAWS, 1), (DRAWS, 12)]
    assert [one.shape for one in process.sample()] == [(5,), (1,), (12,)]
    for one, times in zip(draws, t, strict=True):
        assert_moments(one, torch.sin(times), with_noise(gp.Matern32(1.0), times, 0.1))
    y = [one[0] for one in draws]
    for one, i in zip(process.condition(y).sample(DRAWS, new, generator=seeded(2)), range(3), strict=True):
        mean, covariance = expected(gp.Matern32(1.0), t[i], 0.1, y[i] - torch.sin(t[i]), new[i])
        assert_moments(one, mean + torch.sin(new[i]), covariance)


# --- Bands ------------------------------------------------------------------------------------------------------------


def banded(kernel, t, s, bands, value, slope):
    """Covariances of value times the process plus slope times its derivative, by autograd through the dense kernel.

    With k a function of D = |t - s|, values and slopes have the covariance k' sign(s - t), and slopes -k''.
    """
    distance = (t[:, None] - s).abs().requires_grad_()
    k = kernel.evaluate(distance)
    (first,) = torch.autograd.grad(k.sum(), distance, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), distance)
    odd = (first * (t[:, None] - s).sign()).detach()
    (value1, value2), (slope1, slope2) = ((part[bands[0]][:, None], part[bands[1]]) for part in (value, slope))
    return value1 * value2 * k.detach() + (slope1 * value2 - value1 * slope2) * odd - slope1 * slope2 * second


SMOOTH = {
    "matern32": gp.Matern32(2.0, 1.2),
    "matern52": gp.Matern52(1.5),
    "sho": gp.SHO(3.0, 2.0),
    "sho_overdamped": gp.SHO(3.0, 0.3),
    "cosine": gp.Cosine(2.5),
    "product": gp.Matern32(4.0) * gp.Cosine(3.0),
    "sum": gp.Matern52(1.5) + 0.5 * gp.SHO(2.0, 4.0),
    "carma": gp.CARMA(as_tensor([1.4, 2.3, 1.5]), as_tensor([0.9, 0.5])),
}


@pytest.mark.parametrize("name", SMOOTH)
def test_bands_of_values_and_slopes(name, chain_path):
    """Band 0 observes the value, band 1 the slope, and band 2 both."""
    kernel = SMOOTH[name]
    t, new = uniform(seeded(1), 18), uniform(seeded(2), 6)
    diag, y = observed(t)
    band, new_band = torch.arange(18) % 3, torch.arange(6) % 3
    value, slope = as_tensor([1.0, 0.0, 0.6]), as_tensor([0.0, 1.0, -0.8])
    matrix = banded(kernel, t, t, (band, band), value, slope) + torch.diag(diag)
    cross = banded(kernel, new, t, (new_band, band), value, slope)
    prior = banded(kernel, new, new, (new_band, new_band), value, slope)
    mean, covariance = posterior(matrix, cross, prior, y)
    process = gp.GaussianProcess(gp.Bands(kernel, value, slope), t, diag=diag, band=band)
    tolerance = allowance(matrix)
    assert_close(process.log_likelihood(y), density(matrix, y), tolerance)
    given = process.condition(y)
    assert_close(given.mean(new, band=new_band), mean, tolerance, 1.0)
    assert_close(given.variance(new, band=new_band), covariance.diagonal(), tolerance, 1.0)
    assert_close(given.covariance(new, band=new_band), covariance, tolerance, 1.0)
    assert_close(given.mean(), posterior(matrix, matrix - torch.diag(diag), matrix, y)[0], tolerance, 1.0)


def test_different_bands_of_a_sum():
    one, two = gp.Matern32(2.0), gp.Matern52(0.7)
    t = uniform(seeded(1), 18)
    diag, y = observed(t)
    band, first, second = torch.arange(18) % 2, as_tensor([1.0, 0.5]), as_tensor([0.3, -1.0])
    kernel = gp.Bands(one, first) + 2.0 * gp.Bands(two, second)
    matrix = first[band][:, None] * first[band] * one(t) + 2 * second[band][:, None] * second[band] * two(t)
    matrix = matrix + torch.diag(diag)
    got = gp.GaussianProcess(kernel, t, diag=diag, band=band).log_likelihood(y)
    assert_close(got, density(matrix, y), allowance(matrix), 10.0)


def test_bands_of_series_of_different_sizes():
    t = [uniform(seeded(size), size) for size in (4, 9)]
    diag, y = zip(*(observed(one) for one in t), strict=True)
    band = [torch.arange(len(one)) % 2 for one in t]
    kernel, new = gp.Bands(gp.Matern32(2.0), as_tensor([1.0, 0.5])), [as_tensor([1.0, 2.0]), as_tensor([3.0])]
    new_band = [torch.tensor([0, 1]), torch.tensor([1])]
    process = gp.GaussianProcess(kernel, t, diag=list(diag), band=band)
    means = process.condition(list(y)).mean(new, band=new_band)
    for i in range(2):
        alone = gp.GaussianProcess(kernel, t[i], diag=diag[i], band=band[i])
        assert_close(process.log_likelihood(list(y))[i], alone.log_likelihood(y[i]), 1e-13)
        assert_close(means[i], alone.condition(y[i]).mean(new[i], band=new_band[i]), 1e-12)


def test_moments_of_samples_in_bands():
    t = uniform(seeded(1), 6)
    band, value, slope = torch.arange(6) % 2, as_tensor([1.0, 0.0]), as_tensor([0.0, 1.0])
    kernel = gp.Matern52(2.0)
    process = gp.GaussianProcess(gp.Bands(kernel, value, slope), t, diag=0.1, band=band)
    matrix = banded(kernel, t, t, (band, band), value, slope)
    draws = process.sample(DRAWS, generator=seeded(1))
    assert_moments(draws, torch.zeros(6), matrix + 0.1 * torch.eye(6))
    given = process.condition(draws[0])
    mean, covariance = posterior(matrix + 0.1 * torch.eye(6), matrix, matrix, draws[0])
    assert_moments(given.sample(DRAWS, generator=seeded(2)), mean, covariance)


def test_one_new_time_for_each_series():
    t = torch.linspace(0, 5, 30).double().reshape(3, 10)
    y, new = torch.sin(t), torch.tensor([[0.1], [2.2], [6.3]]).double()
    mean, variance = gp.GaussianProcess(gp.Matern32(1.0), t, yerr=0.1).predict(y, new, return_var=True)
    assert mean.shape == variance.shape == (3, 1)
    for i in range(3):
        alone = gp.GaussianProcess(gp.Matern32(1.0), t[i], yerr=0.1).predict(y[i], new[i], return_var=True)
        torch.testing.assert_close((mean[i], variance[i]), tuple(alone))


def test_new_times_as_a_column():
    process = gp.GaussianProcess(gp.Matern32(1.0), torch.linspace(0, 5, 10).double(), yerr=0.1)
    with pytest.raises(ValueError, match=r"got \(4, 1\); pass t.squeeze\(-1\)"):
        process.predict(torch.ones(10).double(), torch.rand(4, 1).double())


def test_predictions_that_lose_digits_warn():
    torch.manual_seed(0)
    t = torch.rand(40).double().sort().values
    process = gp.GaussianProcess(gp.Matern52(50.0), t, diag=1e-15)
    y = torch.sin(3 * t)
    for call in (process.predict, process.condition, process.leave_one_out, process.apply_inverse):
        with pytest.warns(laplex.PrecisionWarning, match="nearly singular.*what is solved loses digits, too; raise"):
            call(y)
