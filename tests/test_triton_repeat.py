"""What is repeated on the GPU without its Python, and what never is: told apart without one."""

import functools
from types import SimpleNamespace

import pytest
import torch

import laplex
from laplex import Plan
from laplex._triton import launch as triton_launch
from laplex._triton import replay as triton_repeat
from laplex._triton.launch import (
    Call,
    Launch,
    Record,
    call,
    constant,
    empty,
    not_to_be_repeated,
    once,
    recorded,
)
from laplex._triton.replay import Repeats, repeat_of
from laplex._triton.scan import launch as triton_scan


@pytest.fixture
def launched(monkeypatch):
    """Addresses and numbers of launches, which there are none of."""
    seen = []
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda index: 0, raising=False)
    monkeypatch.setattr(
        "laplex._triton.replay.run", lambda compiled, grid, stream, at, numbers: seen.append((at, numbers))
    )
    return seen


def record_of(*tensors, fresh=(), constant=(), more=()):
    """As after one launch of these."""
    record = Record()
    record.steps = [Launch(SimpleNamespace(), (1, 1, 1), tensors, (7,)), *more]
    record.fresh, record.constant = [*fresh], [*constant]
    return record


def test_other_inputs_take_the_place_of_the_first(launched):
    x, y, tau, scratch = torch.ones(3), torch.ones(3), torch.ones(()), torch.ones(9)
    repeat = repeat_of(record_of(x, tau, scratch, y, fresh=[scratch, y], constant=[tau]), (x,), (y,))
    other = torch.zeros(3)
    (made,) = repeat(other)
    ((at, numbers),) = launched
    assert at[0] == other.data_ptr()
    assert at[1] == tau.data_ptr()
    assert at[2] not in (scratch.data_ptr(), 0)
    assert at[3] == made.data_ptr() != y.data_ptr()
    assert numbers == (7,)


def test_scratch_is_one_piece_of_memory_for_launches(launched):
    x, y, one, two = (
        torch.ones(3),
        torch.ones(3),
        torch.ones(200, dtype=torch.float64),
        torch.ones(5, dtype=torch.int32),
    )
    repeat = repeat_of(record_of(x, one, two, y, fresh=[one, two, y]), (x,), (y,))
    repeat(x)
    ((at, _numbers),) = launched
    assert at[2] - at[1] == 2048  # 1600 bytes, aligned
    assert repeat.bytes == 2048 + 512


def test_views_of_what_is_constant_are_constant():
    x, y, places = torch.ones(3), torch.ones(3), torch.arange(8)
    assert repeat_of(record_of(x, places[4:], y, fresh=[y], constant=[places]), (x,), (y,)) is not None


@pytest.mark.parametrize("converted", ["input", "result"])
def test_what_is_converted_between_launches_is_not_repeated(converted):
    """Half precision, say: the second call would have the first one's numbers."""
    x, y = torch.ones(3), torch.ones(3)
    wide = torch.ones(3)
    tensors = (wide, y) if converted == "input" else (x, wide)
    assert repeat_of(record_of(*tensors), (x,), (y,)) is None
    fresh = [y] if converted == "input" else [wide]  # known, but y was not made by a step
    assert repeat_of(record_of(*tensors, fresh=fresh), (x,), (y,)) is None


def test_what_the_interpreter_ran_or_was_more_is_not_repeated():
    x, y = torch.ones(3), torch.ones(3)
    record = record_of(x, y, fresh=[y])
    assert repeat_of(record, (x,), (y,)) is not None
    assert repeat_of(record, (x,), (y[:, None].expand(3, 2),)) is None
    record.steps[0] = record.steps[0]._replace(compiled=None)
    assert repeat_of(record, (x,), (y,)) is None
    record.steps = None
    assert repeat_of(record, (x,), (y,)) is None


