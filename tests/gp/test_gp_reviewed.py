"""Faults that readers of the code found: foreign strides, modes of torch, bands in products, states that change."""

import pytest
import torch

from laplex import gp


def times(n=30, seed=0):
    torch.manual_seed(seed)
    return 10 * torch.rand(n).double(), torch.randn(n).double()


def dense(kernel, t, y, diag=0.1):
    matrix = kernel(t) + diag * torch.eye(len(t)).double()
    return torch.distributions.MultivariateNormal(torch.zeros_like(y), matrix).log_prob(y)


def close(one, other):
    torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


# --- Memory -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("terms", [32, 33])  # 64 and 66 states: the compiled chain has room for 64
def test_many_states(terms):
    t, y = times()
    kernel = sum(gp.Matern32(1.0 + i) for i in range(terms))
    process = gp.GaussianProcess(kernel, t, diag=0.1)
    close(process.log_likelihood(y), dense(kernel, t, y))
    matrix = kernel(t) + 0.1 * torch.eye(30).double()
    torch.testing.assert_close(process.predict(y), kernel(t) @ torch.linalg.solve(matrix, y), rtol=1e-6, atol=1e-6)


def test_many_exposures_at_once():
    t, y = times(90)
    scale = torch.tensor(1.0).double().requires_grad_()
    value = gp.GaussianProcess(gp.Matern32(scale), t, diag=0.1, exposure=30.0).log_likelihood(y)
    assert bool(value.isfinite())
    assert bool(torch.autograd.grad(value, scale)[0].isfinite())


def test_times_with_other_strides():
    torch.manual_seed(0)
    t, y = 10 * torch.rand(20, 3).double().mT, torch.randn(20, 3).double().mT
    want = gp.GaussianProcess(gp.Matern32(1.0), t.contiguous(), diag=0.1).log_likelihood(y)
    t = t.requires_grad_()
    got = gp.GaussianProcess(gp.Matern32(1.0), t, diag=0.1).log_likelihood(y)
    close(got, want)
    copied = t.detach().clone(memory_format=torch.contiguous_format).requires_grad_()
    again = gp.GaussianProcess(gp.Matern32(1.0), copied, diag=0.1).log_likelihood(y)
    close(torch.autograd.grad(got.sum(), t)[0], torch.autograd.grad(again.sum(), copied)[0])


def test_one_list_for_several_kernels():
    t, y = times()
    scales = torch.tensor([1.0, 2.0, 3.0]).double()
    got = gp.GaussianProcess(gp.Matern32(scales), [t], diag=0.1).log_likelihood(y.expand(3, -1))
    close(got, torch.stack([dense(gp.Matern32(float(scale)), t, y) for scale in scales]))


# --- Modes of torch ---------------------------------------------------------------------------------------------------


def test_after_functionalize():
    t, y = times()
    process = gp.GaussianProcess(gp.Matern32(1.23481), t, diag=0.1)
    inside = torch.func.functionalize(lambda y: process.log_likelihood(y))(y)
    close(process.log_likelihood(y), inside)


def test_after_inference_mode():
    t, y = times()
    process = gp.GaussianProcess(gp.Matern32(1.2345), t, diag=0.1)
    with torch.inference_mode():
        value = process.log_likelihood(y)
        inner = gp.GaussianProcess(gp.Matern32(1.2345), t, diag=0.1)
    for one in (process, inner):
        y = y.detach().clone().requires_grad_()
        again = one.log_likelihood(y)
        again.backward()
        close(again.detach(), value.clone())


def test_inference_times_that_move():
    with torch.inference_mode():
        t, y = times()
        process = gp.GaussianProcess(gp.Matern32(1.0), t, diag=0.1)
        t.copy_(10 * torch.rand(30))
        close(process.log_likelihood(y), gp.GaussianProcess(gp.Matern32(1.0), t, diag=0.1).log_likelihood(y))


# --- Bands ------------------------------------------------------------------------------------------------------------


def test_bands_in_a_product():
    t, y = times()
    band, value = torch.randint(0, 2, (30,)), torch.tensor([1.0, 5.0]).double()
    kernel = gp.Bands(gp.Matern32(1.0), value) * gp.Exponential(2.0)
    inner = value[band][:, None] * value[band] * (gp.Matern32(1.0) * gp.Exponential(2.0))(t)
    matrix = inner + 0.1 * torch.eye(30).double()
    want = torch.distributions.MultivariateNormal(torch.zeros_like(y), matrix).log_prob(y)
    close(gp.GaussianProcess(kernel, t, diag=0.1, band=band).log_likelihood(y), want)


