"""Solves, determinants and factors under the ways of torch to differentiate, to save memory and to copy."""

import copy
import io
import pickle

import pytest
import torch
import torch.utils.checkpoint
from torch.autograd import forward_ad
from torch.func import grad, jacfwd, jacrev, jvp, vmap

import laplex
from helpers import error
from systems import KINDS, normal, operator

KIND = pytest.mark.parametrize("kind", KINDS)
METHODS = ("solve", "logdet", "cholesky")
METHOD = pytest.mark.parametrize("method", METHODS)


def inputs_for(kind):
    """Every tensor of a phased system, by name."""
    inputs = {"a": normal(5), "tau": torch.tensor(0.7).double(), "phi": normal(5), "diag": torch.rand(5).double() + 0.5}
    if kind == "gram":
        inputs |= {"b": normal(4), "psi": normal(4), "weight": torch.rand(4).double()}
    return inputs


def call(method, y, **inputs):
    A, diag = operator(**inputs), inputs.get("diag")
    if method == "solve":
        return A.solve(y, diag)
    return A.logdet(diag) if method == "logdet" else A.cholesky(diag) @ y


def of_one(method, kind, name):
    """The method as a function of one of its tensors, and that tensor."""
    given = {"y": normal(5), **inputs_for(kind)}
    return lambda value: call(method, **{**given, name: value}), given[name]


# --- reverse mode only -----------------------------------------------------------------------------------------------

REVERSE = r"(LaplaceOperator|GramOperator)\.(solve|logdet|cholesky): .* in reverse mode only.*torch\.autograd\.grad"


@KIND
@METHOD
@pytest.mark.parametrize("name", ["a", "b", "tau", "phi", "psi", "weight", "diag", "y"])
def test_forward_mode_is_refused(kind, method, name):
    if name not in {"y": None, **inputs_for(kind)} or (name == "y" and method != "solve"):
        return
    function, value = of_one(method, kind, name)
    with forward_ad.dual_level(), pytest.raises(RuntimeError, match=REVERSE):
        function(forward_ad.make_dual(value, torch.ones_like(value)))


@KIND
@METHOD
def test_constants_beside_dual_numbers(kind, method):
    function, value = of_one(method, kind, "a")
    want, factor = function(value), torch.tensor(2.0).double()
    with forward_ad.dual_level():
        dual = forward_ad.unpack_dual(forward_ad.make_dual(factor, torch.ones_like(factor)) * function(value))
    assert torch.equal(dual.tangent, want)


TRANSFORMS = {
    "grad": lambda function, value: grad(lambda value: function(value).sum())(value),
    "jvp": lambda function, value: jvp(function, (value,), (value,)),
    "jacrev": lambda function, value: jacrev(function)(value),
    "jacfwd": lambda function, value: jacfwd(function)(value),
    "vmap": lambda function, value: vmap(function)(value.expand(2, *value.shape)),
    "forward_jacobian": lambda function, value: torch.autograd.functional.jacobian(
        function, value, vectorize=True, strategy="forward-mode"
    ),
}


@KIND
@METHOD
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_transforms_are_refused(kind, method, transform):
    with pytest.raises(RuntimeError, match=REVERSE):
        TRANSFORMS[transform](*of_one(method, kind, "a"))


def test_transforms_of_a_factor_made_before():
    C = laplex.LaplaceOperator(normal(5)).cholesky(0.1)
    for function, where in ((C.solve, r"CholeskyFactor\.solve"), (lambda y: C @ y, "CholeskyFactor @ y")):
        with pytest.raises(RuntimeError, match=where + ": .* in reverse mode only"):
            vmap(function)(normal(2, 5))
        with forward_ad.dual_level(), pytest.raises(RuntimeError, match=where + ": .* in reverse mode only"):
            function(forward_ad.make_dual(normal(5), normal(5)))


@KIND
@METHOD
def test_batches_of_cotangents(kind, method):
    """torch.autograd.grad(..., is_grads_batched=True), and what is made of it."""
    for name in ("y", *inputs_for(kind)):
        function, value = of_one(method, kind, name)
        if name == "y" and method == "logdet":
            continue
        got, want = (
            torch.autograd.functional.jacobian(function, value, vectorize=vectorize) for vectorize in (True, False)
        )
        assert error(got, want) <= 1e-14, name


# --- torch.compile ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "method"), [*zip([*KINDS] * 3, METHODS)])
@pytest.mark.usefixtures("unpoisoned")
def test_compiled_around(kind, method):
    """The graph breaks at a solve, which then runs as it does without."""
    torch._dynamo.reset()
    function, value = of_one(method, kind, "a")
    compiled = torch.compile(lambda value: 2 * function(value + 1), backend="eager")
    leaf = value.requires_grad_()
    got, want = compiled(leaf), 2 * function(leaf + 1)
    assert error(got, want) <= 1e-15
    assert error(*(torch.autograd.grad(result.sum(), leaf)[0] for result in (got, want))) <= 1e-14


