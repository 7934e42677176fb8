"""``laplex.nn.reseat_step``: jumps of anchors during training."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional

from laplex.nn import LaplexLinear, reseat_step

pytestmark = pytest.mark.usefixtures("one_thread")


def stuck():
    """A layer whose anchors are in a wrong order, and a loss that says so."""
    torch.manual_seed(0)
    true, layer, x = LaplexLinear(10, 8, kernels=1), LaplexLinear(10, 8, kernels=1), torch.randn(200, 10)
    y = true(x).detach()
    return layer, lambda: functional.mse_loss(layer(x), y)


def test_a_jump_lowers_the_loss():
    layer, loss = stuck()
    before, after = reseat_step(layer, loss)
    assert float(loss().detach()) == pytest.approx(after, rel=1e-5)
    assert after < 0.7 * before


def test_a_layer_stays_as_it_is_where_no_jump_helps():
    layer, loss = stuck()
    state = copy.deepcopy(layer.state_dict())
    before, after = reseat_step(layer, loss, steps=(-1e3,))
    assert before == after
    assert all(torch.equal(state[name], value) for name, value in layer.state_dict().items())


@pytest.mark.parametrize("good", [0, 1], ids=["at_once", "later"])
def test_an_error_in_the_loss_leaves_the_layer_whole(good):
    layer, _ = stuck()
    state, calls = copy.deepcopy(layer.state_dict()), iter(range(9))

    def broken():
        loss = layer(torch.randn(2, 10)).sum()
        if next(calls) == good:
            raise RuntimeError("no data")
        return loss

    with pytest.raises(RuntimeError, match="no data"):
        reseat_step(layer, broken)
    assert "forward" not in vars(layer)
    assert all(torch.equal(state[name], value) for name, value in layer.state_dict().items())


def test_a_forward_of_the_instance_is_kept():
    layer, loss = stuck()
    wrapped = layer.forward = lambda x: LaplexLinear.forward(layer, x)
    reseat_step(layer, loss)
    assert vars(layer)["forward"] is wrapped


@pytest.mark.parametrize("dtype", [torch.float16, torch.complex64])
def test_a_jump_with_inputs_of_other_dtypes(dtype):
    layer, _ = stuck()
    x, y = (300 * torch.randn(200, 10)).to(dtype), torch.randn(200, 8)  # squares of float16 would overflow
    before, after = reseat_step(layer, lambda: ((layer(x) - y) / 300).abs().float().square().mean())
    assert after < before


def test_a_layer_that_is_given_zeros_stays():
    layer, _ = stuck()
    state = copy.deepcopy(layer.state_dict())
    for x in (torch.zeros(5, 10), torch.zeros(0, 10)):
        before, after = reseat_step(layer, lambda x=x: layer(x).square().sum())
        assert before == after
    assert all(torch.equal(state[name], value) for name, value in layer.state_dict().items())


def test_bad_losses():
    layer, loss = stuck()

    def without_gradients():
        with torch.no_grad():
            return loss()

    with pytest.raises(ValueError, match="does not depend on it, or not differentiably; call the layer in it, outside"):
        reseat_step(layer, without_gradients)
    with pytest.raises(TypeError, match="`loss` must return a tensor of one element, got float; return its mean"):
        reseat_step(layer, lambda: float(loss().detach()))
    with pytest.raises(TypeError, match=r"`loss` must return a tensor of one element, got shape \(2,\); return"):
        reseat_step(layer, lambda: loss().expand(2))
    with pytest.raises(TypeError, match="`loss` must be a function without arguments, got int; pass one"):
        reseat_step(layer, 3)
    for steps in (3.0, "12", (1.0, float("nan"))):
        with pytest.raises(ValueError, match=r"`steps` must be a sequence of finite numbers, got .*; leave it out"):
            reseat_step(layer, loss, steps=steps)


def test_bad_steps():
    layer, loss = stuck()
    with pytest.raises(TypeError, match="`layer` must be a LaplexLinear, got Linear"):
        reseat_step(nn.Linear(3, 3), loss)
    with pytest.raises(ValueError, match="`layer` must have no phases"):
        reseat_step(LaplexLinear(3, 3, phase=True), loss)
    with pytest.raises(ValueError, match="`loss` must be computed from the layer"):
        reseat_step(layer, lambda: torch.ones(1, requires_grad=True).sum())
