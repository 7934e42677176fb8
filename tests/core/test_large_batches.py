"""Batches of more matrices than one launch takes: they are split into parts, on every backend."""

import pytest
import torch

import laplex
from cases import named
from helpers import error, oracle

pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning:triton")


@pytest.fixture(autouse=True)
def two_at_once(monkeypatch):
    on_gpu = [f"_triton.{place}" for place in ("order.launch", "scan.launch", "scan.schedule", "distance.launch")]
    for module in ("_scan.results", "_gram.autograd", *on_gpu):
        monkeypatch.setattr(f"laplex.{module}.LAUNCH_AXIS", 2)


@pytest.fixture(params=["torch", "cpp", "dense", "triton"])
def backend(request):
    return request.param


@named("batched", "batched_ties", "batched_short_rows")
def test_products_gradients_and_plans(case, backend, tiles):
    a, b, tau = case(torch.float64)
    x = torch.randn(*a.shape[:-1], 2, b.shape[-1], dtype=torch.float64)
    plan = None if backend == "dense" else laplex.Plan(a, b, backend=backend)
    leaves = [v.clone().requires_grad_() for v in (x, a, b)]
    y = laplex.linear(*leaves, tau, backend=backend, plan=plan)
    assert error(y, oracle(x, a, b, tau)) <= 1e-14
    wide = [v.clone().requires_grad_() for v in (x, a, b)]
    K = laplex.reference.kernel(wide[1], wide[2], tau)
    want = torch.autograd.grad((wide[0] @ K.mT).square().sum(), wide)
    for got, right in zip(torch.autograd.grad(y.square().sum(), leaves), want, strict=True):
        assert error(got, right) <= 1e-13


@named("batched", "batched_ties")
def test_gram_matrices(case, backend, tiles):
    a, b, tau = case(torch.float64)
    weight = torch.randn(b.shape[-1], dtype=torch.float64)
    leaves, wide = ([v.clone().requires_grad_() for v in (a, b, weight)] for _ in range(2))
    M, want = laplex.gram(*leaves, tau, backend=backend), laplex.reference.gram(*wide, tau)
    assert error(M, want) <= 1e-14
    g = torch.randn_like(M)
    for got, right in zip(torch.autograd.grad(M, leaves, g), torch.autograd.grad(want, wide, g), strict=True):
        assert error(got, right) <= 1e-13


@named("batched", "batched_ties")
def test_dense_products_on_a_gpu(case):
    """Pair by pair, which is chosen for many small matrices."""
    from helpers import direct, flat

    a, b, tau = flat(*case(torch.float64))
    x = torch.randn(len(a), 2, b.shape[-1], dtype=torch.float64)
    even, odd = direct(x, a, b, tau, odd=True)
    assert error(even, oracle(x, a, b, tau)) <= 1e-14
    assert odd.shape == even.shape
