"""Kernels against their formulas, entry by entry; sums, products and multiples; and kernels as modules."""

import copy
import io

import mpmath
import pytest
import torch

from laplex import gp
from processes import (
    ENTRY,
    KERNEL,
    KERNELS,
    as_tensor,
    assert_close,
    every_kernel,
    exact_density,
    lifted,
    named_kernels,
    oscillator,
    seeded,
    uniform,
    with_noise,
)

SCALARS = [case for case in KERNELS if not any(isinstance(value, list) for value in case.parameters.values())]


def looped(case, t, s):
    """k(t_i, s_j), one by one, with 30 digits."""
    with mpmath.workdps(30):
        return as_tensor([[float(case.exact(one, other)) for other in s.tolist()] for one in t.tolist()])


# --- Formulas ---------------------------------------------------------------------------------------------------------


@every_kernel()
def test_the_matrix_is_the_formula(case):
    t, s = uniform(seeded(0), 6), torch.cat([uniform(seeded(1), 4), as_tensor([0.0, 1e-7, 1e-3, 200.0])])
    assert_close(case.kernel()(t, s), looped(case, t, s), ENTRY)


def test_parameters_in_float32_do_not_round_the_matrix():
    """SHO divides 2 pi by its period, which is no number of float32 even if the period is."""
    t = 100 * uniform(seeded(0), 6)
    rounded = gp.SHO(period=torch.tensor(0.5), quality=torch.tensor(1000.0))
    assert_close(rounded(t), gp.SHO(period=0.5, quality=1000.0)(t), ENTRY)


@every_kernel()
def test_one_argument_is_both(case):
    t = uniform(seeded(0), 7)
    kernel = case.kernel()
    assert torch.equal(kernel(t), kernel(t, t))
    assert_close(kernel(t), kernel(t).mT, 1e-15)


@every_kernel([case for case in KERNELS if "center" not in case.parameters])
def test_evaluate_takes_distances(case):
    t, s = uniform(seeded(0), 7), uniform(seeded(1), 5)
    kernel = case.kernel()
    assert torch.equal(kernel.evaluate((t[:, None] - s).abs()), kernel(t, s))


LAGS = {
    "integers": lambda t: t.long(),
    "negative ones": lambda t: -t,
    "an array": lambda t: t.numpy(),
    "a list": lambda t: t.tolist(),
    "half precision": lambda t: t.half(),
    "float32": lambda t: t.float(),
}


@every_kernel([case for case in KERNELS if "center" not in case.parameters])
@pytest.mark.parametrize("kind", LAGS)
def test_evaluate_takes_lags_of_any_kind(case, kind):
    """In the dtype of the lags, or torch's default for those that have none."""
    lags, kernel = torch.arange(4.0).double()[None], case.kernel()
    given = LAGS[kind](lags)
    floating = isinstance(given, torch.Tensor) and given.is_floating_point()
    dtype = given.dtype if floating else torch.float64 if kind == "an array" else torch.float32
    assert torch.equal(kernel.evaluate(given), kernel.evaluate(lags).to(dtype))


@named_kernels("sho", "matern52", "carma_3_1")
def test_evaluate_takes_numbers(case):
    kernel = case.kernel()
    got = kernel.evaluate(-2)
    assert got.shape == ()
    assert torch.equal(got, kernel.evaluate(torch.tensor([2.0]))[0])
    assert kernel.evaluate(torch.arange(4)).shape == (4,)


WRONG_LAGS = ["a", None, True, 1j, torch.ones(2) * 1j, torch.ones(2) > 0, torch.eye(2).to_sparse()]


@pytest.mark.parametrize("lag", WRONG_LAGS, ids=str)
def test_lags_that_are_no_numbers(lag):
    with pytest.raises(TypeError, match=r"laplex.gp.SHO.evaluate: `distance` must be a number or a dense tensor"):
        gp.SHO(1.0).evaluate(lag)


