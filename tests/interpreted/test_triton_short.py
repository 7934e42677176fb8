"""One side much longer than the other on the GPU, under Triton's interpreter: tables, and rows side by side."""

import pytest
import torch

import laplex
from helpers import TOLERANCE, assert_pullback, assert_sums, error, make_order, named_gradients, on, oracle, scan
from laplex._triton import tuning
from laplex._triton.scan import schedule

pytestmark = pytest.mark.usefixtures("tiles")

LONG, SHORT = 130, 8
ROWS = 3  # no power of two


@pytest.fixture(autouse=True)
def few_are_many(tiles, monkeypatch):
    monkeypatch.setattr(tuning, "TABLE_FROM", 0)
    monkeypatch.setattr(tuning, "GATHERED_TWICE", -1)
    monkeypatch.setattr(tuning, "ROWS_STAGED", ROWS)


def drawn(h, m, size, dtype):
    """Rows of length 1, so that an error of what should be 0 has a scale."""
    return torch.nn.functional.normalize(torch.randn(h, m, size, dtype=dtype), dim=-1)


ANCHORS = {  # far apart is all but one pair, which gives errors their scale
    "spread_out": lambda size: torch.rand(1, size) * 40,
    "ties": lambda size: torch.randint(0, 7, (1, size)).float(),
    "one_point": lambda size: torch.full((1, size), 2.5),
    "far_apart": lambda size: torch.cat([torch.tensor([[1 / size]]), torch.rand(1, size - 1) * 1e5], 1),
    "in_order": lambda size: torch.linspace(-3, 3, size)[None],
}


def sides(name, dtype=torch.float32):
    torch.manual_seed(1)
    return ANCHORS[name](LONG).to(dtype), ANCHORS[name](SHORT).to(dtype)


def one_tau(value):
    return torch.tensor([value], dtype=torch.float64)


@pytest.mark.parametrize("name", ANCHORS)
def test_few_sources_many_targets(name, dtype):
    a, b = sides(name, dtype)
    assert_sums(drawn(1, ROWS, SHORT, dtype), a, b, one_tau(0.8), make_order(a, b, "joined", "triton"), "triton")


@pytest.mark.parametrize("name", ANCHORS)
@pytest.mark.parametrize("rows", [1, ROWS], ids=["one_row", "rows_side_by_side"])
def test_many_sources_few_targets(name, rows, dtype):
    b, a = sides(name, dtype)
    assert_sums(drawn(1, rows, LONG, dtype), a, b, one_tau(0.8), make_order(a, b, "joined", "triton"), "triton")


@pytest.mark.parametrize("carried", [0, 4], ids=["by_tiles", "by_a_launch"])
def test_anchors_in_order_and_rows_side_by_side(carried, tiles):
    tiles(32, 2, carried=carried)
    b, a = (side.sort()[0] for side in sides("ties"))
    assert_sums(drawn(1, ROWS, LONG, b.dtype), a, b, one_tau(0.8), make_order(a, b, "in_order", "triton"), "triton")


@pytest.mark.parametrize("name", ["spread_out", "ties"])
@pytest.mark.parametrize("longer", ["rows", "columns"])
def test_the_fused_pullback(name, longer):
    a, b = sides(name)
    if longer == "columns":
        a, b = b, a
    g, x = (drawn(1, ROWS, side.shape[1], torch.float32) for side in (a, b))
    assert_pullback(g, x, a, b, one_tau(0.8), make_order(a, b, "joined", "triton"), "triton")


def test_several_kernels_and_columns_of_x():
    long, short = torch.rand(3, LONG) * 5, torch.rand(3, SHORT) * 5
    tau = torch.tensor([0.3, 1.0, 50.0], dtype=torch.float64)
    for a, b in ((long, short), (short, long)):
        order = make_order(a, b, "joined", "triton")
        x = torch.randn(3, b.shape[1], ROWS).mT
        even, _ = scan(x, a, b, tau, order, False, "triton")
        assert error(even, oracle(x, a, b, tau)) <= TOLERANCE[x.dtype]
        assert even.stride(-2) == 1


@pytest.mark.parametrize("bad", [float("nan"), float("inf")], ids=str)
@pytest.mark.parametrize("side", ["long", "short"])
@pytest.mark.parametrize("longer", ["rows", "columns"])
def test_a_fault_makes_the_whole_output_nan(bad, side, longer):
    long, short = sides("spread_out")
    (long if side == "long" else short)[0, 3] = bad
    a, b = (long, short) if longer == "rows" else (short, long)
    good_a, good_b = sides("spread_out")
    order = make_order(good_a, good_b, "joined", "triton") if longer == "rows" else None
    order = order or make_order(good_b, good_a, "joined", "triton")
    emptied = order.unchecked()
    even, _ = scan(drawn(1, ROWS, b.shape[1], torch.float32), a, b, one_tau(1.0), emptied, False, "triton")
    assert even.isnan().all()


@pytest.mark.parametrize("tau", [0.0, -1.0, float("nan"), float("inf")], ids=str)
def test_a_bad_tau_makes_the_whole_output_nan(tau):
    a, b = sides("spread_out")
    order = make_order(a, b, "joined", "triton")
    even, _ = scan(drawn(1, 2, SHORT, torch.float32), a, b, one_tau(tau), order, False, "triton")
    assert even.isnan().all()


def test_gradients_of_a_table(monkeypatch):
    monkeypatch.setattr(tuning, "SHORT_AXIS_RATIO", 4)
    a, b = torch.randn(12, dtype=torch.float64), torch.randn(3, dtype=torch.float64)
    x = torch.randn(2, 3, dtype=torch.float64)
    inputs, weight = {"x": x, "a": a, "b": b, "tau": torch.tensor(0.7).double()}, torch.randn(2, 12).double()
    want = named_gradients(laplex.reference.linear, inputs, weight)
    got = named_gradients(on("triton"), inputs, weight)
    for name, exact in want.items():
        assert error(got[name], exact) <= 1e-13, name


def test_a_stale_plan_of_few_columns_is_found():
    a, b = sides("spread_out")
    for rows, cols in ((a[0], b[0]), (b[0], a[0])):
        plan = laplex.Plan(rows, cols, backend="triton")
        plan.validate(rows, cols)
        with pytest.raises(laplex.StalePlanError):
            plan.validate(-rows, cols)


SIZES = {  # x (h, m, k), n: whether offsets pass 32 bits
    "rows_side_by_side": ((1, 64, 1 << 25), 1000, True),
    "few_of_them": ((1, 64, 1 << 24), 1000, False),
    "many_points": ((1, 1, 1 << 30), 1 << 30, True),
}


@pytest.mark.parametrize("name", SIZES)
def test_offsets_of_64_bits_where_they_are_needed(name, monkeypatch):
    monkeypatch.undo()
    schedule.schedule.cache_clear()
    (h, m, k), n, far = SIZES[name]
    strides = (m * k, k, 1), (m * n, n, 1)
    shapes = (h, m, k), strides[0], (h, m, n), strides[1], strides[1], torch.float32
    assert schedule.schedule(schedule.ScanProblem(*shapes)).tiling.far == far
