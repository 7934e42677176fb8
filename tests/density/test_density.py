"""``laplex.density``: against torch's MultivariateNormal with the covariance formed."""

import math

import pytest
import torch
from torch.distributions import MultivariateNormal, kl_divergence

import laplex
from helpers import error
from laplex.density import LaplexGaussian, PlacedGaussian, _reading, _structured

pytestmark = pytest.mark.usefixtures("one_thread")
VARIANTS = {
    "plain": (LaplexGaussian, {"phase": False}),
    "phased": (LaplexGaussian, {}),
    "two": (LaplexGaussian, {"components": 2}),
    "three_plain": (LaplexGaussian, {"components": 3, "phase": False}),
    "diagonal": (LaplexGaussian, {"latent": "diagonal"}),
    "diagonal_plain": (LaplexGaussian, {"latent": "diagonal", "phase": False}),
    "one_function": (PlacedGaussian, {"functions": 1}),
    "three_functions": (PlacedGaussian, {"functions": 3}),
}
variants = pytest.mark.parametrize("variant", VARIANTS.values(), ids=VARIANTS)
dtypes = pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-9)], ids=str)


def model_of(variant, dim=60, rank=9, dtype=torch.float64):
    """A model with all parameters random."""
    torch.manual_seed(0)
    kind, options = variant
    model = kind(dim, rank, **options, dtype=dtype)
    for name, value in [*model.named_parameters(), ("mean", model.mean)]:
        value.data.copy_(0.3 * torch.randn_like(value) + (-1.0 if name == "log_tau" else 0.0))
    return model


def lower_triangle(module):
    """The matrix that a LowerTriangle stands for, row by row."""
    matrix = module.log_diagonal.double().exp().diag()
    rows, cols = torch.tril_indices(len(matrix), len(matrix), -1)
    return matrix.index_put((rows, cols), module.lower.double())


def factor(model):
    """F (n, r) as the docstrings define it, formed in float64 from the dense kernel."""
    phases = {}
    if isinstance(model, LaplexGaussian) and model.phi is not None:
        phases = {"phi": model.phi.double(), "psi": model.psi.double()}
    kernel = laplex.reference.kernel(model.a.double(), model.b.double(), model.log_tau.double().exp(), **phases)
    if isinstance(model, PlacedGaussian):
        root = lower_triangle(model.triangle).reshape(model.functions, len(model.b), model.rank)
        return sum(w.double()[:, None] * (kernel @ part) for w, part in zip(model.weight, root))
    if model.latent == "diagonal":
        factors = [model.log_scale.double().exp().diag()]
    else:
        factors = model.factor.double() if model.components > 1 else [lower_triangle(model.triangle)]
    return sum(w.double()[:, None] * (kernel @ one.mT) for w, one in zip(model.weight, factors))


def covariance(model):
    """F F^T + diag(d^2), in float64."""
    loadings = factor(model)
    return loadings @ loadings.mT + (2 * model.log_noise.double()).exp().diag()


def definition(model):
    """The same Gaussian, formed in float64."""
    return MultivariateNormal(model.mean.double(), covariance(model).detach())


@variants
@dtypes
def test_log_prob(variant, dtype, tolerance):
    model = model_of(variant, 300, 42, dtype)
    true, x = definition(model), model.sample(6)
    want, got = true.log_prob(x.double()), model.log_prob(x).detach()
    assert float(((got - want) / want).abs().max()) <= tolerance


@variants
def test_gradients_of_log_prob(variant):
    model, x = model_of(variant), torch.randn(4, 60, dtype=torch.float64, requires_grad=True)
    model.mean.requires_grad_()
    leaves = dict(model.named_parameters()) | {"mean": model.mean, "x": x}
    true = MultivariateNormal(model.mean, covariance(model))
    got, want = (torch.autograd.grad(total.log_prob(x).sum(), list(leaves.values())) for total in (model, true))
    for name, one, other in zip(leaves, got, want):
        assert error(one, other) <= 1e-9, name


@variants
def test_moments_of_samples(variant):
    model = model_of(variant, 20, 6)
    true, draws = definition(model), model.sample(200_000)
    assert error(torch.cov(draws.T), true.covariance_matrix) <= 0.02
    assert error(draws.mean(0), true.mean) <= 0.02
    assert error(model.covariance(), true.covariance_matrix) <= 1e-12
    assert error(model.distribution().variance, true.variance) <= 1e-12


