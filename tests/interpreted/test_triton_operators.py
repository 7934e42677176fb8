"""What training runs on the GPU, operator by operator, replayed without its Python: tested without a GPU."""

import functools

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import laplex
from helpers import table
from laplex._scan.order import Matrix, Order
from laplex._triton import tuning
from laplex._triton.order.launch import _order
from laplex._triton.phase import launch as phase
from laplex._triton.recording import recorded
from laplex._triton.scan.launch import block_sum, pullback, scan


@pytest.fixture(autouse=True)
def as_on_gpu(monkeypatch, replayed):
    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda self: True))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 0, raising=False)


def drawn(n, k, m, dtype, x_dtype=None, lead=()):
    """x, a, b and tau, and a cotangent of y."""
    x, g = (torch.randn(*lead, m, size, dtype=dtype).to(x_dtype or dtype) for size in (k, n))
    a, b = torch.randn(*lead, n, dtype=dtype), torch.randn(*lead, k, dtype=dtype)
    return x, a, b, torch.rand(lead).double() + 0.5, g


def matrix_of(a, b, tau):
    order = Order.from_tensors(
        _order.__wrapped__(a.reshape(-1, a.shape[-1]), b.reshape(-1, b.shape[-1]), "joined"), "joined"
    )
    return Matrix(a, b, tau, order, table("triton"))


def operator_calls(x, a, b, tau, g):
    """What a training step runs, and what trains fewer: each operator and how it is called."""
    matrix = matrix_of(a, b, tau)
    odd = scan.__wrapped__(x, matrix, odd=True)[1]
    yield functools.partial(_order, a.reshape(-1, a.shape[-1]), b.reshape(-1, b.shape[-1]), "joined")
    for with_odd in (False, True):
        yield functools.partial(scan, x, matrix, odd=with_odd, degree=int(with_odd))
    yield functools.partial(scan, x, matrix._replace(order=matrix.order.unchecked()), odd=False, degree=0)
    for odd_x in (odd, odd[..., :0].contiguous()):
        yield functools.partial(pullback, g, x, odd_x, matrix, to_tau=odd_x is odd)


def as_it_is(call):
    """The same without a replay."""
    return call.func.__wrapped__(*call.args, **call.keywords)


def same(results, others):
    return all(torch.equal(one, other) and one.dtype == other.dtype for one, other in zip(results, others, strict=True))


FORMS = {
    "float32": (40, 35, 3, torch.float32),
    "float64": (40, 35, 3, torch.float64),
    "float16": (40, 35, 3, torch.float32, torch.float16),
    "two_matrices": (20, 15, 3, torch.float32, None, (2,)),
    "one_row": (40, 35, 1, torch.float32),
    "counted": (12, 11, 3, torch.float32),
    "to_long": (70, 4, 2, torch.float32),
    "to_short": (4, 70, 2, torch.float32),
    "adjacent_rows": (20, 15, 5, torch.float32),
}


@pytest.mark.parametrize("form", FORMS)
def test_operators_are_repeated_for_other_inputs(form, tiles, operators):
    """The same bits, whatever the anchors and tau, in memory of their own."""
    adjacent = form == "adjacent_rows"
    tiles(32, 8 if adjacent else 2, adjacent=adjacent)
    alive = [call() for call in operator_calls(*drawn(*FORMS[form]))]
    assert operators.used == 0
    assert len(operators.by_form) == 6
    assert all(operators.by_form.values())
    for call in operator_calls(*drawn(*FORMS[form])):
        alive += [call(), call()]
        assert same(alive[-1], as_it_is(call))
    assert operators.used == 12
    addresses = [results_now.data_ptr() for results in alive for results_now in results if results_now.numel() > 0]
    assert len(set(addresses)) == len(addresses)


