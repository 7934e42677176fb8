"""``laplex.nn.replace_linear``, and layers of kernels inside modules of torch."""

import copy

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

import laplex
from helpers import error
from laplex.nn import LaplexLinear, replace_linear

pytestmark = pytest.mark.usefixtures("one_thread")


def quiet(done, total):
    """No bar."""


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(12, 24), nn.Linear(24, 12, bias=False)

    def forward(self, x):
        return x + self.down(self.up(x).relu())


def model_of():
    return nn.Sequential(Block(), Block(), nn.Linear(12, 5))


def kinds(model):
    return {name: type(module) for name, module in model.named_modules() if not list(module.children())}


def test_all_layers_are_replaced():
    model, x = model_of(), torch.randn(3, 12)
    bias = model[0].up.bias.detach().clone()
    table = replace_linear(model, kernels=2)
    assert set(kinds(model).values()) == {LaplexLinear}
    assert [row.name for row in table] == ["0.up", "0.down", "1.up", "1.down", "2"]
    assert model(x).shape == (3, 5)
    assert model[0].down.bias is None
    assert torch.equal(model[0].up.bias, bias)
    assert sum(row.after for row in table) == sum(p.numel() for p in model.parameters())


def test_names_choose():
    model = model_of()
    table = replace_linear(model, kernels=2, include=r"\.up$|^2$", exclude="^1")
    assert [row.name for row in table] == ["0.up", "2"]
    assert type(model[1].up) is type(model[0].down) is nn.Linear


def test_a_dry_run_changes_nothing_and_prints_a_table():
    model = model_of()
    before = copy.deepcopy(model.state_dict())
    table = replace_linear(model, kernels=2, include="up", dry_run=True, phase=True)
    assert set(kinds(model).values()) == {nn.Linear}
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    lines = str(table).splitlines()
    assert lines[0].split() == ["layer", "in", "->", "out", "parameters", "after", "saved"]
    assert lines[1].split() == ["0.up", "12", "->", "24", "312", "170", "45.5%"]
    assert lines[3].split() == ["all", "624", "340", "45.5%"]
    assert lines[4].split() == ["model", "1,265", "981", "22.5%"]
    assert lines[5] == "left alone: 0.down, 1.down, 2, 641 parameters: `include` does not match"
    assert len(lines) == 6


def test_fitted_layers_are_near_the_old_ones():
    torch.manual_seed(0)
    model = model_of()
    old = copy.deepcopy(model)
    table = replace_linear(model, kernels=6, fit=True, sweeps=10, include="up", progress=quiet)
    for row in table:
        new, before = model.get_submodule(row.name), old.get_submodule(row.name)
        assert row.residual == pytest.approx(error(new.to_dense(), before.weight) ** 2, rel=1e-3)
        assert row.residual < 0.35


@pytest.mark.filterwarnings("ignore:laplex.nn.replace_linear. fits left most")
def test_the_table_of_a_fit_says_what_low_rank_would_leave():
    model = model_of()
    table = replace_linear(model, kernels=2, fit=True, sweeps=1, include="up", progress=quiet)
    assert all(row.svd_residual == model.get_submodule(row.name).svd_residual for row in table)
    lines = str(table).splitlines()
    assert lines[0].endswith("residual  of low rank")
    assert lines[1].split()[-2:] == [f"{table[0].residual:.3f}", f"{table[0].svd_residual:.3f}"]


def test_many_layers_that_are_left_are_counted():
    model = nn.Sequential(nn.Linear(20, 20), *(nn.Linear(2, 2) for _ in range(12)))
    line = str(replace_linear(model, kernels=2)).splitlines()[-1]
    assert line.startswith("left alone: 1, 2, 3, 4, 5, 6, 7, 8 and 4 more, 72 parameters: it would have no fewer")


def test_a_layer_used_twice_is_replaced_once():
    shared = nn.Linear(6, 6)
    model = nn.Sequential(shared, nn.ReLU(), shared)
    replace_linear(model, kernels=1)
    assert model[0] is model[2]
    assert isinstance(model[0], LaplexLinear)


