"""tau's shape: one element counts as a number, more broadcast to the batch of matrices, and none enlarges it."""

import re

import pytest
import torch
from torch.func import grad, jvp, vmap

import laplex
from helpers import TOLERANCE, error, oracle, phases_for, wide
from laplex import LaplaceOperator, Plan, reference
from systems import normal

ONE_ELEMENT = pytest.mark.parametrize("shape", [(1,), (1, 1), (1, 1, 1)], ids=str)
ENLARGING = [  # leading dimensions of a and of b, and of a tau that would enlarge the batch
    ((), (), (3,)),
    ((), (), (2, 1)),
    ((1,), (), (3,)),
    ((3,), (3,), (2, 3)),
    ((2, 1), (1,), (2, 3)),
]


@ONE_ELEMENT
@pytest.mark.parametrize("lead", [(), (3,), (0,)], ids=str)
@pytest.mark.parametrize("phased", [False, True])
def test_one_element_counts_as_a_number(shape, lead, phased, backend):
    a, b, x = torch.randn(*lead, 5), torch.randn(*lead, 4), torch.randn(*lead, 2, 4)
    phi, psi = phases_for(a, b) if phased else (None, None)
    arguments = {"phi": phi, "psi": psi, "backend": backend}
    y = laplex.linear(x, a, b, torch.full(shape, 0.5), **arguments)
    assert torch.equal(y, laplex.linear(x, a, b, 0.5, **arguments))
    M = laplex.gram(a, b, None, torch.full(shape, 0.5), **arguments)
    assert torch.equal(M, laplex.gram(a, b, None, 0.5, **arguments))


@ONE_ELEMENT
def test_an_operator_with_one_element(shape):
    a, b, tau = normal(5), normal(4), torch.full(shape, 0.5)
    K, number = LaplaceOperator(a, b, tau), LaplaceOperator(a, b, 0.5)
    assert K.shape == (5, 4)
    assert K.mT.shape == (4, 5)
    x = normal(4, 3)
    for function in (
        lambda K: K @ x,
        lambda K: K @ x[:, 0],
        lambda K: x.mT @ K.mT,
        lambda K: K.to_dense(),
        lambda K: K.diagonal(),
        lambda K: K[1:3, [0, 2]].to_dense(),
        lambda K: K.gram().to_dense(),
        lambda K: K.gram().diagonal(),
        lambda K: K.gram().solve(torch.ones(5), 0.1),
    ):
        assert torch.equal(function(K), function(number))


@ONE_ELEMENT
def test_the_likelihood_of_the_readme(shape):
    """As people write it: every parameter is a vector of one."""
    times, values = torch.rand(50), torch.randn(50)
    tau, noise = (torch.nn.Parameter(torch.full(shape[:size], 0.3)) for size in (3, 1))
    K = LaplaceOperator(times, tau=tau)
    loss = values @ K.solve(values, diag=noise) + K.logdet(diag=noise)
    assert loss.shape == ()
    loss.backward()
    assert tau.grad.shape == shape
    assert K.cholesky(noise).sample(3).shape == (3, 50)
    assert K.sample(diag=noise).shape == (50,)


@ONE_ELEMENT
def test_a_gradient_has_the_shape_of_its_tau(shape, backend):
    a, b, x = normal(5), normal(4), normal(2, 4)
    number = torch.tensor(0.5).double().requires_grad_()
    tau = torch.full(shape, 0.5).double().requires_grad_()
    for function in (
        lambda tau: laplex.linear(x, a, b, tau, backend=backend),
        lambda tau: laplex.gram(a, b, x, tau, backend=backend),
        lambda tau: reference.linear(x, a, b, tau),
        lambda tau: LaplaceOperator(a, b, tau).diagonal(),
    ):
        (want,) = torch.autograd.grad(function(number).sin().sum(), number)
        (got,) = torch.autograd.grad(function(tau).sin().sum(), tau)
        assert got.shape == shape
        assert error(got.reshape(()), want) <= 1e-14


