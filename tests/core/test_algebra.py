"""Multiples, sums and parts of lazy matrices behave as those of the dense ones."""

import copy
import io
import pickle
from contextlib import contextmanager

import numpy as np
import pytest
import torch

import laplex
from helpers import error
from laplex import LaplaceOperator, SumOperator
from systems import normal


@contextmanager
def raises(kind, *parts):
    with pytest.raises(kind) as caught:
        yield
    for part in parts:
        assert part in str(caught.value)


def close(got, want, bound=1e-12):
    assert error(got, want) <= bound


def positive(*shape):
    return torch.rand(*shape, dtype=torch.float64) + 0.5


def rectangular(*batch):
    return LaplaceOperator(normal(*batch, 7), normal(*batch, 5), 0.7)


def symmetric(*batch, n=6):
    return LaplaceOperator(normal(*batch, n), tau=0.7)


def phased(*batch, n=6):
    return LaplaceOperator(normal(*batch, n), tau=2.0, phi=normal(*batch, n))


def weighted_gram(*batch, n=6):
    return LaplaceOperator(normal(*batch, n), normal(*batch, 9)).gram(positive(9))


def with_diagonal(dense, diag):
    return dense + torch.diag_embed(torch.as_tensor(diag, dtype=torch.float64).expand(dense.shape[:-1]))


# name: parts, what is made of them lazily, and densely. Numbers are fixed, so that both get the same.
SCALES, DIAGONAL = torch.tensor([0.5, 2.0, -3.0]).double(), torch.linspace(-1, 2, 6).double()
ONE = torch.tensor([1.75]).double()
CASES = {
    "number on the left": ([rectangular()], lambda K: 2 * K, lambda K: 2 * K),
    "number on the right": ([rectangular()], lambda K: K * -0.5, lambda K: K * -0.5),
    "number of numpy": ([rectangular()], lambda K: np.float64(3.0) * K, lambda K: 3 * K),
    "number below": ([rectangular()], lambda K: K / 3, lambda K: K / 3),
    "negation": ([rectangular()], lambda K: -K, lambda K: -K),
    "scalar tensor": ([rectangular(3)], lambda K: torch.tensor(2.0) * K, lambda K: 2 * K),
    "tensor of one element": ([rectangular()], lambda K: K * ONE, lambda K: K * 1.75),
    "one number per matrix": ([rectangular(3)], lambda K: SCALES * K, lambda K: SCALES[:, None, None] * K),
    "divisor per matrix": ([rectangular(2, 3)], lambda K: K / SCALES, lambda K: K / SCALES[:, None, None]),
    "sum": ([rectangular(), rectangular()], lambda K, L: K + L, lambda K, L: K + L),
    "difference": ([rectangular(3), rectangular(3)], lambda K, L: K - SCALES * L,
                   lambda K, L: K - SCALES[:, None, None] * L),
    "sum of three": ([symmetric(), phased(), weighted_gram()], lambda K, L, M: 2 * (K - L / 4) + M,
                     lambda K, L, M: 2 * (K - L / 4) + M),
    "builtin sum": ([symmetric(), phased()], lambda *all_: sum(all_), lambda K, L: K + L),
    "number on the diagonal": ([symmetric(3)], lambda K: K.add_diagonal(0.1), lambda K: with_diagonal(K, 0.1)),
    "diagonal": ([symmetric()], lambda K: K.add_diagonal(DIAGONAL), lambda K: with_diagonal(K, DIAGONAL)),
    "diagonal of a Gram matrix": ([weighted_gram(3)], lambda M: M.add_diagonal(DIAGONAL),
                                  lambda M: with_diagonal(M, DIAGONAL)),
    "scaled, with diagonals": ([symmetric(3), phased(3)],
                               lambda K, L: SCALES * (K.add_diagonal(DIAGONAL) - L).add_diagonal(0.3),
                               lambda K, L: SCALES[:, None, None] * with_diagonal(K - L, DIAGONAL + 0.3)),
    "functions of torch": ([symmetric(), phased()],
                           lambda K, L: torch.add(torch.mul(K, 2.0), torch.neg(torch.div(L, ONE))),
                           lambda K, L: 2 * K - L / 1.75),
    "functions with a tensor first": ([symmetric(), phased()], lambda K, L: torch.sub(torch.mul(ONE, K), L),
                                      lambda K, L: 1.75 * K - L),
}  # fmt: skip
CASE = pytest.mark.parametrize("name", CASES)


