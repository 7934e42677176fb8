"""The gradient of tau: that of the dense definition however far apart anchors lie, in every product and every solve."""

import pytest
import torch

import laplex
from cases import every
from helpers import LAYOUTS, assert_distance_sums, flat, make_order, wide
from laplex import _backends, reference
from systems import dense, operator, triangular

BAR = {torch.float32: 1e-6, torch.float64: 1e-12}
FAR = (1e6, 1e18, 1e30)
SPANS = (1e3, 1e9, 1e12)  # of clusters, in units of tau


def beside_one_far_anchor(where, on, dtype):
    a, b = [0.0, 0.3, 1.0, 2.5, 0.3], [0.1, 0.7, 1.5, 0.3]  # some tie
    (a if on == "a" else b).append(where)
    return torch.tensor(a, dtype=dtype), torch.tensor(b, dtype=dtype), 1.0


def in_clusters(span, dtype, sizes=(37, 41)):
    """Four of them, a span of so many tau apart. Those of float32 may collapse into ties."""
    tau = 0.25
    centres = torch.arange(4).double() * span * tau
    a, b = (centres[torch.arange(size) % 4] + torch.rand(size).double() for size in sizes)
    return a.to(dtype), b.to(dtype), tau


def many_in_clusters(dtype):
    """Enough for several chunks of every backend."""
    centres = torch.arange(4).double() * 1e9
    a, b = (centres[torch.arange(size) % 4] + torch.rand(size).double() for size in (1301, 1100))
    return a.to(dtype), b.to(dtype), 0.25


def short(rows, columns, dtype):
    a, b = torch.randn(rows).double(), torch.randn(columns).double()
    a[0], b[0] = 1e30, -1e30
    return a.to(dtype), b.to(dtype), 0.5


ANCHORS = {
    **{
        f"far_{on}_{where:.0e}": lambda d, w=where, on=on: beside_one_far_anchor(w, on, d)
        for where in FAR
        for on in "ab"
    },
    **{f"clusters_{span:.0e}": lambda d, s=span: in_clusters(s, d) for span in SPANS},
    "few_in_clusters": lambda d: in_clusters(1e9, d, (9, 8)),
    "many_in_clusters": many_in_clusters,
    "short_rows": lambda d: short(11, 700, d),
    "short_columns": lambda d: short(700, 11, d),
}
EVERY = pytest.mark.parametrize("name", ANCHORS)
BATCH = 3


def anchors_and_tau(name, dtype):
    a, b, tau = ANCHORS[name](dtype)
    return a, b, torch.tensor(tau, dtype=dtype)


def assert_slope(got, want, dtype):
    assert got.shape == want.shape
    assert abs(float(got.detach()) - float(want)) <= BAR[dtype] * abs(float(want))


def slope(function, tau, g):
    """The derivative of sum(g * function(tau)), by autograd."""
    tau = tau.detach().clone().requires_grad_()
    return torch.autograd.grad((function(tau) * g).sum(), tau)[0]


def slopes_of_linear(name, dtype, backend, phased):
    """Ours by reverse mode, with a graph of it, and by forward mode; and the truth."""
    a, b, tau = anchors_and_tau(name, dtype)
    x, g = torch.rand(BATCH, b.shape[0], dtype=dtype), torch.rand(BATCH, a.shape[0], dtype=dtype)
    phases = {"phi": torch.rand_like(a), "psi": torch.rand_like(b)} if phased else {}

    def ours(tau):
        return laplex.linear(x, a, b, tau, **phases, backend=backend)

    def theirs(tau):
        return reference.linear(*map(wide, (x, a, b)), tau, **{key: wide(value) for key, value in phases.items()})

    leaf = tau.clone().requires_grad_()
    (with_graph,) = torch.autograd.grad((ours(leaf) * g).sum(), leaf, create_graph=True)
    _, tangent = torch.func.jvp(ours, (tau,), (torch.ones_like(tau),))
    got = slope(ours, tau, g), with_graph, (tangent.double() * g.double()).sum().to(dtype)
    return got, slope(theirs, wide(tau), wide(g))


@every()
def test_distance_sums(case, dtype, backend):
    """The sums of u exp(-u) x that it is made of, over the whole catalogue and every layout of the order."""
    a, b, tau = flat(*case(dtype))
    for layout in LAYOUTS if backend != "dense" else LAYOUTS[:1]:
        order = make_order(a, b, layout, "torch")
        for m in (1, 5):
            assert_distance_sums(torch.randn(a.shape[0], m, b.shape[1], dtype=dtype), a, b, tau, order, backend)


@EVERY
@pytest.mark.parametrize("phased", [False, True])
def test_of_a_product(name, phased, dtype, backend):
    got, want = slopes_of_linear(name, dtype, backend, phased)
    for one in got:
        assert_slope(one, want, dtype)


