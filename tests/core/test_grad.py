"""Derivatives: gradcheck on separated points; ties and float32 against autograd through the dense definition."""

from functools import partial

import pytest
import torch
from torch.utils.checkpoint import checkpoint

import laplex
from cases import BY_NAME, every, named
from helpers import (
    LAYOUTS,
    TOLERANCE,
    error,
    flat,
    inputs_for,
    make_order,
    named_gradients,
    odd_kernel,
    on,
    wide,
)
from laplex import reference

SIZES = [(5, 4), (1, 17), (17, 1)]  # merged, short rows, short columns
NAMES = ("x", "a", "b", "tau", "phi", "psi")


def separated(n, k, batch=()):
    """Anchors no two of which are near: finite differences do not step over a kink."""
    points = torch.rand(*batch, n + k).double().argsort(-1) * 0.4 + torch.rand(*batch, n + k).double() * 0.1
    return points[..., :n].contiguous(), points[..., n:].contiguous()


def checked(n, k, batch=(), phased=True):
    a, b = separated(n, k, batch)
    inputs = inputs_for(a, b, torch.rand(batch).double() + 0.8, m=2, phased=phased)
    return tuple(value.requires_grad_() for value in inputs.values())


def positional(backend, x, a, b, tau, phi=None, psi=None, plan=None):
    return laplex.linear(x, a, b, tau, phi=phi, psi=psi, plan=plan, backend=backend)


@pytest.mark.parametrize(("n", "k"), SIZES)
@pytest.mark.parametrize("phased", [False, True])
def test_gradcheck(n, k, phased, backend):
    inputs = checked(n, k, phased=phased)
    assert torch.autograd.gradcheck(
        partial(positional, backend), inputs, check_forward_ad=True, check_batched_grad=True
    )


@pytest.mark.parametrize(("n", "k"), SIZES)
def test_gradgradcheck(n, k, backend):
    inputs = checked(n, k)
    assert torch.autograd.gradgradcheck(
        partial(positional, backend), inputs, check_fwd_over_rev=True, check_rev_over_rev=True, fast_mode=True
    )


def test_gradgradcheck_of_every_entry(backend):
    assert torch.autograd.gradgradcheck(partial(positional, backend), checked(3, 2, phased=False))


@pytest.mark.parametrize("batch", [(2,), (2, 1)])
def test_gradcheck_batched(batch, backend):
    inputs = checked(3, 2, batch)
    function = partial(positional, backend)
    assert torch.autograd.gradcheck(function, inputs, check_forward_ad=True)
    assert torch.autograd.gradgradcheck(function, inputs, fast_mode=True)


@pytest.mark.parametrize(("n", "k"), SIZES)
def test_gradcheck_with_a_plan(n, k, backend):
    inputs = checked(n, k)
    function = partial(positional, backend, plan=laplex.Plan(inputs[1], inputs[2]))
    assert torch.autograd.gradcheck(function, inputs, check_forward_ad=True, fast_mode=True)
    assert torch.autograd.gradgradcheck(function, inputs, fast_mode=True)


def test_gradcheck_of_complex_x(backend):
    a, b = separated(4, 3)
    x = torch.randn(2, 3, dtype=torch.complex128)
    inputs = tuple(value.requires_grad_() for value in (x, a, b, torch.tensor(0.9).double()))
    assert torch.autograd.gradcheck(partial(positional, backend), inputs, check_forward_ad=True)


TIED = ("ties_across_sides", "all_tied", "duplicates_within_a_side", "ties_everywhere", "signed_zeros", "batched_ties")
TIED_SHORT = ("short_rows_ties", "short_cols_ties", "batched_short_rows", "many_rows_one_column")
OTHERS = ("generic", "batched", "offset", "clustered", "huge_tau", "rows_left_of_columns", "denormal_gaps")