def test_a_layer_used_twice_is_one_row_whatever_name_chooses_it():
    shared = nn.Linear(6, 6)
    model = nn.ModuleDict({"first": shared, "second": shared, "other": nn.Linear(6, 6)})
    (row,) = replace_linear(model, kernels=1, include="second")
    assert (row.name, row.before, row.after) == ("first", 42, 19)
    assert model["first"] is model["second"]
    assert isinstance(model["first"], LaplexLinear)
    with pytest.raises(ValueError, match="no layer to replace"):
        replace_linear(nn.Sequential(shared, shared), exclude="1")
    with pytest.raises(ValueError, match=r"no layer to replace: there is no nn\.Linear in the model"):
        replace_linear(nn.Sequential(nn.ReLU()))


def test_a_shared_bias_is_not_torn():
    model = nn.Sequential(nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 6))
    model[1].bias = model[0].bias
    assert [row.name for row in replace_linear(model, kernels=2)] == ["2"]
    assert model[1].bias is model[0].bias


# --- models as Hugging Face's transformers has them -------------------------------------------------------------------


class Attention(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = (nn.Linear(size, size, bias=False) for _ in range(3))
        self.o_proj = nn.Linear(size, size, bias=False)

    def forward(self, x):
        return self.o_proj(nn.functional.scaled_dot_product_attention(self.q_proj(x), self.k_proj(x), self.v_proj(x)))


class Decoder(nn.Module):
    """Blocks with names as those of Llama, and a head that is tied to the embedding."""

    def __init__(self, size=24, blocks=3, words=50):
        super().__init__()
        self.model, self.lm_head = nn.Module(), nn.Linear(size, words, bias=False)
        self.model.embed_tokens = nn.Embedding(words, size)
        self.model.layers = nn.ModuleList(nn.Module() for _ in range(blocks))
        for block in self.model.layers:
            block.self_attn, block.mlp = Attention(size), nn.Module()
            block.mlp.up_proj, block.mlp.down_proj = nn.Linear(size, 2 * size), nn.Linear(2 * size, size)
        self.lm_head.weight = self.model.embed_tokens.weight

    def forward(self, words):
        x = self.model.embed_tokens(words)
        for block in self.model.layers:
            x = x + block.self_attn(x)
            x = x + block.mlp.down_proj(block.mlp.up_proj(x).relu())
        return self.lm_head(x)


def test_all_projections_of_a_decoder():
    decoder, words = Decoder(), torch.randint(50, (2, 7))
    before = sum(parameter.numel() for parameter in decoder.parameters())
    table = replace_linear(decoder, kernels=4)
    after = sum(parameter.numel() for parameter in decoder.parameters())
    assert len(table) == 3 * 6
    assert table[12].name == "model.layers.2.self_attn.q_proj"
    assert decoder.lm_head.weight is decoder.model.embed_tokens.weight
    assert [(row.name, row.parameters) for row in table.left] == [("lm_head", 50 * 24)]
    assert table.parameters == before
    lines = {line.split()[0]: line.split()[1:] for line in str(table).splitlines()}
    assert lines["model"] == [f"{before:,}", f"{after:,}", f"{1 - after / before:.1%}"]
    decoder(words).square().sum().backward()
    assert all(parameter.grad is not None for parameter in decoder.parameters())


def test_some_projections_of_a_decoder():
    decoder = Decoder(blocks=12)
    table = replace_linear(decoder, kernels=2, include=r"layers\.(1|11)\..*(q|v)_proj$", exclude=r"layers\.11\..*v_")
    assert [row.name.removeprefix("model.layers.") for row in table] == [
        "1.self_attn.q_proj", "1.self_attn.v_proj", "11.self_attn.q_proj",
    ]  # fmt: skip


class Conv1D(nn.Module):
    """As in transformers.pytorch_utils: an nn.Linear whose weight is transposed."""

    def __init__(self, nf, nx):
        super().__init__()
        self.nf, self.nx = nf, nx
        self.weight, self.bias = nn.Parameter(0.02 * torch.randn(nx, nf)), nn.Parameter(torch.randn(nf))

    def forward(self, x):
        size_out = (*x.size()[:-1], self.nf)
        return torch.addmm(self.bias, x.view(-1, x.size(-1)), self.weight).view(size_out)


def test_transposed_layers_of_gpt2():
    model, x = nn.ModuleDict({"c_attn": Conv1D(72, 24), "c_proj": Conv1D(24, 24)}), torch.randn(2, 5, 24)
    bias = model["c_attn"].bias.detach().clone()
    table = replace_linear(model, kernels=4)
    assert [(row.name, row.in_features, row.out_features) for row in table] == [("c_attn", 24, 72), ("c_proj", 24, 24)]
    assert set(kinds(model).values()) == {LaplexLinear}
    assert torch.equal(model["c_attn"].bias, bias)
    assert model["c_attn"](x).shape == (2, 5, 72)


@pytest.mark.filterwarnings("ignore:laplex.nn.replace_linear. fits left most")
def test_a_fit_of_a_transposed_layer_is_near_it():
    layer = Conv1D(30, 24)
    model = nn.Sequential(layer.requires_grad_(False).eval())
    (row,) = replace_linear(model, kernels=4, fit=True, sweeps=2, progress=quiet)
    assert row.residual == pytest.approx(error(model[0].weight, layer.weight.T) ** 2, rel=1e-3)
    assert torch.equal(model[0].bias, layer.bias)
    assert not any(parameter.requires_grad for parameter in model.parameters())
    assert not model[0].training


def other_layer(**tensors):
    layer = Conv1D(30, 24)
    for name, value in tensors.items():
        setattr(layer, name, value)
    return layer


OTHERS = {
    "wide": other_layer(weight=nn.Parameter(torch.zeros(24, 30, 3))),
    "not transposed": other_layer(weight=nn.Parameter(torch.zeros(30, 24))),
    "more": other_layer(scale=nn.Parameter(torch.zeros(30, 24))),
    "without nf": other_layer(nf=None),
}


@pytest.mark.parametrize("layer", OTHERS.values(), ids=OTHERS)
def test_other_layers_of_this_name_are_left_alone(layer):
    model = nn.Sequential(layer, nn.Linear(24, 30))
    table = replace_linear(model, kernels=2)
    assert model[0] is layer
    assert {row.why for row in table.left} == {
        "it belongs to Conv1D, which is not an nn.Linear; use laplex.nn.parametrize"
    }
    with pytest.raises(
        ValueError, match=r"no layer to replace: .*weight: it belongs to Conv1D, which is not an nn\.Linear"
    ):
        replace_linear(nn.Sequential(layer))


def test_weights_with_kernels_are_not_named():
    model = nn.Sequential(nn.Linear(24, 30), laplex.nn.parametrize(nn.Conv1d(24, 30, 1), kernels=2))
    assert replace_linear(model, kernels=2).left == ()


# --- encoders of torch, which in evaluation read the weights of their layers ------------------------------------------

masked = pytest.mark.parametrize(
    "mask", [None, torch.arange(5) >= torch.tensor([[5], [3], [4]])], ids=["all", "masked"]
)


def put_kernels_into(part):
    part.linear1, part.linear2 = LaplexLinear(8, 16, kernels=2), LaplexLinear(16, 8, kernels=2)


def encoder_of(moment):
    """Two encoder layers with layers of kernels, which were put in at this moment."""
    part = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)
    if moment == "before":
        put_kernels_into(part)
    model = nn.TransformerEncoder(part, 2)
    if moment == "replaced":
        replace_linear(model, kernels=2)
    if moment == "after":
        for layer in model.layers:
            put_kernels_into(layer)
    return model


