"""Products with phases, fused on the GPU, under Triton's interpreter: values and all gradients, by every way."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

import laplex
from cases import named
from helpers import TOLERANCE, all_nan, error, inputs_for, named_gradients, on, oracle, rows_for, wide
from laplex import reference
from laplex._phase import autograd
from laplex._triton import tuning

pytestmark = pytest.mark.usefixtures("tiles")
SHAPES = {"spread": (90, 5), "collect": (5, 90), "tiles": (23, 19)}
WAY = pytest.mark.parametrize("way", SHAPES)
ROWS = 3  # no power of two
GRADIENT = {torch.float32: 4e-7, torch.float64: 2e-14}  # of the terms' sizes


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Few points cross many blocks, and any product with a short side takes its way."""
    numbers = {
        "TABLE_FROM": 0,
        "PIECE": 16,
        "COLLECT_TILE": (8, 2),
        "GATHER_TILE": (2, 16),
        "STACK_TILE": (16, 2),
        "PHASED_SPREAD_TILE": (16, 2),
        "PROGRAMS_WANTED": 8,
    }
    for name, value in numbers.items():
        monkeypatch.setattr(tuning, name, value)


def drawn(way, dtype, anchors="ties"):
    n, k = SHAPES[way]
    if anchors == "ties":
        a, b = (torch.randint(0, 6, (size,)).to(dtype) for size in (n, k))
    else:
        a, b = (torch.randn(size, dtype=dtype) for size in (n, k))
    return inputs_for(a, b, 0.8, ROWS)


def sizes_of_terms(inputs, weight):
    """The gradients of a product whose terms all have one sign: what errors are relative to."""
    x, a, b, tau = (wide(inputs[name]) for name in ("x", "a", "b", "tau"))
    scale = tau.reshape(-1, 1, 1) if tau.dim() else tau
    u = (a[..., :, None] - b[..., None, :]).abs() / scale
    even, g = torch.exp(-u), wide(weight).abs()
    x, rate = x.abs(), 1 / (tau.reshape(-1, 1) if tau.dim() else tau)
    of_x, of_g = x @ even.mT, g @ even
    at_rows, at_cols = (g * of_x).sum(-2), (x * of_g).sum(-2)
    stretched = ((g @ (u.clamp(max=1e3) * even)) * x).sum((-2, -1)) / tau
    return {"x": of_g, "a": at_rows * rate, "b": at_cols * rate, "phi": at_rows, "psi": at_cols, "tau": stretched}


def assert_gradients(got, want, inputs, weight):
    sizes = sizes_of_terms(inputs, weight)
    for name, exact in want.items():
        size = sizes[name] if sizes[name].numel() == exact.numel() else sizes[name].sum()  # one tau of all matrices
        bound = GRADIENT[inputs["a"].dtype] * size.reshape(exact.shape) + torch.finfo(got[name].dtype).tiny
        assert got[name].dtype == inputs[name].dtype
        assert bool(((wide(got[name]) - exact).abs() <= bound).all()), name


def assert_all(inputs):
    """The value and the six gradients are those of the dense definition."""
    y = laplex.linear(**inputs, backend="triton")
    exact = {name: wide(value) for name, value in inputs.items()}
    want = reference.linear(**exact)
    unphased = oracle(inputs["x"].abs(), inputs["a"], inputs["b"], inputs["tau"])
    assert y.dtype == inputs["x"].dtype
    assert error(y, want, unphased) <= TOLERANCE[inputs["a"].dtype]
    weight = torch.randn_like(y)
    got = named_gradients(on("triton"), inputs, weight)
    assert_gradients(got, named_gradients(reference.linear, exact, wide(weight)), inputs, weight)


@named(
    *("generic", "ties_across_sides", "all_tied", "duplicates_within_a_side", "one_point", "one_row_many_columns"),
    *("many_rows_one_column", "rows_left_of_columns", "rows_right_of_columns", "huge_tau", "tiny_tau", "offset"),
    *("batched", "batched_ties", "batched_short_rows", "short_rows", "short_cols", "short_rows_ties"),
    *("short_cols_ties", "signed_zeros", "sorted", "denormal_gaps", "neighbouring_floats"),
)
def test_values_and_gradients(case, dtype):
    a, b, tau = case(dtype)
    assert_all(inputs_for(a, b, tau, ROWS))


@WAY
@pytest.mark.parametrize("anchors", ["ties", "apart"])
def test_every_way(way, anchors, dtype):
    assert_all(drawn(way, dtype, anchors))


