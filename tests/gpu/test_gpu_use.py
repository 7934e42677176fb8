"""On a CUDA device: graphs, streams, compilation, bits, and faults that become NaN without a wait."""

import copy
import inspect
from contextlib import contextmanager, nullcontext

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import laplex
from helpers import TOLERANCE, all_nan, error, oracle, wide
from laplex import LaplaceOperator, Plan, StalePlanError, _backends, backends, reference

pytestmark = pytest.mark.gpu
DEVICE = "cuda"
KERNELS = pytest.mark.parametrize("backend", ["triton", "dense"])  # the scan, and that of small matrices


@pytest.fixture
def scanned(monkeypatch):
    """Products of every size are scanned: some of those below would be formed."""
    monkeypatch.setattr(_backends, "cheapest", lambda work, device: "scan")


def randn(*shape):
    return torch.randn(*shape, device=DEVICE)


def step(leaves, weight, **fixed):
    """The product and the gradients of x, a, b and tau."""
    y = laplex.linear(*leaves, **fixed)
    return y, *torch.autograd.grad(y, leaves, weight)


def leaves_of(n, k, m=2):
    leaves = randn(m, k), randn(n), randn(k), torch.tensor(0.5, device=DEVICE)
    return [value.requires_grad_() for value in leaves]


@pytest.mark.parametrize(("n", "k"), [(300, 200), (5003, 4999), (2**15 + 1, 2**14), (2**19 + 1, 2**19)])
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
    frozen = [leaf.detach() for leaf in leaves]
    known = {"plan": Plan(*frozen[1:3])} if "plan" in fixed else fixed
    for wait in (nullcontext, no_waiting):  # the first compiles
        with wait():
            step(leaves, weight, **fixed)  # anchors that are trained: checked
            laplex.linear(*frozen, **known)  # trusted
            laplex.linear(*frozen[:3], 0.5, **known)


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
    plan, known = Plan(a, b), a.clone()
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
    a.copy_(known.flip(0))  # another order
    graph.replay()
    assert all_nan(y)
    a.copy_(known * 2)
    assert replayed_right()


@KERNELS
def test_a_captured_training_step(backend):
    leaves, weight = leaves_of(1201, 1301), randn(2, 1201)
    graph, results = captured(lambda: step(leaves, weight, backend=backend))
    with torch.no_grad():
        for leaf in leaves[:3]:
            leaf.copy_(torch.randn_like(leaf))  # without a plan the order is found anew
    graph.replay()
    want = step(leaves, weight, backend=backend)
    assert all(torch.equal(one, other) for one, other in zip(results, want))


@KERNELS
def test_a_product_on_another_stream(backend):
    a, b, x = randn(5001), randn(5003), randn(3, 5003)
    want = laplex.linear(x, a, b, 0.3, backend=backend)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        y = laplex.linear(x, a, b, 0.3, backend=backend)
    torch.cuda.current_stream().wait_stream(side)
    assert torch.equal(y, want)


@KERNELS
@pytest.mark.usefixtures("unpoisoned")
@pytest.mark.parametrize("planned", [False, True])
@pytest.mark.parametrize("columns", [False, True])
def test_compile(planned, columns, backend):
    torch.compiler.reset()
    leaves, weight = leaves_of(1201, 1301, 3), randn(3, 1201)
    if columns:
        leaves[0] = leaves[0].detach().mT.contiguous().mT.requires_grad_()
    plan = Plan(*leaves[1:3]) if planned else None
    function = torch.compile(
        lambda x, a, b, tau: 2 * laplex.linear(x, a, b, tau, plan=plan, backend=backend), fullgraph=True
    )
    y = function(*leaves)
    got = y, *torch.autograd.grad(y, leaves, weight)
    want = step(leaves, 2 * weight, plan=plan, backend=backend)
    assert error(got[0], 2 * want[0]) <= 1e-6
    assert all(error(one, other) <= 1e-5 for one, other in zip(got[1:], want[1:]))


