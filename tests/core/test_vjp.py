"""torch.func.vjp pulls back after its transform has ended: of every argument alone, on every backend."""

import pytest
import torch
from torch.func import grad, jacrev, jvp, vjp, vmap

import laplex
from helpers import error
from laplex import _backends, reference
from laplex._eager import plain

INTERPRETED = pytest.mark.skipif(not _backends.interpreted(), reason="with a GPU the kernels are compiled: test_gpu")
BACKEND = pytest.mark.parametrize("backend", ["torch", "cpp", "dense", pytest.param("triton", marks=INTERPRETED)])
ARGUMENT = pytest.mark.parametrize("argument", ["operand", "a", "b", "tau", "phi", "psi"])
FUNCTION = pytest.mark.parametrize("function", ["linear", "gram"])
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton")  # of overflows, which the kernels mean to make


def drawn():
    """Every differentiable argument; the operand is x or the weight."""
    shapes = {"operand": 4, "a": 3, "b": 4, "phi": 3, "psi": 4}
    inputs = {name: torch.randn(size, dtype=torch.float64) for name, size in shapes.items()}
    return inputs | {"tau": torch.tensor(0.7, dtype=torch.float64)}


def called(module, function, operand, a, b, tau, **others):
    if function == "linear":
        return module.linear(operand, a, b, tau, **others)
    return module.gram(a, b, operand, tau, **others)


def of_one(function, argument, backend):
    """The function of one argument on a backend, its definition, and the argument."""
    inputs = drawn()
    return (
        lambda value: called(laplex, function, **{**inputs, argument: value}, backend=backend),
        lambda value: called(reference, function, **{**inputs, argument: value}),
        inputs[argument],
    )


@BACKEND
@ARGUMENT
@FUNCTION
def test_vjp_of_one_argument(function, argument, backend):
    got, want, value = of_one(function, argument, backend)
    (y, pull), (_, definition) = vjp(got, value), vjp(want, value)
    g = torch.randn_like(y)
    assert error(pull(g)[0], definition(g)[0]) <= 1e-13
    with torch.no_grad():
        assert error(pull(g)[0], definition(g)[0]) <= 1e-13
    several = torch.randn(2, *y.shape, dtype=y.dtype)
    assert error(vmap(pull)(several)[0], vmap(definition)(several)[0]) <= 1e-13
    assert error(jvp(lambda g: pull(g)[0], (g,), (g,))[1], definition(g)[0]) <= 1e-13


@BACKEND
@ARGUMENT
@FUNCTION
def test_jacrev_of_one_argument(function, argument, backend):
    got, want, value = of_one(function, argument, backend)
    assert error(jacrev(got)(value), jacrev(want)(value)) <= 1e-13


@BACKEND
@FUNCTION
def test_a_pullback_is_differentiated_by_what_the_transform_did_not_see(function, backend):
    """Saved tensors are wrapped then, and a wrapper does not show that the tensor inside requires a gradient."""
    inputs = drawn()
    leaves = [inputs[key].requires_grad_() for key in ("operand", "a", "b", "tau")]

    def gradients(module, **fixed):
        y, pull = vjp(lambda operand: called(module, function, **{**inputs, "operand": operand}, **fixed), leaves[0])
        return torch.autograd.grad(pull(torch.ones_like(y))[0].sin().sum() + y.sin().sum(), leaves)

    for got, want in zip(gradients(laplex, backend=backend), gradients(reference), strict=True):
        assert error(got, want) <= 1e-12


@BACKEND
def test_a_pullback_within_another_transform(backend):
    x, a, b = (torch.randn(size, dtype=torch.float64) for size in (6, 5, 6))

    def outer(linear):
        def scalar(a):
            y, pull = vjp(lambda x: linear(x, a, b), x)
            return pull(y)[0].sin().sum()

        return grad(scalar)(a), vmap(grad(scalar))(a.expand(2, 5))

    got, want = outer(lambda *inputs: laplex.linear(*inputs, backend=backend)), outer(reference.linear)
    assert all(error(one, other) <= 1e-12 for one, other in zip(got, want, strict=True))


@BACKEND
def test_an_operator_made_within_a_transform(backend):
    x, a, b = (torch.randn(size, dtype=torch.float64) for size in (6, 5, 6))

    def product(a):
        plan = laplex.Plan(a, b, backend=backend)
        return laplex.LaplaceOperator(a, b, plan=plan) @ x

    for transformed in (lambda f: jvp(f, (a,), (a,))[1], lambda f: grad(lambda a: f(a).sin().sum())(a)):
        assert error(transformed(product), transformed(lambda a: reference.kernel(a, b) @ x)) <= 1e-13


def test_no_wrapper_is_a_plain_tensor():
    values = []

    def keep(value):
        values.append(value)
        assert not plain(value)
        return value.sum()

    x = torch.randn(3, 2)
    grad(keep)(x)
    vmap(keep)(x)
    vjp(keep, x)
    torch._vmap_internals._vmap(keep)(x)
    assert not any(map(plain, values))
    assert plain(x)
    assert plain(torch.nn.Parameter(x))