@named(*TIED, *TIED_SHORT, *OTHERS, "long_tie_runs")
def test_every_gradient_is_the_dense_one(case, backend):
    inputs = inputs_for(*case())
    weight = torch.randn_like(reference.linear(**inputs))
    want = named_gradients(reference.linear, inputs, weight)
    got = named_gradients(on(backend), inputs, weight)
    scales = cancellation_scales(inputs, weight)
    for name in NAMES:
        assert float((got[name] - want[name]).norm()) <= 1e-13 * scales[name], name


def cancellation_scales(inputs, weight):
    """The size of the terms that each gradient is a sum of: what rounding is relative to."""
    positive = inputs | {"x": inputs["x"].abs(), "phi": 0 * inputs["phi"], "psi": 0 * inputs["psi"]}
    gradients = named_gradients(reference.linear, positive, weight.abs())
    mass = float((gradients["x"] * positive["x"]).sum())
    rate = mass / float(inputs["tau"].min())
    return {"x": float(gradients["x"].norm()), "a": rate, "b": rate, "tau": rate, "phi": mass, "psi": mass}


@every()
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_fused_pullback(case, layout, scan_backend, dtype):
    a, b, tau = flat(*case(dtype))
    h, n, k = *a.shape, b.shape[1]
    order = make_order(a, b, layout, scan_backend)
    g, x = torch.randn(h, 3, n, dtype=dtype), torch.randn(h, 3, k, dtype=dtype)
    dense = reference.kernel(wide(a), wide(b), tau)
    odd = odd_kernel(a, b, tau, dense)
    odd_x = (wide(x) @ odd.mT).to(dtype)
    got = torch.ops.laplex.pullback(g, x, odd_x, a, b, tau, *order.tensors, order.layout, scan_backend, False)
    rate = (1 / tau)[:, None]
    want = wide(g) @ dense, (wide(g) * wide(odd_x)).sum(1) * rate, (wide(x) * (wide(g) @ -odd)).sum(1) * rate
    assert error(got[0], want[0]) <= TOLERANCE[dtype]
    for bar, exact, terms in zip(got[1:], want[1:], (wide(odd_x) * wide(g), wide(x) * (wide(g) @ -odd))):
        assert bar.dtype == dtype
        assert float((wide(bar) - exact).norm()) <= TOLERANCE[dtype] * float((terms.abs().sum(1) * rate).norm())
    none = torch.ops.laplex.pullback(g, x, odd_x[..., :0], a, b, tau, *order.tensors, order.layout, scan_backend, False)
    assert none[1].shape == (h, 0)
    assert torch.equal(none[0], got[0])
    assert torch.equal(none[2], got[2])


def second_order(function, inputs, weight, direction):
    """Gradients of <direction, first gradients>, by name."""
    leaves = {name: value.detach().clone().requires_grad_() for name, value in inputs.items()}
    total = (function(**leaves) * weight).sum()
    first = torch.autograd.grad(total, list(leaves.values()), create_graph=True)
    inner = sum((value * towards).sum() for value, towards in zip(first, direction))
    return dict(zip(leaves, torch.autograd.grad(inner, list(leaves.values()))))


@named(*TIED, *TIED_SHORT, "generic", "batched")
def test_second_order_is_the_dense_one(case, backend):
    inputs = inputs_for(*case(), m=2)
    weight = torch.randn_like(reference.linear(**inputs))
    direction = [torch.randn_like(value) for value in inputs.values()]
    want = second_order(reference.linear, inputs, weight, direction)
    got = second_order(on(backend), inputs, weight, direction)
    for name in NAMES:
        assert error(got[name], want[name]) <= 1e-11, name


def packed(function, sizes):
    """A scalar function of one vector that holds every argument."""

    def of_vector(vector):
        parts = dict(zip(sizes, vector.split([size.numel() for size in sizes.values()])))
        y = function(**{name: part.reshape(sizes[name]) for name, part in parts.items()})
        return (y * torch.arange(1.0, y.numel() + 1).reshape(y.shape).sin()).sum()

    return of_vector


