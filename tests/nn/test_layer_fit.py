"""``LaplexLinear.from_linear``: what a fit reaches, its starts, its steps, and what low rank would leave."""

import itertools

import pytest
import torch
from torch import nn

import laplex
from laplex.nn import LaplexLinear
from laplex.nn._fitting import Fit
from laplex.nn._simplices import two_simplices
from laplex.reference import kernel

pytestmark = pytest.mark.usefixtures("one_thread")
METRICS = ("none", "diagonal", "full")


def metric_of(name, columns):
    root = torch.randn(columns, columns)
    return {"none": None, "diagonal": torch.rand(columns) + 0.1, "full": root @ root.T / columns}[name]


def fit(dense, kernels, **options):
    return LaplexLinear.from_linear(dense, kernels, progress=lambda done, total: None, **options)


def layer_of(weight):
    dense = nn.Linear(weight.shape[1], weight.shape[0], bias=False)
    dense.weight.data.copy_(weight)
    return dense


def nearly_low_rank(rows, columns, rank, noise):
    signal = torch.randn(rows, rank) @ torch.randn(rank, columns) / rank**0.5
    return signal + noise * torch.randn(rows, columns)


@pytest.mark.parametrize("name", METRICS)
def test_the_residual_of_the_singular_value_decomposition_is_reported(name):
    weight, importance = torch.randn(14, 20), metric_of(name, 20)
    layer = fit(layer_of(weight), 3, sweeps=1, importance=importance)
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
    layer = fit(layer_of(weight), 8, sweeps=30, importance=metric_of(name, sizes[1]))
    assert layer.fit_residual < 1.1 * layer.svd_residual


@pytest.mark.parametrize("mean", [-3.0, 0.1, 3.0])
@pytest.mark.parametrize("kernels", [4, 5, 8])
def test_products_hold_the_mean_and_matrices_of_two_ranks_less(kernels, mean):
    signal = nearly_low_rank(30, 20, kernels - 2, 0.0).double()
    weight = signal - signal.mean(0) - (signal - signal.mean(0)).mean(1, keepdim=True) + mean  # so no rank is lost
    a, b = two_simplices(weight, torch.ones(20).double(), kernels, torch.Generator().manual_seed(0))
    assert bool((a.amin(1) > b.amax(1)).all())
    columns = kernel(a, b).flatten(1).T
    left = weight.flatten() - columns @ torch.linalg.lstsq(columns, weight.flatten()).solution
    assert float(left.square().sum()) < 1e-10 * float(signal.square().sum())


@pytest.mark.parametrize("name", METRICS)
@pytest.mark.parametrize(
    ("step", "factor"),
    [(Fit.slide, 0.97), (lambda state: state.seat(0), 1.0), (lambda state: state.seat(2), 1.0)],
    ids=["slide", "first", "last"],
)
def test_every_step_lowers_the_error(name, step, factor):
    torch.manual_seed(0)
    metric = torch.ones(30) if name == "none" else metric_of(name, 30)
    state = Fit(torch.randn(20, 30), metric, LaplexLinear(30, 20, kernels=3))
    errors = [state.residual()]
    for _ in range(5):
        with torch.no_grad():
            step(state)
        errors.append(state.residual())
    assert all(later <= earlier * (1 + 1e-5) for earlier, later in itertools.pairwise(errors))
    assert errors[-1] < factor * errors[0]


@pytest.mark.parametrize("sizes", [(1, 9), (9, 1), (5, 6)])
@pytest.mark.parametrize("name", METRICS)
def test_slides_of_small_and_empty_directions(sizes, name):
    weight = torch.zeros(sizes)
    weight[0, 0] = 1.0
    layer = fit(layer_of(weight), min(sizes), sweeps=2, importance=metric_of(name, sizes[1]))
    assert all(bool(parameter.isfinite().all()) for parameter in layer.parameters())
    assert layer.fit_residual < 1.0


def test_dead_inputs_do_no_harm():
    weight, x = torch.randn(20, 30), torch.randn(50, 30).relu()
    x[:, :7] = 0.0
    layer = fit(layer_of(weight), 5, sweeps=4, importance=x.T @ x / len(x))
    assert all(bool(parameter.isfinite().all()) for parameter in layer.parameters())
    assert layer.fit_residual < 1.0


# --- what a fit reaches -----------------------------------------------------------------------------------------------


def residual(layer, weight, importance=None):
    h = torch.ones_like(weight[0]) if importance is None else importance
    metric = torch.diag(h) if h.dim() == 1 else h
    left = layer.to_dense().detach() - weight
    return float((left @ metric * left).sum() / (weight @ metric * weight).sum())


@pytest.mark.parametrize("metric", METRICS)
def test_the_residual_is_reported_and_falls_with_sweeps(metric):
    dense = nn.Linear(40, 25)
    moments = torch.cov(torch.randn(40, 12) @ torch.randn(12, 90)) / 12 + 0.1 * torch.eye(40)
    importance = {"none": None, "diagonal": torch.rand(40), "full": moments}[metric]
    few, many = (fit(dense, 3, importance=importance, sweeps=sweeps) for sweeps in (1, 10))
    for layer in (few, many):
        assert layer.fit_residual == pytest.approx(residual(layer, dense.weight.detach(), importance), rel=1e-3)
    assert many.fit_residual < few.fit_residual
    assert torch.equal(many.bias, dense.bias)


