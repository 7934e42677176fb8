"""Solves, determinants and factors of symmetric K and of Gram matrices, against dense float64."""

import math

import numpy as np
import pytest
import torch

import laplex
from cases import CASES, every, named
from helpers import TOLERANCE, error, wide
from laplex import CholeskyFactor, LaplaceOperator, _backends
from laplex._quasisep.autograd import decays
from systems import KINDS, dense, inputs_of, norm_and_condition, normal, operator, triangular, widened

EACH = every([case for case in CASES if case()[0].shape[-1] <= 600])
KIND = pytest.mark.parametrize("kind", KINDS)
PHASED = pytest.mark.parametrize("phased", [False, True])
BACKWARD = 1e-14  # |A x - y| over |A| |x| + |y|, and the error over the condition number


@pytest.fixture
def on(scan_backend, monkeypatch):
    """All that runs, runs on this backend."""
    monkeypatch.setattr(_backends, "planner_of_sides", lambda device: scan_backend)


def assert_solves(x, matrix, y):
    """x solves the system as well as float64, and the dtype of x, allow; the condition number is returned."""
    rounding = 0.0 if x.dtype == torch.float64 else TOLERANCE[x.dtype]
    x, y = wide(x), wide(y)
    assert x.shape == y.shape
    norm, condition = norm_and_condition(matrix)
    assert float((matrix @ x - y).norm()) <= (BACKWARD + rounding) * float(norm * x.norm() + y.norm())
    assert error(x, torch.linalg.solve(matrix, y)) <= BACKWARD * condition + rounding
    return condition


@EACH
@KIND
def test_catalogue(case, kind, dtype, scan_backend, on):
    phased = (dtype == torch.float64) == (scan_backend == "cpp")  # each backend meets both, and so does each dtype
    inputs = inputs_of(case, kind, phased, dtype)
    matrix, A = dense(**widened(inputs)), operator(**inputs)
    y = torch.randn(*matrix.shape[:-1], 3, dtype=dtype)
    x = A.solve(y, inputs["diag"])
    assert x.dtype == dtype
    condition = assert_solves(x, matrix, y)
    logdet = A.logdet(inputs["diag"])
    assert logdet.dtype == dtype
    assert error(logdet, torch.logdet(matrix)) <= max(TOLERANCE[dtype], 1e-14 * condition)
    C = A.cholesky(inputs["diag"])
    want = triangular(matrix, inputs["a"])
    assert error(C @ y, want @ wide(y)) <= TOLERANCE[dtype] + BACKWARD * condition
    assert error(C.solve(y), torch.linalg.solve(want, wide(y))) <= TOLERANCE[dtype] + BACKWARD * condition


@named(
    "generic", "one_point", "one_row", "sorted", "reversed", "offset", "clustered", "tiny_tau", "batched", "short_cols"
)
@PHASED
def test_without_a_diagonal(case, phased, on):
    inputs = inputs_of(case, "kernel", phased)
    del inputs["diag"]
    matrix, K = dense(**inputs), operator(**inputs)
    y = normal(*matrix.shape[:-1], 2)
    condition = assert_solves(K.solve(y), matrix, y)
    assert error(K.logdet(), torch.logdet(matrix)) <= 1e-14 * condition
    assert error(K.cholesky() @ y, triangular(matrix, inputs["a"]) @ y) <= BACKWARD * condition


def test_near_neighbours_lose_nothing(on):
    """1 - r^2 would be 0 here: the exact inverse of K is known, [[1, -r], [-r, 1]] / (1 - r^2)."""
    gap = 1e-17
    K = LaplaceOperator(torch.tensor([0.0, gap], dtype=torch.float64))
    assert abs(float(K.logdet()) - math.log(2 * gap)) <= 1e-14
    x = K.solve(torch.tensor([1.0, -1.0]).double())
    assert error(x, torch.tensor([1.0, -1.0]).double() / gap) <= 1e-15


def test_phases_at_one_place(on):
    """Two equal anchors with different phases are independent; three are not."""
    a, phi = torch.zeros(2).double(), torch.tensor([0.3, 1.1]).double()
    K = LaplaceOperator(a, phi=phi)
    matrix, y = K.to_dense(), normal(2)
    assert error(K.solve(y), torch.linalg.solve(matrix, y)) <= 1e-14
    with pytest.raises(ValueError, match=r"anchors a\[\d\] and a\[\d\] are equal"):
        LaplaceOperator(torch.zeros(3).double(), phi=torch.tensor([0.3, 1.1, 2.0]).double()).solve(normal(3))


