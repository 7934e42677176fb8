"""``laplex.nn.LaplexLinear``: what a user of nn.Linear relies on."""

import copy
import pickle

import pytest
import torch
from torch import nn

import laplex
from helpers import error
from laplex.nn import LaplexLinear

VARIANTS = {
    "plain": {},
    "kernels_4": {"kernels": 4},
    "phased": {"kernels": 2, "phase": True},
    "trained_tau": {"kernels": 3, "train_tau": True, "tau": 0.5},
    "no_bias": {"kernels": 2, "bias": False},
    "all": {"kernels": 2, "phase": True, "train_tau": True, "tau": 2.0},
}
variants = pytest.mark.parametrize("options", VARIANTS.values(), ids=VARIANTS)


def layer_of(options, sizes=(30, 20), **more):
    return LaplexLinear(*sizes, **options, **more)


def dense_of(layer):
    """The definition, in float64."""
    wide = copy.deepcopy(layer).double()
    phases = [{}] * layer.kernels if layer.phi is None else [{"phi": p, "psi": q} for p, q in zip(wide.phi, wide.psi)]
    parts = zip(wide.mix, wide.a, wide.b, wide.tau, phases)
    return sum(w * laplex.reference.kernel(a, b, tau, **phase) for w, a, b, tau, phase in parts)


@variants
def test_is_the_sum_of_its_kernels(options):
    layer, x = layer_of(options), torch.randn(5, 2, 30)
    bias = 0.0 if layer.bias is None else layer.bias.double()
    assert error(layer(x), x.double() @ dense_of(layer).T + bias) <= 1e-6
    assert error(layer.to_dense(), dense_of(layer)) <= 1e-6
    assert error(layer.to_linear()(x), layer(x)) <= 1e-6


@variants
def test_gradients_are_those_of_the_definition(options):
    layer, x = layer_of(options).double(), torch.randn(5, 30, dtype=torch.float64, requires_grad=True)
    leaves = [x, *layer.parameters()]
    g = torch.randn(5, 20, dtype=torch.float64)
    got = torch.autograd.grad(layer(x), leaves, g)
    y = x @ layer.to_dense().T
    want = torch.autograd.grad(y if layer.bias is None else y + layer.bias, leaves, g)
    for (name, _), one, other in zip([("x", x), *layer.named_parameters()], got, want):
        assert error(one, other) <= 1e-11, name


@pytest.mark.parametrize(("kernels", "expected"), [(4, 8_076), (8, 15_152), (16, 29_304)])
def test_parameters_of_a_swin_head(kernels, expected):
    assert sum(p.numel() for p in LaplexLinear(768, 1000, kernels=kernels).parameters()) == expected


@pytest.mark.parametrize("sizes", [(1, 1), (7, 7), (30, 20), (20, 30), (40, 41), (1, 9), (64, 5)])
def test_starts_with_kernels_of_full_rank(sizes):
    layer = LaplexLinear(*sizes, kernels=3)
    assert laplex.rank(layer.a.detach(), layer.b.detach()).tolist() == [min(sizes)] * 3


@pytest.mark.parametrize(
    ("options", "size"),
    [({}, 1), ({"kernels": 8}, 2), ({"kernels": 4, "phase": True}, 2), ({"tau": 0.01}, 1), ({"tau": 100.0}, 1)],
    ids=str,
)
def test_starts_with_results_once_or_twice_as_large_as_those_of_a_dense_layer(options, size):
    x = torch.randn(256, 512)
    ours = torch.stack([LaplexLinear(512, 300, **options)(x).std() for _ in range(8)]).square().mean().sqrt()
    assert 0.8 * size < float(ours.detach() / nn.Linear(512, 300)(x).std().detach()) < 1.25 * size


@variants
def test_saving_and_loading(options, tmp_path):
    layer, other, x = layer_of(options), layer_of(options), torch.randn(4, 30)
    torch.save(layer.state_dict(), tmp_path / "layer.pt")
    other.load_state_dict(torch.load(tmp_path / "layer.pt"))  # weights_only, the default
    assert torch.equal(other(x), layer(x))
    assert torch.equal(pickle.loads(pickle.dumps(layer))(x), layer(x))
    assert torch.equal(copy.deepcopy(layer)(x), layer(x))


