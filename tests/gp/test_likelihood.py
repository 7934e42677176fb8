"""The log likelihood of every kernel at every set of times, in every way, against the dense density."""

import mpmath
import pytest
import torch

import laplex
from laplex import gp
from processes import (
    ENTRY,
    FEW,
    KERNEL,
    allowance,
    as_tensor,
    assert_close,
    condition_number,
    density,
    every_kernel,
    every_times,
    exact_density,
    named_kernels,
    named_times,
    observed,
    seeded,
    size_of,
    uniform,
    with_noise,
)

pytestmark = pytest.mark.filterwarnings("ignore::laplex.PrecisionWarning")


def assert_likelihood(kernel, t, diag, y, case=None):
    matrix = with_noise(kernel, t, diag)
    got = gp.GaussianProcess(kernel, t, diag=diag).log_likelihood(y)
    assert_close(got, density(matrix, y), allowance(matrix, case, t), size_of(matrix, y))


@every_times()
@every_kernel()
def test_every_kernel_at_every_times(case, times, path):
    t = times()
    diag, y = observed(t)
    assert_likelihood(case.kernel(times.origin), t, diag, y, case)


@named_times("unsorted", "clusters", "equal_and_close")
@named_kernels(*FEW)
def test_little_noise(case, times, path):
    """The condition number is as large as 1e9, and errors grow with it, not faster."""
    t = times()
    diag, y = observed(t)
    assert_likelihood(case.kernel(), t, 1e-7 * diag, y, case)


@pytest.mark.parametrize("noise", [1e-2, 1e-8])
@named_kernels("exponential", "matern32", "matern52", "sho_just_above", "sho", "celerite", "carma_3_1", "product")
def test_against_fifty_digits(case, noise, path):
    """The dense density in float64 has rounding errors of its own; this one has none."""
    t = uniform(seeded(5), 9)
    y = torch.cos(3 * t)
    with mpmath.workdps(50):
        exact = exact_density(case, t, noise, y)
    got = gp.GaussianProcess(case.kernel(), t, diag=noise).log_likelihood(y)
    matrix = with_noise(case.kernel(), t, noise)
    assert_close(got, as_tensor(float(exact)), allowance(matrix), size_of(matrix, y))


# --- Arguments --------------------------------------------------------------------------------------------------------


def test_yerr_is_the_root_of_diag(path):
    t = uniform(seeded(0), 20)
    diag, y = observed(t)
    kernel = KERNEL["sum"].kernel()
    one, other = (gp.GaussianProcess(kernel, t, **noise) for noise in ({"diag": diag}, {"yerr": diag.sqrt()}))
    assert_close(one.log_likelihood(y), other.log_likelihood(y), 1e-14)


def test_a_number_as_noise(path):
    t = uniform(seeded(0), 20)
    _, y = observed(t)
    assert_likelihood(KERNEL["sho"].kernel(), t, 0.3, y)


@pytest.mark.parametrize("name", ["exponential", "matern52", "sho", "carma_3_1", "trend"])
def test_no_noise_at_all(name, path):
    """With distinct times the kernels that are not smooth need no noise."""
    t = torch.arange(8, dtype=torch.float64) * 1.3
    assert_likelihood(KERNEL[name].kernel(), t, 0.0, torch.cos(t))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_lower_precision_in_float64_inside(dtype, path):
    """Inputs are what they are, rounded; all the rest is in float64, and the result has the dtype of y, or float32."""
    t = uniform(seeded(2), 24).to(dtype)
    diag, y = (part.to(dtype) for part in observed(t.double()))
    kernel = KERNEL["sum"].kernel()
    got = gp.GaussianProcess(kernel, t, diag=diag).log_likelihood(y)
    want = density(with_noise(kernel, t.double(), diag.double()), y.double())
    assert got.dtype == torch.float32  # in half precision a sum of many terms would overflow
    assert got == want.to(torch.float32)


def test_float32_parameters(path):
    """Parameters are rounded to float32 once, and then exact."""
    t = uniform(seeded(2), 24)
    diag, y = observed(t)
    low = torch.tensor(1.7, dtype=torch.float32)
    got = gp.GaussianProcess(gp.Matern32(low, low), t, diag=diag).log_likelihood(y)
    wide = gp.Matern32(low.double(), low.double())
    assert_close(got, density(with_noise(wide, t, diag), y), 1e-12)