def case(name):
    """The operator and its matrix."""
    parts, lazily, densely = CASES[name]
    A, dense = lazily(*parts), densely(*(part.to_dense() for part in parts))
    assert isinstance(A, SumOperator)
    return A, dense


@CASE
def test_what_it_looks_like(name):
    A, dense = case(name)
    assert A.shape == dense.shape
    assert isinstance(A.shape, torch.Size)
    assert A.dtype == A.to_dense().dtype == A.diagonal().dtype == torch.float64
    assert A.device == torch.device("cpu")
    assert not A.requires_grad
    close(A.to_dense(), dense)
    close(A.diagonal(), dense.diagonal(dim1=-2, dim2=-1))
    close(A.mT.to_dense(), dense.mT)
    if dense.dim() == 2:
        close(A.T.to_dense(), dense.T)


@CASE
def test_products(name):
    A, dense = case(name)
    *batch, n, k = dense.shape
    right, left = normal(*batch, k, 2), normal(*batch, 3, n)
    close(A @ right, dense @ right)
    close(left @ A, left @ dense)
    close(torch.matmul(A, right), dense @ right)
    close(torch.matmul(left, A), left @ dense)
    close(A.mT @ left.mT, (left @ dense).mT)
    close(A @ right[..., 0].reshape(-1, k)[0], dense @ right[..., 0].reshape(-1, k)[0])
    close(left.reshape(-1, n)[0] @ A, left.reshape(-1, n)[0] @ dense)
    z = torch.complex(right, right.flip(-1))
    close(A @ z, dense.to(z.dtype) @ z)


@CASE
def test_parts(name):
    A, dense = case(name)
    rows = torch.tensor([4, 0, 2])
    for index in (slice(1, 4), rows, [0, 3]):
        if A.shape[-1] == A.shape[-2]:
            close(A[index, index].to_dense(), dense[..., index, :][..., :, index])
    if A.diag is None and "three" not in name:
        close(A[1:4, [0, 2]].to_dense(), dense[..., 1:4, :][..., [0, 2]])
    if dense.dim() > 2:
        close(A[1].to_dense(), dense[1])
        close(A[:2].to_dense(), dense[:2])
        close(A[[1, 0]].to_dense(), dense[[1, 0]])


@CASE
def test_saved_and_copied(name):
    A, dense = case(name)
    file = io.BytesIO()
    torch.save(A, file)
    file.seek(0)
    for restored in (torch.load(file), pickle.loads(pickle.dumps(A)), copy.deepcopy(A), A.clone(), A.detach()):
        assert type(restored) is SumOperator
        assert repr(restored) == repr(A)
        assert torch.equal(restored.to_dense(), A.to_dense())
    assert A.to("cpu") is A
    narrow = A.to(torch.float32)
    assert narrow.dtype == narrow.to_dense().dtype == torch.float32
    close(narrow.to_dense(), dense, 2e-6)


# --- Solves ----------------------------------------------------------------------------------------------------------

ADDED = torch.linspace(0.2, 1.5, 6).double()
AMPLITUDE = torch.tensor([0.5, 3.0]).double()
SOLVED = {  # lazily, and densely of the parts
    "scaled": (symmetric(), lambda K: 2 * K, lambda K: 2 * K),
    "diagonal": (symmetric(), lambda K: K.add_diagonal(ADDED), lambda K: with_diagonal(K, ADDED)),
    "scaled, then a diagonal": (phased(), lambda K: (2 * K).add_diagonal(0.3), lambda K: with_diagonal(2 * K, 0.3)),
    "a diagonal, then scaled": (phased(), lambda K: K.add_diagonal(ADDED) / 4, lambda K: with_diagonal(K, ADDED) / 4),
    "negated twice": (symmetric(), lambda K: -(2 * -K), lambda K: 2 * K),
    "batch": (symmetric(2), lambda K: (AMPLITUDE * K).add_diagonal(ADDED),
              lambda K: with_diagonal(AMPLITUDE[:, None, None] * K, ADDED)),
    "Gram matrix": (weighted_gram(), lambda M: 0.1 * M.add_diagonal(2.0), lambda M: 0.1 * with_diagonal(M, 2.0)),
    "batch of Gram matrices": (weighted_gram(2), lambda M: (AMPLITUDE * M).add_diagonal(ADDED),
                               lambda M: with_diagonal(AMPLITUDE[:, None, None] * M, ADDED)),
}  # fmt: skip