@variants
def test_the_weight_is_the_matrix(options):
    layer = layer_of(options)
    assert tuple(layer.weight.shape) == (20, 30)
    assert error(layer.weight, dense_of(layer)) <= 1e-6
    assert set(layer.state_dict()) & {"mix", "weight"} == {"mix"}


def test_modules_that_read_the_weight_train_the_anchors():
    attention, x = nn.MultiheadAttention(8, 2), torch.randn(5, 3, 8)
    attention.out_proj = LaplexLinear(8, 8, kernels=2)
    y, _ = attention(x, x, x)
    y.square().sum().backward()
    assert all(float(parameter.grad.abs().sum()) > 0 for parameter in attention.out_proj.parameters())


@pytest.mark.parametrize("value", [nn.Parameter(torch.zeros(4, 3)), torch.zeros(4, 3), None])
def test_the_weight_cannot_be_assigned(value):
    layer = LaplexLinear(3, 4)
    with pytest.raises(AttributeError, match=f"`weight` is formed .* got {type(value).__name__}; use init_from"):
        layer.weight = value
    assert layer.weight.shape == (4, 3)
    assert "weight" not in dict(layer.named_parameters())


# --- old files, in which `mix` is called `weight` and `kernels` is called `rank` --------------------------------------


@variants
def test_an_old_state_is_loaded(options):
    layer, other, x = layer_of(options), layer_of(options), torch.randn(4, 30)
    old = {f"0.{'weight' if name == 'mix' else name}": value for name, value in layer.state_dict().items()}
    nn.Sequential(other).load_state_dict(old)
    assert torch.equal(other(x), layer(x))
    assert "0.weight" in old


def test_a_dense_weight_is_not_taken_for_an_old_state():
    with pytest.raises(RuntimeError, match=r'Missing key.*"mix"(.|\n)*Unexpected key.* "weight"'):
        LaplexLinear(3, 3, kernels=3).load_state_dict(nn.Linear(3, 3).state_dict())


@variants
def test_an_old_pickle_is_loaded(options):
    layer, old, x = layer_of(options), LaplexLinear.__new__(LaplexLinear), torch.randn(4, 30)
    state = copy.deepcopy(layer).__getstate__()
    parameters = {"weight" if name == "mix" else name: value for name, value in state["_parameters"].items()}
    old.__setstate__({**state, "rank": state.pop("kernels"), "_parameters": parameters})
    assert torch.equal(old(x), layer(x))
    assert str(old) == str(layer)
    assert [name for name, _ in old.named_parameters()] == [name for name, _ in layer.named_parameters()]


def test_a_fixed_tau_is_saved():
    layer, other, x = LaplexLinear(8, 9, tau=0.3), LaplexLinear(8, 9), torch.randn(8)
    other.load_state_dict(layer.state_dict())
    assert torch.equal(other(x), layer(x))


def test_safetensors(tmp_path):
    safetensors = pytest.importorskip("safetensors.torch")
    layer, other, x = LaplexLinear(8, 9, kernels=2), LaplexLinear(8, 9, kernels=2), torch.randn(8)
    safetensors.save_model(layer, str(tmp_path / "layer.safetensors"))
    safetensors.load_model(other, str(tmp_path / "layer.safetensors"))
    assert torch.equal(other(x), layer(x))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("convert", [False, True])
def test_half_precision_keeps_the_parameters(dtype, convert):
    layer = LaplexLinear(30, 20, kernels=2).to(dtype) if convert else LaplexLinear(30, 20, kernels=2, dtype=dtype)
    assert {p.dtype for p in [*layer.parameters(), *layer.buffers()]} == {torch.float32}
    x = torch.randn(5, 30).to(dtype)
    y = layer(x)
    assert y.dtype == dtype
    assert error(y, x.double() @ dense_of(layer).T + layer.bias.double()) <= 4 * torch.finfo(dtype).eps
    y.float().sum().backward()
    assert all(bool(p.grad.isfinite().all()) for p in layer.parameters())
    assert {p.dtype for p in layer.double().parameters()} == {torch.float64}
    assert {p.dtype for p in layer.half().parameters()} == {torch.float32}