def test_bands_that_do_not_exist():
    t, y = times()
    kernel = gp.Bands(gp.Matern32(1.0), torch.ones(2))
    for band in (torch.full((30,), 2), torch.full((30,), -1)):
        with pytest.raises(ValueError, match="`band` must be from 0 to 1, for the bands of the kernel, got"):
            gp.GaussianProcess(kernel, t, diag=0.1, band=band).log_likelihood(y)
    with pytest.raises(TypeError, match=r"`kernel` must be a kernel of laplex\.gp without bands, got one with bands"):
        gp.Bands(kernel, torch.ones(2))


# --- Derivatives ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("exposed", [False, True])
def test_leave_one_out_has_gradients_where_points_are_missing(exposed):
    t, y = times()
    scale = torch.tensor(1.0).double().requires_grad_()
    series, values, options = ([t[:8], t[8:]], [y[:8], y[8:]], {}) if not exposed else (t, y, {"exposure": 0.1})
    mean, variance = gp.GaussianProcess(gp.Matern32(scale), series, diag=0.1, **options).leave_one_out(values)
    total = sum(one.sum() for one in (*mean, *variance))
    assert bool(torch.autograd.grad(total, scale)[0].isfinite())


def test_parameters_that_are_trained_step_by_step():
    t, y = times()
    omega, noise = (torch.nn.Parameter(torch.tensor(value).double()) for value in (2.0, 0.3))
    kernel = gp.SHO(omega=omega, quality=2.0)
    assert [id(one) for one in kernel.parameters()] == [id(omega)]
    process = gp.GaussianProcess(kernel, t, yerr=noise)
    for _ in range(2):
        process.log_likelihood(y).backward()
        with torch.no_grad():
            omega.add_(0.5)
            noise.mul_(1.5)
        fixed = gp.SHO(omega=omega.item(), quality=2.0)
        close(process.log_likelihood(y), gp.GaussianProcess(fixed, t, yerr=noise.item()).log_likelihood(y))


@pytest.mark.parametrize("ratio", [1e4, 1e8, 1e12])
def test_rates_with_large_noise(ratio):
    """g - P is small beside g and P, and must keep its digits."""
    (t, y), one, gradients = times(), torch.ones(1).double(), []
    for make in (gp.Exponential, lambda scale: gp.StateSpace(-1 / scale.reshape(1, 1), 2 / scale.reshape(1, 1), one)):
        scale = torch.tensor(1.3).double().requires_grad_()
        value = gp.GaussianProcess(make(scale), t, diag=ratio).log_likelihood(ratio**0.5 * y)
        gradients.append(torch.autograd.grad(value, scale)[0])
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=0)


# --- A conditional is of one moment -----------------------------------------------------------------------------------


def test_a_conditional_does_not_follow_changes():
    t, y = times()
    scale, new = torch.nn.Parameter(torch.tensor(1.0).double()), torch.linspace(0, 10, 7).double()
    given = gp.GaussianProcess(gp.Matern32(scale), t, diag=0.1).condition(y)
    mean, variance, covariance = given.mean(new), given.variance(new), given.covariance(new)
    with torch.no_grad():
        t.copy_(10 * torch.rand(30))
        scale.fill_(3.0)
    close(given.mean(new), mean)
    close(given.variance(new), variance)
    close(given.covariance(new), covariance)


def test_draws_of_what_is_no_kernel():
    t, y = times()
    given = gp.GaussianProcess(gp.Celerite(1.0, 1.5, 0.5, 1.0), t, diag=20.0).condition(y)
    with pytest.raises(torch.linalg.LinAlgError, match="the kernel must be positive definite to draw from it"):
        given.sample(3, torch.linspace(0, 10, 50).double())


# --- Messages ---------------------------------------------------------------------------------------------------------


def test_exposures_that_vanish():
    t = torch.tensor([1e9, 2e9]).double()
    with pytest.raises(ValueError, match="`exposure` must be long enough to change the times"):
        gp.GaussianProcess(gp.Matern32(1.0), t, diag=0.1, exposure=1e-8).log_likelihood(torch.zeros(2).double())


