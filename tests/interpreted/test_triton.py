"""The Triton backend under Triton's interpreter, in tiles so small that few points cross many of them."""

import pytest
import torch

import laplex
from cases import BY_NAME, CASES, every, named
from helpers import (
    TOLERANCE,
    assert_pullback,
    assert_sums,
    direct,
    distance_kernel,
    emptied,
    error,
    flat,
    inputs_for,
    make_order,
    named_gradients,
    odd_kernel,
    on,
    oracle,
    phases_for,
    scan,
    wide,
)
from laplex import Plan, reference
from laplex._triton import tuning
from laplex._triton.scan import schedule
from test_grad import cancellation_scales, second_order

pytestmark = pytest.mark.usefixtures("tiles")
FEW = [case for case in CASES if sum(side.shape[-1] for side in case()[:2]) <= 100]
TIED = ("ties_everywhere", "all_tied", "tiny_tau_ties", "signed_zeros")
linear = on("triton")


def drawn(h, m, size, dtype):
    return torch.randn(h, m, size, dtype=dtype)


def assert_sums_both_ways(a, b, tau, order, dtype):
    """Forward with the values kept, transposed with values to be checked."""
    h, n, k = *a.shape, b.shape[1]
    assert_sums(drawn(h, 1, k, dtype), a, b, tau, order, "triton")
    assert_sums(drawn(h, 1, n, dtype), b, a, tau, emptied(order).mT, "triton")


# --- the sums -------------------------------------------------------------------------------------------------------


@every(FEW)
def test_even_and_odd_sums(case):
    a, b, tau = flat(*case())
    assert_sums(drawn(len(a), 1, b.shape[1], torch.float64), a, b, tau, make_order(a, b, "joined", "triton"), "triton")


@every(FEW)
def test_transposed_sums_of_anchors_to_be_checked(case):
    a, b, tau = flat(*case(torch.float32))
    order = emptied(make_order(a, b, "joined", "triton")).mT
    assert_sums(drawn(len(a), 1, a.shape[1], torch.float32), b, a, tau, order, "triton")


@named("generic", *TIED)
def test_even_and_odd_sums_both_ways(case, dtype):
    a, b, tau = flat(*case(dtype))
    assert_sums_both_ways(a, b, tau, make_order(a, b, "joined", "triton"), dtype)


@named("generic", "sorted", "ties_everywhere", "batched_ties")
def test_what_is_checked_gives_the_bits_of_what_is_trusted(case):
    a, b, tau = flat(*case(torch.float32))
    order, x = make_order(a, b, "joined", "triton"), drawn(len(a), 1, b.shape[1], torch.float32)
    trusted, none = scan(x, a, b, tau, order, False, "triton")
    assert none.shape == (*trusted.shape[:2], 0)
    assert torch.equal(scan(x, a, b, tau, emptied(order), False, "triton")[0], trusted)


@named("generic", "huge_tau", "offset", "one_row", "rows_left_of_columns", "batched_ties", *TIED)
def test_the_fused_pullback(case, tiles):
    tiles(32, 2)
    a, b, tau = flat(*case(torch.float32))
    order = make_order(a, b, "joined", "triton")
    g, x = (drawn(len(a), 2, side.shape[1], torch.float32) for side in (a, b))
    assert_pullback(g, x, a, b, tau, emptied(order), "triton")


@named("generic", "ties_everywhere")
def test_the_fused_pullback_in_float64(case):
    a, b, tau = flat(*case())
    order = make_order(a, b, "joined", "triton")
    g, x = (drawn(len(a), 2, side.shape[1], torch.float64) for side in (a, b))
    x_bar, _, s_bar, _ = assert_pullback(g, x, a, b, tau, order, "triton")
    alone = torch.ops.laplex.pullback(g, x, g[..., :0], a, b, tau, *order.tensors, order.layout, "triton", False)
    assert alone[1].shape == (len(a), 0)
    assert torch.equal(alone[0], x_bar)
    assert torch.equal(alone[2], s_bar)