def test_under_autocast():
    layer, x = LaplexLinear(30, 20, kernels=2), torch.randn(5, 30)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = layer(x)
    assert y.dtype == nn.functional.linear(x, x).to(torch.bfloat16).dtype
    assert error(y, layer(x)) <= 0.02


@variants
def test_compiled(options):
    torch._dynamo.reset()
    layer, x = layer_of(options), torch.randn(5, 30)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager")
    got, want = compiled(x), layer(x)
    assert error(got, want) <= 1e-6
    one, other = (torch.autograd.grad(y.square().sum(), list(layer.parameters())) for y in (got, want))
    assert all(error(this, that) <= 1e-5 for this, that in zip(one, other))


# --- starts -----------------------------------------------------------------------------------------------------------


def blobs(classes=10, features=16, each=20):
    centres = torch.randn(classes, features)
    y = torch.arange(classes).repeat_interleave(each)
    return centres[y] + 0.3 * torch.randn(len(y), features), y


@pytest.mark.parametrize("phase", [False, True])
@pytest.mark.parametrize("sizes", [(20, 30), (30, 20), (25, 25)])
def test_init_from_a_weight_orders_anchors_by_its_singular_vectors(sizes, phase):
    weight = torch.randn(sizes)
    layer = LaplexLinear(sizes[1], sizes[0], kernels=3, tau=0.5, phase=phase).init_from(weight)
    left, _, right = torch.linalg.svd(weight)
    for r in range(3):
        directions = []
        for anchors, vectors in ((layer.a[r], left.T[r]), (layer.b[r], right[r])):
            order = anchors.detach().argsort().tolist()
            directions += [1] if order == vectors.argsort().tolist() else [-1]
            assert order == vectors.argsort(descending=directions[-1] < 0).tolist()
        assert directions[0] * directions[1] == layer.mix[r].sign()
    assert laplex.rank(layer.a.detach(), layer.b.detach()).tolist() == [min(sizes)] * 3
    assert float(layer.bias.detach().abs().max()) == 0.0


def test_init_from_examples_learns_more_in_the_same_time():
    torch.manual_seed(0)
    x, y = blobs(classes=30, features=40)
    losses = []
    for start in ("data", "nothing"):
        torch.manual_seed(1)
        layer = LaplexLinear(40, 30, kernels=4)
        if start == "data":
            layer.init_from((x, y))
        optimizer = torch.optim.Adam(layer.parameters(), lr=0.05)
        for _ in range(60):
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(layer(x), y)
            loss.backward()
            optimizer.step()
        losses.append(float(loss))
    assert losses[0] < losses[1]


BATCHES = {
    "a list": lambda x, y: [x, y],
    "batches": lambda x, y: [(x[:7], y[:7]), (x[7:], y[7:])],
    "lists": lambda x, y: [[x[:50], y[:50]], [x[50:], y[50:]]],
    "a loader": lambda x, y: torch.utils.data.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=32),
    "a generator": lambda x, y: (pair for pair in [(x[:9], y[:9]), (x[9:], y[9:])]),
}


@pytest.mark.parametrize("batches", BATCHES.values(), ids=BATCHES)
def test_init_from_batches_is_that_of_all_examples(batches):
    x, y = blobs()
    want, got = (LaplexLinear(16, 10, kernels=2).init_from(target) for target in ((x, y), batches(x, y)))
    assert torch.equal(got.a, want.a)
    assert torch.equal(got.b, want.b)


def test_a_constant_feature_and_an_empty_class_do_no_harm():
    x, y = blobs()
    x[:, 3] = 7.0
    layer = LaplexLinear(16, 12, kernels=2).init_from((x, y))
    assert all(bool(p.isfinite().all()) for p in layer.parameters())


