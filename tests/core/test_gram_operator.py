"""GramOperator: a lazy symmetric matrix that behaves as the dense one."""

import numpy as np
import pytest
import torch

from cases import named
from helpers import error, phases_for
from laplex import GramOperator, LaplaceOperator, reference
from systems import normal

CASE = named("generic", "ties_everywhere", "short_rows_ties", "short_cols_ties", "batched", "batched_ties", "one_point")
PHASED = pytest.mark.parametrize("phased", [False, True])


def gram_of(case, phased=False):
    """The operator with signed weights, and its matrix."""
    a, b, tau = case()
    phi, psi = phases_for(a, b) if phased else (None, None)
    weight = normal(*b.shape)
    K = LaplaceOperator(a, b, tau, phi=phi, psi=psi)
    dense = reference.kernel(a, b, tau, phi=phi, psi=psi)
    return K.gram(weight), (dense * weight[..., None, :]) @ dense.mT


def close(got, want):
    assert error(got, want) <= 1e-12


@CASE
@PHASED
def test_products(case, phased):
    M, dense = gram_of(case, phased)
    *batch, n, _ = dense.shape
    right, left = normal(*batch, n, 3), normal(*batch, 3, n)
    close(M @ right, dense @ right)
    close(left @ M, left @ dense)
    close(torch.matmul(M, right), dense @ right)
    close(torch.matmul(left, M), left @ dense)
    vector = normal(n)
    close(M @ vector, dense @ vector)
    close(vector @ M, vector @ dense)
    close(M.mT @ right, dense @ right)


@CASE
@PHASED
def test_what_it_looks_like(case, phased):
    M, dense = gram_of(case, phased)
    assert isinstance(M, GramOperator)
    assert M.shape == dense.shape
    assert isinstance(M.shape, torch.Size)
    assert M.dtype == torch.float64
    assert M.device == torch.device("cpu")
    close(M.to_dense(), dense)
    close(M.diagonal(), dense.diagonal(dim1=-2, dim2=-1))


def test_ones_are_the_weights_unless_given():
    K = LaplaceOperator(normal(2, 5), normal(2, 4))
    dense = K.to_dense()
    close(K.gram().to_dense(), dense @ dense.mT)
    close(K.gram().diagonal(), (dense * dense).sum(-1))
    shared = torch.rand(4).double()
    close(K.gram(shared).to_dense(), (dense * shared) @ dense.mT)


def test_operands_of_other_dtypes():
    M = LaplaceOperator(torch.randn(5), torch.randn(4)).gram(torch.rand(4).double())
    x = torch.randn(5, 2)
    assert (M @ x).dtype == torch.float32
    assert (M @ x.half()).dtype == torch.float16
    z = torch.complex(x, x.flip(0))
    assert error(M @ z, torch.complex(M @ z.real, M @ z.imag)) <= 1e-6


@pytest.mark.parametrize("argument", ["a", "b", "tau", "phi", "psi", "weight"])
def test_gradients_flow_through(argument):
    inputs = {"a": normal(6), "b": normal(5), "tau": torch.tensor(0.7).double(), "phi": normal(6), "psi": normal(5)}
    weight, x = normal(5), normal(6, 2)
    leaf = (weight if argument == "weight" else inputs[argument]).requires_grad_()
    M = LaplaceOperator(**inputs).gram(weight)
    assert M.requires_grad
    kernel = reference.kernel(**inputs)
    dense = (kernel * weight) @ kernel.mT
    got = (M @ x).sin().sum() + M.diagonal().sin().sum() + M.to_dense().sum()
    want = (dense @ x).sin().sum() + dense.diagonal().sin().sum() + dense.sum()
    close(torch.autograd.grad(got, leaf)[0], torch.autograd.grad(want, leaf)[0])


def test_no_gradient_is_asked_for_unless_wanted():
    assert not LaplaceOperator(normal(3), normal(4)).gram().requires_grad