@pytest.mark.parametrize("anchors", [([0.0, 1, 1, 2], [1.0, 0, 3]), ([0.5], [0.5]), ([0.0, 0.0], [0.0, 1.0])], ids=str)
def test_the_whole_hessian_at_ties(anchors, backend):
    a, b = (torch.tensor(values, dtype=torch.float64) for values in anchors)
    inputs = inputs_for(a, b, 0.8, m=2)
    sizes = {name: value.shape for name, value in inputs.items()}
    vector = torch.cat([value.reshape(-1) for value in inputs.values()])
    want = torch.autograd.functional.hessian(packed(reference.linear, sizes), vector)
    got = torch.autograd.functional.hessian(packed(on(backend), sizes), vector)
    torch.testing.assert_close(got, want, atol=1e-13, rtol=1e-12)


@pytest.mark.parametrize("anchors", [([0.0, 1, 2.5], [1.0, 0.3]), ([0.5], [0.5, 0.5])], ids=str)
def test_third_derivatives(anchors, backend):
    a, b = (torch.tensor(values, dtype=torch.float64) for values in anchors)
    inputs = inputs_for(a, b, 0.8, m=1)
    sizes = {name: value.shape for name, value in inputs.items()}
    vector = torch.cat([value.reshape(-1) for value in inputs.values()])
    along = [torch.randn_like(vector) for _ in range(2)]

    def third(function):
        leaf = vector.clone().requires_grad_()
        value = packed(function, sizes)(leaf)
        for direction in along:
            value = (torch.autograd.grad(value, leaf, create_graph=True)[0] * direction).sum()
        return torch.autograd.grad(value, leaf)[0]

    torch.testing.assert_close(third(on(backend)), third(reference.linear), atol=1e-12, rtol=1e-11)


@named(
    "generic", "ties_everywhere", "clustered", "short_rows", "short_cols_ties", "batched", "chunk_513", "long_tie_runs"
)
def test_float32_gradients(case, backend):
    inputs = inputs_for(*case(torch.float32))
    exact = {name: wide(value) for name, value in inputs.items()}
    weight = torch.randn_like(reference.linear(**inputs))
    want = named_gradients(reference.linear, exact, wide(weight))
    got = named_gradients(on(backend), inputs, weight)
    scales = cancellation_scales(exact, wide(weight))
    for name in NAMES:
        assert got[name].dtype == torch.float32
        if name in ("x", "phi", "psi"):
            assert error(got[name], want[name]) <= 2e-6, name
        assert float((wide(got[name]) - want[name]).norm()) <= 1e-6 * scales[name], name


@pytest.mark.parametrize("offset", [0.0, 2.0**14])
def test_gradient_of_tau_under_an_offset(offset, backend, dtype):
    a, b = torch.randint(-99, 99, (43,)).to(dtype) / 64, torch.randint(-99, 99, (37,)).to(dtype) / 64
    x = torch.rand(3, 37, dtype=dtype)
    tau = torch.tensor(0.25, dtype=dtype, requires_grad=True)
    laplex.linear(x, a + offset, b + offset, tau, backend=backend).sum().backward()
    exact = wide(tau).requires_grad_()
    reference.linear(wide(x), wide(a), wide(b), exact).sum().backward()
    assert error(tau.grad, exact.grad) <= {torch.float32: 2e-6, torch.float64: 1e-13}[dtype]


