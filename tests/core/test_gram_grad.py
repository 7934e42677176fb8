"""Derivatives of laplex.gram: gradcheck on separated points; ties against autograd through the dense definition."""

from functools import partial

import pytest
import torch

import laplex
from cases import named
from helpers import error, named_gradients, phases_for, wide
from laplex import reference
from test_grad import packed, second_order, separated

SIZES = [(5, 4), (1, 17), (17, 1)]  # merged, short rows, short columns
TIED = ("ties_across_sides", "all_tied", "duplicates_within_a_side", "ties_everywhere", "signed_zeros", "batched_ties")
OTHERS = ("generic", "batched", "offset", "huge_tau", "rows_left_of_columns", "rows_right_of_columns", "denormal_gaps")
SHORT = ("short_rows_ties", "batched_short_rows", "many_rows_one_column", "one_point", "short_rows")


def inputs_for(a, b, tau, m=None, phased=True):
    """Every differentiable argument of laplex.gram, by name."""
    lead = () if m is None else (*b.shape[:-1], m)
    inputs = {"a": a, "b": b, "weight": torch.randn(*lead, b.shape[-1], dtype=b.dtype)}
    inputs["tau"] = torch.as_tensor(tau, dtype=a.dtype)
    if phased:
        inputs["phi"], inputs["psi"] = phases_for(a, b)
    return inputs


def on(backend, **fixed):
    return lambda **arguments: laplex.gram(**arguments, **fixed, backend=backend)


def positional(backend, a, b, weight, tau, phi=None, psi=None, plan=None):
    return laplex.gram(a, b, weight, tau, phi=phi, psi=psi, plan=plan, backend=backend)


def checked(n, k, batch=(), m=None, phased=True):
    inputs = inputs_for(*separated(n, k, batch), torch.rand(batch).double() + 0.8, m, phased)
    return tuple(value.requires_grad_() for value in inputs.values())


# --- finite differences -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "k"), SIZES)
@pytest.mark.parametrize("phased", [False, True])
def test_gradcheck(n, k, phased, backend):
    """With a long side along one direction: test_every_gradient_is_the_dense_one has all entries of such."""
    function, inputs = partial(positional, backend), checked(n, k, phased=phased)
    assert torch.autograd.gradcheck(function, inputs, check_forward_ad=True, fast_mode=n != 5)


def test_gradcheck_of_batches_of_cotangents(backend):
    inputs = checked(4, 3, phased=True)
    assert torch.autograd.gradcheck(partial(positional, backend), inputs, check_batched_grad=True, fast_mode=False)


@pytest.mark.parametrize("phased", [False, True])
def test_gradgradcheck(phased, backend):
    inputs = checked(4, 3, m=2, phased=phased)
    assert torch.autograd.gradgradcheck(partial(positional, backend), inputs, fast_mode=True)


@pytest.mark.parametrize("batch", [(2,), (2, 1)])
def test_gradcheck_batched(batch, backend):
    inputs = checked(3, 2, batch, m=2)
    assert torch.autograd.gradcheck(partial(positional, backend), inputs)
    assert torch.autograd.gradgradcheck(partial(positional, backend), inputs, fast_mode=True)


@pytest.mark.parametrize(("n", "k"), SIZES)
def test_gradcheck_with_a_plan(n, k, backend):
    inputs = checked(n, k)
    function = partial(positional, backend, plan=laplex.Plan(*inputs[:2]))
    assert torch.autograd.gradcheck(function, inputs, fast_mode=True)
    assert torch.autograd.gradgradcheck(function, inputs, fast_mode=True)


# --- the dense definition, at ties too --------------------------------------------------------------------------------


