"""torch.compile where one tensor is a and b, and torch.export of sizes that vary: one graph for all of them."""

from functools import partial

import pytest
import torch
from functorch.compile import make_boxed_func
from torch._functorch.aot_autograd import aot_module_simplified
from torch.func import grad, jvp, vmap

import laplex
from helpers import error
from laplex import LaplaceOperator, _backends, _compiled, reference
from systems import normal

INTERPRETED = pytest.mark.skipif(not _backends.interpreted(), reason="with a GPU the kernels are compiled: test_gpu")
BACKEND = pytest.mark.parametrize("backend", ["torch", "cpp", "dense", pytest.param("triton", marks=INTERPRETED)])
pytestmark = [
    pytest.mark.usefixtures("unpoisoned", "tiles"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning:triton"),  # of overflows, which the kernels mean to make
]


@pytest.fixture
def as_on_gpu(monkeypatch):
    """Triton is the backend that is chosen, under its interpreter."""
    monkeypatch.setattr(_backends, "planner", lambda device: "triton")
    from laplex._triton.backend import TABLES

    table = _backends.load("triton", "cpu")._replace(dense_below=0)
    monkeypatch.setitem(TABLES, "triton", table)
    monkeypatch.setitem(_backends._loaded, ("triton", "cpu"), table)


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


# --- transforms within a graph ---------------------------------------------------------------------------------------

TRANSFORMS = {
    "grad": lambda f, a: grad(lambda a: f(a).sin().sum())(a),
    "jvp": lambda f, a: jvp(f, (a,), (a,))[1],
    "grad_of_grad": lambda f, a: grad(lambda a: grad(lambda a: f(a).sin().sum())(a).sin().sum())(a),
    "grad_of_vmap": lambda f, a: grad(lambda a: vmap(f)(torch.stack([a, 2 * a])).sin().sum())(a),
}


@pytest.mark.parametrize("function", ["linear", "gram"])
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_transforms_are_not_captured(transform, function):
    """Derivatives would be lost in the graph; outside of it they are right."""
    x, a, b = normal(6), normal(5), normal(6)
    calls = {"linear": lambda m, a: m.linear(x, a, b), "gram": lambda m, a: m.gram(a, b, x)}
    transformed = partial(TRANSFORMS[transform], partial(calls[function], laplex))
    torch.compiler.reset()
    with pytest.raises(RuntimeError, match=r"laplex: .* not captured in a graph.*under @torch\.compiler\.disable"):
        torch.compile(transformed, fullgraph=True, backend="aot_eager")(a)
    outside = torch.compiler.disable(transformed)
    got = torch.compile(lambda a: 2 * outside(a), backend="aot_eager")(a)
    assert error(got, 2 * TRANSFORMS[transform](partial(calls[function], reference), a)) <= 1e-13


# --- the backward ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("function", ["linear", "gram"])
@pytest.mark.parametrize("trained", ["a", "b", "operand"])
def test_the_compiled_backward_is_one_fused_operator(function, trained, monkeypatch):
    monkeypatch.setattr(_backends, "cheapest", lambda work, device: "scan")
    inputs = {"operand": normal(6), "a": normal(5), "b": normal(6)}
    leaf, graphs = inputs[trained].requires_grad_(), []

    def keep(graph, _):
        graphs.append([str(node.target) for node in graph.graph.nodes if "laplex" in str(node.target)])
        return make_boxed_func(graph.forward)

    def product(operand, a, b):
        return laplex.linear(operand, a, b) if function == "linear" else laplex.gram(a, b, operand)

    backend = partial(aot_module_simplified, fw_compiler=keep, bw_compiler=keep)
    torch.compile(product, fullgraph=True, backend=backend)(**inputs).sin().sum().backward()
    assert leaf.grad is not None
    swapped = {"linear": "laplex.scan.default" if trained == "operand" else "laplex.pullback.default"}
    assert graphs[1] == [swapped.get(function, "laplex.gram_pullback.default")]


# --- export ----------------------------------------------------------------------------------------------------------

SIZES = [(20, 21, 4), (3, 200, 4), (200, 3, 4), (1, 1, 1), (5, 1, 2), (0, 3, 2), (3, 0, 2), (3, 4, 0)]


class Module(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x, a, b, tau):
        return self.function(x, a, b, tau)


def drawn(n, k, m):
    return normal(m, k), normal(n), normal(k), torch.tensor(0.7).double()


def assert_exported(function, definition, example=SIZES[0], sizes=SIZES, strict=False):
    n, k, m = (torch.export.Dim(name) for name in "nkm")
    shapes = {"x": {0: m, 1: k}, "a": {0: n}, "b": {0: k}, "tau": {}}
    program = torch.export.export(Module(function), drawn(*example), dynamic_shapes=shapes, strict=strict)
    for others in sizes:
        inputs = drawn(*others)
        assert error(program.module()(*inputs), definition(*inputs)) <= 1e-13


@BACKEND
def test_export_of_sizes_that_vary(backend):
    assert_exported(partial(laplex.linear, backend=backend), reference.linear)


@pytest.mark.parametrize("example", SIZES[:3], ids=["merged", "short_rows", "short_cols"])
@pytest.mark.parametrize("strict", [False, True])
def test_export_is_not_bound_to_the_layout_of_its_sizes(example, strict):
    assert_exported(laplex.linear, reference.linear, example, strict=strict)


def test_export_is_not_bound_to_the_backend_of_its_sizes(monkeypatch):
    """Without the core small matrices are formed."""
    monkeypatch.setattr(_compiled, "MISSING", "not built")
    assert_exported(laplex.linear, reference.linear, sizes=[(20, 21, 4), (600, 500, 4)])


@pytest.mark.parametrize("phased", [False, True])
def test_export_of_gram_matrices(phased):
    def phases(a, b):
        return {"phi": a, "psi": b} if phased else {}

    assert_exported(
        lambda weight, a, b, tau: laplex.gram(a, b, weight, tau, **phases(a, b)),
        lambda weight, a, b, tau: reference.gram(a, b, weight, tau, **phases(a, b)),
    )


@pytest.mark.parametrize("phased", [False, True])
@pytest.mark.parametrize("complex_x", [False, True])
def test_export_of_weighted_sums(phased, complex_x):
    """How many matrices are taken at once depends on the rows; the graph does not."""

    def summed(function, x, a, b, tau):
        both, weight = (torch.stack([a, 2 * a]), torch.stack([b, b + 1])), torch.tensor([0.5, 2.0]).double()
        phases = {"phi": both[0], "psi": both[1]} if phased else {}
        return function(torch.complex(x, 2 * x) if complex_x else x, *both, tau, weight=weight, **phases)

    sizes = [SIZES[0], (3, 200, 4), (20, 21, 3000), (3, 4, 0)]
    assert_exported(partial(summed, laplex.linear), partial(summed, reference.linear), sizes=sizes)


@pytest.mark.parametrize("dynamic", [None, True])
def test_weighted_sums_of_other_numbers_of_matrices(dynamic):
    def summed(x, a, b, weight):
        return laplex.linear(x, a, b, 0.5, weight=weight)

    compiled = torch.compile(summed, backend="aot_eager", dynamic=dynamic)
    for h in (3, 4, 1, 5):
        inputs = normal(2, 5), normal(h, 7), normal(h, 5), normal(h)
        assert error(compiled(*inputs), summed(*inputs)) <= 1e-14


EXPORTED = {
    "product": (lambda K, x: torch.matmul(K, x.mT), lambda K, x: K @ x.mT),
    "diagonal": (lambda K, x: K.diagonal(), lambda K, x: K.diagonal()),
    "gram": (lambda K, x: torch.matmul(K.gram(), torch.matmul(K, x.mT)), lambda K, x: K @ (K.mT @ (K @ x.mT))),
    "gram_diagonal": (lambda K, x: K.gram().diagonal(), lambda K, x: (K @ K.mT).diagonal()),
}


def assert_exported_operator(what):
    function, definition = EXPORTED[what]
    assert_exported(
        lambda x, a, b, tau: function(LaplaceOperator(a, b, tau), x),
        lambda x, a, b, tau: definition(reference.kernel(a, b, tau), x),
    )


@pytest.mark.parametrize("what", EXPORTED)
def test_export_of_operators(what):
    assert_exported_operator(what)


@INTERPRETED
@pytest.mark.usefixtures("as_on_gpu")
def test_export_of_an_operator_on_triton():
    assert_exported_operator("product")


@pytest.mark.usefixtures("unpoisoned")
def test_a_plan_is_updated_in_a_graph():
    """There it is sorted anew: the old order's memory cannot be looked at."""
    x, a, b = normal(2, 6), normal(5), normal(6)
    plan, moved = laplex.Plan(a, b), a.flip(0)
    function = torch.compile(
        lambda x, a, b: laplex.linear(x, a, b, 0.5, plan=plan.update(a, b)), fullgraph=True, backend="aot_eager"
    )
    assert error(function(x, moved, b), reference.linear(x, moved, b, 0.5)) <= 1e-14