@PHASED
@pytest.mark.parametrize("span", [0.01, 3.0, 1000.0])
@pytest.mark.parametrize("orders", [0, 10])
def test_weights_over_many_orders(phased, span, orders, on):
    n, k = 200, 300
    inputs = {"a": torch.rand(n).double() * span, "b": torch.rand(k).double() * span, "tau": torch.tensor(1.0).double()}
    inputs["weight"] = 10 ** (torch.rand(k).double() * orders - orders / 2)
    if phased:
        inputs |= {"phi": normal(n), "psi": normal(k)}
    M = operator(**inputs)
    inputs["diag"] = 1e-3 * M.diagonal()
    matrix, y = dense(**inputs), normal(n)
    condition = assert_solves(M.solve(y, inputs["diag"])[:, None], matrix, y[:, None])
    assert error(M.logdet(inputs["diag"]), torch.logdet(matrix)) <= 1e-14 * condition


@PHASED
@pytest.mark.parametrize("side", [-1, 1])
def test_all_weight_outside(phased, side, on):
    a, b = normal(60), side * (torch.rand(50).double() + 5)
    inputs = {"a": a, "b": b, "tau": torch.tensor(0.5).double(), "weight": torch.rand(50).double() * 1e6}
    if phased:
        inputs |= {"phi": normal(60), "psi": normal(50)}
    M = operator(**inputs)
    inputs["diag"] = torch.full((60,), 1e-2, dtype=torch.float64)
    y = normal(60, 2)
    assert_solves(M.solve(y, 1e-2), dense(**inputs), y)


@PHASED
def test_much_weight_amid_a_gap(phased, on):
    """It may exceed the diagonal by any factor; what it adds must not be rounded to its own size."""
    a, b = torch.tensor([0.0, 40.0, 40.5, 3000.0]).double(), torch.tensor([20.0, 1500.0, 2999.0]).double()
    inputs = {"a": a, "b": b, "tau": torch.tensor(1.0).double(), "weight": torch.tensor([1e6, 1e12, 1e-3]).double()}
    if phased:
        inputs |= {"phi": normal(4), "psi": normal(3)}
    inputs["diag"] = torch.tensor([1e-13, 1e-12, 1e-12, 1e-6]).double()
    matrix, y = dense(**inputs), normal(4)
    scale = matrix.diagonal().sqrt()  # the error is as good with every row in its own unit
    x, want = operator(**inputs).solve(y * scale, inputs["diag"]), torch.linalg.solve(matrix, y * scale)
    assert error(scale * x, scale * want) <= 1e-13


@KIND
def test_large_and_dense(kind):
    """n = 2000 against the matrix, once."""
    a = normal(2000)
    b = {"b": normal(1500), "weight": torch.rand(1500).double()} if kind == "gram" else {}
    inputs = {"a": a, "tau": torch.tensor(0.7).double(), "diag": torch.full((2000,), 0.5).double(), **b}
    y = normal(2000, 2)
    assert_solves(operator(**inputs).solve(y, 0.5), dense(**inputs), y)


@KIND
@PHASED
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_very_large(kind, phased, dtype):
    """n = 10^5: the residual, by the fast product in float64, over |A| |x|."""
    n = 10**5
    phases = {"phi": torch.randn(n, dtype=dtype), "psi": torch.randn(n, dtype=dtype)} if phased else {}
    given = {"a": torch.randn(n, dtype=dtype), "tau": 0.3, **phases}
    if kind == "gram":
        given |= {"b": torch.randn(n, dtype=dtype), "weight": torch.rand(n, dtype=dtype)}
    else:
        given.pop("psi", None)
    A, y = operator(**given), normal(n)
    x = A.solve(y, 0.1)
    residual = A @ x + 0.1 * x - y
    largest = float(A.diagonal().abs().max()) * n / 10  # about the norm: neighbours within tau / 10 count in full
    assert float(residual.norm()) <= 1e-16 * largest * float(x.norm()) + 1e-12 * float(y.norm())
    C, square = A.cholesky(0.1), float(y @ y)
    assert abs(float(C.solve(y) @ C.solve(y) - y @ x)) <= 1e-11 * float(y @ x)  # C^-T C^-1 = A^-1: what whitens y
    sample = C @ y
    assert error(C.solve(sample), y) <= 1e-9
    assert abs(float(sample @ A.solve(sample, 0.1)) - square) <= 1e-11 * square  # C^T A^-1 C = I: of covariance A
    assert torch.isfinite(A.logdet(0.1))


