"""ProcessDistribution: the observations of a process, as torch.distributions has them."""

import math

import pytest
import torch
from torch.distributions import Independent, MultivariateNormal, TransformedDistribution
from torch.distributions.transforms import AffineTransform

from laplex import PrecisionWarning, gp
from processes import KERNEL, assert_close, named_kernels, observed, seeded, with_noise


def case_process(name="sum", batch=(), **options):
    """A process at unsorted times, and its dense matrix."""
    t = 10 * torch.rand(*batch, 17, generator=seeded(1), dtype=torch.float64)
    diag, _ = observed(t)
    kernel = KERNEL[name].kernel()
    return gp.GaussianProcess(kernel, t, diag=diag, **options), with_noise(kernel, t, diag)


def dense(matrix, mean=0.0):
    mean = torch.as_tensor(mean, dtype=torch.float64).expand(matrix.shape[:-1])
    return MultivariateNormal(mean, covariance_matrix=matrix)


@named_kernels("exponential", "sho", "sum", "trend", "carma_3_1")
@pytest.mark.parametrize("batch", [(), (3,), (2, 3)], ids=str)
@pytest.mark.parametrize("sample", [(), (5,), (4, 1)], ids=str)
def test_is_the_dense_distribution(case, batch, sample):
    process, matrix = case_process(case.name, batch, mean=0.4)
    got, want = process.distribution(), dense(matrix, 0.4)
    assert (got.batch_shape, got.event_shape) == (want.batch_shape, want.event_shape)
    assert_close(got.mean, want.mean, 1e-14)
    assert_close(got.variance, matrix.diagonal(dim1=-2, dim2=-1), 1e-12)
    assert_close(got.entropy(), want.entropy(), 1e-10)
    values = torch.randn(*sample, *batch, 17, generator=seeded(2), dtype=torch.float64)
    assert_close(got.log_prob(values), want.log_prob(values), 1e-9)
    assert got.rsample(sample).shape == got.sample(sample).shape == (*sample, *batch, 17)


def test_values_broadcast_to_the_batch():
    process, matrix = case_process(batch=(3,))
    value = torch.randn(17, generator=seeded(2), dtype=torch.float64)
    assert_close(process.distribution().log_prob(value), dense(matrix).log_prob(value), 1e-9)
    values = torch.randn(4, 1, 17, generator=seeded(2), dtype=torch.float64)
    assert_close(process.distribution().log_prob(values), dense(matrix).log_prob(values), 1e-9)


@pytest.mark.parametrize(("batch", "shape"), [((), (4,)), ((3,), (2, 3)), ((1,), (5,)), ((1, 3), (2, 4, 3))], ids=str)
def test_expand(batch, shape):
    process, matrix = case_process(batch=batch)
    got, want = process.distribution().expand(shape), dense(matrix).expand(shape)
    assert (got.batch_shape, got.event_shape) == (want.batch_shape, want.event_shape)
    assert got.rsample((6,)).shape == (6, *shape, 17)
    assert got.mean.shape == got.variance.shape == (*shape, 17)
    values = torch.randn(6, *shape, 17, generator=seeded(2), dtype=torch.float64)
    for value in (values, values[0]):
        assert_close(got.log_prob(value), want.log_prob(value), 1e-9)
    assert got.entropy().shape == shape
    assert got.expand((2, *shape)).log_prob(values[0]).shape == (2, *shape)


def test_samples_have_the_covariance():
    process, matrix = case_process(mean=2.0)
    torch.manual_seed(0)
    drawn = process.distribution().sample((40_000,))
    assert (drawn.mean(0) - 2.0).abs().max() < 0.05
    assert (torch.cov(drawn.mT) - matrix).abs().max() < 0.1


def test_gradients_of_samples_are_those_of_the_dense_factor():
    """A draw is L z, in the order of time; so is a dense one, with the same z."""
    t = torch.linspace(0, 9, 13, dtype=torch.float64)

    def gradients(draw):
        scale = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
        noise = torch.tensor(0.1, dtype=torch.float64, requires_grad=True)
        torch.manual_seed(3)
        value = (draw(scale, noise) * torch.arange(13)).sum()
        return torch.stack([value, *torch.autograd.grad(value, (scale, noise))]).detach()

    def ours(scale, noise):
        return gp.GaussianProcess(gp.Matern32(scale), t, diag=noise).distribution().rsample()

    def theirs(scale, noise):
        factor = torch.linalg.cholesky(gp.Matern32(scale)(t) + noise * torch.eye(13, dtype=torch.float64))
        return factor @ torch.randn(13, dtype=torch.float64)

    assert_close(gradients(ours), gradients(theirs), 1e-9)


@pytest.mark.parametrize("sample", [(), (3,)], ids=str)
def test_gradients_of_log_prob(sample):
    t = torch.linspace(0, 9, 13, dtype=torch.float64)
    values = torch.randn(*sample, 13, generator=seeded(4), dtype=torch.float64)

    def gradients(log_prob):
        inputs = [torch.tensor(one, dtype=torch.float64, requires_grad=True) for one in (2.0, 0.1, 0.3)]
        return torch.stack(torch.autograd.grad(log_prob(*inputs).sum(), inputs))

    def ours(scale, noise, mean):
        return gp.GaussianProcess(gp.Matern32(scale), t, diag=noise, mean=mean).distribution().log_prob(values)

    def theirs(scale, noise, mean):
        matrix = gp.Matern32(scale)(t) + noise * torch.eye(13, dtype=torch.float64)
        return MultivariateNormal(mean.expand(13), covariance_matrix=matrix).log_prob(values)

    assert_close(gradients(ours), gradients(theirs), 1e-9)