def term_scales(inputs, cotangent):
    """The size of the terms that each gradient is a sum of: what rounding is relative to."""
    names = [name for name in inputs if name not in ("phi", "psi")]
    positive = {name: inputs[name].abs() if name == "weight" else inputs[name] for name in names}
    gradients = named_gradients(reference.gram, positive, cotangent.abs())
    mass = float((gradients["weight"] * positive["weight"]).sum())
    rate = mass / float(inputs["tau"].min())
    return {"weight": float(gradients["weight"].norm()), "a": rate, "b": rate, "tau": rate, "phi": mass, "psi": mass}


@named(*TIED, *OTHERS, *SHORT)
@pytest.mark.parametrize("phased", [False, True])
def test_every_gradient_is_the_dense_one(case, phased, backend):
    inputs = inputs_for(*case(), m=2, phased=phased)
    cotangent = torch.randn_like(reference.gram(**inputs))
    want = named_gradients(reference.gram, inputs, cotangent)
    got = named_gradients(on(backend), inputs, cotangent)
    scales = term_scales(inputs, cotangent)
    for name, exact in want.items():
        assert float((got[name] - exact).norm()) <= 1e-13 * scales[name], name


@named(*TIED, "generic", "batched", "one_point")
@pytest.mark.parametrize("phased", [False, True])
def test_second_order_is_the_dense_one(case, phased, backend):
    inputs = inputs_for(*case(), phased=phased)
    cotangent = torch.randn_like(reference.gram(**inputs))
    direction = [torch.randn_like(value) for value in inputs.values()]
    want = second_order(reference.gram, inputs, cotangent, direction)
    got = second_order(on(backend), inputs, cotangent, direction)
    for name, exact in want.items():
        assert float((got[name] - exact).norm()) <= 1e-11 * max(float(exact.norm()), 1.0), name


@pytest.mark.parametrize("anchors", [([0.0, 1, 1, 2], [1.0, 0, 3]), ([0.5], [0.5]), ([0.0, 0.0], [0.0, 1.0])], ids=str)
def test_the_whole_hessian_at_ties(anchors, backend):
    a, b = (torch.tensor(values, dtype=torch.float64) for values in anchors)
    inputs = inputs_for(a, b, 0.8)
    sizes = {name: value.shape for name, value in inputs.items()}
    vector = torch.cat([value.reshape(-1) for value in inputs.values()])
    want = torch.autograd.functional.hessian(packed(reference.gram, sizes), vector)
    got = torch.autograd.functional.hessian(packed(on(backend), sizes), vector)
    torch.testing.assert_close(got, want, atol=1e-12, rtol=1e-11)


@pytest.mark.parametrize("anchors", [([0.0, 1, 2.5], [1.0, 0.3]), ([0.5, 0.5], [0.5, 0.5])], ids=str)
def test_third_derivatives(anchors, backend):
    a, b = (torch.tensor(values, dtype=torch.float64) for values in anchors)
    inputs = inputs_for(a, b, 0.8)
    sizes = {name: value.shape for name, value in inputs.items()}
    vector = torch.cat([value.reshape(-1) for value in inputs.values()])
    along = [torch.randn_like(vector) for _ in range(2)]

    def third(function):
        leaf = vector.clone().requires_grad_()
        value = packed(function, sizes)(leaf)
        for direction in along:
            value = (torch.autograd.grad(value, leaf, create_graph=True)[0] * direction).sum()
        return torch.autograd.grad(value, leaf)[0]

    torch.testing.assert_close(third(on(backend)), third(reference.gram), atol=1e-12, rtol=1e-11)


@named("generic", "ties_everywhere", "duplicates_within_a_side", "batched")
def test_forward_mode_and_reverse_over_it(case, backend):
    inputs = inputs_for(*case())
    names = list(inputs)
    tangents = tuple(torch.randn_like(value) for value in inputs.values())

    def along(function):
        def by_position(*values):
            return function(**dict(zip(names, values)))

        def push(*values):
            return torch.func.jvp(by_position, values, tangents)[1].square().sum()

        pushed = torch.func.jvp(by_position, tuple(inputs.values()), tangents)[1]
        return pushed, *torch.func.grad(push, argnums=tuple(range(len(names))))(*inputs.values())

    for got, want in zip(along(on(backend)), along(reference.gram)):
        assert float((got - want).norm()) <= 1e-11 * max(float(want.norm()), 1.0)


