"""``laplex.nn.LaplexLinear`` under what torch offers to all modules: transforms, checkpoints, export, processes."""

import copy
import pickle
import pickletools
import threading

import pytest
import torch
from torch import nn
from torch.func import functional_call, hessian, jacfwd, jacrev, jvp, stack_module_state, vmap
from torch.utils.checkpoint import checkpoint

import laplex
from helpers import error
from laplex.nn import LaplexLinear, LaplexProjection

VARIANTS = {
    "plain": {},
    "kernels_3": {"kernels": 3},
    "phased": {"kernels": 2, "phase": True},
    "all": {"kernels": 2, "phase": True, "train_tau": True, "tau": 2.0, "bias": False},
}
variants = pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)


@pytest.fixture
def layer(options):
    return LaplexLinear(6, 5, dtype=torch.float64, **options)


@pytest.fixture
def x():
    return torch.randn(3, 6, dtype=torch.float64)


def dense(layer, state, x):
    """The definition, as a function of the parameters."""
    tau = state["log_tau"].exp() if layer.train_tau else layer.fixed_tau
    phases = {name: state.get(name) for name in ("phi", "psi")}
    y = laplex.reference.linear(x, state["a"], state["b"], tau, weight=state["mix"], **phases)
    return y + state["bias"] if "bias" in state else y


def leaves(tree):
    return torch.utils._pytree.tree_leaves(tree)


@variants
def test_derivatives_by_functional_calls(layer, x):
    state = {name: value.detach() for name, value in layer.named_parameters()}
    tangent = {name: torch.randn_like(value) for name, value in state.items()}

    def ours(state):
        return functional_call(layer, state, (x,))

    def theirs(state):
        return dense(layer, state, x)

    for derivative in (
        jacrev,
        jacfwd,
        lambda f: lambda state: jvp(f, (state,), (tangent,)),
        lambda f: hessian(lambda state: f(state).square().sum()),
    ):
        for got, want in zip(leaves(derivative(ours)(state)), leaves(derivative(theirs)(state)), strict=True):
            assert error(got, want) <= 1e-12


@variants
def test_an_ensemble_by_vmap(options, x):
    layers = [LaplexLinear(6, 5, dtype=torch.float64, **options) for _ in range(3)]
    shadow = copy.deepcopy(layers[0]).to("meta")
    got = vmap(lambda *state: functional_call(shadow, state, (x,)))(*stack_module_state(layers))
    assert error(got, torch.stack([layer(x) for layer in layers])) <= 1e-13


@variants
def test_a_frozen_layer_under_vmap(layer, x):
    layer.requires_grad_(False)(x)
    assert error(vmap(layer)(x), layer(x)) <= 1e-14


@variants
def test_checkpoints(layer, x):
    x.requires_grad_()
    wanted = [x, *layer.parameters()]
    got = torch.autograd.grad(checkpoint(layer, x, use_reentrant=False).square().sum(), wanted)
    want = torch.autograd.grad(layer(x).square().sum(), wanted)
    assert all(torch.equal(one, other) for one, other in zip(got, want, strict=True))


@variants
def test_exported_with_a_plan_kept(layer, x, unpoisoned):
    layer.requires_grad_(False)(x)
    assert layer._plan is not None
    exported = torch.export.export(layer, (x,)).module()
    assert error(exported(x), layer(x)) <= 1e-14


def test_threads_share_a_frozen_module():
    modules = LaplexLinear(200, 300).requires_grad_(False), LaplexProjection(200, 20)
    x = torch.randn(4, 200)
    want, wrong = [module(x) for module in modules], []

    def work():
        for i in range(60):
            wrong.extend(module for module, y in zip(modules, want, strict=True) if not torch.equal(module(x), y))
            if i % 7 == 0:
                modules[i % 2]._plan = None

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize("kind", [LaplexLinear, LaplexProjection])
def test_files_name_no_private_module(kind):
    named = {argument for _, argument, _ in pickletools.genops(pickle.dumps(kind(5, 4), protocol=2))}
    assert {name for name in named if isinstance(name, str) and "laplex" in name} == {f"laplex.nn {kind.__name__}"}


# --- two processes ----------------------------------------------------------------------------------------------------


def model_of():
    torch.manual_seed(0)
    return nn.Sequential(
        LaplexLinear(6, 5, kernels=2, train_tau=True), nn.ReLU(), LaplexLinear(5, 4, phase=True)
    ).double()


def examples_of():
    return torch.randn(8, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def one_of_two(rank, folder):
    torch.set_num_threads(1)
    store = torch.distributed.FileStore(f"{folder}/store", 2)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=2)
    model = nn.parallel.DistributedDataParallel(model_of())
    model(examples_of()[4 * rank :][:4]).square().sum().backward()
    torch.save([parameter.grad for parameter in model.parameters()], f"{folder}/{rank}")
    torch.distributed.destroy_process_group()


@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch was built without torch.distributed")
def test_two_processes_train_as_one(tmp_path):
    torch.multiprocessing.spawn(one_of_two, (str(tmp_path),), nprocs=2)
    model = model_of()
    model(examples_of()).square().sum().backward()
    for rank in range(2):
        for got, parameter in zip(torch.load(tmp_path / str(rank)), model.parameters(), strict=True):
            assert error(2 * got, parameter.grad) <= 1e-13