def error_in_evaluation(model, mask, dtype=torch.float32):
    x, shown = torch.randn(3, 5, 8, dtype=dtype), slice(None) if mask is None else ~mask
    want = model(x, src_key_padding_mask=mask).detach()
    with torch.no_grad():
        return error(model.eval()(x, src_key_padding_mask=mask)[shown], want[shown])


@masked
@pytest.mark.parametrize("moment", ["replaced", "before", "after"])
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.bfloat16, 0.05)], ids=str)
@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True", "ignore:The PyTorch API of nested tensors")
def test_an_encoder_in_evaluation(moment, mask, dtype, tolerance):
    assert error_in_evaluation(encoder_of(moment).to(dtype), mask, dtype) <= tolerance


@masked
@pytest.mark.filterwarnings("ignore:enable_nested_tensor is True", "ignore:The PyTorch API of nested tensors")
def test_an_encoder_on_its_fast_path(mask, monkeypatch):
    model, forward = encoder_of("before"), LaplexLinear.forward

    def trained_forward(self, x):
        assert self.training
        return forward(self, x)

    monkeypatch.setattr(LaplexLinear, "forward", trained_forward)
    for layer in model.layers:
        layer.activation_relu_or_gelu = 1  # as torch sets it
    assert error_in_evaluation(model, mask) <= 1e-5


