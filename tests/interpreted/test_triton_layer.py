"""A layer's step on the GPU, under Triton's interpreter: its values and gradients, and its replays."""

from contextlib import nullcontext

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks
from torch.utils.checkpoint import checkpoint

from helpers import error
from laplex import _backends, _route
from laplex._layer import product
from laplex._layer.inputs import Factors
from laplex._layer.product import layer_product
from laplex._triton import tuning
from laplex.reference import kernel

NAMES = ("x", "a", "b", "tau", "mix", "bias", "phi", "psi")
FACTORS = Factors(a=3.0, b=0.5, tau=7.0, mix=0.25, phases=1.5)
TOLERANCE = {torch.float32: 1e-6, torch.float64: 1e-13}
# Rows of x, features, results, kernels, phases.
LAYERS = {
    "few_results": ((7,), 90, 50, 1, False),
    "many_results": ((7,), 50, 90, 1, False),
    "as_many": ((2, 3), 40, 40, 1, False),
    "one_row": ((), 60, 30, 1, False),
    "long": ((9,), 330, 9, 1, False),
    "wide": ((9,), 9, 330, 1, False),
    "formed": ((9,), 30, 20, 3, False),
    "formed_with_phases": ((2, 4), 30, 20, 2, True),
}


@pytest.fixture(autouse=True)
def on_the_gpu_of_the_interpreter(tiles, monkeypatch):
    tiles(32, 2, carried=4, staged=False)
    monkeypatch.setattr(tuning, "TABLE_FROM", 1)
    monkeypatch.setattr(tuning, "LAYER_TILE", (16, 4))
    monkeypatch.setattr(tuning, "BLOCK_SUM_TILE", (64, 4))
    monkeypatch.setattr(_backends, "planner", lambda device: "triton")
    monkeypatch.setitem(_backends._loaded, ("formed", "cpu"), _backends.load("formed", "cuda"))
    monkeypatch.setattr(_backends, "cheapest", lambda work, device: "formed" if work.summed > 1 else "scan")
    monkeypatch.setattr(_route, "_routes", {})
    monkeypatch.setattr(_route, "steps", {})


@pytest.fixture(params=[False, True], ids=["rows_apart", "rows_adjacent"])
def adjacent(request, tiles):
    tiles(32, 4, carried=4, staged=False, adjacent=request.param)
    return request.param


def drawn(layer, dtype=torch.float32, bias=True):
    lead, k, n, r, phased = LAYERS[layer]
    torch.manual_seed(0)
    tensors = {
        "x": torch.randn(*lead, k), "a": torch.randn(r, n), "b": torch.randn(r, k), "tau": 0.5 + torch.rand(r),
        "mix": torch.randn(r), "bias": torch.randn(n) if bias else None,
        "phi": torch.randn(r, n) if phased else None, "psi": torch.randn(r, k) if phased else None,
    }  # fmt: skip
    return {name: None if value is None else value.to(dtype).requires_grad_() for name, value in tensors.items()}


def dense(x, a, b, tau, mix, bias, phi, psi):
    phases = ({},) * len(mix) if phi is None else [{"phi": p, "psi": q} for p, q in zip(phi, psi, strict=True)]
    total = sum(mix[q] * kernel(a[q], b[q], tau[q], **phases[q]) for q in range(len(mix)))
    y = x @ total.T
    return y if bias is None else y + bias


def true_gradients(inputs, g, factors):
    wide = {name: None if v is None else v.detach().double().requires_grad_() for name, v in inputs.items()}
    names = [name for name in NAMES if wide[name] is not None]
    y = dense(**wide)
    scale = {"a": factors.a, "b": factors.b, "tau": factors.tau, "mix": factors.mix}
    scale |= dict.fromkeys(("phi", "psi"), factors.phases)
    bars = torch.autograd.grad(y, [wide[name] for name in names], g.double())
    return y, {name: bar * scale.get(name, 1.0) for name, bar in zip(names, bars, strict=True)}


