"""laplace_attention and LaplaceAttention against the dense softmax in float64: values, gradients, masks, limits."""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.func import jacfwd, vmap

import laplex
from helpers import error, wide
from laplex._anchored_sums import transparent_means, weighted_means
from laplex.nn import LaplaceAttention, laplace_attention
from test_memory import NothingAsLargeAs

TOLERANCE = {torch.float32: 5e-7, torch.float64: 1e-13}


def dense(q, k, v, scale=1.0, mask=None):
    """The definition, (..., m, 1), (..., n, 1), (..., n, d).

    A softmax does not see what is subtracted from all scores of a row: the least distance, before the division by tau
    rounds, so that queries far away have all digits of float64 here, too.
    """
    scale = scale[..., None, None] if isinstance(scale, torch.Tensor) else scale
    distance = (q - k.mT).abs()
    absent = torch.zeros_like(distance, dtype=torch.bool) if mask is None else mask[..., None, :]
    least = distance.detach().masked_fill(absent, torch.inf).amin(-1, keepdim=True)
    return torch.softmax((-(distance - least) / scale).masked_fill(absent, -torch.inf), -1) @ v


def points(m, n, batch=(3,)):
    return torch.randn(*batch, m, 1), torch.randn(*batch, n, 1)


def tied():
    q, k = points(9, 12)
    k[:, 4:7] = k[:, 3:4]
    q[:, :5] = k[:, 2:7]
    return q, k


def whole_numbers():
    q, k = points(40, 50)
    return (3 * q).round(), (3 * k).round()


def far_away():
    q, k = points(7, 9)
    q[:, 0], q[:, 1] = 1e6, -1e6
    return q, k


def middle_of_a_gap():
    """Queries a million tau from both groups of keys, and nearly as far from one as from the other."""
    q, k = points(8, 10)
    k[:, 5:] += 2.0**21
    q[:, 2:] = 2.0**20 + torch.arange(-3.0, 3.0)[:, None]
    return q, k


CASES = {
    "generic": lambda: points(40, 50),
    "many queries": lambda: points(300, 4),
    "many keys": lambda: points(4, 300),
    "one key": lambda: points(5, 1),
    "one query": lambda: points(1, 5),
    "one of each": lambda: points(1, 1),
    "no batch": lambda: points(6, 7, ()),
    "two batches": lambda: points(6, 7, (2, 3)),
    "tied": tied,
    "whole numbers": whole_numbers,
    "all equal": lambda: (torch.zeros(3, 4, 1), torch.zeros(3, 5, 1)),
    "far away": far_away,
    "middle of a gap": middle_of_a_gap,
    "offset": lambda: tuple(side + 1e4 for side in points(20, 30)),
    "close together": lambda: tuple(side * 1e-6 for side in points(20, 30)),
    "tiny tau": lambda: tuple(side * 1e5 for side in points(20, 30)),
}
every_case = pytest.mark.parametrize("case", CASES)
every_dtype = pytest.mark.parametrize("dtype", TOLERANCE, ids=str)


def inputs(case, dtype, d=4):
    q, k = (side.to(dtype) for side in CASES[case]())
    scale = torch.tensor([0.3, 1.0, 2.0], dtype=dtype) if q.dim() > 2 else torch.tensor(0.7, dtype=dtype)
    return {"q": q, "k": k, "v": torch.randn(*k.shape[:-1], d, dtype=dtype), "scale": scale}


def gradients(function, tensors, g):
    leaves = {name: value.detach().clone().requires_grad_() for name, value in tensors.items()}
    return dict(zip(leaves, torch.autograd.grad(function(**leaves), list(leaves.values()), g)))


def assert_gradients(got, want, v, g, tolerance):
    """Relative to the true gradients, or to the size of the terms that cancel, where these are 0."""
    assert got.keys() == want.keys()
    for name, value in got.items():
        floor = float(v.norm() * g.norm()) if name != "v" else 0.0
        scale = max(float(want[name].norm()), 0.1 * floor)
        assert float((wide(value) - want[name]).norm()) <= tolerance * scale, name


# --- Values and gradients --------------------------------------------------------------------------------------------


@every_dtype
@every_case
def test_values(case, dtype):
    tensors = inputs(case, dtype)
    y = laplace_attention(**tensors)
    assert y.dtype == dtype
    assert error(y, dense(**{name: wide(value) for name, value in tensors.items()})) <= TOLERANCE[dtype]


