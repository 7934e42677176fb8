"""W, a sum of w_q K_q, as a differentiable tensor: values, derivatives of all kinds, and what autograd keeps."""

import pytest
import torch
from torch.nn import functional

from helpers import error, phases_for, wide
from laplex import reference
from laplex._formed.kernels import Kernels
from laplex._formed.matrix import matrix

VARIANTS = {"plain": False, "phased": True}
variants = pytest.mark.parametrize("phased", VARIANTS.values(), ids=VARIANTS)
TOLERANCE = {torch.float32: 5e-7, torch.float64: 1e-14}


def a_sum(kernels=3, dtype=torch.float64, phased=True, n=7, k=9, ties=True):
    """Every differentiable field of a sum of matrices, by name."""
    a, b = torch.randn(kernels, n, dtype=dtype), torch.randn(kernels, k, dtype=dtype)
    if ties:
        b[:, 1] = a[:, 2]
    fields = {"a": a, "b": b, "tau": torch.rand(kernels, dtype=dtype) + 0.5, "weight": torch.randn(kernels).to(dtype)}
    if phased:
        fields["phi"], fields["psi"] = phases_for(a, b)
    return fields


def formed(a, b, tau, weight, phi=None, psi=None):
    return matrix(Kernels(a, b, tau, weight, phi, psi, tau.numel()))


def definition(a, b, tau, weight, phi=None, psi=None):
    return (weight[:, None, None] * reference.kernel(a, b, tau, phi=phi, psi=psi)).sum(0)


def gradients(function, fields, g):
    leaves = {name: value.detach().requires_grad_() for name, value in fields.items()}
    return dict(zip(leaves, torch.autograd.grad(function(**leaves), list(leaves.values()), g), strict=True))


# --- values -----------------------------------------------------------------------------------------------------------


@variants
@pytest.mark.parametrize("kernels", [1, 4])
def test_values(kernels, phased, dtype):
    fields = a_sum(kernels, dtype, phased)
    got = formed(**fields)
    assert (got.dtype, got.shape) == (dtype, (7, 9))
    assert error(got, definition(**{name: wide(value) for name, value in fields.items()})) <= TOLERANCE[dtype]


def test_a_batch_of_results():
    fields = a_sum(6)
    got = matrix(Kernels(*fields.values(), 2))
    parts = [{name: value[start : start + 2] for name, value in fields.items()} for start in (0, 2, 4)]
    assert error(got, torch.stack([definition(**part) for part in parts])) <= 1e-14


@pytest.mark.parametrize(("n", "k"), [(0, 3), (3, 0)])
def test_empty_sides(n, k):
    fields = a_sum(2, n=n, k=k, ties=False)
    assert formed(**fields).shape == (n, k)
    assert all(not bool(bar.any()) for bar in gradients(formed, fields, torch.zeros(n, k).double()).values())


def test_faulty_values_raise():
    fields = a_sum()
    fields["a"][1, 1] = torch.nan
    with pytest.raises(ValueError, match="`a` must be finite"):
        formed(**fields)


# --- derivatives ------------------------------------------------------------------------------------------------------


@variants
def test_gradients(phased, dtype):
    fields, g = a_sum(4, dtype, phased), torch.randn(7, 9, dtype=dtype)
    doubles = {name: wide(value) for name, value in fields.items()}
    got, want = gradients(formed, fields, g), gradients(definition, doubles, wide(g))
    sizes = gradients(definition, doubles, wide(g).abs())  # terms may cancel
    for name, value in fields.items():
        assert got[name].dtype == value.dtype
        assert error(got[name], want[name], sizes[name]) <= 2 * TOLERANCE[dtype], name


@pytest.mark.parametrize("wanted", ["a", "b", "tau", "weight", "phi", "psi"])
def test_one_gradient_alone(wanted):
    fields = a_sum()
    leaf = fields[wanted].requires_grad_()
    got, want = (torch.autograd.grad(f(**fields).square().sum(), leaf)[0] for f in (formed, definition))
    assert error(got, want) <= 1e-13


@variants
def test_second_derivatives(phased):
    fields = a_sum(2, phased=phased, n=4, k=3, ties=False)
    leaves = [value.requires_grad_() for value in fields.values()]
    assert torch.autograd.gradcheck(formed, leaves)
    assert torch.autograd.gradgradcheck(formed, leaves)


def test_third_derivatives():
    fields = {name: value.requires_grad_() for name, value in a_sum(2, n=3, k=4).items()}
    results = []
    for function in (formed, definition):
        value = function(**fields).square().sum()
        for _ in range(3):
            (bar,) = torch.autograd.grad(value, fields["a"], create_graph=True)
            value = bar.square().sum()
        results.append(bar)
    assert error(*results) <= 1e-11