def assert_right(inputs, y, gradients, g, factors=FACTORS):
    dtype = inputs["x"].dtype
    true, bars = true_gradients(inputs, g, factors)
    assert y.dtype == dtype
    assert error(y, true) <= TOLERANCE[dtype]
    for name, bar in bars.items():
        assert gradients[name].shape == inputs[name].shape, name
        assert error(gradients[name], bar, bar.abs().amax().clamp(min=1.0)) <= 4 * TOLERANCE[dtype], name


def stepped(inputs, g=None, factors=FACTORS):
    return gradients_of(inputs, layer_product(**inputs, factors=factors), g)


def gradients_of(inputs, y, g=None):
    g = torch.randn(y.shape, dtype=y.dtype) if g is None else g
    names = [name for name in NAMES if inputs[name] is not None]
    bars = torch.autograd.grad(y, [inputs[name] for name in names], g)
    return y, dict(zip(names, bars, strict=True)), g


@pytest.fixture
def one_node(monkeypatch):
    """The composition is not used."""

    def refuse(*args):
        raise AssertionError("this was composed")

    monkeypatch.setattr(product, "composed", refuse)


@pytest.mark.usefixtures("one_node")
@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no_bias"])
@pytest.mark.parametrize("layer", LAYERS)
def test_values_and_gradients(layer, bias, adjacent, dtype):
    inputs = drawn(layer, dtype, bias)
    y, gradients, g = stepped(inputs)
    assert_right(inputs, y, gradients, g)


@pytest.mark.parametrize("layer", ["few_results", "many_results", "formed"])
def test_a_kernel_of_no_weight_has_a_gradient(layer):
    inputs = drawn(layer)
    inputs["mix"].data.zero_()
    y, gradients, g = stepped(inputs)
    assert float(gradients["mix"].detach().abs().max()) > 0
    assert_right(inputs, y, gradients, g)


@pytest.mark.parametrize("layer", ["few_results", "formed"])
def test_derivatives_of_derivatives(layer):
    inputs = drawn(layer, torch.float64)
    names = [name for name in NAMES if inputs[name] is not None]

    def second(function):
        first = torch.autograd.grad(
            (function(**inputs) ** 3).sum(), [inputs[name] for name in names], create_graph=True
        )
        return torch.autograd.grad(sum((bar**2).sum() for bar in first), [inputs[name] for name in names])

    for name, got, true in zip(names, second(layer_product), second(dense), strict=True):
        assert error(got, true) <= 1e-9, name


@pytest.mark.parametrize("g", ["expanded", "transposed"])
@pytest.mark.parametrize("layer", ["few_results", "formed"])
def test_cotangents_and_inputs_of_any_layout(layer, g):
    inputs = drawn(layer)
    lead, k, n, _, _ = LAYERS[layer]
    inputs["x"] = torch.randn(k, *lead).T.requires_grad_()
    cotangent = torch.ones(()).expand(*lead, n) if g == "expanded" else torch.randn(n, *lead).T
    assert_right(inputs, *stepped(inputs, cotangent))


@pytest.fixture
def repeated(replayed, monkeypatch):
    """Steps are recorded and replayed, as on a GPU."""
    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda self: True))
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch._C, "_cuda_getDevice", lambda: None, raising=False)


@pytest.mark.usefixtures("repeated")
@pytest.mark.parametrize("layer", ["few_results", "many_results", "formed"])
def test_checkpoints_from_the_first_step_on(layer, adjacent):
    for _ in range(3):
        inputs = drawn(layer)
        y = checkpoint(lambda inputs=inputs: layer_product(**inputs, factors=FACTORS), use_reentrant=False)
        assert_right(inputs, *gradients_of(inputs, y))


