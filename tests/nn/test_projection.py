"""LaplexProjection: the product of the definition, a plan that is never stale, and modules as users move them."""

import copy
import io
import pickle
import re

import pytest
import torch

from helpers import TOLERANCE, error, oracle
from laplex import reference
from laplex._seriation import seriate
from laplex.nn._projection import LaplexProjection

KINDS = pytest.mark.parametrize("kind", [{}, {"phase": True}, {"signs": True}, {"phase": True, "signs": True}], ids=str)
TRAINABLE = pytest.mark.parametrize("trainable", [False, True])


def projection(**options):
    return LaplexProjection(40, 7, generator=torch.Generator().manual_seed(1), **options)


def definition(module, x):
    x = x.double() if module.signs is None else x.double() * module.signs
    return oracle(x, module.a, module.b, module.tau, module.phi, module.psi)


@KINDS
@TRAINABLE
def test_is_the_product_of_the_definition(kind, trainable, dtype):
    module, x = projection(trainable=trainable, dtype=dtype, **kind), torch.randn(2, 3, 40, dtype=dtype)
    for _ in range(2):  # the second call has a plan
        y = module(x)
        assert y.shape == (2, 3, 7)
        assert y.dtype == dtype
        unphased = oracle(x.abs(), module.a, module.b, module.tau)
        assert error(y, definition(module, x), unphased) <= 2 * TOLERANCE[dtype]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_inputs_of_half_precision(dtype):
    module, x = projection(phase=True, signs=True), torch.randn(3, 40).to(dtype)
    y = module(x)
    assert y.dtype == dtype
    assert error(y, definition(module, x)) <= torch.finfo(dtype).eps


def test_draws_are_those_of_the_generator():
    state = torch.get_rng_state()
    one, two = projection(phase=True, signs=True).state_dict(), projection(phase=True, signs=True).state_dict()
    assert torch.equal(torch.get_rng_state(), state)
    assert list(one) == ["a", "b", "log_tau", "phi", "psi", "signs"]
    assert all(torch.equal(one[name], two[name]) for name in one)
    assert set(one["signs"].tolist()) == {-1, 1}


@TRAINABLE
def test_what_is_trained(trainable):
    module = projection(phase=True, signs=True, trainable=trainable)
    names = ["a", "b", "log_tau", "phi", "psi"]
    assert [name for name, _ in module.named_parameters()] == (names if trainable else [])
    assert [name for name, _ in module.named_buffers()] == (["signs"] if trainable else [*names, "signs"])


def test_gradients_are_those_of_the_definition():
    module, x = projection(phase=True, trainable=True, dtype=torch.float64), torch.randn(3, 40, dtype=torch.float64)
    leaves = list(module.parameters())
    got = torch.autograd.grad(module(x).sin().sum(), leaves)
    dense = reference.linear(x, module.a, module.b, module.tau, phi=module.phi, psi=module.psi)
    for one, other in zip(got, torch.autograd.grad(dense.sin().sum(), leaves), strict=True):
        assert error(one, other) <= 1e-12


def test_a_frozen_projection_passes_gradients_to_its_input():
    module, x = projection(signs=True, dtype=torch.float64), torch.randn(3, 40, dtype=torch.float64, requires_grad=True)
    (got,) = torch.autograd.grad(module(x).sin().sum(), x)
    dense = reference.linear(x * module.signs, module.a, module.b, module.tau)
    (want,) = torch.autograd.grad(dense.sin().sum(), x)
    assert error(got, want) <= 1e-13


# --- The plan --------------------------------------------------------------------------------------------------------


def test_the_plan_follows_what_is_loaded_moved_and_placed():
    module, x = projection(), torch.randn(40)
    module(x)
    module.load_state_dict(LaplexProjection(40, 7).state_dict())
    assert error(module(x), definition(module, x)) <= TOLERANCE[torch.float32]
    module.double()
    assert error(module(x.double()), definition(module, x)) <= TOLERANCE[torch.float64]
    module.place(torch.randn(9, 40))
    assert error(module(x.double()), definition(module, x)) <= TOLERANCE[torch.float64]


def reloaded(value, **options):
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file, **options)


@KINDS
@TRAINABLE
@pytest.mark.parametrize(
    "copied",
    [copy.deepcopy, lambda m: pickle.loads(pickle.dumps(m)), lambda m: reloaded(m, weights_only=False)],
    ids=["deepcopy", "pickle", "torch.save"],
)
def test_copies(kind, trainable, copied):
    module, x = projection(trainable=trainable, **kind), torch.randn(3, 40)
    y = module(x)
    twin = copied(module)
    assert twin._plan is None
    assert torch.equal(twin(x), y)
    assert repr(twin) == repr(module)
    with torch.no_grad():
        module.b.zero_()
    assert torch.equal(twin(x), y)


@KINDS
def test_a_state_dict_fits_frozen_and_trainable_projections(kind):
    module, x = projection(**kind), torch.randn(3, 40)
    y = module(x)
    state = reloaded(module.state_dict())
    other = LaplexProjection(40, 7, trainable=True, **kind)
    other.load_state_dict(state)
    assert error(other(x), y) <= 2 * TOLERANCE[torch.float32]
    back = LaplexProjection(40, 7, **kind)
    back.load_state_dict(other.state_dict())
    assert torch.equal(back(x), y)


# --- Precision and devices -------------------------------------------------------------------------------------------


@TRAINABLE
@pytest.mark.parametrize(
    "convert", [lambda m: m.half(), lambda m: m.to(torch.bfloat16), lambda m: m.to("cpu", torch.float16)]
)
def test_anchors_stay_float32(convert, trainable):
    module = projection(phase=True, signs=True, trainable=trainable)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    assert convert(module) is module
    after = module.state_dict()
    assert all(after[name].dtype == before[name].dtype and torch.equal(after[name], before[name]) for name in before)
    assert module(torch.randn(2, 40).half()).dtype == torch.float16


