"""On a CUDA device: values and gradients against the dense definition, and what only a GPU shows.

The kernels' own logic has its tests under the interpreter (test_triton); here they are compiled.
"""

from contextlib import contextmanager
from functools import partial

import pytest
import torch

import laplex
from cases import every, named
from helpers import (
    TOLERANCE,
    assert_pullback,
    assert_sums,
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
    rows_for,
    swapped,
    wide,
)
from laplex import LaplaceOperator, Plan, StalePlanError, backends, reference
from test_grad import cancellation_scales, checked, positional

pytestmark = pytest.mark.gpu
DEVICE = "cuda"
BFLOAT16 = 4e-3  # the rounding of a result, and a little more
linear = on("triton")


@pytest.fixture(params=["triton", "dense"])
def kernels(request):
    """The scan, and the direct kernel for small matrices."""
    return request.param


def to_gpu(*values):
    return [value.to(DEVICE) if isinstance(value, torch.Tensor) else value for value in values]


def randn(*shape, dtype=torch.float32):
    return torch.randn(*shape, dtype=dtype, device=DEVICE)


def all_nan(*tensors):
    return all(bool(tensor.isnan().all()) and tensor.numel() > 0 for tensor in tensors)


# --- values ---------------------------------------------------------------------------------------------------------


@every()
def test_values(case, kernels, dtype):
    a, b, tau = to_gpu(*case(dtype))
    x = rows_for(a.cpu(), b.cpu(), 3).to(DEVICE)
    y = laplex.linear(x, a, b, tau, backend=kernels)
    assert y.dtype == dtype
    assert y.is_cuda
    assert error(y, oracle(x, a, b, tau), oracle(x.abs(), a, b, tau)) <= TOLERANCE[dtype]


SUMS = named("generic", "ties_everywhere", "tiny_tau_ties", "batched_ties", "long_tie_runs", "short_cols_two_chunks")


@SUMS
@pytest.mark.parametrize("layout", ["joined", "in_order"])
def test_sums_and_pullback_in_many_tiles_and_groups(case, layout, dtype, tiles):
    tiles(128, carried=64)
    a, b, tau = to_gpu(*flat(*case(dtype)))
    if layout == "in_order":
        a, b = a.sort().values, b.sort().values
    order = make_order(a, b, layout, "triton")
    g, x = (randn(len(a), 2, side.shape[1], dtype=dtype) for side in (a, b))
    assert_sums(x, a, b, tau, order, "triton")
    assert_sums(g, b, a, tau, swapped(emptied(order)), "triton")
    assert_pullback(g, x, a, b, tau, order, "triton")


@pytest.mark.parametrize("x_dtype", [torch.float32, torch.float64, torch.complex64, torch.complex128], ids=str)
def test_x_of_another_dtype_with_phases(x_dtype, kernels, dtype):
    a, b, x = randn(31, dtype=dtype), randn(27, dtype=dtype), randn(4, 27, dtype=x_dtype)
    phi, psi = phases_for(a, b)
    y = laplex.linear(x, a, b, 0.5, phi=phi, psi=psi, backend=kernels)
    assert y.dtype == x_dtype
    assert error(y, oracle(x, a, b, 0.5, phi, psi)) <= TOLERANCE[torch.empty(0, dtype=x_dtype).real.dtype]


@pytest.mark.parametrize(("x_dtype", "bound"), [(torch.float16, 5e-4), (torch.bfloat16, BFLOAT16)], ids=str)
def test_half_precision(x_dtype, bound, kernels):
    a, b, x = randn(1301), randn(1203), randn(4, 1203).to(x_dtype)
    leaves = [value.requires_grad_() for value in (x, a, b)]
    y = laplex.linear(x, a, b, 0.5, backend=kernels)
    assert y.dtype == x_dtype
    assert error(y, oracle(x, a, b, 0.5)) <= bound
    weight = torch.randn_like(y)
    got = torch.autograd.grad(y, leaves, weight)
    assert [bar.dtype for bar in got] == [x_dtype, torch.float32, torch.float32]
    exact = [wide(value).requires_grad_() for value in leaves]
    want = torch.autograd.grad(reference.linear(*exact, 0.5), exact, wide(weight))
    assert all(error(bar, other) <= 2 * bound for bar, other in zip(got, want))


