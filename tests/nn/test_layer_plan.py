"""The plan that layers and projections keep while their anchors are frozen: it is never stale, nor saved."""

import copy
import pickle

import pytest
import torch
from torch import nn

import laplex
from helpers import error
from laplex.nn import LaplexLinear, LaplexProjection


@pytest.fixture(params=[lambda: LaplexLinear(300, 200).requires_grad_(False), lambda: LaplexProjection(300, 200)])
def make(request):
    return request.param


def dense(layer, x):
    """The definition, in float64."""
    a, b, tau = (anchors.detach().double() for anchors in (layer.a, layer.b, layer.tau))
    if isinstance(layer, LaplexProjection):
        return laplex.reference.linear(x.detach().double(), a, b, tau)
    y = laplex.reference.linear(x.detach().double(), a, b, tau, weight=layer.mix.detach().double())
    return y + layer.bias.detach().double()


def as_defined(layer, x):
    """How far the layer is from its definition."""
    return error(layer(x), dense(layer, x))


def test_a_frozen_layer_sorts_once(make):
    layer, x = make(), torch.randn(4, 300)
    first = layer(x)
    plan = layer._plan
    assert plan is not None
    assert torch.equal(layer(x), first)
    assert layer._plan is plan
    layer.a.mul_(-1.0)  # another order
    assert as_defined(layer, x) <= 1e-6
    assert layer._plan is not plan


def test_a_plan_is_not_part_of_the_state(make):
    layer = make()
    layer(torch.randn(300))
    assert layer._plan is not None
    assert "_plan" not in str(layer.state_dict().keys())
    assert copy.deepcopy(layer)._plan is None
    assert pickle.loads(pickle.dumps(layer))._plan is None
    assert layer.double()._plan is None


def written_through_data(layer):
    layer.a.data.copy_(3 * torch.randn_like(layer.a))


def assigned_to_data(layer):
    for _ in range(3):  # the memory of the first anchors is free again, and may be given to the third
        layer.a.data = 3 * torch.randn_like(layer.a)


def loaded(layer):
    layer.load_state_dict(type(layer)(300, 200).state_dict(), assign=True)


@pytest.mark.parametrize("change", [written_through_data, assigned_to_data, loaded])
def test_a_frozen_layer_follows_its_anchors(make, change):
    layer, x = make(), torch.randn(4, 300)
    layer(x)
    assert layer._plan is not None
    change(layer)
    assert as_defined(layer, x) <= 1e-6
    assert as_defined(layer, x) <= 1e-6


def test_a_layer_that_is_frozen_again_follows_a_fused_optimizer():
    layer, x = LaplexLinear(300, 200).requires_grad_(False), torch.randn(4, 300)
    layer(x)
    assert layer._plan is not None
    layer.requires_grad_(True)
    optimizer = torch.optim.SGD(layer.parameters(), lr=100.0, fused=True)
    layer(x).square().sum().backward()
    optimizer.step()
    layer.requires_grad_(False)
    assert as_defined(layer, x) <= 1e-6
    assert as_defined(layer, x) <= 1e-6


def test_a_plan_serves_inside_and_outside_of_inference_mode():
    for first_inside in (True, False):
        layer, x = LaplexLinear(300, 200).requires_grad_(False), torch.randn(4, 300)
        for inside in (first_inside, not first_inside):
            with torch.inference_mode(inside):
                assert as_defined(layer, x) <= 1e-6
        x.requires_grad_()
        (got,) = torch.autograd.grad(layer(x).sum(), x)
        assert error(got, dense(layer, torch.eye(300).double()).sub(layer.bias).sum(1).expand(4, -1)) <= 1e-6


def test_a_frozen_copy_that_follows_by_averages():
    model = nn.Sequential(LaplexLinear(300, 200))
    average = torch.optim.swa_utils.AveragedModel(model).requires_grad_(False)
    for _ in range(3):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter))
        average.update_parameters(model)
        assert as_defined(average.module[0], torch.randn(4, 300)) <= 1e-6


def test_trained_anchors_have_no_plan():
    for layer in (LaplexLinear(30, 20), LaplexProjection(30, 20, trainable=True)):
        layer(torch.randn(30))
        assert layer._plan is None


def test_tensors_can_be_swapped(make):
    """torch swaps them only where nothing refers to them, and a plan does."""
    layer = make()
    layer(torch.randn(2, 300))
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        layer.load_state_dict(make().state_dict())
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
