"""What holds for any Gaussian process, whatever its times, parameters and observations: examples by hypothesis."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from laplex import gp
from processes import allowance, as_tensor, assert_close, condition_number, size_of, with_noise

pytestmark = pytest.mark.filterwarnings("ignore::laplex.PrecisionWarning")
settings.register_profile("processes", max_examples=25, deadline=None, derandomize=True)
EXAMPLES = settings.get_profile("processes")

numbers = st.floats(0.2, 5.0)
builders = st.sampled_from(
    [
        lambda a, b, c: gp.Exponential(a, b),
        lambda a, b, c: gp.Matern32(a, b),
        lambda a, b, c: gp.Matern52(a, b),
        lambda a, b, c: gp.SHO(a, b / 4, c),
        lambda a, b, c: gp.Rotation(a, b, c, 0.5),
        lambda a, b, c: gp.Matern32(a) + b * gp.SHO(c, 2.0),
        lambda a, b, c: gp.Matern52(a) * gp.SHO(b, c),
        lambda a, b, c: gp.CARMA(as_tensor([a * b, a + b]), as_tensor([c, 0.3])),
        lambda a, b, c: gp.Celerite(a, 0.0, b, c) * gp.Exponential(2.0),
        lambda a, b, c: gp.Constant(a) + gp.Exponential(b, c),
    ]
)
kernels = st.builds(lambda build, *values: build(*values), builders, numbers, numbers, numbers)
grid = st.integers(-200, 200).map(lambda i: i / 16)  # exact in binary, so that a shift is exact, and some are equal
series = st.lists(st.tuples(grid, st.floats(-3, 3), st.floats(0.01, 2.0)), min_size=1, max_size=20)


def columns(rows):
    """Times, observations, and variances of noise."""
    return as_tensor([list(row) for row in rows]).unbind(-1)


def likelihood(kernel, t, y, diag):
    return gp.GaussianProcess(kernel, t, diag=diag).log_likelihood(y)


@EXAMPLES
@given(kernels, series, st.randoms(use_true_random=False))
def test_permutations_change_nothing(kernel, rows, random):
    t, y, diag = columns(rows)
    order = list(range(len(rows)))
    random.shuffle(order)
    matrix = with_noise(kernel, t, diag)
    tolerance, size = allowance(matrix), size_of(matrix, y)
    assert_close(likelihood(kernel, t[order], y[order], diag[order]), likelihood(kernel, t, y, diag), tolerance, size)
    one, two = (gp.GaussianProcess(kernel, t[i], diag=diag[i]) for i in (order, slice(None)))
    assert_close(one.predict(y[order]), two.predict(y)[order], tolerance, 3.0)
    assert_close(one.apply_inverse(y[order]), two.apply_inverse(y)[order], tolerance)


@EXAMPLES
@given(kernels, series, st.integers(-100_000, 100_000))
def test_shifts_change_nothing(kernel, rows, shift):
    t, y, diag = columns(rows)
    new = t[:3] + 0.3125
    matrix = with_noise(kernel, t, diag)
    here, there = (gp.GaussianProcess(kernel, t + offset, diag=diag) for offset in (0, shift))
    assert torch.equal(here.log_likelihood(y), there.log_likelihood(y))
    assert_close(there.predict(y, new + shift), here.predict(y, new), allowance(matrix), 3.0)


@EXAMPLES
@given(kernels, series)
def test_reversed_time_changes_nothing(kernel, rows):
    t, y, diag = columns(rows)
    matrix = with_noise(kernel, t, diag)
    assert_close(likelihood(kernel, -t, y, diag), likelihood(kernel, t, y, diag), allowance(matrix), size_of(matrix, y))


@EXAMPLES
@given(kernels, series, grid, st.floats(-3, 3))
def test_a_point_with_huge_noise_says_nothing(kernel, rows, time, value):
    """Its own density is that of its noise, and the others' is as before."""
    t, y, diag = columns(rows)
    noise, new = 1e20, t + 0.7
    more = [torch.cat([part, as_tensor([one])]) for part, one in ((t, time), (y, value), (diag, noise))]
    own = -0.5 * torch.log(2 * torch.pi * as_tensor(noise))
    matrix = with_noise(kernel, t, diag)
    tolerance, size = allowance(matrix), size_of(matrix, y)
    assert_close(likelihood(kernel, *more) - own, likelihood(kernel, t, y, diag), tolerance, size + 50)
    one, two = (
        gp.GaussianProcess(kernel, x, diag=s).predict(z, new, return_var=True) for x, z, s in (more, (t, y, diag))
    )
    assert_close(one.mean, two.mean, tolerance, 3.0)
    assert_close(one.variance, two.variance, tolerance, kernel(t[:1])[0, 0])