@variants
def test_a_sample_without_noise_is_the_same_but_for_the_noise(variant):
    model = model_of(variant)
    with torch.no_grad():
        model.log_noise.fill_(math.log(1e-9))
    torch.manual_seed(5)
    noisy = model.sample(4)
    torch.manual_seed(5)
    assert error(model.sample(4, noise=False), noisy) <= 1e-7


@variants
def test_spectrum(variant):
    model = model_of(variant)
    want = torch.linalg.svdvals(factor(model).detach()).square()
    assert error(model.distribution().spectrum().detach(), want) <= 1e-9


@variants
def test_entropy_marginal_and_condition(variant):
    model = model_of(variant)
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
    expected = gaussian.log_prob(x) - gaussian.marginal(seen).log_prob(x[seen])
    assert error(other.log_prob(x[rest]), expected) <= 1e-9


@variants
def test_reconstruct_is_the_posterior_s_mean(variant):
    model, x = model_of(variant), torch.randn(3, 60, dtype=torch.float64)
    true, gaussian = definition(model), model.distribution()
    noise = gaussian.noise.square()
    signal = true.covariance_matrix - noise.diag_embed()
    want = true.mean + (x - true.mean) @ torch.linalg.solve(true.covariance_matrix, signal)
    assert error(model.reconstruct(x), want) <= 1e-9


@variants
def test_a_permutation_of_the_numbers_changes_nothing(variant):
    model, x, order = model_of(variant), torch.randn(3, 60, dtype=torch.float64), torch.randperm(60)
    assert error(model.distribution().marginal(order).log_prob(x[:, order]), model.log_prob(x)) <= 1e-12


@variants
def test_parts_of_a_batch_change_nothing(variant, monkeypatch):
    model, x = model_of(variant), torch.randn(4, 60, dtype=torch.float64, requires_grad=True)
    leaves = [*model.parameters(), x]
    complete = model.log_prob(x)
    wanted = torch.autograd.grad(complete.sum(), leaves)
    monkeypatch.setattr(_structured, "READ_AT_ONCE", 4 * 7)
    monkeypatch.setattr(_reading, "PART", 1)
    monkeypatch.setattr(_reading, "BLOCK", 3)
    parts = model.log_prob(x)
    assert error(parts, complete) <= 1e-12
    for one, other in zip(torch.autograd.grad(parts.sum(), leaves), wanted):
        assert error(one, other) <= 1e-10


@variants
def test_divergence(variant):
    one = model_of(variant)
    two = model_of(variant)
    with torch.no_grad():
        for value in two.parameters():
            value.add_(0.1 * torch.randn_like(value))
    got = kl_divergence(one.distribution(), two.distribution()).detach()
    assert error(got, kl_divergence(definition(one), definition(two))) <= 1e-9


@variants
def test_inpaint_is_the_mean_of_the_condition(variant):
    model, x = model_of(variant), torch.randn(3, 60, dtype=torch.float64)
    known = torch.rand(60) < 0.4
    filled = model.inpaint(known, x)
    assert torch.equal(filled[:, known], x[:, known])
    for row, one in zip(x, filled):
        assert error(one[~known], model.condition(known, row[known]).mean) <= 1e-12


@pytest.mark.parametrize("name", [name for name in VARIANTS if "diagonal" not in name])
def test_second_derivatives(name):
    model, x = model_of(VARIANTS[name], 12, 6), torch.randn(3, 12, dtype=torch.float64, requires_grad=True)
    leaves = dict(model.named_parameters()) | {"x": x}
    gradients = []
    for total in (model, MultivariateNormal(model.mean, covariance(model))):
        first = torch.autograd.grad(total.log_prob(x).sum(), list(leaves.values()), create_graph=True)
        gradients.append(torch.autograd.grad(sum((one.sin() * one).sum() for one in first), list(leaves.values())))
    for name, one, other in zip(leaves, *gradients):
        assert error(one, other) <= 1e-7, name


