"""Parameters that something else has put into half precision, as FSDP's ``param_dtype`` and ``functional_call`` do."""

import copy

import pytest
import torch
from torch import nn
from torch.func import functional_call

from helpers import error
from laplex.nn import LaplaceAttention, LaplexLinear, LaplexProjection, parametrize

MODULES = {
    "layer": lambda: LaplexLinear(40, 30, kernels=2, phase=True, train_tau=True),
    "frozen layer": lambda: LaplexLinear(40, 30, kernels=2).requires_grad_(False),
    "projection": lambda: LaplexProjection(40, 30, phase=True, signs=True, trainable=True),
    "frozen projection": lambda: LaplexProjection(40, 30),
    "attention": lambda: LaplaceAttention(40, 4),
    "parametrized": lambda: parametrize(nn.Linear(40, 30), "weight", 2),
}
HALF = pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)


@pytest.fixture(params=MODULES)
def module(request):
    torch.manual_seed(0)
    return MODULES[request.param]()


def rounded(module, dtype):
    return {
        name: value.to(dtype) if value.is_floating_point() else value for name, value in module.state_dict().items()
    }


@HALF
def test_products_of_rounded_parameters_are_those_of_their_values(module, dtype):
    state, x = rounded(module, dtype), torch.randn(3, 6, 40).to(dtype)
    y = functional_call(module, state, (x,))
    assert y.dtype == dtype
    exact = copy.deepcopy(module)
    exact.load_state_dict({name: value.to(module.state_dict()[name].dtype) for name, value in state.items()})
    assert error(y, exact(x.float())) <= 4 * torch.finfo(dtype).eps


@HALF
def test_gradients_reach_rounded_parameters(module, dtype):
    state = {name: value.requires_grad_(value.is_floating_point()) for name, value in rounded(module, dtype).items()}
    functional_call(module, state, (torch.randn(3, 6, 40).to(dtype),)).float().square().sum().backward()
    for name in dict(module.named_parameters()):
        assert state[name].grad.dtype == dtype, name
        assert 0 < float(state[name].grad.float().norm()) < float("inf"), name


@HALF
def test_the_weight_of_rounded_anchors_is_in_single_precision(dtype):
    layer = LaplexLinear(40, 30, kernels=2, phase=True)
    for parameter in (*layer.parameters(), *layer.buffers()):
        parameter.data = parameter.data.to(dtype)
    exact = copy.deepcopy(layer).float()
    assert layer.weight.dtype == torch.float32
    assert error(layer.weight, exact.weight) == 0


@HALF
def test_assigned_parameters_of_attention(dtype):
    state = rounded(LaplaceAttention(16, 4), dtype)
    with torch.device("meta"):
        attention = LaplaceAttention(16, 4)
    attention.load_state_dict(state, assign=True)
    assert attention(torch.randn(2, 50, 16).to(dtype)).dtype == dtype


@HALF
def test_frozen_layers_with_rounded_anchors_build_no_plans(dtype):
    for layer in (LaplexLinear(40, 30).requires_grad_(False), LaplexProjection(40, 30)):
        functional_call(layer, rounded(layer, dtype), (torch.randn(3, 40).to(dtype),))
        assert layer._plan is None


def test_tau_is_computed_in_single_precision():
    layer, projection = LaplexLinear(40, 30, train_tau=True), LaplexProjection(40, 30, tau=1e5)
    for module in (layer, projection):
        module.log_tau.data = module.log_tau.data.half()
        assert module.tau.dtype == torch.float32
        assert error(module.tau, module.log_tau.double().exp().reshape(module.tau.shape)) <= 2e-7