GRAPH = r"solves, log determinants and factors are not captured .* without fullgraph=True .*torch\.compiler\.disable"


@pytest.mark.usefixtures("unpoisoned")
@pytest.mark.parametrize("kind", ["kernel", "gram", "factor"])
def test_a_whole_graph_of_a_solve_is_refused_in_our_words(kind):
    K = laplex.LaplaceOperator(normal(5))
    M, C = K.gram(), K.cholesky(0.1)
    calls = {
        "kernel": {"solve": lambda y: K.solve(y, 0.1), "logdet": lambda y: y + K.logdet(0.1)}
        | {"cholesky": lambda y: K.cholesky(0.1) @ y, "sample": lambda y: y + K.sample()},
        "gram": {"solve": lambda y: M.solve(y, 0.1), "logdet": lambda y: y + M.logdet(0.1)}
        | {"cholesky": lambda y: M.cholesky(0.1).solve(y)},
        "factor": {"solve": C.solve, "sample": lambda y: y + C.sample(), " @ y": lambda y: C @ y}
        | {" @ y ": lambda y: torch.matmul(C, y)},
    }
    for method, call in calls[kind].items():
        torch._dynamo.reset()
        with pytest.raises(RuntimeError, match=rf"(Operator|Factor)[. ]{method.strip()}: {GRAPH}"):
            torch.compile(call, fullgraph=True, backend="eager")(normal(5))


# --- torch.matmul ----------------------------------------------------------------------------------------------------


def test_matmul_of_a_factor():
    C = laplex.LaplaceOperator(normal(5)).cholesky(0.1)
    for x in (normal(5), normal(5, 2)):
        assert torch.equal(torch.matmul(C, x), C @ x)


@pytest.mark.parametrize(
    "call", [lambda C, x: x @ C, lambda C, x: torch.matmul(x, C), torch.add, lambda C, x: x.numpy() @ C]
)
def test_what_a_factor_cannot_do_says_what_it_can(call):
    C = laplex.LaplaceOperator(normal(5)).cholesky(0.1)
    with pytest.raises(
        TypeError, match=r"is not defined for a CholeskyFactor; use C @ x .*C\.solve\(y\).*to_dense\(\)"
    ):
        call(C, normal(5))


# --- checkpoints -----------------------------------------------------------------------------------------------------


@KIND
@METHOD
@pytest.mark.parametrize("reentrant", [False, True])
def test_activation_checkpoints(kind, method, reentrant):
    function, value = of_one(method, kind, "a")
    leaf = value.requires_grad_()
    (want,) = torch.autograd.grad(function(leaf).sum(), leaf)
    torch.utils.checkpoint.checkpoint(function, leaf, use_reentrant=reentrant).sum().backward()
    assert error(leaf.grad, want) <= 1e-14


# --- copies ----------------------------------------------------------------------------------------------------------


def saved(value):
    file = io.BytesIO()
    torch.save(value, file)
    file.seek(0)
    return torch.load(file)  # which builds nothing but what is registered as safe


COPIES = {"pickle": lambda value: pickle.loads(pickle.dumps(value)), "torch.save": saved, "deepcopy": copy.deepcopy}
COPY = pytest.mark.parametrize("copier", COPIES)


@KIND
@COPY
def test_copies_of_a_factor(kind, copier):
    inputs, y = inputs_for(kind), normal(5)
    C = operator(**inputs).cholesky(inputs["diag"])
    other = COPIES[copier](C)
    assert torch.equal(other @ y, C @ y)
    assert torch.equal(other.solve(y), C.solve(y))
    assert other.shape == C.shape


@KIND
@COPY
def test_copies_of_an_operator(kind, copier):
    inputs, y = inputs_for(kind), normal(5)
    A = operator(**inputs)
    assert torch.equal(COPIES[copier](A).solve(y, inputs["diag"]), A.solve(y, inputs["diag"]))


@KIND
@COPY
@pytest.mark.parametrize("name", ["a", "tau", "phi", "diag"])
def test_a_factor_with_gradients_is_not_copied(kind, copier, name):
    inputs = inputs_for(kind)
    inputs[name].requires_grad_()
    C = operator(**inputs).cholesky(inputs["diag"])
    with pytest.raises(RuntimeError, match=r"CholeskyFactor: .* cannot be copied or saved.*torch\.no_grad\(\)"):
        COPIES[copier](C)
    with torch.no_grad():
        C = operator(**inputs).cholesky(inputs["diag"])
    assert COPIES[copier](C).shape == (5, 5)
