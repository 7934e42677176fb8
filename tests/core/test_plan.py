"""Plans: what they hold, how they move, and that a stale one raises rather than answers wrongly."""

import copy
import pickle

import pytest
import torch

import laplex
from cases import every, named
from helpers import LAYOUTS, TOLERANCE, error, make_order, odd_kernel, oracle, rows_for, scan
from laplex import Plan, StalePlanError

SIZES = {"merged": (7, 6), "short_rows": (3, 49), "short_cols": (49, 3)}
LAYOUT = pytest.mark.parametrize("layout", LAYOUTS)


def grid(layout, tied=False):
    """Rows at even integers, columns at odd ones, or all at even ones; shuffled."""
    n, k = SIZES[layout]
    a, b = 2.0 * torch.randperm(n).double(), 2.0 * torch.randperm(k).double() + (0 if tied else 1)
    return a, b


def same(plan, other):
    return all(torch.equal(one, two) for one, two in zip(plan._order.tensors, other._order.tensors))


@every()
def test_a_plan_serves_both_products(case, backend, dtype):
    a, b, tau = case(dtype)
    plan = Plan(a, b)
    x, y = rows_for(a, b, 2), rows_for(b, a, 2)
    forward = laplex.linear(x, a, b, tau, plan=plan, backend=backend)
    assert error(forward, oracle(x, a, b, tau)) <= TOLERANCE[dtype]
    transposed = laplex.linear(y, b, a, tau, plan=plan.mT, backend=backend)
    assert error(transposed, oracle(y, b, a, tau)) <= TOLERANCE[dtype]


@pytest.mark.parametrize(
    ("n", "k", "layout"),
    [(5, 5, "merged"), (5, 79, "merged"), (5, 80, "short_rows"), (80, 5, "short_cols"), (1, 1, "merged")],
)
def test_the_layout_is_chosen_by_the_sizes(n, k, layout):
    assert Plan(torch.randn(n), torch.randn(k))._order.layout == layout


def test_repr():
    assert repr(Plan(torch.randn(5), torch.randn(6))) == "Plan(n=5, k=6, device=cpu, merged: both sides sorted)"
    assert "short axis: the 2 rows sorted" in repr(Plan(torch.randn(2), torch.randn(60)))
    batched = repr(Plan(torch.randn(3, 60), torch.randn(2)))
    assert "batch=(3,)" in batched
    assert "short axis: the 2 columns sorted" in batched


@LAYOUT
def test_transpose(layout):
    plan = Plan(*grid(layout))
    swapped = plan.mT
    assert swapped.shape == plan.shape[::-1]
    assert swapped._order.layout == {"short_rows": "short_cols", "short_cols": "short_rows"}.get(layout, layout)
    assert swapped._order.target is plan._order.source
    assert swapped._order.source is plan._order.target
    assert swapped.mT._order.layout == layout


def test_to_another_device():
    a, b = torch.randn(5), torch.randn(6)
    plan = Plan(a, b)
    assert plan.to("meta").device.type == "meta"
    back = plan.to("cpu")
    assert back.device.type == "cpu"
    assert same(back, plan)
    assert back.shape == plan.shape


@pytest.mark.parametrize("remake", [copy.copy, copy.deepcopy, lambda plan: pickle.loads(pickle.dumps(plan))])
def test_copies_and_pickles(remake):
    a, b, x = torch.randn(5), torch.randn(6), torch.randn(6)
    plan = Plan(a, b)
    copied = remake(plan)
    assert repr(copied) == repr(plan)
    assert error(laplex.linear(x, a, b, plan=copied, backend="cpp"), oracle(x, a, b)) <= 2e-7


@pytest.mark.parametrize("name", ["shape", "_order"])
def test_a_plan_is_frozen(name):
    plan = Plan(torch.randn(5), torch.randn(6))
    with pytest.raises(AttributeError):
        setattr(plan, name, None)


def test_a_plan_holds_no_graph():
    a = torch.randn(5, requires_grad=True)
    plan = Plan(a, a)
    assert not any(tensor.requires_grad for tensor in plan._order.tensors)


