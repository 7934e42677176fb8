"""Variances, noise and observations of all sizes that float64 can hold; and the errors beyond."""

import math
import re

import numpy
import pytest
import torch
from torch.linalg import LinAlgError

from laplex import gp
from processes import as_tensor

KERNELS = {
    "exponential": lambda s: gp.Exponential(1.5, s),
    "matern32": lambda s: gp.Matern32(2.0, s),
    "matern52": lambda s: gp.Matern52(2.0, s),
    "sho": lambda s: gp.SHO(3.0, 4.0, s),
    "product": lambda s: gp.Matern32(2.0, s) * gp.Matern32(3.0),
    "sum with a line": lambda s: gp.Exponential(1.5, s) + gp.Linear(s, 1.0),
}
N = 40


def data():
    torch.manual_seed(0)
    t = 10 * torch.rand(N, dtype=torch.float64)
    return t, torch.sin(t) + 0.1 * torch.randn(N, dtype=torch.float64)


def results(make, by, **options):
    """Of a process with everything ``by`` times as large, in units in which they do not depend on it."""
    t, y = data()
    t, y = t.requires_grad_(), (by * y).requires_grad_()
    diag = torch.full((N,), 0.1 * by * by, dtype=torch.float64, requires_grad=True)
    sigma = torch.tensor(by, dtype=torch.float64, requires_grad=True)
    process = gp.GaussianProcess(make(sigma), t, diag=diag, **options)
    value = process.log_likelihood(y)
    t_bar, y_bar, diag_bar, sigma_bar = torch.autograd.grad(value, (t, y, diag, sigma))
    mean, variance = process.predict(y, torch.linspace(0, 10, 7, dtype=torch.float64), return_var=True)
    value = value + N * math.log(by)
    return value, t_bar, by * y_bar, by * by * diag_bar, by * sigma_bar, mean / by, variance / by / by


@pytest.mark.parametrize("by", [1e-74, 1e-40, 1e40, 1e74])
@pytest.mark.parametrize("make", KERNELS.values(), ids=KERNELS)
def test_units_of_all_sizes(make, by):
    for got, want in zip(results(make, by), results(make, 1.0), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-11)


@pytest.mark.parametrize("by", [1e-74, 1e-40, 1e3, 1e6, 1e10, 1e40, 1e74])
@pytest.mark.parametrize("name", sorted(set(KERNELS) - {"sum with a line"}))  # a line has no means over exposures
def test_units_of_all_sizes_over_exposures(name, by, chain_path):
    """They had been wrong in the second digit at 1e6, and not positive definite beyond."""
    make = KERNELS[name]
    for got, want in zip(results(make, by, exposure=0.5), results(make, 1.0, exposure=0.5), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-11)


TIMED = {
    "exponential": lambda u: gp.Exponential(2.0 * u),
    "matern32": lambda u: gp.Matern32(2.0 * u),
    "matern52": lambda u: gp.Matern52(2.0 * u),
    "sho": lambda u: gp.SHO(3.0 * u, 2.0),
    "cosine and a state that stays": lambda u: gp.Cosine(3.0 * u) * gp.Matern32(4.0 * u) + 2.0 * gp.Cosine(1e9 * u),
    "carma": lambda u: gp.CARMA(as_tensor([0.7 / u**2, 1.2 / u]), as_tensor([0.5 / u**1.5])),
}


