"""torch.func, torch.compile, torch.export, fake tensors and the modes of autograd."""

from functools import partial

import pytest
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.func import grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

import laplex
from cases import named
from helpers import TOLERANCE, error, inputs_for, oracle
from laplex import reference

TIED = named("generic", "ties_everywhere", "short_rows_ties", "short_cols_ties")


def product(backend, plan=None):
    return lambda x, a, b, tau: laplex.linear(x, a, b, tau, plan=plan, backend=backend)


def drawn(*sizes):
    return [torch.randn(size).double() for size in sizes]


# --- vmap -----------------------------------------------------------------------------------------------------------

VMAPS = {  # shapes of x, a, b, tau, and the dimension mapped in each
    "x": (((3, 2, 6), (5,), (6,), ()), (0, None, None, None)),
    "x_last": (((2, 6, 3), (5,), (6,), ()), (2, None, None, None)),
    "a": (((2, 6), (3, 5), (6,), ()), (None, 0, None, None)),
    "b": (((2, 6), (5,), (6, 3), ()), (None, None, 1, None)),
    "tau": (((2, 6), (5,), (6,), (3,)), (None, None, None, 0)),
    "all": (((3, 2, 6), (5, 3), (3, 6), (3,)), (0, 1, 0, 0)),
    "all_batched": (((3, 4, 2, 6), (4, 3, 5), (3, 4, 6), (3, 4)), (0, 1, 0, 0)),
    "x_of_batched": (((4, 3, 2, 6), (4, 5), (4, 6), (4,)), (1, None, None, None)),
    "short_rows": (((3, 2, 40), (3, 2), (3, 40), ()), (0, 0, 0, None)),
    "short_cols": (((2, 3), (50,), (5, 3), ()), (None, None, 0, None)),
}


@pytest.mark.parametrize(("shapes", "dims"), VMAPS.values(), ids=VMAPS)
def test_vmap(shapes, dims, backend):
    x, a, b, tau = drawn(*shapes)
    got = vmap(product(backend), dims)(x, a, b, tau.exp())
    want = vmap(reference.linear, dims)(x, a, b, tau.exp())
    assert error(got, want) <= 1e-14


def test_vmap_of_phases(backend):
    x, a, b, phi, psi = drawn((2, 6), (5,), (6,), (3, 5), (3, 6))
    got = vmap(lambda p, q: laplex.linear(x, a, b, phi=p, psi=q, backend=backend))(phi, psi)
    want = vmap(lambda p, q: reference.linear(x, a, b, phi=p, psi=q))(phi, psi)
    assert error(got, want) <= 1e-14


def test_nested_vmap(backend):
    x, a, b, tau = drawn((2, 6), (3, 5), (4, 6), (4,))

    def nested(linear):
        inner = vmap(linear, (None, None, 0, 0))
        return vmap(inner, (None, 0, None, None))(x, a, b, tau.exp())

    assert error(nested(product(backend)), nested(reference.linear)) <= 1e-14


def test_vmap_with_a_plan(backend):
    x, a, b = drawn((3, 2, 6), (5,), (6,))
    got = vmap(product(backend, laplex.Plan(a, b)), (0, None, None, None))(x, a, b, 1.0)
    assert error(got, oracle(x, a, b)) <= 1e-14


@pytest.mark.parametrize("argument", range(4), ids=["x", "a", "b", "tau"])
def test_vmap_of_grad(argument, backend):
    x, a, b, tau = drawn((3, 2, 6), (3, 5), (3, 6), (3,))

    def gradient(linear):
        scalar = lambda *inputs: linear(*inputs).sin().sum()  # noqa: E731
        return vmap(grad(scalar, argument))(x, a, b, tau.exp())

    assert error(gradient(product(backend)), gradient(reference.linear)) <= 1e-13


# --- derivatives by transformation ----------------------------------------------------------------------------------


@TIED
def test_jvp_and_vjp(case, backend):
    inputs = tuple(inputs_for(*case(), m=2, phased=False).values())
    tangents = tuple(torch.randn_like(value) for value in inputs)
    got, want = (jvp(f, inputs, tangents) for f in (product(backend), reference.linear))
    assert error(got[0], want[0]) <= 1e-14
    assert error(got[1], want[1]) <= 1e-12
    cotangent = torch.randn_like(got[0])
    for one, other in zip(vjp(product(backend), *inputs)[1](cotangent), vjp(reference.linear, *inputs)[1](cotangent)):
        assert error(one, other) <= 1e-12


def test_jvp_in_some_inputs_only(backend):
    x, a, b, tau = drawn((2, 6), (5,), (6,), ())
    for argument, value in enumerate((x, a, b, tau.exp())):
        fixed = [x, a, b, tau.exp()]

        def along(linear, v, argument=argument, fixed=fixed):
            return linear(*fixed[:argument], v, *fixed[argument + 1 :])

        direction = torch.randn_like(value)
        _, got = jvp(partial(along, product(backend)), (value,), (direction,))
        _, want = jvp(partial(along, reference.linear), (value,), (direction,))
        assert error(got, want) <= 1e-13


