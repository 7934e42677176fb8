"""Plans of the Triton backend, faults that become NaN, and messages; under Triton's interpreter."""

import copy
import pickle

import pytest
import torch

import laplex
from helpers import TOLERANCE, all_nan, direct, error, oracle
from laplex import LaplaceOperator, Plan, StalePlanError, _backends, backends
from laplex._triton import tuning
from test_plan import ALL_CHANGES, grid

pytestmark = pytest.mark.usefixtures("tiles")
WIDTHS = pytest.mark.parametrize("tau", [1e3, 1.0], ids=["narrow_tiles", "wide_tiles"])
LAYOUTS = pytest.mark.parametrize("layout", ["joined", "in_order"])


def linear(x, a, b, tau=9.0, plan=None):
    return laplex.linear(x, a, b, tau, plan=plan, backend="triton")


def planned(a, b):
    return Plan(a, b, backend="triton")


def points(layout, n=40, k=30):
    """Anchors at integers, no two at one; in order if the plan's layout is to be."""
    values = torch.randperm(n + k).double()
    a, b = values[:n].clone(), values[n:].clone()
    return (a.sort().values, b.sort().values) if layout == "in_order" else (a, b)


# --- plans ----------------------------------------------------------------------------------------------------------


def test_repr():
    a, b = torch.tensor([0.0, 2, 1]), torch.tensor([0.5, 1.5])
    assert repr(planned(a, b)) == "Plan(n=3, k=2, device=cpu, joined: one order of both sides)"
    assert repr(planned(a.sort().values, b)) == "Plan(n=3, k=2, device=cpu, joined: both sides came in order)"
    assert "batch=(4,)" in repr(planned(a.expand(4, 3), b))
    assert "joined" in repr(LaplaceOperator(a, b, plan=planned(a, b)))


@LAYOUTS
def test_a_plan_serves_both_products(layout):
    a, b = points(layout)
    plan, x, y = planned(a, b), torch.randn(1, 30).double(), torch.randn(1, 40).double()
    assert plan._order.layout == layout
    assert plan.backend == plan.mT.backend == "triton"
    assert error(linear(x, a, b, plan=plan), oracle(x, a, b, 9.0)) <= 1e-14
    assert error(linear(y, b, a, plan=plan.mT), oracle(y, b, a, 9.0)) <= 1e-14
    assert error(laplex.linear(x, a, b, 9.0, plan=plan), oracle(x, a, b, 9.0)) <= 1e-14
    assert error(laplex.linear(x, a, b, 9.0, plan=plan, backend="dense"), oracle(x, a, b, 9.0)) <= 1e-14


@LAYOUTS
def test_anchors_that_keep_their_order_keep_their_plan(layout):
    a, b = points(layout)
    plan, x = planned(a, b), torch.randn(1, 30).double()
    for moved in ((a + 0.4, b), (a * 3 - 1e6, b * 3 - 1e6)):
        plan.validate(*moved)
        assert error(linear(x, *moved, plan=plan), oracle(x, *moved, 9.0)) <= 1e-14


@LAYOUTS
def test_a_plan_of_anchors_of_another_dtype(layout):
    a, b = points(layout)
    x = torch.randn(1, 30)
    y = linear(x, a.float(), b.float(), plan=planned(a, b))
    assert error(y, oracle(x, a, b, 9.0)) <= TOLERANCE[torch.float32]


@pytest.mark.parametrize("remake", [copy.copy, copy.deepcopy, lambda plan: pickle.loads(pickle.dumps(plan))])
def test_copies_and_pickles(remake):
    a, b = points("joined", 9, 8)
    remade, x = remake(planned(a, b)), torch.randn(8).double()
    assert repr(remade) == repr(planned(a, b))
    assert error(linear(x, a, b, plan=remade), oracle(x, a, b, 9.0)) <= 1e-14


def test_an_operator_with_a_plan():
    a, b = points("joined")
    K = LaplaceOperator(a, b, 9.0, plan=planned(a, b))
    x, dense = torch.randn(30, 3).double(), laplex.reference.kernel(a, b, 9.0)
    assert error(K @ x, dense @ x) <= 1e-14
    assert error(K.mT @ (dense @ x), dense.mT @ (dense @ x)) <= 1e-14


def test_update_follows_the_anchors():
    a, b = points("joined")
    plan = planned(a, b)
    updated, sorted_ = plan.update(-a, b), plan.update(a.sort().values, b.sort().values)
    assert updated.backend == sorted_.backend == "triton"
    assert sorted_._order.layout == "in_order"
    x = torch.randn(1, 30).double()
    assert error(linear(x, -a, b, plan=updated), oracle(x, -a, b, 9.0)) <= 1e-14