@pytest.mark.parametrize("layout", [torch.strided, torch.jagged])
def test_nested_tensors(layout):
    layer, parts = LaplexLinear(6, 4, kernels=2), [torch.randn(3, 6), torch.randn(5, 6)]
    got = layer(torch.nested.nested_tensor(parts, layout=layout))
    assert got.is_nested
    assert got.layout == layout
    assert all(error(one, layer(part)) <= 1e-6 for one, part in zip(got.unbind(), parts, strict=True))


def test_tied_weights_and_subclasses_are_left_alone():
    class Special(nn.Linear):
        pass

    tied = nn.Module()
    tied.table, tied.head, tied.special, tied.free = nn.Embedding(9, 6), nn.Linear(6, 9), Special(6, 6), nn.Linear(6, 6)
    tied.head.weight = tied.table.weight
    table = replace_linear(tied, kernels=2)
    assert [row.name for row in table] == ["free"]
    assert {row.name: row.why for row in table.left} == {
        "head": "it shares parameters with another module",
        "special.weight": "it belongs to Special, which is a subclass of nn.Linear; use laplex.nn.parametrize",
    }


def test_layers_that_would_grow_are_left_alone_and_said_to_be():
    model = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 2))
    table = replace_linear(model, kernels=4)
    assert [row.name for row in table] == ["0"]
    assert type(model[2]) is nn.Linear
    assert str(table).endswith("left alone: 2, 50 parameters: it would have no fewer parameters; use fewer `kernels`")
    with pytest.raises(ValueError, match="no layer to replace: 0: it would have no fewer parameters; use fewer"):
        replace_linear(nn.Sequential(nn.Linear(3, 4)), kernels=4)


def test_what_attention_keeps_is_named():
    encoder = nn.TransformerEncoderLayer(32, 2, 64)
    left = {row.name: row.parameters for row in replace_linear(encoder, kernels=2).left}
    assert left == {"self_attn.in_proj_weight": 3 * 32 * 32, "self_attn.out_proj.weight": 32 * 32}


def test_a_fit_that_misses_most_of_a_layer_warns():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(40, 30))  # noise, which nothing of few parameters explains
    with pytest.warns(UserWarning, match=r"most of the energy of 1 of 1 layers unexplained: 0 \(\d+%\); train the"):
        replace_linear(model, kernels=1, fit=True, sweeps=3, progress=quiet)


def test_mode_dtype_and_frozen_state_are_kept():
    model = nn.Sequential(nn.Linear(6, 7)).double().eval().requires_grad_(False)
    replace_linear(model, kernels=2)
    assert not model[0].training
    assert {(p.dtype, p.requires_grad) for p in model.parameters()} == {(torch.float64, False)}


def test_a_bias_may_be_trained_alone():
    model = nn.Sequential(nn.Linear(6, 7))
    model[0].weight.requires_grad_(False)
    replace_linear(model, kernels=2)
    assert [name for name, parameter in model.named_parameters() if parameter.requires_grad] == ["0.bias"]