@ONE_ELEMENT
def test_the_reference_follows(shape):
    a, b, tau = normal(3, 5), normal(4), torch.full(shape, 0.5).double()
    assert torch.equal(reference.kernel(a, b, tau), reference.kernel(a, b, 0.5))
    assert torch.equal(reference.linear(normal(3, 2, 4), a, b, tau) * 0, torch.zeros(3, 2, 5).double())
    assert torch.equal(reference.gram(a, b, None, tau), reference.gram(a, b, None, 0.5))


@ONE_ELEMENT
def test_one_element_under_transforms(shape, backend):
    a, b, x, tau = normal(5), normal(4), normal(3, 2, 4), torch.full((3, *shape), 0.5).double()

    def product(x, tau):
        return laplex.linear(x, a, b, tau, backend=backend)

    assert error(vmap(product)(x, tau), oracle(x, a, b, 0.5)) <= TOLERANCE[torch.float64]
    tangent = jvp(lambda tau: product(x[0], tau), (tau[0],), (torch.ones(shape).double(),))[1]
    assert tangent.shape == (2, 5)
    assert grad(lambda tau: product(x[0], tau).sum())(tau[0]).shape == shape


@ONE_ELEMENT
def test_a_plan_serves_a_tau_of_one_element(shape):
    a, b, x = normal(5), normal(4), normal(2, 4)
    y = laplex.linear(x, a, b, torch.full(shape, 0.5), plan=Plan(a, b))
    assert error(y, oracle(x, a, b, 0.5)) <= TOLERANCE[torch.float64]


@pytest.mark.parametrize(("of_a", "of_b", "of_tau"), ENLARGING, ids=str)
def test_a_tau_never_enlarges_the_batch(of_a, of_b, of_tau, backend):
    a, b, tau = normal(*of_a, 5), normal(*of_b, 4), torch.ones(of_tau).double()
    batch, full = torch.broadcast_shapes(of_a, of_b), torch.broadcast_shapes(of_a, of_b, of_tau)
    x = normal(*full, 2, 4)
    message = (
        f": `tau` must have one element, or broadcast to H = {tuple(batch)}, the leading dimensions of `a` and `b`, "
        f"got shape {of_tau}; for a larger batch of matrices expand the anchors: a.expand{(*full, 5)}"
    )
    for where, call in (
        ("laplex.linear", lambda: laplex.linear(x, a, b, tau, backend=backend)),
        ("laplex.gram", lambda: laplex.gram(a, b, None, tau, backend=backend)),
        ("laplex.LaplaceOperator", lambda: LaplaceOperator(a, b, tau)),
        ("laplex.reference.kernel", lambda: reference.kernel(a, b, tau)),
        ("laplex.reference.kernel", lambda: reference.linear(x, a, b, tau)),
        ("laplex.reference.kernel", lambda: reference.gram(a, b, None, tau)),
    ):
        with pytest.raises(ValueError, match=re.escape(where + message)):
            call()
    wanted = laplex.linear(x, a.expand(*full, 5), b, tau, backend=backend)  # what it says to do
    assert error(wanted, oracle(x, a.expand(*full, 5), b, wide(tau))) <= TOLERANCE[torch.float64]


@pytest.mark.parametrize("of_tau", [(2,), (4, 1), (3, 2), (0,)], ids=str)
def test_a_tau_that_fits_no_batch(of_tau):
    with pytest.raises(
        ValueError, match=re.escape(f"H = (3,), the leading dimensions of `a` and `b`, got shape {of_tau}")
    ):
        LaplaceOperator(normal(3, 5), normal(3, 4), torch.ones(of_tau).double())


@pytest.mark.parametrize("of_tau", [(3,), (2, 1), (2, 3), (1, 3)], ids=str)
def test_one_tau_per_matrix_broadcasts_to_the_batch(of_tau, backend):
    a, b, tau, x = normal(2, 3, 5), normal(3, 4), torch.rand(of_tau).double() + 0.5, normal(2, 3, 2, 4)
    assert error(laplex.linear(x, a, b, tau, backend=backend), oracle(x, a, b, tau)) <= TOLERANCE[torch.float64]
    K = LaplaceOperator(a, b, tau)
    assert K.shape == (2, 3, 5, 4)
    assert error(K.diagonal(), K.to_dense().diagonal(dim1=-2, dim2=-1)) <= 1e-15
