"""The projections and features that laplex is compared with compute what their names say."""

import numpy as np
import pytest
import torch

from helpers import error, oracle
from paper.methods import rff
from paper.methods.products import toeplitz
from paper.methods.sketch import CountSketch, principal_components


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


# --- Sketches --------------------------------------------------------------------------------------------------------


def test_a_count_sketch_adds_up_buckets(dtype):
    module, x = CountSketch(30, 7, generator=seeded()), torch.randn(2, 3, 30, dtype=dtype)
    want = torch.zeros(2, 3, 7, dtype=torch.float64)
    for j in range(30):
        want[..., module.buckets[j]] += module.signs[j] * x[..., j].double()
    y = module(x)
    assert y.dtype == dtype
    assert error(y, want) <= 4 * torch.finfo(dtype).eps


def test_a_count_sketch_is_differentiable_and_saved():
    module, x = CountSketch(30, 7), torch.randn(30, dtype=torch.float64, requires_grad=True)
    (got,) = torch.autograd.grad(module(x)[3], x)
    assert torch.equal(got, module.signs * (module.buckets == 3).double())
    other = CountSketch(30, 7)
    other.load_state_dict(module.half().state_dict())
    assert torch.equal(other(x), module(x))


def test_sketches_keep_products_on_average():
    x, z = torch.randn(2, 40, dtype=torch.float64).unbind()
    sketches = [CountSketch(40, 20, generator=seeded(seed)) for seed in range(400)]
    products = torch.stack([sketch(x) @ sketch(z) for sketch in sketches])
    spread = float(x.norm() * z.norm()) * (2 / 20) ** 0.5  # of one draw, at most
    assert abs(float(products.mean() - x @ z)) < 4 * spread / 400**0.5


def test_draws_are_those_of_the_generator():
    state = torch.get_rng_state()
    one, two = (CountSketch(9, 4, generator=seeded(5)).state_dict() for _ in range(2))
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize(("samples", "d"), [(20, 50), (50, 20), (30, 30)])
def test_principal_components_are_those_of_scikit_learn(samples, d, dtype):
    decomposition = pytest.importorskip("sklearn.decomposition")
    data = (torch.randn(samples, d, dtype=torch.float64) @ torch.randn(d, d, dtype=torch.float64) + 3).to(dtype)
    theirs = decomposition.PCA(6, svd_solver="full").fit(data.double().numpy())
    layer = principal_components(data, 6)
    got, want = layer(data).double().numpy(), theirs.transform(data.double().numpy())
    turned = want * np.sign((got * want).sum(0))
    assert np.linalg.norm(got - turned) <= {torch.float32: 1e-5, torch.float64: 1e-11}[dtype] * np.linalg.norm(want)
    assert layer.weight.dtype == dtype
    assert bool((layer.weight.gather(1, layer.weight.abs().argmax(1, keepdim=True)) > 0).all())
    assert not layer.weight.requires_grad


def test_principal_components_of_data_that_do_not_vary():
    layer = principal_components(torch.ones(5, 9), 2)
    assert torch.equal(layer(torch.ones(3, 9)), torch.zeros(3, 2))


# --- Random Fourier features -----------------------------------------------------------------------------------------


def test_features_give_the_kernel_on_average():
    a, b, tau = torch.randn(5).double(), torch.randn(6).double(), 0.7
    features = rff.draw(200_000, generator=seeded(), dtype=torch.float64)
    x = torch.eye(6, dtype=torch.float64)
    off = features.linear(x, a, b, tau) - oracle(x, a, b, tau)
    assert float(off.abs().max()) < 6 / 200_000**0.5  # six standard deviations: a term is at most 2, its variance 1


def test_features_are_differentiable_in_anchors_and_tau():
    x, a, b = (torch.randn(size, dtype=torch.float64, requires_grad=True) for size in (4, 3, 4))
    tau = torch.tensor(0.8, dtype=torch.float64, requires_grad=True)
    features = rff.draw(9, generator=seeded(), dtype=torch.float64)
    assert torch.autograd.gradcheck(features.linear, (x, a, b, tau))
    assert torch.autograd.gradcheck(lambda *tensors: features.linear(*tensors).sin(), (x, a, b, tau))


def test_features_are_cosines_of_the_formula():
    features = rff.draw(8, generator=seeded())
    assert features.frequency.dtype == torch.float32
    one, two = torch.tensor([0.3]), torch.tensor([-1.1])
    want = (
        2 / 8 * sum(torch.cos(w * one / 0.5 + c) * torch.cos(w * two / 0.5 + c) for w, c in zip(*features, strict=True))
    )
    assert float(features.matrix(one, 0.5) @ features.matrix(two, 0.5).mT) == pytest.approx(want.item(), abs=1e-6)


def test_frequencies_are_cauchy():
    w = rff.draw(40_000, generator=seeded(), dtype=torch.float64).frequency.abs()
    for quantile in (0.25, 0.5, 0.9, 0.99):  # of |w|: tan(pi q / 2)
        below = float((w < np.tan(np.pi * quantile / 2)).double().mean())
        assert abs(below - quantile) < 0.02


# --- The even grid ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [1, 2, 31])
def test_toeplitz_is_the_product_on_an_even_grid(n):
    grid, x = torch.arange(n).double() / 7 - 1, torch.randn(3, n, dtype=torch.float64)
    assert error(toeplitz.prepare(grid, grid, 0.3)(x), oracle(x, grid, grid, 0.3)) <= 1e-14
