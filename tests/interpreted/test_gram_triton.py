"""Gram matrices of the Triton backend under Triton's interpreter, with tiles so small that a few points fill many."""

import pytest
import torch

import laplex
from cases import CASES, every, named
from helpers import make_order, named_gradients, table
from laplex import reference
from laplex._gram import autograd as _autograd_gram
from laplex._scan.order import Matrix
from laplex._triton import tuning
from laplex._triton.gram import launch as triton_gram
from test_grad import second_order
from test_gram import POSITIVE, TensorSizes, assert_every_entry, assert_gram, dense, weights_for
from test_gram_grad import checked, inputs_for, on, positional, term_scales

pytestmark = pytest.mark.usefixtures("tiles")
FEW = [case for case in CASES if sum(side.shape[-1] for side in case()[:2]) <= 60]


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch):
    monkeypatch.setattr(tuning, "MATRIX_TILE", (8, 16))
    monkeypatch.setattr(triton_gram, "tiling", lambda merged: 32)
    monkeypatch.setattr(tuning, "GRAM_CARRIED", 2)
    monkeypatch.setattr(tuning, "GRAM_ROWS", 2)
    monkeypatch.setattr(tuning, "PULL_TARGETS", 4)
    triton_gram.schedule.cache_clear()
    yield
    triton_gram.schedule.cache_clear()


@every(FEW)
def test_positive_weights(case):
    a, b, tau = case(torch.float32)
    assert_gram(a, b, weights_for(b).abs(), tau, "triton", bars=POSITIVE)


@named("generic", "ties_everywhere", "batched_ties", "one_point")
@pytest.mark.parametrize("phased", [False, True])
def test_float64_and_several_weights(case, phased):
    inputs = inputs_for(*case(), m=2, phased=phased)
    assert_gram(**inputs, backend="triton")


GRADIENTS = ("generic", "ties_everywhere", "batched_ties", "all_tied", "duplicates_within_a_side", "one_point")


@named(*GRADIENTS, "rows_left_of_columns", "rows_right_of_columns", "signed_zeros")
@pytest.mark.parametrize("phased", [False, True])
def test_every_gradient_is_the_dense_one(case, phased):
    assert_gradients(inputs_for(*case(), phased=phased), 1e-13)


@named("ties_everywhere", "batched")
def test_float32_gradients(case):
    assert_gradients(inputs_for(*case(torch.float32)), 1e-6)


def assert_gradients(inputs, bar, **fixed):
    exact = {name: value.double() for name, value in inputs.items()}
    cotangent = torch.randn_like(reference.gram(**inputs))
    want = named_gradients(reference.gram, exact, cotangent.double())
    got = named_gradients(on("triton", **fixed), inputs, cotangent)
    scales = term_scales(exact, cotangent.double())
    for name in inputs:
        assert got[name].dtype == inputs[name].dtype
        assert float((got[name] - want[name]).norm()) <= bar * scales[name], name