def trusts(plan, a, b):
    """Whether the plan takes these anchors for those it was built from."""
    return plan._order_for(a, b).target.values.shape[-1] > 0


def test_a_plan_knows_its_anchors():
    a, b = torch.nn.Parameter(torch.randn(5), requires_grad=False), torch.randn(4)
    plan = planned(a, b)
    assert trusts(plan, a, b)
    assert plan.mT._order_for(b, a).source.values.shape[-1] > 0
    for other in (a.detach(), a.data, a.clone(), a.detach().flip(0)):
        assert not trusts(plan, other, b)
    assert not trusts(plan, a, b.clone())
    assert not trusts(plan, a.requires_grad_(), b)


def test_anchors_that_are_trained_are_checked_every_time():
    """Fused optimizers write to them without counting."""
    a, b, x = torch.nn.Parameter(torch.randn(30)), torch.randn(20), torch.randn(2, 20)
    plan, optimizer = planned(a, b), torch.optim.AdamW([a], lr=0.3, fused=True)
    for _ in range(3):
        y = linear(x, a, b, plan=plan)
        assert all_nan(y) or error(y, oracle(x, a, b, 9.0)) <= TOLERANCE[torch.float32]
        a.grad = torch.randn(30)
        optimizer.step()
    assert all_nan(linear(x, a, b, plan=plan))


@pytest.mark.parametrize("through", ["itself", "a_view", "a_detached_alias", "an_optimizer"])
def test_a_write_to_the_anchors_is_noticed(through):
    a, b = torch.randn(5).requires_grad_(), torch.randn(4)
    plan = planned(a, b)
    with torch.no_grad():
        if through == "itself":
            a.add_(1.0)
        elif through == "a_view":
            a[2:].add_(1.0)
        elif through == "a_detached_alias":
            a.detach().add_(1.0)
        else:
            a.grad = torch.ones(5)
            torch.optim.SGD([a], lr=0.1).step()
    assert not trusts(plan, a, b)


def test_anchors_made_in_inference_mode_are_not_trusted():
    with torch.inference_mode():
        a, b = torch.randn(5), torch.randn(4)
        assert not trusts(planned(a, b), a, b)


@LAYOUTS
def test_anchors_written_in_place_give_the_new_product_or_nan(layout):
    a, b = points(layout)
    plan, x = planned(a, b), torch.randn(1, 30).double()
    a += 0.25
    assert error(linear(x, a, b, plan=plan), oracle(x, a, b, 9.0)) <= 1e-14
    a += 7.0
    assert all_nan(linear(x, a, b, plan=plan))
    a -= 7.25
    assert error(linear(x, a, b, plan=plan), oracle(x, a, b, 9.0)) <= 1e-14


@pytest.mark.usefixtures("unpoisoned")
@pytest.mark.parametrize("columns", [False, True])
def test_a_plan_in_a_compiled_product(columns):
    torch.compiler.reset()
    a, b = points("joined", 9, 8)
    plan, x = planned(a, b), torch.randn(8, 2).double().mT if columns else torch.randn(2, 8).double()
    function = torch.compile(lambda x, a, b: 2 * linear(x, a, b, plan=plan), fullgraph=True, backend="aot_eager")
    assert error(function(x, a, b), 2 * oracle(x, a, b, 9.0)) <= 1e-14
    torch.compiler.reset()


# --- faults ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("change", "tied"), ALL_CHANGES, ids=[change.__name__ for change, _ in ALL_CHANGES])
def test_a_stale_plan_gives_nan_throughout_or_the_product(change, tied):
    a, b = grid("merged", tied)
    plan = planned(a, b)
    change(a, b)
    x = torch.randn(1, len(b)).double()
    y = linear(x, a, b, 1.0, plan)
    if all_nan(y):
        with pytest.raises(StalePlanError, match="does not describe the order"):
            plan.validate(a, b)
    else:
        plan.validate(a, b)
        assert error(y, oracle(x, a, b)) <= 1e-14


def pass_one_another(a, b):
    order = a.argsort()
    a[order[[20, 21]]] = a[order[[21, 20]]]


def land_on_a_tie_from_the_right(a, b):
    """Rows come first at ties: a row that was behind its column cannot tie with it."""
    row, _ = (a[:, None] - b == 1).nonzero()[-1]
    a[row] -= 1


@WIDTHS
@LAYOUTS
@pytest.mark.parametrize("change", [pass_one_another, land_on_a_tie_from_the_right])
def test_a_stale_plan_gives_nan_in_every_tile(change, layout, tau, tiles):
    tiles(32, 2)
    a, b = points(layout)
    plan = planned(a, b)
    change(a, b)
    assert all_nan(linear(torch.randn(2, 30).double(), a, b, tau, plan))
    with pytest.raises(StalePlanError, match="does not describe the order"):
        plan.validate(a, b)