def calls_with_phases(x, a, b, tau, g):
    """A training step with phases, and one that trains x and tau alone."""
    matrix, phi, psi = matrix_of(a, b, tau), torch.randn_like(a), torch.randn_like(b)
    known = phase.product.__wrapped__(x, phi, psi, matrix, keep=True)[1:]
    for keep in (True, False):
        yield functools.partial(phase.product, x, phi, psi, matrix, keep=keep)
    yield functools.partial(phase.pullback, g, x, phi, psi, matrix, *known, needs=(True,) * 6)
    yield functools.partial(phase.pullback, g, x, phi, psi, matrix, needs=(True, *[False] * 4, True))


@pytest.mark.parametrize("form", FORMS)
def test_products_with_phases_are_repeated_for_other_inputs(form, tiles, operators):
    tiles(32, 2)
    first = [call() for call in calls_with_phases(*drawn(*FORMS[form]))]
    assert all(operators.by_form.values())
    for call, before in zip(calls_with_phases(*drawn(*FORMS[form])), first, strict=True):
        results_now = call()
        assert same(results_now, as_it_is(call))
        assert not torch.equal(results_now[0], before[0])
    assert operators.used == 4


def registered(call):
    """The operator that PyTorch sees, with its arguments."""
    if call.func is _order:
        return functools.partial(torch.ops.laplex.plan, *call.args, "triton")
    *tensors, matrix = call.args
    operator = torch.ops.laplex.scan if call.func is scan else torch.ops.laplex.pullback
    return functools.partial(operator, *tensors, *matrix.flat, *call.keywords.values())


@pytest.mark.parametrize("form", ["float32", "float16", "two_matrices"])
def test_registered_operators_are_repeated_with_the_same_launches(form, tiles, operators):
    """What is compiled calls these: it shares what eager calls have recorded."""
    for call in operator_calls(*drawn(*FORMS[form])):
        call()
    known = len(operators.by_form)
    for call in operator_calls(*drawn(*FORMS[form])):
        assert same(registered(call)(), as_it_is(call))
    assert operators.used == 6
    assert len(operators.by_form) == known


def test_a_compiled_step_repeats_its_operators(tiles, operators, unpoisoned):
    function = torch.compile(functools.partial(laplex.linear, backend="triton"), fullgraph=True, backend="aot_eager")
    for number in range(3):
        x, a, b, _, _ = drawn(30, 20, 3, torch.float64)
        leaves = [value.requires_grad_() for value in (x, a, b)]
        got, want = (
            torch.autograd.grad(f(*leaves, 0.7).sin().sum(), leaves)
            for f in (function, functools.partial(laplex.linear, backend="torch"))
        )
        assert all(torch.allclose(one, other, rtol=1e-11, atol=1e-11) for one, other in zip(got, want, strict=True))
        assert operators.used == 3 * number
    torch.compiler.reset()


@pytest.mark.parametrize("shape", ["to_long", "to_short"])
def test_operators_that_sort_the_short_side_are_repeated(shape, tiles, operators, monkeypatch):
    monkeypatch.setattr(tuning, "TABLE_FROM", 1)
    for _ in range(2):
        for call in operator_calls(*drawn(*FORMS[shape][:2], 9, torch.float32)):
            assert same(call(), as_it_is(call))
    assert None not in operators.by_form.values()
    assert operators.used > 0


def test_an_outer_record_has_the_steps_of_operators(tiles, operators):
    x, a, b, tau, _ = drawn(30, 20, 3, torch.float32)
    _order(a[None], b[None], "joined")  # now there is a replay of it
    matrix = matrix_of(a, b, tau)
    with recorded((), None) as record:
        _order(a[None], b[None], "joined")
        assert len(record.steps) == 1
        y, _ = scan(x, matrix, odd=False)
        assert len(record.steps) > 1
        assert any(tensor is y for tensor in record.fresh)
    assert operators.used == 0
    assert len(operators.by_form) == 1