@pytest.mark.parametrize("lead", [(), (2,)], ids=["one_kernel", "two_kernels"])
def test_columns_stay_columns(lead, kernels):
    a, b, x = randn(*lead, 1500), randn(*lead, 1400), randn(*lead, 1400, 5).mT.requires_grad_()
    y = laplex.linear(x, a, b, backend=kernels)
    assert y.mT.is_contiguous()
    assert error(y, oracle(x, a, b), oracle(x.abs(), a, b)) <= TOLERANCE[torch.float32]
    weight = randn(*lead, 1500, 5).mT
    (x_bar,) = torch.autograd.grad(y, x, weight)
    assert error(x_bar, oracle(weight, b, a), oracle(weight.abs(), b, a)) <= TOLERANCE[torch.float32]


@pytest.mark.parametrize("shape", [(2, 3, 900), (3, 2, 2, 900)])
def test_any_strides_of_x(shape, kernels):
    a, b = randn(800), randn(900)
    whole = randn(*shape)
    for x in (whole, whole.flip(0), whole.transpose(0, 1), whole.mT.contiguous().mT, whole[..., :1].expand(shape)):
        y = laplex.linear(x, a, b, backend=kernels)
        assert error(y, oracle(x, a, b), oracle(x.abs(), a, b)) <= TOLERANCE[torch.float32]


def shifted(value):
    """The same values, four or eight bytes behind an aligned address."""
    return torch.cat([value.new_zeros(1), value.reshape(-1)])[1:].view(value.shape)


def test_inputs_that_are_not_aligned(kernels, dtype):
    """After a call with aligned ones of the same sizes, whose compiled kernels are kept."""
    x, a, b, tau = randn(4, 1024, dtype=dtype), randn(1024, dtype=dtype), randn(1024, dtype=dtype), randn(1).exp()
    for sides in ((a, b), (a.sort().values, b.sort().values)):
        for make in (lambda value: value, shifted):
            inputs = [make(value).requires_grad_() for value in (x, *sides)]
            y = laplex.linear(*inputs, make(tau.double())[0], plan=Plan(*inputs[1:]), backend=kernels)
            assert error(y, oracle(*inputs, tau[0]), oracle(x.abs(), *sides, tau[0])) <= TOLERANCE[dtype]
            ones = make(torch.ones_like(y))
            (x_bar,) = torch.autograd.grad(y, inputs[:1], ones)
            assert error(x_bar, oracle(ones, *sides[::-1], tau[0])) <= TOLERANCE[dtype]


@pytest.mark.parametrize(("n", "k"), [(5, 200_003), (200_003, 5), (1, 100_000), (100_000, 1)])
def test_short_axes(n, k, kernels):
    a, b, x = randn(n), randn(k), randn(2, k)
    y = laplex.linear(x, a, b, 0.3, backend=kernels)
    assert error(y, oracle(x, a, b, 0.3), oracle(x.abs(), a, b, 0.3)) <= TOLERANCE[torch.float32]


SIZES = [(2**20, 2**20), (2**20 + 1, 3 * 2**19 - 1)]  # the second in more than one group of tiles