@WIDTHS
def test_a_stale_plan_gives_nan_in_every_group(tau, tiles):
    tiles(32, 2, carried=2)
    a, b = points("joined", 90, 70)
    plan = planned(a, b)
    pass_one_another(a, b)
    assert all_nan(linear(torch.randn(2, 70).double(), a, b, tau, plan))


def test_rows_that_land_on_columns_from_the_left_tie_with_them():
    a, b = torch.arange(0.0, 80, 2).double(), torch.arange(1.0, 81, 2).double()
    plan, x = planned(a, b), torch.randn(1, 40).double()
    assert error(linear(x, a + 1, b, plan=plan), oracle(x, a + 1, b, 9.0)) <= 1e-14
    assert all_nan(linear(x, a - 1, b, plan=plan))


VALUES = pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf], ids=str)
SIDES = pytest.mark.parametrize("side", ["a", "b"])


@VALUES
@SIDES
@WIDTHS
def test_anchors_that_are_not_finite_give_nan_throughout(value, side, tau, tiles):
    tiles(32, 2)
    a, b = points("joined")
    (a if side == "a" else b)[7] = value
    assert all_nan(linear(torch.randn(2, 30).double(), a, b, tau))


@VALUES
@SIDES
def test_anchors_that_are_not_finite_with_a_kept_plan(value, side, tiles):
    tiles(32, 2)
    a, b = points("in_order")
    plan = planned(a, b)
    (a if side == "a" else b)[7] = value
    assert all_nan(linear(torch.randn(2, 30).double(), a, b, plan=plan))
    for call in (plan.validate, plan.update, planned):
        with pytest.raises(ValueError, match=f"`{side}` must be finite, got NaN or infinity"):
            call(a, b)


@VALUES
@SIDES
def test_anchors_that_are_not_finite_among_merged_runs(value, side, monkeypatch):
    monkeypatch.setattr(tuning, "COUNTED_PAIRS", 0)
    monkeypatch.setattr(tuning, "COUNTED_IN_RUNS", 0)
    monkeypatch.setattr(tuning, "SORTED_AT_ONCE", 24)
    a, b = points("joined")
    (a if side == "a" else b)[7] = value
    assert all_nan(linear(torch.randn(1, 30).double(), a, b, 1.0))


@pytest.mark.parametrize("tau", [0.0, -1.0, torch.nan, torch.inf], ids=str)
def test_a_tau_that_is_no_length_gives_nan_throughout(tau, tiles):
    tiles(32, 2)
    a, b = points("joined")
    plan, x, tau = planned(a, b), torch.randn(2, 30), torch.tensor(tau)
    assert all_nan(linear(x, a.float(), b.float(), tau), linear(x.double(), a, b, tau, plan))


FAULTS = {  # what happens to a, b, tau after the plan was made
    "stale": lambda a, b, tau: pass_one_another(a, b),
    "nan_in_a": lambda a, b, tau: a[7].fill_(torch.nan),
    "infinity_in_b": lambda a, b, tau: b[7].fill_(torch.inf),
    "negative_tau": lambda a, b, tau: tau.neg_(),
}


@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS)
def test_a_fault_gives_nan_in_every_gradient(fault, tiles):
    tiles(32, 2)
    a, b = points("joined")
    plan, x, tau = planned(a, b), torch.randn(2, 30).double(), torch.tensor(1.0).double()
    fault(a, b, tau)
    leaves = [value.requires_grad_() for value in (x, a, b, tau)]
    y = linear(*leaves, plan)
    assert all_nan(y, *torch.autograd.grad(y.sum(), leaves))


@VALUES
@SIDES
def test_a_fault_gives_nan_throughout_without_an_order(value, side):
    a, b = points("joined")
    for tau in (-1.0, torch.nan, torch.inf):
        assert all_nan(*direct(torch.randn(2, 30).double(), a, b, torch.tensor([tau]).double(), odd=True))
    (a if side == "a" else b)[7] = value
    assert all_nan(*direct(torch.randn(2, 30).double(), a, b, torch.ones(1).double(), odd=True))


def test_a_fault_stays_in_its_kernel():
    a, b, x = torch.randn(4, 21), torch.randn(4, 20), torch.randn(4, 1, 20)
    plan = planned(a, b)
    tau = torch.tensor([1.0, -1.0, 1.0, 1.0])
    a[2] = a[2].flip(0)
    y = linear(x, a, b, tau, plan)
    assert all_nan(y[1], y[2])
    assert error(y[::3], oracle(x[::3], a[::3], b[::3], tau[::3])) <= TOLERANCE[torch.float32]


