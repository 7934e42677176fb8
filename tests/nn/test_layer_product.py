"""A layer's product: what ``laplex.linear`` and a bias give, in every mode, with gradients multiplied by factors."""

import pytest
import torch

import laplex
from helpers import error
from laplex._layer.inputs import Factors
from laplex._layer.product import layer_product

NAMES = ("x", "a", "b", "tau", "mix", "bias", "phi", "psi")
FACTORS = Factors(a=3.0, b=0.5, tau=7.0, mix=0.25, phases=1.5)
SCALES = dict(zip(NAMES, (1.0, 3.0, 0.5, 7.0, 0.25, 1.0, 1.5, 1.5), strict=True))
LAYERS = {"one_kernel": (1, False), "kernels": (3, False), "phases": (2, True)}


def drawn(layer, bias=True):
    r, phased = LAYERS[layer]
    tensors = {
        "x": torch.randn(4, 7), "a": torch.randn(r, 5), "b": torch.randn(r, 7), "tau": 0.5 + torch.rand(r),
        "mix": torch.randn(r), "bias": torch.randn(5) if bias else None,
        "phi": torch.randn(r, 5) if phased else None, "psi": torch.randn(r, 7) if phased else None,
    }  # fmt: skip
    return {name: None if value is None else value.double().requires_grad_() for name, value in tensors.items()}


def plainly(x, a, b, tau, mix, bias, phi, psi):
    y = laplex.linear(x, a, b, tau, weight=mix, phi=phi, psi=psi)
    return y if bias is None else y + bias


def with_factors(x, a, b, tau, mix, bias, phi, psi):
    return layer_product(x, a, b, tau, mix, bias, phi, psi, factors=FACTORS)


def gradients(function, inputs, **options):
    names = [name for name in NAMES if inputs[name] is not None]
    y = function(**inputs)
    return y, dict(zip(names, torch.autograd.grad(y.sin().sum(), [inputs[name] for name in names], **options)))


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no_bias"])
@pytest.mark.parametrize("layer", LAYERS)
def test_factors_multiply_gradients_and_nothing_else(layer, bias):
    inputs = drawn(layer, bias)
    y, bars = gradients(with_factors, inputs)
    true, plain_bars = gradients(plainly, inputs)
    assert torch.equal(y, true)
    for name, bar in bars.items():
        assert error(bar, SCALES[name] * plain_bars[name]) <= 1e-12, name


@pytest.mark.parametrize("layer", LAYERS)
def test_derivatives_of_derivatives_have_the_factors_twice(layer):
    """They precondition as other units of the parameters would."""
    inputs = drawn(layer)
    names = [name for name in NAMES if inputs[name] is not None]

    def in_units(**units):
        values = {name: None if v is None else inputs[name].detach() + SCALES[name] * v for name, v in units.items()}
        return plainly(**values)

    units = {name: None if v is None else torch.zeros_like(v).requires_grad_() for name, v in inputs.items()}
    seconds = []
    for function, given in ((with_factors, inputs), (in_units, units)):
        _, first = gradients(function, given, create_graph=True)
        total = sum((bar**2).sum() for bar in first.values())
        seconds.append(torch.autograd.grad(total, [given[name] for name in names]))
    for name, got, true in zip(names, *seconds, strict=True):
        assert error(got, true) <= 1e-10, name


@pytest.mark.parametrize("layer", LAYERS)
def test_transforms_see_the_same_function(layer):
    inputs = {name: None if v is None else v.detach() for name, v in drawn(layer).items()}
    given = {name: value for name, value in inputs.items() if value is not None}
    missing = {name: None for name in inputs if name not in given}

    def total(function):
        return lambda values: function(**values, **missing).sin().sum()

    bars, true = torch.func.grad(total(layer_product))(given), torch.func.grad(total(plainly))(given)
    scaled = torch.func.grad(total(with_factors))(given)
    tangents = {name: torch.randn_like(value) for name, value in given.items()}
    forward = [torch.func.jvp(total(function), (given,), (tangents,))[1] for function in (layer_product, plainly)]
    assert error(*forward) <= 1e-12
    for name, bar in true.items():
        assert error(bars[name], bar) <= 1e-12, name
        assert error(scaled[name], SCALES[name] * bar) <= 1e-12, name
    rows = torch.func.vmap(lambda x: layer_product(**inputs | {"x": x}))(inputs["x"][:, None])
    assert error(rows[:, 0], plainly(**inputs)) <= 1e-12


@pytest.mark.parametrize("layer", ["one_kernel", "kernels"])
def test_in_a_graph(layer, unpoisoned):
    torch._dynamo.reset()  # else the number of kernels would be a symbol
    inputs = drawn(layer)
    y, bars = gradients(torch.compile(with_factors, backend="aot_eager", fullgraph=True), inputs)
    true, plain_bars = gradients(plainly, inputs)
    assert error(y, true) <= 1e-12
    for name, bar in bars.items():
        assert error(bar, SCALES[name] * plain_bars[name]) <= 1e-12, name


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.complex128, torch.float32])
def test_inputs_of_other_dtypes(dtype):
    inputs = drawn("kernels")
    inputs = {name: None if v is None else v.detach().float().requires_grad_() for name, v in inputs.items()}
    inputs["x"] = inputs["x"].detach().to(dtype)
    y = layer_product(**inputs)
    assert y.dtype == dtype
    assert torch.equal(y, laplex.linear(inputs["x"], inputs["a"], inputs["b"], inputs["tau"], weight=inputs["mix"])
        + inputs["bias"].to(dtype))  # fmt: skip


def test_no_rows():
    inputs = drawn("one_kernel") | {"x": torch.empty(0, 7, dtype=torch.float64)}
    assert layer_product(**inputs).shape == (0, 5)
