"""What is replayed on the GPU without its Python, and what never is: told apart without a GPU."""

import functools
from types import SimpleNamespace

import pytest
import torch

import laplex
from helpers import table
from laplex import Plan, _backends, _product, _route
from laplex._scan.order import Matrix, Order
from laplex._shapes import flat_tau
from laplex._triton import launch as launches
from laplex._triton import repetition, replay, tuning
from laplex._triton.launch import Launch, can_be_launched, state
from laplex._triton.recording import Recording, TorchCall, call, from_anchors, give_up, recorded
from laplex._triton.repetition import replay_of
from laplex._triton.replay import Replays
from laplex._triton.scan import dense


@pytest.fixture
def launched(monkeypatch):
    """Addresses and numbers of launches, which there are none of."""
    seen = []
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 0, raising=False)
    monkeypatch.setattr(
        repetition,
        "launch_compiled",
        lambda compiled, grid, stream, addresses, numbers: seen.append(([*addresses], numbers)),
    )
    return seen


def record_of(*tensors, fresh=(), constants=(), more=()):
    """As after one launch of these."""
    record = Recording(tuple(constants), None)
    record.steps = [Launch(SimpleNamespace(), (1, 1, 1), tensors, (7,)), *more]
    record.fresh = [*fresh]
    return record


def again(results_again, *inputs):
    return results_again(inputs, [tensor.data_ptr() for tensor in inputs])


def test_other_inputs_take_the_place_of_the_first(launched):
    x, y, tau, scratch = torch.ones(3), torch.ones(3), torch.ones(()), torch.ones(9)
    made_again = replay_of(record_of(x, tau, scratch, y, fresh=[scratch, y], constants=[tau]), (x,), (y,))
    other = torch.zeros(3)
    (results_again,) = again(made_again, other)
    ((addresses, numbers),) = launched
    assert addresses[0] == other.data_ptr()
    assert addresses[1] == tau.data_ptr()
    assert addresses[2] not in (scratch.data_ptr(), 0)
    assert addresses[3] == results_again.data_ptr() != y.data_ptr()
    assert numbers == (7,)


def test_scratch_is_one_piece_of_memory_for_launches(launched):
    x, y, one, two = (
        torch.ones(3),
        torch.ones(3),
        torch.ones(200, dtype=torch.float64),
        torch.ones(5, dtype=torch.int32),
    )
    made_again = replay_of(record_of(x, one, two, y, fresh=[one, two, y]), (x,), (y,))
    again(made_again, x)
    ((addresses, _numbers),) = launched
    assert addresses[2] - addresses[1] == 2048  # 1600 bytes, aligned
    assert made_again.bytes == 2048 + 512


def test_views_of_what_is_constant_are_constant():
    x, y, places = torch.ones(3), torch.ones(3), torch.arange(8)
    assert replay_of(record_of(x, places[4:], y, fresh=[y], constants=[places]), (x,), (y,)) is not None


@pytest.mark.parametrize("converted", ["input", "result"])
def test_what_is_converted_between_launches_is_not_repeated(converted):
    """Half precision, say: the second call would have the first one's numbers."""
    x, y = torch.ones(3), torch.ones(3)
    wide = torch.ones(3)
    tensors = (wide, y) if converted == "input" else (x, wide)
    assert replay_of(record_of(*tensors), (x,), (y,)) is None
    fresh = [y] if converted == "input" else [wide]  # known, but y was not made by a step
    assert replay_of(record_of(*tensors, fresh=fresh), (x,), (y,)) is None


def test_what_the_interpreter_ran_or_was_more_is_not_repeated():
    x, y = torch.ones(3), torch.ones(3)
    record = record_of(x, y, fresh=[y])
    assert replay_of(record, (x,), (y,)) is not None
    assert replay_of(record, (x,), (y[:, None].expand(3, 2),)) is None
    record.steps[0] = record.steps[0]._replace(compiled=None)
    assert replay_of(record, (x,), (y,)) is None
    record = record_of(x, y, fresh=[y])
    record.failed = "aten.zero_.default"
    assert replay_of(record, (x,), (y,)) is None


def test_results_are_whole_memory_of_their_own_or_empty(launched):
    """Not what torch made between two launches, nor an input, nor the same or a part of what another is."""
    x, y, z = torch.ones(4), torch.ones(2, 2), torch.ones(4, dtype=torch.int32)
    nothing, index = x.new_empty(0), z.new_empty((1, 0))
    record = record_of(x, y, nothing, z, fresh=[y, index, z, nothing])
    for results in ((y, x), (y, torch.ones(4)), (y, y.view(4)), (y[0],), (y.view(torch.int32),)):
        assert replay_of(record, (x,), results) is None
    filled = record_of(x, y, fresh=[y, z])
    assert replay_of(filled, (x,), (z,)) is None  # perhaps torch did
    results_again = again(replay_of(record, (x,), (z[None], index, nothing, y.view(4))), torch.ones(4))
    assert [(*tensor.shape, tensor.dtype) for tensor in results_again] == [
        (1, 4, torch.int32), (1, 0, torch.int32), (0, torch.float32), (4, torch.float32),
    ]  # fmt: skip
    ((addresses, _),) = launched
    assert addresses[1:] == [results_again[3].data_ptr(), 0, results_again[0].data_ptr()]