def test_values_that_are_refused():
    t, _ = times()
    with pytest.raises(ValueError, match="`diag` must be finite, got infinity; leave such observations out"):
        gp.GaussianProcess(gp.Matern32(1.0), t, diag=torch.inf)
    with pytest.raises(ValueError, match="`scale` must be positive and finite, got inf"):
        gp.Matern32(torch.tensor([1.0, torch.inf]))
    with pytest.raises(ValueError, match="`b` must be finite, got nan"):
        gp.Celerite(1.0, float("nan"), 1.0, 1.0)
    with pytest.raises(ValueError, match="`omega` must be positive and finite, got 0"):
        gp.SHO(omega=0.0)


def test_solves_for_a_batch_of_parameters():
    t, y = times(3)
    process = gp.GaussianProcess(gp.Matern32(torch.tensor([1.0, 2.0, 3.0]).double()), t, diag=0.1)
    rows = torch.stack([y, 2 * y, 3 * y])
    want = [
        torch.linalg.solve(gp.Matern32(float(i + 1))(t) + 0.1 * torch.eye(3).double(), row)
        for i, row in enumerate(rows)
    ]
    close(process.apply_inverse(rows), torch.stack(want))
    with pytest.raises(ValueError, match=r"`y` must have the shape \(3, 3\) of the times"):
        process.apply_inverse(y)


# --- What a newcomer tried --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("noise", [1e-12, 1e-10, 1e-6])
def test_draws_where_there_is_hardly_any_noise(noise):
    t, y = times()
    given = gp.GaussianProcess(gp.Matern32(2.0), t, diag=noise).condition(y)
    ratio = given.sample(4000).std(0) / given.variance().sqrt()
    assert 0.97 < float(ratio.mean()) < 1.05


def test_a_parameter_that_became_nan_is_not_hidden():
    t, y = times()
    for kernel, name in ((gp.Exponential, "scale"), (gp.Matern32, "scale"), (gp.SHO, "period")):
        value = torch.nn.Parameter(torch.tensor(1.0).double())
        process = gp.GaussianProcess(kernel(value), t, diag=0.01)
        value.data.fill_(float("nan"))
        likelihood = process.log_likelihood(y)
        assert bool(likelihood.isnan()), name
        assert bool(torch.autograd.grad(likelihood, value)[0].isnan()), name


def test_tensors_on_another_device():
    t, y = times()
    band = torch.zeros(30, dtype=torch.int64, device="meta")
    with pytest.raises(ValueError, match=r"`band` must be on cpu, where the times are, got meta; use band\.to"):
        gp.GaussianProcess(gp.Bands(gp.Matern32(1.0), torch.ones(1)), t, diag=0.1, band=band)
    process = gp.GaussianProcess(gp.Matern32(1.0), t, diag=0.1)
    with pytest.raises(ValueError, match="`y` must be on cpu, where the times are, got meta"):
        process.log_likelihood(y.to("meta"))


def test_exposures_far_from_0():
    t, y = times()
    origin = 2.45e6
    near = gp.GaussianProcess(gp.Matern32(2.0, 10.0), (origin + t) - origin, diag=0.01, exposure=1e-7)
    far = gp.GaussianProcess(gp.Matern32(2.0, 10.0), origin + t, diag=0.01, exposure=1e-7)
    torch.testing.assert_close(far.log_likelihood(y), near.log_likelihood(y), rtol=1e-6, atol=0)


def test_a_term_that_is_there_twice():
    (t, y), kernel = times(), gp.Matern32(1.0)
    process = gp.GaussianProcess(kernel + kernel, t, diag=0.1)
    with pytest.raises(ValueError, match="`kernel` must be a term that is in the sum once"):
        process.predict(y, kernel=kernel)


def test_observations_that_are_not_finite():
    t, y = times()
    y[3] = float("nan")
    process = gp.GaussianProcess(gp.Matern32(1.0), t, diag=0.1)
    for call in (process.log_likelihood, process.predict, process.leave_one_out, lambda y: gp.fit(process, y)):
        with pytest.raises(ValueError, match="`y` must be finite, got NaN or infinity; leave such observations and"):
            call(y)