def test_decays_of_close_points_are_rounded_without_a_bias():
    """Some processors' exp rounds down more often than up just below 1; over 10^5 points that took five digits."""
    t = normal(10**5)[None].sort().values
    tau = torch.tensor([0.3], dtype=torch.float64)
    rho = decays(t, tau, torch.ones(1, 10**5, 1).double())[0, 1:].numpy()
    exact = np.exp(-np.diff(t[0].numpy()).astype(np.longdouble) / np.longdouble(0.3))
    errors = ((rho - exact) / np.longdouble(2.0**-53))[exact > 0.9].astype(float)  # in half the last digit of rho
    assert abs(errors.mean()) <= 0.02


@KIND
def test_shapes(kind):
    a, b, weight = normal(2, 1, 7), normal(3, 5), torch.rand(5).double()
    given = {"b": b, "weight": weight} if kind == "gram" else {}
    a = a if given else a.expand(2, 3, 7)  # tau does not enlarge the batch
    tau = torch.tensor([[0.5, 1.0, 2.0]]).double().expand(2, 3)
    A, diag = operator(a, tau, **given), torch.rand(3, 7).double() + 0.5
    matrix = dense(a, tau, **given, diag=diag)
    assert A.logdet(diag).shape == (2, 3)
    C, root = A.cholesky(diag), triangular(matrix, a.expand(2, 3, 7))
    for y in (normal(7, 1), normal(7, 4), normal(3, 7, 4), normal(5, 2, 3, 7, 4), normal(7, 0)):
        every_y = y.expand(*torch.broadcast_shapes(y.shape[:-2], (2, 3)), *y.shape[-2:])
        want = torch.linalg.solve(matrix, every_y)
        assert error(A.solve(y, diag), want) <= 1e-13
        assert error(C @ y, root @ every_y) <= 1e-13
        assert error(C.solve(y), torch.linalg.solve(root, every_y)) <= 1e-13
        if y.shape == (7, 1):
            assert error(A.solve(y[:, 0], diag), want[..., 0]) <= 1e-13
            assert torch.equal(C @ y[:, 0], (C @ y)[..., 0])


def test_columns_that_are_not_contiguous(on):
    K, y = LaplaceOperator(normal(40)), normal(3, 80)[:, ::2].mT
    assert torch.equal(K.solve(y, 0.1), K.solve(y.contiguous(), 0.1))


def test_many_right_hand_sides_are_one_by_one(on):
    K, y = LaplaceOperator(normal(50), normal(60)).gram(), normal(50, 19)
    each = torch.stack([K.solve(column, 0.1) for column in y.mT], -1)
    assert error(K.solve(y, 0.1), each) <= 1e-12


def test_half_precision_right_hand_sides():
    K, y = LaplaceOperator(normal(30)), normal(30)
    x = K.solve(y.to(torch.bfloat16), 0.5)
    assert x.dtype == torch.bfloat16
    assert error(x, K.solve(wide(y.to(torch.bfloat16)), 0.5)) <= 4e-3


def test_nothing():
    assert LaplaceOperator(normal(0)).solve(normal(0), 0.1).shape == (0,)
    assert float(LaplaceOperator(normal(0)).logdet(0.1)) == 0
    M = LaplaceOperator(normal(4), normal(0)).gram()
    assert error(M.solve(torch.ones(4).double(), 0.5), 2 * torch.ones(4)) <= 1e-15
    assert float(LaplaceOperator(normal(0), normal(4)).gram().logdet(1.0)) == 0


def test_samples_have_the_covariance():
    a = normal(6)
    for A in (LaplaceOperator(a), LaplaceOperator(a, normal(9)).gram()):
        C = A.cholesky(0.2)
        identity = torch.eye(6).double()
        root = C @ identity
        assert error(root @ root.mT, A.to_dense() + 0.2 * identity) <= 1e-14
        generator = torch.Generator().manual_seed(1)
        draws = C.sample(20000, generator=generator)
        assert draws.shape == (20000, 6)
        assert error(draws.mT @ draws / 20000, root @ root.mT) <= 0.05
        again = C.sample(generator=torch.Generator().manual_seed(1))
        assert again.shape == (6,)