@EXAMPLES
@given(kernels, st.lists(series, min_size=1, max_size=4))
def test_series_are_independent(kernel, many):
    parts = [columns(rows) for rows in many]
    t, y, diag = (list(part) for part in zip(*parts, strict=True))
    together = gp.GaussianProcess(kernel, t, diag=diag).log_likelihood(y)
    for i, part in enumerate(parts):
        matrix = with_noise(kernel, part[0], part[2])
        assert_close(together[i], likelihood(kernel, *part), allowance(matrix), size_of(matrix, part[1]))


@EXAMPLES
@given(kernels, series, series)
def test_the_density_of_both_is_that_of_one_times_that_of_the_other_given_the_one(kernel, first, second):
    """p(y1, y2) = p(y1) p(y2 | y1): likelihood, mean and covariance agree with one another."""
    (t1, y1, diag1), (t2, y2, diag2) = columns(first), columns(second)
    joint = likelihood(kernel, torch.cat([t1, t2]), torch.cat([y1, y2]), torch.cat([diag1, diag2]))
    process = gp.GaussianProcess(kernel, t1, diag=diag1)
    mean, covariance = process.predict(y1, t2, return_cov=True)
    other = torch.distributions.MultivariateNormal(mean, covariance + torch.diag(diag2)).log_prob(y2)
    matrix = with_noise(kernel, torch.cat([t1, t2]), torch.cat([diag1, diag2]))
    scale = size_of(matrix, torch.cat([y1, y2]))
    assert_close(process.log_likelihood(y1) + other, joint, 10 * allowance(matrix), scale)


@EXAMPLES
@given(kernels, series)
def test_solves_undo_products(kernel, rows):
    t, y, diag = columns(rows)
    process, matrix = gp.GaussianProcess(kernel, t, diag=diag), with_noise(kernel, t, diag)
    assert_close(process.apply_inverse(matrix @ y), y, allowance(matrix))
    factor = process.dot_tril(torch.eye(len(t), dtype=torch.float64))
    assert_close(factor @ factor.mT, matrix, 1e-13)
    assert_close(process.predict(y) + diag * process.apply_inverse(y), y, allowance(matrix), 3.0)


@EXAMPLES
@given(kernels, series)
def test_much_noise_leaves_nothing_to_learn(kernel, rows):
    t, y, _ = columns(rows)
    noise = 1e16
    process = gp.GaussianProcess(kernel, t, diag=noise)
    want = torch.distributions.Normal(0.0, as_tensor(noise).sqrt()).log_prob(y).sum()
    assert_close(process.log_likelihood(y), want, 1e-12)
    mean, variance = process.predict(y, t + 0.1, return_var=True)
    assert float(mean.abs().max()) <= 1e-10
    assert_close(variance, kernel(t + 0.1).diagonal(), 1e-10)


@EXAMPLES
@given(kernels, st.lists(st.integers(0, 15), min_size=1, max_size=10, unique=True), st.floats(-3, 3))
def test_an_observation_without_noise_is_the_process(kernel, places, value):
    t = as_tensor([float(one) for one in places])
    y = value + torch.cos(t)
    diag = torch.where(torch.arange(len(t)) == 0, 0.0, 0.1).double()
    matrix = with_noise(kernel, t, diag)
    if condition_number(matrix) > 1e12:
        return
    mean, variance = gp.GaussianProcess(kernel, t, diag=diag).predict(y, t[:1], return_var=True)
    assert_close(mean, y[:1], allowance(matrix), 4.0)
    assert float(variance) <= allowance(matrix) * float(matrix[0, 0])


@EXAMPLES
@given(kernels, series, st.floats(0.1, 10.0))
def test_scales_of_y(kernel, rows, factor):
    """y times a factor, and all variances times its square: the density is divided by the factor, for each point."""
    t, y, diag = columns(rows)
    got = likelihood(factor**2 * kernel, t, factor * y, factor**2 * diag)
    want = likelihood(kernel, t, y, diag) - len(t) * torch.log(as_tensor(factor))
    matrix = with_noise(kernel, t, diag)
    assert_close(got, want, allowance(matrix), size_of(matrix, y) + len(t))


@EXAMPLES
@given(kernels, kernels, series)
def test_sums_and_products_do_not_depend_on_their_order(one, two, rows):
    t, y, diag = columns(rows)
    for left, right in ((one + two, two + one), (one * two, two * one)):
        matrix = with_noise(left, t, diag)
        assert_close(likelihood(left, t, y, diag), likelihood(right, t, y, diag), allowance(matrix), size_of(matrix, y))