@pytest.mark.parametrize("name", [name for name in ANCHORS if name != "many_in_clusters"])
@pytest.mark.parametrize("phased", [False, True])
def test_of_a_gram_matrix(name, phased, dtype, backend):
    a, b, tau = anchors_and_tau(name, dtype)
    weight, g = torch.rand(2, b.shape[0], dtype=dtype), torch.rand(2, a.shape[0], a.shape[0], dtype=dtype)
    phases = {"phi": torch.rand_like(a), "psi": torch.rand_like(b)} if phased else {}

    def ours(tau):
        return laplex.gram(a, b, weight, tau, **phases, backend=backend)

    def theirs(tau):
        return reference.gram(*map(wide, (a, b, weight)), tau, **{key: wide(value) for key, value in phases.items()})

    want = slope(theirs, wide(tau), wide(g))
    assert_slope(slope(ours, tau, g), want, dtype)
    _, tangent = torch.func.jvp(ours, (tau,), (torch.ones_like(tau),))
    assert_slope((tangent.double() * g.double()).sum().to(dtype), want, dtype)


METHODS = {
    "solve": (lambda A, y, diag: A.solve(y, diag), lambda matrix, y, a: torch.linalg.solve(matrix, y)),
    "logdet": (lambda A, y, diag: A.logdet(diag), lambda matrix, y, a: torch.logdet(matrix)),
    "sample": (lambda A, y, diag: A.cholesky(diag) @ y, lambda matrix, y, a: triangular(matrix, a) @ y),
    "whiten": (
        lambda A, y, diag: A.cholesky(diag).solve(y),
        lambda matrix, y, a: torch.linalg.solve(triangular(matrix, a), y),
    ),
}


@pytest.mark.parametrize("name", ["far_a_1e+18", "far_b_1e+30", "clusters_1e+09", "clusters_1e+12", "short_rows"])
@pytest.mark.parametrize("kind", ["kernel", "gram"])
@pytest.mark.parametrize("phased", [False, True])
@pytest.mark.parametrize("method", METHODS)
def test_of_a_solve(name, kind, phased, method, dtype, scan_backend, monkeypatch):
    monkeypatch.setattr(_backends, "planner_of_sides", lambda device: scan_backend)
    a, b, tau = anchors_and_tau(name, dtype)
    inputs = {"a": a, "diag": torch.rand_like(a) + 2.0}
    if phased:
        inputs["phi"] = torch.rand_like(a)
    if kind == "gram":
        inputs |= {"b": b, "weight": torch.rand_like(b)}
        if phased:
            inputs["psi"] = torch.rand_like(b)
    y = torch.rand(a.shape[0], 2, dtype=dtype)
    of_ours, of_dense = METHODS[method]

    def ours(tau):
        return of_ours(operator(**inputs, tau=tau), y, inputs["diag"])

    def theirs(tau):
        held = {key: wide(value) for key, value in inputs.items()}
        return of_dense(dense(**held, tau=tau), wide(y), held["a"])

    g = torch.rand(theirs(wide(tau)).shape, dtype=dtype)
    assert_slope(slope(ours, tau, g), slope(theirs, wide(tau), wide(g)), dtype)


def test_beside_a_gap_of_more_tau_than_a_float_can_hold(scan_backend, monkeypatch):
    monkeypatch.setattr(_backends, "planner_of_sides", lambda device: scan_backend)
    a = torch.tensor([0.0, 1e10, 2e10]).double()
    for build in (
        lambda tau: laplex.LaplaceOperator(a, tau=tau),
        lambda tau: laplex.LaplaceOperator(a, a + 1, tau).gram(),
    ):
        for method in ("logdet", "cholesky"):
            tau = torch.tensor(1e-300, dtype=torch.float64, requires_grad=True)
            got = getattr(build(tau), method)(0.1)
            total = got if method == "logdet" else (got @ torch.ones(3).double()).sum()
            assert float(torch.autograd.grad(total, tau)[0]) == 0.0


@pytest.mark.parametrize("seed", range(8))
def test_of_a_product_of_signed_numbers(seed, backend):
    """In float32, in which nothing may be rounded before the sum over rows and targets cancels."""
    torch.manual_seed(seed)
    a, b, x, g = torch.randn(300), torch.randn(300), torch.randn(2, 300), torch.randn(2, 300)
    tau = torch.tensor(1.0)
    got = slope(lambda tau: laplex.linear(x, a, b, tau, backend=backend), tau, g)
    want = slope(lambda tau: reference.linear(*map(wide, (x, a, b)), tau), wide(tau), wide(g))
    assert_slope(got, want, torch.float32)


def test_second_derivatives_stay_right_where_anchors_span_few_tau(backend):
    a, b, x = torch.randn(30).double(), torch.randn(26).double(), torch.randn(2, 26).double()
    b[:3] = a[:3]
    tau = torch.tensor(0.7).double().requires_grad_()
    assert torch.autograd.gradgradcheck(lambda tau: laplex.linear(x, a, b, tau, backend=backend), tau)