@pytest.mark.parametrize("name", SOLVED)
def test_solves(name):
    part, lazily, densely = SOLVED[name]
    A, dense = lazily(part), densely(part.to_dense())
    y = normal(*dense.shape[:-1], 3)
    for more in (None, 0.4):
        matrix = dense if more is None else with_diagonal(dense, more)
        close(A.solve(y, more), torch.linalg.solve(matrix, y), 1e-10)
        close(A.logdet(more), torch.logdet(matrix), 1e-10)
        C = A.cholesky(more)
        close(C.to_dense() @ C.to_dense().mT, matrix)
        close(C @ C.solve(y), y)
        close(C.logdet(), torch.logdet(matrix) / 2, 1e-10)
    close(A @ A.solve(y), y, 1e-10)
    assert A.sample().shape == dense.shape[:-1]
    assert A.sample(4, 0.1).shape == (4, *dense.shape[:-1])
    one, other = (torch.Generator().manual_seed(1) for _ in range(2))
    assert torch.equal(A.sample(generator=one), A.cholesky().sample(generator=other))


def test_samples_have_the_scale():
    K = LaplaceOperator(normal(3), tau=0.7)
    torch.manual_seed(0)
    draws = (4 * K).add_diagonal(1.0).sample(40_000)
    close(draws.mT @ draws / len(draws), with_diagonal(4 * K.to_dense(), 1.0), 0.03)


@pytest.mark.parametrize("name", SOLVED)
def test_functions_of_torch(name):
    part, lazily, densely = SOLVED[name]
    A, dense = lazily(part), densely(part.to_dense())
    vectors, columns = normal(*dense.shape[:-1]), normal(*dense.shape[:-1], 2)
    close(torch.linalg.solve(A, vectors), torch.linalg.solve(dense, vectors), 1e-10)
    close(torch.linalg.solve(A, columns), torch.linalg.solve(dense, columns), 1e-10)
    close(torch.logdet(A), torch.logdet(dense), 1e-10)
    got, want = torch.linalg.slogdet(A), torch.linalg.slogdet(dense)
    close(got.sign, want.sign)
    close(got.logabsdet, want.logabsdet, 1e-10)
    close(torch.slogdet(A)[1], want.logabsdet, 1e-10)
    C = torch.linalg.cholesky(A).to_dense()
    close(C @ C.mT, dense)


def test_functions_of_torch_take_operators():
    K, y = symmetric(), normal(6)
    assert torch.equal(torch.linalg.solve(K, y), K.solve(y))
    assert torch.equal(torch.logdet(K), K.logdet())
    assert torch.equal(torch.linalg.cholesky(K).to_dense(), K.cholesky().to_dense())
    with raises(TypeError, "GramOperator.logdet: `diag` must be given"):
        torch.logdet(K.gram())


def test_scaled_factors_are_saved():
    C, y = (3 * symmetric(2)).add_diagonal(0.1).cholesky(), normal(2, 6, 1)
    restored = pickle.loads(pickle.dumps(C))
    assert torch.equal(restored @ y, C @ y)
    assert torch.equal(restored.solve(y), C.solve(y))
    assert torch.equal(restored.logdet(), C.logdet())
    state = C.__getstate__()
    assert "scale" not in symmetric().cholesky(0.1).__getstate__()  # as in files of earlier versions
    for scale in (torch.ones(3).double(), torch.ones(2), None):
        with raises(ValueError, "laplex.CholeskyFactor: the saved data are damaged", "`scale` must"):
            object.__new__(laplex.CholeskyFactor).__setstate__({**state, "scale": scale})


# --- Gradients -------------------------------------------------------------------------------------------------------


def tensors():
    return {
        "a": normal(6),
        "tau": torch.tensor(0.7).double(),
        "phi": normal(6),
        "s": torch.tensor(1.7).double(),
        "d": positive(6),
    }


def results(A, y):
    """What is compared of s K + diag(d), given lazily or densely."""
    dense = isinstance(A, torch.Tensor)
    solved = torch.linalg.solve(A, y) if dense else A.solve(y)
    total = (A @ y).sin().sum() + (y.mT @ A).cos().sum() + solved.sin().sum() + A.logdet()
    return (
        total + A.diagonal().square().sum() + (A if dense else A.to_dense()).exp().sum() + (A[1:3, 1:3] @ y[1:3]).sum()
    )