@every([BY_NAME[name] for name in ("ties_across_sides", "short_rows_ties", "short_cols_ties", "batched")])
@pytest.mark.parametrize("wanted", [*((name,) for name in NAMES), ("a", "b"), ("x", "b"), ("tau", "phi")], ids=str)
def test_gradients_of_some_inputs_only(case, wanted, backend):
    inputs = inputs_for(*case())
    weight = torch.randn_like(reference.linear(**inputs))
    want = named_gradients(reference.linear, inputs, weight)
    leaves = {name: value.clone().requires_grad_(name in wanted) for name, value in inputs.items()}
    (laplex.linear(**leaves, backend=backend) * weight).sum().backward()
    for name, leaf in leaves.items():
        assert (leaf.grad is not None) == (name in wanted), name
    for name in wanted:
        assert error(leaves[name].grad, want[name]) <= 1e-12, name


def test_one_tensor_as_rows_and_columns(backend):
    a, x = torch.randn(15).double(), torch.randn(2, 15).double()
    gradients = []
    for function in (partial(laplex.linear, backend=backend), reference.linear):
        leaf = a.clone().requires_grad_()
        function(x, leaf, leaf, 0.7).square().sum().backward()
        gradients.append(leaf.grad)
    assert error(*gradients) <= 1e-13


@pytest.mark.parametrize("x_dtype", [torch.bfloat16, torch.float32, torch.float64, torch.complex64], ids=str)
def test_gradients_keep_the_dtype_of_their_input(x_dtype, backend, dtype):
    a, b, tau = (torch.randn(size, dtype=dtype).requires_grad_() for size in (7, 6, 1))
    phi, psi = torch.randn(7, dtype=dtype).requires_grad_(), torch.randn(6, dtype=dtype).requires_grad_()
    x = torch.randn(3, 6, dtype=x_dtype, requires_grad=True)
    y = laplex.linear(x, a, b, tau[0].exp(), phi=phi, psi=psi, backend=backend)
    y.abs().sum().backward()
    for leaf in (x, a, b, tau, phi, psi):
        assert leaf.grad.dtype == leaf.dtype
        assert bool(leaf.grad.isfinite().all())


@pytest.mark.parametrize(("n", "k", "m"), [(0, 3, 2), (3, 0, 2), (3, 4, 0)])
def test_empty_gradients_are_zero(n, k, m, backend):
    inputs = inputs_for(torch.randn(n), torch.randn(k), 0.5, m=m)
    gradients = named_gradients(on(backend), inputs, 1.0)
    assert all(torch.equal(gradients[name], torch.zeros_like(inputs[name])) for name in NAMES)


def test_gradients_of_expanded_and_strided_inputs(backend):
    inputs = inputs_for(torch.randn(3, 7).double(), torch.randn(3, 6).double(), 0.6)
    base, weight = torch.randn(3, 6).double(), torch.randn(3, 7, 3).double()

    def strided(linear):
        return lambda x, **others: linear(x=base.expand(3, 3, 6) * x.mT.contiguous().mT, **others).mT

    got = named_gradients(strided(on(backend)), inputs, weight)
    want = named_gradients(strided(reference.linear), inputs, weight)
    assert all(error(got[name], want[name]) <= 1e-13 for name in NAMES)


# --- tau, where anchors span many of it -------------------------------------------------------------------------------

SPANS = {"a_day_in_seconds": (86400.0, 1.0), "wide": (1e3, 0.01), "offset": (1.0, 0.01)}


def spanning(name, dtype):
    span, tau = SPANS[name]
    a, b = torch.rand(700, dtype=dtype) * span, torch.rand(600, dtype=dtype) * span
    if name == "offset":
        a, b = a + 1e3, b + 1e3
    return torch.randn(2, 600, dtype=dtype), a, b, torch.tensor(tau, dtype=dtype), torch.randn(2, 700, dtype=dtype)


def true_tau_bar(x, a, b, tau, g):
    wide = [value.double() for value in (x, a, b)]
    tau = tau.double().requires_grad_()
    y = wide[0] @ laplex.reference.kernel(*wide[1:], tau).mT
    return torch.autograd.grad(y, tau, g.double())[0]