@every_kernel()
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_the_matrix_has_the_dtype_of_the_times(case, dtype):
    """Each kernel is computed in float64, and only sums and products of them are in that dtype."""
    t = torch.tensor([0.0, 0.1, 2.0, 150.0], dtype=dtype)
    for kernel in (case.kernel(), torch.tensor(2.0, dtype=torch.float64) * case.kernel()):
        assert kernel(t).dtype == dtype
        assert_close(kernel(t).double(), kernel(t.double()), 8 * torch.finfo(dtype).eps)


def test_parameters_for_other_batches_than_the_times():
    message = r"the leading dimensions of `t1` and `t2` must broadcast with the shape \(3,\) of the kernel's parameters"
    for kernel in (gp.Matern32(torch.ones(3)), gp.Linear(torch.ones(3)), gp.SHO(1.0) + gp.Matern32(torch.ones(3))):
        with pytest.raises(ValueError, match=message):
            kernel(torch.rand(2, 5))
    with pytest.raises(ValueError, match=r"the leading dimensions of `distance` .* \(3,\) of the kernel's.*\(2,\)"):
        gp.Matern32(torch.ones(3)).evaluate(torch.rand(2, 5, 5))
    assert gp.Matern32(torch.ones(3))(torch.rand(2, 1, 5)).shape == (2, 3, 5, 5)


@every_kernel()
def test_positive_semidefinite(case):
    values = torch.linalg.eigvalsh(case.kernel()(uniform(seeded(0), 40)))
    assert float(values[0]) >= -ENTRY * float(values[-1])


@every_kernel(SCALARS)
def test_derivatives_of_the_matrix_in_every_parameter(case):
    """The dense oracle of all gradients: autograd through it against differences with 60 digits."""
    t, s = 2.7, 4.1
    tensors = {name: value.requires_grad_() for name, value in case.tensors().items()}
    value = case.build(**tensors)(as_tensor([t]), as_tensor([s])).sum()
    got = torch.autograd.grad(value, list(tensors.values()))
    for name, bar in zip(tensors, got, strict=True):
        with mpmath.workdps(60):
            start = lifted(case.parameters)[name]
            want = mpmath.diff(lambda x, name=name: case.exact(t, s, **{name: x}), start, h=mpmath.mpf(10) ** -25)
        assert_close(bar, as_tensor(float(want)), 1e-11, float(value.detach()))


# --- Oscillators through critical damping -----------------------------------------------------------------------------


@pytest.mark.parametrize("step", [0.0, 1e-15, 1e-12, 1e-9, 1e-6, 1e-3, 0.1])
@pytest.mark.parametrize("sign", [-1, 1])
def test_any_quality_near_critical_damping(sign, step):
    quality = 0.5 + sign * step
    t = as_tensor([0.0, 0.01, 0.3, 1.0, 4.0, 15.0, 60.0])
    case = KERNEL["sho"]
    with mpmath.workdps(40):
        want = [float(case.exact(0.0, one, quality=mpmath.mpf(quality))) for one in t.tolist()]
    assert_close(case.kernel(quality=quality)(t[:1], t)[0], as_tensor(want), ENTRY)
    kernel = case.kernel(quality=quality)
    factor = gp.GaussianProcess(kernel, t, diag=0.1).dot_tril(torch.eye(len(t), dtype=torch.float64))
    assert_close(factor @ factor.mT, with_noise(kernel, t, 0.1), 1e-13)  # what the states say


def test_omega_in_place_of_the_period():
    t = uniform(seeded(0), 8)
    assert_close(gp.SHO(omega=1.5, quality=2.0)(t), gp.SHO(2 * torch.pi / 1.5, 2.0)(t), 1e-14)


# --- CARMA and state-space models -------------------------------------------------------------------------------------


def test_a_carma_of_one_is_exponential():
    t = uniform(seeded(0), 8)
    assert_close(gp.CARMA(as_tensor([0.25]), as_tensor([0.7]))(t), gp.Exponential(4.0, 0.7 / 0.5**0.5)(t), 1e-14)