def test_dual_numbers_of_forward_ad(backend):
    inputs = drawn((2, 6), (5,), (6,), ())
    inputs[3] = inputs[3].exp()
    tangents = [torch.randn_like(value) for value in inputs]
    results = []
    for linear in (product(backend), reference.linear):
        with torch.autograd.forward_ad.dual_level():
            duals = [torch.autograd.forward_ad.make_dual(*pair) for pair in zip(inputs, tangents)]
            results.append(torch.autograd.forward_ad.unpack_dual(linear(*duals)).tangent)
    assert error(*results) <= 1e-13


@pytest.mark.parametrize("jacobian", [jacrev, jacfwd])
def test_jacobians(jacobian, backend):
    inputs = drawn((2, 4), (3,), (4,), ())
    inputs[1][0] = inputs[2][1]
    inputs[3] = inputs[3].exp()
    for one, other in zip(*(jacobian(f, (0, 1, 2, 3))(*inputs) for f in (product(backend), reference.linear))):
        assert error(one, other) <= 1e-13


def test_jacobian_of_autograd(backend):
    inputs = tuple(drawn((2, 4), (3,), (4,)))
    for vectorize in (False, True):
        got = torch.autograd.functional.jacobian(partial(laplex.linear, backend=backend), inputs, vectorize=vectorize)
        want = torch.autograd.functional.jacobian(reference.linear, inputs)
        assert all(error(one, other) <= 1e-13 for one, other in zip(got, want))


@pytest.mark.parametrize("tied", [False, True])
def test_hessian(tied, backend):
    x, a, b, tau = drawn((1, 3), (2,), (3,), ())
    if tied:
        a[0] = b[1] = b[2]

    def scalar(linear):
        return lambda a, b, tau: linear(x, a, b, tau.exp()).square().sum()

    got, want = (hessian(scalar(f), (0, 1, 2))(a, b, tau) for f in (product(backend), reference.linear))
    for row, other_row in zip(got, want):
        for block, other in zip(row, other_row):
            torch.testing.assert_close(block, other, atol=1e-12, rtol=1e-11)


@pytest.mark.parametrize("inner", [jacrev, jacfwd])
@pytest.mark.parametrize("outer", [jacrev, jacfwd])
def test_every_nesting_of_modes(inner, outer, backend):
    x, a, b = drawn((1, 3), (2,), (3,))

    def second(linear):
        return outer(inner(lambda a: linear(x, a, b, 0.8).sin().sum()))(a)

    assert error(second(product(backend)), second(reference.linear)) <= 1e-12


# --- compile and export ---------------------------------------------------------------------------------------------


@pytest.fixture
def compiled(unpoisoned):
    torch.compiler.reset()
    yield partial(torch.compile, fullgraph=True)
    torch.compiler.reset()


def named_step(linear, inputs, **fixed):
    """The product and every gradient."""
    leaves = {name: value.detach().clone().requires_grad_() for name, value in inputs.items()}
    y = linear(**leaves, **fixed)
    return y, torch.autograd.grad(y.sin().sum(), list(leaves.values()))


@pytest.mark.parametrize("batch", [(), (3,)], ids=["single", "batched"])
@pytest.mark.parametrize("planned", [False, True])
def test_compile_forward_and_backward(batch, planned, backend, compiled):
    a, b = drawn((*batch, 7), (*batch, 6))
    inputs = inputs_for(a, b, torch.full(batch, 0.7))
    plan = laplex.Plan(a, b) if planned else None
    y, gradients = named_step(compiled(partial(laplex.linear, backend=backend), backend="aot_eager"), inputs, plan=plan)
    want, want_gradients = named_step(reference.linear, inputs)
    assert error(y, want) <= 1e-14
    assert all(error(one, other) <= 1e-13 for one, other in zip(gradients, want_gradients))


@pytest.mark.parametrize(("n", "k"), [(3, 50), (50, 3)])
def test_compile_short_axes(n, k, scan_backend, compiled):
    inputs = inputs_for(*drawn((n,), (k,)), 0.7)
    y, gradients = named_step(compiled(partial(laplex.linear, backend=scan_backend), backend="aot_eager"), inputs)
    want, want_gradients = named_step(reference.linear, inputs)
    assert error(y, want) <= 1e-14
    assert all(error(one, other) <= 1e-13 for one, other in zip(gradients, want_gradients))


def test_compile_with_inductor(compiled):
    inputs = inputs_for(*drawn((41,), (37,)), 0.7, phased=False)
    y, gradients = named_step(compiled(laplex.linear), inputs)
    want, want_gradients = named_step(reference.linear, inputs)
    assert error(y, want) <= 1e-14
    assert all(error(one, other) <= 1e-13 for one, other in zip(gradients, want_gradients))