@named("generic", "ties_everywhere", "short_rows", "batched", "long_tie_runs")
def test_float32_gradients(case, backend):
    inputs = inputs_for(*case(torch.float32))
    exact = {name: wide(value) for name, value in inputs.items()}
    cotangent = torch.randn_like(reference.gram(**inputs))
    want = named_gradients(reference.gram, exact, wide(cotangent))
    got = named_gradients(on(backend), inputs, cotangent)
    scales = term_scales(exact, wide(cotangent))
    for name in inputs:
        assert got[name].dtype == torch.float32
        assert float((wide(got[name]) - want[name]).norm()) <= 1e-6 * scales[name], name


@pytest.mark.parametrize("wanted", [("a",), ("b",), ("weight",), ("tau",), ("phi",), ("psi",), ("a", "phi")], ids=str)
def test_gradients_of_some_inputs_only(wanted, backend):
    inputs = inputs_for(torch.randn(6).double(), torch.randn(5).double(), 0.7)
    cotangent = torch.randn(6, 6).double()
    want = named_gradients(reference.gram, inputs, cotangent)
    leaves = {name: value.clone().requires_grad_(name in wanted) for name, value in inputs.items()}
    (laplex.gram(**leaves, backend=backend) * cotangent).sum().backward()
    for name, leaf in leaves.items():
        assert (leaf.grad is not None) == (name in wanted), name
    for name in wanted:
        assert error(leaves[name].grad, want[name]) <= 1e-12, name


def test_columns_far_outside_have_tiny_gradients(backend):
    """What spans no pair of rows is not pulled at by rounding."""
    a, b = torch.rand(30).double(), torch.cat([torch.rand(20) - 26, torch.rand(20) + 26]).double()
    inputs = {"a": a, "b": b, "weight": torch.rand(40).double()}
    cotangent = torch.randn(30, 30).double()
    want = named_gradients(reference.gram, inputs, cotangent)
    got = named_gradients(on(backend), inputs, cotangent)
    for name in inputs:
        assert error(got[name], want[name]) <= 1e-11, name


def test_one_tensor_as_rows_and_columns(backend):
    a, weight = torch.randn(9).double(), torch.randn(9).double()
    gradients = []
    for function in (partial(laplex.gram, backend=backend), reference.gram):
        leaf = a.clone().requires_grad_()
        (first,) = torch.autograd.grad(function(leaf, leaf, weight, 0.7).square().sum(), leaf, create_graph=True)
        gradients += [(first.detach(), torch.autograd.grad(first.square().sum(), leaf)[0])]
    assert all(error(got, want) <= 1e-11 for got, want in zip(*gradients))


# --- transforms -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("phased", [False, True])
def test_compiles_as_one_graph(phased, backend, unpoisoned):
    inputs = inputs_for(torch.randn(6).double(), torch.randn(5).double(), 0.7, phased=phased)
    compiled = torch.compile(on(backend), fullgraph=True, backend="aot_eager")
    cotangent = torch.randn(6, 6).double()
    want = named_gradients(on(backend), inputs, cotangent)
    got = named_gradients(compiled, inputs, cotangent)
    assert all(torch.allclose(got[name], want[name], atol=1e-13, rtol=1e-12) for name in inputs)


def test_vmap(scan_backend):
    a, b, weight = torch.randn(3, 6).double(), torch.randn(5).double(), torch.randn(3, 5).double()
    got = torch.func.vmap(partial(laplex.gram, backend=scan_backend), in_dims=(0, None, 0))(a, b, weight)
    want = torch.stack([reference.gram(a[i], b, weight[i]) for i in range(3)])
    assert error(got, want) <= 1e-13