@pytest.mark.parametrize("tau", [0.05, 1e-5], ids=["narrow_tiles", "wide_tiles"])
@pytest.mark.parametrize(("n", "k"), SIZES)
@pytest.mark.parametrize("ordered", [False, True])
def test_single_rows_and_gradients_of_a_large_product(n, k, tau, ordered):
    a, b, x = randn(n), randn(k), randn(k)
    if ordered:
        a, b = a.sort().values, b.sort().values
    leaves = [value.requires_grad_() for value in (x, a, b)]
    y = laplex.linear(*leaves, tau, plan=Plan(a, b))
    x_bar, a_bar, b_bar = torch.autograd.grad(y, leaves, torch.ones_like(y))
    rows = torch.cat([torch.randint(n, (40,)), torch.tensor([0, n - 1, int(a.argmin()), int(a.argmax())])])
    at, mass = a[rows], oracle(x.abs(), a[rows], b, tau)
    assert error(y[rows], oracle(x, at, b, tau), mass) <= 2e-7
    assert error(a_bar[rows], wide(x) @ odd_kernel(at, b, tau).mT / tau, mass / tau) <= 2e-7
    cols = torch.cat([torch.randint(k, (40,)), torch.tensor([0, k - 1, int(b.argmin()), int(b.argmax())])])
    at, ones = b[cols], torch.ones(n, device=DEVICE)
    mass = oracle(ones, at, a, tau)
    assert error(x_bar[cols], mass) <= 2e-7
    pulled = (wide(ones) @ odd_kernel(at, a, tau).mT) * wide(x[cols]) / tau
    assert error(b_bar[cols], pulled, mass * wide(x[cols]).abs() / tau) <= 2e-7