def test_samples_of_batches():
    C = LaplaceOperator(torch.randn(2, 3, 5)).cholesky()
    assert C.sample(4).shape == (4, 2, 3, 5)
    assert C.sample().dtype == torch.float32


def test_the_factor_looks_like_a_matrix():
    C = LaplaceOperator(torch.randn(3, 5)).cholesky(0.1)
    assert isinstance(C, CholeskyFactor)
    assert C.shape == (3, 5, 5)
    assert C.device == torch.device("cpu")
    assert repr(C) == "CholeskyFactor(3 x 5 x 5, torch.float32, device=cpu)"
    with pytest.raises(AttributeError):
        C._system = None


@KIND
def test_the_factor_as_a_matrix(kind):
    a, b = normal(2, 6), {"b": normal(4), "weight": torch.rand(4).double()} if kind == "gram" else {}
    A = operator(a, 0.7, **b)
    C, matrix = A.cholesky(0.3), A.to_dense() + 0.3 * torch.eye(6).double()
    assert error(C.to_dense(), triangular(matrix, a)) <= 1e-14
    assert error(C.logdet(), torch.logdet(matrix) / 2) <= 1e-14


def test_samples_of_the_operator():
    K = LaplaceOperator(torch.randn(2, 5))
    for diag in (None, 0.2):
        draws = K.cholesky(diag).sample(3, generator=torch.Generator().manual_seed(1))
        assert torch.equal(K.sample(3, diag, generator=torch.Generator().manual_seed(1)), draws)
    assert K.sample().shape == (2, 5)
    with pytest.raises(ValueError, match=r"LaplaceOperator\.sample: needs a symmetric matrix"):
        LaplaceOperator(torch.randn(5), torch.randn(5)).sample()


def test_a_plan_of_anchors_that_moved():
    a = normal(20)
    plan = laplex.Plan(a, a)
    moved = a * 1.5 + 0.1  # the order stands
    y = normal(20)
    x = LaplaceOperator(moved, plan=plan).solve(y, 0.1)
    assert error(x, LaplaceOperator(moved).solve(y, 0.1)) <= 1e-14
    with pytest.raises(laplex.StalePlanError, match="does not describe the order"):
        LaplaceOperator(-a, plan=plan).solve(y, 0.1)


@pytest.mark.skipif(not _backends.interpreted(), reason="with a GPU: test_gpu_solve")
@PHASED
def test_an_order_of_triton(phased, tiles):
    """Its one order of both sides is of no use to the factor, which sorts again."""
    a, b, y = torch.randint(0, 9, (12,)).double(), torch.randint(-1, 10, (9,)).double(), normal(12)
    phases = {"phi": normal(12), "psi": normal(9)} if phased else {}
    K = LaplaceOperator(a, b, plan=laplex.Plan(a, b, backend="triton"), **phases)
    want = LaplaceOperator(a, b, **phases).gram()
    assert error(K.gram().solve(y, 0.5), want.solve(y, 0.5)) <= 1e-12
    assert error(K.gram().logdet(0.5), want.logdet(0.5)) <= 1e-13


def test_not_symmetric():
    y = normal(4)
    for K in (LaplaceOperator(normal(4), normal(4)), LaplaceOperator(y, phi=y, psi=normal(4))):
        for call in (lambda K=K: K.solve(y, 0.1), lambda K=K: K.logdet(0.1), lambda K=K: K.cholesky(0.1)):
            with pytest.raises(ValueError, match=r"needs a symmetric matrix, LaplaceOperator\(a\)"):
                call()


def test_duplicates_are_named():
    a = normal(9)
    a[2] = a[7]
    K = LaplaceOperator(a)
    for call in (K.solve, lambda y: K.logdet(), lambda y: K.cholesky()):
        with pytest.raises(ValueError, match=r"anchors a\[2\] and a\[7\] are equal.*add a positive `diag`"):
            call(normal(9))
    assert torch.isfinite(K.logdet(1e-3))


