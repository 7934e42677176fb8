"""torch.compile where one tensor is a and b, and torch.export of sizes that vary: one graph for all of them."""

from functools import partial

import pytest
import torch

import laplex
from helpers import error
from laplex import LaplaceOperator, backends, reference
from laplex._kernels import cpp_scan, triton_scan
from systems import normal

INTERPRETED = pytest.mark.skipif(not triton_scan.interpreted(), reason="with a GPU the kernels are compiled: test_gpu")
BACKEND = pytest.mark.parametrize("backend", ["torch", "cpp", "dense", pytest.param("triton", marks=INTERPRETED)])
pytestmark = [
    pytest.mark.usefixtures("unpoisoned", "tiles"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning:triton"),  # of overflows, which the kernels mean to make
]


@pytest.fixture
def as_on_gpu(monkeypatch):
    """Triton is the backend that is chosen, under its interpreter."""
    monkeypatch.setattr(backends, "planner", lambda device: "triton")
    monkeypatch.setitem(backends.DENSE_BELOW, "triton", 0)


# --- one tensor as a and b -------------------------------------------------------------------------------------------


def step(function, inputs):
    """The result and every gradient."""
    leaves = [value.detach().clone().requires_grad_() for value in inputs]
    y = function(*leaves)
    return [y, *torch.autograd.grad(y.sin().sum(), leaves)]


def assert_compiled(function, definition, *inputs):
    torch.compiler.reset()
    got = step(torch.compile(function, fullgraph=True, backend="aot_eager"), inputs)
    assert all(error(one, other) <= 1e-13 for one, other in zip(got, step(definition, inputs), strict=True))


@BACKEND
@pytest.mark.parametrize("phased", [False, True])
def test_one_tensor_as_a_and_b(phased, backend):
    def phases(phi):
        return {"phi": phi, "psi": phi} if phased else {}

    assert_compiled(
        lambda x, a, tau, phi: laplex.linear(x, a, a, tau, **phases(phi), backend=backend) * phi,
        lambda x, a, tau, phi: reference.linear(x, a, a, tau, **phases(phi)) * phi,
        normal(2, 7), normal(7), normal().exp(), normal(7),
    )  # fmt: skip
    assert_compiled(
        lambda weight, a, tau, phi: laplex.gram(a, a, weight, tau, **phases(phi), backend=backend) * phi,
        lambda weight, a, tau, phi: reference.gram(a, a, weight, tau, **phases(phi)) * phi,
        normal(7), normal(7), normal().exp(), normal(7),
    )  # fmt: skip


@BACKEND
def test_one_tensor_as_everything(backend):
    function = partial(laplex.linear, backend=backend)
    assert_compiled(lambda a: function(a, a, a), lambda a: reference.linear(a, a, a), normal(7))


@BACKEND
def test_anchors_that_are_not_trained(backend):
    a = normal(7)
    plan = laplex.Plan(a, a, backend=backend)
    for fixed in ({}, {"plan": plan}):
        function = partial(laplex.linear, a=a, b=a, tau=0.7, backend=backend, **fixed)
        assert_compiled(function, lambda x: reference.linear(x, a, a, 0.7), normal(2, 7))


OPERATORS = {
    "K_x": lambda K, x: torch.matmul(K, x.mT),
    "gram": lambda K, x: torch.matmul(K.gram(), x.mT),
}
DENSE = OPERATORS | {"gram": lambda K, x: K @ K.mT @ x.mT}


def assert_symmetric(what):
    assert_compiled(
        lambda x, a, tau, phi: OPERATORS[what](LaplaceOperator(a, tau=tau, phi=phi), x),
        lambda x, a, tau, phi: DENSE[what](reference.kernel(a, a, tau, phi=phi, psi=phi), x),
        normal(2, 7), normal(7), normal().exp(), normal(7),
    )  # fmt: skip


@pytest.mark.parametrize("what", OPERATORS)
def test_the_symmetric_operator(what):
    assert_symmetric(what)


@INTERPRETED
@pytest.mark.usefixtures("as_on_gpu")
def test_the_symmetric_operator_on_triton():
    """No value is looked at while a graph is made."""
    assert_symmetric("K_x")


def test_a_symmetric_operator_made_outside():
    a, x = normal(7).requires_grad_(), normal(7, 2).requires_grad_()
    K = LaplaceOperator(a, tau=0.7)
    got = torch.compile(torch.matmul, fullgraph=True, backend="aot_eager")(K, x)
    want = reference.kernel(a, a, 0.7) @ x
    assert error(got, want) <= 1e-14
    gradients = (torch.autograd.grad(y.sin().sum(), (a, x)) for y in (got, want))
    assert all(error(one, other) <= 1e-13 for one, other in zip(*gradients, strict=True))