@pytest.mark.parametrize("unit", [1e-9, 1e-6, 86400.0, 1e9])
@pytest.mark.parametrize("make", TIMED.values(), ids=TIMED)
def test_exposures_in_all_units_of_time(make, unit, chain_path):
    """In plain torch, which a GPU takes for more than five states, some had been said to be not positive definite."""
    t, y = data()
    got, want = (gp.GaussianProcess(make(u), u * t, diag=0.1, exposure=0.5 * u).log_likelihood(y) for u in (unit, 1.0))
    torch.testing.assert_close(got, want, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("sigma", [1e-100, 1e-160, 1e77, 1e160])
@pytest.mark.parametrize("as_parameter", [float, as_tensor], ids=["number", "tensor"])
@pytest.mark.parametrize("make", KERNELS.values(), ids=KERNELS)
@pytest.mark.parametrize("method", ["log_likelihood", "condition"])
def test_variances_out_of_range(make, sigma, as_parameter, method):
    """They had been NaN, wrong, or said to be not positive definite."""
    t, y = data()
    process = gp.GaussianProcess(make(as_parameter(sigma)), t, diag=0.0)
    messages = (
        "variance of the process, with its noise, must be from 1e-150 to 1e+150",
        "must have squares and inverses",
    )
    with pytest.raises(ValueError, match="|".join(map(re.escape, messages))):
        getattr(process, method)(y)


def test_tiny_variances_where_there_is_noise():
    t, y = data()
    value = gp.GaussianProcess(gp.Matern32(2.0, 1e-100), t, diag=0.1).log_likelihood(y)
    want = -0.5 * (y.square().sum() / 0.1 + N * math.log(2 * math.pi * 0.1))
    torch.testing.assert_close(value, want)


@pytest.mark.parametrize("make", KERNELS.values(), ids=KERNELS)
def test_noise_that_says_nothing_is_observed(make):
    """The largest that is allowed; likelihoods differ by that of the noise alone."""
    t, y = data()
    diag = torch.full((N,), 0.1, dtype=torch.float64)
    diag[::3] = 1e300
    known = diag < 1
    value = gp.GaussianProcess(make(1.0), t, diag=diag).log_likelihood(y)
    want = gp.GaussianProcess(make(1.0), t[known], diag=diag[known]).log_likelihood(y[known])
    alone = -0.5 * math.log(2 * math.pi * 1e300) * int((~known).sum())
    torch.testing.assert_close(value, want + alone, rtol=1e-12, atol=1e-9)


T, Y = data()
KERNEL = gp.Matern32(2.0)
SPARSE = "must be a dense tensor of real numbers, got one of torch.float64, torch.sparse_coo"
GENERATOR = "`generator` must be None or a torch.Generator, got int"


TWO = torch.stack([T, T])
NOISE_OF_ONE = as_tensor([[0.0], [0.1]])


def process(kernel=KERNEL, t=T, **options):
    return gp.GaussianProcess(kernel, t, **({"diag": 0.1} | options))


ERRORS = {
    "yerr": (lambda: gp.GaussianProcess(KERNEL, T, yerr=1e160), "`yerr` must be at most 1e+150, got 1e+160"),
    "diag": (lambda: process(diag=1e305), "`diag` must be at most 1e+300, got 1e+305; leave such observations out"),
    "an integer": (lambda: process(diag=10**400), "`diag` must be in the range of float64, got a larger integer"),
    "observations": (
        lambda: process().log_likelihood(1e200 * Y),
        "log_likelihood: `y`, less the mean, must be at most",
    ),
    "a scale": (lambda: process(gp.Matern52(1e-200)).log_likelihood(Y), "must have squares and inverses in float64"),
    "a small number": (
        lambda: process(gp.Matern52(1e-156)).log_likelihood(Y),
        "squares and inverses in float64, got Ma",
    ),
    "a small number, given y": (
        lambda: process(gp.SHO(1e-156)).condition(Y),
        "squares and inverses in float64, got SHO",
    ),
    "a short wave": (lambda: process(gp.Cosine(1e-170)).log_likelihood(Y), "squares and inverses in float64, got Cos"),
    "a short wave, given y": (
        lambda: process(gp.Cosine(1e-170)).condition(Y),
        "squares and inverses in float64, got C",
    ),
    "a variance below 1": (
        lambda: process(gp.Matern32(2.0, 1e-100), diag=0.0).log_likelihood(Y),
        "must be from 1e-150 to 1e+150, got 1e-200; use other units for y",
    ),
    "the first variance of two": (
        lambda: process(gp.Matern32(2.0, as_tensor([1e-100, 10.0])), TWO, diag=0.0).log_likelihood(torch.stack([Y, Y])),
        "must be from 1e-150 to 1e+150, got 1e-200; use other units for y",
    ),
    "noise of another series": (
        lambda: process(gp.Matern32(2.0, 1e-100), TWO, diag=NOISE_OF_ONE).log_likelihood(torch.stack([Y, Y])),
        "must be from 1e-150 to 1e+150, got 1e-200; use other units for y",
    ),
    "a negative batch_shape": (
        lambda: gp.trainable(KERNEL, batch_shape=(-1,)),
        "trainable: `batch_shape` must be at least 1, got -1",
    ),
    "an empty scale": (lambda: gp.Matern32(torch.ones(0)), "Matern32: `scale` must have a number, got an empty tensor"),
}
TYPES = {
    "complex noise": (
        lambda: process(diag=Y * 1j),
        "`diag` must be a dense tensor of real numbers, got one of torch.co",
    ),
    "a complex mean": (
        lambda: process(mean=lambda t: t * 1j).log_likelihood(Y),
        "`mean` must be a dense tensor of real",
    ),
    "sparse noise": (lambda: process(diag=Y.to_sparse()), f"`diag` {SPARSE}"),
    "sparse times": (lambda: process(t=T.to_sparse()), f"`t` {SPARSE}"),
    "sparse observations": (lambda: process().log_likelihood(Y.to_sparse()), f"`y` {SPARSE}"),
    "a sparse scale": (lambda: gp.Matern32(Y.to_sparse()), "got a tensor of torch.float64, which is sparse"),
    "generator of draws": (lambda: process().sample(generator=3), f"GaussianProcess.sample: {GENERATOR}"),
    "generator of posterior draws": (lambda: process().condition(Y).sample(generator=3), f"sample: {GENERATOR}"),
    "generator of fit": (lambda: gp.fit(process(), Y, generator=3), f"laplex.gp.fit: {GENERATOR}"),
    "batch_shape": (lambda: gp.trainable(KERNEL, batch_shape=3), "`batch_shape` must be a tuple of positive integers"),
    "a batch_shape of text": (
        lambda: gp.trainable(KERNEL, batch_shape=("3",)),
        "`batch_shape` must be a whole number, got '3'",
    ),
}


@pytest.mark.parametrize(("call", "message"), ERRORS.values(), ids=ERRORS)
def test_values(call, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        call()


@pytest.mark.parametrize(("call", "message"), TYPES.values(), ids=TYPES)
def test_types(call, message):
    with pytest.raises(TypeError, match=re.escape(message)):
        call()


DRAWS = {
    "GaussianProcess.sample": lambda generator: process().sample(generator=generator),
    "Conditional.sample": lambda generator: process().condition(Y).sample(generator=generator),
}


class Elsewhere(torch.Generator):
    device = torch.device("cuda")


@pytest.mark.parametrize("name", DRAWS)
def test_a_generator_on_another_device(name):
    """The message names the argument that a process has."""
    message = f"{name}: `generator` must be on cpu, where `t` is, got one on cuda; use torch.Generator('cpu')"
    with pytest.raises(ValueError, match=re.escape(message)):
        DRAWS[name](Elsewhere())


def test_sizes_of_a_batch_may_be_integers_of_numpy():
    assert gp.trainable(KERNEL, batch_shape=(numpy.int64(3),)).batch_shape == (3,)


@pytest.mark.parametrize("method", ["log_likelihood", "condition"])
def test_a_variance_of_zero_is_not_positive_definite(method):
    one = gp.GaussianProcess(gp.Linear(1.0, 0.0), torch.zeros(1, dtype=torch.float64), diag=0.0)
    with pytest.raises(
        LinAlgError, match="at time 0 of series 0 the variance, given the times before, is not positive"
    ):
        getattr(one, method)(torch.ones(1, dtype=torch.float64))


NAN, ONE = as_tensor([math.nan]), as_tensor([1.0])
NOT_FINITE = {
    "states": lambda: gp.StateSpace(-ONE[:, None], NAN[:, None], ONE),
    "coefficients": lambda: gp.CARMA(as_tensor([1.0, 2.0]), NAN),
    "bands": lambda: gp.Bands(KERNEL, NAN),
}


@pytest.mark.parametrize("make", NOT_FINITE.values(), ids=NOT_FINITE)
def test_tensors_that_are_not_finite_are_not_a_matter_of_units(make):
    band = {"band": torch.zeros(N, dtype=torch.int64)} if make is NOT_FINITE["bands"] else {}
    with pytest.raises(LinAlgError, match="check the kernel's parameters"):
        process(make(), **band).log_likelihood(Y)


def test_what_has_no_squares_of_variances_has_no_limit():
    """Predictions are linear in y."""
    variance = process(gp.Matern32(2.0, 1e-80), diag=0.0).distribution().variance
    torch.testing.assert_close(variance, torch.full_like(T, 1e-160), rtol=1e-12, atol=0.0)
    for got, want in ((process().predict(1e151 * Y), process().predict(Y)), (loo(1e151 * Y), loo(Y))):
        torch.testing.assert_close(got / 1e151, want, rtol=1e-9, atol=1e-9)


def loo(y):
    return process().leave_one_out(y).mean