@KERNELS
@pytest.mark.parametrize("x_dtype", [torch.float32, torch.bfloat16], ids=str)
def test_autocast_takes_x_as_torch_does(x_dtype, backend):
    leaves = leaves_of(310, 270)
    leaves[0] = leaves[0].detach().abs().to(x_dtype).requires_grad_()  # so that the gradient of tau does not cancel
    with torch.autocast("cuda", dtype=torch.bfloat16):
        y = laplex.linear(*leaves, backend=backend)
    assert y.dtype == torch.bfloat16
    bound = 4e-3
    assert error(y, oracle(*leaves)) <= bound
    got = torch.autograd.grad(y.float().sum(), leaves)
    assert all(bar.dtype == leaf.dtype for bar, leaf in zip(got, leaves))
    exact = [wide(value).requires_grad_() for value in leaves]
    want = torch.autograd.grad(reference.linear(*exact).sum(), exact)
    assert all(error(one, other) <= bound for one, other in zip(got, want))


@KERNELS
def test_a_layer_under_autocast(backend):
    dense, a, b = torch.nn.Linear(8, 270, device=DEVICE), randn(310).requires_grad_(), randn(270)
    with torch.autocast("cuda", dtype=torch.bfloat16):
        x = dense(randn(4, 8))
        y = laplex.linear(x, a, b, backend=backend)
    y.float().sum().backward()
    assert x.dtype == y.dtype == torch.bfloat16
    assert all(bool(leaf.grad.isfinite().all()) for leaf in (a, dense.weight))
    assert error(y, oracle(x, a, b)) <= 4e-3


# --- plans, faults and messages -------------------------------------------------------------------------------------


def test_the_sizes_choose():
    a, b, x, many = randn(40_000), randn(30_000), randn(30_000), randn(512, 1000)
    assert backends.available()["triton"] == "yes"
    assert backends.which(x, a, b) == "triton"
    assert backends.which(many, a[:1000], b[:1000]) == "formed"  # far from where both ways take as long
    assert Plan(a, b).backend == "triton"
    assert "device=cuda" in repr(Plan(a, b))


def test_an_operator():
    K, x = LaplaceOperator(randn(1500), randn(1400), 0.5), randn(1400, 3)
    assert K.plan._order_for(K.a, K.b) is K.plan._order  # trusted
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


@KERNELS
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf], ids=str)
@pytest.mark.parametrize("side", ["a", "b"])
def test_anchors_that_are_not_finite(value, side, backend):
    a, b, x = randn(1501), randn(1401), randn(2, 1401)
    plan = Plan(a, b)
    (a if side == "a" else b)[77] = value
    assert all_nan(laplex.linear(x, a, b, backend=backend), laplex.linear(x, a, b, plan=plan, backend=backend))
    for call in (Plan, plan.validate, plan.update):
        with pytest.raises(ValueError, match=f"`{side}` must be finite"):
            call(a, b)


@KERNELS
@pytest.mark.parametrize("tau", [0.0, -1.0, torch.nan, torch.inf, 1e-308], ids=str)
def test_a_tau_that_is_no_length(tau, backend):
    a, b, x = randn(1501), randn(1401), randn(2, 1401)
    assert all_nan(laplex.linear(x, a, b, torch.tensor(tau, device=DEVICE, dtype=torch.float64), backend=backend))


def test_a_plan_stays_on_its_device():
    plan = Plan(randn(50), randn(60))
    with pytest.raises(ValueError, match=r"built for backend 'triton' on cuda.* of no use on cpu"):
        plan.to("cpu")


# --- products repeated with a plan kept -------------------------------------------------------------------------------


@pytest.fixture
def known(scanned):
    a, b, x = (torch.randn(size, device="cuda") for size in (5000, 4000, (3, 4000)))
    plan = laplex.Plan(a, b)
    y = laplex.linear(x, a, b, 1.0, plan=plan)
    assert len(plan._cache["replays"].by_form) == 1
    return x, a, b, plan, y


def test_repeats_have_the_same_bits(known):
    x, a, b, plan, y = known
    for _ in range(3):
        assert torch.equal(laplex.linear(x, a, b, 1.0, plan=plan), y)
    other = torch.randn_like(x)
    assert torch.equal(laplex.linear(other, a, b, 1.0, plan=plan), laplex.linear(other, a, b, plan=laplex.Plan(a, b)))


