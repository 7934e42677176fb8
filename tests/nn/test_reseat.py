"""``laplex.reseat``: the best place of every anchor, all places at once."""

import pytest
import torch

import laplex
from helpers import error

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
        for value in (errors[float(seats.places[i])], -float(seats.gains[i])):
            assert abs(value - least) <= 1e-12 * max(1.0, abs(least))


def test_rows_that_are_kernels_go_home():
    b, places = torch.randn(50), torch.linspace(-2, 2, 401)
    home = places[torch.randint(401, (30,))]
    rows = 3.0 * laplex.reference.kernel(home, b, 0.5)
    seats = laplex.reseat(rows, b, places, 0.5)
    assert torch.equal(seats.places, home)
    assert error(seats.weights, torch.full((30,), 3.0)) <= 1e-5


def test_in_blocks(monkeypatch):
    target, b, places, _ = problem("none", n=11)
    want = laplex.reseat(target, b, places, weight=0.5)
    monkeypatch.setattr("laplex._reseat.MOST_AT_ONCE", 3 * len(places))
    got = laplex.reseat(target, b, places, weight=0.5)
    assert torch.equal(got.places, want.places)
    assert error(got.gains, want.gains) <= 1e-14


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


@pytest.mark.parametrize(("arguments", "kind", "text"), BAD.values(), ids=BAD)
def test_bad_arguments(arguments, kind, text):
    with pytest.raises(kind, match=f"laplex.reseat: {text}"):
        laplex.reseat(**{**GOOD, **arguments})