def test_init_from_takes_one_example_per_class():
    torch.manual_seed(0)
    x, y = 10 * torch.randn(12, 16), torch.arange(12)
    once = LaplexLinear(16, 12, kernels=2).init_from((x, y))
    twice = LaplexLinear(16, 12, kernels=2).init_from((x.repeat(2, 1), y.repeat(2)))
    assert all(bool(p.isfinite().all()) for p in once.parameters())
    assert torch.allclose(once.a.abs(), twice.a.abs(), atol=1e-5)  # the singular vectors' signs are arbitrary


# --- errors -----------------------------------------------------------------------------------------------------------

BAD = {
    "no kernels": (dict(kernels=0), ValueError, "`kernels` must be at least 1, got 0"),
    "half a kernel": (dict(kernels=1.5), TypeError, "`kernels` must be a whole number, got 1.5"),
    "no features": (dict(in_features=0), ValueError, "`in_features` must be at least 1, got 0"),
    "fewer": (dict(out_features=-3), ValueError, "`out_features` must be at least 1, got -3"),
    "tau 0": (dict(tau=0.0), ValueError, "`tau` must be positive and finite, or None, got 0.0"),
    "tau nan": (dict(tau=float("nan")), ValueError, "`tau` must be positive and finite, or None, got nan"),
    "tau text": (dict(tau="1"), TypeError, "`tau` must be a positive number or None, got '1'"),
    "tau too large": (
        dict(tau=1e39),
        ValueError,
        r"`tau` must be from 9.9e-32 to 4.1e\+31 in torch.float32, got 1e\+39",
    ),
    "tau too small": (dict(tau=1e-300, train_tau=True), ValueError, "`tau` must be from 9.9e-32 .* got 1e-300; scale"),
    "old name": (dict(rank=4), TypeError, "`rank` is now called `kernels`, got rank=; use kernels="),
    "integers": (dict(dtype=torch.int32), TypeError, "`dtype` must be a floating-point type, got torch.int32"),
}


@pytest.mark.parametrize(("options", "kind", "text"), BAD.values(), ids=BAD)
def test_bad_arguments(options, kind, text):
    with pytest.raises(kind, match=f"laplex.nn.LaplexLinear: {text}"):
        LaplexLinear(**{"in_features": 3, "out_features": 4, **options})


def test_bad_inputs():
    layer = LaplexLinear(30, 20, kernels=2)
    with pytest.raises(ValueError, match=r"`x` must have 30 features in its last dimension, got \(5, 29\)"):
        layer(torch.randn(5, 29))
    with pytest.raises(TypeError, match="`x` must be a tensor, got list"):
        layer([1.0])


BAD_TARGETS = {
    "shape": (torch.randn(3, 3), r"`target` must be \(12, 16\), got \(3, 3\)"),
    "nan": (torch.full((12, 16), torch.nan), "`target` must be finite; it has 192 NaN or infinity"),
    "features": ((torch.randn(5, 3), torch.zeros(5, dtype=torch.long)), r"`x` must be \(N, 16\) .* got \(5, 3\)"),
    "none": ((torch.randn(0, 16), torch.zeros(0, dtype=torch.long)), r"with at least one example, got \(0, 16\)"),
    "labels": ((torch.randn(5, 16), torch.zeros(5)), r"`y` must hold 5 class labels, whole numbers, got torch.float32"),
    "classes": ((torch.randn(5, 16), torch.full((5,), 12)), r"`y` must be in 0 ... 11, the classes, got 12 ... 12"),
    "meta": (torch.randn(12, 16, device="meta"), "`target` must hold numbers, got a tensor on the meta device"),
    "three": (
        (torch.randn(5, 16), torch.zeros(5), 1),
        r"`target` must be a weight or a pair \(x, y\), .* got 3 values",
    ),
    "one": ((torch.randn(5, 16),), r"`target` must be a weight or a pair \(x, y\), or batches of them, got 1 values"),
    "no pair": ([(torch.randn(5, 16),)], r"`target` must be a weight or a pair \(x, y\), or batches of them, got 1"),
    "no batch": ([], r"`target` must have at least one batch, got none; a loader is read to its end"),
    "loader of x": (iter([torch.randn(5, 16)]), r"`target` must be .* or batches of them, got Tensor"),
    "infinite": ((torch.full((5, 16), torch.inf), torch.zeros(5, dtype=torch.long)), "`x` must be finite; it has 80"),
}