@pytest.mark.parametrize("side", [1, 2], ids=["a", "b"])
def test_no_repeat_for_anchors_that_were_written_to(known, side):
    x, a, b, plan, _ = known
    known[side].mul_(0.5)
    assert error(laplex.linear(x, a, b, 1.0, plan=laplex.Plan(a, b)), oracle(x, a, b)) <= 2e-7
    known[side].neg_()
    assert laplex.linear(x, a, b, 1.0, plan=plan).isnan().all()


def test_no_repeat_for_another_tau_form_or_dtype(known):
    x, a, b, plan, _ = known
    for tau in (2.0, 0.5, 1.0):
        assert error(laplex.linear(x, a, b, tau, plan=plan), oracle(x, a, b, tau)) <= 2e-7
    for other in (x[:2], x[0], x.T.contiguous().T, x.double()):
        assert error(laplex.linear(other, a, b, 1.0, plan=plan), oracle(other, a, b)) <= 2e-7


def test_repeats_on_another_stream_and_with_gradients(known):
    x, a, b, plan, y = known
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        there = laplex.linear(x, a, b, 1.0, plan=plan)
    torch.cuda.synchronize()
    assert torch.equal(there, y)
    leaf = x.clone().requires_grad_()
    assert laplex.linear(leaf, a, b, 1.0, plan=plan).requires_grad
    assert torch.equal(laplex.linear(x, a, b, 1.0, plan=copy.deepcopy(plan)), y)


def test_no_repeat_mistakes_one_tensor_for_another(scanned):
    """The same tensor given twice is told from two of the same form."""
    for size in (50, 5000):
        a, b, x = (torch.randn(size, device="cuda") for _ in range(3))
        for one, two in ((a, a), (a, b), (b, a), (x, b), (a, x)):
            assert error(laplex.linear(x, one, two, 1.0), oracle(x, one, two)) <= 2e-7
        plan = laplex.Plan(a, b)
        for v in (a, b, x):
            assert error(laplex.linear(v, a, b, 1.0, plan=plan), oracle(v, a, b)) <= 2e-7