def test_old_files_in_which_the_length_scale_has_no_dimension():
    state = projection(tau=0.3).state_dict()
    module = projection(tau=0.2)
    module.load_state_dict({**state, "log_tau": state["log_tau"][0]})
    assert module.tau.shape == ()
    assert module.tau.item() == pytest.approx(0.3)


def test_old_pickles_in_which_the_length_scale_has_no_dimension():
    module = projection(tau=0.3, trainable=True)
    module.log_tau = torch.nn.Parameter(module.log_tau.detach()[0])
    loaded = pickle.loads(pickle.dumps(module))
    assert loaded.tau.item() == pytest.approx(0.3)
    assert isinstance(loaded.log_tau, torch.nn.Parameter)


def test_dtypes_and_the_meta_device():
    assert projection(dtype=torch.bfloat16).a.dtype == torch.float32
    assert projection().double().b.dtype == torch.float64
    shadow = LaplexProjection(40, 7, device="meta", phase=True, signs=True)
    assert shadow(torch.empty(3, 40, device="meta")).shape == (3, 7)
    assert "tau" not in repr(shadow)


@KINDS
@TRAINABLE
def test_from_the_meta_device_to_a_real_one(kind, trainable):
    module = LaplexProjection(40, 7, tau=0.3, device="meta", trainable=trainable, **kind).to_empty(device="cpu")
    module.reset_parameters(torch.Generator().manual_seed(1))
    want = projection(tau=0.3, trainable=trainable, **kind).state_dict()
    assert all(torch.equal(want[name], value) for name, value in module.state_dict().items())


def test_compiles(unpoisoned):
    module, x = projection(signs=True), torch.randn(3, 40)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), module(x))


def test_inference_mode():
    module, x = projection(), torch.randn(3, 40)
    with torch.inference_mode():
        inside = LaplexProjection(40, 7)
        assert error(module(x), definition(module, x)) <= TOLERANCE[torch.float32]
        assert error(inside(x), definition(inside, x)) <= TOLERANCE[torch.float32]


# --- Places and routing ----------------------------------------------------------------------------------------------


@TRAINABLE
def test_place_puts_inputs_where_the_data_say(trainable, dtype):
    data, module = torch.randn(30, 40), projection(trainable=trainable, dtype=dtype)
    parameter = module.b
    assert module.place(data) is module
    assert module.b is parameter
    assert torch.equal(module.b.detach(), seriate(data).to(dtype))
    assert torch.equal(module.a.detach(), ((torch.arange(7).double() + 0.5) / 7).to(dtype))
    assert module.tau.item() == pytest.approx(1 / 7)


@KINDS
def test_routing_is_within_its_bound(kind):
    module = projection(tau=0.05, dtype=torch.float64, **kind)
    routing, eye = module.to_routing(), torch.eye(40, dtype=torch.float64)
    off = (definition(module, eye) - routing.linear(eye)).abs()  # (d, m)
    assert bool((off <= routing.bound[:, None] + 2.0**-50).all())
    assert routing.linear(eye).count_nonzero() > 0


def test_a_sharp_placed_projection_adds_up_buckets():
    module = projection(tau=1e-6, signs=True)
    with torch.no_grad():
        module.b.copy_(module.a[torch.arange(40) % 7])
    x = torch.randint(-9, 9, (3, 40)).float()
    routing = module.to_routing()
    assert torch.equal(routing.bound, torch.zeros(40).double())
    assert torch.equal(routing.linear(x), module(x))


def test_repr():
    assert repr(projection()) == (
        "LaplexProjection(in_features=40, out_features=7, tau=0.143, phase=False, signs=False, trainable=False)"
    )


WRONG = {
    "in": (lambda: LaplexProjection(0, 3), ValueError, ": `in_features` must be at least 1, got 0; use"),
    "out": (lambda: LaplexProjection(3, 2.5), TypeError, ": `out_features` must be a whole number, got 2.5; use"),
    "tau": (lambda: projection(tau=-1.0), ValueError, ": `tau` must be positive and finite, or None, got -1.0; leave"),
    "huge": (
        lambda: projection(tau=1e40),
        ValueError,
        ": `tau` must be from 9.9e-32 to 4.1e+31 in torch.float32, got 1e+40;",
    ),
    "word": (
        lambda: projection(tau="1"),
        TypeError,
        ": `tau` must be a positive number or None, got '1'; leave it out",
    ),
    "dtype": (
        lambda: projection(dtype=torch.int32),
        TypeError,
        ": `dtype` must be a floating-point type, got torch.int32",
    ),
    "data": (lambda: projection().place([1.0]), TypeError, ".place: `data` must be a torch.Tensor, got list"),
    "shape": (
        lambda: projection().place(torch.ones(3, 4)),
        ValueError,
        ".place: `data` must be (N, 40), one row per sample, got shape (3, 4); use .flatten(1)",
    ),
    "x": (
        lambda: projection(signs=True)(torch.randn(2, 39)),
        ValueError,
        ": `x` must have size k = 40 in its last dimension to match `b`, got shape (2, 39)",
    ),
}


@pytest.mark.parametrize("kind", WRONG)
def test_errors(kind):
    call, raised, text = WRONG[kind]
    with pytest.raises(raised, match=re.escape("laplex.nn.LaplexProjection" + text)):
        call()


def test_an_input_of_another_length_is_refused_by_linear():
    with pytest.raises(ValueError, match=r"laplex.linear: `x` must have size k = 40"):
        projection()(torch.randn(2, 39))