@every_dtype
@every_case
def test_gradients_by_name(case, dtype):
    tensors = inputs(case, dtype)
    g = torch.randn_like(laplace_attention(**tensors))
    got = gradients(laplace_attention, tensors, g)
    want = gradients(dense, {name: wide(value) for name, value in tensors.items()}, wide(g))
    assert_gradients(got, want, tensors["v"], g, 2 * TOLERANCE[dtype])


@every_case
def test_the_form_for_derivatives_of_derivatives_agrees(case):
    tensors = inputs(case, torch.float64)
    q, k, v = (tensors[name].reshape(-1, *tensors[name].shape[-2:]) for name in "qkv")
    tau = tensors["scale"].expand(tensors["q"].shape[:-2]).reshape(-1)
    arguments = {
        "x": v,
        "weight": torch.rand(k.shape[:-1], dtype=v.dtype) + 0.1,
        "queries": q[..., 0],
        "keys": k[..., 0],
    }
    arguments["tau"] = tau
    g = torch.randn(*q.shape[:-1], v.shape[-1], dtype=v.dtype)
    both = [gradients(function, arguments, g) for function in (weighted_means, transparent_means)]
    assert_gradients(*both, v, g, 1e-12)
    assert error(weighted_means(**arguments), transparent_means(**arguments)) <= 1e-13


def test_gradcheck_of_both_orders_and_forward_mode():
    q, k, v = (torch.randn(2, size, d, dtype=torch.float64, requires_grad=True) for size, d in ((4, 1), (5, 1), (5, 3)))
    scale = torch.tensor([0.7, 1.3], dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(laplace_attention, (q, k, v, scale), check_forward_ad=True)
    assert torch.autograd.gradgradcheck(laplace_attention, (q, k, v, scale))


@pytest.mark.parametrize("case", ["tied", "all equal", "whole numbers"])
def test_second_derivatives_at_ties(case):
    tensors = {name: wide(value) for name, value in inputs(case, torch.float64, d=2).items()}

    def squared_gradients(function):
        leaves = {name: value.clone().requires_grad_() for name, value in tensors.items()}
        y = function(**leaves)
        weights = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).reshape(y.shape)
        first = torch.autograd.grad((weights * y.square()).sum(), list(leaves.values()), create_graph=True)
        total = sum((bar * torch.linspace(1, 2, bar.numel()).reshape(bar.shape)).sum() for bar in first)
        return torch.autograd.grad(total, list(leaves.values()))

    for name, got, want in zip(tensors, squared_gradients(laplace_attention), squared_gradients(dense)):
        torch.testing.assert_close(got, want, rtol=1e-9, atol=1e-9, msg=name)


def test_gradients_of_keys_in_a_crowd_keep_their_digits():
    """Many keys within tau: sums of thousands, of which a key's own share is one part."""
    q, k, v = torch.randn(1, 300, 1), torch.randn(1, 4000, 1), torch.randn(1, 4000, 2)
    tensors = {"q": q, "k": k, "v": v, "scale": torch.tensor(5.0)}
    g = torch.randn(1, 300, 2)
    got = gradients(laplace_attention, tensors, g)
    want = gradients(dense, {name: wide(value) for name, value in tensors.items()}, wide(g))
    for name in ("k", "v", "q"):
        assert error(got[name], want[name]) <= 1e-6, name


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 30), st.integers(1, 30), st.integers(1, 6), st.floats(0.01, 100), st.integers(0, 10**6))
def test_any_sizes_with_ties(m, n, steps, scale, seed):
    generator = torch.Generator().manual_seed(seed)
    q, k = (torch.randint(steps, (2, size, 1), generator=generator).double() for size in (m, n))
    v = torch.randn(2, n, 3, generator=generator, dtype=torch.float64)
    assert error(laplace_attention(q, k, v, scale), dense(q, k, v, scale)) <= 1e-13


def test_shift_and_reflection_and_the_order_of_keys_do_not_matter():
    q, k = (side.double() for side in points(30, 40))
    v = torch.randn(3, 40, 2, dtype=torch.float64)
    y, order = laplace_attention(q, k, v, 0.5), torch.randperm(40)
    for other in (
        laplace_attention(q + 7, k + 7, v, 0.5),
        laplace_attention(-q, -k, v, 0.5),
        laplace_attention(q, k[:, order], v[:, order], 0.5),
    ):
        torch.testing.assert_close(other, y)