@pytest.mark.usefixtures("repeated")
@pytest.mark.parametrize("first", [True, False], ids=["at_first", "later"])
@pytest.mark.parametrize("layer", ["few_results", "many_results", "formed"])
def test_saved_tensors_that_somebody_copies(layer, first, adjacent):
    """A copy may have other strides."""

    def pack(tensor):
        return tensor.detach().clone(memory_format=torch.contiguous_format)

    for step in range(3):
        inputs = drawn(layer)
        with saved_tensors_hooks(pack, lambda tensor: tensor) if (step == 0) == first else nullcontext():
            y = layer_product(**inputs, factors=FACTORS)
        assert_right(inputs, *gradients_of(inputs, y))


@pytest.mark.usefixtures("repeated")
@pytest.mark.parametrize("layer", LAYERS)
def test_a_step_is_replayed_for_other_inputs(layer, adjacent):
    for seed in range(3):
        inputs = drawn(layer)
        torch.manual_seed(seed)
        for value in inputs.values():
            if value is not None:
                value.data.add_(torch.rand(value.shape))
        assert_right(inputs, *stepped(inputs))
        (step,) = _route.steps.values()
        assert step._forward.replay is not None
        assert step._backward.replay is not None


@pytest.mark.usefixtures("one_node")
@pytest.mark.parametrize("frozen", [("x",), ("tau",), ("bias", "mix"), ("x", "tau", "mix", "bias")], ids="+".join)
@pytest.mark.parametrize("layer", ["few_results", "many_results", "formed"])
def test_gradients_that_are_not_needed(layer, frozen):
    inputs = {name: v if v is None else v.detach() for name, v in drawn(layer).items()}
    names = [name for name in NAMES if inputs[name] is not None and name not in frozen]
    for name in names:
        inputs[name].requires_grad_()
    y = layer_product(**inputs, factors=FACTORS)
    g = torch.randn(y.shape)
    y.backward(g)
    _, bars = true_gradients(inputs, g, FACTORS)
    for name in inputs:
        if inputs[name] is not None:
            assert (inputs[name].grad is None) == (name in frozen), name
    for name in names:
        assert error(inputs[name].grad, bars[name], bars[name].abs().amax().clamp(min=1.0)) <= 4e-6, name


COMPOSED = {
    "frozen_anchors": lambda inputs: inputs | {"a": inputs["a"].detach()},
    "half_precision": lambda inputs: inputs | {"x": inputs["x"].detach().bfloat16()},
    "complex_numbers": lambda inputs: inputs | {"x": inputs["x"].detach().to(torch.complex64)},
    "no_rows": lambda inputs: inputs | {"x": inputs["x"].detach()[:0]},
    "a_bias_for_all": lambda inputs: inputs | {"bias": torch.randn(1)},
    "gaps_in_memory": lambda inputs: inputs | {"b": torch.randn(1, 180)[:, ::2].requires_grad_()},
}


@pytest.mark.parametrize("name", COMPOSED)
def test_what_has_no_step_is_composed(name):
    inputs = COMPOSED[name](drawn("few_results"))
    y = layer_product(**inputs)
    assert not y.grad_fn.name().startswith("_Step")
    assert y.dtype == inputs["x"].dtype
    assert y.shape == (*inputs["x"].shape[:-1], 50)


def test_a_step_that_computes_in_half_precision_adds_the_bias_once():
    inputs = drawn("formed")
    inputs["x"] = inputs["x"].detach().bfloat16().requires_grad_()
    y = layer_product(**inputs)
    assert y.grad_fn.name().startswith("_Step")
    assert y.dtype == torch.bfloat16
    g = torch.randn(y.shape).bfloat16()
    y.backward(g)
    true, bars = true_gradients(inputs, g, Factors())
    assert error(y, true) <= 0.02
    for name, bar in bars.items():
        assert inputs[name].grad.dtype == inputs[name].dtype
        assert error(inputs[name].grad, bar, bar.abs().amax()) <= 0.02, name