def test_a_carma_of_two_is_an_oscillator():
    """y'' + (w / q) y' + w^2 y = e has the variance q / (2 w^3)."""
    t, w, q = uniform(seeded(0), 8), 1.3, 2.2
    want = gp.SHO(omega=w, quality=q, sigma=(q / (2 * w**3)) ** 0.5)(t)
    assert_close(gp.CARMA(as_tensor([w * w, w / q]), as_tensor([1.0]))(t), want, 1e-13)


@pytest.mark.parametrize("beta", [[0.3], [0.1, 0.5], [0.2, 0.4, 0.1]])
@pytest.mark.parametrize("alpha", [[1.4, 2.3, 1.5], [0.5, 1.9, 2.2, 1.4]])
def test_carma_is_the_sum_over_roots(alpha, beta):
    case = KERNEL["carma_3_1"]
    t = as_tensor([0.0, 0.1, 1.0, 7.0])
    with mpmath.workdps(40):
        want = [float(case.exact(0.0, one, **lifted({"alpha": alpha, "beta": beta}))) for one in t.tolist()]
    assert_close(gp.CARMA(as_tensor(alpha), as_tensor(beta))(t[:1], t)[0], as_tensor(want), 1e-12)


def test_carma_with_equal_roots():
    """The sum over roots divides by 0; states do not care. (s + 1)^2 is an oscillator with quality 1/2."""
    t = uniform(seeded(0), 8)
    want = gp.SHO(omega=1.0, quality=0.5, sigma=0.5)(t)
    assert_close(gp.CARMA(as_tensor([1.0, 2.0]), as_tensor([1.0]))(t), want, 1e-12)


def test_state_spaces_of_known_kernels():
    """x' = F x + noise for Matern kernels, from Hartikainen and Sarkka (2010)."""
    t, rate = uniform(seeded(0), 8), 3**0.5 / 2.1
    F, Q = as_tensor([[0.0, 1.0], [-(rate**2), -2 * rate]]), as_tensor([[0.0, 0.0], [0.0, 4 * rate**3 * 1.4**2]])
    assert_close(gp.StateSpace(F, Q, as_tensor([1.0, 0.0]))(t), gp.Matern32(2.1, 1.4)(t), 1e-12)
    rate = 5**0.5 / 1.9
    F = as_tensor([[0.0, 1.0, 0.0], [0.0, 0.0, 1.0], [-(rate**3), -3 * rate**2, -3 * rate]])
    Q = torch.zeros(3, 3, dtype=torch.float64)
    Q[2, 2] = 16 / 3 * rate**5 * 0.6**2
    assert_close(gp.StateSpace(F, Q, as_tensor([1.0, 0.0, 0.0]))(t), gp.Matern52(1.9, 0.6)(t), 1e-12)


def test_one_state_is_exponential():
    t = uniform(seeded(0), 8)
    one = gp.StateSpace(as_tensor([[-0.5]]), as_tensor([[1.0]]), as_tensor([1.0]))
    assert_close(one(t), gp.Exponential(2.0)(t), 1e-14)


# --- Algebra ----------------------------------------------------------------------------------------------------------


def test_sums_products_and_multiples():
    t, s = uniform(seeded(0), 6), uniform(seeded(1), 5)
    one, two, line = gp.Matern32(1.3), gp.SHO(2.0, 3.0), gp.Linear(0.3)
    assert torch.equal((one + two)(t, s), one(t, s) + two(t, s))
    assert torch.equal((one * two)(t, s), one(t, s) * two(t, s))
    assert torch.equal((one * line)(t, s), one(t, s) * line(t, s))
    assert torch.equal((2.5 * one)(t, s), 2.5 * one(t, s))
    assert torch.equal((one * 3)(t, s), 3 * one(t, s))
    assert torch.equal((as_tensor(0.5) * (one + line))(t, s), 0.5 * (one(t, s) + line(t, s)))


def test_terms_of_nested_sums():
    one, two, three = gp.Matern32(1.3), gp.SHO(2.0, 3.0), gp.Exponential(1.0)
    assert (one + (two + three)).terms() == [one, two, three]
    assert (one * two).terms() != [one, two]


