"""``laplex.reseat`` and the fits that use it: the best place of every anchor, all places at once."""

import itertools

import pytest
import torch
from torch import nn

import laplex
from helpers import error
from laplex.nn import LaplexLinear
from laplex.nn._fitting import Fit

METRICS = ("none", "diagonal", "full")


def problem(metric, n=6, k=9, s=40):
    torch.manual_seed(1)
    target, b, places = torch.randn(n, k).double(), torch.randn(k).double(), torch.linspace(-3, 3, s).double()
    root = torch.randn(k, k).double()
    moments = {"none": None, "diagonal": torch.rand(k).double() + 0.1, "full": root @ root.T}[metric]
    return target, b, places, moments


def squared_error(target, row, moments):
    """|t - row|^2 in the metric, up to |t|^2: ``target`` is t times the metric."""
    metric = torch.ones(len(row)).double() if moments is None else moments
    return float(row @ (torch.diag(metric) if metric.dim() == 1 else metric) @ row - 2 * row @ target)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("weight", [0.7, -1.3, "each", None])
def test_every_row_gets_its_best_place(metric, weight):
    target, b, places, moments = problem(metric)
    w = torch.linspace(-1, 1, len(target)).double() if weight == "each" else weight
    seats = laplex.reseat(target, b, places, 0.6, weight=w, moments=moments)
    for i, t in enumerate(target):
        errors = {}
        for place in places:
            row = laplex.reference.kernel(place[None], b, 0.6)[0]
            metric_row = row if moments is None else (moments * row if moments.dim() == 1 else moments @ row)
            best = float(row @ t / (row @ metric_row)) if w is None else float(w[i]) if weight == "each" else w
            errors[float(place)] = squared_error(t, best * row, moments)
        least = min(errors.values())  # left of all columns every place is as good as another
        for found in (errors[float(seats.places[i])], -float(seats.gains[i])):
            assert abs(found - least) <= 1e-12 * max(1.0, abs(least))


def test_rows_that_are_kernels_go_home():
    b, places = torch.randn(50), torch.linspace(-2, 2, 401)
    home = places[torch.randint(401, (30,))]
    rows = 3.0 * laplex.reference.kernel(home, b, 0.5)
    seats = laplex.reseat(rows, b, places, 0.5)
    assert torch.equal(seats.places, home)
    assert error(seats.weights, torch.full((30,), 3.0)) <= 1e-5


def test_in_blocks(monkeypatch):
    target, b, places, _ = problem("none", n=11)
    whole = laplex.reseat(target, b, places, weight=0.5)
    monkeypatch.setattr("laplex._reseat.MOST_AT_ONCE", 3 * len(places))
    parts = laplex.reseat(target, b, places, weight=0.5)
    assert torch.equal(whole.places, parts.places)
    assert error(parts.gains, whole.gains) <= 1e-14


def test_a_place_far_from_everything_is_never_chosen_over_a_near_one():
    target, b = torch.ones(1, 3), torch.tensor([0.0, 0.1, 0.2])
    assert float(laplex.reseat(target, b, torch.tensor([1e9, 0.1])).places) == pytest.approx(0.1)


BAD = {
    "columns": ((torch.ones(2, 3), torch.ones(4), torch.ones(5)), {}, r"`target` must be \(n, 4\) for 4 columns"),
    "places": ((torch.ones(2, 4), torch.ones(4), torch.ones(0)), {}, r"`places` must be \(s,\) with at least one"),
    "moments": (
        (torch.ones(2, 4), torch.ones(4), torch.ones(5)),
        {"moments": torch.ones(5)},
        r"`moments` must be \(4,\)",
    ),
}


@pytest.mark.parametrize(("given", "options", "text"), BAD.values(), ids=BAD)
def test_bad_arguments(given, options, text):
    with pytest.raises(ValueError, match=f"laplex.reseat: {text}"):
        laplex.reseat(*given, **options)


# --- from_linear ------------------------------------------------------------------------------------------------------


def quiet(done, of):
    """No bar."""


def fitted(dense, rank, **options):
    return LaplexLinear.from_linear(dense, rank, progress=quiet, **options)


def residual(layer, weight, importance=None):
    h = torch.ones(weight.shape[1]) if importance is None else importance
    metric = torch.diag(h) if h.dim() == 1 else h
    left = layer.to_dense().detach() - weight
    return float((left @ metric * left).sum() / (weight @ metric * weight).sum())


