"""Dense Gaussians that ``laplex.density`` is compared with: against torch's, scikit-learn's, and brute force."""

import pytest
import torch
from torch.distributions import LowRankMultivariateNormal, MultivariateNormal, kl_divergence

from helpers import error
from laplex.density import Examples
from paper.methods import gaussian as gaussian_module
from paper.methods.empirical import empirical
from paper.methods.gaussian import DenseFactorGaussian, LowRankGaussian, matched_rank, ppca, ppca_parameters

pytestmark = pytest.mark.usefixtures("one_thread")
dtypes = pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-9)], ids=str)


def dense(dim=60, rank=7, dtype=torch.float64):
    """A Gaussian with a random factor."""
    mean, log_noise = torch.randn(2, dim, dtype=dtype)
    return DenseFactorGaussian(mean, (0.3 * log_noise).exp(), torch.randn(rank, dim, dtype=dtype) / 3)


def correlated(count, dim=40, dtype=torch.float64, rank=6, seed=0):
    """Rows (count, dim) with a mean, ``rank`` strong directions and some noise."""
    generator = torch.Generator().manual_seed(7)
    loadings, mean = torch.randn(rank, dim, generator=generator, dtype=torch.float64), torch.linspace(-1, 3, dim)
    drawn = torch.Generator().manual_seed(seed)
    z = torch.randn(count, rank, generator=drawn, dtype=torch.float64)
    return (mean + z @ loadings + 0.3 * torch.randn(count, dim, generator=drawn, dtype=torch.float64)).to(dtype)


@pytest.fixture(params=[False, True], ids=["whole", "in_parts"])
def parts(request, monkeypatch):
    """Features are read at once, or a few at a time."""
    if request.param:
        monkeypatch.setattr(gaussian_module, "READ_AT_ONCE", 128)


# --- A dense factor ---------------------------------------------------------------------------------------------------


@dtypes
@pytest.mark.usefixtures("parts")
def test_log_prob_is_torch_s(dtype, tolerance):
    gaussian = dense(300, 40, dtype)
    x = gaussian.sample((6,))
    mean, noise, loadings = (one.double() for one in (gaussian.mean, gaussian.noise, gaussian.loadings))
    want = LowRankMultivariateNormal(mean, loadings.mT, noise.square()).log_prob(x.double())
    assert float(((gaussian.log_prob(x) - want) / want).abs().max()) <= tolerance
    assert gaussian.log_prob(x.reshape(2, 3, 300)).shape == (2, 3)


@pytest.mark.usefixtures("parts")
def test_gradients_are_those_of_the_formed_covariance():
    model, x = LowRankGaussian(30, 4, dtype=torch.float64), torch.randn(5, 30, dtype=torch.float64)
    torch.nn.init.normal_(model.loadings)
    gaussian = model.distribution()
    true = MultivariateNormal(gaussian.mean, gaussian.covariance())
    got, want = (torch.autograd.grad(one.log_prob(x).sum(), list(model.parameters())) for one in (model, true))
    for one, other in zip(got, want, strict=True):
        assert error(one, other) <= 1e-9


def test_entropy_divergence_and_reconstruction():
    gaussian = dense()
    x = gaussian.sample()
    C = gaussian.covariance()
    true = MultivariateNormal(gaussian.mean, C)
    assert error(gaussian.entropy(), true.entropy()) <= 1e-9
    assert error(gaussian.variance, C.diagonal()) <= 1e-12
    other = dense()
    want = kl_divergence(true, MultivariateNormal(other.mean, other.covariance()))
    assert error(kl_divergence(gaussian, other), want) <= 1e-9
    signal = C - gaussian.noise.square().diag_embed()
    assert error(gaussian.reconstruct(x), true.mean + (x - true.mean) @ torch.linalg.solve(C, signal)) <= 1e-9


# --- Trained low rank -------------------------------------------------------------------------------------------------


def test_training_finds_the_covariance():
    data = correlated(2000, 12, torch.float32, rank=2)
    model = LowRankGaussian(12, 2)
    model.mean.copy_(data.mean(0))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(600):
        optimizer.zero_grad()
        (-model(data).mean()).backward()
        optimizer.step()
    assert error(model.covariance(), torch.cov(data.T)) <= 0.05
    assert model.sample(3).shape == model.reconstruct(data[:3]).shape == (3, 12)


def test_parameters():
    model = LowRankGaussian(50, 4)
    assert sum(p.numel() for p in model.parameters()) == 50 * 5
    assert set(model.state_dict()) == {"mean", "log_noise", "loadings"}
    assert model.half().loadings.dtype == torch.float32
    assert ppca_parameters(307_200, 6) == 2_150_406  # as the paper prints


@pytest.mark.parametrize(("parameters", "rank"), [(2_231_801, 6), (3_538_001, 11), (4_845_201, 15), (7, 1)])
def test_the_rank_of_a_budget_is_the_paper_s(parameters, rank):
    assert matched_rank(parameters, 307_200) == rank


def test_bad_arguments_of_low_rank():
    with pytest.raises(ValueError, match="LowRankGaussian: `rank` must be at least 1, got 0"):
        LowRankGaussian(5, 0)
    with pytest.raises(ValueError, match=r"paper.methods.LowRankGaussian.log_prob: `x` must have 5 features"):
        LowRankGaussian(5, 2).log_prob(torch.zeros(4))