@pytest.mark.parametrize(("n", "k"), [(2**20, 1000), (1000, 2**20)], ids=["of_y", "of_x"])
def test_more_than_2_31_elements(n, k):
    m = 2100
    if torch.cuda.mem_get_info()[0] < 6 * m * 2**20 * 2:
        pytest.skip("needs 27 GB of free GPU memory")
    a, b, x = randn(n), randn(k), randn(m, k, dtype=torch.bfloat16)
    y = linear(x=x, a=a, b=b, tau=0.1)
    assert max(x.numel(), y.numel()) > 2**31
    few = torch.randint(n, (50,), device=DEVICE)
    for row in (0, m // 2, m - 2, m - 1):
        want, mass = oracle(x[row], a[few], b, 0.1), oracle(x[row].abs(), a[few], b, 0.1)
        assert error(y[row, few], want, 0.1 * mass) <= BFLOAT16


# --- gradients ------------------------------------------------------------------------------------------------------


@named("generic", "ties_everywhere", "batched_ties", "short_rows_ties", "clustered", "long_tie_runs")
def test_every_gradient_is_the_dense_one(case, kernels):
    inputs = dict(zip(("x", "a", "b", "tau", "phi", "psi"), to_gpu(*inputs_for(*case()).values())))
    weight = torch.randn_like(reference.linear(**inputs))
    want = named_gradients(reference.linear, inputs, weight)
    got = named_gradients(on(kernels), inputs, weight)
    scales = cancellation_scales(inputs, weight)
    for name in inputs:
        assert float((got[name] - want[name]).norm()) <= 1e-13 * scales[name], name


def test_gradcheck(kernels):
    inputs = tuple(value.detach().to(DEVICE).requires_grad_() for value in checked(5, 4))
    function = partial(positional, kernels)
    assert torch.autograd.gradcheck(function, inputs, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(function, inputs, check_fwd_over_rev=True, fast_mode=True)


def test_vmap(kernels):
    x, a, b, tau = randn(3, 2, 70), randn(80), randn(70), torch.rand(3, device=DEVICE) + 0.5
    got = torch.func.vmap(lambda x, tau: laplex.linear(x, a, b, tau, backend=kernels))(x, tau)
    assert error(got, oracle(x, a.expand(3, 80), b.expand(3, 70), tau)) <= 1e-6


# --- what a user of a GPU relies on ---------------------------------------------------------------------------------


def step(leaves, weight, **fixed):
    """The product and the gradients of x, a, b and tau."""
    y = laplex.linear(*leaves, **fixed)
    return y, *torch.autograd.grad(y, leaves, weight)


def leaves_of(n, k, m=2):
    made = randn(m, k), randn(n), randn(k), torch.tensor(0.5, device=DEVICE)
    return [value.requires_grad_() for value in made]


@pytest.mark.parametrize(("n", "k"), [(300, 200), (5003, 4999), (2**19, 2**19)])
@pytest.mark.parametrize("planned", [False, True])
def test_the_same_bits_every_time(n, k, planned):
    leaves, weight = leaves_of(n, k), randn(2, n)
    plan = Plan(*leaves[1:3]) if planned else None
    first = step(leaves, weight, plan=plan)
    for _ in range(3):
        assert all(torch.equal(one, other) for one, other in zip(step(leaves, weight, plan=plan), first))


@contextmanager
def no_waiting():
    """Whatever would wait for the device raises."""
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("fixed", [{}, {"backend": "triton"}, {"backend": "dense"}, {"plan": True}], ids=str)
def test_nothing_waits_for_the_device(fixed):
    leaves, weight = leaves_of(1501, 1499), randn(2, 1501)
    if "plan" in fixed:
        fixed = {"plan": Plan(*leaves[1:3])}
    step(leaves, weight, **fixed)  # compiles
    with no_waiting():
        step(leaves, weight, **fixed)
        laplex.linear(leaves[0], leaves[1] + 0.0, *leaves[2:], **fixed)  # anchors that may have moved


def captured(function):
    """A CUDA graph of a function, and its result."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(2):
            function()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = function()
    return graph, result


@pytest.mark.parametrize("ordered", [False, True])
def test_a_captured_product_sees_what_changes(ordered):
    a, b, x = randn(3001), randn(2999), randn(3, 2999)
    if ordered:
        a, b = a.sort().values, b.sort().values
    plan, kept = Plan(a, b), a.clone()
    graph, y = captured(lambda: laplex.linear(x, a, b, 0.5, plan=plan, backend="triton"))

    def replayed_right():
        graph.replay()
        return error(y, oracle(x, a, b, 0.5), oracle(x.abs(), a, b, 0.5)) <= TOLERANCE[torch.float32]

    assert replayed_right()
    x.copy_(randn(3, 2999))
    assert replayed_right()
    for anchors in (a, b):
        anchors.mul_(2.0)  # another matrix, the same order
    assert replayed_right()
    a.copy_(kept.flip(0))  # another order
    graph.replay()
    assert all_nan(y)
    a.copy_(kept * 2)
    assert replayed_right()


@pytest.mark.parametrize("backend", ["triton", "dense"])
def test_a_captured_training_step(backend):
    leaves, weight = leaves_of(1201, 1301), randn(2, 1201)
    graph, results = captured(lambda: step(leaves, weight, backend=backend))
    with torch.no_grad():
        for leaf in leaves[:3]:
            leaf.copy_(torch.randn_like(leaf))  # without a plan the order is found anew
    graph.replay()
    want = step(leaves, weight, backend=backend)
    assert all(torch.equal(one, other) for one, other in zip(results, want))


@pytest.mark.usefixtures("unpoisoned")
@pytest.mark.parametrize("planned", [False, True])
@pytest.mark.parametrize("columns", [False, True])
def test_compile(planned, columns, kernels):
    torch.compiler.reset()
    leaves, weight = leaves_of(1201, 1301, 3), randn(3, 1201)
    if columns:
        leaves[0] = leaves[0].detach().mT.contiguous().mT.requires_grad_()
    plan = Plan(*leaves[1:3]) if planned else None
    function = torch.compile(
        lambda x, a, b, tau: 2 * laplex.linear(x, a, b, tau, plan=plan, backend=kernels), fullgraph=True
    )
    y = function(*leaves)
    got = y, *torch.autograd.grad(y, leaves, weight)
    want = step(leaves, 2 * weight, plan=plan, backend=kernels)
    assert error(got[0], 2 * want[0]) <= 1e-6
    assert all(error(one, other) <= 1e-5 for one, other in zip(got[1:], want[1:]))


@pytest.mark.parametrize("x_dtype", [torch.float32, torch.bfloat16], ids=str)
def test_autocast_keeps_the_precision(x_dtype, kernels):
    leaves = leaves_of(310, 270)
    leaves[0] = leaves[0].detach().to(x_dtype).requires_grad_()
    with torch.autocast("cuda", dtype=torch.bfloat16):
        y = laplex.linear(*leaves, backend=kernels)
    assert y.dtype == x_dtype
    bound = BFLOAT16 if x_dtype == torch.bfloat16 else 5e-6
    assert error(y, oracle(*leaves)) <= bound
    got = torch.autograd.grad(y.float().sum(), leaves)
    exact = [wide(value).requires_grad_() for value in leaves]
    want = torch.autograd.grad(reference.linear(*exact).sum(), exact)
    assert all(error(one, other) <= bound for one, other in zip(got, want))


# --- plans, faults and messages -------------------------------------------------------------------------------------


def test_the_sizes_choose():
    a, b, x = randn(3000), randn(3000), randn(3000)
    assert backends.available()["triton"] == "yes"
    assert backends.which(x, a, b) == "triton"
    assert backends.which(x[:100], a[:100], b[:100]) == "dense"
    assert Plan(a, b).backend == "triton"
    assert "device=cuda" in repr(Plan(a, b))


def test_an_operator():
    K, x = LaplaceOperator(randn(1500), randn(1400), 0.5), randn(1400, 3)
    dense = reference.kernel(wide(K.a), wide(K.b), 0.5)
    assert error(K @ x, dense @ wide(x), dense @ wide(x).abs()) <= TOLERANCE[torch.float32]
    assert error(K.mT @ (K @ x), dense.mT @ wide(K @ x), dense.mT @ wide(K @ x).abs()) <= TOLERANCE[torch.float32]


@pytest.mark.parametrize("tau", [1e3, 1e-3], ids=["narrow_tiles", "wide_tiles"])
@pytest.mark.parametrize("ordered", [False, True])
def test_a_stale_plan_gives_nan_throughout(ordered, tau):
    a, b = randn(5001), randn(4001)
    if ordered:
        a, b = a.sort().values, b.sort().values
    plan, leaves = Plan(a, b), [randn(2, 4001), a.clone(), b, torch.tensor(tau, device=DEVICE)]
    order = a.argsort()
    leaves[1][order[[700, 800]]] = a[order[[800, 700]]]
    leaves = [leaf.requires_grad_() for leaf in leaves]
    assert all_nan(*step(leaves, randn(2, 5001), plan=plan, backend="triton"))
    with pytest.raises(StalePlanError, match="does not describe the order"):
        plan.validate(*leaves[1:3])
    plan.validate(a, b)


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf], ids=str)
@pytest.mark.parametrize("side", ["a", "b"])
def test_anchors_that_are_not_finite(value, side, kernels):
    a, b, x = randn(1501), randn(1401), randn(2, 1401)
    plan = Plan(a, b)
    (a if side == "a" else b)[77] = value
    assert all_nan(laplex.linear(x, a, b, backend=kernels), laplex.linear(x, a, b, plan=plan, backend=kernels))
    for call in (Plan, plan.validate, plan.update):
        with pytest.raises(ValueError, match=f"`{side}` must be finite"):
            call(a, b)


@pytest.mark.parametrize("tau", [0.0, -1.0, torch.nan, torch.inf], ids=str)
def test_a_tau_that_is_no_length(tau, kernels):
    a, b, x = randn(1501), randn(1401), randn(2, 1401)
    assert all_nan(laplex.linear(x, a, b, torch.tensor(tau, device=DEVICE), backend=kernels))


def test_a_plan_stays_on_its_device():
    plan = Plan(randn(50), randn(60))
    with pytest.raises(ValueError, match=r"built for backend 'triton' on cuda.* of no use on cpu"):
        plan.to("cpu")