@pytest.mark.parametrize("name", SPANS)
def test_the_gradient_of_tau_does_not_cancel(name, dtype, scan_backend):
    x, a, b, tau, g = spanning(name, dtype)
    tau.requires_grad_()
    tolerance = 2e-7 if dtype == torch.float32 else 1e-9  # of a sum of pulls some 1e5 times as large
    for create_graph in (False, True):
        y = laplex.linear(x, a, b, tau, backend=scan_backend)
        (got,) = torch.autograd.grad(y, tau, g, create_graph=create_graph)
        want = true_tau_bar(x, a, b, tau.detach(), g)
        assert abs(float(got.detach()) / float(want) - 1) <= tolerance


@pytest.mark.parametrize("name", SPANS)
def test_the_tangent_of_tau_does_not_cancel(name, scan_backend):
    x, a, b, tau, g = spanning(name, torch.float32)
    _, tangent = torch.func.jvp(
        lambda tau: laplex.linear(x, a, b, tau, backend=scan_backend), (tau,), (torch.ones_like(tau),)
    )
    want = true_tau_bar(x, a, b, tau, g)
    assert abs(float((tangent.double() * g.double()).sum()) / float(want) - 1) <= 2e-6  # of a sum of 1400 tangents


@pytest.mark.parametrize("name", SPANS)
def test_the_gradient_of_tau_of_a_gram_does_not_cancel(name):
    x, a, b, tau, _ = spanning(name, torch.float32)
    a, weight, g = a[:50], x[0], torch.randn(50, 50)
    tau.requires_grad_()
    (got,) = torch.autograd.grad(laplex.gram(a, b, weight, tau), tau, g)
    wide = tau.detach().double().requires_grad_()
    dense = laplex.reference.gram(a.double(), b.double(), weight.double(), wide)
    (want,) = torch.autograd.grad(dense, wide, g.double())
    assert abs(float(got) / float(want) - 1) <= 2e-7


def test_checkpoints_that_do_not_reenter():
    x, a, b, tau, _ = spanning("offset", torch.float64)
    a.requires_grad_()
    y = checkpoint(lambda a: laplex.linear(x, a, b, tau), a, use_reentrant=False)
    (got,) = torch.autograd.grad(y.sum(), a, create_graph=True)
    (want,) = torch.autograd.grad(laplex.linear(x, a, b, tau).sum(), a)
    assert error(got, want) <= TOLERANCE[torch.float64]


@pytest.mark.parametrize("tau", [0.3, 0.05])
def test_second_derivatives_beside_ties_that_are_all_but_everything(tau, backend):
    """In float32: anchors on a grid, every one tied, whose neighbours are up to 20 tau away."""
    grid, x, g, direction = torch.arange(60.0), torch.randn(3, 60), torch.randn(3, 60), torch.randn(60)

    def curvature(dtype, product):
        a, b = (grid.to(dtype, copy=True).requires_grad_() for _ in range(2))
        y = product(x.to(dtype), a, b)
        (pull,) = torch.autograd.grad((y * g.to(dtype)).sum(), a, create_graph=True)
        return torch.autograd.grad((pull * direction.to(dtype)).sum(), (a, b))

    got = curvature(torch.float32, lambda x, a, b: laplex.linear(x, a, b, tau, backend=backend))
    wanted = curvature(torch.float64, lambda x, a, b: x @ torch.exp(-(a[:, None] - b).abs() / tau).mT)
    for one, want in zip(got, wanted, strict=True):
        assert error(one, want) <= 2e-7


@pytest.mark.parametrize(("n", "k"), [(5, 0), (0, 5), (0, 0)])
def test_of_x_alone_where_nothing_is_summed(n, k, backend):
    x, a, b = torch.zeros(3, k, requires_grad=True), torch.rand(n), torch.rand(k)
    (x_bar,) = torch.autograd.grad(laplex.linear(x, a, b, 0.5, backend=backend).sum(), x)
    assert torch.equal(x_bar, torch.zeros(3, k))