# --- Batches ----------------------------------------------------------------------------------------------------------


def test_batches_of_parameters_and_times():
    scale, sigma = as_tensor([0.5, 1.0, 2.0]), as_tensor([[1.0], [2.0]])
    kernel = gp.Matern52(scale, sigma)
    assert kernel.batch_shape == (2, 3)
    t = uniform(seeded(0), 2, 3, 5)
    for i in range(2):
        for j in range(3):
            assert_close(kernel(t)[i, j], gp.Matern52(scale[j], sigma[i, 0])(t[i, j]), 1e-15)
            assert_close(kernel(t[0, 0])[i, j], gp.Matern52(scale[j], sigma[i, 0])(t[0, 0]), 1e-15)


@pytest.mark.parametrize("name", ["carma_3_1", "state_space"])
def test_batches_of_systems(name):
    case, t = KERNEL[name], uniform(seeded(0), 5)
    single = case.tensors()
    kernel = case.build(**{key: torch.stack([value, value]) for key, value in single.items()})
    assert kernel.batch_shape == (2,)
    assert_close(kernel(t)[1], case.kernel()(t), 1e-14)


def test_batch_shapes_of_sums():
    kernel = gp.Matern32(as_tensor([1.0, 2.0])) + as_tensor([[1.0], [2.0], [3.0]]) * gp.Exponential(1.0)
    assert kernel.batch_shape == (3, 2)
    assert gp.Matern32(1.0).batch_shape == ()


# --- Modules ----------------------------------------------------------------------------------------------------------


def test_reprs_show_parameters():
    assert repr(gp.Matern32(2.0, sigma=0.5)) == "Matern32(scale=2, sigma=0.5)"
    assert repr(gp.SHO(as_tensor(3.0), as_tensor([1.0, 2.0]))) == "SHO(period=3, quality=tensor(2,), sigma=1)"
    pair, square = torch.ones(2), torch.eye(2)
    assert repr(gp.CARMA(pair, pair[:1])) == "CARMA(alpha=tensor(2,), beta=1)"
    text = "StateSpace(feedback=tensor(2, 2), noise=tensor(2, 2), readout=tensor(2,))"
    assert repr(gp.StateSpace(-square, square, pair)) == text
    assert "value=tensor(2,), slope=tensor(2,)" in repr(gp.Bands(gp.Matern32(1.0), pair, pair))
    shown = repr(2.0 * gp.Exponential(1.0) + gp.Cosine(3.0) * gp.Constant())
    for part in ("Sum(", "Scale(", "factor=2", "Exponential(scale=1, sigma=1)", "Product(", "Constant(sigma=1)"):
        assert part in shown


def test_parameters_are_those_given_as_parameters():
    scale, factor = (torch.nn.Parameter(as_tensor(value)) for value in (1.5, 0.3))
    kernel = factor * gp.Matern32(scale, sigma=as_tensor(2.0)) + gp.SHO(3.0, torch.nn.Parameter(as_tensor(4.0)))
    named = dict(kernel.named_parameters())
    assert set(named) == {"left.factor", "left.kernel.scale", "right.quality"}
    assert named["left.kernel.scale"] is scale
    assert set(kernel.state_dict()) == {*named, "left.kernel.sigma"}


def test_state_dicts_load():
    def fresh(value):
        return gp.Matern32(torch.nn.Parameter(as_tensor(value)), as_tensor(value)) + gp.Exponential(1.0)

    one, two, t = fresh(1.5), fresh(9.0), uniform(seeded(0), 5)
    memory = io.BytesIO()
    torch.save(one.state_dict(), memory)
    memory.seek(0)
    two.load_state_dict(torch.load(memory))
    assert torch.equal(one(t), two(t))


@named_kernels("sum", "carma_3_1", "state_space", "trend")
def test_kernels_are_copied_and_pickled(case):
    kernel, t = case.build(**case.tensors()), uniform(seeded(0), 5)
    memory = io.BytesIO()
    torch.save(kernel, memory)
    memory.seek(0)
    for other in (copy.deepcopy(kernel), torch.load(memory, weights_only=False)):
        assert torch.equal(other(t), kernel(t))


