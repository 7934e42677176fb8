"""LaplaceOperator: a lazy matrix that behaves as the dense one."""

import pickle

import numpy as np
import pytest
import torch

import laplex
from cases import BY_NAME, every
from helpers import error, inputs_for, phases_for
from laplex import LaplaceOperator, reference

NAMES = ("generic", "ties_everywhere", "short_rows_ties", "short_cols_ties", "batched", "batched_ties", "one_point")
CASE = every([BY_NAME[name] for name in NAMES])
PHASED = pytest.mark.parametrize("phased", [False, True])


def operator_of(case, phased=False):
    """The operator and its matrix."""
    a, b, tau = case()
    phi, psi = phases_for(a, b) if phased else (None, None)
    return LaplaceOperator(a, b, tau, phi=phi, psi=psi), reference.kernel(a, b, tau, phi=phi, psi=psi)


def close(got, want):
    assert error(got, want) <= 1e-13


def normal(*shape):
    return torch.randn(*shape, dtype=torch.float64)


@CASE
@PHASED
def test_products(case, phased):
    K, dense = operator_of(case, phased)
    *batch, n, k = dense.shape
    right, left = normal(*batch, k, 3), normal(*batch, 3, n)
    close(K @ right, dense @ right)
    close(left @ K, left @ dense)
    close(torch.matmul(K, right), dense @ right)
    close(torch.matmul(left, K), left @ dense)
    close(left.matmul(K), left @ dense)
    close(K @ right[..., :1], dense @ right[..., :1])


@CASE
def test_products_with_vectors(case):
    K, dense = operator_of(case)
    *_, n, k = dense.shape
    right, left = normal(k), normal(n)
    close(K @ right, dense @ right)
    close(left @ K, left @ dense)


def test_products_with_stacks():
    a, b = normal(5), normal(4)
    K, dense = LaplaceOperator(a, b), reference.kernel(a, b)
    stack = normal(2, 3, 4, 6)
    close(K @ stack, dense @ stack)
    close(stack.mT[..., :4] @ LaplaceOperator(b, a), stack.mT[..., :4] @ dense.mT)


@CASE
@PHASED
def test_transposes(case, phased):
    K, dense = operator_of(case, phased)
    close(K.mT.to_dense(), dense.mT)
    assert K.mT.shape == dense.mT.shape
    x = normal(*dense.shape[:-2], dense.shape[-2], 2)
    close(K.mT @ x, dense.mT @ x)
    close(K.mT.mT @ (K.mT @ x), dense @ (dense.mT @ x))
    if dense.dim() == 2:
        close(K.T @ x, dense.T @ x)


@CASE
@PHASED
def test_what_it_looks_like(case, phased):
    K, dense = operator_of(case, phased)
    assert K.shape == dense.shape
    assert isinstance(K.shape, torch.Size)
    assert K.dtype == torch.float64
    assert K.device == torch.device("cpu")
    close(K.to_dense(), dense)
    close(K.diagonal(), dense.diagonal(dim1=-2, dim2=-1))


def test_broadcast_anchors():
    a, b, tau = normal(3, 1, 5), normal(2, 4), torch.rand(2).double() + 0.5
    K, dense = LaplaceOperator(a, b, tau), reference.kernel(a, b, tau)
    assert K.shape == dense.shape == (3, 2, 5, 4)
    x = normal(3, 2, 4, 6)
    close(K @ x, dense @ x)
    close(K.mT @ (K @ x), dense.mT @ (dense @ x))
    close(K.diagonal(), dense.diagonal(dim1=-2, dim2=-1))
    close(K.to_dense(), dense)


SELECTIONS = [
    (slice(None), slice(None)),
    (slice(1, 9), slice(None, None, 2)),
    (slice(None, None, 3), [0, 4, 4, 2]),
    ([5, 1, 1], torch.tensor([3, 0])),
    (torch.tensor([7, 2]), slice(2, None)),
    (3, slice(None)),
    (slice(None), -1),
    (2, 5),
    (slice(4, 4), slice(None)),
    (torch.arange(37) % 3 == 0, slice(None)),
    ([], slice(None)),
    (slice(None), []),
    ([], np.array([], dtype=np.int64)),
    ((), 3),
]