def test_functions_of_torch_are_called_again(launched):
    x, y = torch.tensor([3.0, 1.0, 2.0]), torch.ones(3)
    values, order = torch.empty(3), torch.empty(3, dtype=torch.int64)
    sort = TorchCall(torch.sort, (x[None], values[None], order[None]), 2, {"dim": -1, "stable": True})
    largest = torch.empty(())
    norm = TorchCall(torch.linalg.vector_norm, (x, largest), 1, {"ord": torch.inf})
    record = record_of(x, y, fresh=[y, values, order, largest], more=[sort, norm])
    made_again = replay_of(record, (x,), (y,))
    filled = []
    for step in made_again.steps[1:]:
        tensors = [torch.tensor([9.0, 8.0, 7.0]), y, torch.zeros(3), torch.zeros(3, dtype=torch.int64), torch.zeros(())]
        step(tensors, [], 0)
        filled.append(tensors)
    assert filled[0][2].tolist() == [7, 8, 9]
    assert filled[0][3].tolist() == [2, 1, 0]
    assert float(filled[1][4]) == 9


@pytest.mark.parametrize("same_anchors", [True, False])
def test_what_follows_from_the_anchors_is_done_once(same_anchors):
    of_anchors = {} if same_anchors else None
    like = torch.ones(2)
    with recorded((), of_anchors) as record:
        scratch = torch.Tensor.new_empty.__wrapped__(like, (4,))
        (zeros,) = from_anchors("it", like, lambda: (torch.zeros(5),))
        assert (record.failed == "") == same_anchors  # for other anchors it is a step, and this one cannot be recorded
        if same_anchors:
            assert [id(tensor) for tensor in record.fresh] == [id(scratch)]
            assert [id(tensor) for tensor in record.constants] == [id(zeros)]
            assert from_anchors("it", like, lambda: (torch.zeros(5),))[0] is zeros
            assert from_anchors("it", like[:1], lambda: (torch.zeros(5),))[0] is not zeros  # one part of a batch
    assert state.recorder is None


def test_a_recording_holds_calls_allocations_and_views():
    like = torch.ones(2, 3)
    with recorded((), None) as record:
        out = like.new_empty(2), like.new_empty(2, dtype=torch.int64)
        call(torch.sort, like[:, 0], out=out, dim=-1)
        like.view(3, 2).mT.expand(4, 2, 3).detach()
        assert torch.promote_types(torch.float16, torch.float32) == torch.float32
    assert record.failed == ""
    assert len(record.steps) == 1
    assert len(record.fresh) == 2


WRITES = {
    "zero_": lambda x: x.zero_(),
    "a_conversion": lambda x: x.double(),
    "a_copy": lambda x: x.mT.contiguous(),
    "a_sum": lambda x: x + 1,
    "a_look": lambda x: bool(x.any()),
    "a_number": lambda x: torch.full((), 1.0),
}


@pytest.mark.parametrize("name", WRITES)
def test_whatever_else_torch_does_ends_a_recording(name):
    """A replay would leave it out."""
    with recorded((), None) as record:
        WRITES[name](torch.Tensor.new_empty.__wrapped__(torch.ones(()), (2, 3)))
    assert record.failed.startswith("aten.")


def test_a_recording_that_was_given_up():
    like = torch.ones(())
    with recorded((), None) as record:
        like.new_empty(5)
        give_up("it is large")
        give_up("twice")
        like.new_empty(5)
    assert record.failed == "it is large"
    assert not record.fresh  # memory is let go at once
    give_up("nothing is recorded: nothing happens")


def test_a_program_whose_insides_are_unknown_is_launched_by_the_public_call():
    """Another version of Triton may have other private names."""
    assert can_be_launched(SimpleNamespace(run=0, function=0, packed_metadata=0))
    assert not can_be_launched(SimpleNamespace(run=0, function=0))
    assert not can_be_launched(None)


class Launcher:
    """As Triton 3.6 has it: Python around a C function."""

    def __init__(self, scratch=0):
        self.num_ctas, self.launch_cooperative_grid, self.launch_pdl = 1, False, True
        self.global_scratch_size, self.global_scratch_align = scratch, 1
        self.profile_scratch_size, self.profile_scratch_align = 0, 1
        self.launch = max  # a function written in C, which shows the arguments it is called with


