"""Messages that name one value of many, and advise what works."""

import re

import pytest
import torch

import laplex
from laplex import LaplaceOperator

MANY, BAD = 50_000, 31_234
CALLS = {
    "laplex.linear": lambda a, b, tau, backend: laplex.linear(b[:, None], a, b, tau, backend=backend),
    "laplex.gram": lambda a, b, tau, backend: laplex.gram(a, b, None, tau, backend=backend),
}
METHODS = {
    "LaplaceOperator.solve": lambda a, b, tau: LaplaceOperator(a, tau=tau).solve(a[..., None], 0.1),
    "LaplaceOperator.diagonal": lambda a, b, tau: LaplaceOperator(a, b, tau).diagonal(),
    "LaplaceOperator.to_dense": lambda a, b, tau: LaplaceOperator(a, b, tau).to_dense(),
    "GramOperator.logdet": lambda a, b, tau: LaplaceOperator(a, b, tau).gram().logdet(0.1),
    "GramOperator.diagonal": lambda a, b, tau: LaplaceOperator(a, b, tau).gram().diagonal(),
}


def message_of(call, kind=ValueError):
    with pytest.raises(kind) as caught:
        call()
    return str(caught.value)


# --- tau -------------------------------------------------------------------------------------------------------------


def many_matrices():
    tau = torch.ones(MANY)
    tau[BAD] = -1.0
    return torch.randn(MANY, 2), torch.randn(MANY, 3), tau


@pytest.mark.parametrize("where", CALLS)
def test_a_bad_tau_among_many_matrices_is_named_alone(where, backend):
    message = message_of(lambda: CALLS[where](*many_matrices(), backend))
    assert message.startswith(f"{where}: `tau` must be positive and finite, got -1.0 for matrix 31234 of 50000;")
    assert len(message) < 300


@pytest.mark.parametrize("where", METHODS)
def test_a_bad_tau_among_many_matrices_of_an_operator_is_named_alone(where):
    message = message_of(lambda: METHODS[where](*many_matrices()))
    assert message.startswith(f"{where}: `tau` must be positive and finite, got -1.0 for matrix 31234 of 50000;")
    assert len(message) < 300


@pytest.mark.parametrize("where", METHODS)
def test_a_bad_tau_that_several_matrices_share_is_counted_by_matrices(where):
    tau = torch.tensor([[1.0], [-2.0]])
    message = message_of(lambda: METHODS[where](torch.randn(2, 3, 4), torch.randn(2, 3, 5), tau))
    assert "got -2.0 for matrix 3 of 6;" in message


@pytest.mark.parametrize("where", METHODS)
def test_the_one_bad_tau_is_shown_as_a_number(where):
    message = message_of(lambda: METHODS[where](torch.randn(4), torch.randn(5), torch.tensor(-1.0)))
    assert message.startswith(f"{where}: `tau` must be positive and finite, got -1.0; it is the length scale")


def test_a_number_too_long_to_print_is_not():
    message = message_of(lambda: laplex.linear(torch.ones(2), torch.ones(2), torch.ones(2), tau=10**5000))
    assert "`tau` must be positive and finite, got inf;" in message


@pytest.mark.parametrize("tau", [3e-308, torch.tensor(3e-308, dtype=torch.float64)], ids=["number", "tensor"])
def test_a_tau_too_small_for_squares_is_shown_whole(tau, backend):
    a, b = torch.randn(4), torch.randn(5)
    M = LaplaceOperator(a, b, tau).gram()
    for where, call in (
        ("laplex.gram", lambda: laplex.gram(a, b, None, tau, backend=backend)),
        ("GramOperator.diagonal", M.diagonal),
        ("GramOperator.logdet", lambda: M.logdet(0.1)),
    ):
        message = message_of(call)
        assert message.startswith(f"{where}: `tau` must be positive and finite, got 3e-308;")
        assert "at least 2.2e-308 (twice that for Gram matrices)" in message


# --- complex numbers -------------------------------------------------------------------------------------------------

COMPLEX = torch.ones(3, dtype=torch.complex64)
REAL = torch.ones(3)


@pytest.mark.parametrize("call", [laplex.gram, lambda a, b, weight: LaplaceOperator(a, b).gram(weight)])
def test_complex_weights_are_two_weights(call):
    message = message_of(lambda: call(REAL, REAL, COMPLEX), TypeError)
    assert "`weight` must be float32 or float64, got torch.complex64; the matrix is linear in it" in message
    assert "weight.real and weight.imag" in message


@pytest.mark.parametrize("name", ["a", "b", "phi", "psi", "tau"])
def test_complex_arguments_that_must_be_real_are_not_told_to_call_float(name):
    given = {"x": REAL, "a": REAL, "b": REAL, "phi": REAL, "psi": REAL, name: COMPLEX}
    message = message_of(lambda: laplex.linear(**given), TypeError)
    assert f"`{name}` must be float32 or float64, got torch.complex64; use {name}.real" in message
    assert "float()" not in message


# --- products of lazy matrices ---------------------------------------------------------------------------------------

K = LaplaceOperator(REAL)
LAZY = {"LaplaceOperator": K, "GramOperator": K.gram(), "CholeskyFactor": K.cholesky(0.1)}


@pytest.mark.parametrize("left", LAZY)
@pytest.mark.parametrize("right", LAZY)
@pytest.mark.parametrize("product", [lambda one, two: one @ two, torch.matmul], ids=["@", "matmul"])
def test_two_lazy_matrices_are_applied_one_after_the_other(left, right, product):
    message = message_of(lambda: product(LAZY[left], LAZY[right]), TypeError)
    assert re.match(rf"{left} @ [xy]: `[xy]` must be a torch.Tensor, got {right}; apply one after the other", message)
    assert "as_tensor" not in message
