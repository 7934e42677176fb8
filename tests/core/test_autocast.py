"""Autocast: products do as torch.nn.functional.linear does; nothing else is changed by it."""

import numpy as np
import pytest
import torch
from torch.nn.functional import linear as dense_linear

import laplex
from helpers import error, oracle, phases_for, wide
from laplex import LaplaceOperator, reference

PHASED = pytest.mark.parametrize("phased", [False, True])
CAST = (torch.float32, torch.float16, torch.bfloat16)
UNCHANGED = (torch.float64, torch.complex64, torch.complex128)


def bf16():
    return torch.autocast("cpu", dtype=torch.bfloat16)


def anchors(phased=False):
    a, b = torch.randn(31), torch.randn(27)
    phi, psi = phases_for(a, b) if phased else (None, None)
    return {"a": a, "b": b, "tau": 0.5, "phi": phi, "psi": psi}


@pytest.mark.parametrize("x_dtype", [*CAST, torch.float64], ids=str)
def test_x_is_taken_as_by_torch(x_dtype, backend):
    x, given = torch.randn(4, 27).to(x_dtype), anchors()
    with bf16():
        y = laplex.linear(x, **given, backend=backend)
        assert y.dtype == dense_linear(x, torch.randn(31, 27, dtype=x_dtype)).dtype


@pytest.mark.parametrize("x_dtype", CAST, ids=str)
@PHASED
def test_a_product_is_that_of_a_rounded_x(x_dtype, phased, backend):
    """Anchors, phases and the state stay as they are."""
    x, given = torch.randn(4, 27).to(x_dtype), anchors(phased)
    with bf16():
        y = laplex.linear(x, **given, backend=backend)
    assert y.dtype == torch.bfloat16
    assert torch.equal(y, laplex.linear(x.bfloat16(), **given, backend=backend))


@pytest.mark.parametrize("x_dtype", UNCHANGED, ids=str)
@PHASED
def test_float64_and_complex_are_left_alone(x_dtype, phased, backend):
    x, given = torch.randn(4, 27, dtype=x_dtype), anchors(phased)
    with bf16():
        y = laplex.linear(x, **given, backend=backend)
    assert y.dtype == x_dtype
    assert torch.equal(y, laplex.linear(x, **given, backend=backend))


@pytest.mark.parametrize("x_dtype", [torch.float32, torch.bfloat16], ids=str)
@PHASED
def test_gradients_are_in_the_dtypes_of_what_was_given(x_dtype, phased, backend):
    given = {name: torch.as_tensor(value) for name, value in anchors(phased).items() if value is not None}
    leaves = {"x": torch.randn(4, 27).abs().to(x_dtype), **given}
    leaves = {name: value.requires_grad_() for name, value in leaves.items()}
    with bf16():
        y = laplex.linear(**leaves, backend=backend)
        got = torch.autograd.grad(y.float().sum(), list(leaves.values()), create_graph=True)
    exact = {name: wide(value).requires_grad_() for name, value in leaves.items()}
    want = torch.autograd.grad(reference.linear(**exact).sum(), list(exact.values()))
    for leaf, one, other in zip(leaves.values(), got, want):
        assert one.dtype == leaf.dtype
        assert error(one, other) <= 4e-3


def test_a_layer_among_others(backend):
    dense, a, b = torch.nn.Linear(8, 27), torch.randn(31, requires_grad=True), torch.randn(27)
    with bf16():
        x = dense(torch.randn(4, 8))
        y = laplex.linear(x, a, b, backend=backend)
    y.float().sum().backward()
    assert x.dtype == y.dtype == torch.bfloat16
    assert a.grad.dtype == dense.weight.grad.dtype == torch.float32
    assert error(y, oracle(x, a, b)) <= 4e-3


def test_other_dtypes_and_devices():
    x, given = torch.randn(4, 27), anchors()
    with torch.autocast("cpu", dtype=torch.float16):
        assert laplex.linear(x, **given).dtype == torch.float16
    with torch.autocast("cuda", dtype=torch.bfloat16, enabled=torch.cuda.is_available()):
        assert laplex.linear(x, **given).dtype == torch.float32
    with bf16(), torch.autocast("cpu", enabled=False):
        assert laplex.linear(x, **given).dtype == torch.float32
    with bf16():  # which has no autocast
        assert laplex.linear(*(torch.ones(size, device="meta") for size in (5, 4, 5))).dtype == torch.float32


# --- operators -------------------------------------------------------------------------------------------------------


