"""The merged order of the Triton backend: counted in one launch or in two, or sorted; under Triton's interpreter."""

import pytest
import torch

import laplex
from helpers import TOLERANCE, all_nan, assert_sums, error, flat, make_order, oracle
from laplex._triton import launch as triton_launch
from laplex._triton import tuning
from laplex._triton.order import launch as triton_order

pytestmark = pytest.mark.usefixtures("tiles")
WAYS = {"at_once": (1 << 40, 0), "in_runs": (0, 1 << 40), "sorted": (0, 0)}  # up to how many pairs, and points


@pytest.fixture
def put_in_order(monkeypatch):
    def by(way):
        pairs, points = WAYS[way]
        monkeypatch.setattr(tuning, "COUNTED_PAIRS", pairs)
        monkeypatch.setattr(tuning, "COUNTED_IN_RUNS", points)

    return by


ANCHORS = {
    "apart": torch.randn,
    "ties": lambda *shape: torch.randint(-3, 4, shape).float(),
    "one_value": torch.ones,
    "zeros_of_both_signs": lambda *shape: torch.tensor([-0.0, 0.0, 1.0])[torch.randint(3, shape)],
    "in_order": lambda *shape: torch.arange(shape[-1]).float().expand(shape),
    "reversed": lambda *shape: -torch.arange(shape[-1]).float().expand(shape),
    "not_finite": lambda *shape: torch.tensor([torch.nan, torch.inf, -torch.inf, 1.0])[torch.randint(4, shape)],
}


def assert_sorted(order, a, b):
    """As a stable sort of rows and columns has them, NaN taken for infinity; padded with the last position."""
    n, merged = a.shape[1], a.shape[1] + b.shape[1]
    entry, position = order.target.indices[:, 0], order.target.values[:, 0]
    both = torch.cat([a, b], 1)
    values, index = torch.where(both.isnan(), torch.inf, both).sort(dim=1, stable=True)
    assert torch.equal(position[:, :merged], values)
    assert torch.equal(entry[:, :merged].long(), torch.where(index < n, index, n - 1 - index))
    assert torch.equal(position[:, merged:], values[:, -1:].expand(-1, position.shape[1] - merged))


@pytest.mark.parametrize("way", ["at_once", "in_runs"])
@pytest.mark.parametrize("sizes", [(1, 1, 1), (1, 100, 40), (1, 1, 96), (1, 33, 1), (3, 33, 31)], ids=str)
@pytest.mark.parametrize("kind", ANCHORS)
def test_the_order_is_that_of_a_stable_sort(kind, sizes, way, dtype, put_in_order):
    h, n, k = sizes
    a, b = (ANCHORS[kind](h, size).to(dtype) for size in (n, k))
    put_in_order(way)
    order = make_order(a, b, "joined", "triton")
    assert_sorted(order, a, b)
    assert (order.target.indices[:, 0, n + k :] == 0).all()


TILES = {  # run; points, others and lanes of a program; points and runs of the second launch's
    "one_run": (128, (32, 64, 32), (32, 2)),
    "runs_of_a_tile": (16, (16, 16, 16), (16, 2)),
    "more_at_once_than_a_run": (16, (8, 64, 32), (8, 32)),
    "runs_one_by_one": (32, (16, 8, 8), (32, 1)),
}


@pytest.mark.parametrize("tile", TILES)
def test_tiles_of_any_size_give_one_order(tile, put_in_order, monkeypatch):
    for name, value in zip(("RUN", "RUN_TILE", "JOIN_TILE"), TILES[tile], strict=True):
        monkeypatch.setattr(tuning, name, value)
    a, b = ANCHORS["ties"](2, 70), ANCHORS["ties"](2, 53)
    put_in_order("in_runs")
    assert_sorted(make_order(a, b, "joined", "triton"), a, b)


@pytest.mark.parametrize("way", WAYS)
def test_anchors_of_any_strides(way, put_in_order):
    a, b = torch.randn(50, 2).mT, torch.randn(1, 47).expand(2, 47)
    put_in_order(way)
    assert_sorted(make_order(a, b, "joined", "triton"), a, b)


@pytest.mark.parametrize("way", WAYS)
def test_sums_in_the_order(way, dtype, put_in_order):
    put_in_order(way)
    a, b, tau = flat(torch.randn(2, 60, dtype=dtype), torch.randn(2, 50, dtype=dtype).round(), 0.7)
    x = torch.randn(2, 2, 50, dtype=dtype)
    assert_sums(x, a, b, tau, make_order(a, b, "joined", "triton"), "triton")


@pytest.mark.parametrize("way", WAYS)
def test_products_and_gradients(way, put_in_order):
    put_in_order(way)
    leaves = [torch.randn(size).double().requires_grad_() for size in ((3, 50), 60, 50)]
    y, want = laplex.linear(*leaves, 0.7, backend="triton"), laplex.reference.linear(*leaves, 0.7)
    assert error(y, oracle(*leaves, 0.7)) <= TOLERANCE[torch.float64]
    weight = torch.randn_like(y)
    bars = (torch.autograd.grad(product, leaves, weight) for product in (y, want))
    assert all(error(bar, other) <= 1e-13 for bar, other in zip(*bars, strict=True))


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf], ids=str)
@pytest.mark.parametrize("side", [0, 1], ids=["a", "b"])
@pytest.mark.parametrize("way", WAYS)
def test_anchors_that_are_not_finite_give_nan_throughout(way, side, value, put_in_order):
    put_in_order(way)
    anchors = torch.randn(60), torch.randn(50)
    anchors[side][41] = value
    assert all_nan(laplex.linear(torch.randn(2, 50), *anchors, 1.0, backend="triton"))


LAUNCHES = [
    (64, ["rank_program"]),
    (65, ["rank_program", "join_program"]),
    (129, ["side_by_side_program", "encode_program"]),
]


@pytest.mark.parametrize(("points", "launches"), LAUNCHES, ids=str)
def test_more_points_are_counted_in_runs_and_many_sorted(points, launches, monkeypatch):
    done = []

    def launch(kernel, *arguments):
        done.append(kernel.__name__)
        triton_launch.launch(kernel, *arguments)

    monkeypatch.setattr(triton_order, "launch", launch)
    make_order(torch.randn(1, points - 20), torch.randn(1, 20), "joined", "triton")
    assert done == launches


def test_tiles_fit_into_runs(monkeypatch):
    monkeypatch.undo()  # the sizes that are
    for width in (tuning.RUN_TILE[0], tuning.JOIN_TILE[0]):
        assert tuning.RUN % width == 0
    for _points, others, lanes in (tuning.RANK_TILE, tuning.RUN_TILE):
        assert others % lanes == 0
    assert tuning.RUN & (tuning.RUN - 1) == 0