def test_the_mean_of_one_value_is_that_value():
    q, k = points(50, 60)
    y = laplace_attention(1e6 * q, k, torch.full((3, 60, 1), 3.0), 1e-3)
    torch.testing.assert_close(y, torch.full_like(y, 3.0))


# --- Far queries and masks -------------------------------------------------------------------------------------------


@every_dtype
def test_a_query_a_million_tau_away_has_the_weights_of_its_nearest_keys(dtype):
    k = torch.tensor([[0.0], [0.5], [3.0]], dtype=dtype)
    v = torch.eye(3, dtype=dtype)
    q = torch.tensor([[1e6], [-1e6]], dtype=dtype)
    y = laplace_attention(q, k, v, 1.0)
    want = torch.softmax(torch.tensor([[-3.0, -2.5, 0.0], [0.0, -0.5, -3.0]], dtype=dtype), -1)
    torch.testing.assert_close(y, want, rtol=1e-6, atol=0)
    with pytest.raises(AssertionError):  # what two products give
        torch.testing.assert_close(
            laplex.linear(v.mT, q[:, 0], k[:, 0]).mT / laplex.linear(torch.ones_like(v.mT), q[:, 0], k[:, 0]).mT, y
        )


@every_dtype
@every_case
def test_masked_keys_are_as_if_they_were_not_there(case, dtype):
    tensors = inputs(case, dtype)
    mask = torch.rand(tensors["k"].shape[:-1]) < 0.4
    mask[..., 0] = False
    tensors["v"] = torch.where(mask[..., None], torch.nan, tensors["v"])  # not even read
    y = laplace_attention(**tensors, key_padding_mask=mask)
    clean = {**tensors, "v": tensors["v"].nan_to_num()}
    want = dense(**{name: wide(value) for name, value in clean.items()}, mask=mask)
    assert error(y, want) <= TOLERANCE[dtype]
    g = torch.randn_like(y)
    got = gradients(lambda **leaves: laplace_attention(**leaves, key_padding_mask=mask), tensors, g)
    wide_tensors = {name: wide(value) for name, value in clean.items()}
    expected = gradients(lambda **leaves: dense(**leaves, mask=mask), wide_tensors, wide(g))
    assert_gradients(got, expected, clean["v"], g, 2 * TOLERANCE[dtype])
    assert not got["v"][mask].any()
    assert not got["k"][mask].any()


def test_the_nearest_key_may_be_masked():
    """Sums are not anchored at a key that does not count."""
    k, v = torch.tensor([[[0.0], [1e5], [1e5 + 1]]]), torch.tensor([[[1.0], [2.0], [4.0]]])
    mask = torch.tensor([[True, False, False]])
    y = laplace_attention(torch.zeros(1, 1, 1), k, v, 1.0, key_padding_mask=mask)
    weight = torch.sigmoid(torch.tensor(1.0))
    torch.testing.assert_close(y, (2 * weight + 4 * (1 - weight)).reshape(1, 1, 1))


def test_where_no_key_counts_the_result_is_zero():
    q, k = points(4, 5)
    leaves = [q.requires_grad_(), k.requires_grad_(), torch.randn(3, 5, 2, requires_grad=True)]
    mask = torch.zeros(3, 5, dtype=torch.bool)
    mask[1] = True
    y = laplace_attention(*leaves, key_padding_mask=mask)
    assert not y[1].any()
    assert y[0].all()
    bars = torch.autograd.grad(y.sum(), leaves)
    assert all(bar.isfinite().all() and not bar[1].any() for bar in bars)


def test_leading_dimensions_broadcast():
    q, k, v = torch.randn(2, 1, 6, 1), torch.randn(3, 7, 1), torch.randn(7, 4)
    scale = torch.tensor([[0.5], [2.0]])
    y = laplace_attention(q, k, v, scale)
    assert y.shape == (2, 3, 6, 4)
    assert error(y, dense(wide(q), wide(k), wide(v), wide(scale))) <= 5e-7


def test_no_queries_and_empty_batches():
    k, v = torch.randn(2, 5, 1), torch.randn(2, 5, 3)
    assert laplace_attention(torch.randn(2, 0, 1), k, v).shape == (2, 0, 3)
    assert laplace_attention(torch.randn(0, 4, 1), k[:0], v[:0]).shape == (0, 4, 3)


# --- Precision, transforms, memory -----------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_values_in_half_precision(dtype):
    q, k = points(20, 30)
    v = torch.randn(3, 30, 4).to(dtype)
    y = laplace_attention(q, k, v, 0.5)
    assert y.dtype == dtype
    assert torch.equal(y, laplace_attention(q, k, v.float(), 0.5).to(dtype))