@pytest.mark.parametrize("wanted", [("a",), ("b",), ("weight",), ("tau",), ("phi",), ("psi",), ("a", "phi")], ids=str)
def test_gradients_of_some_inputs_only(wanted):
    inputs = inputs_for(torch.randn(6).double(), torch.randn(5).double(), 0.7)
    cotangent = torch.randn(6, 6).double()
    want = named_gradients(reference.gram, inputs, cotangent)
    leaves = {name: value.clone().requires_grad_(name in wanted) for name, value in inputs.items()}
    (laplex.gram(**leaves, backend="triton") * cotangent).sum().backward()
    for name, leaf in leaves.items():
        assert (leaf.grad is not None) == (name in wanted), name
    for name in wanted:
        torch.testing.assert_close(leaves[name].grad, want[name], atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("phased", [False, True])
def test_second_order_is_the_dense_one(phased):
    a, b = torch.tensor([0.0, 1, 1]).double(), torch.tensor([1.0, 0.3]).double()
    inputs, cotangent = inputs_for(a, b, 0.8, phased=phased), torch.randn(3, 3).double()
    direction = [torch.randn_like(value) for value in inputs.values()]
    want = second_order(reference.gram, inputs, cotangent, direction)
    got = second_order(on("triton"), inputs, cotangent, direction)
    for name, exact in want.items():
        assert float((got[name] - exact).norm()) <= 1e-11 * max(float(exact.norm()), 1.0), name


def test_a_batch_of_cotangents():
    inputs = checked(2, 3)
    got, g = positional("triton", *inputs), torch.randn(2, 2, 2).double()
    batch = torch.autograd.grad(got, inputs, g, is_grads_batched=True, retain_graph=True)
    for i in range(2):
        for bar, bars in zip(torch.autograd.grad(got, inputs, g[i], retain_graph=True), batch):
            torch.testing.assert_close(bars[i], bar, atol=1e-12, rtol=1e-12)


def test_columns_far_outside_have_tiny_gradients():
    a, b = torch.rand(30).double(), torch.cat([torch.rand(20) - 26, torch.rand(20) + 26]).double()
    inputs, cotangent = {"a": a, "b": b, "weight": torch.rand(40).double()}, torch.randn(30, 30).double()
    want = named_gradients(reference.gram, inputs, cotangent)
    got = named_gradients(on("triton"), inputs, cotangent)
    for name, exact in want.items():
        assert float((got[name] - exact).norm()) <= 1e-11 * float(exact.norm()), name


# --- sums over several tiles ------------------------------------------------------------------------------------------


def test_the_mass_is_the_same_to_the_bit_where_no_source_lies_between():
    """80 targets in a gap between the sources; then one source at the position of one of them.

    Weights span ten orders of magnitude, and the targets fill several tiles.
    """
    a, b = torch.cat([torch.rand(80) * 1e-3 + 0.4, torch.rand(10)]).double(), torch.rand(150).double()
    b[(b > 0.399) & (b < 0.402)] = 0.9
    weight = 10 ** (torch.rand(1, 1, 150).double() * 10 - 5) * torch.randn(150).sign()
    a, b, tau = a[None], b[None], torch.ones(1).double()
    psi = torch.randn_like(b)
    matrix = Matrix(a, b, tau, make_order(a, b, "joined", "triton"), table("triton"))
    sums, _ = triton_gram.sums_of(weight, (torch.zeros_like(a), psi), matrix)
    parts = weight[0, 0] * torch.stack([torch.ones_like(psi[0]), (2 * psi[0]).cos(), (2 * psi[0]).sin()])
    assert bool((sums[0, 0, :, 2:, :80] == sums[0, 0, :, 2:, :1]).all())
    want = (parts[:, None] * (b[0] < a[0][:, None])).sum(-1)
    assert float((sums[0, 0, :, 2:].sum(1) - want).abs().max()) <= 1e-13 * float(weight.abs().sum())
    b[0, 7] = a[0, 3]  # a tied source counts half
    matrix = Matrix(a, b, tau, make_order(a, b, "joined", "triton"), table("triton"))
    tied, _ = triton_gram.sums_of(weight, (), matrix)
    jump = tied[0, 0, 0, 2:].sum(0) - tied[0, 0, 0, 2:, :80].sum(0)[a[0, :80].argmin()]
    rank = (a[0, :80] > a[0, 3]).double() + 0.5 * (a[0, :80] == a[0, 3])
    assert float((jump[:80] - rank * weight[0, 0, 7]).abs().max()) <= 1e-13 * float(weight.abs().max())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("spread", [1.0, 1000.0])
def test_weights_over_ten_orders_of_magnitude(spread, dtype):
    a, b = torch.rand(40, dtype=dtype) * spread, torch.rand(400, dtype=dtype) * spread
    assert_every_entry(a, b, 10 ** (torch.rand(400, dtype=dtype) * 10 - 5), 1.0, "triton")


def test_a_heavy_column_far_away_does_not_show():
    a, b, weight = torch.rand(30).double(), torch.rand(100).double(), torch.rand(100).double()
    far, heavy = torch.cat([b, torch.tensor([-900.0]).double()]), torch.cat([weight, torch.tensor([1e9]).double()])
    got, want = laplex.gram(a, far, heavy, backend="triton"), dense(a, b, weight)
    assert float(((got - want) / want).abs().max()) <= 1e-12


def test_all_ties_have_the_same_bits():
    a, b, weight = torch.full((50,), 2.5).double(), torch.full((90,), 2.5).double(), torch.rand(90).double()
    got = laplex.gram(a, b, weight, 0.1, backend="triton")
    assert got.unique().numel() == 1
    assert float((got[0, 0] - weight.sum()).abs()) <= 1e-14 * float(weight.sum())


# Every combination of values of every two flags.
PLANS = [(False, False, False), (False, True, True), (True, False, True), (True, True, False)]


@pytest.mark.parametrize(("in_order", "turned", "moved"), PLANS)
def test_plans(in_order, turned, moved):
    """Plans of sorted and unsorted anchors, of the transpose, and of anchors that moved but kept their order."""
    a, b = torch.randn(12).double(), torch.randn(90).double()
    b[:9], a[9:] = a[:9], a[2]
    a, b = (a.sort()[0], b.sort()[0]) if in_order else (a, b)
    plan = laplex.Plan(b, a, backend="triton").mT if turned else laplex.Plan(a, b, backend="triton")
    assert plan._order.kept_as == ("in_order" if in_order else "joined")
    inputs = inputs_for(a * 2 if moved else a, b * 2 if moved else b, 0.7, m=3)
    assert_gram(**inputs, backend="triton", plan=plan)
    assert_gradients(inputs, 1e-13, plan=plan)


@pytest.mark.parametrize("weight", [(7,), (3, 7), (2, 1, 7), (2, 2, 3, 7)], ids=str)
def test_shapes_of_batched_anchors(weight):
    a, b, tau = torch.randn(2, 1, 4).double(), torch.randn(2, 7).double(), torch.rand(2, 2).double() + 0.5
    assert_gram(a, b, torch.randn(weight).double(), tau, "triton")
    assert_gram(a, b, torch.randn(weight), tau, "triton", torch.randn_like(a), torch.randn_like(b))


def test_shapes_strides_and_no_weight():
    a, b = torch.randn(9, 2).double()[:, 1], torch.randn(13).double().flip(0)[::2]
    assert_gram(a, b, torch.randn(7, 3).double().mT, 0.5, "triton")
    assert_gram(a, b, torch.randn(2, 2, 7), 0.5, "triton")
    assert_gram(a, b, None, 0.5, "triton")
    assert laplex.gram(a, b[:0], torch.randn(2, 0), backend="triton").shape == (2, 9, 9)


def test_nothing_as_long_as_the_columns_but_the_plan_and_the_results(monkeypatch):
    monkeypatch.setattr(triton_gram, "tiling", lambda merged: 512)  # fewer tiles: their sums are short
    monkeypatch.setattr(_autograd_gram, "plainly_eager", lambda: True)  # the fused path under a dispatch mode, too
    n, k = 8, 4000
    a, b, weight, phi, psi = torch.randn(n), *(torch.randn(size) for size in (k, k, n, k))
    plan, leaves = laplex.Plan(a, b, backend="triton"), (b, weight, psi)
    for order in (plan._order, plan._order_for(a.clone(), b)):
        inputs = [value[None].requires_grad_() for value in leaves]
        with TensorSizes() as allocated:
            weights, phase = inputs[1][None], (phi[None], inputs[2])
            got = _autograd_gram.gram(
                weights, phase, Matrix(a[None], inputs[0], torch.ones(1).double(), order, table("triton"))
            )
        checked = order.target.values.numel() == 0
        assert [size for size in allocated.sizes if size >= k] == (
            [plan._order.target.values.numel()] if checked else []
        )
        g = torch.randn_like(got)
        with TensorSizes() as allocated:
            torch.autograd.grad(got, inputs, g)
        assert [size for size in allocated.sizes if size >= k] == [k, k, k]


def test_far_apart_and_outside():
    a, b = torch.rand(20) * 1000, torch.rand(30) * 1000
    assert_gram(a, b, torch.rand(30), 1.0, "triton", bars=POSITIVE)
    a, b = torch.rand(20), torch.rand(30) + 21
    b[:15] -= 41
    assert_gram(a, b, torch.rand(30), 1.0, "triton", bars=POSITIVE)


def test_a_stale_plan_is_nan():
    a, b = torch.randn(6), torch.randn(7)
    plan = laplex.Plan(a, b, backend="triton")
    assert bool(laplex.gram(-a, b, torch.rand(7), plan=plan, backend="triton").isnan().all())


def test_a_bad_tau_is_nan():
    tau = torch.tensor(-1.0)
    assert bool(laplex.gram(torch.randn(4), torch.randn(3), torch.rand(3), tau, backend="triton").isnan().all())


@pytest.mark.parametrize("phased", [False, True])
@pytest.mark.parametrize("fault", ["a", "b", "weight", "tau", "plan"])
def test_a_fault_is_nan_throughout_and_in_every_gradient(fault, phased):
    inputs = inputs_for(torch.randn(13), torch.randn(90), 0.7, phased=phased)
    plan = laplex.Plan(inputs["a"], inputs["b"], backend="triton") if fault == "plan" else None
    if fault == "plan":
        inputs["b"] = inputs["b"].flip(0)
    elif fault == "tau":
        inputs["tau"] = torch.tensor(torch.inf)
    else:
        inputs[fault][3] = torch.nan
    leaves = [value.requires_grad_() for value in inputs.values()]
    got = laplex.gram(**inputs, plan=plan, backend="triton")
    assert bool(got.isnan().all())
    for bar in torch.autograd.grad(got.sum(), leaves):
        assert bool(bar.isnan().all())