@pytest.mark.parametrize("metric", METRICS)
def test_the_residual_is_reported_and_falls_with_sweeps(metric):
    dense = nn.Linear(40, 25)
    moments = torch.cov(torch.randn(40, 12) @ torch.randn(12, 90)) / 12 + 0.1 * torch.eye(40)
    importance = {"none": None, "diagonal": torch.rand(40), "full": moments}[metric]
    few, many = (fitted(dense, 3, importance=importance, sweeps=sweeps) for sweeps in (1, 10))
    for layer in (few, many):
        assert layer.fit_residual == pytest.approx(residual(layer, dense.weight.detach(), importance), rel=1e-3)
    assert many.fit_residual < few.fit_residual
    assert torch.equal(many.bias, dense.bias)


def test_a_weight_that_is_a_kernel_is_found():
    torch.manual_seed(0)
    a, b = 4 * torch.rand(40), 4 * torch.rand(60)
    dense = nn.Linear(60, 40)
    dense.weight.data.copy_(-2 * laplex.reference.kernel(a, b))
    assert fitted(dense, 1, sweeps=30).fit_residual < 0.02


def test_better_than_low_rank_at_equal_parameters():
    torch.manual_seed(0)
    dense = nn.Linear(64, 48)
    singular = torch.linalg.svdvals(dense.weight.detach()).square()
    assert fitted(dense, 4, sweeps=15).fit_residual < float(singular[4:].sum() / singular.sum())


def test_moments_lower_the_error_of_the_results():
    torch.manual_seed(0)
    dense, x = nn.Linear(40, 25, bias=False), torch.randn(400, 5) @ torch.randn(5, 40) + 0.3 * torch.randn(400, 40)
    moments = x.T @ x / len(x)
    layers = [fitted(dense, 4, importance=importance, sweeps=12) for importance in (moments.diagonal(), moments)]
    first, second = (float((layer(x) - dense(x)).square().mean().detach()) for layer in layers)
    assert second < 0.8 * first


@pytest.mark.parametrize("r", [0, 2])
@pytest.mark.parametrize("metric", ["diagonal", "full"])
def test_every_seat_lowers_the_error(metric, r):
    torch.manual_seed(0)
    root = torch.randn(30, 30)
    importance = torch.rand(30) if metric == "diagonal" else root @ root.T
    state = Fit(torch.randn(20, 30), importance, LaplexLinear(30, 20, rank=3))
    errors = [state.residual()]
    for _ in range(4):
        state.seat(r)
        errors.append(state.residual())
    assert all(later <= earlier * (1 + 1e-5) for earlier, later in itertools.pairwise(errors))
    assert errors[-1] < errors[0]


def test_progress_is_told():
    told = []
    LaplexLinear.from_linear(nn.Linear(5, 4, bias=False), 2, sweeps=3, progress=lambda *now: told.append(now))
    assert told == [(done, 18) for done in range(1, 19)]  # six orders of the kernels are tried


def test_a_weight_of_zeros():
    dense = nn.Linear(5, 4)
    nn.init.zeros_(dense.weight)
    layer = fitted(dense, 2, sweeps=2)
    assert float(layer.to_dense().detach().abs().max()) <= 1e-6
    assert layer.fit_residual == 0.0


BAD_FITS = {
    "no layer": ((nn.ReLU(), 2), {}, TypeError, "`layer` must be a torch.nn.Linear, got ReLU"),
    "no rank": ((nn.Linear(5, 4), 0), {}, ValueError, "`rank` must be at least 1, got 0"),
    "no sweeps": ((nn.Linear(5, 4), 1), {"sweeps": 0}, ValueError, "`sweeps` must be at least 1"),
    "shape": ((nn.Linear(5, 4), 1), {"importance": torch.ones(4)}, ValueError, r"`importance` must be a tensor \(5,\)"),
    "lopsided": (
        (nn.Linear(2, 4), 1),
        {"importance": torch.tensor([[1.0, 2.0], [0.0, 1.0]])},
        ValueError,
        "`importance` must be symmetric",
    ),
    "negative": ((nn.Linear(5, 4), 1), {"importance": -torch.ones(5)}, ValueError, "finite, not negative, and not 0"),
}


@pytest.mark.parametrize(("given", "options", "kind", "text"), BAD_FITS.values(), ids=BAD_FITS)
def test_bad_fits(given, options, kind, text):
    with pytest.raises(kind, match=text):
        fitted(*given, **options)
