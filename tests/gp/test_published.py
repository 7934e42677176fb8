"""The cases that celerite2, tinygp and smolgp test themselves by, for the kernels that laplex has.

published.json has what tinygp and smolgp computed, and make_published.py wrote it. celerite2 is asked here, where it is
installed (the extra ``bench``).
"""

import functools
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from laplex import gp
from processes import allowance, as_tensor, assert_close, size_of, with_noise

PERIOD = 83.3
SHO1, SHO2 = (0.0195, 7.63, 0.59), (0.0023, 2**-0.5, 0.329)


@functools.cache
def published():
    return json.loads(Path(__file__).with_name("published.json").read_text())


def sho(omega, quality, sigma=1.0):
    return gp.SHO(omega=omega, quality=quality, sigma=sigma)


def carma(alpha, beta):
    return gp.CARMA(as_tensor(alpha), as_tensor(beta))


# --- tinygp -----------------------------------------------------------------------------------------------------------

TINYGP = {
    "matern32": gp.Matern32(sigma=1.8, scale=1.5),
    "matern32_unit": gp.Matern32(1.5),
    "matern52": gp.Matern52(sigma=1.8, scale=1.5),
    "celerite": gp.Celerite(1.1, 0.8, 0.9, 0.1),
    "sho_critical": sho(1.5, 0.5, 1.3),
    "sho": sho(1.5, 3.5, 1.3),
    "sho_overdamped": sho(1.5, 0.1, 1.3),
    "exponential": gp.Exponential(sigma=1.8, scale=1.5),
    "sum": 1.5 * gp.Matern52(1.5) + 0.3 * gp.Exponential(1.5),
    "product": gp.Matern52(1.5) * sho(1.5, 0.1),
    "multiple_of_product": 1.5 * gp.Matern52(1.5) * gp.Celerite(1.1, 0.8, 0.9, 0.1),
    "cosine": gp.Cosine(sigma=1.8, period=1.5),
    "carma_complex": carma([1.0, 1.2], [1.0, 3.0]),
    "carma_real": carma([0.1, 1.1], [1.0, 3.0]),
    "carma_1": carma([0.01], [0.3]),
    "two_materns": gp.Matern32(sigma=1.8, scale=1.5) + gp.Matern52(sigma=0.9, scale=0.7),
    "product_of_sum": (gp.Cosine(1.0) + gp.Cosine(2.0)) * gp.Exponential(1.0),
    "sum_times_sum": (gp.Cosine(1.0) + gp.Cosine(2.0)) * (gp.Exponential(0.5) + gp.Matern32(1.0)),
}


def tinygp_data():
    random = np.random.default_rng(84930)
    x, t = (np.sort(random.uniform(-3, 3, size)) for size in (50, 12))
    return as_tensor(x), torch.sin(as_tensor(x)), as_tensor(t)


def assert_published(kernel, x, y, t, diag, want):
    """Their errors are of the size of ours, so twice as much is allowed."""
    process, matrix = gp.GaussianProcess(kernel, x, diag=diag), with_noise(kernel, x, diag)
    tolerance = 2 * allowance(matrix)
    mean, variance = process.predict(y, t, return_var=True)
    assert_close(process.log_likelihood(y), as_tensor(want["likelihood"]), tolerance, size_of(matrix, y))
    assert_close(mean, as_tensor(want["mean"]), tolerance, y.abs().max())
    assert_close(variance, as_tensor(want["variance"]), tolerance, kernel(x[:1])[0, 0])


@pytest.mark.parametrize("name", TINYGP)
def test_tinygp(name):
    assert_published(TINYGP[name], *tinygp_data(), 0.1, published()["tinygp"][name])


def test_carma_as_other_kernels():
    """test_carma of tinygp: the same likelihood with Exp and Celerite kernels."""
    x, y, _ = tinygp_data()
    pairs = [
        (carma([0.01], [0.1]), gp.Exponential(100.0, 0.5**0.5)),
        (carma([1.0, 1.2], [1.0, 3.0]), gp.Celerite(25 / 6, -2.5, 0.6, 0.8)),
        (
            carma([0.1, 1.1], [1.0, 3.0]),
            gp.Exponential(1.0, (400 / 99) ** 0.5) + gp.Exponential(10.0, (455 / 99) ** 0.5),
        ),
    ]
    for one, other in pairs:
        got, want = (gp.GaussianProcess(kernel, x, diag=0.1).log_likelihood(y) for kernel in (one, other))
        assert_close(got, want, 1e-12)