# --- Probabilistic PCA ------------------------------------------------------------------------------------------------


@dtypes
@pytest.mark.usefixtures("parts")
def test_ppca_is_scikit_learn_s(dtype, tolerance):
    from sklearn.decomposition import PCA

    data, rank = correlated(90, dtype=dtype), 4
    gaussian = ppca(Examples(data), rank)
    theirs = PCA(rank, svd_solver="full").fit(data.double().numpy())
    theirs.explained_variance_ *= 89 / 90  # scikit-learn divides by N - 1, the most likely one by N
    theirs.noise_variance_ *= 89 / 90
    assert error(gaussian.covariance(), torch.from_numpy(theirs.get_covariance())) <= tolerance
    want = theirs.score(data.double().numpy())
    assert abs(float(gaussian.log_prob(data).mean()) / want - 1) <= tolerance


def test_ppca_of_fewer_examples_than_features():
    data = correlated(20)
    gaussian = ppca(Examples(data), 3)
    values, vectors = torch.linalg.eigh(torch.cov(data.T, correction=0))
    noise = values[:-3].sum() / (40 - 3)
    lead = vectors[:, -3:]
    want = noise * torch.eye(40, dtype=torch.float64) + lead @ (values[-3:] - noise).diag_embed() @ lead.T
    assert error(gaussian.covariance(), want) <= 1e-9


def test_bad_arguments_of_ppca():
    with pytest.raises(ValueError, match="`rank` must be at most 8 for 10 examples of 40 features, got 9"):
        ppca(Examples(correlated(10)), 9)
    with pytest.raises(ValueError, match=r"paper.methods.ppca: `rank` must be at least 1, got 0"):
        ppca(Examples(correlated(10)), 0)
    few = torch.randn(20, 2, dtype=torch.float64) @ torch.randn(2, 40, dtype=torch.float64)
    with pytest.raises(ValueError, match="`examples` must vary in more than 2 directions, got no more"):
        ppca(Examples(few), 2)


# --- The empirical Gaussian -------------------------------------------------------------------------------------------


def split(dtype=torch.float64, count=15):
    examples = Examples(correlated(count, dtype=dtype))
    return examples, Examples(correlated(8, dtype=dtype, seed=1), mean=examples.mean)


def formed(examples, ridge):
    """The same by its definition."""
    x = examples.rows(slice(None)).double()
    covariance = x.T @ x / len(x) + ridge * torch.eye(x.shape[1], dtype=torch.float64)
    return MultivariateNormal(examples.mean.double(), covariance)


@dtypes
@pytest.mark.usefixtures("parts")
def test_the_ridge_is_the_best_by_brute_force(dtype, tolerance):
    examples, validation = split(dtype)
    ridges = torch.logspace(-2, 1, 30).tolist()
    gaussian, ridge = empirical(examples, validation, ridges)
    want = [float(formed(examples, one).log_prob(validation.values.double()).mean()) for one in ridges]
    assert ridge == gaussian.ridge == ridges[want.index(max(want))]
    assert gaussian.latents == 14
    got = gaussian.log_prob(validation.values)
    assert float((got / formed(examples, ridge).log_prob(validation.values.double()) - 1).abs().max()) <= tolerance


@pytest.mark.usefixtures("parts")
def test_the_empirical_gaussian_is_that_of_a_formed_factor():
    examples, validation = split()
    gaussian, ridge = empirical(examples, validation)
    x = validation.values
    true = formed(examples, ridge)
    assert error(gaussian.covariance(), true.covariance_matrix) <= 1e-9
    assert error(gaussian.entropy(), true.entropy()) <= 1e-9
    signal = true.covariance_matrix - ridge * torch.eye(40, dtype=torch.float64)
    want = true.mean + torch.linalg.solve(true.covariance_matrix, (x - true.mean).T).T @ signal
    assert error(gaussian.reconstruct(x), want) <= 1e-9
    assert gaussian.sample((2, 3)).shape == (2, 3, 40)


def test_ridges_are_fine_and_around_the_best():
    examples, validation = split()
    _, ridge = empirical(examples, validation)
    around = torch.linspace(0.9, 1.1, 41) * ridge
    likeliest = max(around.tolist(), key=lambda one: formed(examples, one).log_prob(validation.values).mean())
    assert abs(likeliest / ridge - 1) < 0.0205


def test_more_examples_than_features():
    examples, validation = split(count=100)
    gaussian, ridge = empirical(examples, validation)
    assert gaussian.latents == 40
    assert error(gaussian.log_prob(validation.values), formed(examples, ridge).log_prob(validation.values)) <= 1e-9


def test_bad_arguments_of_the_empirical_gaussian():
    examples, validation = split()
    with pytest.raises(ValueError, match="`validation` must be less the mean of `examples`, got another mean"):
        empirical(examples, Examples(validation.values))
    equal = Examples(torch.ones(5, 40, dtype=torch.float64))
    with pytest.raises(ValueError, match="`examples` must differ, got 5 equal ones"):
        empirical(equal, Examples(validation.values, mean=equal.mean))