@pytest.mark.parametrize("version", ["3.6.0", "3.7.1"])
@pytest.mark.parametrize("scratch", [0, 8])
def test_the_launcher_is_left_out_where_it_is_known(version, scratch, monkeypatch):
    monkeypatch.setattr(launches.triton, "__version__", version)
    binary = SimpleNamespace(run=Launcher(scratch), function=5, packed_metadata=(4, 1, 0))
    program = launches.launchable(binary)
    if version == "3.6.0" and scratch == 0:
        assert program.call is max
        assert program.fixed == (5, False, True, None, None, (4, 1, 0), None, None, None)
    else:
        assert program.call is binary.run
        assert program.fixed == (5, (4, 1, 0), None, None, None)


TAU = torch.ones((), dtype=torch.float64)


@pytest.fixture
def one_tau(monkeypatch):
    """As on a GPU, where a number tau is one tensor for all calls."""
    for module in (laplex._functional, _product):
        monkeypatch.setattr(module, "flat_tau", lambda tau, batch, device: TAU)


def replay_of_product(product, inputs, constants=()):
    """What would be kept of a product on the GPU."""
    with recorded((TAU, *constants), {} if constants else None) as record:
        return replay_of(record, inputs, (product(),))


SHAPES = {"sorted": (90, 80), "in_runs": (50, 40), "at_once": (30, 20), "to_long": (150, 5), "to_short": (5, 150)}


@pytest.mark.parametrize("planned", [True, False], ids=["plan_kept", "whole"])
@pytest.mark.parametrize("staged", [True, False], ids=["staged", "gathered"])
@pytest.mark.parametrize("shape", SHAPES)
def test_products_are_repeated_for_other_inputs(shape, staged, planned, tiles, replayed, one_tau, monkeypatch):
    monkeypatch.setattr(tuning, "TABLE_FROM", 1)
    tiles(32, 2, carried=4, staged=staged)
    n, k = SHAPES[shape]
    a, b = torch.randn(n), torch.randn(k)
    plan = Plan(a, b, backend="triton") if planned else None

    def product(x, a, b):
        return laplex.linear(x, a, b, 1.0, plan=plan, backend="triton")

    x, other = torch.randn(2, 9, k)
    inputs, constants = ((x,), (a, b, *plan._order.tensors)) if planned else ((x, a, b), ())
    repeat = replay_of_product(lambda: product(x, a, b), inputs, constants)
    if planned:
        assert torch.equal(again(repeat, other)[0], product(other, a, b))
    else:
        others = other, torch.randn(n), torch.randn(k)
        assert torch.equal(again(repeat, *others)[0], product(*others))


@pytest.mark.parametrize("phased", [False, True], ids=["plain", "phased"])
@pytest.mark.parametrize("planned", [True, False], ids=["plan_kept", "whole"])
def test_gram_matrices_are_repeated_for_other_inputs(planned, phased, tiles, replayed, one_tau):
    def drawn():
        return torch.rand(80), *((torch.randn(9), torch.randn(80)) if phased else ())

    a, b, given, others = torch.randn(9), torch.randn(80), drawn(), drawn()
    plan = Plan(a, b, backend="triton") if planned else None

    def product(weight, *phases, anchors=(a, b)):
        phases = dict(zip(("phi", "psi"), phases, strict=False))
        return laplex.gram(*anchors, weight, 1.0, plan=plan, backend="triton", **phases)

    inputs, constants = (given, (a, b, *plan._order.tensors)) if planned else ((*given, a, b), ())
    repeat = replay_of_product(lambda: product(*given), inputs, constants)
    anchors = (a, b) if planned else (torch.randn(9), torch.randn(80))
    assert torch.equal(again(repeat, *others, *(() if planned else anchors))[0], product(*others, anchors=anchors))


def test_direct_products_are_replayed_and_their_gram_matrices_are_not(replayed):
    a, b, x, w = torch.randn(9), torch.randn(8), torch.randn(2, 8), torch.rand(8)

    def product(x, a, b):
        return dense.scan(x, Matrix(a, b, TAU, Order.none(a, b), table("triton")), odd=False)[0]

    others = torch.randn(2, 8), torch.randn(9), torch.randn(8)
    assert torch.equal(again(replay_of_product(lambda: product(x, a, b), (x, a, b)), *others)[0], product(*others))
    gram = functools.partial(laplex.gram, a, b, w, 1.0, backend="dense")
    assert replay_of_product(gram, (w, a, b)) is None


@pytest.fixture
def on_gpu(monkeypatch):
    """Tensors of the CPU pass for those of a GPU."""
    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda self: True))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: 0, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 0, raising=False)
    calls = Replays()
    monkeypatch.setattr(replay, "calls", calls)
    return calls