# --- smolgp -----------------------------------------------------------------------------------------------------------

SMOLGP = {
    "exponential": gp.Exponential(PERIOD, 2.1),
    "matern32": gp.Matern32(PERIOD, 2.1),
    "matern52": gp.Matern52(PERIOD, 2.1),
    "cosine": gp.Cosine(PERIOD, 2.1),
    "sho": gp.SHO(PERIOD, 5.3, 2.1),
    "sho_critical": gp.SHO(PERIOD, 0.5, 2.1),
    "sho_overdamped": gp.SHO(PERIOD, 0.1, 2.1),
    "sum": sho(*SHO1) + sho(*SHO2) + gp.Matern52(600.0, 5.3),
    "product": sho(*SHO1) * sho(*SHO2) * gp.Matern52(600.0, 5.3),
}


@pytest.mark.parametrize("name", SMOLGP)
def test_smolgp(name):
    x, t = (torch.linspace(*bounds, dtype=torch.float64) for bounds in ((0, 1000, 50), (-100, 1100, 25)))
    y = 2 * torch.sin(x / 30) + 0.3 * torch.cos(x / 7)
    assert_published(SMOLGP[name], x, y, t, 0.09, published()["smolgp"][name])


# --- celerite2 --------------------------------------------------------------------------------------------------------


def spectral(S0, w0, Q):
    """An oscillator by the power of its noise: sigma^2 = S0 w0 Q."""
    return gp.SHO(omega=w0, quality=Q, sigma=(S0 * w0 * Q) ** 0.5)


def real(a, c):
    return gp.Exponential(1 / c, a**0.5)


CELERITE = {  # test_terms of celerite2, and kernels of its own: how both libraries write them
    "real": (lambda terms: terms.RealTerm(a=2.5, c=1.1123), real(2.5, 1.1123)),
    "two_reals": (
        lambda terms: terms.RealTerm(a=12.345, c=1.5) + terms.RealTerm(a=0.5, c=1.1234),
        real(12.345, 1.5) + real(0.5, 1.1234),
    ),
    "without_b": (lambda terms: terms.ComplexTerm(a=10.0, b=0.0, c=5.6, d=2.1), gp.Celerite(10.0, 0.0, 5.6, 2.1)),
    "complex": (lambda terms: terms.ComplexTerm(a=7.435, b=0.5, c=1.102, d=1.05), gp.Celerite(7.435, 0.5, 1.102, 1.05)),
    "sho_overdamped": (lambda terms: terms.SHOTerm(S0=1.1, Q=0.1, w0=1.2), spectral(1.1, 1.2, 0.1)),
    "sho": (lambda terms: terms.SHOTerm(S0=1.1, Q=2.5, w0=1.2), spectral(1.1, 1.2, 2.5)),
    "sum": (
        lambda terms: terms.SHOTerm(S0=1.1, Q=2.5, w0=1.2) + terms.RealTerm(a=1.345, c=2.4),
        spectral(1.1, 1.2, 2.5) + real(1.345, 2.4),
    ),
    "product": (
        lambda terms: terms.SHOTerm(S0=1.1, Q=2.5, w0=1.2) * terms.RealTerm(a=1.345, c=2.4),
        spectral(1.1, 1.2, 2.5) * real(1.345, 2.4),
    ),
    "product_of_oscillators": (
        lambda terms: terms.SHOTerm(S0=1.1, Q=2.5, w0=1.2) * terms.SHOTerm(S0=0.3, Q=1.5, w0=3.2),
        spectral(1.1, 1.2, 2.5) * spectral(0.3, 3.2, 1.5),
    ),
    "rotation": (
        lambda terms: terms.RotationTerm(sigma=1.2, period=3.1, Q0=1.2, dQ=0.4, f=0.7),
        gp.Rotation(3.1, 1.2, 0.4, 0.7, 1.2),
    ),
}


@pytest.fixture(scope="module")
def celerite2():
    return pytest.importorskip("celerite2")


def celerite_data():
    """The fixture of test_celerite2.py."""
    random = np.random.RandomState(40582)
    x, t = np.sort(random.uniform(0, 10, 50)), np.sort(random.uniform(-1, 12, 100))
    return x, random.uniform(0.1, 0.3, len(x)), np.sin(x), t