@pytest.mark.parametrize("kind", ["tensor", "function"])
def test_a_mean_that_is_not_finite(kind):
    t, y = times()
    nan = torch.full_like(t, float("nan"))
    mean = {"tensor": nan, "function": lambda t: t * nan}[kind]
    process = gp.GaussianProcess(gp.Matern32(1.0), t, diag=0.1, mean=mean)
    for call in (process.log_likelihood, process.predict, process.leave_one_out, lambda y: gp.fit(process, y)):
        with pytest.raises(ValueError, match="`mean` must be finite at all times, got NaN or infinity"):
            call(y)


def test_densities_of_integers():
    t, _ = times()
    distribution = gp.GaussianProcess(gp.Matern32(1.0), t, diag=0.1).distribution()
    with pytest.raises(TypeError, match=r"`value` must be a floating-point tensor, got torch\.int64"):
        distribution.log_prob(torch.zeros(3, 30, dtype=torch.int64))


def test_a_fit_turns_back_from_states_that_grow():
    t, y = times()
    alpha, beta = (torch.nn.Parameter(torch.tensor(value).double()) for value in ([1.0, 0.3], [1.0]))
    process = gp.GaussianProcess(gp.CARMA(alpha, beta), t, yerr=0.1)
    fitted = gp.fit(process, y, noise=0.1)
    assert float(fitted.log_likelihood) > float(process.log_likelihood(y))
    with pytest.raises(ValueError, match="the states must decay"):
        gp.fit(gp.GaussianProcess(gp.CARMA(-alpha.detach(), beta), t, yerr=0.1), y)


def test_a_fit_in_inference_mode():
    t, y = times()
    process = gp.GaussianProcess(gp.Matern32(1.0), t, diag=0.1)
    with torch.inference_mode():
        fitted = gp.fit(process, y)
    assert float(fitted.log_likelihood) > float(process.log_likelihood(y))


def test_arguments_of_other_types():
    t, y = times()
    for mean in (None, True, "a", torch.ones(30, dtype=torch.complex64)):
        with pytest.raises(TypeError, match="`mean` must be a number, a tensor or a function of times, got"):
            gp.GaussianProcess(gp.Matern32(1.0), t, diag=0.1, mean=mean)
    with pytest.raises(ValueError, match=r"`mean` must broadcast to the shape \(30,\) of the times, got \(3, 30\)"):
        gp.GaussianProcess(gp.Matern32(1.0), t, diag=0.1, mean=torch.ones(3, 30)).log_likelihood(y)
    for wrong in ("a", True):
        with pytest.raises(TypeError, match="`yerr` must be a number or a tensor of numbers, got"):
            gp.GaussianProcess(gp.Matern32(1.0), t, yerr=wrong)
    with pytest.raises(ValueError, match="`t` must have shape"):
        gp.GaussianProcess(gp.Matern32(1.0), torch.rand(0, 5), diag=0.1)
    assert "Matern32(scale=1, sigma=1), times (30,)" in repr(gp.GaussianProcess(gp.Matern32(1.0), t, diag=0.1))


def test_a_part_of_a_conditional_stays_when_a_term_gets_other_blocks():
    """An oscillator has two blocks below critical damping and one above: the parts are those of when it was made."""
    t, new = torch.linspace(0, 5, 30, dtype=torch.float64), torch.linspace(0, 6, 4, dtype=torch.float64)
    wave, slow = gp.SHO(3.0, quality=0.05), gp.Matern32(1.0)
    given = gp.GaussianProcess(wave + slow, t, diag=0.1).condition(t.sin())
    before = [given.mean(new, kernel=term) for term in (wave, slow)]
    wave.quality = 2.0
    for mean, term in zip(before, (wave, slow), strict=True):
        assert given.mean(new, kernel=term).equal(mean)


@pytest.mark.parametrize("readable", [True, False], ids=["in one loop", "as on a GPU"])
def test_a_parameter_that_inference_mode_made(readable, monkeypatch):
    """Autograd does not save it for the backward of another parameter."""
    if not readable:
        monkeypatch.setattr(gp._engine, "core_can_read", lambda *tensors: False)
    with torch.inference_mode():
        sigma = torch.tensor(0.7, dtype=torch.float64)
    t = torch.linspace(0, 5, 20, dtype=torch.float64)

    def gradient(sigma):
        scale = torch.tensor(1.3, dtype=torch.float64, requires_grad=True)
        likelihood = gp.GaussianProcess(gp.Matern32(scale, sigma), t, diag=0.1).log_likelihood(t.sin())
        return torch.autograd.grad(likelihood, scale)[0]

    torch.testing.assert_close(gradient(sigma), gradient(0.7))