def test_the_hessian_is_that_of_the_covariance():
    model, x = model_of(VARIANTS["phased"], 8, 4), torch.randn(8, dtype=torch.float64)
    want = -torch.linalg.inv(covariance(model).detach())
    assert error(torch.autograd.functional.hessian(model.log_prob, x), want) <= 1e-9
    assert error(torch.func.grad(model.log_prob)(x), (want @ (x - model.mean)).detach()) <= 1e-9


@variants
def test_autocast_changes_nothing(variant):
    model, x = model_of(variant, dtype=torch.float32), torch.randn(4, 60)
    want = model.log_prob(x).detach(), model.reconstruct(x), model.covariance().detach()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = model.log_prob(x).detach(), model.reconstruct(x), model.covariance().detach()
    assert all(map(torch.equal, got, want))


@variants
def test_from_the_meta_device_to_a_real_one(variant):
    with torch.device("meta"):
        model = model_of(variant)
    model.to_empty(device="cpu").reset_parameters()
    assert torch.equal(model.mean, torch.zeros(60, dtype=torch.float64))
    assert bool(model.log_prob(torch.zeros(60, dtype=torch.float64)).isfinite())


@variants
def test_parts_of_a_model_are_differentiable(variant):
    model, x = model_of(variant), torch.randn(60, dtype=torch.float64)
    some = torch.arange(0, 60, 3)
    leaves = dict(model.named_parameters())
    true = MultivariateNormal(model.mean[some], covariance(model)[some][:, some])
    gradients = (
        torch.autograd.grad(one.log_prob(x[some]), list(leaves.values())) for one in (model.marginal(some), true)
    )
    for name, one, other in zip(leaves, *gradients):
        assert error(one, other) <= 1e-9, name
    given = model.condition(some.to(torch.uint8), x[some])
    torch.autograd.grad(given.log_prob(x[~torch.isin(torch.arange(60), some)]), list(leaves.values()))


@variants
def test_wider_examples_than_the_model(variant):
    model, x = model_of(variant, dtype=torch.float32), torch.randn(4, 60, dtype=torch.float64, requires_grad=True)
    likelihood = model.log_prob(x)
    assert error(likelihood.detach(), definition(model).log_prob(x.detach())) <= 1e-5
    likelihood.sum().backward()
    assert x.grad.dtype == torch.float64
    narrow = x.detach().float().requires_grad_()
    model.log_prob(narrow).sum().backward()
    assert error(x.grad, narrow.grad.double()) <= 1e-4


@variants
def test_nothing_and_everything_known(variant):
    model, x = model_of(variant), torch.randn(60, dtype=torch.float64)
    nothing = torch.zeros(60, dtype=torch.bool)
    assert error(model.condition(nothing, x[:0]).log_prob(x), model.log_prob(x).detach()) <= 1e-9
    assert error(model.inpaint(nothing, x), model.mean) <= 1e-12
    assert torch.equal(model.inpaint(~nothing, x), x)
    assert model.condition(~nothing, x).event_shape == (0,)


def test_a_fit_with_nan_in_it_gives_nan():
    model = model_of(VARIANTS["phased"])
    with torch.no_grad():
        model.log_noise[3] = float("nan")
    assert model.log_prob(torch.zeros(60, dtype=torch.float64)).isnan()


def parameters(n, k, components):
    if components == 1:
        return 4 * n + k * (k + 1) // 2 + 2 * k + 1
    return n * (3 + components) + components * k * k + 2 * k + 1


@pytest.mark.parametrize(("components", "expected"), [(1, 1_731_301), (2, 3_538_001), (3, 4_845_201)])
def test_parameter_counts_of_the_paper(components, expected):
    model = LaplexGaussian(307_200, 1000, components, device="meta")
    assert sum(p.numel() for p in model.parameters()) == expected == parameters(307_200, 1000, components)


def test_what_distributions_have():
    gaussian = model_of(VARIANTS["phased"]).distribution()
    assert gaussian.batch_shape == ()
    assert gaussian.event_shape == (60,)
    assert gaussian.sample((2, 3)).shape == (2, 3, 60)
    assert gaussian.log_prob(gaussian.sample((2, 3))).shape == (2, 3)
    assert math.isfinite(float(gaussian.entropy().detach()))