@pytest.mark.parametrize("sizes", [(50, 40), (5000, 4000)], ids=["direct", "scanned"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_never_that_of_another_call(sizes, dtype):
    n, k = sizes
    a, b = torch.randn(n, device="cuda"), torch.randn(k, device="cuda")
    plan = laplex.Plan(a, b)
    for _ in range(3):
        x = torch.randn(3, k, device="cuda").to(dtype)
        for order in (None, plan):
            assert error(laplex.linear(x, a, b, 1.0, plan=order), oracle(x, a, b)) <= 2 * torch.finfo(dtype).eps


def replayed_linear(x, a, b, tau):
    """What the replay of such a call gives."""
    from laplex._triton import replay

    call = replay._replayable_call(inspect.unwrap(laplex.linear), {"x": x, "a": a, "b": b, "tau": tau})
    return call.replays.by_form[call.form](call.inputs, call.addresses)[0]


PRODUCT_SIZES = {"short": (50, 40), "counted": (3000, 2000), "in_runs": (9000, 8000), "sorted": (140_000, 500)}


@pytest.mark.parametrize("sizes", PRODUCT_SIZES.values(), ids=PRODUCT_SIZES)
def test_whole_products_are_repeated_for_any_anchors(scanned, sizes):
    n, k = sizes
    for _ in range(3):
        a, b, x, w = (torch.randn(size, device="cuda") for size in (n, k, (3, k), k))
        for tau in (1.0, 0.5):
            assert error(laplex.linear(x, a, b, tau), oracle(x, a, b, tau)) <= 2e-7
            want = laplex.reference.gram(a[:200].double(), b.double(), w.double(), tau)
            assert (laplex.gram(a[:200], b, w, tau) - want).abs().max() <= 1e-6 * want.abs().max()
    assert torch.equal(replayed_linear(x, a, b, 1.0), laplex.linear(x, a, b, backend="triton"))
    a[3] = float("nan")
    assert laplex.linear(x, a, b, 1.0).isnan().all()


def test_whole_products_that_are_formed_are_repeated():
    for _ in range(3):
        a, b, x = (torch.randn(size, device="cuda") for size in (1000, 800, (512, 800)))
        assert backends.which(x, a, b) == "formed"
        assert error(laplex.linear(x, a, b, 1.0), oracle(x, a, b), oracle(x.abs(), a, b)) <= 2e-7
    assert torch.equal(replayed_linear(x, a, b, 1.0), laplex.linear(x, a, b, backend="formed"))


def test_grams_are_repeated_with_a_plan_kept():
    a, b, phi, psi = (torch.randn(size, device="cuda") for size in (300, 5000, 300, 5000))
    plan = laplex.Plan(a, b)
    for _ in range(3):
        w = torch.randn(5000, device="cuda")
        for phases in ({}, {"phi": phi, "psi": psi}):
            wide = {name: phase.double() for name, phase in phases.items()}
            want = laplex.reference.gram(a.double(), b.double(), w.double(), 1.0, **wide)
            got = laplex.gram(a, b, w, 1.0, plan=plan, **phases)
            assert (got - want).abs().max() <= 1e-6 * want.abs().max()
    assert len(plan._cache["replays"].by_form) == 2
    assert all(plan._cache["replays"].by_form.values())
    assert torch.equal(laplex.gram(a, b, w, 1.0, plan=plan), laplex.gram(a, b, w, 1.0, plan=laplex.Plan(a, b)))


@pytest.mark.parametrize("sizes", [(1 << 20, 200, 9), (200, 1 << 20, 9)], ids=["to_long", "to_short"])
def test_short_axes_are_repeated_with_a_plan_kept(sizes):
    n, k, m = sizes
    a, b = torch.randn(n, device="cuda"), torch.randn(k, device="cuda")
    plan, rows = laplex.Plan(a, b), torch.randint(n, (50,), device="cuda")
    for _ in range(3):
        x = torch.randn(m, k, device="cuda")
        assert error(laplex.linear(x, a, b, 1.0, plan=plan)[:, rows], oracle(x, a[rows], b)) <= 2e-7
    assert all(plan._cache["replays"].by_form.values())


# --- operators repeated in training -----------------------------------------------------------------------------------


def test_training_repeats_its_operators(scanned, operators):
    for number in range(3):  # with other anchors each time
        leaves, weight = leaves_of(1500, 1400, 3)[:3], randn(3, 1500)
        got = torch.autograd.grad(laplex.linear(*leaves, 0.5), leaves, weight)
        exact = [wide(leaf).requires_grad_() for leaf in leaves]
        want = torch.autograd.grad(laplex.linear(*exact, 0.5, backend="torch"), exact, wide(weight))
        assert all(error(one, other) <= 1e-5 for one, other in zip(got, want))
        assert operators.used == 3 * number
    assert len(operators.by_form) == 3
    assert all(operators.by_form.values())


def test_derivatives_of_derivatives_after_repeats(operators):
    for _ in range(3):
        leaves, seconds = [wide(leaf).requires_grad_() for leaf in leaves_of(50, 40)[:3]], []
        for backend in ("triton", "torch"):
            y = laplex.linear(*leaves, 0.5, backend=backend)
            firsts = torch.autograd.grad(y.sin().sum(), leaves, create_graph=True)
            seconds.append(torch.autograd.grad(sum(first.square().sum() for first in firsts), leaves))
        assert all(error(one, other) <= 1e-9 for one, other in zip(*seconds))
    assert operators.used > 0


def test_checkpoints_with_repeats(operators):
    for _ in range(3):
        leaves, weight = leaves_of(1500, 1400)[:3], randn(2, 1500)
        y = checkpoint(laplex.linear, *leaves, 0.5, use_reentrant=False)
        got = torch.autograd.grad(y, leaves, weight)
        want = torch.autograd.grad(laplex.linear(*leaves, 0.5), leaves, weight)
        assert all(torch.equal(one, other) for one, other in zip(got, want))
    assert operators.used > 0