@pytest.mark.parametrize(("target", "text"), BAD_TARGETS.values(), ids=BAD_TARGETS)
def test_bad_targets(target, text):
    layer = LaplexLinear(16, 12)
    before = copy.deepcopy(layer.state_dict())
    with pytest.raises(ValueError, match=text):
        layer.init_from(target)
    assert all(torch.equal(before[name], value) for name, value in layer.state_dict().items())


BAD_TYPES = {
    "number": (3, r"`target` must be a weight, a pair \(x, y\) or batches of such pairs, got int"),
    "complex weight": (torch.ones(12, 16).cfloat(), "`target` must be real, got torch.complex64; use target.real"),
    "complex x": ((torch.ones(5, 16).cfloat(), torch.ones(5).long()), "`x` must be real, got torch.complex64; use x.r"),
}


@pytest.mark.parametrize(("target", "text"), BAD_TYPES.values(), ids=BAD_TYPES)
def test_targets_of_bad_types(target, text):
    with pytest.raises(TypeError, match=text):
        LaplexLinear(16, 12).init_from(target)


@pytest.mark.parametrize("kernels", [1, 2])
def test_a_constant_weight_tells_no_rows_apart(kernels):
    layer = LaplexLinear(16, 12, kernels=kernels).init_from(torch.ones(12, 16))
    assert len(layer.a[0].unique()) == len(layer.b[0].unique()) == 1
    assert all(bool(parameter.isfinite().all()) for parameter in layer.parameters())


def test_equal_rows_start_together():
    weight = torch.randn(12, 16)
    weight[3] = weight[7] = weight[11]
    a = LaplexLinear(16, 12, kernels=3).init_from(weight).a.detach()
    assert torch.equal(a[:, 3], a[:, 7])
    assert torch.equal(a[:, 3], a[:, 11])


def test_more_kernels_than_singular_vectors():
    with pytest.raises(ValueError, match="`kernels` must be at most 3, the number of singular vectors, got 4"):
        LaplexLinear(5, 3, kernels=4).init_from(torch.randn(3, 5))


def test_what_print_shows():
    assert str(LaplexLinear(5, 3, kernels=2)) == "LaplexLinear(in_features=5, out_features=3, kernels=2, bias=True)"
    shown = str(LaplexLinear(5, 3, bias=False, phase=True, tau=0.25))
    assert shown == "LaplexLinear(in_features=5, out_features=3, kernels=1, bias=False, phase=True, tau=0.25)"
    assert "train_tau=True" in str(LaplexLinear(5, 3, train_tau=True))
    assert "scale_gradients=False" in str(LaplexLinear(5, 3, scale_gradients=False))


def test_on_the_meta_device():
    layer = LaplexLinear(5, 3, kernels=2, device="meta")
    assert layer.a.is_meta
    assert "kernels=2" in str(layer)
    assert layer(torch.empty(4, 5, device="meta")).shape == (4, 3)


@variants
def test_from_the_meta_device_to_a_real_one(options):
    layer = layer_of(options, device="meta").to_empty(device="cpu")
    layer.reset_parameters()
    torch.testing.assert_close(layer.tau.detach(), layer_of(options).tau.detach())
    x = torch.randn(4, 30)
    assert error(layer(x), x.double() @ dense_of(layer).T + (0.0 if layer.bias is None else layer.bias.double())) < 1e-6


@pytest.mark.parametrize("tau", [1e-30, 1e30])
@pytest.mark.parametrize("train_tau", [False, True])
def test_an_extreme_length_scale(tau, train_tau):
    layer, x = LaplexLinear(30, 20, kernels=2, tau=tau, train_tau=train_tau), torch.randn(4, 30)
    assert error(layer(x), x.double() @ dense_of(layer).T + layer.bias.double()) <= 2e-6