def test_products_of_an_operator():
    K, x, y = LaplaceOperator(**anchors(phased=True)), torch.randn(27, 3), torch.randn(3, 31)
    with bf16():
        got = K @ x, K @ x[:, 0], y @ K, torch.matmul(y, K)
    x, y = x.bfloat16(), y.bfloat16()
    for one, other in zip(got, (K @ x, K @ x[:, 0], y @ K, y @ K), strict=True):
        assert one.dtype == torch.bfloat16
        assert torch.equal(one, other)


def test_a_gram_product_is_not_rounded_between():
    M = LaplaceOperator(**anchors()).gram(torch.rand(27))
    x = torch.randn(31, 3)
    with bf16():
        got = M @ x, x.mT @ M, M @ x.double()
    want = M @ x.bfloat16().float()
    assert got[0].dtype == got[1].dtype == torch.bfloat16
    assert torch.equal(got[0], want.bfloat16())
    assert torch.equal(got[1], want.bfloat16().mT)
    assert torch.equal(got[2], M @ x.double())


def untraceable(*_):
    raise AssertionError("torch.compile of torch 2.11 breaks a graph here")


@pytest.mark.usefixtures("unpoisoned")
def test_compiled_products(monkeypatch):
    monkeypatch.setattr(torch.amp, "is_autocast_available", untraceable)
    K, M = LaplaceOperator(**anchors()), LaplaceOperator(**anchors()).gram()
    given, x, y = anchors(), torch.randn(4, 27), torch.randn(31, 2)

    @torch.compile(backend="aot_eager", fullgraph=True)
    def products(x, y):
        return laplex.linear(x, **given), torch.matmul(K, x.mT), torch.matmul(M, y)

    with bf16():
        under, want = products(x, y), (laplex.linear(x, **given), K @ x.mT, M @ y)
    outside = products(x, y)
    assert all(one.dtype == torch.bfloat16 and torch.equal(one, other) for one, other in zip(under, want))
    assert all(one.dtype == torch.float32 for one in outside)


UNAFFECTED = {
    "gram": lambda K, S, y: laplex.gram(K.a, K.b, torch.ones(27), 0.5),
    "to_dense": lambda K, S, y: K.to_dense(),
    "diagonal": lambda K, S, y: K.diagonal(),
    "to_dense_of_gram": lambda K, S, y: K.gram(y[:27]).to_dense(),
    "diagonal_of_gram": lambda K, S, y: K.gram(y[:27]).diagonal(),
    "solve": lambda K, S, y: S.solve(y, 0.1),
    "solve_of_gram": lambda K, S, y: K.gram().solve(y, 0.1),
    "logdet": lambda K, S, y: S.logdet(0.1),
    "logdet_of_gram": lambda K, S, y: K.gram().logdet(0.1),
    "cholesky": lambda K, S, y: S.cholesky(0.1) @ y,
    "whitened": lambda K, S, y: K.gram().cholesky(0.1).solve(y),
    "sample": lambda K, S, y: S.sample(2, 0.1, generator=torch.Generator().manual_seed(0)),
    "scipy": lambda K, S, y: torch.as_tensor(S.aslinearoperator() @ np.ones(31, np.float32)),
}


@pytest.mark.parametrize("what", UNAFFECTED)
def test_nothing_else_is_affected(what):
    K, y = LaplaceOperator(torch.randn(31), torch.randn(27), 0.5), torch.randn(31)
    S = LaplaceOperator(K.a, tau=0.5)
    with bf16():
        got = UNAFFECTED[what](K, S, y)
    assert got.dtype == torch.float32
    assert torch.equal(got, UNAFFECTED[what](K, S, y))


FITS = {
    "seriate": lambda x: laplex.seriate(x),
    "reseat": lambda x: laplex.reseat(x, torch.linspace(0, 1, 24), torch.linspace(0, 1, 100), 0.1).places,
    "from_linear": lambda x: laplex.nn.LaplexLinear.from_linear(dense_layer(x), 2, sweeps=3).a,
    "trainer": lambda x: trained(x).log_noise,
    "density": lambda x: laplex.density.fit(laplex.density.Examples(x), 4, rounds=3).model.weight,
}


def trained(x):
    torch.manual_seed(0)
    model = laplex.density.LaplexGaussian(x.shape[1], 4)
    laplex.density.Trainer(model, laplex.density.Examples(x), batch=20).epoch()
    return model


def dense_layer(weight):
    layer = torch.nn.Linear(*reversed(weight.shape))
    layer.weight.data.copy_(weight)
    return layer


@pytest.mark.parametrize("fit", FITS.values(), ids=FITS)
def test_fits_and_searches_are_not_changed(fit):
    x = torch.randn(40, 24).cumsum(1)
    want = fit(x)
    with bf16():
        assert torch.equal(fit(x), want)