def test_compile_dynamic_shapes(scan_backend, compiled):
    function = compiled(partial(laplex.linear, backend=scan_backend), backend="aot_eager", dynamic=True)
    for n, k, m in ((17, 19, 2), (23, 18, 3), (31, 40, 5)):
        inputs = inputs_for(*drawn((n,), (k,)), 0.7, m=m, phased=False)
        y, gradients = named_step(function, inputs)
        want, want_gradients = named_step(reference.linear, inputs)
        assert error(y, want) <= 1e-14
        assert all(error(one, other) <= 1e-13 for one, other in zip(gradients, want_gradients))


def test_compile_complex_and_half(compiled):
    a, b = torch.randn(21), torch.randn(22)
    function = compiled(laplex.linear, backend="aot_eager")
    for dtype, bound in ((torch.complex64, 2e-7), (torch.bfloat16, 4e-3)):
        x = torch.randn(3, 22, dtype=dtype)
        assert error(function(x, a, b, 0.5), oracle(x, a, b, 0.5)) <= bound


def test_compile_the_operator(compiled):
    a, b, x = drawn((21,), (22,), (22, 3))
    K = laplex.LaplaceOperator(a, b, 0.5)
    dense = reference.kernel(a, b, 0.5)
    assert error(compiled(torch.matmul, backend="aot_eager")(K, x), dense @ x) <= 1e-14
    assert (
        error(
            compiled(lambda x, K: torch.matmul(x, K), backend="aot_eager")(x.mT @ dense.mT, K), x.mT @ dense.mT @ dense
        )
        <= 1e-14
    )


def test_compile_does_not_transpose_the_operator(compiled):
    K, x = laplex.LaplaceOperator(*drawn((7,), (7,))), drawn((7, 7))[0]
    with pytest.raises(torch._dynamo.exc.Unsupported, match=r"write torch.matmul\(K, x\)"):
        compiled(lambda K, x: K @ x, backend="aot_eager")(K, x)


class Layer(torch.nn.Module):
    def __init__(self, n, k):
        super().__init__()
        self.a, self.b = torch.nn.Parameter(torch.randn(n)), torch.nn.Parameter(torch.randn(k))
        self.log_tau = torch.nn.Parameter(torch.tensor(-0.5))

    def forward(self, x):
        return laplex.linear(x, self.a, self.b, self.log_tau.exp())


@pytest.mark.usefixtures("unpoisoned")
@pytest.mark.parametrize(("n", "k"), [(5, 6), (21, 22), (3, 60)])
def test_export(n, k):
    layer, x = Layer(n, k), torch.randn(4, k)
    rows = torch.export.Dim("rows", min=2, max=64)
    program = torch.export.export(layer, (x,), dynamic_shapes={"x": {0: rows}})
    for m in (4, 9):
        x = torch.randn(m, k)
        assert error(program.module()(x), oracle(x, layer.a, layer.b, layer.log_tau.exp())) <= 2e-6


# --- modes ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients(mode, backend):
    a, b, x = (torch.randn(*size, requires_grad=True) for size in ((31,), (27,), (4, 27)))
    with mode():
        y = laplex.linear(x, a, b, torch.tensor(0.5, requires_grad=True), backend=backend)
        assert not y.requires_grad
        K = laplex.LaplaceOperator(a, b, 0.5)
        assert error(K @ x.mT, oracle(x, a, b, 0.5).mT) <= TOLERANCE[torch.float32]
    assert error(y, oracle(x, a, b, 0.5)) <= TOLERANCE[torch.float32]


def test_a_plan_made_in_inference_mode(backend):
    a, b, x = drawn((31,), (27,), (4, 27))
    with torch.inference_mode():
        plan = laplex.Plan(a, b)
    assert error(laplex.linear(x, a, b, plan=plan, backend=backend), oracle(x, a, b)) <= 1e-14


@pytest.mark.parametrize(("n", "k"), [(31, 27), (3, 60), (60, 3), (2000, 2000)])
def test_fake_tensors(n, k, backend):
    with FakeTensorMode():
        a, b, x = torch.randn(n, requires_grad=True), torch.randn(k), torch.randn(2, 3, k)
        y = laplex.linear(x, a, b, phi=a, psi=b, backend=backend)
        assert y.shape == (2, 3, n)
        y.sum().backward()
        assert a.grad.shape == a.shape


def test_meta_tensors():
    a, b, x = (torch.randn(*size, device="meta") for size in ((31,), (27,), (4, 27)))
    y = laplex.linear(x, a, b)
    assert y.device.type == "meta"
    assert y.shape == (4, 31)


def test_gradient_checkpointing(backend):
    from torch.utils.checkpoint import checkpoint

    a, b, x = (torch.randn(*size).double().requires_grad_() for size in ((31,), (27,), (4, 27)))
    y = checkpoint(partial(laplex.linear, backend=backend), x, a, b, 0.5, use_reentrant=False)
    got = torch.autograd.grad(y.sin().sum(), (x, a, b))
    want = torch.autograd.grad(reference.linear(x, a, b, 0.5).sin().sum(), (x, a, b))
    assert all(error(one, other) <= 1e-13 for one, other in zip(got, want))
