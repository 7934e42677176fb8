"""Inside compiled functions the graph breaks around calls of ``laplex.distributed``, which run eagerly.

Activation checkpointing calls them again in backward.
"""

import copy
import pickle

import pytest
import torch
import torch.distributed as dist
from torch.utils.checkpoint import checkpoint

from laplex import distributed
from laplex.distributed._agreement import run_on_all
from laplex.distributed._ranks import ranks_of
from laplex.nn import LaplexLinear, SpreadLinear

torch.manual_seed(0)
A, B, X = torch.randn(20), torch.randn(30), torch.randn(4, 30)


@pytest.fixture(autouse=True)
def one_process():
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def moved_and_back(a):
    plan = distributed.Plan(a, B)
    return plan.restore_rows(plan.arrange_rows(a + 1)) - 1


CALLS = {
    "linear": lambda a: distributed.linear(2 * X, a, B, 0.5) + 1,
    "plan": lambda a: distributed.linear(2 * X, a, B, 0.5, plan=distributed.Plan(a, B)) + 1,
    "arranged": moved_and_back,
    "gram": lambda a: distributed.gram(a, B) + 1,
    "solve": lambda a: distributed.KernelSystem(a, 0.5, 0.3).solve(a.sin()) + 1,
    "likelihood": lambda a: distributed.KernelSystem(a, 0.5, 0.3).log_likelihood(a.sin()) + 1,
}


def same_when_compiled(function, leaf):
    torch._dynamo.reset()
    both = [call(leaf) for call in (function, torch.compile(function, backend="aot_eager"))]
    torch.testing.assert_close(*both)
    torch.testing.assert_close(*(torch.autograd.grad(value.square().sum(), leaf)[0] for value in both))


@pytest.mark.usefixtures("unpoisoned")
@pytest.mark.parametrize("name", CALLS)
def test_functions(name):
    same_when_compiled(CALLS[name], A.clone().requires_grad_())


@pytest.mark.usefixtures("unpoisoned")
def test_a_model_with_a_spread_layer():
    layer = SpreadLinear(LaplexLinear(30, 20, kernels=2))
    same_when_compiled(torch.nn.Sequential(torch.nn.Identity(), layer, torch.nn.ReLU()), X.clone().requires_grad_())


def same_when_computed_again(function, leaf, use_reentrant):
    (want,) = torch.autograd.grad(function(leaf).square().sum(), leaf)
    checkpoint(function, leaf, use_reentrant=use_reentrant).square().sum().backward()
    torch.testing.assert_close(leaf.grad, want)


@pytest.mark.parametrize("use_reentrant", [True, False])
@pytest.mark.parametrize("name", CALLS)
def test_functions_that_are_computed_again(name, use_reentrant):
    same_when_computed_again(CALLS[name], A.clone().requires_grad_(), use_reentrant)


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_a_spread_layer_that_is_computed_again(use_reentrant):
    same_when_computed_again(SpreadLinear(LaplexLinear(30, 20)), X.clone().requires_grad_(), use_reentrant)


def test_a_fault_without_a_text():
    def fail():
        raise ValueError

    with pytest.raises(ValueError, match="rank 0: ValueError"):
        run_on_all("laplex", ranks_of(None), fail)


def test_a_plan_is_copied_but_not_saved():
    plan = distributed.Plan(A, B)
    assert copy.copy(plan) is copy.deepcopy(plan) is plan
    with pytest.raises(TypeError, match=r"laplex.distributed.Plan cannot be saved or sent: .* make it again"):
        pickle.dumps(plan)
