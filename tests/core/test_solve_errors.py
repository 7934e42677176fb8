"""What solves, determinants and factors say of arguments that are not right."""

import math

import pytest
import torch

import laplex
from laplex import LaplaceOperator, _backends
from systems import KINDS, normal

KIND = pytest.mark.parametrize("kind", KINDS)
METHODS = {
    "solve": lambda A, diag: A.solve(torch.ones(A.shape[-1]).double(), diag),
    "logdet": lambda A, diag: A.logdet(diag),
    "cholesky": lambda A, diag: A.cholesky(diag),
}
METHOD = pytest.mark.parametrize("method", METHODS)
pytestmark = pytest.mark.filterwarnings("ignore::laplex.ShapeWarning")  # batches of one anchor each are meant here


@pytest.fixture(autouse=True)
def on(scan_backend, monkeypatch):
    """All that runs, runs on this backend."""
    monkeypatch.setattr(_backends, "planner_of_sides", lambda device: scan_backend)


# --- phases ----------------------------------------------------------------------------------------------------------


@METHOD
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize(("kind", "name"), [("kernel", "phi"), ("gram", "phi"), ("gram", "psi")])
def test_phases_that_are_not_finite(kind, name, value, method):
    phases = {"phi": normal(2, 5), "psi": normal(2, 4)}
    phases[name][1, 2] = value
    if kind == "kernel":
        A = LaplaceOperator(normal(2, 5), phi=phases["phi"])
    else:
        A = LaplaceOperator(normal(2, 5), normal(2, 4), **phases).gram()
    with pytest.raises(ValueError, match=rf"Operator\.{method}: `{name}` must be finite, got NaN or infinity; find it"):
        METHODS[method](A, 0.1)


# --- the diagonal and tau --------------------------------------------------------------------------------------------


def operator_of(kind, tau=1.0):
    return (
        LaplaceOperator(normal(5), tau=tau) if kind == "kernel" else LaplaceOperator(normal(5), normal(4), tau).gram()
    )


@METHOD
def test_a_diagonal_of_zero_is_left_out(method):
    with pytest.raises(ValueError, match=r"got 0.0; leave `diag` out for the matrix without one, or clamp it"):
        METHODS[method](operator_of("kernel"), 0)
    with pytest.raises(ValueError, match=r"got 0.0; clamp it from below"):
        METHODS[method](operator_of("gram"), 0)


NOT_FINITE = [math.nan, math.inf, 10**400, -(10**400), torch.tensor([1, 1, 1, math.nan, 1])]


@KIND
@METHOD
@pytest.mark.parametrize("diag", NOT_FINITE, ids=lambda diag: str(diag)[:9])
def test_a_diagonal_that_is_not_finite(kind, method, diag):
    with pytest.raises(ValueError, match=r"`diag` must be positive and finite throughout, got (nan|-?inf)") as caught:
        METHODS[method](operator_of(kind), diag)
    assert "clamp" not in str(caught.value)


@KIND
@METHOD
@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf, -math.inf])
def test_values_of_a_tensor_tau(kind, method, value):
    with pytest.raises(ValueError, match=rf"Operator\.{method}: `tau` must be positive and finite, got {value};"):
        METHODS[method](operator_of(kind, torch.tensor(value)), 0.1)


@METHOD
@pytest.mark.parametrize(("n", "k"), [(5, 4), (2, 40), (40, 2)])
def test_stale_plans_name_the_function(method, n, k):
    a, b = normal(n), normal(k)
    M = LaplaceOperator(-a, -b, plan=laplex.Plan(a, b)).gram()
    with pytest.raises(laplex.StalePlanError, match=rf"^GramOperator\.{method}: `plan` does not describe the order"):
        METHODS[method](M, 0.1)


# --- anchors that changed since the operator was made ----------------------------------------------------------------

SAMPLED = {**METHODS, "sample": lambda A, diag: A.sample(diag=diag)}
OUTERMOST = [(math.inf, -1), (-math.inf, 0), (math.nan, -1), (math.nan, 0)]


def becomes(anchors, value, place):
    """Set one anchor of the last matrix: the one at this place of the sorted order, counted from either end."""
    last = anchors.view(-1, anchors.shape[-1])[-1]
    last[last.argsort()[place]] = value