BAD = {
    "conv1d": (Conv1D(3, 4), {}, TypeError, "`model` must be a module that contains layers, got Conv1D"),
    "a layer": (nn.Linear(3, 4), {}, TypeError, "`model` must be a module that contains layers, got Linear"),
    "no module": ("model", {}, TypeError, "`model` must be a module that contains layers, got str"),
    "no match": (model_of(), {"include": "attention"}, ValueError, "no layer to replace: 0.up: `include` does not"),
    "no layers": (nn.Sequential(nn.ReLU()), {}, ValueError, "there is no nn.Linear in the model"),
    "pattern": (model_of(), {"include": "("}, ValueError, r"`include` must be a regular expression, got '\('"),
    "list": (model_of(), {"exclude": ["0"]}, TypeError, r"`exclude` must be a regular expression, got \['0'\]; use"),
    "unknown": (model_of(), {"bias": False}, TypeError, "unexpected keyword argument 'bias'"),
    "kernels": (model_of(), {"kernels": 0}, ValueError, "`kernels` must be at least 1, got 0"),
    "old name": (model_of(), {"rank": 4}, TypeError, "`rank` is now called `kernels`"),
    "options": (model_of(), {"fit": True, "phase": True}, ValueError, "with fit=True `phase` cannot be set"),
}


@pytest.mark.parametrize(("model", "options", "kind", "text"), BAD.values(), ids=BAD)
def test_bad_arguments(model, options, kind, text):
    before = kinds(model) if isinstance(model, nn.Module) else None
    with pytest.raises(kind, match=text):
        replace_linear(model, **options)
    assert before is None or kinds(model) == before


WEIGHTS_MADE_BY_HOOKS = {
    "weight_norm": nn.utils.weight_norm,
    "spectral_norm": nn.utils.spectral_norm,
    "pruned": lambda layer: prune.l1_unstructured(layer, "weight", 0.5),
}


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
@pytest.mark.parametrize("change", WEIGHTS_MADE_BY_HOOKS.values(), ids=WEIGHTS_MADE_BY_HOOKS)
def test_layers_whose_weights_hooks_make_are_left_alone(change):
    model = nn.Sequential(nn.Linear(64, 64), change(nn.Linear(64, 64)))
    table = replace_linear(model, kernels=2)
    assert isinstance(model[0], LaplexLinear)
    assert type(model[1]) is nn.Linear
    assert "it has forward pre-hooks" in str(table)


def test_lazy_layers_are_left_alone():
    model = nn.Sequential(nn.Linear(64, 64), nn.LazyLinear(32))
    table = replace_linear(model, kernels=2)
    assert isinstance(model[0], LaplexLinear)
    assert isinstance(model[1], nn.LazyLinear)
    assert table.left == (("1", 0, "it has no size yet; call the model once first"),)
    with pytest.raises(ValueError, match="no layer to replace: 0: it has no size yet"):
        replace_linear(nn.Sequential(nn.LazyLinear(32)))
    model(torch.randn(2, 64))
    assert [row.name for row in replace_linear(model, kernels=2)] == ["1"]


@pytest.mark.parametrize("change", [nn.utils.parametrizations.weight_norm, nn.utils.parametrizations.spectral_norm])
def test_layers_that_are_parametrized_are_said_to_be(change):
    model = nn.Sequential(nn.Linear(64, 64), change(nn.Linear(64, 64)))
    table = replace_linear(model, kernels=2)
    assert [row.name for row in table] == ["0"]
    assert all(matrix.name.startswith("1.parametrizations.weight.original") for matrix in table.left)
    assert {matrix.why.partition(",")[0] for matrix in table.left} == {"it is parametrized already"}
    nn.utils.parametrize.remove_parametrizations(model[1], "weight")
    assert [row.name for row in replace_linear(model, kernels=2)] == ["1"]


def test_true_derivatives_can_be_asked_for():
    model = nn.Sequential(nn.Linear(64, 64))
    replace_linear(model, kernels=2, scale_gradients=False)
    assert model[0].scale_gradients is False
