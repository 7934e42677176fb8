"""How exact products with phases are: the bound that README and laplex.linear state."""

import pytest
import torch

import laplex
from helpers import oracle, phases_for
from laplex import _backends

ROUNDINGS = 3 * 2.0**-23  # of the sum over j of exp(-|a_i - b_j| / tau) |x_j|
INTERPRETED = [
    pytest.mark.skipif(not _backends.interpreted(), reason="with a GPU the kernels are compiled"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning:triton"),
]
ANYWHERE = pytest.mark.parametrize("run_by", ["torch", "cpp", "dense", pytest.param("triton", marks=INTERPRETED)])


def assert_within_the_bound(x, a, b, tau, phi, psi, run_by):
    y = laplex.linear(x, a, b, tau, phi=phi, psi=psi, backend=run_by)
    off = (y.double() - oracle(x, a, b, tau, phi, psi)).abs()
    assert bool((off <= ROUNDINGS * oracle(x.abs(), a, b, tau)).all())


@pytest.mark.parametrize("terms", [1, 2, 3, 10])
@pytest.mark.parametrize("spread", [0.3, 3.0, 1e4])
def test_many_sums_of_few_terms(terms, spread, backend):
    """Roundings of many terms average out; of few, each counts. A kernel a sum."""
    a, b, x = torch.randn(50_000, 1), torch.randn(50_000, terms), torch.rand(50_000, 1, terms) + 0.5
    phi, psi = (torch.randn_like(side) * spread + 0.8 for side in (a, b))
    assert_within_the_bound(x, a, b, 2.0, phi, psi, backend)


@pytest.mark.parametrize(("n", "k"), [(40, 50), (4, 90), (90, 4)])
@ANYWHERE
def test_sums_of_many_terms(n, k, run_by):
    a, b, x = torch.randn(n), torch.randn(k), torch.randn(2, k)
    assert_within_the_bound(x, a, b, 0.7, *phases_for(a, b), run_by)


@ANYWHERE
def test_a_cosine_that_is_all_but_0(run_by):
    """The truth is 1.6e-8, and 0 is within the bound: cosines and sines near 1 / sqrt 2 were rounded."""
    a, phi, psi = torch.zeros(1), torch.tensor([2.0]), torch.tensor([0.4292037])
    assert_within_the_bound(torch.ones(1), a, a, 1.0, phi, psi, run_by)


@ANYWHERE
def test_the_worst_that_was_found(run_by):
    """2.1 roundings: two do not hold."""
    x, psi = torch.tensor([1.0319137573242188, 1.0521012544631958]), torch.tensor([0.7382598519, 0.8659060597])
    assert_within_the_bound(x, torch.zeros(1), torch.zeros(2), 1.0, torch.tensor([0.7851917743682861]), psi, run_by)