def test_strided_times_and_observations(path):
    t, y = uniform(seeded(2), 20, 3)[:, 1], uniform(seeded(3), 40)[::2]
    assert_likelihood(KERNEL["sum"].kernel(), t, uniform(seeded(4), 20, 2)[:, 0] + 0.1, y)


# --- Means ------------------------------------------------------------------------------------------------------------


def test_a_mean_is_subtracted(path):
    t = uniform(seeded(0), 20)
    diag, y = observed(t)
    kernel, line = KERNEL["matern32"].kernel(), torch.nn.Linear(1, 1).double()
    means = {
        "number": (1.5, 1.5),
        "integer": (2, 2.0),
        "tensor": (t.cos(), t.cos()),
        "scalar tensor": (torch.tensor(0.3), 0.3),
        "function": (torch.sin, t.sin()),
        "module": (lambda x: line(x[..., None])[..., 0], line(t[..., None])[..., 0]),
    }
    for given, values in means.values():
        got = gp.GaussianProcess(kernel, t, diag=diag, mean=given).log_likelihood(y)
        matrix = with_noise(kernel, t, diag)
        tolerance = 1e-7 if isinstance(given, torch.Tensor) and given.dtype == torch.float32 else allowance(matrix)
        assert_close(got, density(matrix, y - values), tolerance, size_of(matrix, y - values))


# --- Batches ----------------------------------------------------------------------------------------------------------


@named_kernels(*FEW)
def test_a_batch_is_one_by_one(case, path):
    t = uniform(seeded(6), 2, 3, 17)
    diag, y = observed(t)
    got = gp.GaussianProcess(case.kernel(), t, diag=diag).log_likelihood(y)
    assert got.shape == (2, 3)
    for i in range(2):
        for j in range(3):
            matrix = with_noise(case.kernel(), t[i, j], diag[i, j])
            want = density(matrix, y[i, j])
            assert_close(got[i, j], want, allowance(matrix), size_of(matrix, y[i, j]))


@named_kernels("exponential", "sum", "product")
def test_threads_change_no_bit(case):
    """Series are shared among threads; each is computed by one."""
    t = uniform(seeded(6), 40, 60).requires_grad_()
    diag, y = observed(t.detach())
    results = []
    for threads in (1, 4):
        torch.set_num_threads(threads)
        process = gp.GaussianProcess(case.kernel(), t, diag=diag)
        value = process.log_likelihood(y)
        results.append((value, *torch.autograd.grad(value.sum(), t), process.predict(y)))
    torch.set_num_threads(1)
    assert all(torch.equal(one, two) for one, two in zip(*results, strict=True))


BATCHED = {
    "exponential": lambda x: gp.Exponential(x, x.sqrt()),
    "matern52": lambda x: gp.Matern52(x, x.sqrt()),
    "sho_through_critical": lambda x: gp.SHO(3.0, x / 2, 1.3),
    "carma": lambda x: gp.CARMA(torch.stack([x, x + 1], -1), torch.tensor([1.0, 0.2]).double()),
    "sum": lambda x: gp.Matern32(x) + 0.5 * gp.Cosine(2.0),
    "multiple": lambda x: x * gp.Matern32(2.0),
    "product": lambda x: gp.Matern32(x) * gp.Matern52(3.0),
    "linear": lambda x: gp.Linear(0.3, x) + gp.Exponential(1.0),
    "rotation": lambda x: gp.Rotation(2.0, x, 0.3, 0.5),
}


@pytest.mark.parametrize("name", BATCHED)
def test_batches_of_parameters(name, path):
    """Parameters (3,) for times (n,) and for times (3, n)."""
    x = torch.tensor([0.6, 1.0, 2.5], dtype=torch.float64)
    for t in (uniform(seeded(7), 19), uniform(seeded(7), 3, 19)):
        diag, y = observed(t)
        got = gp.GaussianProcess(BATCHED[name](x), t, diag=diag).log_likelihood(y)
        assert got.shape == (3,)
        for i in range(3):
            row = (part[i] if t.dim() == 2 else part for part in (t, diag, y))
            t_i, diag_i, y_i = row
            matrix = with_noise(BATCHED[name](x[i]), t_i, diag_i)
            assert_close(got[i], density(matrix, y_i), allowance(matrix), size_of(matrix, y_i))