@pytest.mark.parametrize("argument", ["a", "tau", "phi", "s", "d"])
def test_gradients(argument):
    values, y = tensors(), normal(6, 2)
    leaf = values[argument].requires_grad_()
    a, tau, phi, s, d = values.values()
    A = (s * LaplaceOperator(a, tau=tau, phi=phi)).add_diagonal(d)
    assert A.requires_grad
    assert not A.detach().requires_grad
    assert A.clone().requires_grad
    dense = s * laplex.reference.kernel(a, a, tau, phi=phi, psi=phi) + torch.diag(d)
    close(results(A, y), results(dense, y))
    got, want = (torch.autograd.grad(results(matrix, y), leaf)[0] for matrix in (A, dense))
    close(got, want, 1e-10)


@pytest.mark.parametrize("argument", ["s", "d"])
def test_gradients_of_factors(argument):
    values, z = tensors(), normal(6)
    leaf, a = values[argument].requires_grad_(), values["a"].sort().values
    C = (values["s"] * LaplaceOperator(a)).add_diagonal(values["d"]).cholesky()
    dense = torch.linalg.cholesky(values["s"] * laplex.reference.kernel(a, a) + torch.diag(values["d"]))
    for got, want in ((C @ z, dense @ z), (C.solve(z), torch.linalg.solve(dense, z))):
        pulled = [torch.autograd.grad(result.sin().sum(), leaf, retain_graph=True)[0] for result in (got, want)]
        close(*pulled, 1e-11)
    with raises(RuntimeError, "a factor that carries gradients cannot be copied"):
        pickle.dumps((values["s"] * LaplaceOperator(a)).cholesky() if argument == "s" else C)


def test_solves_are_differentiable_twice_in_the_scale():
    K, y = symmetric(), normal(6)
    s = torch.tensor(1.7, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda s: (s * K).add_diagonal(0.5).solve(y), s)


def test_gradients_reach_every_part_of_a_sum():
    K, L = (LaplaceOperator(normal(6).requires_grad_(), normal(5)) for _ in range(2))
    s, x = SCALES[:1].clone().requires_grad_(), normal(5)
    leaves = [K.a, L.a, s]
    got = torch.autograd.grad(((K - s * L) @ x).sin().sum(), leaves)
    want = torch.autograd.grad(((K.to_dense() - s * L.to_dense()) @ x).sin().sum(), leaves)
    for one, other in zip(got, want):
        close(one, other)


@pytest.mark.parametrize(
    ("scaled", "factor"),
    [
        (lambda K, s: K / s, lambda s: 1 / s),
        (lambda K, s: (0.1 * K) * s, lambda s: 0.1 * s),
        (lambda K, s: (s.double() * K) * s, lambda s: s * s),
        (lambda K, s: K.add_diagonal(s) * s - K * s, lambda s: None),
    ],
    ids=["divided", "scaled twice", "scaled in both", "diagonal"],
)
def test_a_float32_scale_rounds_nothing_in_float64(scaled, factor):
    K, s, x = symmetric(), torch.tensor(3.1), normal(6)
    number = factor(s.double())
    close(scaled(K, s) @ x, s.double() ** 2 * x if number is None else number * (K.to_dense() @ x))


def test_float32_diagonals_add_up_in_float64():
    A = symmetric().add_diagonal(torch.ones(6)).add_diagonal(1e-10) + symmetric().add_diagonal(torch.ones(6))
    close(A.diagonal(), torch.full((6,), 4 + 1e-10, dtype=torch.float64))


def test_a_parameter_stays_itself():
    s = torch.nn.Parameter(torch.tensor(2.0))
    A = s * LaplaceOperator(torch.randn(3))
    assert A.scales == (s,)
    assert isinstance(pickle.loads(pickle.dumps(A)).scales[0], torch.nn.Parameter)


# --- Copies ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("K", [rectangular(), symmetric(2), phased(), weighted_gram()], ids=str)
def test_copies(K):
    assert K.to("cpu") is K
    for other in (K.clone(), K.detach()):
        assert type(other) is type(K)
        assert torch.equal(other.to_dense(), K.to_dense())
    narrow = K.to(dtype=torch.float32)
    assert narrow.dtype == torch.float32
    close(narrow.to_dense(), K.to_dense(), 1e-6)
    assert K.to("meta").device == torch.device("meta")