def test_the_operator_is_immutable():
    M = LaplaceOperator(normal(3), normal(4)).gram()
    with pytest.raises(AttributeError):
        M.weight = None


def test_repr():
    M = LaplaceOperator(torch.randn(5), torch.randn(6)).gram(torch.ones(6))
    assert repr(M) == "GramOperator(5 x 5, torch.float32, device=cpu, weighted, k=6)"


BAD_WEIGHTS = [
    ([1.0] * 4, TypeError, "LaplaceOperator.gram: `weight` must be a torch.Tensor, got list"),
    (torch.ones(3), ValueError, r"`weight` must be \(4,\), one number per column, got shape \(3,\)"),
    (torch.ones(2, 4), ValueError, "for several weights, expand the anchors"),
    (torch.ones(1), ValueError, r"got shape \(1,\)"),
    (torch.tensor(1.0), ValueError, r"got shape \(\)"),
    (torch.ones(4, dtype=torch.int64), TypeError, "`weight` must be float32 or float64, got torch.int64"),
    (torch.ones(4, device="meta"), ValueError, "`weight` must be on the device of `a`"),
]


@pytest.mark.parametrize(("weight", "kind", "message"), BAD_WEIGHTS, ids=str)
def test_bad_weights(weight, kind, message):
    with pytest.raises(kind, match=message):
        LaplaceOperator(torch.randn(5), torch.randn(4)).gram(weight)


def test_bad_weights_of_several_matrices():
    with pytest.raises(
        ValueError, match=r"`weight` must be \(4,\) or \(2, 4\), one number per column, got shape \(3,\)"
    ):
        LaplaceOperator(torch.randn(2, 5), torch.randn(4)).gram(torch.ones(3))


def test_other_operations_are_refused():
    M = LaplaceOperator(torch.randn(5), torch.randn(4)).gram()
    with pytest.raises(TypeError, match="is not defined for a GramOperator; use"):
        torch.maximum(torch.ones(5), M)
    with pytest.raises(ValueError, match="must have size 5 where they meet"):
        M @ torch.ones(4)


def test_half_precision_is_wider_between_the_products():
    a, b = torch.randn(500), torch.randn(2000)
    for tau, weight, x in ((1.0, 1e-8, 1.0), (100.0, 1e-3 / 2000, 100.0)):
        M = LaplaceOperator(a, b, tau).gram(torch.full((2000,), weight))
        x = torch.full((500,), x)
        got = M @ x.half()
        assert got.dtype == torch.float16
        assert ((got.float() - M @ x).abs() <= 2e-3 * (M @ x).abs()).all()


def test_a_diagonal_of_cosines_near_0():
    a, b, phi = torch.randn(5), torch.randn(4000), torch.full((5,), torch.pi / 2)
    M = LaplaceOperator(a, b, phi=phi, psi=torch.zeros(4000)).gram()
    want = reference.gram(a.double(), b.double(), None, 1.0, phi=phi.double(), psi=torch.zeros(4000).double())
    unphased = reference.gram(a.double(), b.double(), None, 1.0).diagonal()
    assert ((M.diagonal() - want.diagonal()).abs() <= 1e-15 * unphased).all()  # the cosine is exact to eps of 1


def test_products_compile():
    M = LaplaceOperator(torch.randn(6), torch.randn(9)).gram(torch.rand(9))
    x = torch.randn(6)
    compiled = torch.compile(lambda x: torch.matmul(M, x) + torch.matmul(x, M), backend="aot_eager", fullgraph=True)
    assert torch.allclose(compiled(x), 2 * (M @ x))
    with pytest.raises(Exception, match=r"write torch\.matmul"):
        torch.compile(lambda x: M @ x, backend="aot_eager", fullgraph=True)(x)
    assert torch.allclose(torch.compile(lambda x: M @ x, backend="aot_eager")(x), M @ x)


