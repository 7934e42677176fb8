"""The smallest tau: from there on products are right, whatever the gaps; below, where 1 / tau may overflow, refused."""

import math

import pytest
import torch

import laplex
from helpers import TOLERANCE, all_nan, error, oracle
from laplex import LaplaceOperator, _backends, reference
from laplex._checks import SMALLEST_TAU
from systems import normal


def as_tensor(tau):
    return torch.tensor(tau, dtype=torch.float64)


TOO_SMALL = [5e-324, 1e-310, 5.5e-309, math.nextafter(SMALLEST_TAU, 0)]
SMALL = [SMALLEST_TAU, 1.3 * SMALLEST_TAU, 1e-307]
REFUSED = pytest.mark.parametrize("tau", TOO_SMALL, ids=str)
KINDS = pytest.mark.parametrize("kind", [float, as_tensor], ids=["number", "tensor"])
INTERPRETED = [
    pytest.mark.skipif(not _backends.interpreted(), reason="with a GPU the kernels are compiled"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning:triton"),
]
ANYWHERE = pytest.mark.parametrize("run_by", ["torch", "cpp", "dense", pytest.param("triton", marks=INTERPRETED)])


def drawn(tau):
    """x, a and b, whose gaps are some tau, and some of them 0."""
    return normal(2, 7), *(torch.randint(0, 9, (size,)).double() * (tau / 4) for size in (6, 7))


def refused(where, got):
    return pytest.raises(
        ValueError, match=rf"^{where}: `tau` must be positive and finite, got .*{got}.* at least 2.2e-308"
    )


@pytest.mark.parametrize("tau", SMALL, ids=str)
@KINDS
@ANYWHERE
def test_products_down_to_the_smallest(tau, kind, run_by):
    x, a, b = drawn(tau)
    assert error(laplex.linear(x, a, b, kind(tau), backend=run_by), oracle(x, a, b, tau)) <= TOLERANCE[torch.float64]


@pytest.mark.parametrize("tau", SMALL, ids=str)
@KINDS
@ANYWHERE
def test_gram_matrices_down_to_twice_the_smallest(tau, kind, run_by):
    _, a, b = drawn(2 * tau)
    got = laplex.gram(a, b, None, kind(2 * tau), backend=run_by)
    assert error(got, reference.gram(a, b, None, 2 * tau)) <= TOLERANCE[torch.float64]


@pytest.mark.parametrize("tau", SMALL, ids=str)
@KINDS
def test_operators_down_to_the_smallest(tau, kind, scan_backend, monkeypatch):
    monkeypatch.setattr(_backends, "planner_of_sides", lambda device: scan_backend)
    x, a, b = drawn(tau)
    K = LaplaceOperator(a, tau=kind(tau))
    matrix = reference.kernel(a, a, tau) + torch.eye(6).double()
    assert error(K.solve(x.mT[:6], 1.0), torch.linalg.solve(matrix, x.mT[:6])) <= 1e-13
    assert error(K.logdet(1.0), torch.logdet(matrix)) <= 1e-13
    x, a, b = drawn(2 * tau)
    M = LaplaceOperator(a, b, kind(2 * tau)).gram()
    matrix = reference.gram(a, b, None, 2 * tau)
    assert error(M @ x.mT[:6], matrix @ x.mT[:6]) <= 1e-13
    assert error(M.diagonal(), matrix.diagonal()) <= 1e-13
    assert error(M.solve(x.mT[:6], 1.0), torch.linalg.solve(matrix + torch.eye(6).double(), x.mT[:6])) <= 1e-13


@REFUSED
def test_a_number_below_is_refused_by_all(tau, backend):
    x, a, b = drawn(1.0)
    with refused("laplex.linear", tau):
        laplex.linear(x, a, b, tau, backend=backend)
    with refused("laplex.LaplaceOperator", tau):
        LaplaceOperator(a, b, tau)
    with refused("laplex.gram", 2 * tau):
        laplex.gram(a, b, None, 2 * tau, backend=backend)


@REFUSED
def test_a_tensor_below_is_refused_by_all(tau, backend):
    x, a, b = drawn(1.0)
    with refused("laplex.linear", tau):
        laplex.linear(x, a, b, as_tensor(tau), backend=backend)
    with refused("laplex.gram", 2 * tau):
        laplex.gram(a, b, None, as_tensor(2 * tau), backend=backend)


@REFUSED
@KINDS
@pytest.mark.parametrize("method", ["to_dense", "diagonal", "solve", "logdet", "cholesky"])
def test_operators_below(tau, kind, method, scan_backend, monkeypatch):
    monkeypatch.setattr(_backends, "planner_of_sides", lambda device: scan_backend)
    x, a, b = drawn(1.0)
    arguments = {"to_dense": (), "diagonal": (), "solve": (x[0, :6], 0.1)}.get(method, (0.1,))
    if kind is as_tensor:  # a number is refused before
        with refused(f"LaplaceOperator.{method}", tau):
            getattr(LaplaceOperator(a, tau=kind(tau)), method)(*arguments)
    if kind is as_tensor or 2 * tau >= SMALLEST_TAU:
        with refused("laplex.gram" if method == "to_dense" else f"GramOperator.{method}", 2 * tau):
            getattr(LaplaceOperator(a, b, kind(2 * tau)).gram(), method)(*arguments)


@pytest.mark.parametrize("tau", TOO_SMALL, ids=str)
@pytest.mark.parametrize("run_by", [pytest.param("triton", marks=INTERPRETED)])
def test_a_tensor_below_is_nan_where_nothing_waits(tau, run_by):
    x, a, b = drawn(1.0)
    assert all_nan(laplex.linear(x, a, b, as_tensor(tau), backend=run_by))
    assert all_nan(laplex.gram(a, b, None, as_tensor(2 * tau), backend=run_by))


def test_a_float32_tau_is_no_smaller():
    """Its smallest number is 1.4e-45: no comparison may take place in float32, where the limit is 0."""
    x, a, b = drawn(1.0)
    assert bool(laplex.linear(x, a, b, torch.tensor(1e-45)).isfinite().all())
    with refused("LaplaceOperator.to_dense", 0.0):
        LaplaceOperator(a, b, torch.tensor(0.0)).to_dense()