def test_copies_stay_symmetric_and_keep_the_plan():
    K = LaplaceOperator(normal(5), tau=torch.tensor(0.7).double().requires_grad_(), phi=normal(5))
    for other in (K.clone(), K.detach(), K.to(torch.float32)):
        assert other.solve(torch.ones(5, dtype=other.dtype), 0.1).dtype == other.dtype
    assert K.detach().plan is K.plan
    assert K.clone().a.data_ptr() != K.a.data_ptr()
    assert K.detach().a.data_ptr() == K.a.data_ptr()
    assert K.requires_grad
    assert not K.detach().requires_grad


def test_anchors_that_rounding_ties_are_sorted_again():
    K = LaplaceOperator(torch.tensor([1.0, 1.0 + 1e-12, 0.0]).double(), torch.tensor([1.0 + 2e-12, 0.5]).double())
    narrow, x = K.to(torch.float32), torch.randn(2)
    close(narrow @ x, narrow.to_dense() @ x, 1e-6)


def test_half_precision_is_not_an_operator():
    with raises(TypeError, "must be float32 or float64, got torch.float16"):
        symmetric().to(torch.float16)


# --- Dtypes, modes ---------------------------------------------------------------------------------------------------


def test_results_have_the_dtype_of_the_operand():
    K, x = LaplaceOperator(torch.randn(5), torch.randn(5)), torch.randn(5, 2)
    A = (torch.tensor(2.0).double() * K).add_diagonal(torch.ones(5).double())
    assert A.dtype == A.to_dense().dtype == A.diagonal().dtype == torch.float32
    for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.complex64):
        assert (A @ x.to(dtype)).dtype == dtype
        assert (x.mT.to(dtype) @ A).dtype == dtype


def test_half_precision_is_wider_between_the_products():
    K = LaplaceOperator(torch.rand(500), tau=100.0)
    x = torch.full((500,), 200.0)
    got = (1e-3 * K) @ x.half()  # K @ x overflows
    assert ((got.float() - (1e-3 * K) @ x).abs() <= 2e-3 * ((1e-3 * K) @ x).abs()).all()


def test_autocast():
    A, x = 2 * LaplaceOperator(torch.randn(5)) - LaplaceOperator(torch.randn(5)), torch.randn(5, 2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        got = A @ x
    assert got.dtype == torch.bfloat16
    close(got, A.to_dense() @ x, 2e-2)


def test_products_compile():
    A, x = (2 * LaplaceOperator(torch.randn(6)) + LaplaceOperator(torch.randn(6))).add_diagonal(0.1), torch.randn(6)
    compiled = torch.compile(lambda x: torch.matmul(A, x) + torch.matmul(x, A), backend="aot_eager", fullgraph=True)
    assert torch.allclose(compiled(x), A @ x + x @ A)


def test_forward_mode_is_refused_in_the_scale():
    K, y = symmetric(), normal(6)
    with raises(RuntimeError, "SumOperator.solve: solves, log determinants and factors are differentiated in reverse"):
        torch.func.jvp(lambda s: (s * K).solve(y), (ONE[0],), (ONE[0],))


# --- Objects and messages --------------------------------------------------------------------------------------------


def test_repr():
    K = LaplaceOperator(torch.randn(5))
    assert repr(2 * K) == "SumOperator(5 x 5, torch.float32, device=cpu, 2 * LaplaceOperator)"
    A = (K - torch.tensor(0.5) * K.gram()).add_diagonal(1.0)
    assert repr(A) == "SumOperator(5 x 5, torch.float32, device=cpu, LaplaceOperator + s * GramOperator + diagonal)"


@pytest.mark.parametrize("name", ["operators", "scales", "diag", "shape"])
def test_sums_are_immutable(name):
    with raises(AttributeError, f"SumOperator.{name} cannot be set: it is immutable"):
        setattr(2 * symmetric(), name, None)


def test_sums_are_not_made_by_their_class():
    for operators in (None, (), [symmetric()], (2 * symmetric(),), (torch.ones(2, 2),)):
        with raises(TypeError, "laplex.SumOperator: is made by s * K, K1 + K2 or K.add_diagonal(d)"):
            SumOperator(operators, (1.0,))