def test_a_weight_that_is_a_kernel_is_found():
    torch.manual_seed(0)
    a, b = 4 * torch.rand(40), 4 * torch.rand(60)
    dense = nn.Linear(60, 40)
    dense.weight.data.copy_(-2 * laplex.reference.kernel(a, b))
    assert fit(dense, 1, sweeps=30).fit_residual < 0.02


def test_better_than_low_rank_at_equal_parameters():
    torch.manual_seed(0)
    dense = nn.Linear(64, 48)
    singular = torch.linalg.svdvals(dense.weight.detach()).square()
    assert fit(dense, 4, sweeps=15).fit_residual < float(singular[4:].sum() / singular.sum())


def test_moments_lower_the_error_of_the_results():
    torch.manual_seed(0)
    dense, x = nn.Linear(40, 25, bias=False), torch.randn(400, 5) @ torch.randn(5, 40) + 0.3 * torch.randn(400, 40)
    moments = x.T @ x / len(x)
    layers = [fit(dense, 4, importance=importance, sweeps=12) for importance in (moments.diagonal(), moments)]
    first, second = (float((layer(x) - dense(x)).square().mean().detach()) for layer in layers)
    assert second < 0.8 * first


def test_progress():
    calls = []
    LaplexLinear.from_linear(nn.Linear(5, 4, bias=False), 2, sweeps=3, progress=lambda *call: calls.append(call))
    assert calls == [(done, 18) for done in range(1, 19)]  # two orders of the kernels on three lines


def test_a_weight_of_zeros():
    dense = nn.Linear(5, 4)
    nn.init.zeros_(dense.weight)
    layer = fit(dense, 2, sweeps=2)
    assert float(layer.to_dense().detach().abs().max()) <= 1e-6
    assert layer.fit_residual == 0.0


@pytest.mark.parametrize("scale", [1e-36, 1e-30, 1e30, 1e37])
def test_the_scale_of_a_weight_does_not_matter(scale):
    torch.manual_seed(0)
    dense = nn.Linear(9, 7, bias=False)
    want = fit(dense, 2, sweeps=4)
    dense.weight.data.mul_(scale)
    got = fit(dense, 2, sweeps=4)
    assert got.fit_residual == pytest.approx(want.fit_residual, rel=0.05)
    assert got.fit_residual == pytest.approx(residual(got.double(), dense.weight.detach().double()), rel=1e-3)


@pytest.mark.parametrize("scale", [1e-40, 1e38, 1e200])
@pytest.mark.parametrize("metric", ["diagonal", "full"])
def test_the_scale_of_importances_does_not_matter(metric, scale):
    torch.manual_seed(0)
    dense, diagonal = nn.Linear(9, 7), torch.rand(9).double()
    importance = diagonal if metric == "diagonal" else torch.diag(diagonal) + 0.1
    got, want = (fit(dense, 2, sweeps=4, importance=each) for each in (scale * importance, importance))
    assert got.fit_residual == pytest.approx(want.fit_residual, rel=0.05)


@pytest.mark.parametrize(("kernels", "metric"), [(3, "none"), (3, "full"), (8, "none")])
def test_a_fit_can_be_repeated(kernels, metric):
    dense, root = nn.Linear(9, 7), torch.randn(9, 9)
    importance = root @ root.T if metric == "full" else None
    one, other = (fit(dense, kernels, sweeps=2, importance=importance).state_dict() for _ in range(2))
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("sizes", [(1, 1), (1, 9), (9, 1)])
@pytest.mark.parametrize("kernels", [1, 4])
def test_fits_of_single_rows_and_columns(sizes, kernels):
    dense = nn.Linear(*sizes)
    layer = fit(dense, kernels, sweeps=3)
    assert layer.fit_residual == pytest.approx(residual(layer, dense.weight.detach()), rel=1e-3, abs=1e-10)
    assert layer.fit_residual < 1.0


BAD_FITS = {
    "no layer": ((nn.ReLU(), 2), {}, TypeError, "`layer` must be a torch.nn.Linear, got ReLU"),
    "no kernels": ((nn.Linear(5, 4), 0), {}, ValueError, "`kernels` must be at least 1, got 0"),
    "no sweeps": ((nn.Linear(5, 4), 1), {"sweeps": 0}, ValueError, "`sweeps` must be at least 1"),
    "shape": ((nn.Linear(5, 4), 1), {"importance": torch.ones(4)}, ValueError, r"`importance` must be a tensor \(5,\)"),
    "lopsided": (
        (nn.Linear(2, 4), 1),
        {"importance": torch.tensor([[1.0, 2.0], [0.0, 1.0]])},
        ValueError,
        "`importance` must be symmetric",
    ),
    "indefinite": (
        (nn.Linear(2, 4), 1),
        {"importance": torch.tensor([[1.0, 2.0], [2.0, 1.0]])},
        ValueError,
        "`importance` must have no negative eigenvalue, got one",
    ),
    "complex": (
        (nn.Linear(2, 4), 1),
        {"importance": torch.ones(2).cfloat()},
        TypeError,
        "`importance` must be real, got",
    ),
    "meta": (
        (nn.Linear(2, 4, device="meta"), 1),
        {},
        ValueError,
        "`weight` must hold numbers, got a tensor on the meta",
    ),
    "negative": ((nn.Linear(5, 4), 1), {"importance": -torch.ones(5)}, ValueError, "finite, not negative, and not 0"),
}


@pytest.mark.parametrize(("arguments", "options", "kind", "text"), BAD_FITS.values(), ids=BAD_FITS)
def test_bad_fits(arguments, options, kind, text):
    with pytest.raises(kind, match=text):
        fit(*arguments, **options)