def test_bad_arguments():
    with pytest.raises(ValueError, match=r"laplex\.density\.LaplexGaussian: `rank` must be at least 1, got 0"):
        LaplexGaussian(5, 0)
    with pytest.raises(ValueError, match=r"`x` must have 5 features in its last dimension, got \(4,\)"):
        LaplexGaussian(5, 2).log_prob(torch.zeros(4))
    with pytest.raises(TypeError, match=r"`x` must be floating point, .* got torch.uint8; bytes count in 1/255"):
        LaplexGaussian(5, 2).log_prob(torch.zeros(5, dtype=torch.uint8))
    with pytest.raises(ValueError, match=r"inpaint: `known` must be a mask \(5,\), got torch.int64 \(2,\)"):
        LaplexGaussian(5, 2).inpaint(torch.tensor([0, 1]), torch.zeros(5))
    with pytest.raises(ValueError, match="`count` must be at least 1, got 0"):
        LaplexGaussian(5, 2).sample(0)
    with pytest.raises(ValueError, match='`latent` must be "dense" or "diagonal", got \'full\''):
        LaplexGaussian(5, 2, latent="full")
    with pytest.raises(ValueError, match="`components` must be 1 with a diagonal latent covariance, got 2"):
        LaplexGaussian(5, 2, 2, latent="diagonal")
    with pytest.raises(ValueError, match="`rank` must be a multiple of `functions`, got 5 and 2; use rank=4"):
        PlacedGaussian(9, 5, 2)


@pytest.mark.parametrize(
    ("indices", "message"),
    {
        "fractions": (
            torch.tensor([0.5]),
            r"`indices` must be integers \(s,\) or a mask \(60,\), got torch.float32 \(1,\)",
        ),
        "short_mask": (torch.ones(59, dtype=torch.bool), r"`indices` must be integers .* got torch.bool \(59,\)"),
        "outside": (torch.tensor([60]), "`indices` must be from -60 to 59; one of them is not"),
        "twice": (torch.tensor([1, -59]), "`indices` must differ, got one of them twice"),
    }.values(),
)
def test_bad_indices(indices, message):
    with pytest.raises(ValueError, match=message):
        model_of(VARIANTS["phased"]).marginal(indices)


def test_bad_values_and_sizes(monkeypatch):
    model = model_of(VARIANTS["diagonal"])
    with pytest.raises(ValueError, match=r"`values` must be \(2,\), one for each of `indices`, got \(3,\)"):
        model.condition(torch.tensor([1, 2]), torch.zeros(3, dtype=torch.float64))
    monkeypatch.setattr(_structured, "DENSE_LATENTS", 5)
    with pytest.raises(ValueError, match="a diagonal latent covariance must have at most 5 knots, got 9"):
        model.condition(torch.tensor([1]), torch.zeros(1, dtype=torch.float64))
    with pytest.raises(ValueError, match="spectrum: a diagonal latent covariance must have at most 5 knots, got 9"):
        model.distribution().spectrum()
    with pytest.raises(ValueError, match=r"covariance\(\) must be of at most 16384 features, got 20000"):
        LaplexGaussian(20_000, 2).covariance()


NO_TENSORS = {
    "indices": (lambda model: model.marginal([1, 2]), "marginal: `indices` must be a torch.Tensor, got list"),
    "index": (lambda model: model.marginal(3), "marginal: `indices` must be a torch.Tensor, got int"),
    "values": (lambda model: model.condition(torch.tensor([1]), [0.0]), "`values` must be a torch.Tensor, got list"),
    "known": (
        lambda model: model.inpaint([True], torch.zeros(60).double()),
        "`known` must be a torch.Tensor, got list",
    ),
}
for name in ("uint8", "int64", "bool", "complex64"):  # bytes are in other units, and nothing would say so
    values = torch.ones(1).to(getattr(torch, name))
    NO_TENSORS[name] = (
        lambda model, values=values: model.condition(torch.tensor([1]), values),
        f"`values` must be floating point, in the units of the fit, got torch.{name}; bytes count in 1/255",
    )


@pytest.mark.parametrize(("call", "message"), NO_TENSORS.values(), ids=NO_TENSORS)
def test_what_is_no_tensor_of_the_right_kind(call, message):
    with pytest.raises(TypeError, match=message):
        call(model_of(VARIANTS["phased"]))