@WAY
def test_each_way_is_taken(way, monkeypatch):
    """What the other tests mean to test is run."""
    from laplex._triton.phase import launch

    taken = []
    for name in ("spread", "collect", "scan_once", "pull_once"):
        real = getattr(launch, name)
        monkeypatch.setattr(launch, name, lambda *a, _n=name, _f=real, **k: taken.append(_n) or _f(*a, **k))
    inputs = drawn(way, torch.float32)
    named_gradients(on("triton"), inputs, torch.randn(ROWS, SHAPES[way][0]))
    wanted = {"spread": ["spread", "spread", "collect"], "collect": ["collect", "spread"]}
    assert taken == wanted.get(way, ["scan_once", "pull_once"])


@WAY
def test_a_batch_of_matrices_and_columns_of_x(way):
    n, k = SHAPES[way]
    a, b = torch.randint(0, 6, (3, n)).float(), torch.randint(0, 6, (3, k)).float()
    inputs = inputs_for(a, b, torch.tensor([0.3, 1.0, 50.0]), ROWS)
    inputs["x"] = torch.randn(3, k, ROWS).mT
    assert_all(inputs)


@WAY
@pytest.mark.parametrize("x_dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
def test_other_dtypes_of_x(way, x_dtype):
    inputs = drawn(way, torch.float32)
    inputs["x"] = inputs["x"].to(x_dtype)
    y = laplex.linear(**inputs, backend="triton")
    want = oracle(*inputs.values())
    tolerance = 1e-14 if x_dtype == torch.float64 else torch.finfo(x_dtype).eps
    unphased = oracle(inputs["x"].abs(), inputs["a"], inputs["b"], inputs["tau"])
    assert y.dtype == x_dtype
    assert error(y, want, unphased) <= tolerance
    weight = torch.randn_like(y)
    got = named_gradients(on("triton"), inputs, weight)
    exact = named_gradients(reference.linear, {name: wide(value) for name, value in inputs.items()}, wide(weight))
    sizes = sizes_of_terms(inputs, weight)
    for name in exact:
        unit = torch.finfo(x_dtype).eps if name == "x" and x_dtype != torch.float64 else GRADIENT[torch.float32]
        off, size = (wide(got[name]) - exact[name]).abs(), sizes[name].reshape(exact[name].shape)
        assert bool((off <= unit * size).all()), name


@WAY
def test_complex_x(way):
    inputs = drawn(way, torch.float32)
    x = inputs["x"] = torch.complex(inputs["x"], torch.randn_like(inputs["x"]))
    y = laplex.linear(**inputs, backend="triton")
    unphased = oracle(x.abs(), inputs["a"], inputs["b"], inputs["tau"])
    assert error(y, oracle(*inputs.values()), unphased) <= TOLERANCE[torch.float32]


@WAY
@pytest.mark.parametrize("name", ["x", "a", "b", "tau", "phi", "psi"])
def test_a_gradient_alone(way, name):
    """What is not needed is left out, and changes nothing."""
    inputs = drawn(way, torch.float64)
    weight = torch.randn(ROWS, SHAPES[way][0], dtype=torch.float64)
    fixed = {other: value for other, value in inputs.items() if other != name}
    got = named_gradients(on("triton", **fixed), {name: inputs[name]}, weight)
    want = named_gradients(lambda **one: reference.linear(**one, **fixed), {name: inputs[name]}, weight)
    assert_gradients(got, want, inputs, weight)


@WAY
def test_one_tensor_for_two_arguments(way):
    """Each of the arguments has a gradient of its own."""
    inputs = drawn(way, torch.float64, "apart")
    for create_graph in (False, True):
        a, b = (inputs[name].clone().requires_grad_() for name in ("a", "b"))
        totals = [f(inputs["x"], a, b, 0.8, phi=a, psi=b) for f in (on_triton, reference.linear)]
        got, want = (torch.autograd.grad(y.sin().sum(), (a, b), create_graph=create_graph) for y in totals)
        assert all(error(one, other) <= 1e-12 for one, other in zip(got, want, strict=True))


def on_triton(*arguments, **named_ones):
    return laplex.linear(*arguments, **named_ones, backend="triton")


@WAY
def test_gradients_that_are_differentiated_again(way):
    """create_graph gives the same first gradients, and second ones."""
    inputs = drawn(way, torch.float64)
    weight = torch.randn(ROWS, SHAPES[way][0], dtype=torch.float64)

    def penalty(function):
        leaves = {name: value.clone().requires_grad_() for name, value in inputs.items()}
        firsts = torch.autograd.grad(
            (function(**leaves) * weight).sin().sum(), list(leaves.values()), create_graph=True
        )
        total = sum(first.sin().sum() for first in firsts)
        return firsts, torch.autograd.grad(total, list(leaves.values()))

    got, want = penalty(on("triton")), penalty(reference.linear)
    for ours, exact in zip(got, want, strict=True):
        for name, one, other in zip(inputs, ours, exact, strict=True):
            assert error(one, other) <= 1e-11, name


@WAY
def test_gradcheck(way, monkeypatch):
    monkeypatch.setattr(tuning, "SHORT_AXIS_RATIO", 3)
    n, k = {"spread": (7, 2), "collect": (2, 7), "tiles": (4, 3)}[way]
    inputs = inputs_for(torch.randn(n).double(), torch.randn(k).double(), 0.8, 1)
    leaves = [value.requires_grad_() for value in inputs.values()]

    def function(x, a, b, tau, phi, psi):
        return laplex.linear(x, a, b, tau, phi=phi, psi=psi, backend="triton")

    assert gradcheck(function, leaves)
    assert gradgradcheck(function, leaves, fast_mode=True)  # every second derivative is compared above


@WAY
def test_batched_cotangents(way):
    """torch.autograd.grad with is_grads_batched: a vmap of the backward."""
    inputs = drawn(way, torch.float64)
    leaves = [value.requires_grad_() for value in inputs.values()]
    g = torch.randn(2, ROWS, SHAPES[way][0], dtype=torch.float64)
    y = laplex.linear(**inputs, backend="triton")
    together = torch.autograd.grad(y, leaves, g, is_grads_batched=True, retain_graph=True)
    for number in range(2):
        alone = torch.autograd.grad(y, leaves, g[number], retain_graph=True)
        for one, other in zip(together, alone, strict=True):
            assert error(one[number], other) <= 1e-12


@WAY
@pytest.mark.parametrize("side", ["a", "b"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf")], ids=str)
def test_an_anchor_that_is_not_finite_makes_everything_nan(way, side, bad):
    inputs = drawn(way, torch.float32)
    inputs[side][2] = bad
    assert_faulty(way, inputs)


@WAY
@pytest.mark.parametrize("tau", [0.0, -1.0, float("nan"), float("inf")], ids=str)
def test_a_bad_tau_makes_everything_nan(way, tau, monkeypatch):
    monkeypatch.setattr(laplex._checks, "length_scale", lambda *arguments: None)  # as on CUDA, where none waits
    inputs = drawn(way, torch.float32)
    inputs["tau"] = torch.tensor(tau)
    assert_faulty(way, inputs)


def assert_faulty(way, inputs):
    assert all_nan(laplex.linear(**inputs, backend="triton"))
    got = named_gradients(on("triton"), inputs, torch.ones(ROWS, SHAPES[way][0]))
    assert all_nan(*got.values())


@WAY
@pytest.mark.parametrize("in_order", [False, True])
def test_a_kept_plan(way, in_order):
    inputs = drawn(way, torch.float64)
    if in_order:
        inputs["a"], inputs["b"] = inputs["a"].sort().values, inputs["b"].sort().values
    plan = laplex.Plan(inputs["a"], inputs["b"], backend="triton")
    weight = torch.randn(ROWS, SHAPES[way][0], dtype=torch.float64)
    want = named_gradients(reference.linear, inputs, weight)
    assert_gradients(named_gradients(on("triton", plan=plan), inputs, weight), want, inputs, weight)


@WAY
def test_a_plan_of_other_anchors_is_found_or_not_needed(way):
    """NaN throughout, or, where no order is used, the truth."""
    inputs = drawn(way, torch.float64, "apart")
    plan = laplex.Plan(inputs["a"].flip(0), inputs["b"].flip(0), backend="triton")
    weight = torch.randn(ROWS, SHAPES[way][0], dtype=torch.float64)
    want = named_gradients(reference.linear, inputs, weight)
    got = named_gradients(on("triton", plan=plan), inputs, weight)
    for name, exact in want.items():
        assert all_nan(got[name]) or error(got[name], exact) <= 1e-12, name
    assert all_nan(got["x"]) or way == "collect"


@WAY
def test_no_gradients_without_a_function(way, monkeypatch):
    """Nothing is saved where nothing is differentiated."""
    monkeypatch.setattr(autograd._Phased, "apply", None)
    inputs = drawn(way, torch.float32)
    unphased = oracle(inputs["x"].abs(), inputs["a"], inputs["b"], inputs["tau"])
    with torch.no_grad():
        y = laplex.linear(**inputs, backend="triton")
    assert error(y, oracle(*inputs.values()), unphased) <= TOLERANCE[torch.float32]


@WAY
def test_strided_phases_and_cotangents(way):
    n, k = SHAPES[way]
    a, b, x = torch.randn(n), torch.randn(k), rows_for(torch.randn(n), torch.randn(k), ROWS)
    phi, psi = (torch.randn(2 * size)[::2] for size in (n, k))
    leaves = [value.requires_grad_() for value in (x, a, b, phi, psi)]
    totals = [f(x, a, b, 0.8, phi=phi, psi=psi).sum() for f in (on_triton, reference.linear)]
    got, want = (torch.autograd.grad(total, leaves) for total in totals)
    assert all(error(one, other) <= 2e-6 for one, other in zip(got, want, strict=True))
