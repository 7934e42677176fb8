"""``laplex.nn.LaplexLinear`` under what torch offers to all modules: transforms, checkpoints, states, averages."""

import copy
import io
import pickle
import pickletools
import threading

import pytest
import torch
from torch import nn
from torch.func import functional_call, hessian, jacfwd, jacrev, jvp, stack_module_state, vmap
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
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
    return LaplexLinear(6, 5, dtype=torch.float64, scale_gradients=False, **options)


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
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
def test_traced_and_saved(options, x):
    layer, file = LaplexLinear(6, 5, dtype=torch.float64, **options), io.BytesIO()
    torch.jit.save(torch.jit.trace(layer, x), file)
    file.seek(0)
    assert error(torch.jit.load(file)(x), layer(x)) <= 1e-14


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


# --- states, averages, clipping ---------------------------------------------------------------------------------------


@variants
@pytest.mark.parametrize("assign", [False, True], ids=["copied", "assigned"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
def test_a_state_is_loaded(layer, options, assign, dtype):
    other = LaplexLinear(6, 5, dtype=torch.float64, **options)
    state = {name: value.to(dtype) for name, value in layer.state_dict().items()}
    assert other.load_state_dict(state, strict=True, assign=assign) == ([], [])
    for name, value in other.state_dict().items():
        assert error(value, state[name]) <= 1e-7, name
        assert value.dtype.itemsize >= 4, name
    assert other(torch.randn(3, 6, dtype=torch.float64)).isfinite().all()


def test_a_state_that_does_not_fit_is_refused():
    layer, state = LaplexLinear(6, 5, kernels=2), LaplexLinear(6, 5, kernels=2, bias=False).state_dict()
    with pytest.raises(RuntimeError, match=r'Missing key.*"bias"'):
        layer.load_state_dict(state)
    assert layer.load_state_dict(state, strict=False).missing_keys == ["bias"]
    with pytest.raises(RuntimeError, match=r"size mismatch for a: .*\[3, 5\].*\[2, 5\]"):
        layer.load_state_dict(LaplexLinear(6, 5, kernels=3).state_dict())


@variants
def test_a_layer_made_without_memory_takes_a_state(layer, options, x):
    other = LaplexLinear(6, 5, dtype=torch.float64, device="meta", **options)
    other.load_state_dict(layer.state_dict(), assign=True)
    assert torch.equal(other(x), layer(x))


@variants
def test_gradients_are_clipped(layer, x):
    (100 * layer(x)).square().sum().backward()
    want = torch.cat([parameter.grad.flatten() for parameter in layer.parameters()])
    norm = nn.utils.clip_grad_norm_(layer.parameters(), 0.5)
    got = torch.cat([parameter.grad.flatten() for parameter in layer.parameters()])
    assert error(norm, want.norm()) <= 1e-14
    assert error(got, 0.5 * want / want.norm()) <= 1e-6


@variants
def test_averages_of_weights(layer, x):
    model = AveragedModel(layer, multi_avg_fn=get_ema_multi_avg_fn(0.75))
    first = {name: value.clone() for name, value in layer.state_dict().items()}
    model.update_parameters(layer)
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(1.0)
    model.update_parameters(layer)
    last = layer.state_dict()
    layer.load_state_dict({name: 0.75 * first[name] + 0.25 * last[name] for name in first})
    assert error(model(x), layer(x)) <= 1e-13


@variants
def test_an_average_that_is_frozen_follows(layer, x):
    """A frozen copy keeps the order of its anchors, which an average moves."""
    model = AveragedModel(layer, multi_avg_fn=get_ema_multi_avg_fn(0.5)).requires_grad_(False)
    model.update_parameters(layer)
    model(x)
    with torch.no_grad():
        layer.a.copy_(layer.a.flip(-1))
    model.update_parameters(layer)
    assert error(model(x), x @ model.module.weight.T + (0 if layer.bias is None else layer.bias)) <= 1e-12