@LAYOUT
@pytest.mark.parametrize("by", [0.0, 0.1, 3.0, 1000.0])
def test_update_follows_the_anchors(layout, by):
    a, b = grid(layout)
    plan = Plan(a, b)
    before = copy.deepcopy(plan)
    moved = a + by * torch.randn_like(a), b + by * torch.randn_like(b)
    fresh, updated = Plan(*moved), plan.update(*moved)
    assert same(updated, fresh)
    assert updated._order.layout == layout
    assert same(plan, before)


@named("ties_everywhere", "batched_ties", "batched_short_rows", "long_tie_runs")
def test_update_from_and_to_ties(case):
    a, b, tau = case()
    plan = Plan(a, b).update(a + 0.25 * torch.randn_like(a), b)
    back = plan.update(a, b)
    x = rows_for(a, b, 2)
    assert error(laplex.linear(x, a, b, tau, plan=back, backend="cpp"), oracle(x, a, b, tau)) <= 1e-14


@LAYOUT
def test_validate_accepts_what_the_plan_describes(layout):
    a, b = grid(layout)
    plan = Plan(a, b)
    plan.validate(a, b)
    plan.validate(a + 0.3, b)
    plan.validate((a + 0.3).float(), b.float())
    plan.mT.validate(b, a)


def swap_two_rows(a, b):
    order = a.argsort()
    a[order[[0, 2]]] = a[order[[2, 0]]]


def swap_two_columns(a, b):
    order = b.argsort()
    b[order[[0, 2]]] = b[order[[2, 0]]]


def pass_a_neighbour(a, b):
    a[a.argsort()[1]] += 1.5


def pass_all(a, b):
    b[b.argmax()] = -100.0


def land_on_a_neighbour(a, b):
    a[a.argsort()[1]] += 1.0


def land_on_a_neighbour_from_the_right(a, b):
    a[a.argsort()[1]] -= 1.0


def column_lands_on_a_row(a, b):
    b[b.argsort()[1]] += 1.0


CHANGES = [
    swap_two_rows,
    swap_two_columns,
    pass_a_neighbour,
    pass_all,
    land_on_a_neighbour,
    land_on_a_neighbour_from_the_right,
    column_lands_on_a_row,
]


def row_leaves_a_tie_rightwards(a, b):
    a[a.argsort()[1]] += 0.5


def row_leaves_a_tie_leftwards(a, b):
    a[a.argsort()[1]] -= 0.5


def column_leaves_a_tie(a, b):
    b[b.argsort()[1]] += 0.5


def column_leaves_a_tie_leftwards(a, b):
    b[b.argsort()[1]] -= 0.5


BROKEN_TIES = [
    row_leaves_a_tie_rightwards,
    row_leaves_a_tie_leftwards,
    column_leaves_a_tie,
    column_leaves_a_tie_leftwards,
]
ALL_CHANGES = [(change, False) for change in CHANGES] + [(change, True) for change in BROKEN_TIES]
CHANGE = pytest.mark.parametrize(("change", "tied"), ALL_CHANGES, ids=[change.__name__ for change, _ in ALL_CHANGES])


@LAYOUT
@CHANGE
def test_validate_finds_a_stale_plan(layout, change, tied):
    a, b = grid(layout, tied)
    plan = Plan(a, b)
    change(a, b)
    with pytest.raises(StalePlanError, match=r"Plan.validate: `plan` does not describe the order"):
        plan.validate(a, b)


@LAYOUT
@CHANGE
def test_a_stale_plan_never_gives_both_sums(layout, change, tied, scan_backend):
    a, b = grid(layout, tied)
    plan = Plan(a, b)
    change(a, b)
    x, a, b, tau = torch.randn(1, 2, len(b)).double(), a[None], b[None], torch.ones(1).double()
    with pytest.raises(StalePlanError, match="does not describe the order"):
        scan(x, a, b, tau, plan._order, True, scan_backend)


