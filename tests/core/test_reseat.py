"""``laplex.reseat`` and the fits that use it: the best place of every anchor, all places at once."""

import itertools

import pytest
import torch
from torch import nn

import laplex
from helpers import error
from laplex.nn import LaplexLinear
from laplex.nn._fitting import Fit

pytestmark = pytest.mark.usefixtures("one_thread")

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


def test_no_rows():
    _, b, places, _ = problem("none")
    assert [len(each) for each in laplex.reseat(torch.zeros(0, 9).double(), b, places)] == [0, 0, 0]


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_targets_of_any_scale_go_home(scale):
    b, places = torch.linspace(-1, 1, 50), torch.linspace(-2, 2, 81)
    home = places[[50, 35]]
    rows = scale * laplex.reference.kernel(home, b, 0.5)
    assert torch.equal(laplex.reseat(rows, b, places, 0.5).places, home)


def test_half_precision_is_computed_in_that_of_the_columns():
    target, b, places, _ = problem("none")
    got, want = (laplex.reseat(each, b.float(), places.float()) for each in (target.half(), target.half().float()))
    assert all(torch.equal(one, other) for one, other in zip(got, want, strict=True))


def test_a_place_far_from_everything_is_never_chosen_over_a_near_one():
    target, b = torch.ones(1, 3), torch.tensor([0.0, 0.1, 0.2])
    assert float(laplex.reseat(target, b, torch.tensor([1e9, 0.1])).places) == pytest.approx(0.1)


GOOD = {"target": torch.ones(2, 4), "b": torch.ones(4), "places": torch.ones(5)}
BAD = {
    "columns": ({"b": torch.ones(3)}, ValueError, r"`target` must be \(n, 3\) for 3 columns, got \(2, 4\)"),
    "a matrix": ({"b": torch.ones(1, 4)}, ValueError, r"`b` must be \(k,\), got \(1, 4\); use .reshape"),
    "a number": ({"b": torch.tensor(1.0)}, ValueError, "`b` must have at least one dimension, got a scalar"),
    "no places": ({"places": torch.ones(0)}, ValueError, r"`places` must be \(s,\) with at least one place, got \(0,"),
    "double": (
        {"places": torch.ones(5).double()},
        TypeError,
        "`places` must have the dtype of `b`, torch.float32, got",
    ),
    "complex": ({"target": torch.ones(2, 4).cfloat()}, TypeError, "`target` must be real and floating point, got"),
    "tau": ({"tau": "1"}, TypeError, "`tau` must be a positive number or a tensor, got str"),
    "taus": ({"tau": torch.ones(2)}, ValueError, "`tau` must have one element"),
    "weights": ({"weight": torch.ones(3)}, ValueError, r"`weight` must be a number or \(2,\), .* got \(3,\); use"),
    "list": ({"weight": [1.0, 1.0]}, TypeError, r"`weight` must be a number, a tensor or None, got \[1.0, 1.0\]; use"),
    "moments": ({"moments": torch.ones(5)}, ValueError, r"`moments` must be \(4,\) or \(4, 4\), got \(5,\)"),
    "words": ({"moments": "ones"}, TypeError, "`moments` must be a torch.Tensor, got str"),
}


@pytest.mark.parametrize(("given", "kind", "text"), BAD.values(), ids=BAD)
def test_bad_arguments(given, kind, text):
    with pytest.raises(kind, match=f"laplex.reseat: {text}"):
        laplex.reseat(**{**GOOD, **given})


# --- from_linear ------------------------------------------------------------------------------------------------------


def quiet(done, of):
    """No bar."""


def fitted(dense, rank, **options):
    return LaplexLinear.from_linear(dense, rank, progress=quiet, **options)


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
    state = Fit(torch.randn(20, 30), importance, LaplexLinear(30, 20, kernels=3))
    errors = [state.residual()]
    for _ in range(4):
        state.seat(r)
        errors.append(state.residual())
    assert all(later <= earlier * (1 + 1e-5) for earlier, later in itertools.pairwise(errors))
    assert errors[-1] < errors[0]


def test_progress_is_told():
    told = []
    LaplexLinear.from_linear(nn.Linear(5, 4, bias=False), 2, sweeps=3, progress=lambda *now: told.append(now))
    assert told == [(done, 18) for done in range(1, 19)]  # two orders of the kernels on three lines


def test_a_weight_of_zeros():
    dense = nn.Linear(5, 4)
    nn.init.zeros_(dense.weight)
    layer = fitted(dense, 2, sweeps=2)
    assert float(layer.to_dense().detach().abs().max()) <= 1e-6
    assert layer.fit_residual == 0.0


@pytest.mark.parametrize("scale", [1e-36, 1e-30, 1e30, 1e37])
def test_the_scale_of_a_weight_does_not_matter(scale):
    torch.manual_seed(0)
    dense = nn.Linear(9, 7, bias=False)
    want = fitted(dense, 2, sweeps=4)
    dense.weight.data.mul_(scale)
    got = fitted(dense, 2, sweeps=4)
    assert got.fit_residual == pytest.approx(want.fit_residual, rel=0.05)
    assert got.fit_residual == pytest.approx(residual(got.double(), dense.weight.detach().double()), rel=1e-3)


@pytest.mark.parametrize("scale", [1e-40, 1e38, 1e200])
@pytest.mark.parametrize("metric", ["diagonal", "full"])
def test_the_scale_of_importances_does_not_matter(metric, scale):
    torch.manual_seed(0)
    dense, given = nn.Linear(9, 7), torch.rand(9).double()
    importance = given if metric == "diagonal" else torch.diag(given) + 0.1
    got, want = (fitted(dense, 2, sweeps=4, importance=each) for each in (scale * importance, importance))
    assert got.fit_residual == pytest.approx(want.fit_residual, rel=0.05)


@pytest.mark.parametrize(("rank", "metric"), [(3, "none"), (3, "full"), (8, "none")])
def test_a_fit_can_be_repeated(rank, metric):
    dense, root = nn.Linear(9, 7), torch.randn(9, 9)
    importance = root @ root.T if metric == "full" else None
    one, other = (fitted(dense, rank, sweeps=2, importance=importance).state_dict() for _ in range(2))
    assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("sizes", [(1, 1), (1, 9), (9, 1)])
@pytest.mark.parametrize("rank", [1, 4])
def test_fits_of_single_rows_and_columns(sizes, rank):
    dense = nn.Linear(*sizes)
    layer = fitted(dense, rank, sweeps=3)
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


@pytest.mark.parametrize(("given", "options", "kind", "text"), BAD_FITS.values(), ids=BAD_FITS)
def test_bad_fits(given, options, kind, text):
    with pytest.raises(kind, match=text):
        fitted(*given, **options)
