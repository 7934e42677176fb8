"""``laplex.density``: against torch's MultivariateNormal with the covariance formed."""

import math

import pytest
import torch
from torch.distributions import MultivariateNormal

from helpers import error
from laplex.density import LaplexGaussian

VARIANTS = {
    "plain": {"phase": False},
    "phased": {},
    "two": {"components": 2},
    "three_plain": {"components": 3, "phase": False},
    "diagonal": {"latent": "diagonal"},
    "diagonal_plain": {"latent": "diagonal", "phase": False},
}
variants = pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)
dtypes = pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-9)], ids=str)


def model_of(options, dim=60, rank=9, dtype=torch.float64):
    """A model with all parameters random."""
    torch.manual_seed(0)
    model = LaplexGaussian(dim, rank, **options, dtype=dtype)
    for name, value in [*model.named_parameters(), ("mean", model.mean)]:
        value.data.copy_(0.3 * torch.randn_like(value) + (-1.0 if name == "log_tau" else 0.0))
    return model


def definition(model):
    """The same Gaussian, formed in float64."""
    options = {"phase": model.phi is not None, "latent": model.latent}
    wide = LaplexGaussian(model.dim, model.rank, model.components, **options, dtype=torch.float64)
    wide.load_state_dict({name: value.double() for name, value in model.state_dict().items()})
    return MultivariateNormal(wide.mean, wide.distribution().covariance().detach())


@variants
@dtypes
def test_log_prob(options, dtype, tolerance):
    model = model_of(options, 300, 40, dtype)
    true, x = definition(model), model.sample(6)
    want = true.log_prob(x.double())
    assert float(((model.log_prob(x) - want) / want).abs().max()) <= tolerance


@variants
def test_gradients_of_log_prob(options):
    model, x = model_of(options), torch.randn(4, 60, dtype=torch.float64)
    leaves = list(model.parameters())
    gaussian = model.distribution()
    true = MultivariateNormal(gaussian.mean, gaussian.covariance())
    got, want = (torch.autograd.grad(total.log_prob(x).sum(), leaves) for total in (model, true))
    for (name, _), one, other in zip(model.named_parameters(), got, want):
        assert error(one, other) <= 1e-9, name


@variants
def test_moments_of_samples(options):
    model = model_of(options, 20, 5)
    gaussian, draws = model.distribution(), model.sample(200_000)
    covariance = gaussian.covariance().detach()
    assert error(torch.cov(draws.T), covariance) <= 0.02
    assert error(draws.mean(0), gaussian.mean) <= 0.02
    assert error(gaussian.variance, covariance.diagonal()) <= 1e-12


@variants
def test_entropy_marginal_and_condition(options):
    model = model_of(options)
    gaussian, x = model.distribution(), model.sample(1)[0]
    true = definition(model)
    assert abs(float((gaussian.entropy() - true.entropy()).detach())) <= 1e-9
    seen = torch.randperm(60)[:25]
    rest = torch.ones(60, dtype=torch.bool)
    rest[seen] = False
    C = true.covariance_matrix
    some = MultivariateNormal(true.mean[seen], C[seen][:, seen])
    assert error(gaussian.marginal(seen).log_prob(x[seen]), some.log_prob(x[seen])) <= 1e-9
    gain = torch.linalg.solve(C[seen][:, seen], C[seen][:, rest])
    other = gaussian.condition(seen, x[seen])
    assert error(other.mean, true.mean[rest] + (x - true.mean)[seen] @ gain) <= 1e-9
    assert error(other.covariance(), C[rest][:, rest] - C[rest][:, seen] @ gain) <= 1e-9
    whole = gaussian.log_prob(x) - gaussian.marginal(seen).log_prob(x[seen])
    assert error(other.log_prob(x[rest]), whole) <= 1e-9


@variants
def test_reconstruct_is_the_posterior_s_mean(options):
    model, x = model_of(options), torch.randn(3, 60, dtype=torch.float64)
    true, gaussian = definition(model), model.distribution()
    noise = gaussian.noise.square()
    signal = true.covariance_matrix - noise.diag_embed()
    want = true.mean + (x - true.mean) @ torch.linalg.solve(true.covariance_matrix, signal)
    assert error(model.reconstruct(x), want) <= 1e-9


@variants
def test_a_permutation_of_the_numbers_changes_nothing(options):
    model, x, order = model_of(options), torch.randn(3, 60, dtype=torch.float64), torch.randperm(60)
    assert error(model.distribution().marginal(order).log_prob(x[:, order]), model.log_prob(x)) <= 1e-12


def parameters(n, k, components):
    if components == 1:
        return 4 * n + k * (k + 1) // 2 + 2 * k + 1
    return n * (3 + components) + components * k * k + 2 * k + 1


@pytest.mark.parametrize(("components", "expected"), [(1, 1_731_301), (2, 3_538_001), (3, 4_845_201)])
def test_parameter_counts_of_the_paper(components, expected):
    model = LaplexGaussian(307_200, 1000, components, device="meta")
    assert sum(p.numel() for p in model.parameters()) == expected == parameters(307_200, 1000, components)


def test_what_distributions_have():
    gaussian = model_of({}).distribution()
    assert gaussian.batch_shape == ()
    assert gaussian.event_shape == (60,)
    assert gaussian.sample((2, 3)).shape == (2, 3, 60)
    assert gaussian.log_prob(gaussian.sample((2, 3))).shape == (2, 3)
    assert math.isfinite(float(gaussian.entropy().detach()))


def test_bad_arguments():
    with pytest.raises(ValueError, match="laplex.density.LaplexGaussian: `rank` must be at least 1, got 0"):
        LaplexGaussian(5, 0)
    with pytest.raises(ValueError, match=r"`x` must have 5 features in its last dimension, got \(4,\)"):
        LaplexGaussian(5, 2).log_prob(torch.zeros(4))
    with pytest.raises(ValueError, match="`count` must be at least 1, got 0"):
        LaplexGaussian(5, 2).sample(0)