@pytest.mark.parametrize(("rows", "cols"), SELECTIONS, ids=str)
@PHASED
def test_slices_are_lazy(rows, cols, phased):
    K, dense = operator_of(BY_NAME["generic"], phased)
    part = K[rows, cols]
    assert isinstance(part, LaplaceOperator)
    keep = [[index] if isinstance(index, int) else index for index in (rows, cols)]
    want = dense[keep[0], :][:, keep[1]]
    assert part.shape == want.shape
    close(part.to_dense(), want)
    x = normal(want.shape[1], 2)
    close(part @ x, want @ x)


@pytest.mark.parametrize("key", [None, (None, slice(None)), (0, None), (None, 0, 0)], ids=repr)
def test_an_index_adds_no_dimension(key):
    K, _ = operator_of(BY_NAME["generic"])
    with pytest.raises(
        TypeError, match=r"index with K\[rows, cols\], got .*make LaplaceOperator\(a\[None\], b\[None\]"
    ):
        K[key]


def test_slices_of_a_batch():
    K, dense = operator_of(BY_NAME["batched"])
    part, want = K[1:5, [2, 0]], dense[:, 1:5][:, :, [2, 0]]
    assert part.shape == want.shape
    close(part.to_dense(), want)


@pytest.mark.parametrize("index", [[4, 0, 2], torch.tensor([1, 3]), slice(1, 4), slice(None), 2], ids=repr)
def test_the_same_rows_and_columns_stay_symmetric(index):
    a, phi = torch.randn(6).double(), torch.randn(6).double()
    for K in (LaplaceOperator(a), LaplaceOperator(a, phi=phi)):
        part = K[index, index]
        rows = [index] if isinstance(index, int) else index
        assert torch.equal(part.to_dense(), K.to_dense()[rows][:, rows])
        part.solve(torch.ones(part.shape[-1]).double(), 0.1)
    K = LaplaceOperator(a)
    K[1:3, 1:3].logdet()
    for other in (K[[0, 1], [1, 0]], LaplaceOperator(a, a.clone())[index, index]):
        with pytest.raises(ValueError, match="needs a symmetric matrix"):
            other.logdet()


def test_symmetric():
    a, phi = normal(9), normal(9)
    K, dense = LaplaceOperator(a, tau=0.5, phi=phi), reference.kernel(a, a, 0.5, phi=phi, psi=phi)
    close(K.to_dense(), dense)
    close(K.to_dense(), K.mT.to_dense())
    close(K.diagonal(), torch.ones(9))
    x = normal(9)
    close(K @ x, dense @ x)
    assert LaplaceOperator(a).shape == (9, 9)


@pytest.mark.parametrize("argument", ["a", "b", "tau", "phi", "psi"])
def test_gradients_flow_through(argument):
    inputs = inputs_for(normal(9), normal(8), 0.7)
    del inputs["x"]
    leaf = inputs[argument].requires_grad_()
    K = LaplaceOperator(**inputs)
    assert K.requires_grad
    x, y = normal(8, 2), normal(3, 9)
    rows = y @ K
    total = (K @ x).sin().sum() + (rows @ x).sin().sum() + K.diagonal().sum() + (K[1:4, ::2] @ x[::2]).sum()
    dense = reference.kernel(**inputs)
    want = (dense @ x).sin().sum() + (y @ dense @ x).sin().sum() + dense.diagonal().sum()
    want = want + (dense[1:4, ::2] @ x[::2]).sum()
    close(torch.autograd.grad(total, leaf)[0], torch.autograd.grad(want, leaf)[0])


def test_no_gradient_is_asked_for_unless_wanted():
    assert not LaplaceOperator(normal(3), normal(4)).requires_grad
    assert not LaplaceOperator(normal(3), normal(4), torch.tensor(1.0)).requires_grad


def test_a_plan_is_taken_and_shared():
    a, b = normal(9), normal(8)
    plan = laplex.Plan(a, b)
    K = LaplaceOperator(a, b, plan=plan)
    assert K.plan is plan
    assert K.mT.plan._order.target is plan._order.source


@pytest.mark.parametrize("name", ["a", "b", "tau", "phi", "psi", "plan"])
def test_the_operator_is_immutable(name):
    K = LaplaceOperator(normal(9), normal(8))
    with pytest.raises(AttributeError):
        setattr(K, name, None)


def test_repr():
    a, b = torch.randn(5), torch.randn(6)
    assert repr(LaplaceOperator(a, b)) == "LaplaceOperator(5 x 6, torch.float32, device=cpu, merged)"
    phased = LaplaceOperator(a[:1].expand(2, 1), torch.randn(2, 60), phi=torch.randn(2, 1), psi=torch.randn(2, 60))
    assert repr(phased) == "LaplaceOperator(2 x 1 x 60, torch.float32, device=cpu, phased, short_rows)"