def test_results_are_whole_memory_of_their_own_or_empty(launched):
    """Not what torch made between two launches, nor an input, nor the same or a part of what another is."""
    x, y, z = torch.ones(4), torch.ones(2, 2), torch.ones(4, dtype=torch.int32)
    nothing, index = x.new_empty(0), z.new_empty((1, 0))
    record = record_of(x, y, nothing, z, fresh=[y, index, z, nothing])
    for results in ((y, x), (y, torch.ones(4)), (y, y.view(4)), (y[0],), (y.view(torch.int32),)):
        assert repeat_of(record, (x,), results) is None
    filled = record_of(x, y, fresh=[y, z])
    assert repeat_of(filled, (x,), (z,)) is None  # perhaps torch did
    made = repeat_of(record, (x,), (z[None], index, nothing, y.view(4)))(torch.ones(4))
    assert [(*tensor.shape, tensor.dtype) for tensor in made] == [
        (1, 4, torch.int32), (1, 0, torch.int32), (0, torch.float32), (4, torch.float32),
    ]  # fmt: skip
    ((at, _),) = launched
    assert at[1:] == [made[3].data_ptr(), 0, made[0].data_ptr()]


def test_functions_of_torch_are_called_again(launched):
    x, y = torch.tensor([3.0, 1.0, 2.0]), torch.ones(3)
    values, order = torch.empty(3), torch.empty(3, dtype=torch.int64)
    sort = Call(torch.sort, (x[None], values[None], order[None]), 2, {"dim": -1, "stable": True})
    largest = torch.empty(())
    norm = Call(torch.linalg.vector_norm, (x, largest), 1, {"ord": torch.inf})
    record = record_of(x, y, fresh=[y, values, order, largest], more=[sort, norm])
    repeat = repeat_of(record, (x,), (y,))
    filled = []
    for step in repeat.steps[1:]:
        tensors = [torch.tensor([9.0, 8.0, 7.0]), y, torch.zeros(3), torch.zeros(3, dtype=torch.int64), torch.zeros(())]
        step(tensors, [], 0)
        filled.append(tensors)
    assert filled[0][2].tolist() == [7, 8, 9]
    assert filled[0][3].tolist() == [2, 1, 0]
    assert float(filled[1][4]) == 9


@pytest.mark.parametrize("same_anchors", [True, False])
def test_what_follows_from_the_anchors_is_done_once(same_anchors):
    kept = {} if same_anchors else None
    with recorded((), kept) as record:
        like = torch.ones(2)
        scratch = empty(like, (4,))
        (made,) = once("it", lambda: (empty(like, (5,)),))
        tau = constant(torch.ones(()))
        call(torch.sort, like, out=(empty(like, (2,)), empty(like, (2,), torch.int64)), dim=-1)
        assert (record.steps is not None) == same_anchors  # for other anchors it would have to be done again
        if same_anchors:
            assert record.fresh[0] is scratch
            assert all(tensor is not made for tensor in record.fresh)
            assert [id(tensor) for tensor in record.constant] == [id(made), id(tau)]
            assert len(record.steps) == 1
            assert once("it", lambda: (empty(like, (5,)),))[0] is made
        not_to_be_repeated()
        assert record.steps is None
        assert not record.fresh
        assert not record.constant
    assert triton_launch._record.steps is None


def repeat_of_a_product(product, inputs, constant=()):
    """What would be kept of a product on the GPU."""
    with recorded(constant, {} if constant else None) as record:
        return repeat_of(record, inputs, (product(),))


SHAPES = {"sorted": (90, 80), "in_runs": (50, 40), "at_once": (30, 20), "to_long": (150, 5), "to_short": (5, 150)}