@variants
def test_transforms(phased):
    fields = a_sum(2, phased=phased, n=3, k=4)
    tangents = {name: torch.randn_like(value) for name, value in fields.items()}
    many = {name: torch.stack([value, value + 0.1]) for name, value in fields.items()}
    names = list(fields)

    def unnamed(function):
        return lambda *values: function(**dict(zip(names, values, strict=True)))

    for transform in (
        lambda f: torch.func.jvp(unnamed(f), tuple(fields.values()), tuple(tangents.values()))[1],
        lambda f: torch.func.jacrev(unnamed(f))(*fields.values()),
        lambda f: torch.func.jacfwd(unnamed(f))(*fields.values()),
        lambda f: torch.func.vmap(unnamed(f))(*many.values()),
        lambda f: torch.func.hessian(lambda *values: unnamed(f)(*values).square().sum())(*fields.values()),
    ):
        assert error(transform(formed), transform(definition)) <= 1e-11


def test_forward_mode_of_trained_tensors():
    fields, tangent = a_sum(), torch.randn(3, 7).double()
    leaf, pushed = fields["a"].requires_grad_(), []
    for function in (formed, definition):
        with torch.autograd.forward_ad.dual_level():
            dual = torch.autograd.forward_ad.make_dual(leaf, tangent)
            pushed.append(torch.autograd.forward_ad.unpack_dual(function(**fields | {"a": dual})).tangent)
    assert error(*pushed) <= 1e-13


def test_one_tensor_given_twice():
    a, phi = (torch.randn(2, 5, dtype=torch.float64, requires_grad=True) for _ in range(2))
    tau, weight = torch.ones(2).double(), torch.randn(2).double()
    for create_graph in (False, True):
        got, want = (
            torch.autograd.grad(f(a, a, tau, weight, phi, phi).square().sum(), (a, phi), create_graph=create_graph)
            for f in (formed, definition)
        )
        assert all(error(one, other) <= 1e-12 for one, other in zip(got, want, strict=True))


def test_a_sparse_gradient():
    fields, rows, g = a_sum(), torch.tensor([1, 4, 4]), torch.ones(3, 9).double()
    got = gradients(lambda **leaves: functional.embedding(rows, formed(**leaves), sparse=True), fields, g)
    want = gradients(lambda **leaves: functional.embedding(rows, definition(**leaves)), fields, g)
    assert all(error(got[name], want[name]) <= 1e-12 for name in fields)


def test_lazily_negated_and_transposed_tensors():
    fields = a_sum()
    odd = fields | {"a": torch._neg_view(-fields["a"]), "b": fields["b"].mT.contiguous().mT}
    odd = {name: value.detach().requires_grad_() for name, value in odd.items()}
    got, want = (torch.autograd.grad(f(**odd).square().sum(), list(odd.values())) for f in (formed, definition))
    assert all(error(one, other) <= 1e-12 for one, other in zip(got, want, strict=True))


def test_backward_under_autocast():
    fields, g = a_sum(dtype=torch.float32), torch.randn(7, 9)
    want = gradients(formed, fields, g)
    with torch.autocast("cpu", torch.bfloat16):
        got = gradients(formed, fields, g)
    assert all(torch.equal(got[name], want[name]) for name in fields)


# --- memory and graphs ------------------------------------------------------------------------------------------------


def test_autograd_keeps_the_anchors_alone():
    fields, saved = {name: value.requires_grad_() for name, value in a_sum(5, n=40, k=50).items()}, []
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: saved.append(tensor.numel()), lambda _: None):
        formed(**fields)
    assert sum(saved) == sum(value.numel() for value in fields.values())


@variants
def test_compiled(phased, unpoisoned):
    torch._dynamo.reset()
    fields, g, operators = a_sum(phased=phased), torch.randn(7, 9).double(), []

    def backend(graph, _examples):
        operators.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return graph

    want = gradients(formed, fields, g)
    torch.compile(formed, fullgraph=True, backend=backend)(**fields)
    assert "laplex.form.default" in operators
    got = gradients(torch.compile(formed, fullgraph=True, backend="aot_eager"), fields, g)
    assert all(error(got[name], want[name]) <= 1e-13 for name in fields)


@pytest.mark.parametrize("order", [1, 2])
def test_while_something_watches(order):
    from torch.utils.flop_counter import FlopCounterMode

    fields = {name: value.requires_grad_() for name, value in a_sum(2).items()}

    def derivative(function):
        value = function(**fields).square().sum()
        for _ in range(order):
            bars = torch.autograd.grad(value, list(fields.values()), create_graph=True)
            value = bars[0].square().sum()
        return [bar.detach() for bar in bars]

    with FlopCounterMode(display=False):
        got = derivative(formed)
    assert all(error(one, other) <= 1e-10 for one, other in zip(got, derivative(definition), strict=True))


def test_on_the_meta_device():
    fields = {name: value.to("meta").requires_grad_() for name, value in a_sum().items()}
    got = formed(**fields)
    assert (got.device.type, got.shape) == ("meta", (7, 9))
    got.sum().backward()
    assert all(value.grad.shape == value.shape for value in fields.values())
