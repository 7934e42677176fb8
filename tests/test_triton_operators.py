"""What training runs on the GPU, operator by operator, repeated without its Python: told without one."""

import functools

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import laplex
from laplex._scan import ops as _ops
from laplex._triton import replay as triton_repeat
from laplex._triton.launch import recorded
from laplex._triton.scan import launch as triton_scan

if not triton_scan.interpreted():
    pytest.skip("with a GPU the kernels are compiled: test_gpu_use", allow_module_level=True)
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton")


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


def operator_calls(x, a, b, tau, g):
    """What a training step runs, and what trains fewer: each operator, its kernel, and its inputs."""
    order = _ops._plan(a, b, "joined", "triton")
    odd = _ops._scan(x, a, b, tau, *order, True, 0, "triton")[1]
    moved = order[0], order[1][..., :0], *order[2:]
    yield _ops.run_plan, _ops._plan, (a, b, "joined", "triton")
    for with_odd in (False, True):
        yield _ops.run_scan, _ops._scan, (x, a, b, tau, *order, with_odd, int(with_odd), "triton")
    yield _ops.run_scan, _ops._scan, (x, a, b, tau, *moved, False, 0, "triton")
    for odd_x in (odd, odd[..., :0].contiguous()):
        yield _ops.run_pullback, _ops._pullback, (g, x, odd_x, a, b, tau, *order, odd_x is odd, "triton")


def same(results, others):
    return all(torch.equal(one, other) and one.dtype == other.dtype for one, other in zip(results, others, strict=True))


FORMS = {
    "float32": (40, 35, 3, torch.float32),
    "float64": (40, 35, 3, torch.float64),
    "float16": (40, 35, 3, torch.float32, torch.float16),
    "two_kernels": (20, 15, 3, torch.float32, None, (2,)),
    "one_row": (40, 35, 1, torch.float32),
    "counted": (12, 11, 3, torch.float32),
    "to_long": (70, 4, 2, torch.float32),
    "to_short": (4, 70, 2, torch.float32),
    "side_by_side": (20, 15, 5, torch.float32),
}


@pytest.mark.parametrize("form", FORMS)
def test_operators_are_repeated_for_other_inputs(form, tiles, operators):
    """The same bits, whatever the anchors and tau, in memory of their own."""
    turned = form == "side_by_side"
    tiles(32, 8 if turned else 2, turned=turned)
    alive = [run(*inputs) for run, _, inputs in operator_calls(*drawn(*FORMS[form]))]
    assert operators.used == 0
    assert len(operators.kept) == 6
    assert all(operators.kept.values())
    for run, kernel, inputs in operator_calls(*drawn(*FORMS[form])):
        alive += [run(*inputs), run(*inputs)]
        assert same(alive[-1], kernel(*inputs))
    assert operators.used == 12
    addresses = [made.data_ptr() for results in alive for made in results if made.numel() > 0]
    assert len(set(addresses)) == len(addresses)


REGISTERED = {
    _ops.run_plan: torch.ops.laplex.plan,
    _ops.run_scan: torch.ops.laplex.scan,
    _ops.run_pullback: torch.ops.laplex.pullback,
}


@pytest.mark.parametrize("form", ["float32", "float16", "two_kernels"])
def test_registered_operators_are_repeated_with_the_same_launches(form, tiles, operators):
    """What is compiled calls these: it shares what eager calls have recorded."""
    for run, _, inputs in operator_calls(*drawn(*FORMS[form])):
        run(*inputs)
    kept = len(operators.kept)
    for run, kernel, inputs in operator_calls(*drawn(*FORMS[form])):
        assert same(REGISTERED[run](*inputs), kernel(*inputs))
    assert operators.used == 6
    assert len(operators.kept) == kept


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
def test_operators_that_look_at_the_anchors_are_not_repeated(shape, tiles, operators, monkeypatch):
    monkeypatch.setattr(triton_scan, "SPREAD_FROM", 1)
    for _ in range(2):
        for run, kernel, inputs in operator_calls(*drawn(*FORMS[shape][:2], 9, torch.float32)):
            assert same(run(*inputs), kernel(*inputs))
    kept = {form[0]: repeat for form, repeat in operators.kept.items()}
    assert kept[_ops._plan] is not None
    assert None in operators.kept.values()


def test_an_outer_record_has_the_steps_of_operators(tiles, operators):
    x, a, b, tau, _ = drawn(30, 20, 3, torch.float32)
    order = _ops.run_plan(a, b, "joined", "triton")  # which there is a repeat of
    with recorded((), None) as record:
        _ops.run_plan(a, b, "joined", "triton")
        assert len(record.steps) == 1
        y, _ = _ops.run_scan(x, a, b, tau, *order, False, 0, "triton")
        assert len(record.steps) > 1
        assert any(tensor is y for tensor in record.fresh)
    assert operators.used == 0
    assert len(operators.kept) == 1


def test_operators_that_are_never_repeated(tiles, operators, monkeypatch):
    x, a, b, tau, _ = drawn(30, 20, 3, torch.float32)
    order = _ops._plan(a, b, "joined", "triton")

    def scan(x=x, a=a, b=b):
        assert same(
            _ops.run_scan(x, a, b, tau, *order, False, 0, "triton"),
            _ops._scan(x, a, b, tau, *order, False, 0, "triton"),
        )
        return len(operators.kept)

    assert scan(x=x.mT.contiguous().mT) == scan(x=x[:1].expand(3, 20)) == scan(a=torch.stack([a, a], 1)[:, 0]) == 0
    with monkeypatch.context() as patch:
        patch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
        assert scan() == 0
    with monkeypatch.context() as patch:
        patch.setattr(triton_repeat, "OPERATORS_UP_TO", 100)
        assert scan() == 0
    both = torch.cat([b, x.flatten()]).view(4, 20)
    assert scan(x=both[:3], b=both[0]) == 0  # one address, two shapes
    _ops.run_scan(x[:0], a, b, tau, *order, False, 0, "triton")
    assert operators.kept.popitem()[1] is None
    assert scan() == 1
    assert scan(b=x[0].clone()) == 1
    assert operators.used == 1


def test_the_same_tensor_twice_is_another_form(tiles, operators):
    x, a, b, tau, _ = drawn(30, 30, 3, torch.float32)
    for one, two in ((a, a), (a, b), (b, a), (b, b), (x[0].clone(), a)):
        order = _ops.run_plan(one, two, "joined", "triton")
        assert same(order, _ops._plan(one, two, "joined", "triton"))
        inputs = x, one, two, tau, *order, True, 0, "triton"
        assert same(_ops.run_scan(*inputs), _ops._scan(*inputs))
    assert len(operators.kept) == 4
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
    assert torch.equal(triton_scan._block_sum(pull), pull.sum(1, dtype=torch.float64).float())