@PHASED
def test_scipy_solvers(phased):
    from scipy.sparse.linalg import lsqr, svds

    K, dense = operator_of(BY_NAME["short_cols"], phased)
    matrix = dense.numpy()
    wrapped = K.aslinearoperator()
    assert wrapped.shape == matrix.shape
    assert wrapped.dtype == matrix.dtype
    x, y = np.random.default_rng(0).normal(size=(2, matrix.shape[0]))
    np.testing.assert_allclose(wrapped @ x[: matrix.shape[1]], matrix @ x[: matrix.shape[1]], atol=1e-12)
    np.testing.assert_allclose(wrapped.T @ y, matrix.T @ y, atol=1e-12)
    np.testing.assert_allclose(wrapped.H @ matrix, matrix.T @ matrix, atol=1e-11)
    top = np.sort(svds(wrapped, k=3, return_singular_vectors=False, rng=np.random.default_rng(0)))[::-1]
    np.testing.assert_allclose(top, np.linalg.svd(matrix, compute_uv=False)[:3], rtol=1e-9)
    solution = lsqr(wrapped, y, atol=1e-13, btol=1e-13, iter_lim=2000)[0]
    np.testing.assert_allclose(matrix.T @ (matrix @ solution - y), 0, atol=1e-6)


def test_scipy_operators_are_pickled():
    K, dense = operator_of(BY_NAME["generic"], phased=True)
    wrapped = pickle.loads(pickle.dumps(K.aslinearoperator()))
    x, y = normal(dense.shape[1], 2).numpy(), normal(dense.shape[0]).numpy()
    np.testing.assert_array_equal(wrapped @ x, K.aslinearoperator() @ x)
    np.testing.assert_array_equal(wrapped.T @ y, K.aslinearoperator().T @ y)


@pytest.mark.filterwarnings("error")
def test_scipy_operators_take_arrays_that_are_not_writeable():
    K, dense = operator_of(BY_NAME["generic"])
    x, y = np.ones(dense.shape[1]), np.broadcast_to(1.0, (dense.shape[0], 2))
    x.flags.writeable = False
    np.testing.assert_allclose(K.aslinearoperator() @ x, dense.numpy() @ x)
    np.testing.assert_allclose(K.aslinearoperator().T @ y, dense.numpy().T @ y)


def test_scipy_dtypes():
    K = LaplaceOperator(torch.randn(5, requires_grad=True), torch.randn(4))
    wrapped, dense = K.aslinearoperator(), K.to_dense().detach().numpy()
    for x in (np.arange(4), np.ones(4, np.float64), np.ones(4, np.float32), np.ones(4) * 1j, np.ones((4, 2))):
        np.testing.assert_allclose(wrapped @ x, dense @ x, rtol=1e-5)
    reversed_view = np.arange(8.0)[::-2]  # a negative stride, which torch cannot hold
    np.testing.assert_allclose(wrapped @ reversed_view, dense @ reversed_view, rtol=1e-5)


@pytest.mark.parametrize("what", ["to_dense", "diagonal"])
@pytest.mark.parametrize("tau", [0.0, -1.0, torch.nan, torch.inf], ids=str)
def test_no_entries_are_made_of_a_tau_that_is_no_length(tau, what):
    K = LaplaceOperator(torch.randn(2, 3), torch.randn(4), torch.tensor([1.0, tau]))
    with pytest.raises(ValueError, match=rf"LaplaceOperator\.{what}: `tau` must be positive and finite, got {tau}"):
        getattr(K, what)()


TAUS = [
    0.7,
    torch.tensor(0.7),
    torch.tensor(0.7).double(),
    torch.tensor([0.7]).double(),
    torch.tensor([0.5, 0.7]).double(),
]


@pytest.mark.parametrize("tau", TAUS, ids=lambda tau: str(getattr(tau, "shape", "number")))
@pytest.mark.parametrize("phase", [None, torch.float32, torch.float64], ids=str)
def test_entries_have_the_dtype_of_the_operator(tau, phase, dtype):
    a, b = torch.randn(2, 3, dtype=dtype), torch.randn(2, 4, dtype=dtype)
    phases = {"phi": a.to(phase), "psi": b.to(phase)} if phase else {}
    K = LaplaceOperator(a, b, tau, **phases)
    assert K.dtype == K.to_dense().dtype == K.diagonal().dtype == dtype