@every(FEW)
def test_small_products_without_an_order(case, dtype):
    a, b, tau = flat(*case(dtype))
    x = drawn(len(a), 3, b.shape[1], dtype)
    even, odd = direct(x, a, b, tau, odd=True)
    assert error(even, oracle(x, a, b, tau)) <= TOLERANCE[dtype]
    assert error(odd, wide(x) @ odd_kernel(a, b, tau).mT) <= TOLERANCE[dtype]
    weighted, _ = direct(x, a, b, tau, odd=False, degree=1)
    assert error(weighted, wide(x) @ distance_kernel(a, b, tau).mT) <= TOLERANCE[dtype]
    alone, none = direct(x, a, b, tau, odd=False)
    assert torch.equal(alone, even)
    assert none.shape == (*even.shape[:2], 0)


@pytest.mark.parametrize("tau", [0.1, 0.005], ids=str)
def test_tiles_of_any_width(tau, dtype):
    """A tile spans about 0.5 / tau powers of two: one sum for all, or windows; side by side."""
    a, b = torch.rand(1, 48, dtype=dtype).square(), torch.rand(1, 48, dtype=dtype).square()
    assert_sums_both_ways(*flat(a, b, tau), make_order(a, b, "joined", "triton"), dtype)


@pytest.mark.parametrize(("tau", "dtype"), [(1e3, torch.float32), (1e-2, torch.float32), (1e-2, torch.float64)])
@pytest.mark.parametrize("run", [7, 60], ids=lambda run: f"runs_of_{2 * run}")
def test_ties_across_tiles(run, tau, dtype):
    """Runs that a tile's border cuts, that cover whole tiles, that fill all of them."""
    places = torch.randn(60, dtype=dtype)
    a, b = places[torch.randperm(60) // run], places[torch.randperm(50) // run]
    a, b, tau = flat(a, b, tau)
    assert_sums_both_ways(a, b, tau, make_order(a, b, "joined", "triton"), dtype)


def test_ties_alone_leave_no_odd_sum(dtype):
    a, b, tau = flat(torch.full((30,), 1.5, dtype=dtype), torch.full((50,), 1.5, dtype=dtype), 1e-3)
    _, odd = scan(drawn(1, 1, 50, dtype), a, b, tau, make_order(a, b, "joined", "triton"), True, "triton")
    assert float(odd.abs().max()) <= {torch.float32: 1e-6, torch.float64: 1e-14}[dtype]


@pytest.mark.parametrize(("tau", "dtype"), [(100.0, torch.float32), (0.2, torch.float32), (0.5, torch.float64)])
def test_tiles_carried_in_groups(tau, dtype, tiles):
    tiles(32, carried=2)
    a, b = torch.randn(1, 90, dtype=dtype), torch.randn(1, 80, dtype=dtype)
    a, b, tau = flat(a, b, tau)
    assert_sums_both_ways(a, b, tau, make_order(a, b, "joined", "triton"), dtype)


@pytest.mark.parametrize("run", [30, 200])
def test_ties_across_groups(run, tiles):
    tiles(32, carried=2)
    a, b = torch.arange(110).div(run, rounding_mode="floor"), torch.arange(100).div(run, rounding_mode="floor")
    a, b, tau = flat(a.double(), b.double(), 0.7)
    order = make_order(a, b, "joined", "triton")
    assert_sums_both_ways(a, b, tau, order, torch.float64)
    assert_pullback(drawn(1, 1, 110, a.dtype), drawn(1, 1, 100, a.dtype), a, b, tau, order, "triton")


@named("chunk_33", "long_tie_runs")
def test_the_tiles_that_a_gpu_gets(case, monkeypatch):
    monkeypatch.undo()
    schedule.schedule.cache_clear()
    a, b, tau = flat(*case(torch.float32))
    order = make_order(a, b, "joined", "triton")
    assert_sums(drawn(1, 1, b.shape[1], torch.float32), a, b, tau, order, "triton")


def test_the_same_bits_every_time(tiles):
    tiles(32, 2)
    inputs = inputs_for(torch.randn(25), torch.randn(24), 0.3, m=2, phased=False)
    first, again = (named_gradients(linear, inputs, 1.0) for _ in range(2))
    assert torch.equal(linear(**inputs), linear(**inputs))
    assert all(torch.equal(first[name], again[name]) for name in inputs)


# --- orders ---------------------------------------------------------------------------------------------------------


def in_order(case, dtype):
    a, b, tau = flat(*case(dtype))
    return a.sort().values, b.sort().values, tau


@every(FEW)
def test_anchors_in_order_have_the_same_positions(case):
    a, b, _ = in_order(case, torch.float32)
    joined, words = (make_order(a, b, layout, "triton").target for layout in ("joined", "in_order"))
    assert torch.equal(words.values, joined.values)
    bits = (words.indices[:, 0, : words.indices.shape[-1] // 2, None] >> torch.arange(32)) & 1
    points = a.shape[1] + b.shape[1]
    assert torch.equal(bits.flatten(1)[:, :points] != 0, joined.indices[:, 0, :points] >= 0)


@named("generic", "one_point", "ties_everywhere", "all_tied", "tiny_tau_ties", "batched_ties")
def test_sums_of_anchors_in_order(case):
    a, b, tau = in_order(case, torch.float32)
    assert_sums_both_ways(a, b, tau, make_order(a, b, "in_order", "triton"), torch.float32)


@named("ties_everywhere", "batched_ties")
def test_the_fused_pullback_of_anchors_in_order(case, tiles):
    tiles(32, 2)
    a, b, tau = in_order(case, torch.float32)
    g, x = (drawn(len(a), 2, side.shape[1], torch.float32) for side in (a, b))
    assert_pullback(g, x, a, b, tau, emptied(make_order(a, b, "in_order", "triton")), "triton")


@named("generic", "reversed", "batched", "batched_ties", "batched_short_rows", "clustered", "short_rows_ties", *TIED)
def test_runs_merge_into_the_order_of_one_sort(case, monkeypatch):
    a, b, _ = flat(*case())
    points = a.shape[1] + b.shape[1]
    sorted_once = make_order(a, b, "joined", "triton").target
    monkeypatch.setattr(tuning, "COUNTED_PAIRS", 0)
    monkeypatch.setattr(tuning, "COUNTED_IN_RUNS", 0)
    monkeypatch.setattr(tuning, "SORTED_AT_ONCE", 32)
    merged = make_order(a, b, "joined", "triton").target
    assert torch.equal(merged.indices[..., :points], sorted_once.indices[..., :points])
    assert torch.equal(merged.values, sorted_once.values)


@pytest.mark.parametrize(("n", "k", "lead"), [(0, 4, ()), (4, 0, ()), (0, 0, ()), (3, 4, (0,)), (0, 4, (0,))])
@pytest.mark.parametrize("at_once", [2, 100])
def test_empty(n, k, lead, at_once, monkeypatch):
    monkeypatch.setattr(tuning, "COUNTED_PAIRS", 0)
    monkeypatch.setattr(tuning, "COUNTED_IN_RUNS", 0)
    monkeypatch.setattr(tuning, "SORTED_AT_ONCE", at_once)
    a, b, x = torch.randn(n), torch.randn(k), torch.randn(*lead, k)
    assert torch.equal(linear(x=x, a=a, b=b), torch.zeros(*lead, n))
    assert torch.equal(linear(x=x, a=a, b=b, plan=Plan(a, b, backend="triton")), torch.zeros(*lead, n))


# --- laplex.linear --------------------------------------------------------------------------------------------------


DTYPES = [  # of x, of the anchors, and whether there are phases
    (torch.float64, torch.float32, False),
    (torch.float32, torch.float64, False),
    (torch.float32, torch.float32, True),
    (torch.float64, torch.float64, True),
    (torch.complex64, torch.float32, True),
    (torch.complex128, torch.float64, False),
]


@pytest.mark.parametrize(("x_dtype", "dtype", "phased"), DTYPES)
def test_x_of_any_dtype(x_dtype, dtype, phased, tiles):
    tiles(32, 4)
    a, b, x = torch.randn(21, dtype=dtype), torch.randn(17, dtype=dtype), torch.randn(1, 17, dtype=x_dtype)
    phi, psi = phases_for(a, b) if phased else (None, None)
    y = linear(x=x, a=a, b=b, tau=0.5, phi=phi, psi=psi)
    assert y.dtype == x_dtype
    assert error(y, oracle(x, a, b, 0.5, phi, psi)) <= TOLERANCE[torch.empty(0, dtype=x_dtype).real.dtype]


def test_half_precision_x(dtype):
    """float16: the interpreter converts no bfloat16 to float64, a GPU does (test_gpu)."""
    a, b, x = torch.randn(31, dtype=dtype), torch.randn(27, dtype=dtype), torch.randn(2, 27).half()
    y = linear(x=x, a=a, b=b, tau=0.5)
    assert y.dtype == torch.float16
    assert error(y, oracle(x, a, b, 0.5)) <= 5e-4


SHAPES = [  # H of a, of b, of tau, leading dimensions of x
    ((), (), (), (2, 3)),
    ((3,), (3,), (), (3, 2)),
    ((2,), (), (2,), (2,)),
    ((), (3,), (3,), (2,)),
    ((), (), (1, 1), (2,)),
    ((2,), (1,), (1,), (2, 2, 2)),
    ((2, 1), (1, 2), (2, 1), (2,)),
]


@pytest.mark.parametrize(("of_a", "of_b", "of_tau", "of_x"), SHAPES)
def test_broadcasting(of_a, of_b, of_tau, of_x, tiles):
    tiles(32, 4)
    a, b, x, tau = torch.randn(*of_a, 5), torch.randn(*of_b, 4), torch.randn(*of_x, 4), torch.rand(of_tau) + 0.5
    assert error(linear(x=x, a=a, b=b, tau=tau), oracle(x, a, b, tau)) <= TOLERANCE[torch.float32]


STRIDES = {  # of x
    "columns": lambda: torch.randn(12, 3).T,
    "batches_of_columns": lambda: torch.randn(2, 12, 3).mT,
    "batches_between": lambda: torch.randn(3, 2, 12).transpose(0, 1),
    "strided": lambda: torch.randn(6, 24)[::2, ::2],
    "negative_bit": lambda: torch._neg_view(torch.randn(3, 12)),
    "offset_storage": lambda: torch.randn(3 * 12 + 1)[1:].view(3, 12),
}


@pytest.mark.parametrize("name", STRIDES)
def test_any_strides_of_x(name):
    a, b, x = torch.randn(13), torch.randn(12), STRIDES[name]()
    assert error(linear(x=x, a=a, b=b), oracle(x, a, b)) <= TOLERANCE[torch.float32]


@pytest.mark.parametrize("kernels", [(), (2,)])
def test_columns_stay_columns(kernels, tiles):
    """K @ x for x (k, m) neither reads nor writes a transposed copy; nor does its gradient."""
    tiles(32, 2)
    a, b = torch.randn(*kernels, 14), torch.randn(*kernels, 12)
    x = torch.randn(*kernels, 12, 3).mT.requires_grad_()
    y = linear(x=x, a=a, b=b)
    assert y.mT.is_contiguous()
    assert error(y, oracle(x, a, b)) <= TOLERANCE[torch.float32]
    weight = torch.randn(*kernels, 14, 3).mT
    (x_bar,) = torch.autograd.grad(y, x, weight)
    assert x_bar.mT.is_contiguous()
    assert error(x_bar, oracle(weight, b, a)) <= TOLERANCE[torch.float32]


def test_any_strides_of_anchors_and_tau(tiles):
    tiles(64, 2)
    a, b = torch.randn(2, 31, 2).mT[:, 0], torch.randn(27).expand(2, 27)
    x, tau = torch.randn(2, 2, 27), torch.rand(4)[::2] + 0.5
    for scale in (tau, tau.double(), torch.tensor(0.7)):
        assert error(linear(x=x, a=a, b=b, tau=scale), oracle(x, a, b, scale)) <= TOLERANCE[torch.float32]


@pytest.mark.parametrize("tau", [2.3e-308, 1e-50, 1e300], ids=str)
@pytest.mark.parametrize("spread", [0.0, 1.0], ids=["all_tied", "apart"])
def test_extreme_tau(tau, spread, dtype):
    a, b, x = torch.tensor([0.0, 1, 2, 3, 5]) * spread, torch.tensor([3.0, 0, 0, 4]) * spread, torch.randn(1, 4)
    a, b, x = a.to(dtype), b.to(dtype), x.to(dtype)
    dense = (wide(a)[:, None] == wide(b)).double() if tau < 1 else torch.ones(5, 4).double()
    assert error(linear(x=x, a=a, b=b, tau=tau), wide(x) @ dense.mT) <= TOLERANCE[dtype]


@pytest.mark.parametrize("times", [1e-2, 10.0, 1e3, 1e200], ids=str)
def test_the_largest_anchors_with_a_tau_as_large(times):
    a, b, _ = BY_NAME["largest_floats"](torch.float32)
    x, tau = torch.randn(1, 3), times * torch.finfo(torch.float32).max
    assert error(linear(x=x, a=a, b=b, tau=tau), oracle(x, a, b, tau)) <= TOLERANCE[torch.float32]


def test_a_nan_stays_in_its_row(tiles):
    tiles(32, 2)
    a, b, x = torch.randn(30), torch.randn(40), torch.randn(3, 40)
    x[1, 17] = torch.nan
    for tau in (10.0, 0.01):
        y = linear(x=x, a=a, b=b, tau=tau)
        assert bool(y[1].isnan().all())
        assert error(y[::2], oracle(x[::2], a, b, tau)) <= TOLERANCE[torch.float32]


# --- gradients ------------------------------------------------------------------------------------------------------


@named("ties_across_sides", "batched_ties")
def test_every_gradient_is_the_dense_one(case, tiles):
    tiles(32, 4)
    inputs = inputs_for(*case(), m=2)
    weight = torch.randn_like(reference.linear(**inputs))
    want = named_gradients(reference.linear, inputs, weight)
    got = named_gradients(linear, inputs, weight)
    scales = cancellation_scales(inputs, weight)
    for name in inputs:
        assert float((got[name] - want[name]).norm()) <= 1e-13 * scales[name], name


def test_gradients_with_a_kept_plan():
    inputs = inputs_for(torch.randn(40), torch.randn(39), 0.5, m=1, phased=False)
    exact = {name: wide(value) for name, value in inputs.items()}
    leaves = {name: value.clone().requires_grad_() for name, value in inputs.items()}
    plan = Plan(leaves["a"], leaves["b"], backend="triton")
    got = torch.autograd.grad(laplex.linear(**leaves, plan=plan).sum(), list(leaves.values()))
    want = named_gradients(reference.linear, exact, 1.0)
    assert all(error(bar, want[name]) <= 5e-6 for name, bar in zip(leaves, got))


def test_second_order_is_the_dense_one(tiles):
    tiles(32, 4)
    a, b, _ = BY_NAME["signed_zeros"]()
    inputs = inputs_for(a, b, 0.8, m=2)
    weight = torch.randn_like(reference.linear(**inputs))
    direction = [torch.randn_like(value) for value in inputs.values()]
    want = second_order(reference.linear, inputs, weight, direction)
    got = second_order(linear, inputs, weight, direction)
    assert all(error(got[name], want[name]) <= 1e-11 for name in inputs)


def test_forward_mode_of_half_precision_x(tiles):
    tiles(32, 2)
    a, b, x = torch.randn(9), torch.randn(7), torch.randn(2, 7).half()
    along = torch.randn(9)
    y, tangent = torch.func.jvp(lambda a: linear(x=x, a=a, b=b, tau=0.7), (a,), (along,))
    _, want = torch.func.jvp(lambda a: reference.linear(wide(x), a, wide(b), 0.7), (wide(a),), (wide(along),))
    assert tangent.dtype == y.dtype == torch.float16
    assert error(tangent, want) <= 1e-3


@pytest.mark.parametrize("anchors", ["mapped", "fixed"])
def test_vmap(anchors):
    a, b, x, tau = torch.randn(3, 9), torch.randn(3, 7), torch.randn(3, 2, 7), torch.rand(3) + 1
    a, b, dims = (a[0], b[0], (0, None, None, 0)) if anchors == "fixed" else (a, b, (0, 0, 0, 0))
    got = torch.func.vmap(lambda x, a, b, tau: linear(x=x, a=a, b=b, tau=tau), dims)(x, a, b, tau)
    assert error(got, oracle(x, a.expand(3, 9), b.expand(3, 7), tau)) <= TOLERANCE[torch.float32]