# --- which backend, and messages ------------------------------------------------------------------------------------


def test_the_interpreter_makes_it_available_but_never_chosen():
    x, a, b = torch.randn(2, 6), torch.randn(5), torch.randn(6)
    assert backends.available()["triton"] == "yes"
    assert backends.which(x, a, b, backend="triton") == "triton"
    assert backends.which(x, a, b) != "triton"
    assert Plan(a, b).backend != "triton"


def test_a_gpu_chooses_it():
    assert _backends.choose(torch.device("cuda"), 10**6, 10**6, None).name == "triton"
    assert _backends.planner(torch.device("cuda")) == "triton"


def test_without_the_interpreter_it_does_not_run_on_the_cpu(monkeypatch):
    monkeypatch.setattr(_backends, "interpreted", lambda: False)
    a, b = torch.randn(5), torch.randn(6)
    assert backends.available()["triton"] == "torch sees no CUDA device"
    for call in (lambda: linear(torch.randn(6), a, b), lambda: planned(a, b)):
        with pytest.raises(RuntimeError, match=r"'triton' runs on CUDA, the tensors are on cpu; use .* or \.cuda\(\)"):
            call()


def test_without_triton(monkeypatch):
    monkeypatch.setattr(_backends, "NO_TRITON", "Triton is not installed")
    assert backends.available()["triton"] == "Triton is not installed"
    assert _backends.planner(torch.device("cuda")) == "torch"
    with pytest.raises(RuntimeError, match="backend 'triton' cannot run: Triton is not installed"):
        linear(torch.randn(6), torch.randn(5), torch.randn(6))


@pytest.mark.parametrize(("made_for", "used_with"), [("cpp", "triton"), ("triton", "cpp"), ("triton", "torch")])
def test_a_plan_of_another_backend(made_for, used_with):
    a, b = torch.randn(5), torch.randn(6)
    message = f"built for backend '{made_for}', got backend='{used_with}', .* build laplex.Plan"
    with pytest.raises(ValueError, match=message):
        laplex.linear(torch.randn(6), a, b, plan=Plan(a, b, backend=made_for), backend=used_with)


def test_a_plan_does_not_move_to_another_kind_of_device():
    plan = planned(torch.randn(5), torch.randn(6))
    with pytest.raises(ValueError, match=r"built for backend 'triton' on cpu.* of no use on meta; build laplex\.Plan"):
        plan.to("meta")
    assert plan.to("cpu").backend == "triton"


@pytest.mark.parametrize("sizes", [(40, 31), (31, 40), (40, 30)], ids=["odd", "odd_too", "even"])
def test_a_large_plan_holds_places_and_changes_no_bit(sizes, tiles, monkeypatch):
    tiles(32, 2, staged=True)
    n, k = sizes
    a, b, x = torch.randn(n), torch.randn(k), torch.randn(3, k)
    scattered = linear(x, a, b, plan=planned(a, b))
    monkeypatch.setattr(tuning, "PLACES_FROM", 0)
    plan = planned(a, b)
    assert plan._order.source.indices.shape == (1, 1, n + k)
    assert torch.equal(linear(x, a, b, plan=plan), scattered)
    back = linear(scattered, b, a, plan=plan.mT)
    assert error(back, oracle(scattered, b, a, 9.0)) <= TOLERANCE[torch.float32]
    moved = a.flip(0)
    assert all_nan(linear(x, moved, b, plan=plan))
    x.requires_grad_()
    got, want = (torch.autograd.grad(linear(x, a, b, plan=p).sum(), x)[0] for p in (plan, planned(a, b)))
    assert error(got, want) <= TOLERANCE[torch.float32]


def test_places_of_several_kernels(tiles, monkeypatch):
    tiles(32, 2, staged=True)
    monkeypatch.setattr(tuning, "PLACES_FROM", 0)
    a, b, x = torch.randn(2, 17), torch.randn(2, 20), torch.randn(2, 3, 20)
    for product in (x, x.mT.contiguous().mT):
        assert error(linear(product, a, b, plan=planned(a, b)), oracle(x, a, b, 9.0)) <= TOLERANCE[torch.float32]


@pytest.mark.parametrize(("n", "k"), [(0, 5), (5, 0)])
def test_a_plan_with_an_empty_side_holds_no_places(n, k, monkeypatch):
    monkeypatch.setattr(tuning, "PLACES_FROM", 1)
    a, b = torch.randn(n), torch.randn(k)
    assert linear(torch.randn(3, k), a, b, plan=planned(a, b)).shape == (3, n)