@LAYOUT
@CHANGE
def test_a_stale_plan_raises_or_the_product_is_right(layout, change, tied, backend):
    a, b = grid(layout, tied)
    plan = Plan(a, b)
    change(a, b)
    x = torch.randn(2, len(b)).double()
    try:
        y = laplex.linear(x, a, b, plan=plan, backend=backend)
    except StalePlanError:
        assert backend != "dense"
    else:
        assert error(y, oracle(x, a, b)) <= 1e-14


@LAYOUT
@pytest.mark.parametrize("change", [swap_two_rows, swap_two_columns, pass_a_neighbour, pass_all])
def test_a_stale_order_raises(layout, change, scan_backend):
    a, b = grid(layout)
    plan = Plan(a, b)
    change(a, b)
    with pytest.raises(StalePlanError, match="they moved past one another"):
        laplex.linear(torch.randn(len(b)).double(), a, b, plan=plan, backend=scan_backend)


PARTIAL = {  # a, b, and the move of one anchor, which passes no other
    "column_leaves_a_run_rightwards": ([0, 2, 2], [2, 2, 4], "b", 1, 0.5),
    "column_leaves_a_run_leftwards": ([0, 2, 2], [2, 2, 4], "b", 0, -0.5),
    "row_leaves_a_run_rightwards": ([0, 2, 2], [2, 2, 4], "a", 2, 0.5),
    "row_leaves_a_run_leftwards": ([0, 2, 2], [2, 2, 4], "a", 1, -0.5),
    "row_joins_a_tie_from_the_left": ([4, 5], [5], "a", 0, 1.0),
    "row_joins_a_tie_from_the_right": ([5, 6], [5], "a", 1, -1.0),
    "column_joins_a_tie_from_the_left": ([5], [4, 5], "b", 0, 1.0),
    "column_joins_a_tie_from_the_right": ([5], [5, 6], "b", 1, -1.0),
}


@LAYOUT
@pytest.mark.parametrize(("a", "b", "side", "place", "by"), PARTIAL.values(), ids=PARTIAL)
def test_a_run_of_ties_that_changes_in_part(a, b, side, place, by, layout, scan_backend):
    """The tie itself still stands; who takes part in it does not."""
    a, b = torch.tensor([a]).double(), torch.tensor([b]).double()
    order = make_order(a, b, layout, scan_backend)
    (a if side == "a" else b)[0, place] += by
    x, tau = torch.randn(1, 2, b.shape[1]).double(), torch.ones(1).double()
    for odd in (False, True):
        try:
            sums = scan(x, a, b, tau, order, odd, scan_backend)
        except StalePlanError:
            continue
        assert error(sums[0], oracle(x, a, b)) <= 1e-14
        if odd:
            assert error(sums[1], x @ odd_kernel(a, b).mT) <= 1e-14


@pytest.mark.parametrize("mover", ["a", "b"])
def test_update_when_a_run_of_ties_breaks_in_part(mover, backend):
    a, b = torch.tensor([0.0, 2.0, 2.0]).double(), torch.tensor([2.0, 2.0, 4.0]).double()
    plan = Plan(a, b)
    (a if mover == "a" else b)[1] += 0.5
    x = torch.randn(2, 3).double()
    y = laplex.linear(x, a, b, plan=plan.update(a, b), backend=backend)
    assert error(y, oracle(x, a, b)) <= 1e-14