def test_one_noise_and_one_y_for_all_of_a_batch(path):
    t = uniform(seeded(8), 4, 15)
    diag, y = observed(t[0])
    kernel = KERNEL["sum"].kernel()
    got = gp.GaussianProcess(kernel, t, diag=diag).log_likelihood(y)
    for i in range(4):
        matrix = with_noise(kernel, t[i], diag)
        assert_close(got[i], density(matrix, y), allowance(matrix), size_of(matrix, y))


def ragged(sizes=(5, 1, 12, 8)):
    """Times, noise and observations of series of different sizes."""
    series = [uniform(seeded(size), size) for size in sizes]
    noise, y = zip(*(observed(t, seed=i) for i, t in enumerate(series)))
    return series, list(noise), list(y)


@named_kernels(*FEW)
def test_series_of_different_sizes(case, path):
    t, diag, y = ragged()
    got = gp.GaussianProcess(case.kernel(), t, diag=diag).log_likelihood(y)
    for i in range(len(t)):
        matrix = with_noise(case.kernel(), t[i], diag[i])
        assert_close(got[i], density(matrix, y[i]), allowance(matrix), size_of(matrix, y[i]))


def test_lists_of_single_points(path):
    """A list says that there are two series, whatever their sizes; a tensor (2, 1) is refused as a likely mistake."""
    t, diag, y = ragged((1, 1))
    got = gp.GaussianProcess(gp.Matern32(1.0), t, diag=diag).log_likelihood(y)
    want = torch.cat([density(with_noise(gp.Matern32(1.0), t[i], diag[i]), y[i])[None] for i in range(2)])
    assert_close(got, want, 1e-12)


def test_different_sizes_and_parameters(path):
    t, diag, y = ragged()
    scale = torch.tensor([0.5, 1.0, 2.0, 3.0], dtype=torch.float64)
    got = gp.GaussianProcess(gp.Matern52(scale), t, yerr=[part.sqrt() for part in diag], mean=0.5).log_likelihood(y)
    for i in range(len(t)):
        matrix = with_noise(gp.Matern52(scale[i]), t[i], diag[i])
        assert_close(got[i], density(matrix, y[i] - 0.5), allowance(matrix), size_of(matrix, y[i] - 0.5))


# --- Bands ------------------------------------------------------------------------------------------------------------


def test_bands_scale_the_process(path):
    t = uniform(seeded(9), 25)
    diag, y = observed(t)
    band = torch.arange(25) % 3
    value = torch.tensor([1.0, -0.5, 2.0], dtype=torch.float64)
    kernel = gp.Matern32(2.0, 1.2)
    matrix = value[band][:, None] * kernel(t) * value[band] + torch.diag(diag)
    got = gp.GaussianProcess(gp.Bands(kernel, value), t, diag=diag, band=band).log_likelihood(y)
    assert_close(got, density(matrix, y), allowance(matrix), size_of(matrix, y))


# --- Conditioning -----------------------------------------------------------------------------------------------------


def test_a_nearly_singular_matrix_warns():
    t = torch.linspace(0, 1e-3, 30, dtype=torch.float64)
    process = gp.GaussianProcess(gp.Matern32(1e3), t, diag=1e-13)
    with pytest.warns(laplex.PrecisionWarning, match="nearly singular"):
        process.log_likelihood(torch.sin(t))


def test_one_state_needs_no_subtraction():
    """Of one state, the pivots lose nothing: the filter has all digits where a Cholesky factor has few."""
    t, noise = torch.arange(12, dtype=torch.float64) * 1e-9, 1e-9
    y = torch.cos(torch.arange(12, dtype=torch.float64))
    case = KERNEL["exponential"]
    with mpmath.workdps(50):
        exact = float(exact_density(case, t, noise, y))
    got = gp.GaussianProcess(case.kernel(), t, diag=noise).log_likelihood(y)
    matrix = with_noise(case.kernel(), t, noise)
    assert condition_number(matrix) * ENTRY > 1e-4
    assert_close(got, as_tensor(exact), 1e-9, size_of(matrix, y))
