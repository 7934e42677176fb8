"""``LaplexLinear.from_linear``: starts, slides, and the singular value decomposition it is compared with."""

import itertools

import pytest
import torch
from torch import nn

from laplex.nn import LaplexLinear
from laplex.nn._fitting import Fit
from laplex.nn._simplices import two_simplices
from laplex.reference import kernel

pytestmark = pytest.mark.usefixtures("one_thread")
METRICS = ("none", "diagonal", "full")


def metric_of(name, columns):
    root = torch.randn(columns, columns)
    return {"none": None, "diagonal": torch.rand(columns) + 0.1, "full": root @ root.T / columns}[name]


def fitted(weight, rank, **options):
    dense = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    dense.weight.data.copy_(weight)
    return LaplexLinear.from_linear(dense, rank, progress=lambda done, total: None, **options)


def nearly_low_rank(rows, columns, rank, noise):
    signal = torch.randn(rows, rank) @ torch.randn(rank, columns) / rank**0.5
    return signal + noise * torch.randn(rows, columns)


@pytest.mark.parametrize("name", METRICS)
def test_the_residual_of_the_singular_value_decomposition_is_reported(name):
    weight, importance = torch.randn(14, 20), metric_of(name, 20)
    layer = fitted(weight, 3, sweeps=1, importance=importance)
    full = torch.eye(20) if importance is None else torch.diag(importance) if importance.dim() == 1 else importance
    weighted = weight.double() @ torch.linalg.cholesky(full.double())
    energies = torch.linalg.svdvals(weighted).square()
    assert layer.svd_residual == pytest.approx(float(energies[3:].sum() / energies.sum()), rel=1e-4)
    assert LaplexLinear(3, 3).svd_residual is None


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize("sizes", [(60, 40), (40, 60)])
def test_weights_that_are_nearly_of_low_rank_are_fitted_about_as_well_as_by_low_rank(sizes, name):
    torch.manual_seed(0)
    weight = nearly_low_rank(*sizes, 5, 0.4)
    layer = fitted(weight, 8, sweeps=30, importance=metric_of(name, sizes[1]))
    assert layer.fit_residual < 1.1 * layer.svd_residual


@pytest.mark.parametrize("mean", [-3.0, 0.1, 3.0])
@pytest.mark.parametrize("rank", [4, 5, 8])
def test_products_hold_the_mean_and_matrices_of_two_ranks_less(rank, mean):
    signal = nearly_low_rank(30, 20, rank - 2, 0.0).double()
    weight = signal - signal.mean(0) - (signal - signal.mean(0)).mean(1, keepdim=True) + mean  # so no rank is lost
    a, b = two_simplices(weight, torch.ones(20).double(), rank, torch.Generator().manual_seed(0))
    assert bool((a.amin(1) > b.amax(1)).all())
    kernels = kernel(a, b).flatten(1).T
    left = weight.flatten() - kernels @ torch.linalg.lstsq(kernels, weight.flatten()).solution
    assert float(left.square().sum()) < 1e-10 * float(signal.square().sum())


@pytest.mark.parametrize("name", METRICS)
def test_every_slide_lowers_the_error(name):
    importance = metric_of(name, 30)
    state = Fit(
        torch.randn(20, 30), torch.ones(30) if importance is None else importance, LaplexLinear(30, 20, kernels=3)
    )
    errors = [state.residual()]
    for _ in range(5):
        with torch.no_grad():
            state.slide()
        errors.append(state.residual())
    assert all(later <= earlier * (1 + 1e-5) for earlier, later in itertools.pairwise(errors))
    assert errors[-1] < 0.97 * errors[0]


@pytest.mark.parametrize("sizes", [(1, 9), (9, 1), (5, 6)])
@pytest.mark.parametrize("name", METRICS)
def test_slides_of_small_and_empty_directions(sizes, name):
    weight = torch.zeros(sizes)
    weight[0, 0] = 1.0
    layer = fitted(weight, min(sizes), sweeps=2, importance=metric_of(name, sizes[1]))
    assert all(bool(parameter.isfinite().all()) for parameter in layer.parameters())
    assert layer.fit_residual < 1.0


def test_dead_inputs_do_no_harm():
    weight, x = torch.randn(20, 30), torch.randn(50, 30).relu()
    x[:, :7] = 0.0
    layer = fitted(weight, 5, sweeps=4, importance=x.T @ x / len(x))
    assert all(bool(parameter.isfinite().all()) for parameter in layer.parameters())
    assert layer.fit_residual < 1.0
