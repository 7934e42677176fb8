"""Tau's gradient on a GPU, compiled: the cases of test_tau, and sizes at which short axes have kernels of their own."""

import pytest
import torch

import laplex
import test_tau
from helpers import wide

pytestmark = pytest.mark.gpu
FORMS = [  # of backend, dtype and whether phased: each pair of them has either of all three
    [("triton", torch.float32, False), ("dense", torch.float64, True)],
    [("triton", torch.float64, True), ("dense", torch.float32, False)],
    [("triton", torch.float32, True), ("dense", torch.float64, False)],
    [("triton", torch.float64, False), ("dense", torch.float32, True)],
]
EVERY = pytest.mark.parametrize(
    ("name", "backend", "dtype", "phased"),
    [(name, *form) for number, name in enumerate(test_tau.ANCHORS) for form in FORMS[number % 4]],
)


@pytest.fixture(autouse=True)
def on_gpu():
    with torch.device("cuda"):
        yield


@EVERY
def test_of_a_product(name, phased, dtype, backend):
    test_tau.test_of_a_product(name, phased, dtype, backend)


@EVERY
def test_of_a_gram_matrix(name, phased, dtype, backend):
    test_tau.test_of_a_gram_matrix(name, phased, dtype, backend)


@pytest.mark.parametrize("name", ["far_a_1e+18", "clusters_1e+12"])
@pytest.mark.parametrize("kind", ["kernel", "gram"])
@pytest.mark.parametrize("phased", [False, True])
@pytest.mark.parametrize("method", test_tau.METHODS)
def test_of_a_solve(name, kind, phased, method, dtype, monkeypatch):
    test_tau.test_of_a_solve(name, kind, phased, method, dtype, "torch", monkeypatch)


@pytest.mark.parametrize(
    ("n", "k", "m"), [(100, 300_000, 64), (300_000, 100, 64), (60_000, 70_000, 3), (2000, 1900, 70)]
)
def test_of_large_products(n, k, m, dtype):
    """By tables, and by many tiles: x and g are positive, so that the truth has no cancellation of its own."""
    a, b, x, g = (
        torch.randn(n, dtype=dtype),
        torch.randn(k, dtype=dtype),
        torch.rand(m, k, dtype=dtype),
        torch.rand(m, n, dtype=dtype),
    )
    a[0], b[0] = 1e30, -1e30
    tau = torch.tensor(0.3, dtype=dtype, requires_grad=True)
    (got,) = torch.autograd.grad(laplex.linear(x, a, b, tau, backend="triton"), tau, g)
    want, scale = 0.0, float(tau.detach())
    for rows in torch.arange(n).split(2000):
        u = (wide(a)[rows, None] - wide(b)).abs() / scale
        want += float(((wide(x) @ (u.clamp(max=1e3) * torch.exp(-u)).mT) * wide(g)[:, rows]).sum()) / scale
    assert abs(float(got) / want - 1) <= test_tau.BAR[dtype]