def ones(x, a, b, tau=1.0, *, plan=None, backend=None):
    """In place of a public function: it launches nothing."""
    return torch.ones(2)


def call_ones(x, a, b, tau=1.0, **options):
    return replay.repeated(ones, (x, a, b, tau), options)


def test_what_was_kept_with_tf32_is_not_replayed_without_it(on_gpu, monkeypatch):
    inputs = torch.randn(3, 5), torch.randn(4), torch.randn(5)
    for allowed in (True, False):
        monkeypatch.setattr(replay, "allows_tf32", lambda allowed=allowed: allowed)
        call_ones(*inputs)
    assert len(on_gpu.by_form) == 2


@pytest.mark.parametrize("tau", [0.7, 2], ids=["a_number", "an_integer"])
@pytest.mark.parametrize("shape", [(9, 8), (90, 80)], ids=["formed", "scanned"])
def test_the_first_call_with_a_number_tau_is_replayed(shape, tau, tiles, replayed, on_gpu, monkeypatch):
    """The tensor of tau, which that call makes, is no step of it."""
    tiles(32, 2, carried=4, staged=True)
    monkeypatch.setattr(_backends, "planner", lambda device: "triton")
    monkeypatch.setitem(_backends._loaded, ("formed", "cpu"), _backends.load("formed", "cuda"))
    monkeypatch.setattr(_backends, "cheapest", lambda work, device: "formed" if work.n == 9 else "scan")
    monkeypatch.setattr(_route, "_routes", {})
    cached = functools.cache(flat_tau)
    for module in (_product, replay):  # as on a GPU, where a number tau is one tensor for all calls
        monkeypatch.setattr(module, "flat_tau", cached)
    n, k = shape
    laplex.linear(torch.randn(3, k), torch.randn(n), torch.randn(k), tau)
    (replay_known,) = on_gpu.by_form.values()
    assert replay_known is not None
    x, a, b = torch.randn(3, k), torch.randn(n), torch.randn(k)
    got = laplex.linear(x, a, b, tau)
    torch.testing.assert_close(got, x @ torch.exp(-(a[:, None] - b).abs() / tau).T)


def test_tensors_of_one_address_and_two_shapes_are_not_replayed(on_gpu):
    both = torch.rand(2, 8)
    call_ones(both, both[0], torch.rand(8))
    call_ones(both[0][:4], both.view(-1), torch.rand(8))
    assert not on_gpu.by_form
    call_ones(both, torch.rand(8), torch.rand(8))
    assert list(on_gpu.by_form.values()) == [None]  # nothing was launched
    plan = Plan(a := torch.rand(16), b := torch.rand(8))
    call_ones(a[:8], a, b, plan=plan)
    assert not plan._cache["replays"].by_form
    call_ones(torch.rand(8), a, b, plan=plan)
    assert len(plan._cache["replays"].by_form) == 1


NEVER = {
    "a_tau_to_be_trained": {"tau": torch.ones((), requires_grad=True)},
    "a_truth_for_tau": {"tau": True},
    "a_backend": {"backend": "triton"},
    "a_batch": {"a": torch.rand(2, 3)},
    "gradients": {"a": torch.rand(3, requires_grad=True)},
    "gaps_in_memory": {"a": torch.rand(3, 2)[:, 0]},
    "no_tensor": {"x": [1.0, 2.0]},
    "no_plan": {"plan": "plan"},
    "a_plan_of_others": {"plan": Plan(torch.rand(3), torch.rand(3))},
}


@pytest.mark.parametrize("name", NEVER)
def test_calls_that_are_never_replayed(name, on_gpu):
    call_ones(**{"x": torch.rand(3), "a": torch.rand(3), "b": torch.rand(3)} | NEVER[name])
    assert not on_gpu.by_form


REFUSED = {
    "one_too_many": ((torch.rand(3),), {}),
    "one_given_twice": ((), {"a": torch.rand(3)}),
    "one_that_is_unknown": ((), {"wieght": None}),
}


@pytest.mark.parametrize("name", REFUSED)
def test_arguments_that_a_call_refuses_are_refused_where_a_replay_is_known(name, on_gpu):
    inputs = torch.rand(3), torch.rand(3), torch.rand(3), 1.0
    call_ones(*inputs)
    ((form, _),) = on_gpu.by_form.items()
    on_gpu.by_form[form] = lambda inputs, addresses: (torch.ones(2),)
    args, options = REFUSED[name]
    with pytest.raises(TypeError):
        replay.repeated(ones, (*inputs, *args), options)


def test_the_oldest_form_is_forgotten(on_gpu):
    x, a, b = torch.rand(3, 4)
    for tau in range(100):
        call_ones(x, a, b, float(tau))
    assert len(on_gpu.by_form) == tuning.REPLAYS_KEPT
    assert min(form[2] for form in on_gpu.by_form) == 36.0