def test_what_does_not_meet():
    M = LaplaceOperator(torch.randn(6), torch.randn(9)).gram()
    for x in (torch.randn(9), torch.randn(9, 2), torch.tensor(1.0)):
        with pytest.raises(ValueError, match=r"GramOperator @ x: the matrix is \(6, 6\) and `x` must have size 6"):
            M @ x


def test_the_transpose_is_the_matrix():
    M, batched = LaplaceOperator(normal(3), normal(4)).gram(), LaplaceOperator(normal(2, 3), normal(4)).gram()
    assert M.T is M
    assert M.mT is M
    assert batched.mT is batched
    with pytest.raises(ValueError, match=r"GramOperator.T: needs a single matrix, got batch shape \(2,\); use .mT"):
        _ = batched.T


def test_arrays_of_numpy_are_refused_with_a_message():
    K = LaplaceOperator(normal(3), normal(4))
    for A, name in ((K, "LaplaceOperator"), (K.gram(), "GramOperator")):
        with pytest.raises(
            TypeError, match=f"x @ {name}: `x` must be a torch.Tensor, got ndarray; use torch.as_tensor"
        ):
            np.ones(3) @ A


@pytest.mark.parametrize("lead", [((3,), (), (3,)), ((2,), (), ()), ((2, 1), (3,), ())], ids=["tau", "a", "broadcast"])
def test_the_diagonal_with_phases_whatever_is_batched(lead):
    a, b, tau = torch.randn(*lead[0], 6), torch.randn(*lead[1], 9), torch.rand(lead[2]) + 0.5
    phi, psi = torch.randn(a.shape), torch.randn(b.shape)
    for weight in (None, torch.rand(9)):
        M = LaplaceOperator(a, b, tau, phi=phi, psi=psi).gram(weight)
        assert torch.allclose(M.diagonal(), M.to_dense().diagonal(dim1=-2, dim2=-1), rtol=1e-5)


def test_weights_wider_than_the_anchors_are_not_rounded_first():
    K = LaplaceOperator(torch.randn(3), torch.randn(4), 0.5)
    weight = torch.full((4,), 1e300, dtype=torch.float64)
    small = torch.full((4,), 2e-46, dtype=torch.float64)  # nothing in float32
    for got in (K.gram(weight).to_dense(), K.gram(weight).diagonal()):
        assert got.dtype == torch.float32
        assert bool((got == torch.inf).all())
    assert torch.allclose(K.gram(small * 1e40).to_dense() * 1e-6, K.gram(small * 1e34).to_dense(), rtol=1e-6, atol=0)


@pytest.mark.parametrize("phased", [False, True])
@pytest.mark.parametrize("lead", [(), (2,)], ids=str)
def test_weights_narrower_than_the_anchors_do_not_round_the_entries(phased, lead):
    a, b, weight = normal(*lead, 30), normal(*lead, 40), torch.rand(*lead, 40)
    phi, psi = phases_for(a, b) if phased else (None, None)
    M = LaplaceOperator(a, b, phi=phi, psi=psi).gram(weight)
    kernel = reference.kernel(a, b, phi=phi, psi=psi)
    want = (kernel * weight.double()[..., None, :]) @ kernel.mT
    assert error(M.to_dense(), want) <= 1e-14
    assert error(M.diagonal(), want.diagonal(dim1=-2, dim2=-1)) <= 1e-14


@pytest.mark.parametrize("lead", [(0,), (2, 0)])
def test_a_batch_of_no_matrices(lead):
    M = LaplaceOperator(normal(*lead, 4), normal(*lead, 5)).gram()
    assert M.logdet(0.5).shape == (2.0 * M).logdet(0.5).shape == lead
    assert M.solve(normal(*lead, 4, 3), 0.5).shape == (*lead, 4, 3)
    assert M.cholesky(0.5).to_dense().shape == (*lead, 4, 4)
