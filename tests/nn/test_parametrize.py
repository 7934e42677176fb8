"""``laplex.nn.parametrize``: kernels behind the weights of torch's modules."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.func import functional_call
from torch.nn.utils.parametrize import cached, is_parametrized, register_parametrization, remove_parametrizations
from torch.optim.swa_utils import AveragedModel
from torch.utils._pytree import tree_leaves

import laplex
from helpers import error
from laplex.nn import LaplexLinear, parametrize

pytestmark = pytest.mark.usefixtures("one_thread")
MODULES = {
    "linear": (lambda: nn.Linear(24, 20), "weight", (3, 24)),
    "attention": (lambda: nn.MultiheadAttention(18, 3), "in_proj_weight", (5, 2, 18)),
    "1 x 1 convolution": (lambda: nn.Conv2d(24, 20, 1), "weight", (2, 24, 4, 4)),
    "convolution": (lambda: nn.Conv1d(8, 20, 3), "weight", (2, 8, 9)),
    "transposed convolution": (lambda: nn.ConvTranspose2d(20, 6, 2), "weight", (2, 20, 3, 3)),
    "inputs of an LSTM": (lambda: nn.LSTM(18, 15), "weight_ih_l0", (5, 2, 18)),
    "states of an LSTM": (lambda: nn.LSTM(18, 15, 2, bidirectional=True), "weight_hh_l1_reverse", (5, 2, 18)),
    "states of a GRU": (lambda: nn.GRU(18, 15, batch_first=True), "weight_hh_l0", (2, 5, 18)),
    "a cell": (lambda: nn.LSTMCell(18, 15), "weight_hh", (2, 18)),
    "bilinear": (lambda: nn.Bilinear(7, 5, 20), "weight", (3, 7)),
    "embedding": (lambda: nn.Embedding(30, 20), "weight", None),
}
modules = pytest.mark.parametrize(("make", "name", "shape"), MODULES.values(), ids=MODULES)


def quiet(done, total):
    """No bar."""


def inputs_for(module, shape, dtype=torch.float64):
    if shape is None:
        return (torch.randint(30, (4, 3)),)
    x = torch.randn(shape, dtype=dtype)
    if isinstance(module, nn.Bilinear):
        return x, torch.randn(3, 5, dtype=dtype)
    return (x, x, x) if isinstance(module, nn.MultiheadAttention) else (x,)


def layer_of(module, name):
    return module.parametrizations[name][0].layer


def defined(layer, shape):
    """The weight by the definition, differentiable."""
    phases = {} if layer.phi is None else {"phi": layer.phi, "psi": layer.psi}
    kernels = laplex.reference.kernel(layer.a, layer.b, layer.tau, **phases)
    return (layer.mix[:, None, None] * kernels).sum(0).view(shape)


def loss_of(output):
    return sum(part.square().sum() for part in tree_leaves(output))


def gradients(module, loss):
    names, parameters = zip(*module.named_parameters(), strict=True)
    return dict(zip(names, torch.autograd.grad(loss, parameters, allow_unused=True), strict=True))


# --- what the modules compute -----------------------------------------------------------------------------------------


@modules
@pytest.mark.parametrize("phase", [False, True], ids=["plain", "phased"])
def test_values_and_gradients_are_those_of_the_dense_weight(make, name, shape, phase):
    dense = make().double()
    module = parametrize(copy.deepcopy(dense), name, 2, phase=phase)
    layer_of(module, name).scale_gradients = False
    inputs = inputs_for(module, shape)
    weight = defined(layer_of(module, name), getattr(dense, name).shape)
    state = dict(module.named_parameters()) | {name: weight}
    got, want = (
        module(*inputs),
        functional_call(dense, {key: state[key] for key, _ in dense.named_parameters()}, inputs),
    )
    assert all(error(one, other) <= 1e-12 for one, other in zip(tree_leaves(got), tree_leaves(want), strict=True))
    ours, theirs = gradients(module, loss_of(got)), gradients(module, loss_of(want))
    assert ours.keys() == theirs.keys()
    assert all(error(ours[key], theirs[key]) <= 1e-10 for key in ours)


@modules
def test_it_trains_and_has_fewer_parameters(make, name, shape):
    torch.manual_seed(0)
    module = make()
    before = sum(parameter.numel() for parameter in module.parameters())
    assert parametrize(module, name, 2) is module
    assert sum(parameter.numel() for parameter in module.parameters()) < before
    inputs, optimizer, losses = inputs_for(module, shape, torch.float32), torch.optim.Adam(module.parameters()), []
    for _ in range(3):
        optimizer.zero_grad()
        loss = loss_of(module(*inputs))
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[2] < losses[1] < losses[0]


@modules
def test_removal_leaves_the_dense_weight(make, name, shape):
    module = make()
    kind = type(module)
    parametrize(module, name, 2)
    inputs = inputs_for(module, shape, torch.float32)
    want, weight = module(*inputs), getattr(module, name).detach()
    remove_parametrizations(module, name)
    assert type(module) is kind
    assert isinstance(getattr(module, name), nn.Parameter)
    assert torch.equal(getattr(module, name), weight)
    assert all(error(one, other) == 0 for one, other in zip(tree_leaves(module(*inputs)), tree_leaves(want)))
    loss_of(module(*inputs)).backward()
    assert getattr(module, name).grad is not None
    copy.deepcopy(module.double())


@modules
def test_copies_and_states(make, name, shape, tmp_path):
    module, other = (parametrize(make(), name, 2) for _ in range(2))
    inputs = inputs_for(module, shape, torch.float32)
    want = tree_leaves(module(*inputs))
    twin = copy.deepcopy(module)
    torch.save(module.state_dict(), tmp_path / "state.pt")
    other.load_state_dict(torch.load(tmp_path / "state.pt"))
    for each in (twin, other):
        assert all(torch.equal(one, two) for one, two in zip(tree_leaves(each(*inputs)), want, strict=True))
    with torch.no_grad():
        layer_of(module, name).a.add_(1.0)
    assert all(torch.equal(one, two) for one, two in zip(tree_leaves(twin(*inputs)), want, strict=True))


@modules
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64], ids=str)
def test_conversions_keep_the_anchors(make, name, shape, dtype):
    module = parametrize(make(), name, 2).to(dtype)
    layer = layer_of(module, name)
    assert getattr(module, name).dtype == dtype
    assert {layer.a.dtype, layer.b.dtype, layer.mix.dtype} == {torch.promote_types(dtype, torch.float32)}
    loss_of(module(*inputs_for(module, shape, dtype))).backward()
    assert layer.a.grad.dtype == layer.a.dtype
    assert getattr(module.float(), name).dtype == torch.float32
    assert getattr(copy.deepcopy(module.half()), name).dtype == torch.float16


@modules
def test_a_cache_forms_the_weight_once(make, name, shape, monkeypatch):
    module, count = parametrize(make(), name, 2), []
    inputs, form = inputs_for(module, shape, torch.float32), type(layer_of(module, name)).weight.fget
    monkeypatch.setattr(LaplexLinear, "weight", property(lambda self: count.append(self) or form(self)))
    with cached():
        loss_of(module(*inputs)) + loss_of(module(*inputs))
    assert len(count) == 1


# --- modules of torch with fast paths and lists -----------------------------------------------------------------------


def test_attention_in_evaluation():
    attention, x = (
        parametrize(nn.MultiheadAttention(24, 3, batch_first=True), "in_proj_weight", 4),
        torch.randn(2, 5, 24),
    )
    parametrize(attention.out_proj, "weight", 4)
    want, _ = attention(x, x, x)
    with torch.no_grad():
        got, _ = attention.eval()(x, x, x)
    assert error(got, want.detach()) <= 1e-6


def test_an_encoder_layer_in_evaluation():
    layer, x = nn.TransformerEncoderLayer(24, 3, 48, dropout=0.0, batch_first=True), torch.randn(2, 5, 24)
    for module, name in ((layer.self_attn, "in_proj_weight"), (layer.linear1, "weight"), (layer.linear2, "weight")):
        parametrize(module, name, 4)
    want = layer(x).detach()
    with torch.no_grad():
        assert error(layer.eval()(x), want) <= 1e-6


def test_every_weight_of_a_recurrent_network():
    torch.manual_seed(0)
    lstm, x = nn.LSTM(20, 16, 2), nn.utils.rnn.pack_sequence([torch.randn(5, 20), torch.randn(3, 20)])
    for name in ("weight_ih_l0", "weight_hh_l0", "weight_ih_l1", "weight_hh_l1"):
        parametrize(lstm, name, 2)
    optimizer = torch.optim.SGD(lstm.parameters(), lr=0.1)
    first = lstm(x)[0].data
    first.square().sum().backward()
    optimizer.step()
    assert error(lstm(x)[0].data, first.detach()) > 1e-3  # no weight of an earlier call is used again
    wanted = copy.deepcopy(lstm)(x)[0].data
    for name in ("weight_ih_l0", "weight_hh_l0", "weight_ih_l1", "weight_hh_l1"):
        remove_parametrizations(lstm, name)
        assert error(lstm(x)[0].data, wanted.detach()) <= 1e-6
    lstm.weight_ih_l0 = nn.Parameter(torch.zeros(64, 20))
    assert error(lstm(x)[0].data, wanted.detach()) > 1e-3


def test_a_recurrent_network_without_memory():
    lstm = parametrize(nn.LSTM(20, 16), "weight_ih_l0", 2).to("meta")
    assert lstm.weight_ih_l0.is_meta
    assert lstm.to_empty(device="cpu").weight_hh_l0.device.type == "cpu"


def test_averages_of_weights():
    module, x = parametrize(nn.Linear(24, 20), "weight", 2), torch.randn(3, 24)
    model = AveragedModel(module)
    model.update_parameters(module)
    with torch.no_grad():
        layer_of(module, "weight").mix.mul_(3.0)
    model.update_parameters(module)
    assert error(model.module.weight, 2 / 3 * module.weight) <= 1e-6
    assert model(x).shape == (3, 20)


def test_functional_calls():
    module, x = parametrize(nn.Linear(24, 20), "weight", 2), torch.randn(3, 24)
    state = {name: value.detach() + 0.1 for name, value in module.named_parameters()}
    got = functional_call(module, state, (x,))
    module.load_state_dict(state | dict(module.named_buffers()))
    assert error(got, module(x)) <= 1e-6


@pytest.mark.parametrize(
    "make", [lambda: nn.Linear(24, 20), lambda: nn.Conv1d(24, 20, 1)], ids=["linear", "convolution"]
)
def test_compiled(make, unpoisoned):
    torch._dynamo.reset()
    module = parametrize(make(), "weight", 2)
    x = torch.randn(24, 24) if isinstance(module, nn.Linear) else torch.randn(2, 24, 6)
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    assert error(compiled(x), module(x)) <= 1e-6
    ours, theirs = (gradients(module, loss_of(each(x))) for each in (compiled, module))
    assert all(error(ours[key], theirs[key]) <= 1e-5 for key in ours)


def test_another_parametrization_on_top():
    class Doubled(nn.Module):
        def forward(self, weight):
            return 2 * weight

    module = parametrize(nn.Linear(24, 20), "weight", 2)
    want = 2 * module.weight
    assert torch.equal(register_parametrization(module, "weight", Doubled()).weight, want)


def test_anchors_are_a_group_of_parameters():
    module = parametrize(nn.Linear(24, 20), "weight", 2)
    anchors, others = laplex.nn.parameter_groups(module, lr=0.1)
    assert {id(parameter) for parameter in anchors["params"]} == {
        id(layer_of(module, "weight").a),
        id(layer_of(module, "weight").b),
    }
    assert len(others["params"]) == 2


# --- starts -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("phase", [False, True], ids=["plain", "phased"])
@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: nn.Linear(96, 128), "weight"),
        (lambda: nn.Embedding(200, 64), "weight"),
        (lambda: nn.LSTM(96, 48), "weight_ih_l0"),
        (lambda: nn.MultiheadAttention(96, 4), "in_proj_weight"),
    ],
    ids=["linear", "embedding", "lstm", "attention"],
)
def test_a_fresh_start_is_as_large_as_the_weight(make, name, phase):
    module = make()
    before = float(getattr(module, name).detach().square().mean().sqrt())
    parametrize(module, name, 8, phase=phase)
    assert 0.7 < float(getattr(module, name).detach().square().mean().sqrt()) / before < 1.4


def test_a_weight_of_zeros_stays_so_and_trains():
    module = nn.Linear(24, 20)
    nn.init.zeros_(module.weight)
    parametrize(module, "weight", 2)
    assert not bool(module.weight.any())
    module(torch.randn(3, 24)).square().sum().backward()
    assert bool(layer_of(module, "weight").mix.grad.any())


def test_a_fit_is_near_the_weight():
    torch.manual_seed(0)
    module, source = nn.Conv2d(12, 24, 1), LaplexLinear(12, 24, kernels=2)
    weight = source.weight.detach()[:, :, None, None]
    module.weight.data.copy_(weight)
    parametrize(module, "weight", 4, fit=True, sweeps=20, progress=quiet)
    assert error(module.weight, weight) ** 2 == pytest.approx(
        layer_of(module, "weight").fit_residual, rel=1e-2, abs=1e-6
    )
    assert layer_of(module, "weight").fit_residual < 0.1


def test_a_fit_that_misses_most_warns():
    torch.manual_seed(0)
    with pytest.warns(
        UserWarning, match=r"the fit left \d+% of the energy of `weight` unexplained; train the model"
    ) as got:
        parametrize(nn.Linear(40, 30), "weight", 1, fit=True, sweeps=2, progress=quiet)
    assert got[0].filename == __file__


def test_what_is_frozen_stays_frozen():
    module = nn.Linear(24, 20).eval()
    module.weight.requires_grad_(False)
    parametrize(module, "weight", 2)
    assert [name for name, parameter in module.named_parameters() if parameter.requires_grad] == ["bias"]
    assert not layer_of(module, "weight").training


def test_a_buffer():
    module = nn.Module()
    module.register_buffer("table", torch.randn(20, 24))
    parametrize(module, "table", 2)
    assert module.table.shape == (20, 24)
    assert not module.table.requires_grad


# --- errors -----------------------------------------------------------------------------------------------------------


def test_an_assignment_is_refused():
    module = parametrize(nn.Linear(24, 20), "weight", 2)
    with pytest.raises(AttributeError, match=r"formed from anchors and cannot be assigned, got Tensor; call torch\."):
        module.weight = torch.zeros(20, 24)


def test_a_pickle_is_refused_by_torch():
    with pytest.raises(RuntimeError, match="only supported through state_dict"):
        pickle.dumps(parametrize(nn.Linear(24, 20), "weight", 2))


def faulty(value):
    module = nn.Linear(24, 20)
    module.weight.data[3, 4] = value
    return module


BAD = {
    "no module": ("model", "weight", {}, TypeError, "`module` must be a torch.nn.Module, got str; pass the one with"),
    "anchors": (LaplexLinear(24, 20), "weight", {}, TypeError, "dense weight, got LaplexLinear, which has anchors;"),
    "sparse": (nn.Embedding(30, 20, sparse=True), "weight", {}, ValueError, "must have sparse=False, got sparse=True"),
    "no tensor": (
        nn.MultiheadAttention(24, 3), "weight", {}, ValueError,
        "`tensor_name` must be a parameter or buffer of MultiheadAttention, got 'weight'; use in_proj_weight",
    ),
    "several": (nn.LSTMCell(24, 20), "weight", {}, ValueError, "got 'weight'; use weight_ih or weight_hh"),
    "none": (nn.Sequential(nn.Linear(24, 20)), "0.weight", {}, ValueError, "got '0.weight'; pass the submodule"),
    "no name": (nn.Linear(24, 20), ["weight"], {}, ValueError, r"got \['weight'\]; use weight"),
    "a bias": (nn.Linear(24, 20), "bias", {}, ValueError, r"`bias` must have rows and columns, got shape \(20,\)"),
    "empty": (nn.Embedding(0, 20), "weight", {}, ValueError, r"rows and columns, got shape \(0, 20\)"),
    "meta": (nn.Linear(24, 20, device="meta"), "weight", {}, ValueError, "tensor with numbers, got Parameter on m"),
    "lazy": (nn.LazyLinear(20), "weight", {}, ValueError, "tensor with numbers, got UninitializedParameter on"),
    "lazy name": (nn.LazyLinear(20), "wait", {}, ValueError, "parameter or buffer of LazyLinear, got 'wait'; pass the"),
    "whole numbers": (nn.BatchNorm1d(3), "num_batches_tracked", {}, TypeError, "floating-point type, got torch.int64"),
    "not finite": (faulty(torch.nan), "weight", {}, ValueError, "`weight` must be finite; it has 1 NaN or infinity"),
    "twice": (
        parametrize(nn.Linear(24, 20), "weight", 2), "weight", {}, ValueError,
        "`weight` must not be parametrized yet, got one that is, of ParametrizedLinear; call torch",
    ),
    "kernels": (nn.Linear(24, 20), "weight", {"kernels": 0}, ValueError, "`kernels` must be at least 1, got 0"),
    "no saving": (
        nn.Linear(24, 20), "weight", {"kernels": 20}, ValueError,
        "`kernels` must save parameters of `weight`, which has 480, got 20 with 900; use at most 10",
    ),
    "never saving": (nn.Linear(2, 3), "weight", {"kernels": 1}, ValueError, "has 6, got 1 with 6; leave it dense"),
    "phases": (nn.Linear(24, 20), "weight", {"fit": True, "phase": True}, ValueError, "fit=True kernels have no phase"),
    "sweeps": (nn.Linear(24, 20), "weight", {"kernels": 2, "fit": True, "sweeps": 0}, ValueError, "`sweeps` must be"),
}  # fmt: skip


@pytest.mark.parametrize(("module", "name", "options", "kind", "text"), BAD.values(), ids=BAD)
def test_bad_arguments(module, name, options, kind, text):
    before = is_parametrized(module) if isinstance(module, nn.Module) else None
    with pytest.raises(kind, match=text):
        parametrize(module, name, **{"kernels": 2} | options)
    assert before is None or is_parametrized(module) == before


@pytest.mark.parametrize("fit", [False, True])
def test_gradients_are_the_same_after_loading(fit):
    """They depend on the size of the first weight, which other modules of the same shape need not have."""
    x, options = torch.randn(5, 12), {"kernels": 2, "fit": fit, "progress": lambda *_: None}

    def parametrized(size):
        torch.manual_seed(0)
        linear = nn.Linear(12, 10)
        linear.weight.data *= size
        return parametrize(linear, "weight", **options)

    def gradients(module):
        return torch.autograd.grad(module(x).square().sum(), list(module.parameters()))

    module, other = parametrized(7.0), parametrized(1.0)
    want, state = gradients(module), module.state_dict()
    for loaded in (module, other):
        loaded.load_state_dict(state)
        assert all(map(torch.equal, gradients(loaded), want))
    old = {name: value for name, value in state.items() if not name.endswith(".size")}
    module.load_state_dict(old)
    assert all(map(torch.equal, gradients(module), want))
