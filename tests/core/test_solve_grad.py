"""Derivatives of solves, determinants and factors, against autograd through the dense definition."""

import pytest
import torch

from cases import named
from helpers import error, make_order, odd_kernel, table, wide
from laplex import LaplaceOperator, _backends, reference
from laplex._quasisep.autograd import halves
from laplex._scan.order import Matrix
from systems import KINDS, condition, dense, inputs_of, normal, operator, triangular

TIED = ("ties_across_sides", "ties_everywhere", "duplicates_within_a_side", "all_tied", "batched_ties")
GENERIC = (
    "generic",
    "one_point",
    "one_row",
    "one_column",
    "rows_left_of_columns",
    "short_rows",
    "short_cols",
    "batched",
)
KIND = pytest.mark.parametrize("kind", KINDS)
PHASED = pytest.mark.parametrize("phased", [False, True])


@pytest.fixture
def on(scan_backend, monkeypatch):
    """All that runs, runs on this backend."""
    monkeypatch.setattr(_backends, "planner_of_sides", lambda device: scan_backend)


def functions_of(method):
    """The method of the operator, and the same of the dense matrix, as functions of y and the inputs by name."""

    def ours(y, **inputs):
        A, diag = operator(**inputs), inputs.get("diag")
        if method == "logdet":
            return A.logdet(diag)
        if method == "solve":
            return A.solve(y, diag)
        factor = A.cholesky(diag)
        return factor @ y if method == "sample" else factor.solve(y)

    def theirs(y, **inputs):
        matrix = dense(**inputs)
        if method == "logdet":
            return torch.logdet(matrix)
        if method == "solve":
            return torch.linalg.solve(matrix, y)
        factor = triangular(matrix, inputs["a"])
        return factor @ y if method == "sample" else torch.linalg.solve(factor, y)

    return ours, theirs


def gradients(function, y, inputs, cotangent):
    leaves = {name: value.detach().clone().requires_grad_() for name, value in {"y": y, **inputs}.items()}
    total = (function(**leaves) * cotangent).sum()
    slopes = torch.autograd.grad(total, list(leaves.values()), allow_unused=True)
    return {name: value for name, value in zip(leaves, slopes) if value is not None}


def assert_gradients(case, kind, phased, method, without=()):
    inputs = inputs_of(case, kind, phased)
    y = normal(*inputs["diag"].shape, 3)
    ours, theirs = functions_of(method)
    cotangent = torch.randn_like(theirs(y, **inputs))
    got, want = (gradients(function, y, inputs, cotangent) for function in (ours, theirs))
    tolerance = 1e-13 * condition(dense(**inputs))
    for name, value in want.items():
        if name not in without:
            assert error(got[name], value) <= tolerance, name


@named(*GENERIC)
@KIND
@PHASED
@pytest.mark.parametrize("method", ["solve", "logdet", "sample", "whiten"])
def test_first_derivatives(case, kind, phased, method, on):
    assert_gradients(case, kind, phased, method)


@named(*TIED)
@KIND
@PHASED
@pytest.mark.parametrize("method", ["solve", "logdet"])
def test_ties(case, kind, phased, method, on):
    assert_gradients(case, kind, phased, method)


@named(*TIED)
@PHASED
@pytest.mark.parametrize("method", ["sample", "whiten"])
def test_ties_in_factors(case, phased, method, on):
    """A Gram matrix has no kink where anchors a are equal; K has, and its factor's derivative is that of the order."""
    assert_gradients(case, "gram", phased, method)
    assert_gradients(case, "kernel", phased, method, without=("a",))


@named("generic", "sorted", "batched")
@PHASED
@pytest.mark.parametrize("method", ["solve", "logdet", "sample", "whiten"])
def test_without_a_diagonal(case, phased, method, on):
    inputs = inputs_of(case, "kernel", phased)
    y = normal(*inputs.pop("diag").shape, 2)
    ours, theirs = functions_of(method)
    cotangent = torch.randn_like(theirs(y, **inputs))
    got, want = (gradients(function, y, inputs, cotangent) for function in (ours, theirs))
    for name, value in want.items():
        assert error(got[name], value) <= 1e-12 * condition(dense(**inputs)), name


@KIND
@PHASED
@pytest.mark.parametrize("method", ["solve", "logdet", "sample", "whiten"])
def test_gradcheck(kind, phased, method, on):
    names = ["y", "a", "tau", "diag"] + ["b", "weight"] * (kind == "gram") + ["phi"] * phased
    names += ["psi"] * (phased and kind == "gram")
    sizes = {"y": (6, 2), "a": (6,), "tau": (), "diag": (6,), "b": (5,), "weight": (5,), "phi": (6,), "psi": (5,)}
    values = [normal(*sizes[name]) for name in names]
    for index, name in enumerate(names):
        if name in ("tau", "diag", "weight"):
            values[index] = values[index].abs() + 0.5
    values = [value.requires_grad_() for value in values]
    ours, _ = functions_of(method)
    assert torch.autograd.gradcheck(lambda *given: ours(**dict(zip(names, given))), values)


@KIND
@PHASED
def test_solves_are_differentiable_twice(kind, phased):
    inputs = {"a": normal(5), "tau": torch.tensor(0.8).double(), "diag": torch.rand(5).double() + 0.5}
    if kind == "gram":
        inputs |= {"b": normal(4), "weight": torch.rand(4).double() + 0.1}
    if phased:
        inputs |= {"phi": normal(5)} | ({"psi": normal(4)} if kind == "gram" else {})
    names, y = list(inputs), normal(5, 2).requires_grad_()
    values = [value.requires_grad_() for value in inputs.values()]
    ours, _ = functions_of("solve")
    assert torch.autograd.gradgradcheck(lambda y, *given: ours(y, **dict(zip(names, given))), (y, *values))