def test_operators_that_are_never_repeated(tiles, operators, monkeypatch):
    x, a, b, tau, _ = drawn(30, 20, 3, torch.float32)
    matrix = matrix_of(a, b, tau)

    def known(x=x, a=a, b=b):
        call = functools.partial(scan, x, matrix._replace(target=a, source=b), odd=False)
        assert same(call(), as_it_is(call))
        return len(operators.by_form)

    assert known(x=x.mT.contiguous().mT) == known(x=x[:1].expand(3, 20)) == known(a=torch.stack([a, a], 1)[:, 0]) == 0
    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        assert known() == 0
    with monkeypatch.context() as patch:
        patch.setattr(tuning, "REPLAYED_OPERATORS", 100)
        assert known() == 0
    both = torch.cat([b, x.flatten()]).view(4, 20)
    assert known(x=both[:3], b=both[0]) == 0  # one address, two shapes
    assert known() == 1
    assert known(b=x[0].clone()) == 1
    assert operators.used == 1


def test_an_operator_of_torch_between_launches_ends_the_recording(tiles, operators, monkeypatch):
    """A replay would leave it out: the second call would have the first one's numbers, or none."""
    from laplex._triton.scan import launch

    carry = launch.carry

    def forgetful(scratch, *rest):
        scratch[:0].zero_()
        carry(scratch, *rest)

    monkeypatch.setattr(launch, "carry", forgetful)
    tiles(32, 2, carried=4)
    x, a, b, tau, _ = drawn(90, 80, 3, torch.float32)
    matrix = matrix_of(a, b, tau)
    first = scan(x, matrix, odd=False)
    assert list(operators.by_form.values()) == [None]
    assert same(scan(x, matrix, odd=False), first)
    assert operators.used == 0


def test_the_same_tensor_twice_is_another_form(tiles, operators):
    x, a, b, tau, _ = drawn(30, 30, 3, torch.float32)
    for one, two in ((a, a), (a, b), (b, a), (b, b), (x[0].clone(), a)):
        sort = functools.partial(_order, one[None], two[None], "joined")
        order = sort()
        assert same(order, as_it_is(sort))
        call = functools.partial(
            scan, x, Matrix(one, two, tau, Order.from_tensors(order, "joined"), table("triton")), odd=True
        )
        assert same(call(), as_it_is(call))
    assert len(operators.by_form) == 4
    assert operators.used == 6


@pytest.mark.parametrize("checkpointed", [False, True])
def test_training_repeats_its_operators(checkpointed, tiles, operators):
    for number in range(3):
        x, a, b, _, _ = drawn(30, 20, 3, torch.float64)
        leaves = [value.requires_grad_() for value in (x, a, b)]
        function = functools.partial(checkpoint, laplex.linear, use_reentrant=False) if checkpointed else laplex.linear
        got, want = (
            torch.autograd.grad(f(*leaves, 0.7, backend=backend).sin().sum(), leaves)
            for f, backend in ((function, "triton"), (laplex.linear, "torch"))
        )
        assert all(torch.allclose(one, other, rtol=1e-11, atol=1e-11) for one, other in zip(got, want, strict=True))
        assert operators.used == (5 * number + 2 if checkpointed else 3 * number)


def test_derivatives_of_derivatives_after_repeats(tiles, operators):
    for _ in range(2):
        x, a, b, _, _ = drawn(12, 11, 2, torch.float64)
        leaves = [value.requires_grad_() for value in (x, a, b)]
        seconds = []
        for backend in ("triton", "torch"):
            y = laplex.linear(*leaves, 0.7, backend=backend)
            firsts = torch.autograd.grad(y.sin().sum(), leaves, create_graph=True)
            seconds.append(torch.autograd.grad(sum(first.square().sum() for first in firsts), leaves))
        assert all(torch.allclose(one, other, rtol=1e-10, atol=1e-10) for one, other in zip(*seconds, strict=True))
    assert operators.used > 0


@pytest.mark.parametrize("blocks", [2, 130])
def test_blocks_are_summed_in_float64(blocks):
    pull = torch.randn(2, blocks, 45)
    pull[:, 0] += 1e7
    pull[:, 1] -= 1e7
    assert torch.equal(block_sum(pull), pull.sum(1, dtype=torch.float64).float())