@LAYOUT
@pytest.mark.parametrize("where", ["first", "middle", "last"])
@pytest.mark.parametrize("side", ["a", "b"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_anchors_that_are_not_finite_with_a_kept_plan(layout, where, side, value, backend):
    a, b = grid(layout)
    plan = Plan(a, b)
    moved = a if side == "a" else b
    moved[moved.argsort()[{"first": 0, "middle": 1, "last": -1}[where]]] = value
    with pytest.raises(ValueError, match=r"must be finite|\(or are not finite\)"):
        laplex.linear(torch.randn(2, len(b)).double(), a, b, plan=plan, backend=backend)
    with pytest.raises(ValueError, match=f"Plan.validate: `{side}` must be finite"):
        plan.validate(a, b)
    with pytest.raises(ValueError, match=f"`{side}` must be finite"):
        plan.update(a, b)


def test_a_stale_matrix_among_good_ones_raises(scan_backend):
    a, b = torch.arange(12.0).reshape(3, 4), torch.arange(12.0).reshape(3, 4) + 0.5
    plan = Plan(a, b)
    a[1] = a[1].flip(0)
    with pytest.raises(StalePlanError, match="does not describe"):
        laplex.linear(torch.randn(3, 2, 4), a, b, plan=plan, backend=scan_backend)


def test_the_gradient_of_a_stale_plan_is_right_or_raises(scan_backend):
    """The even sum may not need all of the order that the gradient needs."""
    for layout in LAYOUTS:
        for change, tied in ALL_CHANGES:
            a, b = grid(layout, tied)
            plan = Plan(a, b)
            change(a, b)
            x = torch.randn(2, len(b)).double()
            got, want = ([value.clone().requires_grad_() for value in (x, a, b)] for _ in range(2))
            try:
                laplex.linear(*got, plan=plan, backend=scan_backend).sin().sum().backward()
            except StalePlanError:
                continue
            laplex.linear(*want, backend="dense").sin().sum().backward()
            assert all(error(one.grad, other.grad) <= 1e-13 for one, other in zip(got, want)), (layout, change)


@LAYOUT
@pytest.mark.parametrize(
    ("made_for", "used_with"), [(torch.float32, torch.float64), (torch.float64, torch.float32)], ids=str
)
@pytest.mark.parametrize("x_dtype", [torch.float32, torch.float64], ids=str)
def test_a_plan_of_anchors_of_another_dtype(layout, made_for, used_with, x_dtype, backend):
    a, b = grid(layout)
    plan = Plan(a.to(made_for), b.to(made_for))
    a, b, x = a.to(used_with), b.to(used_with), torch.randn(2, len(b), dtype=x_dtype)
    y = laplex.linear(x, a, b, plan=plan, backend=backend)
    assert error(y, oracle(x, a, b)) <= TOLERANCE[torch.float32]
    y = laplex.linear(x, a, b, plan=plan.update(a, b), backend=backend)
    assert error(y, oracle(x, a, b)) <= TOLERANCE[torch.float32]


def test_a_plan_does_not_follow_its_anchors(scan_backend):
    """The plan keeps copies: anchors written in place are seen to have moved."""
    a, b, x = torch.arange(5.0), torch.arange(5.0) + 0.5, torch.randn(5)
    plan = Plan(a, b)
    a += 0.25
    y = laplex.linear(x, a, b, plan=plan, backend=scan_backend)
    assert error(y, oracle(x, a, b)) <= TOLERANCE[torch.float32]
    a += 1.0
    with pytest.raises(StalePlanError, match="does not describe"):
        laplex.linear(x, a, b, plan=plan, backend=scan_backend)


def test_the_stale_plan_error_is_a_value_error():
    assert issubclass(StalePlanError, ValueError)


@pytest.mark.parametrize(("n", "k"), [(5, 5), (6, 6), (6, 5), (4, 6)])
def test_a_plan_of_another_shape(n, k, backend):
    plan = Plan(torch.randn(5), torch.randn(6))
    a, b = torch.randn(n), torch.randn(k)
    with pytest.raises(ValueError, match=r"`plan` was built for \(\*H, n, k\) = \(5, 6\)"):
        laplex.linear(torch.randn(k), a, b, plan=plan, backend=backend)


def test_broadcast_anchors_with_a_plan(backend):
    a, b, x = torch.randn(3, 5), torch.randn(6), torch.randn(3, 2, 6)
    plan = Plan(a, b)
    assert plan.shape == (3, 5, 6)
    y = laplex.linear(x, a, b, plan=plan, backend=backend)
    assert error(y, oracle(x, a, b)) <= TOLERANCE[torch.float32]