def test_determinants_are_differentiable_once():
    a = normal(5).requires_grad_()
    for value in (LaplaceOperator(a).logdet(0.1), (LaplaceOperator(a).cholesky(0.1) @ normal(5)).sum()):
        (first,) = torch.autograd.grad(value, a, create_graph=True)
        with pytest.raises(RuntimeError, match="are differentiable once"):
            first.sum().backward()


def test_float32_gradients_have_their_dtypes():
    a, b = torch.randn(9, requires_grad=True), torch.randn(7, requires_grad=True)
    weight, diag = torch.rand(7, requires_grad=True), (torch.rand(9) + 0.5).requires_grad_()
    y, leaves = torch.randn(9, requires_grad=True), (a, b, weight, diag)
    M = LaplaceOperator(a, b).gram(weight)
    got = torch.autograd.grad(M.solve(y, diag).sum() + M.logdet(diag), (*leaves, y))
    wide_leaves = [wide(leaf).requires_grad_() for leaf in (*leaves, y)]
    a_, b_, weight_, diag_, y_ = wide_leaves
    W = LaplaceOperator(a_, b_).gram(weight_)
    want = torch.autograd.grad(W.solve(y_, diag_).sum() + W.logdet(diag_), wide_leaves)
    for one, other in zip(got, want):
        assert one.dtype == torch.float32
        assert error(one, other) <= 1e-6


def test_only_what_is_asked_for():
    K = LaplaceOperator(normal(6))
    y, diag = normal(6).requires_grad_(), torch.tensor(0.3).double().requires_grad_()
    total = K.solve(y, diag).sum() + K.logdet(diag)
    assert [gradient.shape for gradient in torch.autograd.grad(total, (y, diag))] == [(6,), ()]


@named("generic", "ties_everywhere", "short_rows_ties", "short_cols_ties")
def test_half_sums(case, scan_backend):
    """left and right, half of a tie each, and their derivatives: of the formula, not of |0|."""
    a, b, tau = case()
    a, b, tau = a[None], b[None], torch.tensor([tau]).double()
    order = make_order(a, b, "merged", scan_backend)
    x = normal(1, 2, b.shape[-1])
    left, right = halves(x, Matrix(a, b, tau, order, table(scan_backend)))
    even, odd = reference.kernel(a, b, tau), odd_kernel(a, b, tau)
    assert error(left, x @ ((even - odd) / 2).mT) <= 1e-14
    assert error(right, x @ ((even + odd) / 2).mT) <= 1e-14
    leaves = [leaf.clone().requires_grad_() for leaf in (x, a, b, tau)]
    left, right = halves(leaves[0], Matrix(*leaves[1:], order, table(scan_backend)))
    u, v = normal(*left.shape), normal(*right.shape)
    x_bar, a_bar, b_bar, _ = torch.autograd.grad((left * u + right * v).sum(), leaves)
    before, after = (even - odd) / 2, (even + odd) / 2
    assert error(x_bar, u @ before + v @ after) <= 1e-13
    assert error(a_bar, ((v * (x @ after.mT) - u * (x @ before.mT)) / tau).sum(1)) <= 1e-13
    assert error(b_bar, (x * (u @ before - v @ after) / tau).sum(1)) <= 1e-13


def in_float32(kind, phased, k, diag):
    """Inputs of 50 rows and k columns, by name."""
    inputs = {"a": torch.randn(50), "tau": torch.tensor(0.7), "diag": torch.tensor(diag)}
    if kind == "gram":
        inputs |= {"b": torch.randn(k), "weight": torch.rand(k)}
    if phased:
        inputs |= {"phi": torch.randn(50)} | ({"psi": torch.randn(k)} if kind == "gram" else {})
    return inputs


@KIND
@PHASED
@pytest.mark.parametrize("method", ["solve", "logdet", "sample", "whiten"])
@pytest.mark.parametrize("k", [60, 20_000], ids=["merged", "short_rows"])
def test_gradients_of_float32_are_rounded_once(kind, phased, method, k, on):
    """In float64 until then: what reaches an anchor by one way all but cancels what reaches it by another."""
    inputs, y = in_float32(kind, phased, k, 1e-3), torch.randn(50, 2)
    ours, theirs = functions_of(method)
    exact = {name: wide(value) for name, value in inputs.items()}
    cotangent = torch.randn(theirs(wide(y), **exact).shape)
    got, want = gradients(ours, y, inputs, cotangent), gradients(theirs, wide(y), exact, wide(cotangent))
    for name in want.keys() - {"tau"}:  # test_grad has what is lost of tau's, which is another matter
        assert got[name].dtype == torch.float32
        assert error(got[name], want[name]) <= 1e-7, name


def test_gradients_of_shared_float32_inputs_are_summed_before_they_are_rounded():
    """Anchors and weights that two matrices share, whose pulls all but cancel."""
    a, b, weight = torch.randn(20), torch.randn(30).expand(2, 30), torch.rand(30)
    tau, diag = torch.tensor([0.7, 0.7 * (1 + 1e-4)]).double(), torch.full((20,), 0.1).double()

    def pulls(logdet, *inputs):
        leaves = [value.detach().requires_grad_() for value in inputs]
        one, two = logdet(*leaves).unbind()
        return torch.autograd.grad(one - two, leaves)

    got = pulls(lambda a, weight: LaplaceOperator(a, b, tau).gram(weight).logdet(diag), a, weight)
    want = pulls(lambda a, weight: torch.logdet(dense(a, tau, wide(b), weight, diag=diag)), wide(a), wide(weight))
    assert all(error(one, other) <= 1e-7 for one, other in zip(got, want, strict=True))