def test_too_small_a_diagonal(on):
    M = LaplaceOperator(normal(300) * 1e-3, normal(40)).gram(torch.full((40,), 1e12).double())
    with pytest.raises(ValueError, match=r"not positive definite in float64: its factorisation broke down at a\[\d+\]"):
        M.solve(normal(300), 1e-9)


def test_tiny_diagonals_of_definite_matrices(on):
    """Where M itself is definite, and in units of its own, nothing of a diagonal is asked."""
    a, b = torch.arange(40).double(), torch.arange(-5, 60).double() / 1.3
    for scale in (1e-40, 1.0, 1e40):
        M = LaplaceOperator(a, b).gram(torch.full((65,), scale, dtype=torch.float64))
        matrix, y = M.to_dense(), normal(40)
        assert_solves(M.solve(y, 1e-30 * scale)[:, None], matrix, y[:, None])


BAD_DIAGONALS = [
    (0.0, ValueError, "`diag` must be positive and finite throughout, got 0.0"),
    (-1.0, ValueError, "got -1.0"),
    (float("inf"), ValueError, "got inf"),
    (torch.tensor([1.0, 1.0, -0.5]), ValueError, "got -0.5; clamp it"),
    (torch.ones(4), ValueError, r"must be a number or broadcast to \(3,\), got shape \(4,\)"),
    (torch.ones(2, 3), ValueError, r"broadcast to \(3,\)"),
    (torch.ones(3, dtype=torch.int64), TypeError, "`diag` must be float32 or float64, got torch.int64"),
    ("a lot", TypeError, "`diag` must be a positive number or a tensor, got str"),
    (True, TypeError, "got bool"),
    (torch.ones(3, device="meta"), ValueError, "`diag` must be on the device of `a`"),
]


@pytest.mark.parametrize(("diag", "kind", "message"), BAD_DIAGONALS, ids=str)
def test_bad_diagonals(diag, kind, message):
    for A in (LaplaceOperator(torch.randn(3)), LaplaceOperator(torch.randn(3), torch.randn(4)).gram()):
        for call in (
            lambda A=A: A.solve(torch.randn(3), diag),
            lambda A=A: A.logdet(diag),
            lambda A=A: A.cholesky(diag),
        ):
            with pytest.raises(kind, match=message):
                call()


BAD_SIDES = [
    ([1.0, 2.0, 3.0], TypeError, "`y` must be a torch.Tensor, got list"),
    (torch.ones(4), ValueError, r"`y` must be \(n,\) or \(..., n, m\) with n = 3, got shape \(4,\)"),
    (torch.ones(4, 3), ValueError, r"got shape \(4, 3\)"),
    (torch.tensor(1.0), ValueError, r"got shape \(\)"),
    (torch.ones(3, dtype=torch.int64), TypeError, "`y` must be floating point, got torch.int64"),
    (torch.ones(3, dtype=torch.complex64), TypeError, "got torch.complex64"),
    (torch.ones(3, device="meta"), ValueError, "`y` must be on the device of `a`"),
    (torch.ones(5, 3, 1), ValueError, r"the anchors lead with H = \(2,\), so `y` must be"),
]


@pytest.mark.parametrize(("y", "kind", "message"), BAD_SIDES, ids=str)
def test_bad_right_hand_sides(y, kind, message):
    K = LaplaceOperator(torch.randn(2, 3))
    C = K.cholesky()
    for call in (lambda: K.solve(y, 0.1), lambda: C @ y, lambda: C.solve(y)):
        with pytest.raises(kind, match=message):
            call()


def test_bad_tau():
    K = LaplaceOperator(torch.randn(3), tau=torch.tensor(-1.0))
    with pytest.raises(ValueError, match="`tau` must be positive and finite"):
        K.solve(torch.randn(3), 0.1)


def test_negative_weights():
    M = LaplaceOperator(torch.randn(3), torch.randn(2)).gram(torch.tensor([1.0, -2.0]))
    for call in (lambda: M.solve(torch.randn(3), 0.1), lambda: M.logdet(0.1), lambda: M.cholesky(0.1)):
        with pytest.raises(ValueError, match=r"`weight` must be finite and not negative.*got -2.0"):
            call()


def test_a_gram_matrix_needs_a_diagonal():
    with pytest.raises(TypeError, match="`diag` must be given"):
        LaplaceOperator(torch.randn(3), torch.randn(2)).gram().solve(torch.randn(3), None)