@pytest.mark.filterwarnings("ignore::RuntimeWarning:triton")
@pytest.mark.parametrize("kept", [True, False], ids=["plan_kept", "whole"])
@pytest.mark.parametrize("staged", [True, False], ids=["staged", "gathered"])
@pytest.mark.parametrize("shape", SHAPES)
def test_products_are_repeated_for_other_inputs(shape, staged, kept, tiles, replayed, monkeypatch):
    monkeypatch.setattr(triton_scan, "SPREAD_FROM", 1)
    tiles(32, 2, carried=4, staged=staged)
    n, k = SHAPES[shape]
    a, b = torch.randn(n), torch.randn(k)
    plan = Plan(a, b, backend="triton") if kept else None

    def product(x, a, b):
        return laplex.linear(x, a, b, 1.0, plan=plan, backend="triton")

    x, other = torch.randn(2, 9, k)
    inputs, constant = ((x,), (a, b, *plan._order)) if kept else ((x, a, b), ())
    repeat = repeat_of_a_product(lambda: product(x, a, b), inputs, constant)
    if not kept and shape in ("to_long", "to_short"):  # what short axes make of the anchors would have to be made again
        assert repeat is None
    elif kept:
        assert torch.equal(repeat(other)[0], product(other, a, b))
    else:
        others = other, torch.randn(n), torch.randn(k)
        assert torch.equal(repeat(*others)[0], product(*others))


@pytest.mark.filterwarnings("ignore::RuntimeWarning:triton")
@pytest.mark.parametrize("phased", [False, True], ids=["plain", "phased"])
@pytest.mark.parametrize("kept", [True, False], ids=["plan_kept", "whole"])
def test_gram_matrices_are_repeated_for_other_inputs(kept, phased, tiles, replayed):
    def drawn():
        return torch.rand(80), *((torch.randn(9), torch.randn(80)) if phased else ())

    a, b, given, others = torch.randn(9), torch.randn(80), drawn(), drawn()
    plan = Plan(a, b, backend="triton") if kept else None

    def product(weight, *phases, anchors=(a, b)):
        phases = dict(zip(("phi", "psi"), phases, strict=False))
        return laplex.gram(*anchors, weight, 1.0, plan=plan, backend="triton", **phases)

    inputs, constant = (given, (a, b, *plan._order)) if kept else ((*given, a, b), ())
    repeat = repeat_of_a_product(lambda: product(*given), inputs, constant)
    anchors = (a, b) if kept else (torch.randn(9), torch.randn(80))
    assert torch.equal(repeat(*others, *(() if kept else anchors))[0], product(*others, anchors=anchors))


@pytest.mark.filterwarnings("ignore::RuntimeWarning:triton")
def test_direct_products_are_repeated_and_their_gram_matrices_are_not(replayed):
    a, b, x, w = torch.randn(9), torch.randn(8), torch.randn(2, 8), torch.rand(8)
    tau = torch.ones((), dtype=torch.float64)

    def product(x, a, b):
        return triton_scan.direct(x, a, b, constant(tau), odd=False)[0]

    others = torch.randn(2, 8), torch.randn(9), torch.randn(8)
    assert torch.equal(repeat_of_a_product(lambda: product(x, a, b), (x, a, b))(*others)[0], product(*others))
    gram = functools.partial(laplex.gram, a, b, w, 1.0, backend="dense")
    assert repeat_of_a_product(gram, (w, a, b)) is None


@pytest.fixture
def repeats(monkeypatch):
    """As on the GPU."""
    monkeypatch.setattr(triton_repeat, "_repeatable", lambda tau, inputs: True)
    monkeypatch.setattr(triton_repeat, "_form", lambda tau, inputs: (tau, 0, *(tensor.shape for tensor in inputs)))
    return Repeats()


def test_tensors_of_one_address_and_two_shapes_are_not_repeated(repeats):
    both = torch.rand(2, 8)
    for inputs in ((both, both[0]), (both[0][:4], both)):
        repeats.do("gram", lambda: both, 1.0, *inputs)
    repeats.do("linear", lambda: both, 1.0, both[0], constant=(both,))
    assert not repeats.kept
    repeats.do("linear", lambda: both, 1.0, both, both)
    assert len(repeats.kept) == 1
    repeats.do("linear", lambda: both, 1.0, both, both[:0], both[:, :0], constant=(both[0, :0],))  # of no address
    assert len(repeats.kept) == 2


def test_the_oldest_form_is_forgotten(repeats):
    x = torch.rand(2)
    for tau in range(100):
        repeats.do("linear", lambda: x, float(tau), x)
    assert len(repeats.kept) == triton_repeat.REPEATS_KEPT
    assert min(form[1][0] for form in repeats.kept) == 36.0