def test_to_moves_tensors():
    kernel = gp.Matern32(torch.nn.Parameter(as_tensor(1.5)), as_tensor(2.0)).to(torch.float32)
    assert kernel.scale.dtype == kernel.sigma.dtype == torch.float32
    assert gp.Matern32(as_tensor(1.5)).to("meta").scale.device.type == "meta"


def test_kernels_train():
    t = uniform(seeded(0), 60)
    y = gp.GaussianProcess(gp.Matern32(2.0, 1.5), t, yerr=0.2).sample(generator=seeded(1))
    kernel = gp.Matern32(torch.nn.Parameter(as_tensor(0.7)), torch.nn.Parameter(as_tensor(0.7)))
    optimizer = torch.optim.LBFGS(kernel.parameters(), max_iter=50, line_search_fn="strong_wolfe")

    def loss():
        optimizer.zero_grad()
        value = -gp.GaussianProcess(kernel, t, yerr=0.2).log_likelihood(y)
        value.backward()
        return value

    before = loss().item()
    optimizer.step(loss)
    assert loss().item() < before - 1
    assert max(float(one.grad.abs()) for one in kernel.parameters()) < 1e-3  # an optimum


# --- Far below critical damping ---------------------------------------------------------------------------------------


SMALL = [0.3, 0.0999, 1e-2, 1e-4, 1e-8]


def small_quality(quality):
    return oscillator("small", quality)


@pytest.mark.parametrize("quality", SMALL)
def test_small_qualities_keep_their_digits(quality):
    """The slow rate is w^2 / (a + v), not a - v. The times are as long as the kernel."""
    case = small_quality(quality)
    t = uniform(seeded(5), 9) / quality
    y, kernel = torch.cos(quality * t), case.kernel()
    with mpmath.workdps(50):
        exact = exact_density(case, t, 0.01, y)
        entries = [[float(case.exact(a, b)) for b in t.tolist()] for a in t.tolist()]
    assert_close(kernel(t), as_tensor(entries), 1e-13)
    got = gp.GaussianProcess(kernel, t, diag=0.01).log_likelihood(y)
    assert float(got) == pytest.approx(float(exact), rel=1e-12)


@pytest.mark.parametrize("quality", SMALL)
def test_gradients_of_small_qualities(quality):
    case = small_quality(quality)
    t = uniform(seeded(5), 9) / quality
    y, x = torch.cos(quality * t), as_tensor(quality).requires_grad_()
    value = gp.GaussianProcess(case.kernel(quality=x), t, diag=0.01).log_likelihood(y)
    got = torch.autograd.grad(value, x)[0]
    with mpmath.workdps(50):
        low, high = (mpmath.mpf(quality) * (1 + sign * mpmath.mpf(10) ** -20) for sign in (-1, 1))
        values = [exact_density(case, t, 0.01, y, quality=one) for one in (low, high)]
        want = float((values[1] - values[0]) / (high - low))
    assert float(got) == pytest.approx(want, rel=1e-10)


def test_slopes_of_small_qualities():
    """Band 1 observes the slope, whose covariances are derivatives of the kernel."""
    case, bands = small_quality(0.05), as_tensor([[1.0, 0.0], [0.0, 1.0]])
    t = torch.tensor([0.0, 0.3, 1.0, 2.5], dtype=torch.float64)
    band = torch.tensor([0, 1, 0, 1])
    y = torch.cos(t)
    inner, outer = (case.kernel(quality=as_tensor(value)) for value in (0.05, [0.05, 0.5]))
    got = gp.GaussianProcess(gp.Bands(inner, *bands), t, diag=0.1, band=band).log_likelihood(y)
    want = gp.GaussianProcess(gp.Bands(outer, *bands), t.expand(2, -1), diag=0.1, band=band).log_likelihood(y)
    assert_close(got, want[0], 1e-11)
