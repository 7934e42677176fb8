"""Scales of a layer: its gradients are derivatives times constants, and the learning rates of nn.Linear suit it."""

import copy

import pytest
import torch
from torch import nn
from torch.func import functional_call

from helpers import error
from laplex.nn import LaplexLinear, parametrize, replace_linear
from laplex.nn._scales import default_tau, gradient_factors

VARIANTS = {
    "plain": {},
    "kernels": {"kernels": 3},
    "phased": {"kernels": 2, "phase": True},
    "all": {"kernels": 2, "phase": True, "train_tau": True, "tau": 0.5, "bias": False},
}
variants = pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)


def pair(options):
    """A layer, and the same with true derivatives."""
    layer = LaplexLinear(9, 7, dtype=torch.float64, **options)
    plain = copy.deepcopy(layer)
    plain.scale_gradients = False
    return layer, plain


def factors(layer):
    sizes = layer.out_features, layer.in_features
    each = gradient_factors(*sizes, layer.kernels, layer.phi is not None, layer._first_tau)
    names = ("a", "b", "log_tau", "mix", "phi", "psi")
    return dict(zip(names, each.each, strict=True)) | {"bias": 1.0}


def gradients(layer, loss):
    return dict(zip(dict(layer.named_parameters()), torch.autograd.grad(loss, [*layer.parameters()])))


def by_call(layer, x):
    return gradients(layer, layer(x).square().sum())


def by_weight(layer, x):
    layer.bias = None
    return gradients(layer, (x @ layer.weight.T).square().sum())


def by_transform(layer, x):
    state = {name: value.detach() for name, value in layer.named_parameters()}
    return torch.func.grad(lambda state: functional_call(layer, state, (x,)).square().sum())(state)


def by_compiled_call(layer, x):
    return gradients(layer, torch.compile(layer, fullgraph=True, backend="aot_eager")(x).square().sum())


@pytest.mark.parametrize("way", [by_call, by_weight, by_transform, by_compiled_call], ids=lambda way: way.__name__)
@variants
def test_gradients_are_derivatives_times_constants(options, way):
    layer, plain = pair(options)
    x = torch.randn(4, 9, dtype=torch.float64)
    got, want = way(layer, x), way(plain, x)
    assert got.keys() == want.keys()
    for name, factor in factors(layer).items():
        if name in want:
            assert error(got[name], factor * want[name]) <= 1e-12, name


@variants
def test_forward_mode_gives_true_derivatives(options):
    layer, plain = pair(options)
    x = torch.randn(4, 9, dtype=torch.float64)
    state = {name: value.detach() for name, value in layer.named_parameters()}
    tangents = {name: torch.randn_like(value) for name, value in state.items()}
    got, want = (
        torch.func.jvp(lambda state, one=one: functional_call(one, state, (x,)), (state,), (tangents,))[1]
        for one in (layer, plain)
    )
    assert error(got, want) <= 1e-12


def test_the_gradient_of_the_input_is_the_derivative():
    layer, plain = pair({"kernels": 2})
    x = torch.randn(4, 9, dtype=torch.float64, requires_grad=True)
    got, want = (torch.autograd.grad(one(x).square().sum(), x)[0] for one in (layer, plain))
    assert torch.equal(got, want)


def test_adam_does_not_see_the_constants():
    layer, plain = pair({"kernels": 3, "phase": True})
    x = torch.randn(4, 9, dtype=torch.float64)
    for one in (layer, plain):
        optimizer = torch.optim.Adam(one.parameters(), lr=1e-3, eps=1e-30)
        for _ in range(3):
            optimizer.zero_grad()
            one(x).square().sum().backward()
            optimizer.step()
    for got, want in zip(layer.parameters(), plain.parameters(), strict=True):
        assert error(got, want) <= 1e-10


def test_frozen_parameters_have_no_gradient_and_keep_their_plan():
    layer = LaplexLinear(300, 200).requires_grad_(False)
    layer(torch.randn(2, 300))
    assert layer._plan is not None


def test_pickles_of_old_layers_have_true_derivatives_and_can_be_reset():
    state = LaplexLinear(9, 7, tau=1.0).__getstate__()
    old = {name: value for name, value in state.items() if name not in ("scale_gradients", "_factor_numbers")}
    layer = LaplexLinear.__new__(LaplexLinear)
    layer.__setstate__(old)
    assert set(layer._factors) == {1.0}
    layer.reset_parameters()
    assert float(layer.tau[0]) == 1.0
    layer.scale_gradients = True
    assert layer._factors == LaplexLinear(9, 7, tau=1.0)._factors


def test_a_layer_that_is_loaded_scales_gradients_as_the_saved_one_did():
    saved, layer = LaplexLinear(9, 7, tau=1.0), LaplexLinear(9, 7)
    layer.load_state_dict(saved.state_dict())
    assert layer._factors == saved._factors
    layer.reset_parameters()
    assert float(layer.tau[0]) == 1.0


def test_a_resumed_training_of_tau_has_the_factors_of_its_start():
    saved, layer = LaplexLinear(9, 7, train_tau=True), LaplexLinear(9, 7, train_tau=True)
    saved.log_tau.data.add_(0.7)
    layer.load_state_dict(saved.state_dict())
    assert layer._factors == saved._factors


def test_a_large_weight_that_is_parametrized_has_small_factors():
    small, large = nn.Linear(32, 16), nn.Linear(32, 16)
    large.weight.data.copy_(10 * small.weight.data)
    factors = [parametrize(one, "weight", 2).parametrizations.weight[0].layer._factors for one in (small, large)]
    assert factors[0].a == pytest.approx(10 * factors[1].a)
    assert factors[0].mix == factors[1].mix


def test_a_layer_in_units_of_tau_is_the_same_for_every_tau():
    torch.manual_seed(0)
    small = LaplexLinear(64, 64, kernels=2)
    torch.manual_seed(0)
    large = LaplexLinear(64, 64, kernels=2, tau=1.0)
    x = torch.randn(3, 64)
    assert float(small.tau[0]) == pytest.approx(default_tau(64)) == pytest.approx(1 / 16)
    assert error(small(x), large(x)) <= 1e-5


def noisy_templates(count=600, features=64, classes=10):
    y = torch.arange(count) % classes
    return (torch.rand(classes, features)[y] + 0.3 * torch.randn(count, features)).clamp(0, 1), y


OPTIMIZERS = {
    "AdamW, 1e-3": lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
    "AdamW, 4e-3": lambda parameters: torch.optim.AdamW(parameters, lr=4e-3),
    "SGD, 0.03": lambda parameters: torch.optim.SGD(parameters, lr=0.03, momentum=0.9),
    "SGD, 0.1": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    "SGD, 0.2": lambda parameters: torch.optim.SGD(parameters, lr=0.2, momentum=0.9),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize("kernels", [4, 16])
def test_networks_learn_with_the_rates_of_dense_layers(kernels, optimizer):
    torch.manual_seed(0)
    x, y = noisy_templates()
    model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 128), nn.GELU(), nn.Linear(128, 10))
    replace_linear(model, kernels=kernels, exclude="4")
    stepper = optimizer(model.parameters())
    for _ in range(14):
        for rows in torch.randperm(len(x)).split(64):
            stepper.zero_grad()
            nn.functional.cross_entropy(model(x[rows]), y[rows]).backward()
            stepper.step()
    assert float((model(x).argmax(1) == y).float().mean()) >= 0.95