def test_autocast_does_not_round_queries_and_keys():
    q, k = points(20, 30)
    v = torch.randn(3, 30, 4)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(laplace_attention(q, k, v), laplace_attention(q, k, v))
        y = laplace_attention(q, k, v)
    assert torch.equal(y, laplace_attention(q, k, v))


def test_vmap_and_jacobians():
    q, k, v = torch.randn(4, 6, 1), torch.randn(7, 1), torch.randn(4, 7, 2)
    mapped = vmap(lambda q, v: laplace_attention(q, k, v, 0.5))(q, v)
    torch.testing.assert_close(mapped, laplace_attention(q, k, v, 0.5))
    jacobian = jacfwd(lambda q: laplace_attention(q, k, v[0], 0.5))(q[0])
    torch.testing.assert_close(jacobian, jacfwd(lambda q: dense(q, k, v[0], 0.5))(q[0]), rtol=1e-4, atol=1e-5)


def test_the_same_bits_every_time():
    tensors = inputs("whole numbers", torch.float32)
    g = torch.randn_like(laplace_attention(**tensors))
    first, second = (gradients(laplace_attention, tensors, g) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_nothing_as_large_as_all_pairs():
    n = 5000
    attention = LaplaceAttention(8, 2)
    x = torch.randn(1, n, 8, requires_grad=True)
    mask = torch.rand(1, n) < 0.1
    with NothingAsLargeAs(n * n // 20):
        y = attention(x, key_padding_mask=mask)
        first = torch.autograd.grad(y.square().sum(), [x, attention.log_tau], create_graph=True)
        torch.autograd.grad(first[0].square().sum() + first[1].square().sum(), x)


@pytest.mark.usefixtures("unpoisoned")
@pytest.mark.parametrize("masked", [False, True])
def test_torch_compile_takes_the_module_as_one_graph(masked):
    torch._dynamo.reset()
    attention, x = LaplaceAttention(8, 2), torch.randn(2, 9, 8)
    mask = torch.arange(9).expand(2, 9) > 6 if masked else None
    compiled = torch.compile(attention, backend="aot_eager", fullgraph=True)
    results = []
    for module in (compiled, attention):
        attention.zero_grad()
        y = module(x, key_padding_mask=mask)
        y.square().sum().backward()
        results.append([y, *(parameter.grad.clone() for parameter in attention.parameters())])
    for got, want in zip(*results):
        torch.testing.assert_close(got, want)


# --- The module ------------------------------------------------------------------------------------------------------


def by_definition(attention, query, key, value, mask=None):
    """The module's output by dense softmax, in float64, batch first."""
    wise = copy.deepcopy(attention).double()
    query, key, value = wide(query), wide(key), wide(value)
    heads = []
    for h, part in enumerate(wise.v_proj(value).chunk(attention.num_heads, -1)):
        q, k = wise.q_proj(query)[..., h, None], wise.k_proj(key)[..., h, None]
        heads.append(dense(q, k, part, float(wise.tau[h].detach()), mask))
    return wise.out_proj(torch.cat(heads, -1))


def test_module_against_its_definition():
    attention = LaplaceAttention(12, 3, kdim=5, vdim=7)
    query, key, value = torch.randn(2, 10, 12), torch.randn(2, 8, 5), torch.randn(2, 8, 7)
    mask = torch.rand(2, 8) < 0.3
    mask[:, 0] = False
    y = attention(query, key, value, mask)
    assert error(y, by_definition(attention, query, key, value, mask)) <= 5e-7


def test_self_attention_is_the_default():
    attention, x, other = LaplaceAttention(12, 3), torch.randn(2, 10, 12), torch.randn(2, 4, 12)
    assert torch.equal(attention(x), attention(x, x, x))
    assert torch.equal(attention(x, other), attention(x, other, other))


def test_layouts():
    attention, x = LaplaceAttention(12, 3), torch.randn(2, 10, 12)
    y, mask = attention(x), torch.arange(10).expand(2, 10) > 7
    torch.testing.assert_close(attention(x[0]), y[0])
    torch.testing.assert_close(attention(x[0], key_padding_mask=mask[0]), attention(x, key_padding_mask=mask)[0])
    turned = LaplaceAttention(12, 3, batch_first=False)
    turned.load_state_dict(attention.state_dict())
    torch.testing.assert_close(turned(x.transpose(0, 1)), y.transpose(0, 1))
    padded = turned(x.transpose(0, 1), key_padding_mask=mask)
    torch.testing.assert_close(padded, attention(x, key_padding_mask=mask).transpose(0, 1))


def test_padding_does_not_change_the_rest():
    attention, x = LaplaceAttention(12, 3), torch.randn(2, 10, 12)
    padded = torch.cat([x, torch.full((2, 5, 12), 1e3)], 1)
    mask = torch.arange(15).expand(2, 15) >= 10
    torch.testing.assert_close(attention(padded, key_padding_mask=mask)[:, :10], attention(x))


def test_parameters_and_state():
    attention = LaplaceAttention(12, 3)
    count = sum(parameter.numel() for parameter in attention.parameters())
    assert count == 2 * (12 * 3 + 3) + 2 * (12 * 12 + 12) + 3
    torch.testing.assert_close(attention.tau, torch.tensor([1.0, 1 / 4, 1 / 16]))
    assert LaplaceAttention(12, 3, tau=0.3).tau.allclose(torch.tensor(0.3))
    assert LaplaceAttention(12, 3, False).q_proj.bias is None
    other = LaplaceAttention(12, 3)
    other.load_state_dict(attention.state_dict())
    x = torch.randn(2, 5, 12)
    assert torch.equal(other(x), attention(x))
    assert "embed_dim=12, num_heads=3, tau=[1, 0.25, 0.0625], batch_first=True" in repr(attention)
    empty = LaplaceAttention(12, 3, device="meta")
    assert "tau=" not in repr(empty)
    empty.to_empty(device="cpu").reset_parameters()
    assert empty(x).isfinite().all()


@pytest.mark.parametrize("order", [iter, reversed], ids=["parents first", "children first"])
def test_the_start_is_the_same_if_every_module_is_asked(order):
    """As training frameworks do after ``to_empty``."""
    attention = LaplaceAttention(12, 3, device="meta").to_empty(device="cpu")
    for module in order(list(attention.modules())):
        module.reset_parameters()
    assert torch.equal(attention.k_proj.weight, attention.q_proj.weight)
    for layer in (attention.q_proj, attention.k_proj, attention.v_proj, attention.out_proj):
        assert layer.weight.std() > 0
        assert not layer.bias.any()


def test_training_moves_every_parameter():
    attention = LaplaceAttention(12, 3)
    attention(torch.randn(2, 20, 12)).square().sum().backward()
    for name, parameter in attention.named_parameters():
        assert parameter.grad.abs().sum() > 0, name


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_half_precision_leaves_queries_keys_and_tau(dtype):
    attention = LaplaceAttention(12, 3, dtype=dtype)
    converted = LaplaceAttention(12, 3).to(dtype)
    for module in (attention, converted):
        assert module.q_proj.weight.dtype == module.k_proj.bias.dtype == module.log_tau.dtype == torch.float32
        assert module.v_proj.weight.dtype == module.out_proj.weight.dtype == dtype
        assert module(torch.randn(2, 5, 12, dtype=dtype)).dtype == dtype
    assert converted.double().log_tau.dtype == torch.float64


def test_autocast_of_the_module():
    attention, x = LaplaceAttention(12, 3), torch.randn(2, 50, 12)
    scalars = []
    attention.q_proj.register_forward_hook(lambda *arguments: scalars.append(arguments))
    with torch.autocast("cpu", torch.bfloat16):
        y = attention(x)
    assert y.dtype == torch.bfloat16
    assert error(y, attention(x)) < 0.02  # as values in bfloat16 are
    assert scalars == []  # not called as a layer, which autocast would cast


# --- Errors ----------------------------------------------------------------------------------------------------------

Q, K, V = torch.zeros(2, 4, 1), torch.zeros(2, 5, 1), torch.zeros(2, 5, 3)
attend, Layer = laplace_attention, LaplaceAttention
CALLS = {
    "a list": (lambda: attend([1.0], K, V), TypeError, "`q` must be a tensor, got list"),
    "one dimension": (lambda: attend(Q[0, :, 0], K, V), ValueError, r"`q` must have at least two dimensions"),
    "whole numbers": (lambda: attend(Q, K, V.long()), TypeError, "`v` must be of a floating-point type"),
    "several numbers": (lambda: attend(Q, V, V), ValueError, r"`k` must be \(..., points, 1\), one number.*cdist"),
    "half": (lambda: attend(Q.half(), K, V), TypeError, "`q` must be float32 or float64, got torch.float16"),
    "no values": (lambda: attend(Q, K, V[:, 1:]), ValueError, r"`v` must have a value for each of 5 keys"),
    "no keys": (lambda: attend(Q, K[:, :0], V[:, :0]), ValueError, "`k` must have at least one key"),
    "infinite": (lambda: attend(Q / 0, K, V), ValueError, "`q` must be finite"),
    "tanh": (lambda: attend(Q, K, V, 1.0, False), ValueError, r"`normalise` must be True, got False; .*tanh"),
    "batches": (lambda: attend(Q, K[:1].expand(3, 5, 1), V), ValueError, "leading dimensions must broadcast"),
    "text": (lambda: attend(Q, K, V, "1"), TypeError, "`scale` must be a positive number or a tensor, got str"),
    "scales": (lambda: attend(Q, K, V, torch.ones(3)), ValueError, r"`scale` must .* broadcast to \(2,\)"),
    "a device": (lambda: attend(Q, K, V, torch.ones(2, device="meta")), ValueError, "`scale` must be on the device of"),
    "negative": (lambda: attend(Q, K, V, -1.0), ValueError, "`scale` must be positive and finite, got -1"),
    "mask of numbers": (
        lambda: attend(Q, K, V, key_padding_mask=torch.zeros(2, 5)),
        TypeError,
        r"`key_padding_mask` must be a tensor of torch.bool, .* got a tensor of torch.float32; .* use key_.*\.bool\(\)",
    ),
    "mask of another size": (
        lambda: attend(Q, K, V, key_padding_mask=torch.zeros(2, 4, dtype=torch.bool)),
        ValueError,
        r"`key_padding_mask` must be \(2, 5\), got shape \(2, 4\)",
    ),
    "heads": (lambda: Layer(12, 5), ValueError, "`num_heads` must divide `embed_dim`, got 5 and 12"),
    "no heads": (lambda: Layer(12, 0), ValueError, "`num_heads` must be at least 1"),
    "tau": (lambda: Layer(12, 3, tau=-1.0), ValueError, "`tau` must be positive and finite"),
    "dtype": (lambda: Layer(12, 3, dtype=torch.int64), TypeError, "`dtype` must be a floating-point type"),
    "dtype as a word": (lambda: Layer(12, 3, dtype="float32"), TypeError, "`dtype` must be a torch.dtype, got 'f"),
    "integers": (lambda: Layer(3, 3)(V.int()), TypeError, "`query` must be of a floating-point type, got torch.int32"),
    "another dtype": (lambda: Layer(3, 3)(V.double()), TypeError, "`value` must be torch.float32, as the layer is"),
    "a value that is the key": (
        lambda: Layer(3, 3, kdim=5)(V, torch.zeros(2, 5, 5)),
        ValueError,
        r"`value` must be .*, 3\), got shape \(2, 5, 5\); `value` is `key` unless it is passed: .* with vdim=5",
    ),
    "a key that is the query": (
        lambda: Layer(3, 3, kdim=5)(V),
        ValueError,
        r"`key` must be .*, 5\), got shape .*; `key` is `query` unless it is passed: pass it, or .* with kdim=3",
    ),
    "a value without a batch": (lambda: Layer(3, 3)(V, V, V[0]), ValueError, "`value` must have a row for every key"),
    "features": (lambda: Layer(12, 3)(V), ValueError, r"`query` must be \(batch, sequence, 12\)"),
    "no tensor": (lambda: Layer(3, 3)(V, "key"), TypeError, "`key` must be a tensor, got str"),
    "another batch": (lambda: Layer(3, 3)(V, V[:1]), ValueError, "`query` and `key` must have the same batch"),
    "another length": (lambda: Layer(3, 3)(V, V, V[:, 1:]), ValueError, "`value` must have a row for every key"),
    "an empty sequence": (lambda: Layer(3, 3)(V, V[:, :0]), ValueError, "`key` must have at least one key"),
    "nan": (lambda: Layer(3, 3)(V + torch.nan), ValueError, "`query` must be finite"),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_errors_say_what_to_do(name):
    call, kind, text = CALLS[name]
    with pytest.raises(kind, match=text):
        call()


def test_values_without_features():
    y = laplace_attention(torch.zeros(3, 1), torch.ones(2, 1), torch.zeros(2, 0), 1.0)
    assert y.shape == (3, 0)