@pytest.mark.parametrize("mean", [0.0, 10.5])
@pytest.mark.parametrize("name", CELERITE)
def test_celerite2(name, mean, celerite2):
    term, kernel = CELERITE[name][0](celerite2.terms), CELERITE[name][1]
    x, diag, y, t = celerite_data()
    theirs = celerite2.GaussianProcess(term, t=x, diag=diag, mean=mean)
    ours = gp.GaussianProcess(kernel, as_tensor(x), diag=as_tensor(diag), mean=mean)
    observed = as_tensor(y)
    matrix = with_noise(kernel, as_tensor(x), as_tensor(diag))
    tolerance, size = max(1e-11, 2 * allowance(matrix)), float(matrix.max())
    largest = max(1.0, mean)

    assert_close(kernel(as_tensor(x)), as_tensor(term.get_value(x[:, None] - x)), 1e-13)
    likelihood = as_tensor(float(theirs.log_likelihood(y)))
    assert_close(ours.log_likelihood(observed), likelihood, tolerance, size_of(matrix, observed - mean))
    columns = np.stack([y, np.cos(x), x**2], -1)
    for values in (y, columns):
        assert_close(ours.apply_inverse(as_tensor(values)), as_tensor(theirs.apply_inverse(values)), tolerance)
        assert_close(ours.dot_tril(as_tensor(values)), as_tensor(theirs.dot_tril(values)), tolerance)
    given = ours.condition(observed)
    for times in (None, t):
        conditional, new = theirs.condition(y, t=times), None if times is None else as_tensor(times)
        assert_close(given.mean(new), as_tensor(conditional.mean), tolerance, largest)
        assert_close(given.variance(new), as_tensor(conditional.variance), tolerance, size)
        assert_close(given.covariance(new), as_tensor(conditional.covariance), tolerance, size)


def test_celerite2_predicts_terms(celerite2):
    """test_predict_kernel: the parts of a sum."""
    x, diag, y, t = celerite_data()
    one, two = (celerite2.terms.SHOTerm(S0=S0, w0=w0, Q=Q) for S0, w0, Q in ((1.0, 0.5, 3.0), (0.3, 0.1, 0.1)))
    theirs = celerite2.GaussianProcess(one + two, t=x, diag=diag)
    first, second = spectral(1.0, 0.5, 3.0), spectral(0.3, 0.1, 0.1)
    given = gp.GaussianProcess(first + second, as_tensor(x), diag=as_tensor(diag)).condition(as_tensor(y))
    for term, kernel in ((one, first), (two, second)):
        for times in (None, t):
            want = as_tensor(theirs.condition(y, t=times, kernel=term).mean)
            assert_close(given.mean(None if times is None else as_tensor(times), kernel=kernel), want, 1e-11, 1.0)


def test_the_matrices_of_celerite2(celerite2):
    """get_matrices, by which its operations are tested: 100 points, and three columns."""
    random = np.random.default_rng(721)
    x = np.sort(random.uniform(0, 10, 100))
    columns = as_tensor(np.stack([np.sin(x), np.cos(x), x**2], -1))
    diag = random.uniform(0.1, 0.3, 100)
    theirs = celerite2.GaussianProcess(celerite2.terms.SHOTerm(S0=5.0, w0=0.1, Q=3.45), t=x, diag=diag)
    ours = gp.GaussianProcess(spectral(5.0, 0.1, 3.45), as_tensor(x), diag=as_tensor(diag))
    assert_close(ours.apply_inverse(columns), as_tensor(theirs.apply_inverse(columns.numpy())), 1e-11)
    assert_close(ours.dot_tril(columns), as_tensor(theirs.dot_tril(columns.numpy())), 1e-11)


def test_a_mean_as_in_celerite2(celerite2):
    x, diag, y, t = celerite_data()
    term = celerite2.terms.SHOTerm(S0=1.0, w0=0.5, Q=3.0)
    theirs = celerite2.GaussianProcess(term, t=x, diag=diag, mean=lambda x: 2 * x)
    ours = gp.GaussianProcess(spectral(1.0, 0.5, 3.0), as_tensor(x), diag=as_tensor(diag), mean=lambda x: 2 * x)
    for times in (None, t):
        for include in (True, False):
            want = as_tensor(theirs.condition(y, t=times, include_mean=include).mean)
            new = None if times is None else as_tensor(times)
            assert_close(ours.predict(as_tensor(y), new, include_mean=include), want, 1e-11, 20.0)