def test_observations_over_exposures():
    t = torch.linspace(0, 9, 13, dtype=torch.float64)
    process = gp.GaussianProcess(gp.Matern32(2.0), t, yerr=0.2, exposure=1.5)
    distribution = process.distribution()
    values = torch.randn(4, 13, generator=seeded(5), dtype=torch.float64)
    want = torch.stack([process.log_likelihood(value) for value in values])
    assert_close(distribution.log_prob(values), want, 1e-10)
    torch.manual_seed(0)
    drawn = distribution.sample((40_000,))
    assert_close(drawn.var(0), distribution.variance, 0.05)


def test_works_with_what_torch_makes_of_distributions():
    process, matrix = case_process(batch=(3,))
    value = torch.randn(3, 17, generator=seeded(2), dtype=torch.float64)
    got = Independent(process.distribution(), 1)
    assert got.event_shape == (3, 17)
    assert_close(got.log_prob(value), dense(matrix).log_prob(value).sum(), 1e-9)
    scaled = TransformedDistribution(process.distribution(), AffineTransform(0.0, 2.0, event_dim=1))
    want = dense(matrix).log_prob(value / 2) - 17 * math.log(2)
    assert_close(scaled.log_prob(value), want, 1e-9)
    assert repr(process.distribution()).startswith("ProcessDistribution(GaussianProcess(")
    assert repr(process.condition(torch.zeros_like(process.t))).startswith("Conditional(GaussianProcess(")


class Mixin:
    """What Pyro's TorchDistributionMixin asks of a distribution, in short."""

    def __call__(self, sample_shape=()):
        return self.rsample(sample_shape) if self.has_rsample else self.sample(sample_shape)

    def expand_by(self, sample_shape):
        return self.expand(torch.Size(sample_shape) + self.batch_shape)

    def to_event(self, count):
        return Independent(self, count)


class Mixed(gp.ProcessDistribution, Mixin):
    """As the guide makes one for Pyro."""


def test_a_subclass_with_a_mixin_as_that_of_pyro():
    process, matrix = case_process()
    mixed = Mixed(process)
    assert mixed().shape == (17,)
    assert type(mixed.expand_by((4,))) is Mixed
    values = torch.randn(4, 17, generator=seeded(2), dtype=torch.float64)
    got = mixed.expand_by((4,)).to_event(1).log_prob(values)
    assert_close(got, dense(matrix).log_prob(values).sum(), 1e-9)


def test_the_dtype_of_log_prob_is_that_of_the_value():
    process, _ = case_process()
    for shape in ((17,), (3, 17)):
        assert process.distribution().log_prob(torch.zeros(shape)).dtype == torch.float32


def test_several_values_are_as_one():
    """In half precision a log density overflows; and the determinant may have lost its digits."""
    t = torch.linspace(0, 1, 300, dtype=torch.float64)
    distribution = gp.GaussianProcess(gp.Matern52(5.0), t, diag=0.01).distribution()
    value = torch.full((300,), 1000.0).half()
    several = distribution.log_prob(torch.stack([value, value]))
    assert several.dtype == torch.float32
    assert several.isfinite().all()
    assert_close(several.double(), distribution.log_prob(value).double().expand(2), 1e-6)
    singular = gp.GaussianProcess(gp.Matern52(50.0), t, diag=1e-12).distribution()
    for call, name in (
        (lambda: singular.log_prob(torch.zeros(2, 300)), "log_prob"),
        (singular.entropy, "entropy"),
    ):
        with pytest.warns(PrecisionWarning, match=f"laplex.gp.ProcessDistribution.{name}: the matrix is nearly"):
            call()


@pytest.mark.parametrize("wrong", [math.nan, math.inf, 1e200])
def test_values_that_have_no_density(wrong):
    process, _ = case_process()
    distribution = gp.ProcessDistribution(process, validate_args=False)
    values = torch.zeros(3, 17, dtype=torch.float64)
    values[1, 4] = wrong
    for value in (values, values[1]):
        with pytest.raises(ValueError, match=r"log_(prob|likelihood): `y`.* must be (finite|at most 1e\+150 in)"):
            distribution.log_prob(value)


def test_errors():
    t = torch.linspace(0, 9, 13)
    with pytest.raises(ValueError, match=r"laplex.gp.ProcessDistribution: needs times in one tensor, got a list"):
        gp.GaussianProcess(gp.Matern32(2.0), [t, t[:5]], yerr=0.1).distribution()
    distribution = gp.GaussianProcess(gp.Matern32(2.0), t, yerr=0.1).distribution()
    with pytest.raises(ValueError, match="`value` must have 13 numbers in its last dimension, one for each time, got"):
        distribution.log_prob(torch.zeros(12))
    validated = gp.ProcessDistribution(distribution.process, validate_args=True)  # gpytorch turns the default off
    with pytest.raises(ValueError, match="within the support"):
        validated.log_prob(torch.full((13,), math.nan))
    singular = gp.GaussianProcess(gp.Matern32(2.0), torch.ones(3), diag=0.0).distribution()
    with pytest.raises(torch.linalg.LinAlgError, match=r"laplex.gp.ProcessDistribution.log_prob: K \+ diag must be"):
        singular.log_prob(torch.zeros(2, 3))