@pytest.mark.parametrize("method", SAMPLED)
@pytest.mark.parametrize(("value", "place"), OUTERMOST)
@pytest.mark.parametrize("n", [1, 2, 5])
@pytest.mark.parametrize("diag", [None, 0.1])
def test_a_kernel_whose_anchor_is_no_longer_finite(method, value, place, n, diag):
    a = normal(2, n)
    K = LaplaceOperator(a)
    SAMPLED[method](K, diag)
    becomes(a, value, place)
    with pytest.raises(laplex.StalePlanError, match=rf"^LaplaceOperator\.{method}: .* \(or are not finite\)"):
        SAMPLED[method](K, diag)


@METHOD
@pytest.mark.parametrize(("value", "place"), OUTERMOST)
@pytest.mark.parametrize(("n", "k"), [(5, 4), (1, 1), (2, 40), (40, 2)])
@pytest.mark.parametrize("side", [0, 1], ids="ab")
def test_a_gram_whose_anchor_is_no_longer_finite(method, value, place, n, k, side):
    anchors = normal(n), normal(k)
    M = LaplaceOperator(*anchors).gram()
    becomes(anchors[side], value, place)
    with pytest.raises(laplex.StalePlanError, match=rf"^GramOperator\.{method}: .* \(or are not finite\)"):
        METHODS[method](M, 0.1)


# --- right-hand sides ------------------------------------------------------------------------------------------------


def test_complex_right_hand_sides():
    K = operator_of("kernel")
    for call in (lambda y: K.solve(y, 0.1), K.cholesky(0.1).solve):
        with pytest.raises(TypeError, match=r"`y` must be real, got torch.complex64; .* y.real and y.imag .*columns"):
            call(torch.ones(5, dtype=torch.complex64))


@pytest.mark.parametrize("shape", [(2, 5), (7, 2, 5)])
def test_vectors_of_several_matrices(shape):
    K = LaplaceOperator(normal(2, 5))
    with pytest.raises(
        ValueError, match=r"n = 5, got shape \(.*2, 5\); use y.unsqueeze\(-1\) for one vector per matrix"
    ):
        K.solve(normal(*shape), 0.1)
    assert K.solve(normal(*shape).unsqueeze(-1), 0.1).shape == (*shape, 1)


@pytest.mark.parametrize("y", [normal(4), normal(3, 4, 2)], ids=["vector", "batch"])
def test_other_right_hand_sides_are_not_told_so(y):
    with pytest.raises(ValueError, match="got shape") as caught:
        LaplaceOperator(normal(2, 5)).solve(y, 0.1)
    assert "unsqueeze" not in str(caught.value)


# --- how things are made ---------------------------------------------------------------------------------------------


def test_operators_that_are_made_by_methods():
    with pytest.raises(TypeError, match=r"laplex.GramOperator: .* made by K.gram\(weight\) .*, got Tensor"):
        laplex.GramOperator(normal(3), normal(4))
    with pytest.raises(TypeError, match=r"laplex.CholeskyFactor: .* made by K.cholesky\(diag\) .* got LaplaceOperator"):
        laplex.CholeskyFactor(LaplaceOperator(normal(3)))


@pytest.mark.parametrize("count", [2.5, "2", True, torch.tensor(2)], ids=repr)
def test_kinds_of_counts(count):
    with pytest.raises(TypeError, match=r"sample: `count` must be a whole number or None, got"):
        operator_of("kernel").cholesky(0.1).sample(count)


def test_counts_below_zero():
    with pytest.raises(ValueError, match=r"CholeskyFactor.sample: `count` must not be negative, got -1"):
        operator_of("kernel").cholesky(0.1).sample(-1)
    assert operator_of("kernel").cholesky(0.1).sample(0).shape == (0, 5)


INSTEAD = {
    "solve": (torch.linalg.inv, torch.inverse),
    "logdet": (torch.det, torch.linalg.det),
    "cholesky": (torch.cholesky,),
}


@pytest.mark.parametrize("method", INSTEAD)
def test_functions_of_torch_point_to_methods(method):
    K = operator_of("kernel")
    for function in INSTEAD[method]:
        with pytest.raises(TypeError, match=rf"is not defined for a LaplaceOperator; use K\.{method}\("):
            function(K)
