"""vmap over a dimension of size 0: nothing is computed, and everything has its shape."""

import pytest
import torch
from torch.func import grad, jvp, vmap

import laplex
from laplex import _backends, reference

INTERPRETED = pytest.mark.skipif(not _backends.interpreted(), reason="with a GPU the kernels are compiled: test_gpu")
BACKEND = pytest.mark.parametrize("backend", ["torch", "cpp", "dense", pytest.param("triton", marks=INTERPRETED)])
FUNCTION = pytest.mark.parametrize("function", ["linear", "gram"])
SIZES = {"operand": (6,), "a": (5,), "b": (6,), "tau": ()}
MAPPED = pytest.mark.parametrize("mapped", [(name,) for name in SIZES] + [tuple(SIZES)], ids="_".join)


def functions(function, backend):
    """The function of operand, a, b and tau on a backend, and its definition."""
    if function == "linear":
        return lambda *inputs: laplex.linear(*inputs, backend=backend), reference.linear
    return (
        lambda weight, a, b, tau: laplex.gram(a, b, weight, tau, backend=backend),
        lambda weight, a, b, tau: reference.gram(a, b, weight, tau),
    )


def drawn(mapped):
    """The inputs, with a first dimension of size 0 where they are mapped, and those dimensions."""
    shapes = ((0, *size) if name in mapped else size for name, size in SIZES.items())
    return [torch.rand(shape).double() + 0.1 for shape in shapes], tuple(
        0 if name in mapped else None for name in SIZES
    )


@BACKEND
@MAPPED
@FUNCTION
def test_values_and_gradients(function, mapped, backend):
    inputs, dims = drawn(mapped)
    for argument in (None, *range(len(SIZES))):
        got, want = (
            f if argument is None else grad(lambda *inputs, f=f: f(*inputs).sin().sum(), argument)
            for f in functions(function, backend)
        )
        assert vmap(got, dims)(*inputs).shape == vmap(want, dims)(*inputs).shape


@BACKEND
@MAPPED
@FUNCTION
def test_derivatives_of_what_is_mapped(function, mapped, backend):
    inputs, dims = drawn(mapped)
    f, _ = functions(function, backend)
    y, tangent = jvp(vmap(f, dims), tuple(inputs), tuple(inputs))
    assert tangent.shape == y.shape
    leaves = [value.requires_grad_() for value in inputs]
    gradients = torch.autograd.grad(vmap(f, dims)(*leaves).sum(), leaves)
    assert [g.shape for g in gradients] == [leaf.shape for leaf in leaves]
    assert not any(g.any() for g in gradients)


@BACKEND
def test_several_matrices(backend):
    a, b, x = torch.rand(0, 3, 5), torch.rand(3, 6), torch.rand(3, 2, 6)
    assert vmap(lambda a: laplex.linear(x, a, b, backend=backend))(a).shape == (0, 3, 2, 5)
    assert vmap(vmap(lambda a: laplex.linear(x[0], a, b[0], backend=backend)))(a).shape == (0, 3, 2, 5)
